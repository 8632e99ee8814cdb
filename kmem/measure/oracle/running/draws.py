"""The random numbers that eager drew, dealt again to the float64 oracle.

A module that draws random numbers (dropout in training) has another answer in float64 under the
same seed, for a generator counts draws by type. So the numbers that eager's operators drew are kept
and given to the same operators of the float64 run: both compute the same function then, and eager's
own error is known as it is for other modules.

Covered: torch's operators whose result is drawn (`rand`, `bernoulli_`, ...) and dropout. Not
covered: operators that draw inside of other arithmetic (attention with dropout, recurrent nets),
and random numbers of other libraries.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kmem.measure.oracle.running.forward import widen
from kmem.measure.oracle.running.randomness import generator_states

T = TypeVar("T")
_aten = torch.ops.aten
#: What these return is drawn, and nothing else is computed. Source: native_functions.yaml, the
#: operators tagged nondeterministic_seeded.
_DRAWING = frozenset(
    {
        _aten.bernoulli,
        _aten.bernoulli_,
        _aten.cauchy_,
        _aten.exponential_,
        _aten.geometric_,
        _aten.log_normal_,
        _aten.multinomial,
        _aten.normal_,
        _aten.rand,
        _aten.rand_like,
        _aten.randint,
        _aten.randint_like,
        _aten.randn,
        _aten.randn_like,
        _aten.randperm,
        _aten.random_,
        _aten.uniform_,
    }
)
_Arguments: TypeAlias = "tuple[object, ...]"
_Keywords: TypeAlias = "Mapping[str, object] | None"


class _UnlikeEager(Exception):
    """The float64 run asked for other random numbers than eager did."""


@dataclass(slots=True)
class Draws:
    """What the operators of one run drew, in order: the operator, and its numbers or its mask.

    `is_whole` is False after an operator that drew otherwise.
    """

    kept: list[tuple[object, torch.Tensor]] = field(default_factory=list)
    is_whole: bool = True

    def keep(self, run: Callable[[], T]) -> T:
        """What `run` returns; its draws are kept."""
        with _Keeping(self):
            return run()

    def deal(self, run: Callable[[], T], *, is_wide: bool = True) -> T | None:
        """What `run` returns when it draws what was kept; None if it asks for something else.

        Args:
            is_wide: whether it runs in float64.
        """
        if not self.is_whole:
            return None
        dealing = _Dealing(self.kept, widen if is_wide else torch.Tensor.detach)
        try:
            with dealing:
                found = run()
        except _UnlikeEager:
            return None
        return found if dealing.place == len(self.kept) else None


class _Keeping(TorchDispatchMode):
    def __init__(self, draws: Draws) -> None:
        super().__init__()
        self._draws = draws

    def __torch_dispatch__(
        self,
        operator: torch._ops.OpOverload,
        types: Sequence[type],
        arguments: _Arguments = (),
        keywords: _Keywords = None,
    ) -> object:
        packet = operator.overloadpacket
        if packet in _DRAWING:
            result = operator(*arguments, **(keywords or {}))
            self._draws.kept.append((packet, result.clone()))
            return result
        if packet is _aten.native_dropout:
            result = operator(*arguments, **(keywords or {}))
            self._draws.kept.append((packet, result[1].clone()))
            return result
        if torch.Tag.nondeterministic_seeded not in operator.tags:
            return operator(*arguments, **(keywords or {}))
        device = next(
            (each.device for each in arguments if isinstance(each, torch.Tensor)),
            torch.device("cpu"),
        )
        before = generator_states(device)
        result = operator(*arguments, **(keywords or {}))
        if not all(map(torch.equal, before, generator_states(device))):
            self._draws.is_whole = False
        return result


class _Dealing(TorchDispatchMode):
    def __init__(
        self,
        kept: Sequence[tuple[object, torch.Tensor]],
        convert: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        super().__init__()
        self._kept, self._convert = kept, convert
        self.place = 0

    def __torch_dispatch__(
        self,
        operator: torch._ops.OpOverload,
        types: Sequence[type],
        arguments: _Arguments = (),
        keywords: _Keywords = None,
    ) -> object:
        packet = operator.overloadpacket
        if packet is _aten.native_dropout:
            return self._drop_out(*arguments)
        if packet not in _DRAWING:
            return operator(*arguments, **(keywords or {}))
        drawn = self._next(packet)
        given = arguments[0] if arguments else None
        if not isinstance(given, torch.Tensor):
            device = (keywords or {}).get("device")
            return self._convert(drawn).to(
                device if isinstance(device, torch.device) else None, copy=True
            )
        if operator._schema.is_mutable:
            if given.shape != drawn.shape:
                raise _UnlikeEager
            return given.copy_(drawn)
        return self._convert(drawn).to(given.device, copy=True)

    def _drop_out(
        self, values: torch.Tensor, probability: float, is_training: bool | None = True
    ) -> tuple[torch.Tensor, torch.Tensor]:
        mask = self._next(_aten.native_dropout).to(values.device)
        if mask.shape != values.shape:
            raise _UnlikeEager
        kept = 1 - probability if is_training is not False else 1.0
        return values * mask * (1 / kept if kept else 0.0), mask

    def _next(self, packet: object) -> torch.Tensor:
        if self.place == len(self._kept) or self._kept[self.place][0] is not packet:
            raise _UnlikeEager
        self.place += 1
        return self._kept[self.place - 1][1]
