"""With which shapes the submodules of a model are called: seen in real forwards on the CPU.

For models whose sizes depend on values, which only values can show.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from kmem.errors import ProblemError, first_line
from kmem.whole.graphs.source import Built, ModelSource

#: Elements of parameters up to which a model is built and run for its shapes.
MOST_PARAMETERS = 10**9
#: Draws of inputs and weights; a module that is called with other shapes in one of them has none.
_DRAWS = 3
#: Kinds of devices whose autocast a forward may turn on.
_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of a call, and how often it is made in one forward."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    times: int = 1
    is_autocast: bool = False

    @property
    def key(self) -> object:
        """What calls of the same shapes have in common."""
        leaves, spec = pytree.tree_flatten((self.args, dict(self.kwargs)))
        return str(spec), tuple(map(_describe, leaves)), self.is_autocast

    def as_fake(self, mode: FakeTensorMode) -> "Call":
        """The same on tensors without data."""
        args, kwargs = pytree.tree_map(
            lambda leaf: mode.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf,
            (self.args, dict(self.kwargs)),
        )
        return replace(self, args=args, kwargs=kwargs)


def _describe(leaf: object) -> object:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype
    return repr(leaf)


def observe_calls(source: ModelSource, build: Callable[[], Built]) -> dict[str, list[Call]]:
    """The calls of each submodule by its path, those of the same shapes once.

    Submodules whose shapes depend on values are left out.

    Raises ProblemError: if the model is too large to be run here, or its forward fails.
    """
    with torch.device("meta"):
        try:
            size = sum(each.numel() for each in source.make().module.parameters())
        except Exception:  # noqa: BLE001 - what meta tensors cannot do, real ones may
            size = 0
    if size > MOST_PARAMETERS:
        raise ProblemError(
            f"{source.text} cannot be exported whole, and with {size:,} parameters it is too large "
            "to be run for the shapes inside; name a smaller configuration or a submodule"
        )
    seen = []
    for draw in range(_DRAWS):
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(draw)
            seen.append(_observe(source.text, build()))
    first, *others = seen
    return {
        path: list(calls.values())
        for path, calls in first.items()
        if all(other.get(path, {}).keys() == calls.keys() for other in others)
    }


def _observe(text: str, built: Built) -> dict[str, dict[object, Call]]:
    """The calls of each submodule by its path and by what those of the same shapes share."""
    found: dict[str, dict[object, Call]] = {}

    def note(path: str) -> Callable[..., None]:
        def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            call = Call(args, kwargs, is_autocast=any(map(torch.is_autocast_enabled, _DEVICES)))
            known = found.setdefault(path, {})
            times = known[call.key].times + 1 if call.key in known else 1
            known[call.key] = replace(call, times=times)

        return hook

    hooks = [
        module.register_forward_pre_hook(note(path), with_kwargs=True)
        for path, module in built.module.named_modules()
    ]
    try:
        with torch.no_grad():
            built.module(*built.args, **built.kwargs)
    except Exception as ex:
        raise ProblemError(f"{text}: forward raised {first_line(ex)}") from ex
    finally:
        for each in hooks:
            each.remove()
    return found
