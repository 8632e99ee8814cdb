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
from dataclasses import replace

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kmem.errors import ProblemError
from kmem.host.syntax import parse_python
from kmem.problem.graph import OpGraph
from kmem.problem.sizing.program import (
    computes_much,
    count_held,
    count_outputs,
    longer_axes,
    shape_of_program,
)
from kmem.problem.sizing.shrinking import KEEP_BELOW, STYLES, proposals, smallest_proposal
from kmem.problem.source.load import (
    FULL,
    ForwardSizes,
    build_inputs,
    check_forward,
    count_parameters,
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

#: Elements of all inputs and outputs that the interpreter handles in seconds.
MAX_SMALL_ELEMENTS = 65536

#: Elements of all parameters and buffers that it still walks through in seconds; more are shrunk.
MAX_SMALL_PARAMETERS = 2**22

#: A workload of fewer elements hardly exercises a kernel's loops and masks; another way to shrink
#: is tried then.
_AMPLE_ELEMENTS = 2048

#: Of the calls of torch in a forward, by which the same program may differ: what only asks for
#: sizes counts, too.
_CALLS_MORE_OR_LESS = 0.1
#: A graph of so many takes a second to trace.
_MANY_NODES = 400

#: Of graphs of more, networks, no lighter sizes are looked for: that takes minutes.
_FEW_NODES = 40

#: How many sizes in a row may fail before a style is given up: what a module refuses at these, it
#: hardly takes at the next.
_FAILURES = 6


def derive_small_workload(problem: Problem) -> Workload:
    """The workload named "small".

    Returns: One with `small_inputs` if the problem has `get_small_inputs`; one without constants if
        the problem is small as it is; else the largest sizes within MAX_SMALL_ELEMENTS. Where
        parameters are so large that no sizes are, the smallest sizes that work, and a warning in
        the log. Where a forward computes much at these sizes, the largest at which it does not,
        if there are any.
    Raises ProblemError: if the inputs are large and nothing makes them smaller.
    """
    full = execute_problem(problem)
    if hasattr(full, "get_small_inputs"):
        return Workload("small", small_inputs=True)
    search = _Search(problem, trace_problem(full, both_modes=False))
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
            "%s: its parameters keep the small workload at %d elements; "
            "the interpreter will be slow",
            problem.path,
            search.elements(workload),
        )
    return _lighter(search, workload, problem, full)


def _lighter(
    search: "_Search", chosen: Workload, problem: Problem, full: types.ModuleType
) -> Workload:
    """The workload chosen; if its forward computes much, a small one of which it does not.

    The latter keeps every axis of every result longer than one, for a kernel of a pooling whose
    result has one column left has other loops than that at full size.
    """
    if len(search.graph.nodes) > _FEW_NODES or not search.computes_much(chosen):
        return chosen
    search.light = True
    lighter = _first_that_fits(search, problem, full)
    return lighter if lighter is not None and search.is_small(lighter) else chosen


def _first_that_fits(
    search: "_Search", problem: Problem, full: types.ModuleType
) -> Workload | None:
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
        if constants:
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


class _Search:
    """Tries sizes for one problem; remembers what the full graph looks like."""

    def __init__(self, problem: Problem, graph: OpGraph) -> None:
        self.problem = problem
        self.graph = graph
        self.light = False  # whether sizes at which the forward computes much are passed over
        self._graphs: dict[Workload, OpGraph] = {FULL: graph}
        self._inputs: dict[Workload, int] = {}  # elements, by the sizes that shape inputs
        self._forwards: dict[Workload, tuple[bool, ForwardSizes | None]] = {}
        self._parameters = _count_parameters(execute_problem(problem))
        tree = parse_python(problem.source)
        reads = top_level_reads(problem, tree)
        named = {name for each in tree.body for name, _ in assigned_constants(each)}
        self._parameters_alone = named - reached_from(INPUT_FUNCTIONS, reads)

    def run(self, constants: Sizes, *, parameters_stay: bool) -> Workload | None:
        """The largest sizes within the budget; else the smallest that work.

        If nothing within it works, the same is tried with the constants that can be shrunk alone.
        """
        chosen = self._shrink(constants, parameters_stay)
        if chosen is not None and self.elements(chosen) <= MAX_SMALL_ELEMENTS:
            return chosen
        alone = {
            name: value
            for name, value in constants.items()
            if self._shrink({name: value}, parameters_stay) is not None
        }
        if not alone or len(alone) == len(constants):
            return chosen
        fewer = self._shrink(alone, parameters_stay)
        if fewer is None or chosen is None:
            return fewer or chosen
        return min(fewer, chosen, key=self.elements)

    def _shrink(self, constants: Sizes, parameters_stay: bool) -> Workload | None:
        """The first style whose largest fitting sizes are ample, else the best of all styles.

        If none fits, the smallest sizes that work.
        """
        best, most = None, 0
        too_large: Workload | None = None  # the smallest that runs, of the first style with one
        for style in STYLES:
            failures = 0
            by_value = not parameters_stay
            last = smallest_proposal(constants, style, by_value)
            if self._runs_too_large(last, parameters_stay):  # as all the larger ones would
                too_large = too_large or last
                continue
            if self.light and self._runs_and_computes_much(last, parameters_stay):
                continue
            settled = too_large is not None
            for workload in proposals(constants, style, by_value):
                if self._input_elements(workload) > MAX_SMALL_ELEMENTS and workload != last:
                    continue
                # many times quicker than tracing what fails or is too large
                runs, _ = self._run_forward(workload, parameters_stay)
                if self._runs_too_large(workload, parameters_stay):
                    too_large = too_large if settled else workload
                    continue
                runs = runs and self._calls_as_often(workload, parameters_stay)
                graph = self._trace(workload, parameters_stay) if runs else None
                if graph is None:
                    failures += 1
                    if failures >= _FAILURES:
                        break
                    continue
                if self.light and computes_much(graph):
                    continue
                total = self._input_elements(workload) + count_outputs(graph)
                if total >= _AMPLE_ELEMENTS:
                    return workload
                if total > most:
                    best, most = workload, total
                break
        if best is None and too_large is not None and self._trace(too_large, parameters_stay):
            return too_large
        return best

    def _run_forward(
        self, workload: Workload, parameters_stay: bool
    ) -> tuple[bool, ForwardSizes | None]:
        """Whether the forward runs at these sizes, and how large it then is, if that is known.

        If parameters are to stay, it runs with as many of them.
        """
        if workload not in self._forwards:
            try:
                module = execute_problem(self.problem, workload)
                if parameters_stay and _count_parameters(module) != self._parameters:
                    return False, None
                self._forwards[workload] = True, check_forward(module)
            except ProblemError:
                self._forwards[workload] = False, None
        runs, sizes = self._forwards[workload]
        is_as_wide = sizes is None or sizes.parameters == self._parameters
        return (runs, sizes) if is_as_wide or not parameters_stay else (False, None)

    def _runs_too_large(self, workload: Workload, parameters_stay: bool) -> bool:
        """Whether the forward runs at these sizes, which are not small enough."""
        runs, sizes = self._run_forward(workload, parameters_stay)
        if not runs:
            return False
        if sizes is None:  # tracing says
            graph = self._graph_at(workload)
            outputs, parameters = count_outputs(graph), count_held(graph)
        else:
            outputs, parameters = sizes.outputs, sizes.parameters
        too_wide = not parameters_stay and parameters > MAX_SMALL_PARAMETERS
        return too_wide or self._input_elements(workload) + outputs > MAX_SMALL_ELEMENTS

    def _calls_as_often(self, workload: Workload, parameters_stay: bool) -> bool:
        """Whether a forward makes about as many calls of torch as at full size.

        One of fewer time steps makes fewer, and is another program. Of few nodes that is seen as
        soon by tracing it.
        """
        if len(self.graph.nodes) < _MANY_NODES:
            return True
        sizes = [self._run_forward(each, parameters_stay)[1] for each in (workload, FULL)]
        calls = [each.calls for each in sizes if each is not None]
        return len(calls) < 2 or abs(calls[0] - calls[1]) <= _CALLS_MORE_OR_LESS * calls[1]

    def elements(self, workload: Workload) -> int:
        """Elements of all inputs and, if the graph can be traced, outputs."""
        return self._input_elements(workload) + count_outputs(self._graph_at(workload))

    def is_small(self, workload: Workload) -> bool:
        """Whether the interpreter handles a workload in seconds."""
        return self.elements(workload) <= MAX_SMALL_ELEMENTS and not self.has_large_parameters(
            workload
        )

    def computes_much(self, workload: Workload) -> bool:
        return computes_much(self._graph_at(workload))

    def _runs_and_computes_much(self, workload: Workload, parameters_stay: bool) -> bool:
        runs, _ = self._run_forward(workload, parameters_stay)
        return runs and self.computes_much(workload)

    def has_large_parameters(self, workload: Workload) -> bool:
        return count_held(self._graph_at(workload)) > MAX_SMALL_PARAMETERS

    def _graph_at(self, workload: Workload) -> OpGraph:
        if workload not in self._graphs:
            module = execute_problem(self.problem, workload)
            self._graphs[workload] = trace_problem(module, both_modes=False)
        return self._graphs[workload]

    def _input_elements(self, workload: Workload) -> int:
        """Without tracing; more than any budget if `get_inputs` does not work at these sizes."""
        kept = [item for item in workload.constants if item[0] not in self._parameters_alone]
        shaping = replace(workload, constants=tuple(kept))
        if shaping not in self._inputs:
            self._inputs[shaping] = self._count_inputs(workload)
        return self._inputs[shaping]

    def _count_inputs(self, workload: Workload) -> int:
        try:
            with FakeTensorMode(allow_non_fake_inputs=True), quiet_fake_tensors():
                inputs = build_inputs(execute_problem(self.problem, workload), "cpu")
        except ProblemError:
            if workload is FULL:
                raise
            return MAX_SMALL_ELEMENTS + 1
        return sum(value.numel() for value in inputs if isinstance(value, torch.Tensor))

    def _trace(self, workload: Workload, parameters_stay: bool) -> OpGraph | None:
        """The graph at these sizes; None if the forward is another program there.

        It must run the same operators, on the same parameters if these are to stay.
        """
        graph = self._graph_at(workload)
        wanted = shape_of_program(self.graph, parameters_stay)
        if shape_of_program(graph, parameters_stay) != wanted:
            return None
        if self.light and longer_axes(graph) != longer_axes(self.graph):
            return None
        return graph


def _count_parameters(module: types.ModuleType) -> int | None:
    """Elements; None where a constructor reads values, which fake tensors do not have."""
    try:
        return count_parameters(module)
    except ProblemError:
        return None
