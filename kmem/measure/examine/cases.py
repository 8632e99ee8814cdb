"""One input family at a time: shapes of outputs, mutation of inputs, accuracy."""

from collections.abc import Callable, Sequence

import torch

from kmem.measure.examine.examination import Examination, HowToRun, Refused
from kmem.measure.examine.places import check_places
from kmem.measure.examine.state import hold_left
from kmem.measure.oracle.answers.answer import Answer
from kmem.measure.oracle.answers.expected import Expected
from kmem.measure.oracle.correctness import measure_error
from kmem.measure.oracle.inputs.families import NON_FINITE
from kmem.measure.pool.arguments import SharedArguments
from kmem.records import Status


def check_case(
    examination: Examination,
    family: str,
    seed: int,
    expected: Expected | None = None,
    *,
    name: str | None = None,
    how: HowToRun | None = None,
) -> Expected | None:
    """One family on the workload's own inputs.

    Args:
        expected: computed before for the same family and seed (screening judges many kernels on one
            case).
        name: of the case, if it is more than its family.
        how: what is special about the forward.

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
        expected = reference.expect_case(name or family, reference.inputs.values, seed)
        if expected is None:
            return None
        if expected.answer.changed_inputs:
            reference.inputs.fill(family, seed)
    examination.answer = expected.answer
    outputs = reference.output_arguments(expected)
    check_run(examination, reference.inputs.shared, outputs, expected, name or family, seed, how)
    if name is None and family not in NON_FINITE:
        reference.note_adversaries(expected)
    return expected


def check_families(
    examination: Examination, families: Sequence[str], seed_for: Callable[..., int]
) -> None:
    """One case per family, each under a seed of its own."""
    for family in families:
        seed = seed_for("family", examination.loaded_reference.name, family)
        check_case(examination, family, seed)


def check_other_parameters(examination: Examination, seed_for: Callable[..., int]) -> None:
    """The kernel once more, with other values in its parameters, as after a step of training.

    They are written where the kernel found them before, then replaced by the initial ones in other
    memory: what a kernel made of them at an earlier call must be made anew. Raises Refused,
    WorkerFailure, WorkerLost.
    """
    reference = examination.loaded_reference
    purpose = ("parameters", "varied", reference.name)
    family = "drawn" if "normal" in reference.refused else "normal"

    def check(state: str) -> None:
        name = f"{family}, parameters {state} after a call"
        seed = seed_for(*purpose, family)
        check_case(examination, family, seed, name=name, how=HowToRun(state=state))

    with reference.varied_state(seed_for(*purpose)) as is_varied:
        if is_varied:
            check("written")
    if is_varied:
        check("replaced")


def _check_input(
    examination: Examination, answer: Answer, index: int, value: object, family: str
) -> None:
    """Hold an input that the module itself writes to to what it leaves there. Raises Refused."""
    assert isinstance(value, torch.Tensor)
    eager, oracle = answer.changed_inputs[index], answer.oracle_inputs[index]
    floor = examination.loaded_reference.module.floor_for(value.dtype)
    found, own = (measure_error(each.to(oracle.device), oracle, eager) for each in (value, eager))
    hold_left(examination, f"input {index}", (found, own), floor, f"{family}: ")


def check_run(
    examination: Examination,
    inputs: SharedArguments,
    outputs: SharedArguments,
    expected: Expected,
    family: str,
    seed: int,
    how: HowToRun | None = None,
) -> None:
    """One forward: it leaves in inputs what the module leaves there, and is accurate.

    Args:
        family: or the name of a layout or size.
    """
    before = inputs.own_checksums()
    if inputs.checksums() != before:
        raise Refused(
            Status.MUTATED_INPUT,
            f"{family}: an input was changed while no forward ran; nothing may outlive a call",
        )
    values = examination.run(inputs, outputs, expected, seed, how)
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
    for index in sorted(allowed):
        _check_input(examination, expected.answer, index, inputs.shared_values[index], family)
    same_layout = inputs is examination.loaded_reference.inputs.shared
    check_places(examination.places, expected.answer, same_layout=same_layout)
    examination.compare(values, expected, family, seed, forgive_noise=True)
