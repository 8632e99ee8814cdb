"""What stands in the place of a module's forward, and how it has fared.

Only `forward` of single instances is replaced, never a class.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

from torch import nn
from torch.utils import _pytree as pytree


@dataclass(frozen=True, slots=True)
class Standing:
    """How what stands in the place of a module's forward has fared; `print` says it in a line.

    `bucket` names the shapes that it was proved at, where there are several; what it passed on ran
    the module's own code, the last call for `reason`.
    """

    path: str  # of the module; "" is the model itself
    bucket: str
    kernels: int
    served: int
    passed_on: int
    reason: str
    rest: str = "eager"  # how operators outside of the kernels run; if not compiled as asked, why

    def __str__(self) -> str:
        where = self.path or "the model"
        text = f"{where}{f' at {self.bucket}' if self.bucket else ''}"
        if not self.kernels:
            return f"{text}: passed on {self.passed_on} ({self.reason or 'nothing so far'})"
        text = f"{text}: {self.kernels} pieces have kernels"
        if self.rest != "eager":
            text += f", the rest is {self.rest}"
        if self.served:
            text += f", served {self.served} calls"
        return f"{text}, passed on {self.passed_on} ({self.reason})" if self.reason else text


class BoundForward(ABC):
    """What stands in the place of a module's forward, and what became of the calls."""

    def __init__(self, path: str, module: nn.Module) -> None:
        self.path = path
        self.served, self.passed_on = 0, 0
        self.reason = ""
        self.module = module
        self._had_its_own = "forward" in vars(module)
        self._original = module.forward
        update_wrapper(self, self._original)

    def install(self) -> None:
        self.module.forward = self

    def remove(self) -> None:
        if vars(self.module).get("forward") is not self:
            return
        if self._had_its_own:
            self.module.forward = self._original
        else:
            del self.module.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        serve = self.find(leaves, spec)
        if not isinstance(serve, str):
            made = serve()
            self.served += 1
            return made
        self.passed_on += 1
        self.reason = serve
        return self._original(*args, **kwargs)

    @abstractmethod
    def find(self, leaves: Sequence[Any], spec: pytree.TreeSpec) -> Callable[[], Any] | str:
        """What answers a call, or why the module's own code must."""

    @abstractmethod
    def standings(self) -> list[Standing]:
        """How it has fared."""
