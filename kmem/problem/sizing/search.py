"""Tries sizes for one problem: which are small, and at which the forward is the same program.

Whether a forward runs at all, and how large it is then, is asked first, on tensors without data;
only what is small enough is traced and compared with the graph at full size.
"""

import time
import types
from dataclasses import replace
from functools import cached_property

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kmem.errors import ProblemError
from kmem.host.syntax import parse_python
from kmem.problem.graph import OpGraph
from kmem.problem.sizing.program import (
    computes_much,
    count_held,
    count_outputs,
    has_convolutions_that_fit,
    longer_axes,
    shape_of_program,
)
from kmem.problem.sizing.shrinking import STYLES, proposals, smallest_proposal
from kmem.problem.source.load import (
    FULL,
    ForwardSizes,
    build_inputs,
    check_forward,
    count_parameters,
    execute_problem,
    size_forward,
)
from kmem.problem.source.reach import (
    INPUT_FUNCTIONS,
    assigned_constants,
    reached_from,
    top_level_reads,
)
from kmem.problem.source.substitution import Sizes
from kmem.problem.tracing.fake import quiet_fake_tensors
from kmem.problem.tracing.trace import trace_problem
from kmem.records import Problem, Workload

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
#: Graphs of more are networks, which take seconds to trace: no lighter sizes are looked for, which
#: takes minutes.
FEW_NODES = 40

#: How many sizes in a row may fail before a style is given up: what a module refuses at these, it
#: hardly takes at the next.
_FAILURES = 6


class Search:
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
            if self._shrinks_alone({name: value}, parameters_stay)
        }
        if not alone or len(alone) == len(constants):
            return chosen
        fewer = self._shrink(alone, parameters_stay)
        if fewer is None or chosen is None:
            return fewer or chosen
        return min(fewer, chosen, key=self.elements)

    def _shrinks_alone(self, constants: Sizes, parameters_stay: bool) -> bool:
        """Whether the forward is the same program with these constants shrunk.

        Of a network that is not traced: it takes seconds for each constant, and all that shrink
        alone are traced together afterwards.
        """
        _, sizes = self._run_forward(FULL, parameters_stay)
        if len(self.graph.nodes) <= FEW_NODES or sizes is None:
            return self._shrink(constants, parameters_stay) is not None
        by_value = not parameters_stay
        return any(
            self._run_forward(last, parameters_stay)[0]
            and self._calls_as_often(last, parameters_stay)
            for last in (smallest_proposal(constants, style, by_value) for style in STYLES)
        )

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
        if best is not None or too_large is None:
            return best
        is_alike = self._calls_as_often(too_large, parameters_stay)
        return too_large if is_alike and self._trace(too_large, parameters_stay) else None

    def _run_forward(
        self, workload: Workload, parameters_stay: bool
    ) -> tuple[bool, ForwardSizes | None]:
        """Whether the forward runs at these sizes, and how large it then is, if that is known.

        If parameters are to stay, it runs with as many of them.
        """
        if workload not in self._forwards:
            try:
                module = execute_problem(self.problem, workload)
                if self._runs_on_meta:
                    self._forwards[workload] = True, size_forward(module)
                elif parameters_stay and _count_parameters(module) != self._parameters:
                    return False, None
                else:
                    self._forwards[workload] = True, check_forward(module)
            except ProblemError:
                self._forwards[workload] = False, None
        runs, sizes = self._forwards[workload]
        is_as_wide = sizes is None or sizes.parameters == self._parameters
        return (runs, sizes) if is_as_wide or not parameters_stay else (False, None)

    @cached_property
    def _runs_on_meta(self) -> bool:
        """Whether meta tensors say how large the forward is, and not much later than fake ones.

        They are several times as quick, but where torch takes an operator apart on them: a GRU of
        512 steps takes seconds. Small graphs take none either way.
        """
        if len(self.graph.nodes) <= FEW_NODES:
            return False
        begun = time.monotonic()
        try:
            check_forward(execute_problem(self.problem))
            fake_s = time.monotonic() - begun
            size_forward(execute_problem(self.problem))
        except ProblemError:
            return False
        return time.monotonic() - begun < 3.0 * fake_s

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
        if len(self.graph.nodes) <= FEW_NODES:
            return True
        sizes = [self._run_forward(each, parameters_stay)[1] for each in (workload, FULL)]
        calls = [each.calls for each in sizes if each is not None]
        return len(calls) < 2 or abs(calls[0] - calls[1]) <= _CALLS_MORE_OR_LESS * calls[1]

    def traced(self, workload: Workload) -> OpGraph | None:
        """The graph at these sizes, in one mode, if it was asked for."""
        return self._graphs.get(workload)

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

    def held(self, workload: Workload) -> int:
        """Elements of all parameters and buffers."""
        return count_held(self._graph_at(workload))

    def has_large_parameters(self, workload: Workload) -> bool:
        return self.held(workload) > MAX_SMALL_PARAMETERS

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
        return graph if has_convolutions_that_fit(graph) else None


def _count_parameters(module: types.ModuleType) -> int | None:
    """Elements; None where a constructor reads values, which fake tensors do not have."""
    try:
        return count_parameters(module)
    except ProblemError:
        return None
