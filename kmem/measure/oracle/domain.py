"""What a module has no answer for: input families and sizes that it raises for.

They are found on the CPU before a GPU is asked. A check of values that fails on a GPU (a
probability outside [0, 1], an index out of range) is a device-side assertion, after which nothing
more runs in that process; the same check on the CPU is an exception.

A module none of whose operators checks values has nothing to find: what else it may raise stops no
GPU. Some of that a GPU does not raise at all (a division of integers by zero), but answers anyhow.

Covered: modules that run on the CPU and are small or can be made small. Not covered: others; there
an assertion ends the judge in one line.
"""

import logging
from collections.abc import Callable

import torch

from kmem.errors import ProblemError, first_line
from kmem.measure.oracle.inputs.families import families_for
from kmem.measure.oracle.inputs.variants import other_sizes
from kmem.measure.oracle.reference import Reference
from kmem.measure.oracle.running.forward import UNDEFINED, tensor_bytes
from kmem.problem.graph import OpGraph
from kmem.problem.operators.table import find_operator

logger = logging.getLogger(__name__)

#: Inputs up to this size are tried on the CPU; a small workload's are mostly far below it.
SMALL_BYTES = 2**24
#: Draws of each family: in a single draw every index may happen to be in range.
_DRAWS = 3


def may_stop_gpu(graph: OpGraph | None) -> bool:
    """Whether values may make a forward fail an assertion on the GPU.

    A module that was not traced may, and so may an operator that kmem does not know.
    """
    if graph is None or graph.opaque_reason is not None:
        return True
    operators = [find_operator(node.target) for node in graph.nodes]
    return any(operator is None or operator.checks_values for operator in operators)


def has_small_inputs(graph: OpGraph | None) -> bool:
    """Whether the inputs are small enough for the CPU, as far as the graph tells."""
    given = graph.placeholders if graph is not None else ()
    held = (each.spec for each in given if each.kind == "input")
    return sum(spec.bytes for spec in held if spec is not None) <= SMALL_BYTES


def find_refused(
    make_reference: Callable[[], Reference], seed_for: Callable[..., int]
) -> dict[str, str] | None:
    """What the module raises, by family and by the name of the other size.

    Empty where the module does not run on the CPU at all; None if its inputs are too large to try.

    Args:
        make_reference: makes the module on the CPU.
        seed_for: a seed for each purpose.
    """
    try:
        reference = make_reference()
    except ProblemError as ex:
        logger.info("the module is not tried on the CPU: %s", ex)
        return {}
    try:
        if tensor_bytes(reference.inputs.values) > SMALL_BYTES:
            return None
        found: dict[str, str] = {}
        for draw in range(_DRAWS):
            for family in families_for(reference.inputs.values, reference.inputs.traits):
                if reference.may_try(family):
                    reference.inputs.fill(family, seed_for("domain", family, str(draw)))
                    _try(reference, family, reference.inputs.values, found)
            if "drawn" in found:
                logger.info("the module is not tried on the CPU: %s", found["drawn"])
                return {}
            reference.inputs.fill("drawn", seed_for("domain", "sizes", str(draw)))
            base = [
                value.clone() if isinstance(value, torch.Tensor) else value
                for value in reference.inputs.values
            ]
            for name, values in other_sizes(base):
                _try(reference, name, values, found)
        return found
    finally:
        reference.close()


def _try(reference: Reference, name: str, values: list[object], found: dict[str, str]) -> None:
    try:
        reference.run_eager(values, 0)
    except UNDEFINED as ex:
        found.setdefault(name, first_line(ex))
