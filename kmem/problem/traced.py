"""A problem as the stages see it: what was asked for, on what device, and what was traced of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from kmem.problem.graph import OpGraph
from kmem.records import Bound, Contract, Device, Problem, Workload


@dataclass(frozen=True, slots=True)
class TracedProblem:
    """What travels together from stage to stage and does not change during a run.

    `workloads` and `graphs` have the key `full`, and `small` if a small workload could be derived.
    `bound` is None if the module could not be traced.
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
