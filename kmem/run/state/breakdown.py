"""Where the module's own time goes, kept in the run directory: found once, when it is traced."""

from pathlib import Path

from kmem.problem.breakdown import Breakdown, break_down
from kmem.problem.traced import TracedProblem
from kmem.run.directory import BREAKDOWN, RunDirectory
from kmem.serialize import from_json, to_json


def keep_breakdown(directory: RunDirectory, traced: TracedProblem) -> None:
    """Write the estimate beside the run; nothing for a module that could not be traced.

    Raises OutputError if it cannot be written.
    """
    found = break_down(traced)
    if found is not None:
        directory.write_text(BREAKDOWN, to_json(found))


def read_breakdown(root: Path) -> Breakdown | None:
    """What was kept; None where nothing was, or it is damaged or of another version."""
    try:
        return from_json(Breakdown, (root / BREAKDOWN).read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
