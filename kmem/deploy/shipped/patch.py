"""Kernels bound to the modules of a model, and taken away again.

Only `forward` of single instances is replaced, never a class and nothing global. A module is
replaced if it computes what the kernel's own module computes (`fingerprint`) and keeps the same
parameters. Every call that a kernel does not support runs the module's own code, as it was.
"""

import os
import time
import warnings
from collections.abc import Callable, Sequence
from functools import update_wrapper
from inspect import signature
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import _disable_current_modes

from kmem.deploy.shipped.between import find_between
from kmem.deploy.shipped.calls import NoCalls, follow_calls
from kmem.deploy.shipped.fingerprint import NoFingerprint, fingerprint
from kmem.deploy.shipped.ops import Operator, operator
from kmem.deploy.shipped.sharing import CannotShare, holder_of, make_shell, share_state
from kmem.deploy.shipped.standing import Standing, name_objections
from kmem.deploy.shipped.supports import (
    devices_for,
    is_capturing,
    key_for,
    key_of,
    objection_to_context,
    objection_to_gradients,
    objection_to_inputs,
    objection_to_tensors,
)
from kmem.deploy.shipped.table import Entry, PackageError
from kmem.deploy.shipped.warm_start import warm_start

#: What a kernel can read in an ordinary call, and what tracers put in its place.
_PLAIN = (torch.Tensor, nn.Parameter)
_TRACED = (FakeTensor, FunctionalTensor)


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
            *(kernel.standing(forward) for forward in self._forwards for kernel in forward.kernels),
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


def find_kernels(module: nn.Module, entries: Sequence[Entry]) -> list["Kernel"]:
    """The kernels of those entries that compute what a module computes."""
    found = (_fit(module, entry)[0] for entry in entries)
    return [kernel for kernel in found if kernel is not None]


def _is_inside(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def _fit(module: nn.Module, entry: Entry) -> tuple["Kernel | None", str]:
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
        return (None, objection) if objection else (Kernel(entry, module), "")
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


def _registering(kernel: "Kernel") -> Callable[[], int]:
    """What gives a kernel its operator, and is called but not traced by a compiler."""

    def register() -> int:
        if kernel._operator is None:
            with _disable_current_modes():
                kernel._operator = operator(kernel.entry)
        return 0

    # as torch.compiler.assume_constant_result does, which imports all of Dynamo
    register._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return register


class Kernel:
    """One entry's kernel on the state of one module."""

    def __init__(self, entry: Entry, module: nn.Module) -> None:
        self.entry = entry
        self._shell = make_shell(entry)
        share_state(self._shell, module)
        self._state = [holder_of(module, each.name) for each in entry.state]
        # dictionaries: torch.compile refuses to look at a recurrent layer itself
        self._modes = [(vars(each), each.training) for each in module.modules()]
        self._operator: Operator | None = None  # registered when a tracer first needs it
        self._register = _registering(self)
        self._devices = devices_for(entry)
        self._has_values = not all(each.is_tensor for each in entry.inputs)  # beyond the key
        self._adds_in_any_order = b"tl.atomic_" in entry.kernel.read_bytes()
        self._is_proven: set[torch.device] = set()  # where a first call went well
        self._fault = ""  # why no further call is tried
        self.served = 0
        self.first_call_s: float | None = None

    def standing(self, forward: "Forward") -> Standing:
        return Standing(
            self.entry.name,
            forward.path,
            not self._fault,
            self._fault or forward.reason,
            self.served,
            forward.passed_on,
            self.first_call_s,
        )

    def objection(self, inputs: Sequence[Any]) -> str | None:
        """Why the kernel, which is for such inputs, cannot answer this call; None if it can."""
        if self._fault:
            return self._fault
        if self._has_values:
            reason = objection_to_inputs(self.entry, inputs)
            if reason is not None:
                return reason
        if any(name not in holder for holder, name in self._state):
            return "a parameter is computed from others now, as parametrizations and pruning do"
        tensors = [*inputs, *self._read_state()]
        reason = objection_to_gradients(tensors) or objection_to_tensors(tensors, _PLAIN + _TRACED)
        return reason or self._objection_to_state() or self._objection_to_place(tensors)

    def _read_state(self) -> list[torch.Tensor]:
        return [holder[name] for holder, name in self._state]

    def _objection_to_state(self) -> str | None:
        for each, tensor in zip(self.entry.state, self._read_state(), strict=True):
            if tensor is None or (tensor.shape, tensor.stride(), tensor.dtype) != (
                each.shape,
                each.stride,
                each.dtype,
            ):
                return f"{each.name} is not what the kernel was written for"
        for attributes, training in self._modes:
            if attributes["training"] is not training:
                return "the module is in another mode than when the kernel was applied"
        for attributes, _ in self._modes[1:]:
            if attributes["_forward_hooks"] or attributes["_forward_pre_hooks"]:
                return "a module inside has hooks, which the kernel would leave out"
        return None

    def _objection_to_place(self, tensors: Sequence[Any]) -> str | None:
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                device = tensor.device
                if (device.type, device.index) not in self._devices:
                    return f"it was verified on {self.entry.device}, this call is on {device}"
                return objection_to_context(device.type, any_order=self._adds_in_any_order)
        return "no argument is a tensor"

    def run(self, inputs: Sequence[Any], original: Any) -> Any:
        """The kernel's answer to a call to which there is no objection."""
        if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
            self._register()
            return self._operator(inputs, self._read_state())  # type: ignore[misc]
        device = next(each.device for each in inputs if isinstance(each, torch.Tensor))
        if device in self._is_proven:
            self.served += 1
            return self._shell(*inputs)
        return self._run_first(inputs, original, device)

    def _run_first(self, inputs: Sequence[Any], original: Any, device: torch.device) -> Any:
        """The first call on a device, which compiles: if that fails, the module's own code runs."""
        if is_capturing(device):
            return original(*inputs)  # a compiler must not run under capture: warm up before it
        started = time.perf_counter()
        try:
            with warm_start():
                found = self._shell(*inputs)
        except Exception as ex:  # noqa: BLE001  # a driver or compiler that is missing
            if os.environ.get("KMEM_STRICT") == "1":
                raise
            text = str(ex).strip().splitlines()
            self._fault = f"its first call failed: {type(ex).__name__}: {text[0] if text else ''}"
            warnings.warn(f"{self.entry.name} is not used: {self._fault}", stacklevel=3)
            return original(*inputs)
        self._is_proven.add(device)
        self.first_call_s = self.first_call_s or time.perf_counter() - started
        self.served += 1
        return found


class Forward:
    """What stands in the place of one instance's forward."""

    def __init__(
        self,
        path: str,
        module: nn.Module,
        kernels: Sequence[Kernel],
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
        self._by_inputs: dict[tuple[Any, ...], Kernel | None] = {}
        for kernel in self.kernels:  # where two serve the same, the table's first does everywhere
            self._by_inputs.setdefault(key_for(kernel.entry), kernel)
        update_wrapper(self, self._original)

    @property
    def __code__(self) -> CodeType:
        """The original's: torch.export asks a forward where it is written."""
        return self._original.__code__

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

    def _choose(self, inputs: Sequence[Any]) -> tuple[Kernel, str | None]:
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

    def _widen(self, inputs: Sequence[Any], key: tuple[Any, ...]) -> Kernel | None:
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
