"""Kernels bound to the modules of a model, and taken away again.

Only `forward` of single instances is replaced, never a class and nothing global. A module is
replaced if it computes what the kernel's own module computes (`fingerprint`) and keeps the same
parameters. Every call that a kernel does not support runs the module's own code, as it was.
"""

from collections.abc import Callable, Sequence
from functools import update_wrapper
from inspect import signature
from types import CodeType
from typing import Any

import torch
from torch import nn

from kmem.deploy.shipped.between import find_between
from kmem.deploy.shipped.bound_kernel import BoundKernel
from kmem.deploy.shipped.calls import NoCalls, follow_calls
from kmem.deploy.shipped.fingerprint import NoFingerprint, fingerprint
from kmem.deploy.shipped.sharing import CannotShare
from kmem.deploy.shipped.standing import Standing, name_objections
from kmem.deploy.shipped.supports import key_for, key_of, objection_to_inputs
from kmem.deploy.shipped.table import Entry, PackageError


class Handle:
    """What `apply` did to a model; also a context manager that undoes it at its end."""

    def __init__(self, forwards: Sequence["Forward"], unused: Sequence[Standing]) -> None:
        self._forwards = list(forwards)
        self._unused = list(unused)

    def __enter__(self) -> "Handle":
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()

    @property
    def replaced(self) -> list[str]:
        """Paths of the modules that have kernels; "" is the model itself."""
        return [forward.path for forward in self._forwards]

    def undo(self) -> None:
        """Give every module the very forward that it had; doing so again changes nothing.

        Raises RuntimeError: if somebody else has replaced a forward since; the others are undone.
        """
        foreign = [forward.path for forward in self._forwards if not forward.remove()]
        self._forwards = [each for each in self._forwards if each.path in foreign]
        if foreign:
            raise RuntimeError(
                f"Somebody replaced the forward of {', '.join(map(repr, foreign))} after kmem did; "
                "undo that first, then undo this again"
            )

    def status(self) -> list[Standing]:
        """What is active, what is not, and why."""
        return [
            *(each for forward in self._forwards for each in forward.standings()),
            *self._unused,
        ]

    def __str__(self) -> str:
        return "\n".join(map(str, self.status())) or "nothing is replaced"


def apply(model: nn.Module, entries: Sequence[Entry]) -> Handle:
    """Bind kernels to the modules of a model that compute the same, and return how to undo it.

    Args:
        model: on its device and in the mode in which it will run.
        entries: of one package or several.

    Raises ValueError: if a module of the model has kernels already.
    """
    for path, module in model.named_modules():
        if isinstance(vars(module).get("forward"), Forward):
            raise ValueError(
                f"{path or 'The model'} has kernels already; call undo() on their handle first"
            )
    forwards: list[Forward] = []
    objections: dict[str, list[str]] = {entry.name: [] for entry in entries}
    for path, module in model.named_modules():
        if any(_is_inside(path, each.path) for each in forwards):
            continue  # the kernel of the module around it computes this one too
        kernels = []
        for entry in entries:
            kernel, objection = _fit(module, entry)
            if kernel is not None:
                kernels.append(kernel)
            elif objection:
                objections[entry.name].append(f"{path or 'the model itself'}: {objection}")
        if kernels:
            forwards.append(Forward(path, module, kernels))
    for forward in forwards:
        forward.install()
    used = {kernel.entry.name for forward in forwards for kernel in forward.kernels}
    unused = [
        Standing(entry.name, None, False, name_objections(objections[entry.name]))
        for entry in entries
        if entry.name not in used
    ]
    return Handle(forwards, unused)


def find_kernels(module: nn.Module, entries: Sequence[Entry]) -> list[BoundKernel]:
    """The kernels of those entries that compute what a module computes."""
    found = (_fit(module, entry)[0] for entry in entries)
    return [kernel for kernel in found if kernel is not None]


def _is_inside(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def _fit(module: nn.Module, entry: Entry) -> tuple[BoundKernel | None, str]:
    """A kernel for a module, or why there is none; no reason where they are plainly different."""
    if tuple(name for name, _ in module.named_parameters()) != entry.parameters:
        return None, ""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for each in entry.state:
        found = state.get(each.name)
        if found is None or tuple(found.shape) != each.shape:
            return None, ""
        if found.dtype != each.dtype:
            return None, f"its {each.name} is of {found.dtype}, the kernel is for {each.dtype}"
        if tuple(found.stride()) != each.stride:
            strides = f"{tuple(found.stride())}, the kernel is for {each.stride}"
            return None, f"its {each.name} has strides {strides}"
    device = next((tensor.device for tensor in state.values()), torch.device("cpu"))
    try:
        objection = _objection_to_computation(module, entry, device)
        return (None, objection) if objection else (BoundKernel(entry, module), "")
    except (NoFingerprint, CannotShare, PackageError) as ex:
        return None, str(ex)


def _objection_to_computation(module: nn.Module, entry: Entry, device: torch.device) -> str:
    """Why a module computes something else than an entry's kernel, from inputs of its shapes.

    Raises NoFingerprint: if that cannot be told.
    """
    try:
        follow_calls(module, entry.inputs, entry.calls, device)
        return ""
    except NoCalls as ex:
        difference = str(ex)
    if fingerprint(module, entry.inputs, device) == entry.graph:
        return ""
    text = "it computes something else than the kernel from such inputs"
    if module.training is entry.training:
        return f"{text}: {difference}"
    here, there = ("training", "eval") if module.training else ("eval", "training")
    return f"{text} (it is in {here} mode, the kernel was made in {there} mode)"


class Forward:
    """What stands in the place of one instance's forward."""

    def __init__(
        self,
        path: str,
        module: nn.Module,
        kernels: Sequence[BoundKernel],
        original: Callable[..., Any] | None = None,
    ) -> None:
        self.path = path
        self.kernels = list(kernels)
        self.passed_on = 0
        self.reason = ""  # why the last call that was passed on was
        self._module = module
        self._had_its_own = "forward" in vars(module)
        self._original = original or module.forward
        self._names = list(signature(self._original).parameters)
        self._wide = [each.entry for each in self.kernels if each.entry.between]
        self._is_looking = False  # at the module's own forward, for a size that is new
        self._by_inputs: dict[tuple[Any, ...], BoundKernel | None] = {}
        for kernel in self.kernels:  # where two serve the same, the table's first does everywhere
            self._by_inputs.setdefault(key_for(kernel.entry), kernel)
        update_wrapper(self, self._original)

    @property
    def __code__(self) -> CodeType:
        """The original's: torch.export asks a forward where it is written."""
        return self._original.__code__

    def standings(self) -> list[Standing]:
        """How each of its kernels stands."""
        return [each.standing(self.path, self.reason, self.passed_on) for each in self.kernels]

    def install(self) -> None:
        self._module.forward = self

    def remove(self) -> bool:
        """Give the module its forward back; False if somebody else has replaced it since."""
        if vars(self._module).get("forward") is not self:
            return False
        if self._had_its_own:
            self._module.forward = self._original
        else:
            del self._module.forward
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles of a model have its own code: a kernel reads this very module."""
        if self._had_its_own:
            return _same, (self._original,)
        return getattr, (self._module, "forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inputs = self._in_order(args, kwargs)
        reason: str | None = "it is called with arguments that have no order"
        if inputs is not None and not self._is_looking:
            kernel, reason = self._choose(inputs)
            if reason is None:
                return kernel.run(inputs, self._original)
        if not torch.compiler.is_compiling() and not self._is_looking:
            self.passed_on += 1
            self.reason = reason or ""
        return self._original(*args, **kwargs)

    def _choose(self, inputs: Sequence[Any]) -> tuple[BoundKernel, str | None]:
        """The kernel for such inputs and why it cannot answer this call; any other's reason."""
        if torch.compiler.is_compiling():  # sizes become guards one by one, not as a key
            objections = ((each, objection_to_inputs(each.entry, inputs)) for each in self.kernels)
            found = [kernel for kernel, reason in objections if reason is None]
            kernel = found[0] if found else None
        else:
            key = key_of(inputs)
            kernel = self._by_inputs.get(key)
            if kernel is None and self._wide and key not in self._by_inputs:
                kernel = self._widen(inputs, key)
        reason = None
        if kernel is None:  # sizes under a tracer are no keys
            kernel = self.kernels[0]
            reason = objection_to_inputs(kernel.entry, inputs)
        return kernel, reason or kernel.objection(inputs)

    def _widen(self, inputs: Sequence[Any], key: tuple[Any, ...]) -> BoundKernel | None:
        """A kernel for a size between those of the table, made once; None if there is none."""
        entry = find_between(self._wide, inputs)
        if entry is None or key_for(entry) != key:
            return None
        self._is_looking = True
        try:
            kernel, _ = _fit(self._module, entry)
        finally:
            self._is_looking = False
        self._by_inputs[key] = kernel
        self.kernels += [kernel] if kernel is not None else []
        return kernel

    def _in_order(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any] | None:
        """The arguments of a call by position; None where keywords leave gaps."""
        if not kwargs:
            return list(args)
        following = self._names[len(args) : len(args) + len(kwargs)]
        if any(name not in kwargs for name in following) or len(following) != len(kwargs):
            return None
        return [*args, *(kwargs[name] for name in following)]


def _same(value: Any) -> Any:
    return value
