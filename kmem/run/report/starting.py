"""What became of the user's own kernel in a run that started from it."""

from collections.abc import Sequence

from kmem.explore.models.author import LlmAuthor
from kmem.records import Attempt, Run, RunResult, Status


def describe_start(run: Run, result: RunResult, attempts: Sequence[Attempt]) -> str:
    """A sentence on the kernel that a run started from; empty if it started from none.

    Args:
        attempts: as they were screened or, where a final verdict refused them, with that.
    """
    if run.start is None:
        return ""
    own = [each for each in attempts if each.candidate.kernel.hash == run.start.hash]
    if not own:
        return "The kernel to start from was not judged: the time was up before."
    measurement = own[-1].measurement
    if measurement.status is not Status.PASSED:
        why = (measurement.log.strip().splitlines() or ["no reason given"])[0]
        served = "models had it as text" if LlmAuthor.name in run.authors else "others competed"
        verdict = f"{measurement.status.value}: {why}"
        return f"The kernel to start from fails the judge ({verdict}); {served}."
    label = "an estimated " if measurement.estimated else ""
    text = f"The kernel to start from passed and takes {label}{measurement.latency_ms:.4g} ms"
    if result.best is None:
        return f"{text}."
    if result.best.candidate.kernel.hash == run.start.hash:
        return f"{text}; nothing faster was found."
    best_ms = result.best.measurement.latency_ms
    return f"{text}; the winner is {measurement.latency_ms / best_ms:.2f}x as fast."
