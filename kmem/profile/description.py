"""What another process is told so that it can build a problem's inputs."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kmem.problem.traced import TracedProblem
from kmem.records import Precision, Problem, Workload


def describe_inputs(traced: TracedProblem) -> dict[str, Any]:
    """What another process needs to build a problem's inputs, as JSON data."""
    return {
        "problem": asdict(traced.problem),
        "workload": asdict(traced.workload),
        "precision": traced.contract.precision.value,
    }


def read_problem(data: Mapping[str, Any]) -> tuple[Problem, Workload]:
    """The problem and workload that `describe_inputs` described."""
    workload = data["workload"]
    constants = tuple((name, value) for name, value in workload["constants"])
    small_inputs = workload["small_inputs"]
    return Problem(**data["problem"]), Workload(workload["name"], constants, small_inputs)


def read_precision(data: Mapping[str, Any]) -> Precision:
    """The precision that `describe_inputs` described."""
    return Precision(data["precision"])
