"""One entry's kernel on the state of one module: whether it may answer a call, and its answer.

A call to which there is an objection is not the kernel's: who bound it (patch.py) runs the module's
own code then.
"""

import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import _disable_current_modes

from kmem.deploy.shipped.ops import Operator, operator
from kmem.deploy.shipped.sharing import holder_of, make_shell, share_state
from kmem.deploy.shipped.standing import Standing
from kmem.deploy.shipped.supports import (
    devices_for,
    is_capturing,
    objection_to_context,
    objection_to_gradients,
    objection_to_inputs,
    objection_to_tensors,
)
from kmem.deploy.shipped.table import Entry
from kmem.deploy.shipped.warm_start import warm_start

#: What a kernel can read in an ordinary call, and what tracers put in its place.
_PLAIN = (torch.Tensor, nn.Parameter)
_TRACED = (FakeTensor, FunctionalTensor)


def _registering(kernel: "BoundKernel") -> Callable[[], int]:
    """What gives a kernel its operator, and is called but not traced by a compiler."""

    def register() -> int:
        if kernel._operator is None:
            with _disable_current_modes():
                kernel._operator = operator(kernel.entry)
        return 0

    # as torch.compiler.assume_constant_result does, which imports all of Dynamo
    register._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return register


class BoundKernel:
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

    def standing(self, path: str, reason: str, passed_on: int) -> Standing:
        """How the kernel stands at a path of a model.

        Args:
            path: of the module that has it.
            reason: why the module's last call that was passed on was.
            passed_on: calls that the module's own code answered.
        """
        return Standing(
            self.entry.name,
            path,
            not self._fault,
            self._fault or reason,
            self.served,
            passed_on,
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
