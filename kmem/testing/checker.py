"""The suite of `kmem.interfaces.Checker`."""

import tempfile
from pathlib import Path

from kmem.interfaces import Checker
from kmem.testing.wording import check_line, check_name, check_reason

#: A module file that leaves a trace when anything of it runs.
_TELLTALE = """\
import pathlib

import torch

pathlib.Path({place!r}).write_text("it ran")


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
"""


def check_checker(checker: Checker, *, accepts: str, refuses: str) -> None:
    """Hold a checker to its contract. One that cannot run here is held to saying why.

    Args:
        accepts: the source of a module file that the checker must let pass.
        refuses: the source of one that it must refuse.
    Raises:
        AssertionError: naming what the contract says and the checker does otherwise.
    """
    check_name(checker.name)
    reason = checker.unavailable_reason()
    check_reason(reason)
    if reason is not None:
        return
    assert _reasons(checker, accepts) == [], "the source it accepts must have no reason against it"
    first = _reasons(checker, refuses)
    assert first, "the source it refuses must have a reason against it"
    assert _reasons(checker, refuses) == first, (
        "the same source must be refused for the same reasons"
    )
    with tempfile.TemporaryDirectory(prefix="kmem-checker-") as place:
        trace = Path(place) / "trace"
        _reasons(checker, _TELLTALE.format(place=str(trace)))
        assert not trace.exists(), "check() must run nothing of the candidate"


def _reasons(checker: Checker, source: str) -> list[str]:
    reasons = checker.check(source)
    assert isinstance(reasons, list), f"check() returns a list of reasons, not {reasons!r}"
    for reason in reasons:
        check_line(reason, "a reason why a source must not run")
    return reasons
