"""Whether a run's next measurements are worth it, by what memory knows of earlier searches.

The rule is for the search of recipes: what models try next has little to do with how such searches
came down. The control best-of-n spends what it was given.
"""

import math
from collections.abc import Sequence

from kmem.orchestrate.stop import is_as_fast_as_remembered
from kmem.orchestrate.yields import (
    Here,
    best_after_each,
    expected_gain,
    fallen,
    share_of_a_round,
)
from kmem.records import Descent, Move, Strategy
from kmem.run.stages.parts import Parts
from kmem.run.stages.recall import Remembered


def reason_enough(parts: Parts, remembered: Remembered, more: int) -> str:
    """Why so many more measurements are not worth it; empty if they are, or nobody can tell."""
    run, descents = parts.run, remembered.descents
    is_search = run.strategy is not Strategy.BEST_OF_N and not run.models
    if not descents or not is_search or not parts.session.present:
        return ""
    if parts.history.refused and not parts.history.verdicts:
        return ""  # nothing that earlier searches ended with holds here: gains count from the start
    round_size = run.budget.candidates_per_round
    needed = share_of_a_round(more, round_size)
    gain = _gained_before(parts, descents, more)
    told = "the search that found the remembered winner gained no more by its last ones"
    if gain is None:
        gain = expected_gain(_stand(parts, remembered), descents, more, round_size)
        told = f"memory knows {len(descents)} searches"
    if gain is None or gain >= needed:
        return ""
    return (
        f"the next {more} measurements are expected to bring {math.expm1(gain):.2%}, less than the "
        f"{math.expm1(needed):.2%} that makes them worth it: {told}"
    )


def _gained_before(parts: Parts, descents: Sequence[Descent], more: int) -> float | None:
    """What the search of this very graph gained by its last measurements, if its winner holds here.

    None if the run did not begin with that winner, or the search was too short to tell.
    """
    earlier = _went_before(parts, descents)
    if len(parts.history.attempts) != 1 or len(earlier) <= more:
        return None
    return fallen(earlier, len(earlier) - more, len(earlier))


def _went_before(parts: Parts, descents: Sequence[Descent]) -> tuple[float | None, ...]:
    """How the longest search of this very graph came down, if the run goes on from its winner.

    Only this memory's own tell: a stranger's winner may hold as recorded and be no good.
    """
    attempts, graph = parts.history.attempts, parts.session.graph_key.graph_hash
    if not attempts or attempts[0].candidate.task.move is not Move.RECALL:
        return ()
    own = (each.best_ms for each in descents if each.is_own and each.graph == graph)
    return max(own, key=len, default=())


def _stand(parts: Parts, remembered: Remembered) -> Here:
    """Where the run stands; one that goes on from a remembered winner, behind its search."""
    key, history = parts.session.graph_key, parts.history
    earlier = _went_before(parts, remembered.descents)
    best = history.best.candidate.kernel if history.best else None
    bound = parts.session.least_bound(best)
    return Here(
        key.structure_hash,
        key.sizes,
        tuple(sorted(parts.session.recipes)),
        (*earlier, *best_after_each(history.attempts)),
        all(attempt.round == 0 for attempt in history.attempts),
        bound.time_ms if bound else None,
        not earlier and is_as_fast_as_remembered(history.best_ms, remembered.winners),
    )
