"""One input family at a time: shapes of outputs, mutation of inputs, accuracy."""

from collections.abc import Callable, Sequence

import torch

from kmem.measure.examine.examination import Examination, Refused
from kmem.measure.oracle.expected import Expected
from kmem.measure.oracle.families import SCREENING_FAMILIES
from kmem.measure.pool.arguments import SharedArguments
from kmem.records import Status


def check_case(
    examination: Examination, family: str, seed: int, expected: Expected | None = None
) -> Expected | None:
    """One family on the workload's own inputs.

    Args:
        expected: computed before for the same family and seed (screening judges many kernels on one
            case).

    Returns:
        The right answer; None where the module itself refuses such values, and so defines no answer
        for them.

    Raises:
        Refused, WorkerFailure, WorkerLost.
    """
    reference = examination.loaded_reference
    examination.pause()
    reference.inputs.fill(family, seed)
    if expected is None:
        expected = reference.expect_case(family, reference.inputs.values, seed)
        if expected is None:
            return None
        if expected.answer.changed_inputs:
            reference.inputs.fill(family, seed)
    examination.answer = expected.answer
    outputs = reference.output_arguments(expected)
    check_run(examination, reference.inputs.shared, outputs, expected, family, seed)
    reference.note_adversaries(expected)
    return expected


def check_families(
    examination: Examination, families: Sequence[str], seed_for: Callable[..., int]
) -> None:
    """One case per family, each under a seed of its own.

    Beyond the deadline the artificial families are left out: "abridged".
    """
    for family in families:
        if examination.is_late and family not in SCREENING_FAMILIES:
            examination.flags.add("abridged")
            return
        seed = seed_for("family", examination.loaded_reference.name, family)
        check_case(examination, family, seed)


def check_run(
    examination: Examination,
    inputs: SharedArguments,
    outputs: SharedArguments,
    expected: Expected,
    family: str,
    seed: int,
) -> None:
    """One forward: it changes the inputs that the module changes, and no others, and is accurate.

    Args:
        family: or the name of a layout or size.
    """
    before = inputs.own_checksums()
    if inputs.checksums() != before:
        raise Refused(
            Status.MUTATED_INPUT,
            f"{family}: an input was changed while no forward ran; nothing may outlive a call",
        )
    values = examination.run(inputs, outputs, expected, seed)
    inputs.fetch()
    after = inputs.checksums()
    tensors = [
        index for index, value in enumerate(inputs.values) if isinstance(value, torch.Tensor)
    ]
    changed = {index for index, one, two in zip(tensors, before, after, strict=True) if one != two}
    allowed = set(expected.answer.changed_inputs)
    if changed - allowed:
        raise Refused(
            Status.MUTATED_INPUT,
            f"{family}: input {min(changed - allowed)} was changed by the forward",
        )
    if allowed - changed:
        raise Refused(
            Status.WRONG_VALUES,
            f"{family}: the module modifies input {min(allowed)}, the candidate does not",
        )
    examination.compare(values, expected, family, seed, forgive_noise=True)
