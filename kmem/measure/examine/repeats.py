"""The same call again, several in a row, and results that a later call must leave alone."""

import math
import random
from collections.abc import Mapping

import torch

from kmem.measure.examine.cases import check_run
from kmem.measure.examine.examination import Examination, HowToRun, Refused, check_description
from kmem.measure.examine.state import check_state
from kmem.measure.oracle.answers.answer import Answer
from kmem.measure.oracle.answers.expected import Expected
from kmem.measure.oracle.correctness import is_within, measure_error
from kmem.measure.pool.arguments import SharedArguments
from kmem.measure.pool.checksum import bit_sum
from kmem.measure.pool.process import WorkerFailure
from kmem.measure.worker.commands import Forget, Reread
from kmem.records import Status

#: The name under which the worker keeps the first result.
_FIRST = "first"
#: Forwards in a row after which the state of a module that has one is looked at again.
_CALLS = 3
#: How fine the steps of `in_steps` are: so many to the power of two above the largest value. Sums
#: of 2^19 such values are exact in float32, those of squares of 2^14.
_STEP_BITS = 4
#: Pairs of places that are looked at for two elements that differ.
_TRIES = 16


def check_repeats(examination: Examination, seed: int) -> None:
    """The same call again gives the same answer, and a later call leaves an earlier result alone.

    Nor does a later call rely on an earlier one whose inputs were nearly the same.

    In the interpreter the programs of a launch run in another order the second time. Raises
    Refused, WorkerFailure, WorkerLost.
    """
    reference = examination.loaded_reference
    reference.inputs.fill("drawn", seed)
    expected = reference.expect(reference.inputs.values, seed)
    inputs, outputs = reference.inputs.shared, reference.output_arguments(expected)
    answer = expected.answer

    def run(how: HowToRun) -> list[torch.Tensor]:
        if answer.changed_inputs:
            reference.inputs.fill("drawn", seed)
        return examination.run(inputs, outputs, expected, seed, how)

    first = run(HowToRun(keep=_FIRST))
    if answer.aliases_inputs:  # what the worker keeps changes with the inputs
        first = [value.clone() for value in first]
    bits = [bit_sum(value) for value in first]
    compared = examination.compare(first, expected, "repeat", seed)
    # without a GPU nothing races but in another order
    for shuffle in (seed,) if examination.interpreted else (None, None):
        again = run(HowToRun(shuffle=shuffle))
        if [bit_sum(value) for value in again] == bits:
            continue
        if not answer.aliases_inputs:  # it takes the place of the first
            again = [value.to("cpu", copy=True) for value in again]
            first = _reread(examination, _FIRST, outputs, answer)
        for one, two, floor, own in zip(first, again, answer.floors, compared.eager, strict=True):
            if not is_within(measure_error(two, one, one), own, floor):
                raise Refused(
                    Status.NOT_REPEATABLE, "the same call on the same inputs gave another answer"
                )
    if answer.eager_state:
        _check_many_calls(examination, expected, seed)
    reference.inputs.fill("drawn", seed + 1)
    examination.run(inputs, outputs, expected, seed)
    if not answer.aliases_inputs and bits != [
        bit_sum(value) for value in _reread(examination, _FIRST, outputs, answer)
    ]:
        raise Refused(
            Status.NOT_REPEATABLE,
            "a later call changed the result of an earlier one: it returns a buffer that it uses "
            "again",
        )
    _check_neighbour(examination, seed + 1)


def _check_many_calls(examination: Examination, expected: Expected, seed: int) -> None:
    """After several forwards in a row the state is what the module leaves after as many."""
    reference = examination.loaded_reference
    inputs, outputs = reference.inputs.shared, reference.output_arguments(expected)
    for call in range(_CALLS):
        if expected.answer.changed_inputs:
            reference.inputs.fill("drawn", seed)
        examination.run(inputs, outputs, expected, seed, HowToRun(goes_on=call > 0))
    if not expected.answer.changed_inputs:
        check_state(examination, reference.answer_after(seed, _CALLS))


def _check_neighbour(examination: Examination, seed: int) -> None:
    """Inputs that differ from those of the last call in two elements have an answer of their own.

    They change places: no sum tells the two inputs apart, in whatever order it is taken, because
    the values are multiples of a power of two. Then one element becomes the one of its tensor that
    is furthest from it, so that the module accepts it if it accepts the others. Raises Refused,
    WorkerFailure, WorkerLost.
    """
    reference = examination.loaded_reference
    inputs = reference.inputs
    if inputs.is_large(inputs.values):
        return  # small inputs have shown it, or another workload will
    inputs.fill("drawn", seed)
    tensors = [
        value
        for value, trait in zip(inputs.own_values, inputs.traits, strict=True)
        if isinstance(value, torch.Tensor) and not trait.fixed and value.numel() > 1
    ]
    if not tensors:
        return
    value = max(tensors, key=torch.Tensor.numel)
    if value.is_floating_point():
        value.copy_(in_steps(value))
        _check_changed(examination, "values in steps", seed)
    place, other = _two_places(value, random.Random(seed))
    there = value[other].clone()
    value[other], value[place] = value[place].clone(), there
    _check_changed(examination, "two elements exchanged", seed)
    low, high = value.min(), value.max()
    value[place] = high if value[place] - low < high - value[place] else low
    _check_changed(examination, "one element changed", seed)


def in_steps(values: torch.Tensor) -> torch.Tensor:
    """Floating values, each moved by at most an eighth of the largest: sums of many are exact.

    Zeros stay, and no other value becomes zero or changes its sign.
    """
    exact = values.double()
    finite = exact[exact.isfinite()]
    most = float(finite.abs().max()) if finite.numel() else 0.0
    if most == 0.0:
        return values
    step = 2.0 ** (math.frexp(most)[1] - _STEP_BITS)
    # towards zero at a bound: what lies in [-1, 1] stays there, or modules refuse it
    moved = ((exact / step).abs().ceil() - 0.5) * step * exact.sign()
    return torch.where(exact.isfinite() & (exact != 0), moved, exact).to(values.dtype)


def _two_places(value: torch.Tensor, choice: random.Random) -> list[tuple[int, ...]]:
    """Where two elements lie that differ, if some tries find such."""
    for _ in range(_TRIES):
        places = [tuple(choice.randrange(size) for size in value.shape) for _ in range(2)]
        if value[places[0]] != value[places[1]]:
            break
    return places


def _check_changed(examination: Examination, name: str, seed: int) -> None:
    """What the inputs hold now, after the judge has changed them in place."""
    reference = examination.loaded_reference
    inputs = reference.inputs
    inputs.shared.publish()
    before = [
        given.clone() if isinstance(given, torch.Tensor) else given for given in inputs.values
    ]
    expected = reference.expect_case(name, inputs.values, seed)
    if expected is None:
        return
    if expected.answer.changed_inputs:
        inputs.shared.write(before)
    outputs = reference.output_arguments(expected)
    check_run(examination, inputs.shared, outputs, expected, name, seed)


def check_gradient_modes(examination: Examination, seed: int) -> None:
    """With gradients recorded, and in inference mode, the values are the same.

    The one is what users get who say nothing, the other what servers ask for. A kernel that raises
    then has said so. Raises Refused, WorkerLost.
    """
    for mode, name in (("grad", "with gradients"), ("inference", "in inference mode")):
        _check_mode(examination, seed, mode, name)


def _check_mode(examination: Examination, seed: int, mode: str, name: str) -> None:
    reference = examination.loaded_reference
    reference.inputs.fill("drawn", seed)
    expected = reference.expect(reference.inputs.values, seed)
    if expected.answer.changed_inputs:
        reference.inputs.fill("drawn", seed)
    inputs, outputs = reference.inputs.shared, reference.output_arguments(expected)
    try:
        values = examination.run(inputs, outputs, expected, seed, HowToRun(mode=mode))
    except WorkerFailure:
        return
    examination.compare(values, expected, name, seed)


def check_with_arguments(
    examination: Examination,
    arguments: Mapping[str, Mapping[str, object]],
    seed: int,
    *,
    state: str = "",
) -> None:
    """With the arguments that launches are given on the target the values are right too.

    A kernel may be told that it is interpreted, and do there what an interpreter can.

    Args:
        arguments: by name, by the number of the launch.
        state: how the kernel is given its parameters before, as `HowToRun` has it.

    Raises Refused, WorkerFailure, WorkerLost.
    """
    reference = examination.loaded_reference
    known = ", ".join(sorted({name for changed in arguments.values() for name in changed}))
    for family in ("drawn", "normal"):
        if family in reference.refused:
            continue
        reference.inputs.fill(family, seed)
        expected = reference.expect(reference.inputs.values, seed)
        if expected.answer.changed_inputs:
            reference.inputs.fill(family, seed)
        inputs, outputs = reference.inputs.shared, reference.output_arguments(expected)
        how = HowToRun(arguments=arguments, state=state)
        values = examination.run(inputs, outputs, expected, seed, how)
        examination.compare(values, expected, f"{family}, with {known} as on the target", seed)


def check_held(examination: Examination) -> None:
    """No result that a call has returned was changed by a later one. Raises Refused, WorkerLost."""
    reference = examination.loaded_reference
    for name, bits in examination.held.items():
        assert reference.outputs is not None and examination.answer is not None, "it was run"
        values = _reread(examination, name, reference.outputs, examination.answer)
        if [bit_sum(value) for value in values] != bits:
            raise Refused(
                Status.NOT_REPEATABLE,
                "a later call changed the result of an earlier one: it returns buffers by turns",
            )
    # the worker lets go of what it keeps: device memory is wanted
    examination.worker.request(Forget(), timeout_s=examination.run_timeout_s)
    examination.held, examination.holds = {}, False


def _reread(
    examination: Examination, name: str, outputs: SharedArguments, answer: Answer
) -> list[torch.Tensor]:
    """What a result, kept in the worker, holds now."""
    examination.worker.attach(outputs)
    outputs.poison()
    described = examination.worker.request(
        Reread(name, outputs.name), timeout_s=examination.run_timeout_s
    )
    check_description(described, answer, examination.loaded_reference.device)
    outputs.fetch()
    return [value for value in outputs.values if isinstance(value, torch.Tensor)]
