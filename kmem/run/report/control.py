"""The control arm of a report: what the search brought beside independent first kernels.

Best-of-n spends all its measurements on kernels of the first round. A run's own first round is a
part of that; what as many measurements as the run made would have come to is known only where it is
measured.
"""

from collections.abc import Sequence

from kmem.orchestrate.yields import best_after_each
from kmem.records import Attempt, Move, Status, Strategy


def describe_control(strategy: Strategy, attempts: Sequence[Attempt]) -> str | None:
    """The control in a sentence; None where nothing passed."""
    measured = [each for each in attempts if each.measurement.status is not Status.BUILD_FAILED]
    best_ms = best_after_each(measured)
    if not measured or best_ms[-1] is None:
        return None
    if strategy is Strategy.BEST_OF_N:
        return "control: this run is one, best-of-n: its kernels do not build on one another"
    first = [
        each for each in measured if each.round == 0 and each.candidate.task.move is not Move.RECALL
    ]
    later = len(measured) - len(first)
    first_ms = best_after_each(first)[-1] if first else None
    if not later:
        return (
            f"control: all {len(first)} measurements were first kernels, as those of best-of-n "
            "are: there was no search to hold against it"
        )
    other = f"control: {_times(later, 'measurement')} of the search and of memory"
    asked = "what best-of-n gets by as many, `kmem bench --control` measures"
    if first_ms is None:
        return f"{other} came to {best_ms[-1]:.4g} ms, no first kernel passed; {asked}"
    return (
        f"{other} came to {best_ms[-1]:.4g} ms, {_times(len(first), 'first kernel')} alone to "
        f"{first_ms:.4g} ms ({first_ms / best_ms[-1]:.3f}x); {asked}"
    )


def _times(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
