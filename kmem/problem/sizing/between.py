"""Workloads between the small one and the full: some numbers as the file has them, others small.

A kernel's compiled constants follow some of a problem's sizes (a row's length) and not others (how
many rows there are): with the former at full size it can be interpreted with the very constants
that it ships with.
"""

from collections.abc import Iterator
from itertools import combinations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kmem.errors import ProblemError
from kmem.problem.sizing.search import MAX_SMALL_ELEMENTS, MAX_SMALL_PARAMETERS
from kmem.problem.source.load import build_inputs, check_forward, execute_problem
from kmem.problem.tracing.fake import quiet_fake_tensors
from kmem.records import Problem, Workload

#: Elements of inputs and outputs together, over those of a small workload.
_ELEMENTS = 4 * MAX_SMALL_ELEMENTS
#: Of more numbers than these only one or all but one are taken as they are in the file.
_EVERY_SUBSET = 4
#: What the numbers that stay small are divided by, in turn, until the whole is small enough.
_SHRINK = (1, 4, 16)

Constants = tuple[tuple[str, int | tuple[int, ...]], ...]


def workloads_between(problem: Problem, small: Workload) -> Iterator[Workload]:
    """Workloads that an interpreter can still run, those with most numbers at full size first.

    Args:
        small: whose constants are put back, some at a time.
    """
    count = len(small.constants)
    sizes = range(count - 1, 0, -1) if count <= _EVERY_SUBSET else (count - 1, 1)
    for kept in sizes:
        for replaced in combinations(small.constants, count - kept):
            full = [name for name, _ in small.constants if name not in dict(replaced)]
            name = f"full {' '.join(full)}"
            shrunk = (Workload(name, _divide(replaced, by)) for by in _SHRINK)
            if (found := next((each for each in shrunk if _fits(problem, each)), None)) is not None:
                yield found


def _divide(constants: Constants, by: int) -> Constants:
    """Small numbers made smaller: one of full size leaves less room for them."""
    return tuple(
        (name, tuple(max(2, each // by) for each in value))
        if isinstance(value, tuple)
        else (name, max(2, value // by))
        for name, value in constants
    )


def _fits(problem: Problem, workload: Workload) -> bool:
    try:
        module = execute_problem(problem, workload)
        with FakeTensorMode(allow_non_fake_inputs=True), quiet_fake_tensors():
            inputs = build_inputs(module, "cpu")
        given = sum(value.numel() for value in inputs if isinstance(value, torch.Tensor))
        if given > _ELEMENTS:
            return False
        sizes = check_forward(module)
    except ProblemError:
        return False
    if sizes is None:
        return False
    return given + sizes.outputs <= _ELEMENTS and sizes.parameters <= MAX_SMALL_PARAMETERS
