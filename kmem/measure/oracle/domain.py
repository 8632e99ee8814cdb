"""What a module has no answer for: input families and sizes that it raises for.

They are found on the CPU before a GPU is asked. A check of values that fails on a GPU (a
probability outside [0, 1], an index out of range) is a device-side assertion, after which nothing
more runs in that process; the same check on the CPU is an exception.

Covered: modules that run on the CPU and are small or can be made small. Not covered: others; there
an assertion ends the judge in one line.
"""

import logging
from collections.abc import Callable

import torch

from kmem.errors import ProblemError, first_line
from kmem.measure.oracle.families import families_for
from kmem.measure.oracle.forward import UNDEFINED
from kmem.measure.oracle.reference import Reference
from kmem.measure.oracle.variants import other_sizes

logger = logging.getLogger(__name__)

#: Inputs up to this size are tried on the CPU where a problem has no small workload.
SMALL_BYTES = 2**24
#: Draws of each family: in a single draw every index may happen to be in range.
_DRAWS = 3


def find_refused(
    make_reference: Callable[[], Reference], seed_for: Callable[..., int]
) -> dict[str, str]:
    """What the module raises, by family and by the name of the other size.

    Empty where the module does not run on the CPU at all.

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
