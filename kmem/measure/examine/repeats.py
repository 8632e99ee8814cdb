"""State after a forward, the same call again, and results that a later call must leave alone."""

import torch

from kmem.measure.examine.examination import Examination, Refused, check_description
from kmem.measure.oracle.correctness import is_within, measure_error
from kmem.measure.oracle.expected import Answer, Expected
from kmem.measure.oracle.reference import Reference
from kmem.measure.pool.arguments import SharedArguments
from kmem.measure.pool.checksum import bit_sum
from kmem.measure.worker.commands import Forget, Reread, State
from kmem.records import Status

#: The name under which the worker keeps the first result.
_FIRST = "first"


def check_state(examination: Examination, expected: Expected) -> None:
    """Parameters and buffers after one forward are those that the reference would have.

    To be asked of a freshly loaded kernel that ran once. Raises Refused, WorkerFailure, WorkerLost.
    """
    reference, worker = examination.loaded_reference, examination.worker
    names = reference.state_names
    if not names:
        return
    initial = reference.module.initial_state
    after = reference.new_arguments("state-after", list(initial.values()))
    try:
        worker.attach(after)
        after.poison()
        worker.request(
            State(examination.key, after.name, names), timeout_s=examination.run_timeout_s
        )
        after.fetch()
        for name, value in zip(names, after.values, strict=True):
            assert isinstance(value, torch.Tensor)
            if name in expected.answer.eager_state:
                _check_buffer(reference, expected.answer, name, value)
            elif not torch.equal(value, initial[name]):
                raise Refused(
                    Status.MUTATED_INPUT,
                    f"a forward changed {name}, which the module leaves alone",
                )
        worker.detach(after)
    finally:
        after.remove()


def _check_buffer(reference: Reference, answer: Answer, name: str, value: torch.Tensor) -> None:
    """Hold a buffer that the module itself changes to what it leaves there."""
    eager = answer.eager_state[name]
    oracle = answer.oracle_state.get(name, eager.double())
    own = measure_error(eager, oracle, eager)
    floor = reference.module.floor_for(value.dtype)
    if not is_within(measure_error(value, oracle, eager), own, floor):
        raise Refused(
            Status.WRONG_VALUES,
            f"after a forward, buffer {name} is not what the module leaves there",
        )


def check_repeats(examination: Examination, seed: int) -> None:
    """The same call again gives the same answer, and a later call leaves an earlier result alone.

    Raises Refused, WorkerFailure, WorkerLost.
    """
    reference = examination.loaded_reference
    reference.inputs.fill("drawn", seed)
    expected = reference.expect(reference.inputs.values, seed)
    if expected.answer.changed_inputs:
        return  # each call starts from other values: nothing to repeat
    inputs, outputs = reference.inputs.shared, reference.output_arguments(expected)
    first = examination.run(inputs, outputs, expected, seed, keep=_FIRST)
    bits = [bit_sum(value) for value in first]
    eager = examination.compare(first, expected, "repeat", seed).eager
    for _ in range(1 if examination.deadline else 2):  # in the interpreter nothing races
        again = examination.run(inputs, outputs, expected, seed)
        if [bit_sum(value) for value in again] == bits:
            continue
        # the first answer takes its place
        again = [value.to("cpu", copy=True) for value in again]
        for one, two, floor, own in zip(
            _reread(examination, outputs, expected),
            again,
            expected.answer.floors,
            eager,
            strict=True,
        ):
            if not is_within(measure_error(two, one, one), own, floor):
                raise Refused(
                    Status.NOT_REPEATABLE, "the same call on the same inputs gave another answer"
                )
    if not expected.answer.aliases_inputs:  # views of the inputs change with them
        reference.inputs.fill("drawn", seed + 1)
        examination.run(inputs, outputs, expected, seed)
        if [bit_sum(value) for value in _reread(examination, outputs, expected)] != bits:
            raise Refused(
                Status.NOT_REPEATABLE,
                "a later call changed the result of an earlier one: it returns a buffer that it "
                "uses again",
            )
    # the worker lets go of the kept result: its device memory is wanted
    examination.worker.request(Forget(_FIRST), timeout_s=examination.run_timeout_s)


def _reread(
    examination: Examination, outputs: SharedArguments, expected: Expected
) -> list[torch.Tensor]:
    """What the first result, kept in the worker, holds now."""
    examination.worker.attach(outputs)
    outputs.poison()
    answer = examination.worker.request(
        Reread(_FIRST, outputs.name), timeout_s=examination.run_timeout_s
    )
    check_description(answer, expected.answer, examination.loaded_reference.device)
    outputs.fetch()
    return [value for value in outputs.values if isinstance(value, torch.Tensor)]
