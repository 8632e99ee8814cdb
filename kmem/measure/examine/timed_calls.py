"""What timed calls returned, by the spots that they left (spots.py)."""

import random

from kmem.measure.examine.examination import Examination, check_description
from kmem.measure.oracle.spots import LOOKED_AT, SETTLED, Spots


def check_timed(examination: Examination, spots: Spots, seed: int) -> None:
    """Timed calls returned what is right for their inputs.

    Some calls are looked at, chosen now that all have run, and ranked by their distance from eager.
    The furthest are held to the contract, by the norm of the spots alone: among all elements a
    wrong one would count for little. Raises Refused.

    Args:
        seed: of the choice; no worker may know it.
    """
    reference = examination.loaded_reference
    inputs = reference.inputs
    for result in spots.results:
        check_description(result.described, spots.answer, reference.device)
    chosen = random.Random(seed).sample(spots.results, min(LOOKED_AT, len(spots.results)))
    distances: list[float] = []
    for result in chosen:
        examination.pause()
        inputs.fill("drawn", result.seed)
        distances.append(result.distance(reference.run_eager(inputs.values, result.seed)))
    for index in sorted(range(len(chosen)), key=lambda index: -distances[index])[:SETTLED]:
        result = chosen[index]
        examination.pause()
        inputs.fill("drawn", result.seed)
        expected = reference.expect(inputs.values, result.seed)
        examination.compare_spots(result, expected, "timed")
