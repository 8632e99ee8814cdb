"""Other layouts, sizes and scalars, wherever the module itself accepts them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from kmem.measure.examine.cases import check_run
from kmem.measure.examine.examination import Examination, Refused
from kmem.measure.oracle.answers.answer import Answer
from kmem.measure.oracle.answers.expected import KEPT_BYTES, Expected
from kmem.measure.oracle.inputs.filled import ReferenceInputs
from kmem.measure.oracle.inputs.variants import ALONE, other_layouts, other_scalars, other_sizes
from kmem.measure.oracle.running.forward import tensor_bytes
from kmem.measure.pool.arguments import Layout, SharedArguments
from kmem.measure.pool.process import WorkerFailure
from kmem.records import Status


@dataclass(frozen=True, slots=True)
class _Variant:
    """Values to run a kernel on; `layouts` None where each lies by itself, without gaps."""

    name: str
    values: Sequence[object]
    layouts: Sequence[Layout | None] | None = None


def check_variants(examination: Examination, seed: int, *, own_size_only: bool = False) -> None:
    """Run the kernel on other layouts, scalars and sizes.

    It is "specialised" if it launches nothing for some.

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
    for variant in _variants_of(base, reference.inputs):
        if own_size_only and variant.name == "misaligned":
            continue
        shared = reference.new_arguments("variant", variant.values, variant.layouts, private=True)
        try:
            if not shared.can_hold_expanded and variant.name == "expanded":
                continue
            shared.write(variant.values)
            expected = reference.expect_case(variant.name, shared.values, seed)
            if expected is None:  # what the module itself does not accept, no candidate has to
                continue
            if variant.name.startswith(ALONE) and _has_sizes(expected, examination.answer):
                continue
            if expected.answer.changed_inputs:
                shared.write(variant.values)
            fallbacks += not _launches(examination, variant.name, shared, expected, seed)
        finally:
            shared.remove()
    if fallbacks and examination.launches:
        examination.flags.add("specialised")


def _variants_of(base: Sequence[object], inputs: ReferenceInputs) -> Iterator[_Variant]:
    for name, layout in other_layouts(base):
        values = base
        if name == "expanded":
            if all(trait.fixed for trait in inputs.traits):
                continue
            values = [
                _first_row_everywhere(value) if given is not None else value
                for value, given in zip(base, layout, strict=True)
            ]
        yield _Variant(name, values, layout)
    for name, values in other_scalars(base):
        yield _Variant(name, values, inputs.layouts)
    for name, values in other_sizes(base):
        yield _Variant(name, values)


def _has_sizes(expected: Expected, usual: Answer | None) -> bool:
    """Whether the outputs are as large as usual."""
    assert usual is not None, "a case at the usual size comes first"
    return [layout.shape for layout in expected.answer.layouts] == [
        layout.shape for layout in usual.layouts
    ]


def _first_row_everywhere(value: torch.Tensor) -> torch.Tensor:
    return value[:1].expand(value.shape)


def _launches(
    examination: Examination, name: str, shared: SharedArguments, expected: Expected, seed: int
) -> bool:
    """Check one variant; whether a Triton kernel was launched for it."""
    reference, worker = examination.loaded_reference, examination.worker
    is_usual = _has_sizes(expected, examination.answer) and reference.outputs is not None
    outputs = reference.outputs
    if not is_usual:
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
        for place in (shared,) if is_usual else (shared, outputs):
            worker.detach(place)
        return ran > 0
    finally:
        if not is_usual:
            outputs.remove()
