"""One case in one piece: the module's own answer beside the float64 oracle's."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from kmem.measure.oracle.answers.answer import Answer
from kmem.measure.oracle.running.draws import Draws
from kmem.measure.oracle.running.forward import layouts_of, widen
from kmem.measure.oracle.running.module import Forward, ReferenceModule
from kmem.measure.oracle.running.randomness import are_random
from kmem.measure.oracle.running.slices import Run


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """Outputs of eager and of the oracle, and what gives the oracle's for other inputs."""

    answer: Answer
    eager: tuple[torch.Tensor, ...]
    oracle: tuple[torch.Tensor, ...]
    run_oracle: Run


def run_whole(
    module: ReferenceModule, values: Sequence[object], seed: int, *, is_elementwise: bool
) -> WholeAnswer:
    """The answer of a module that draws no random numbers; eager may modify the inputs."""
    double = module.run_oracle(values, seed, may_cut=True)
    eager = module.run_eager(values, seed)
    answer = _describe(module, eager, double, is_elementwise=is_elementwise)
    return WholeAnswer(answer, eager.outputs, double.outputs, partial(_oracle_of, module, seed))


def run_drawn(
    module: ReferenceModule, values: Sequence[object], seed: int, *, is_elementwise: bool
) -> WholeAnswer:
    """The answer of a module that draws random numbers, and leaves its inputs alone.

    The oracle is dealt what eager drew; where it cannot be, eager is the only answer there is.
    """
    draws = Draws()
    eager = draws.keep(lambda: module.run_eager(values, seed))
    # under another seed: what was kept is all that this answer hangs on
    again = draws.deal(lambda: module.run_eager(values, seed + 1), is_wide=False)
    is_known = again is not None and not are_random(
        again.outputs, eager.outputs, module.floor_for, drew=False
    )
    double = draws.deal(lambda: module.run_oracle(values, seed)) if is_known else None
    if double is None:
        double = module.run_oracle(values, seed)
        oracle = tuple(map(widen, eager.outputs))
        run = partial(_oracle_of, module, seed)
    else:
        oracle, run = double.outputs, partial(_dealt_oracle, module, seed, draws)
    answer = _describe(module, eager, double, is_elementwise=is_elementwise)
    return WholeAnswer(answer, eager.outputs, oracle, run)


def _oracle_of(
    module: ReferenceModule, seed: int, values: Sequence[object]
) -> tuple[torch.Tensor, ...]:
    return module.run_oracle(values, seed, may_cut=True).outputs


def _dealt_oracle(
    module: ReferenceModule, seed: int, draws: Draws, values: Sequence[object]
) -> tuple[torch.Tensor, ...]:
    found = draws.deal(lambda: module.run_oracle(values, seed))
    assert found is not None, "the same module was dealt these before"
    return found.outputs


def _describe(
    module: ReferenceModule,
    eager: Forward,
    double: Forward,
    *,
    is_elementwise: bool,
) -> Answer:
    return Answer(
        double.returns_tuple,
        layouts_of(eager.outputs),
        module.floors_for(eager.outputs),
        eager.changed_inputs,
        {
            index: double.changed_inputs.get(index, widen(value))
            for index, value in eager.changed_inputs.items()
        },
        eager.aliases_inputs,
        eager.shares_outputs,
        eager.changed_buffers,
        double.changed_buffers,
        is_elementwise,
    )
