"""How large the values were that a result was computed from.

Where a result cancels (a sum less a constant), or is what a ReLU left of a row, its own magnitude
says nothing of the error that any arithmetic makes there: the right answer to one value near zero
is as far off in eager as in a candidate, by luck more or less. What counts is the magnitude of the
values that cancelled, as they arrive at the result. It is found by running the module in float64
with the result of every operator moved by one rounding, once up or down at random and once the
other way, and seeing how far the outputs move. Of operators that add up products the operands are
moved, too: their sum cancels within them, and a ReLU may leave of a row the one sum that is nearly
nothing. Of operators that normalise the mean is moved: a constant row less its mean is nothing but
what the mean was rounded by.

Covered: everything that an operator of the module returns, the sums within products and
convolutions, and the means within norms. Not covered: what else happens inside one operator, such
as the sum of a softmax; stochastic modules, which have no oracle.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeGuard

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kmem.measure.oracle.correctness import ROUNDING
from kmem.measure.oracle.running.slices import Run

#: What each value is moved by; small against everything, large against float64's own rounding.
_STEP = ROUNDING[torch.float32]


_aten = torch.ops.aten
#: Operators that add up products of their operands.
_PRODUCTS = {
    _aten.addbmm, _aten.addmm, _aten.addmv, _aten.baddbmm, _aten.bmm, _aten.convolution, _aten.dot,
    _aten.linear, _aten.mm, _aten.mv,
}  # fmt: skip
#: Operators that return what they normalised, the means that they took, and one over the spreads.
_NORMS = {
    _aten._native_batch_norm_legit,
    _aten.cudnn_batch_norm,
    _aten.native_batch_norm,
    _aten.native_group_norm,
    _aten.native_layer_norm,
}


#: Finds the origins of a run's outputs: of the module in float64, its inputs, and its outputs.
FindOrigins: TypeAlias = Callable[
    [Run, Sequence[object], Sequence[torch.Tensor]], list[torch.Tensor]
]


class _Moved(TorchDispatchMode):
    """Moves what operators return by one rounding of float32, wherever float32 would round it.

    What is exact in float32 stays: copies of inputs, constants, masks, and sums of products of such
    (counts, rows picked by a one-hot matrix), for a module may compare them with a number. Operands
    of other sums are moved whatever they are, for float32 rounds between them.
    """

    def __init__(self, seed: int, sign: float) -> None:
        super().__init__()
        self._seed, self._step = seed, sign * _STEP
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self,
        operator: torch._ops.OpOverload,
        types: Sequence[type],
        arguments: tuple[object, ...] = (),
        keywords: Mapping[str, object] | None = None,
    ) -> object:
        result = operator(*arguments, **(keywords or {}))
        if operator.overloadpacket in _PRODUCTS and _is_wide(result):
            operands = tuple(self._moved_operand(value) for value in arguments)
            moved = operator(*operands, **(keywords or {}))
            result = torch.where(result.float() != result, moved, result)
        if operator.overloadpacket in _NORMS and _is_wide(result[0]):
            self._move_means(operator, arguments, *result[:3])
        is_view = any(
            each.alias_info is not None and not each.alias_info.is_write
            for each in operator._schema.returns
        )
        if not is_view:
            for value in result if isinstance(result, list | tuple) else [result]:
                if _is_wide(value):
                    self._move(value)
        return result

    def _move_means(
        self,
        operator: torch._ops.OpOverload,
        arguments: tuple[object, ...],
        normalised: torch.Tensor,
        mean: torch.Tensor,
        scale: torch.Tensor,
    ) -> None:
        """Moves a norm's output as about one rounding of each mean would, all to one side.

        A pooling behind the norm has few means to a result: moved to either side they would cancel
        to 0 in every third of four.
        """
        if not mean.numel():  # the means are given
            return
        is_of_rows = operator.overloadpacket is _aten.native_layer_norm
        weight = arguments[2 if is_of_rows else 1]
        sizes = torch.empty_like(mean).uniform_(0.5, 1.5, generator=self._generator(mean.device))
        shift = sizes.mul_(self._step).mul_(mean).mul_(scale)
        if not is_of_rows:  # by channel, of which a group has several
            each = normalised.shape[1] // mean.shape[-1]
            shift = shift.reshape(-1, mean.shape[-1]).repeat_interleave(each, 1)
        shift = shift if weight is None else shift * weight
        if not is_of_rows:
            shift = shift.reshape(*shift.shape, *(1,) * (normalised.dim() - 2))
        normalised.add_(shift)

    def _moved_operand(self, value: object) -> object:
        return value * self._coins(value).add_(1) if _is_wide(value) else value

    def _move(self, value: torch.Tensor) -> None:
        if 0 in value.stride():  # an element that stands for many
            return
        value.mul_(self._coins(value).mul_(value.float() != value).add_(1))

    def _coins(self, value: torch.Tensor) -> torch.Tensor:
        """One rounding up or down for each element."""
        coins = torch.empty(value.shape, dtype=value.dtype, device=value.device)
        coins.bernoulli_(0.5, generator=self._generator(value.device))
        return coins.mul_(2).sub_(1).mul_(self._step)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device=device).manual_seed(self._seed)
        return self._generators[device]


def _is_wide(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float64


def find_origins(
    run_oracle: Run, values: Sequence[object], oracle: Sequence[torch.Tensor], *, seed: int
) -> list[torch.Tensor]:
    """For each output how large the values were that it was computed from, element by element.

    Args:
        run_oracle: the module in float64; it leaves `values` as they are.
        oracle: its outputs for these values.

    Returns:
        Float64 of the outputs' shapes, of complex ones that of `torch.view_as_real`; 0 for whole
        numbers.
    """
    rights = [torch.view_as_real(right) if right.is_complex() else right for right in oracle]
    origins = [torch.zeros_like(right, dtype=torch.float64) for right in rights]
    for sign in (1.0, -1.0):
        with _Moved(seed, sign):
            moved = run_oracle(values)
        for origin, one, right in zip(origins, moved, rights, strict=True):
            if right.is_floating_point():
                one = torch.view_as_real(one) if one.is_complex() else one
                distance = (one.to(right.device) - right).abs_().div_(_STEP)
                torch.maximum(origin, distance.nan_to_num_(0.0, 0.0, 0.0), out=origin)
    return origins
