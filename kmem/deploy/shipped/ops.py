"""Each kernel as an operator of torch.library, for torch.compile and torch.export.

An operator takes the tensors of a forward, then the parameters and buffers that it reads, in the
order of the table. Where torch can trace a kernel's launches it is a `triton_op`, which a compiler
inlines; otherwise a `custom_op`, which is called as it is: a kernel that keeps what it makes of
weights, or runs in the interpreter. Either has a fake kernel, keeps the strides in front of it, for
the kernel was verified at those, and has no backward and says so. One that writes to its state says
in its schema to what, and is opaque. If a first call fails, there is one warning and the module
that the kernel was made for answers, from the package's evidence.
"""

import hashlib
import os
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Any

import torch

from kmem.deploy.shipped.launches import can_trace, traceable_kernel
from kmem.deploy.shipped.sharing import copy_shell, holder_of, make_shell
from kmem.deploy.shipped.supports import is_capturing
from kmem.deploy.shipped.table import Entry, Input, State, load_kernel, load_original
from kmem.deploy.shipped.warm_start import warm_start

_registered: dict[str, "Operator"] = {}


def operator(entry: Entry) -> "Operator":
    """The operator of an entry, registered when it is first asked for.

    Raises CannotShare: as `make_shell` does.
    """
    name = operator_name(entry)
    if name not in _registered:
        _registered[name] = Operator(entry, name)
    return _registered[name]


def operator_name(entry: Entry) -> str:
    """`kmem::<entry>_<hash>`: two packages that serve the same by one kernel share an operator."""
    what = repr((entry.kernel_sha256, entry.graph, entry.inputs, entry.outputs, entry.init))
    mark = hashlib.sha256(what.encode()).hexdigest()[:12]
    return f"kmem::{re.sub(r'[^a-z0-9_]', '_', entry.name.lower())}_{mark}"


class Operator:
    """One registered operator; called with tensors, it returns what the module returns."""

    def __init__(self, entry: Entry, name: str) -> None:
        self.entry = entry
        self.name = name
        self._shells = _Shells(entry)
        self._originals = _Shells(entry, original=True)
        self._shells.of(())  # a kernel that cannot be an operator is refused here
        self._tensors = sum(each.is_tensor for each in entry.inputs)
        self._strides = [each.stride for each in _taken(entry)]
        names = [*("" for _ in range(self._tensors)), *(each.name for each in entry.state)]
        self._changed = [place for place, each in enumerate(names) if each in entry.changes]
        self._proven: set[torch.device] = set()  # where a first call went well
        self.fault = ""  # why the kernel is no longer tried
        #: Whether a compiler sees the launches; to it the operator is opaque otherwise.
        self.is_traced = False
        registered = self._register()
        registered.register_fake(self._imagine)
        if not entry.changes:  # torch has no backward of what writes to its arguments
            registered.register_autograd(_refuse_backward)
        self.overload: Callable[..., Any] = getattr(torch.ops.kmem, name.partition("::")[2]).default

    def _register(self) -> torch.library.CustomOpDef:
        """The operator as its launches for a compiler to trace, or as one opaque call."""
        launch = _make_launch(self.entry)
        if self.entry.changes or not can_trace(self.entry, launch, _stand_ins(self.entry)):
            return torch.library.custom_op(
                self.name,
                self._compute,
                mutates_args=_changed_names(self.entry),
                schema=_schema(self.entry),
                tags=(torch.Tag.needs_exact_strides,),
            )
        self.is_traced = True
        registered = torch.library.triton_op(self.name, launch, mutates_args=())
        registered.register_kernel(["cpu", "cuda"], self._compute)  # through handles
        return registered

    def __call__(self, inputs: Sequence[Any], state: Sequence[torch.Tensor]) -> Any:
        """What the module returns for its inputs and what it reads of its state."""
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        found = self.overload(*tensors, *state)
        return (found,) if self.entry.returns_tuple and len(self.entry.outputs) == 1 else found

    def _compute(self, *tensors: torch.Tensor) -> Any:
        device = tensors[0].device
        if device in self._proven:
            return self._run(self._shells, tensors)
        if self.fault or is_capturing(device):  # a compiler must not run under capture
            return self._run(self._originals, tensors)
        before = [tensors[place].clone() for place in self._changed]
        try:
            with warm_start():
                found = self._run(self._shells, tensors)
        except Exception as ex:  # noqa: BLE001  # a driver or compiler that is missing
            for place, value in zip(self._changed, before, strict=True):
                tensors[place].copy_(value)
            if os.environ.get("KMEM_STRICT") == "1":
                raise
            text = str(ex).strip().splitlines()
            self.fault = f"its first call failed: {type(ex).__name__}: {text[0] if text else ''}"
            warnings.warn(f"{self.entry.name} is not used: {self.fault}", stacklevel=2)
            return self._run(self._originals, tensors)
        self._proven.add(device)
        return found

    def _run(self, shells: "_Shells", given: Sequence[torch.Tensor]) -> Any:
        tensors = _as_verified(given, self._strides)
        inputs = _arguments(self.entry, tensors[: self._tensors])
        shell = shells.of(tensors[self._tensors :])
        with torch.no_grad(), shell:
            found = shell.module(*inputs)
        for place in self._changed:
            if tensors[place] is not given[place]:
                given[place].copy_(tensors[place])
        outputs = found if isinstance(found, tuple | list) else (found,)
        own = {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}
        outputs = tuple(
            _as_imagined(output, expected.stride, own)
            for output, expected in zip(outputs, self.entry.outputs, strict=True)
        )
        return outputs if len(outputs) > 1 else outputs[0]

    def _imagine(self, *tensors: torch.Tensor) -> Any:
        """What comes out, as shapes: the fake kernel."""
        expected = [each.shape for each in self.entry.inputs if each.is_tensor]
        for tensor, shape in zip(tensors, expected, strict=False):
            torch._check(
                tuple(tensor.shape) == shape,
                lambda: f"{self.name} is for {expected}, not {[tuple(t.shape) for t in tensors]}",
            )
        outputs = tuple(
            torch.empty_strided(each.shape, each.stride, dtype=each.dtype, device=tensors[0].device)
            for each in self.entry.outputs
        )
        return outputs if len(outputs) > 1 else outputs[0]


def _make_launch(entry: Entry) -> Callable[..., Any]:
    """The launches of an entry, for tracers alone, with the operator's signature.

    Raises CannotShare: as `make_shell` does.
    """
    # made here: under a tracer's fake tensors a constructor may not get through
    shell = make_shell(entry, traceable_kernel(entry))
    tensors = sum(each.is_tensor for each in entry.inputs)
    strides = [each.stride for each in _taken(entry)]

    def launch(*unknown: torch.Tensor) -> Any:
        given = _as_verified(unknown, strides)
        # no copy is kept: what a kernel keeps of fake tensors must not meet the next trace
        traced = _Shell(copy_shell(shell), entry, given[tensors:])
        with traced:
            found = traced.module(*_arguments(entry, given[:tensors]))
        outputs = tuple(found) if isinstance(found, tuple | list) else (found,)
        return outputs if len(outputs) > 1 else outputs[0]

    kinds = [torch.Tensor for _ in entry.outputs]
    kind = Parameter.POSITIONAL_OR_KEYWORD
    launch.__signature__ = Signature(  # type: ignore[attr-defined]  # which schema it has
        [Parameter(name, kind, annotation=torch.Tensor) for name in _argument_names(entry)],
        return_annotation=kinds[0] if len(kinds) == 1 else tuple[tuple(kinds)],
    )
    return launch


def _arguments(entry: Entry, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """What a forward is called with: the tensors, and the numbers that are always the same."""
    given = iter(tensors)
    return [next(given) if each.is_tensor else each.value for each in entry.inputs]


def _stand_ins(entry: Entry) -> list[torch.Tensor]:
    """Tensors without memory, as the operator takes them."""
    return [
        torch.empty_strided(each.shape, each.stride, dtype=each.dtype, device="meta")
        for each in _taken(entry)
    ]


def _taken(entry: Entry) -> list[Input | State]:
    """What an operator takes: the tensors of a forward, then what it reads of its state."""
    return [*(each for each in entry.inputs if each.is_tensor), *entry.state]


def _as_verified(
    tensors: Sequence[torch.Tensor], strides: Sequence[tuple[int, ...]]
) -> list[torch.Tensor]:
    """Arguments of an operator with the strides that its kernel was verified at."""
    return [_restride(*each) for each in zip(tensors, strides, strict=True)]


def _restride(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """A tensor with these strides: itself, or a copy."""
    if tuple(tensor.stride()) == stride:
        return tensor
    return torch.empty_strided(
        tensor.shape, stride, dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)


def _as_imagined(output: torch.Tensor, stride: tuple[int, ...], own: set[int]) -> torch.Tensor:
    """The output in the memory that an operator promises: its own, with the strides named."""
    if output.numel() and output.untyped_storage().data_ptr() in own:
        output = output.clone()
    return _restride(output, stride)


def _refuse_backward(ctx: Any, *gradients: Any) -> Any:
    raise NotImplementedError(
        "A kernel written by kmem has no backward: call it under torch.no_grad(), or use the "
        "module's own code where gradients are needed"
    )


def _argument_names(entry: Entry) -> list[str]:
    names = [f"input{place}" for place, each in enumerate(entry.inputs) if each.is_tensor]
    return names + [
        f"p{place}_{re.sub(r'[^A-Za-z0-9_]', '_', each.name)}"
        for place, each in enumerate(entry.state)
    ]


def _changed_names(entry: Entry) -> tuple[str, ...]:
    """The arguments that an operator writes to, by their names in its schema."""
    taken = zip(_argument_names(entry), _taken(entry), strict=True)
    return tuple(
        name for name, each in taken if isinstance(each, State) and each.name in entry.changes
    )


def _schema(entry: Entry) -> str:
    changed = _changed_names(entry)
    kinds = {name: f"Tensor(a{number}!)" for number, name in enumerate(changed)}
    names = _argument_names(entry)
    arguments = ", ".join(f"{kinds.get(name, 'Tensor')} {name}" for name in names)
    returned = ", ".join("Tensor" for _ in entry.outputs)
    return f"({arguments}) -> {returned if len(entry.outputs) == 1 else f'({returned})'}"


class _Shell:
    """A module without memory that holds tensors while it is called, and none between calls."""

    def __init__(
        self, module: torch.nn.Module, entry: Entry, state: Sequence[torch.Tensor]
    ) -> None:
        self.module = module
        self._places = [holder_of(self.module, each.name) for each in entry.state]
        self._tensors = [weakref.ref(tensor) for tensor in state]

    def holds(self, state: Sequence[torch.Tensor]) -> bool:
        """Whether it was made for these very tensors: an id may be another's by now."""
        return all(mine() is theirs for mine, theirs in zip(self._tensors, state, strict=True))

    @property
    def is_alive(self) -> bool:
        """Whether the tensors that it was made for still exist."""
        return all(tensor() is not None for tensor in self._tensors)

    def __enter__(self) -> None:
        for (holder, name), tensor in zip(self._places, self._tensors, strict=True):
            holder[name] = tensor()

    def __exit__(self, *exception: object) -> None:
        for holder, name in self._places:
            holder[name] = None


class _Shells(threading.local):
    """The shells of one operator by the tensors that they are called with, in each thread."""

    def __init__(self, entry: Entry, *, original: bool = False) -> None:
        self._entry = entry
        self._original = original  # the module that was replaced, not the kernel
        self._known: dict[tuple[int, ...], _Shell] = {}

    def of(self, state: Sequence[torch.Tensor]) -> _Shell:
        """The shell for these tensors: what a kernel keeps of its weights is kept with it."""
        key = tuple(id(tensor) for tensor in state)
        known = self._known.get(key)
        if known is not None and known.holds(state):
            return known
        self._known = {key: each for key, each in self._known.items() if each.is_alive}
        kind = load_original(self._entry).Model if self._original else load_kernel(self._entry)
        self._known[key] = _Shell(make_shell(self._entry, kind), self._entry, state)
        return self._known[key]
