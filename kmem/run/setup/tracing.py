"""A problem traced for a run: at the file's sizes and at small ones, and what to know of it."""

from dataclasses import replace
from types import ModuleType

import torch
from torch.utils._pytree import tree_leaves

from kmem.errors import ProblemError
from kmem.measure.oracle.running.module import encodable_values
from kmem.measure.worker.tensors import encode_value
from kmem.problem.costs.bound import graph_bound
from kmem.problem.costs.footprint import check_footprint
from kmem.problem.costs.issuing import priced_device
from kmem.problem.features.mode import describe_mode
from kmem.problem.sizing.workload import derive_small
from kmem.problem.source.load import (
    FULL,
    check_forward,
    constructor_arguments,
    execute_problem,
    sketch_inputs,
)
from kmem.problem.traced import TracedProblem
from kmem.problem.tracing.calls import dtype_name
from kmem.problem.tracing.trace import may_have_pieces, put_under, trace_problem
from kmem.records import DTYPE_BYTES, Contract, Device, Precision, Problem

#: Dtypes that graphs know and torch cannot compute with, so that no family of inputs is made.
_NOT_DRAWN = ("float8_e4m3fn", "float8_e5m2")


def trace_for_run(
    problem: Problem, contract: Contract, device: Device, *, needs_small: bool
) -> tuple[TracedProblem, tuple[str, ...]]:
    """Trace at full size, and at a small size that runs the same operators if there is one.

    Args:
        needs_small: whether a problem without a small size is refused: without a GPU nothing else
            can prove a kernel correct.

    Returns:
        The traced problem, and sentences about it that the user should read.

    Raises:
        ProblemError: if the problem breaks the contract, its forward fails or does not end, or the
            judge could give no worker its inputs or constructor arguments.
        DeviceMemoryError: if it cannot fit the device.
    """
    notes: list[str] = []
    workloads = {"full": FULL}
    module = execute_problem(problem, FULL)
    check_forward(module, contract.precision)
    _check_arguments(problem, module, contract.precision)
    traced = trace_problem(execute_problem(problem, FULL), contract.precision)
    graphs = {"full": put_under(traced, contract)}
    check_footprint(problem, graphs["full"], device)
    mode = describe_mode(graphs["full"])
    if mode is not None:
        notes.append(mode)
    try:
        is_traced_alike = contract.precision is Precision.MATCH
        workloads["small"], small = derive_small(problem, traced if is_traced_alike else None)
    except ProblemError as ex:
        if needs_small:
            raise
        notes.append(str(ex))
    else:
        if small is None or not is_traced_alike:
            at_small_sizes = execute_problem(problem, workloads["small"])
            small = trace_problem(at_small_sizes, contract.precision, both_modes=False)
        # whether the mode matters is asked once: it is the same program, or not used below
        small = replace(small, mode_matters=traced.mode_matters)
        graphs["small"] = put_under(small, contract)
    targets = {name: [node.target for node in graph.nodes] for name, graph in graphs.items()}
    if graphs["full"].opaque_reason:
        remedy = ""
        if may_have_pieces(graphs["full"]):
            remedy = "; `kmem optimize --pieces` treats the file as a model, and takes such"
        notes.append(f"the forward is one opaque call: {graphs['full'].opaque_reason}{remedy}")
    elif "small" in graphs and targets["small"] != targets["full"]:
        del graphs["small"], workloads["small"]
        notes.append("the small workload runs other operators than the full one and is not used")
    bound = graph_bound(graphs["full"], device, contract)
    device = priced_device(graphs["full"], device, contract)
    return TracedProblem(problem, contract, device, workloads, graphs, bound), tuple(notes)


def _check_arguments(problem: Problem, module: ModuleType, precision: Precision) -> None:
    """Refuse what the judge would refuse once kernels are compiled.

    Inputs that only values tell are left to the judge.

    Raises ProblemError: if an input or a constructor argument cannot be passed to a worker.
    """
    inputs = sketch_inputs(module, precision) or []
    try:
        with encodable_values(problem):
            for value in (*constructor_arguments(module), *inputs):
                _check_argument(value)
    except ProblemError as ex:
        raise ProblemError(
            f"{ex}, or let `kmem optimize --pieces` treat the file as a model"
        ) from ex


def _check_argument(value: object) -> None:
    """Raises TypeError: if the judge can pass no worker such a value, or draw none like it."""
    if not isinstance(value, torch.Tensor):
        if any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value)):
            kind = type(value).__name__
            raise TypeError(f"a {kind} that holds tensors cannot be passed to a worker")
        encode_value(value)
        return
    dtype = dtype_name(value.dtype)
    if value.layout is not torch.strided or value.is_nested:
        raise TypeError("a sparse or nested tensor cannot be passed to a worker")
    if dtype not in DTYPE_BYTES or dtype in _NOT_DRAWN:
        raise TypeError(f"a tensor of {dtype} cannot be filled with other values")
