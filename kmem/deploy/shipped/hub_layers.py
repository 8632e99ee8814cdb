"""Layers for `kernelize` of Hugging Face's `kernels`: classes whose forward takes a module's place.

`kernelize` binds such a forward to modules of the model's own classes. At its first call a module
gets the kernels that compute what it computes; every other call runs the forward of its class.
"""

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from kmem.deploy.shipped.patch import Forward, find_kernels
from kmem.deploy.shipped.table import Entry


def make_layers(entries: Sequence[Entry]) -> dict[str, type[nn.Module]]:
    """A layer for each entry, by a class's name: RmsNorm for rms_norm.

    Layers have no members of their own beside the two flags that `kernels` reads.
    """
    layers = {}
    for entry in entries:
        name = "".join(part.capitalize() for part in entry.name.split("_"))
        members = {
            "forward": _make_forward(entries, len(entry.inputs)),
            "has_backward": False,
            # kernels are found at the first call, which no tracer may see; `apply` is for compilers
            "can_torch_compile": False,
        }
        layers[name] = type(name, (nn.Module,), members)
    return layers


def _make_forward(entries: Sequence[Entry], inputs: int) -> Callable[..., Any]:
    known: WeakKeyDictionary[nn.Module, Forward | None] = WeakKeyDictionary()

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        original = MethodType(type(self).forward, self)
        if self not in known:
            known[self] = None  # while the module is traced, it is its own code that is called
            known[self] = Forward("", self, find_kernels(self, entries), original)
        found = known[self]
        return original(*args, **kwargs) if found is None else found(*args, **kwargs)

    # kernels compares signatures by the number and the kinds of arguments
    names = ["self", *(f"input{place}" for place in range(inputs))]
    kind = Parameter.POSITIONAL_OR_KEYWORD
    parameters = [Parameter(name, kind) for name in names]
    forward.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return forward
