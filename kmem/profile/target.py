"""What kernels are compiled and profiled for, and how another process is told of it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kmem.records import Contract, Device, Precision, Problem, Workload


@dataclass(frozen=True, slots=True)
class ProfileTarget:
    """A problem's module at one workload, under a contract, on a device."""

    problem: Problem
    workload: Workload
    contract: Contract
    device: Device


def describe_inputs(problem: Problem, workload: Workload, contract: Contract) -> dict[str, Any]:
    """What another process needs to build a problem's inputs, as JSON data."""
    return {
        "problem": asdict(problem),
        "workload": asdict(workload),
        "precision": contract.precision.value,
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
