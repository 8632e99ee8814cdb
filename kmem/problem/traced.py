"""A problem as the stages see it: what was asked for, on what device, and what was traced of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from kmem.problem.graph import OpGraph
from kmem.records import Bound, Contract, Device, Problem, Workload


@dataclass(frozen=True, slots=True)
class TracedProblem:
    """What travels together from stage to stage and does not change during a run.

    A launch costs on `device` what it costs in this forward. `workloads` and `graphs` have the key
    `full`, and `small` if a small workload could be derived. `bound` is None if the module could
    not be traced.
    """

    problem: Problem
    contract: Contract
    device: Device
    workloads: Mapping[str, Workload]
    graphs: Mapping[str, OpGraph]
    bound: Bound | None

    @property
    def workload(self) -> Workload:
        """The sizes that the problem's file gives."""
        return self.workloads["full"]

    @property
    def graph(self) -> OpGraph:
        """The graph at the sizes that the problem's file gives."""
        return self.graphs["full"]


def trace_at_full_size(problem: Problem, contract: Contract, device: Device) -> TracedProblem:
    """Run a problem's file and trace its forward at the sizes that the file gives.

    Raises ProblemError: if the file fails when it is run. DeviceMemoryError: if the problem cannot
        fit the device.
    """
    # torch takes seconds to import, which whoever only names a TracedProblem must not pay
    from kmem.problem.costs.bound import graph_bound
    from kmem.problem.costs.footprint import check_footprint
    from kmem.problem.costs.issuing import priced_device
    from kmem.problem.source.load import FULL, execute_problem
    from kmem.problem.tracing.trace import trace_under

    graph = trace_under(execute_problem(problem, FULL), contract)
    check_footprint(problem, graph, device)
    bound = graph_bound(graph, device, contract)
    device = priced_device(graph, device, contract)
    return TracedProblem(problem, contract, device, {"full": FULL}, {"full": graph}, bound)


def untraced_problem(problem: Problem, contract: Contract, device: Device) -> TracedProblem:
    """A problem without graph and bound: enough to compile, run or profile a kernel for it."""
    return TracedProblem(problem, contract, device, {"full": Workload("full")}, {}, None)
