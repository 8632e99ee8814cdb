"""What kind of module the problem's is, found out on the first case.

In order: whether its forward modifies inputs, whether it draws random numbers, and whether it can
be taken slice by slice, eager and oracle alike.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch

from kmem.measure.oracle.answers.answer import Answer
from kmem.measure.oracle.answers.elements import is_elementwise_at
from kmem.measure.oracle.inputs.filled import ReferenceInputs
from kmem.measure.oracle.running.forward import PROCESS_STATE, UNDEFINED, layouts_of, tensor_bytes
from kmem.measure.oracle.running.module import ReferenceModule
from kmem.measure.oracle.running.randomness import are_random, has_drawn
from kmem.measure.oracle.running.slices import (
    PIECES,
    Sameness,
    Slicing,
    compare_pieces,
    find_slicing,
)

#: Pieces of very large inputs and outputs that are small beside the whole; where device memory is
#: short they become finer (expected.py).
_ENOUGH_PIECES = 16


@dataclass(frozen=True, slots=True)
class ModuleKind:
    """What was found out about a module.

    `remembers` says that an answer depends on earlier calls, as that of a module which counts them.
    `slicing` and `sliced_answer` are None where large inputs have to be taken whole.
    """

    is_stochastic: bool
    remembers: bool = False
    is_elementwise: bool = False  # found out for inputs that are not large
    slicing: Slicing | None = None
    sliced_answer: Answer | None = None


def explore_module(
    module: ReferenceModule,
    inputs: ReferenceInputs,
    values: Sequence[object],
    seed: int,
    refused: Collection[str],
) -> ModuleKind:
    """Find out what kind of module this is, and tell its inputs how much larger outputs make them.

    Args:
        values: what the inputs hold, or the same at another size.
        refused: input families that the module raises for.
    """
    if _modifies_inputs(module, inputs, values, seed):
        return ModuleKind(is_stochastic=False)  # each call starts from other values
    first = module.run_eager(values, seed + 1)
    with PROCESS_STATE:
        second = module.run_eager(values, seed)
        drew = has_drawn(module.device, seed)
    if are_random(first.outputs, second.outputs, module.floor_for, drew=drew):
        return ModuleKind(is_stochastic=True)
    changed_buffers, aliases_inputs = first.changed_buffers, first.aliases_inputs
    del first
    given = tensor_bytes(values)
    inputs.growth = (given + tensor_bytes(second.outputs)) / max(given, 1)
    remembers = False
    if changed_buffers:
        later = module.run_eager(values, seed, calls=2)
        remembers = not all(map(torch.equal, later.outputs, second.outputs))
        del later
    plain = ModuleKind(is_stochastic=False, remembers=remembers)
    if not inputs.is_large(values):
        return replace(plain, is_elementwise=_is_elementwise(module, values, second.outputs, seed))
    if changed_buffers or any(value.dim() <= 1 for value in second.outputs):
        return plain
    pieces = _first_pieces(inputs, given)
    slicing = find_slicing(
        module.eager_run(seed), values, second.outputs, module.floor_for, pieces=pieces
    )
    answer = Answer(
        False,
        layouts_of(second.outputs),
        module.floors_for(second.outputs),
        aliases_inputs=aliases_inputs,
    )
    del second
    if slicing is None or not _is_cut_alike(module, inputs, slicing, seed, refused):
        return plain
    returns_tuple = _cut_oracle(module, slicing, values, seed)
    if returns_tuple is None:
        return plain
    return replace(
        plain, slicing=slicing, sliced_answer=replace(answer, returns_tuple=returns_tuple)
    )


def _is_elementwise(
    module: ReferenceModule,
    values: Sequence[object],
    outputs: Sequence[torch.Tensor],
    seed: int,
) -> bool:
    """Whether each element of every output follows from its own place in the inputs of its shape.

    It is tried on copies with NaN at one place, which not every operator lets through (`where`):
    then nothing is known.
    """
    alike = [
        index
        for index, value in enumerate(values)
        if isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.numel() > 1
        and all(value.shape == output.shape for output in outputs)
    ]
    for index in alike:
        copies = [_copy_of(value, first_row=False) for value in values]
        place = copies[index].numel() // 2
        copies[index] = copies[index].contiguous()
        copies[index].view(-1)[place] = float("nan")
        try:
            found = module.run_eager(copies, seed).outputs
        except UNDEFINED:
            return False
        if not is_elementwise_at(copies[index], found, outputs, place):
            return False
    return bool(alike)


def _first_pieces(inputs: ReferenceInputs, given_bytes: int) -> int:
    """How many pieces to try first: each small enough, or small beside the whole."""
    nbytes = inputs.growth * given_bytes
    wanted = max(inputs.whole_bytes, nbytes / _ENOUGH_PIECES)
    return next((pieces for pieces in PIECES if nbytes / pieces <= wanted), PIECES[-1])


def _modifies_inputs(
    module: ReferenceModule, inputs: ReferenceInputs, values: Sequence[object], seed: int
) -> bool:
    """Whether a forward writes to its inputs.

    Tried on copies; of large inputs on copies of their first rows, if the module accepts these.
    """
    tensors = [
        index
        for index, value in enumerate(values)
        if isinstance(value, torch.Tensor) and value.dim() > 0
    ]
    attempts = [tensors, tensors[:1], []] if inputs.is_large(values) else [[]]
    for cut in attempts:
        copies = [_copy_of(value, first_row=index in cut) for index, value in enumerate(values)]
        try:
            return bool(module.run_eager(copies, seed + 1).changed_inputs)
        except torch.OutOfMemoryError:
            raise
        except UNDEFINED:
            if not cut:
                raise
            continue
    raise AssertionError("the last attempt returns or raises")


def _copy_of(value: object, *, first_row: bool) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    return (value[:1] if first_row else value).clone()


def _is_cut_alike(
    module: ReferenceModule,
    inputs: ReferenceInputs,
    slicing: Slicing,
    seed: int,
    refused: Collection[str],
) -> bool:
    """Whether slices are right for signed values too.

    An extreme over all rows may be the same in every slice of a draw. The inputs are put back to
    what they were.
    """
    if "normal" in refused:
        return True  # no signed values will be judged
    family, drawn = inputs.filled
    inputs.fill("normal", seed + 2)
    run = module.eager_run(seed)
    try:
        whole = run(inputs.values)
        return (
            compare_pieces(run, inputs.values, whole, slicing, module.floor_for)
            is not Sameness.NONE
        )
    except torch.OutOfMemoryError:
        raise
    except UNDEFINED:
        return True
    finally:
        inputs.fill(family, drawn)


def _cut_oracle(
    module: ReferenceModule, slicing: Slicing, values: Sequence[object], seed: int
) -> bool | None:
    """Whether the module returns a tuple, as its float64 run for one piece tells.

    None if it accepts no piece.
    """
    _, part = next(slicing.parts(values))
    try:
        return module.run_double(part, seed).returns_tuple
    except torch.OutOfMemoryError:
        raise
    except UNDEFINED:
        return None
