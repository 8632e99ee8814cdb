"""The suite of `Checker`: the built-in checker passes it, and each way to break it is named."""

import ast
from collections.abc import Callable

import pytest
from corpus.honest import SCALE_RELU

from kmem.default_plugins.checkers import KernelGuardChecker
from kmem.interfaces import Checker
from kmem.testing import check_checker

#: Keeps outputs by the address of the input.
POINTER_CACHE = """
import torch

_cache = {}


def custom_kernel(data):
    (x,) = data
    key = x.data_ptr()
    if key in _cache:
        return _cache[key]
    y = torch.relu(x)
    _cache[key] = y
    return y
"""


def test_the_built_in_checker_keeps_the_contract_or_says_what_is_missing() -> None:
    check_checker(KernelGuardChecker(), accepts=SCALE_RELU, refuses=POINTER_CACHE)


class NoPrinting(Checker):
    """Keeps the contract; what breaks it derives from this."""

    name = "no-printing"

    def unavailable_reason(self) -> str | None:
        return None

    def check(self, source: str) -> list[str]:
        return [
            f"line {node.lineno}: print"
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Name) and node.id == "print"
        ]


class SaysNothing(NoPrinting):
    def unavailable_reason(self) -> str | None:
        return ""


class RefusesAll(NoPrinting):
    def check(self, source: str) -> list[str]:
        return ["it is a kernel"]


class RefusesNothing(NoPrinting):
    def check(self, source: str) -> list[str]:
        return []


class AnswersText(NoPrinting):
    def check(self, source: str) -> str:
        return "; ".join(super().check(source))


class AnswersLines(NoPrinting):
    def check(self, source: str) -> list[str]:
        return [f"{reason}\nwhich is bad" for reason in super().check(source)]


class Forgets(NoPrinting):
    """Refuses a source once, and lets it pass from then on."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def check(self, source: str) -> list[str]:
        reasons = [] if source in self.seen else super().check(source)
        self.seen.add(source)
        return reasons


class RunsIt(NoPrinting):
    def check(self, source: str) -> list[str]:
        exec(compile(source, "candidate", "exec"), {"print": lambda text: None})
        return super().check(source)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (SaysNothing, "must not be empty"),
        (RefusesAll, "the source it accepts must have no reason against it"),
        (RefusesNothing, "the source it refuses must have a reason against it"),
        (AnswersText, r"check\(\) returns a list of reasons, not ''"),
        (AnswersLines, "is one line"),
        (Forgets, "must be refused for the same reasons"),
        (RunsIt, "must run nothing of the candidate"),
    ],
)
def test_a_checker_that_breaks_the_contract_is_told_how(
    make: Callable[[], Checker], message: str
) -> None:
    check_checker(NoPrinting(), accepts="x = 1\n", refuses="print(1)\n")
    with pytest.raises(AssertionError, match=message):
        check_checker(make(), accepts="x = 1\n", refuses="print(1)\n")
