"""Parameters and buffers after forwards are what the module leaves there.

A running mean is off by what the mean of a batch is rounded by, which goes with how far its values
spread and not with the mean itself: of values that cancel it is nothing beside them, or exactly
zero in eager, as where two numbers were normalised before. One that is refused for its error is
therefore held to the spread of its batch, as outputs are that cancel (oracle/answers/origins.py).
"""

import torch

from kmem.measure.examine.examination import Examination, Refused
from kmem.measure.oracle.answers.answer import Answer
from kmem.measure.oracle.correctness import (
    Difference,
    allowances,
    error_over_allowance,
    is_within,
    measure_error,
)
from kmem.measure.worker.commands import State
from kmem.records import ErrorReport, Status

_MEAN, _VARIANCE = "running_mean", "running_var"


def check_state(examination: Examination, answer: Answer) -> None:
    """Parameters and buffers are those that the reference would have.

    To be asked after forwards from the reference's state. Raises Refused, WorkerFailure,
    WorkerLost.

    Args:
        answer: to the last forward.
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
            is_left_alone = name not in answer.eager_state
            if is_left_alone and torch.equal(value, initial[name]):
                continue
            if is_left_alone and _spread(examination, answer, name) is None:
                raise Refused(
                    Status.MUTATED_INPUT,
                    f"a forward changed {name}, which the module leaves alone",
                )
            _check_buffer(examination, answer, name, value)
        worker.detach(after)
    finally:
        after.remove()


def _spread(examination: Examination, answer: Answer, name: str) -> torch.Tensor | None:
    """How far the values of a batch spread, by their share in a running mean; None for no such.

    The variance of the batch follows from the running one, which the same norm moved.
    """
    module = examination.loaded_reference.module
    path = name.removesuffix(_MEAN)
    other = f"{path}{_VARIANCE}"
    is_own = path != name and (not path or path.endswith("."))
    if not is_own or other not in answer.eager_state:
        return None
    momentum = getattr(module.model.get_submodule(path.rstrip(".")), "momentum", None)
    if not isinstance(momentum, float) or not 0 < momentum <= 1:
        return None
    after = answer.oracle_state.get(other, answer.eager_state[other]).double()
    before = module.initial_state[other].to(after.device, torch.float64)
    kept = (1 - momentum) ** answer.calls
    variance = ((after - kept * before) / (1 - kept)).clamp_min(0)
    return (1 - kept) * variance.sqrt()


def _check_buffer(examination: Examination, answer: Answer, name: str, value: torch.Tensor) -> None:
    """Hold a buffer that the module itself changes to what it leaves there, and note its error."""
    module = examination.loaded_reference.module
    eager = answer.eager_state.get(name, module.initial_state[name])
    oracle = answer.oracle_state.get(name, eager.double())
    floor = module.floor_for(value.dtype)

    def measured(origin: torch.Tensor | None) -> tuple[Difference, Difference]:
        found, own = (measure_error(each, oracle, eager, origin) for each in (value, eager))
        return found, own

    found, own = measured(None)
    if not is_within(found, own, floor):
        spread = _spread(examination, answer, name)
        if spread is not None:
            found, own = measured(spread.to(oracle.device))
    hold_left(examination, f"buffer {name}", (found, own), floor, "after a forward, ")


def hold_left(
    examination: Examination,
    name: str,
    errors: tuple[Difference, Difference],
    floor: float,
    where: str,
) -> None:
    """Hold what a forward left behind, and note its error.

    Args:
        name: of what it left.
        errors: of the candidate, and of eager.
        where: what stands in front of the name in a refusal.

    Raises Refused.
    """
    found, own = errors
    allowed, row_allowed = allowances(own, floor)
    examination.errors.append(
        ErrorReport(
            name,
            0,
            found.relative_error,
            own.relative_error,
            allowed,
            error_over_allowance(found, own, floor),
        )
    )
    if not is_within(found, own, floor):
        detail = found.fault or (
            f"relative error {found.relative_error:.2e} (allowed {allowed:.2e}, eager "
            f"{own.relative_error:.2e}), largest {found.row_error:.2e} of the largest value "
            f"(allowed {row_allowed:.2e}, eager {own.row_error:.2e})"
        )
        raise Refused(
            Status.WRONG_VALUES,
            f"{where}{name} is not what the module leaves there: {detail}",
        )
