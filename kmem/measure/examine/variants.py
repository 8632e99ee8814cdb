"""The same values in other layouts, and other sizes, wherever the module itself accepts them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kmem.measure.examine.cases import check_run
from kmem.measure.examine.examination import Examination, Refused
from kmem.measure.oracle.expected import KEPT_BYTES, Expected
from kmem.measure.oracle.families import other_layouts, other_sizes
from kmem.measure.oracle.forward import tensor_bytes
from kmem.measure.pool.arguments import Layout, SharedArguments
from kmem.measure.pool.process import WorkerFailure
from kmem.records import Status


@dataclass(frozen=True, slots=True)
class _Variant:
    """Values to run a kernel on; `layouts` None for the usual ones."""

    name: str
    values: Sequence[object]
    layouts: Sequence[Layout | None] | None = None


def check_variants(examination: Examination, seed: int, *, own_size_only: bool = False) -> None:
    """Run the kernel on other layouts and sizes; "specialised" if it launches nothing for some.

    Args:
        own_size_only: for a kernel that works at this size alone. Then nothing is checked where
            copies of the inputs would crowd the device, nor "misaligned", for which eager's vendor
            kernels may be of another accuracy.

    Raises:
        Refused, WorkerLost.
    """
    reference = examination.loaded_reference
    if own_size_only and tensor_bytes(reference.inputs.values) > KEPT_BYTES:
        return
    reference.inputs.fill("drawn" if "normal" in reference.refused else "normal", seed)
    base = [
        value.clone() if isinstance(value, torch.Tensor) else value
        for value in reference.inputs.values
    ]
    fallbacks = 0
    for variant in _variants_of(base):
        if own_size_only and variant.name == "misaligned":
            continue
        if examination.is_late:
            examination.flags.add("abridged")
            break
        shared = reference.new_arguments("variant", variant.values, variant.layouts, private=True)
        try:
            shared.write(variant.values)
            expected = reference.expect_case(variant.name, shared.values, seed)
            # what the module itself does not accept, no candidate has to
            if expected is None or expected.answer.changed_inputs:
                continue
            fallbacks += not _launches(examination, variant.name, shared, expected, seed)
        finally:
            shared.remove()
    if fallbacks and examination.launches:
        examination.flags.add("specialised")


def _variants_of(base: Sequence[object]) -> list[_Variant]:
    layouts = [_Variant(name, base, layout) for name, layout in other_layouts(base)]
    return layouts + [_Variant(name, values) for name, values in other_sizes(base)]


def _launches(
    examination: Examination, name: str, shared: SharedArguments, expected: Expected, seed: int
) -> bool:
    """Check one variant; whether a Triton kernel was launched for it."""
    reference, worker = examination.loaded_reference, examination.worker
    outputs = reference.new_arguments("variant-outputs", expected.answer.layouts)
    try:
        worker.attach(shared)
        worker.attach(outputs)
        launches = examination.launches
        try:
            check_run(examination, shared, outputs, expected, name, seed)
        except WorkerFailure as failure:
            raise Refused(
                Status.WRONG_CONTRACT,
                f"{name}: the module accepts such inputs, the candidate raises {failure}",
            ) from failure
        ran, examination.launches = examination.launches, launches
        for place in (shared, outputs):
            worker.detach(place)
        return ran > 0
    finally:
        outputs.remove()
