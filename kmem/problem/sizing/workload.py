"""Derive the small workload of a problem: sizes at which the interpreter ends in seconds.

Triton's interpreter runs programs one by one, so the sizes of a problem file are replaced by
smaller ones. In this order, until a way works:

1. Top-level integers that shape inputs alone.
2. Those, and numbers written where inputs are made, each as long as parameters stay as they are.
3. All sizes of inputs and of constructor arguments together, where parameters are large, or
   nothing else works: parameters shrink too.
4. Single numbers where a value is written twice with different meanings.
5. Parts of the tensors that come out of `get_inputs`, whatever made them.

Every choice is checked by tracing on fake tensors: the same operators in the same order as at full
size. Sizes that `Model` itself reads or contains stay, for emitted modules contain it as it is.
Where the forward computes too much between few inputs and few outputs (program.py counts it), the
ways are tried once more for sizes at which it does not. Not covered: whether the values still mean
the same.
"""

import logging
import types

from torch._subclasses.fake_tensor import FakeTensorMode

from kmem.errors import ProblemError
from kmem.host.syntax import parse_python
from kmem.problem.graph import OpGraph
from kmem.problem.sizing.search import FEW_NODES, Search
from kmem.problem.sizing.shrinking import KEEP_BELOW
from kmem.problem.source.load import (
    FULL,
    build_inputs,
    execute_problem,
)
from kmem.problem.source.reach import (
    INPUT_FUNCTIONS,
    SIZE_FUNCTIONS,
    assigned_constants,
    names_in,
    reached_from,
    top_level_reads,
)
from kmem.problem.source.substitution import Sizes, axes_of, place_of, written_sizes
from kmem.problem.tracing.fake import quiet_fake_tensors
from kmem.problem.tracing.trace import trace_problem
from kmem.records import Problem, Workload

logger = logging.getLogger(__name__)


def derive_small_workload(problem: Problem, known: OpGraph | None = None) -> Workload:
    """The workload named "small"; see `derive_small`."""
    return derive_small(problem, known)[0]


def derive_small(problem: Problem, known: OpGraph | None = None) -> tuple[Workload, OpGraph | None]:
    """The workload named "small", and its graph in one mode if the search has traced it.

    Args:
        known: the problem traced at full size, as `trace_problem` does, if that was done already.

    Returns: One with `small_inputs` if the problem has `get_small_inputs`; one without constants if
        the problem is small as it is; else the largest sizes within MAX_SMALL_ELEMENTS. Where
        parameters are so large that no sizes are, the smallest sizes that work, and a warning in
        the log. Where a forward computes much at these sizes, the largest at which it does not,
        if there are any.
    Raises ProblemError: if the inputs are large and nothing makes them smaller.
    """
    full = execute_problem(problem)
    if hasattr(full, "get_small_inputs"):
        return Workload("small", small_inputs=True), None
    search = Search(problem, known or trace_problem(full, both_modes=False))
    workload = _search(search, problem, full)
    return workload, search.traced(workload)


def _search(search: Search, problem: Problem, full: types.ModuleType) -> Workload:
    if search.is_small(FULL):
        return _lighter(search, Workload("small"), problem, full)
    workload = _first_that_fits(search, problem, full)
    if workload is None:
        raise ProblemError(
            f"{problem.path}: the module works at no smaller sizes of its inputs; "
            "define get_small_inputs() that returns small ones of the same kind"
        )
    if not search.is_small(workload):
        logger.warning(
            "%s: works at no fewer than %d elements of inputs and results, %d of parameters; "
            "the interpreter will be slow",
            problem.path,
            search.elements(workload),
            search.held(workload),
        )
    return _lighter(search, workload, problem, full)


def _lighter(
    search: Search, chosen: Workload, problem: Problem, full: types.ModuleType
) -> Workload:
    """The workload chosen; if its forward computes much, a small one of which it does not.

    The latter keeps every axis of every result longer than one, for a kernel of a pooling whose
    result has one column left has other loops than that at full size.
    """
    if len(search.graph.nodes) > FEW_NODES or not search.computes_much(chosen):
        return chosen
    search.light = True
    lighter = _first_that_fits(search, problem, full)
    return lighter if lighter is not None and search.is_small(lighter) else chosen


def _first_that_fits(search: Search, problem: Problem, full: types.ModuleType) -> Workload | None:
    """The first way to shrink that gives a small workload; else the first that works at all."""
    alone = find_input_constants(problem, full)
    numbers = [
        number
        for number in written_sizes(problem, parse_python(problem.source))
        if number.value > KEEP_BELOW
    ]
    written: Sizes = {str(number.value): number.value for number in numbers}
    every = find_constants(problem, full, SIZE_FUNCTIONS) | written
    shrink_all = (every, _PARAMETERS_SHRINK)
    ways = [
        *([shrink_all] if search.has_large_parameters(FULL) else []),
        (alone, _PARAMETERS_STAY),
        (alone | written if written else {}, _PARAMETERS_STAY),
        *([] if search.has_large_parameters(FULL) else [shrink_all]),
        ({place_of(number): number.value for number in numbers}, _PARAMETERS_STAY),
        (_large_axes(full), _PARAMETERS_STAY),
    ]
    works: Workload | None = None
    for constants, parameters_stay in ways:
        # as long as large parameters stay, nothing is small
        is_vain = parameters_stay and search.has_large_parameters(FULL)
        if constants and not (works and is_vain):
            workload = search.run(constants, parameters_stay=parameters_stay)
            if workload is not None and search.is_small(workload):
                return workload
            works = works or workload
    return works


_PARAMETERS_STAY, _PARAMETERS_SHRINK = True, False


def _large_axes(full: types.ModuleType) -> Sizes:
    with FakeTensorMode(allow_non_fake_inputs=True), quiet_fake_tensors():
        axes = axes_of(build_inputs(full, "cpu"))
    return {name: size for name, size in axes.items() if size > KEEP_BELOW}


def find_input_constants(problem: Problem, module: types.ModuleType) -> Sizes:
    """Top-level integers, and tuples of them, that shape the inputs alone, with their full values.

    They reach `get_inputs` and neither `get_init_inputs` nor `Model`.
    """
    shaping = find_constants(problem, module, INPUT_FUNCTIONS)
    sizing = find_constants(problem, module, ("get_init_inputs",))
    return {name: value for name, value in shaping.items() if name not in sizing}


def find_constants(problem: Problem, module: types.ModuleType, functions: tuple[str, ...]) -> Sizes:
    """Top-level integers, and tuples of them, that reach some functions and do not reach `Model`.

    Only what is assigned once counts, and not what is computed from other constants.
    """
    tree = parse_python(problem.source)
    assigned = [name for statement in tree.body for name, _ in assigned_constants(statement)]
    computed = {
        name
        for statement in tree.body
        for name, expression in assigned_constants(statement)
        if names_in(expression) & set(assigned)
    }
    reads = top_level_reads(problem, tree)
    reached = reached_from(functions, reads) - reached_from(("Model",), reads)
    found: Sizes = {}
    for name in assigned:  # in the file's order
        value = module.__dict__.get(name)
        numbers = value if isinstance(value, tuple | list) else (value,)
        if name not in reached or name in computed or assigned.count(name) > 1:
            continue
        are_sizes = numbers and all(type(number) is int for number in numbers)
        if are_sizes and max(numbers) > KEEP_BELOW:
            found[name] = value if isinstance(value, int) else tuple(value)
    return found
