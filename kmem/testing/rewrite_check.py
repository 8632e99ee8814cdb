"""The rewrites of skills held to their contract on their own examples, without trusting them.

A skill with a rewrite.py has an example, a problem in which the rewrite finds a place:
examples/rewritten.py, or examples/before.py. This module is also the confined process.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from kmem.curate.recipe_check import answer_confined, ask_confined
from kmem.errors import SkillError
from kmem.skills import load_rewrite, read_skill
from kmem.testing.rewrite import rewrite_fault

#: Of all examples that one process gets to; one takes some seconds.
_TIMEOUT_S = 300.0
_EXAMPLES = ("rewritten.py", "before.py")


def rewrite_faults(directories: Sequence[Path]) -> dict[Path, str]:
    """How the rewrites of these skill directories break their contract, by directory.

    A directory without a rewrite.py has no such fault.
    """
    rewriting = [path for path in directories if (path / "rewrite.py").is_file()]
    return ask_confined(__name__, rewriting, timeout_s=_TIMEOUT_S)


def _fault_of(directory: Path) -> str:
    skill, _ = read_skill(directory)
    if skill is None:
        return ""
    places = [directory / "examples" / name for name in _EXAMPLES]
    example = next((place for place in places if place.is_file()), None)
    if example is None:
        return "rewrite.py has no examples/rewritten.py, a problem that it is checked on"
    try:
        rewrite = load_rewrite(skill)
    except SkillError:
        return ""  # said of every skill's code
    fault = rewrite_fault(rewrite, example) if rewrite is not None else ""
    return f"rewrite.py on examples/{example.name}: {fault}" if fault else ""


def _load_tracing() -> None:
    """Let torch import what tracing needs while it still may look for its caches."""
    import torch

    torch.export.export(torch.nn.ReLU(), (torch.zeros(1),), strict=False)


if __name__ == "__main__":
    _load_tracing()
    answer_confined(sys.argv[1:], _fault_of)
