"""What an output may be off by for reasons that are not the candidate's."""

from collections.abc import Sequence

import torch

from kmem.measure.oracle.answers.answer import Comparison
from kmem.measure.oracle.answers.expected import Expected
from kmem.measure.oracle.correctness import Difference, cap_noise
from kmem.measure.oracle.reference import Reference


def compare_with_origins(
    values: Sequence[torch.Tensor], expected: Expected, reference: Reference, seed: int
) -> Comparison:
    """Outputs beside the expected; what may have cancelled is weighed by what it cancelled from.

    It is as far off in eager, by luck more or less (oracle/answers/origins.py).

    Raises InputsChanged: as `Expected.compare`.
    """
    compared = expected.compare(values)
    if not compared.may_have_cancelled:
        return compared
    find = reference.origins_finder(seed)
    return expected.compare(values, find) if find else compared


def forgiven_noise(
    compared: Comparison, expected: Expected, reference: Reference, family: str, seed: int
) -> Sequence[Difference | None]:
    """What one rounding of the inputs changes, for each output."""
    noise = reference.input_noise(expected, seed)
    # eager may be exact by luck, or more precise than on the target
    is_capped = not reference.module.stands_in
    if family != "constant" and is_capped:
        return list(map(cap_noise, noise, compared.eager))
    return noise
