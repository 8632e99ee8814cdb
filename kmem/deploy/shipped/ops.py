"""Each kernel as an operator of torch.library, for torch.compile and torch.export.

An operator takes the tensors of a forward, then the parameters and buffers that it reads, in the
order of the table. It is opaque: a compiler calls it as it is and keeps the strides in front of it,
for the kernel was verified at those. It has no backward and says so.
"""

import hashlib
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kmem.deploy.shipped.sharing import holder_of, make_shell
from kmem.deploy.shipped.table import Entry

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
        self._shells.of(())  # a kernel that cannot be an operator is refused here
        self._tensors = sum(each.is_tensor for each in entry.inputs)
        registered = torch.library.custom_op(
            name,
            self._compute,
            mutates_args=(),
            schema=_schema(entry),
            tags=(torch.Tag.needs_exact_strides,),
        )
        registered.register_fake(self._imagine)
        registered.register_autograd(_refuse_backward)
        self.overload: Callable[..., Any] = getattr(torch.ops.kmem, name.partition("::")[2]).default

    def __call__(self, inputs: Sequence[Any], state: Sequence[torch.Tensor]) -> Any:
        """What the module returns for its inputs and what it reads of its state."""
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        found = self.overload(*tensors, *state)
        return (found,) if self.entry.returns_tuple and len(self.entry.outputs) == 1 else found

    def _compute(self, *tensors: torch.Tensor) -> Any:
        given = iter(tensors[: self._tensors])
        inputs = [next(given) if each.is_tensor else each.value for each in self.entry.inputs]
        shell = self._shells.of(tensors[self._tensors :])
        with torch.no_grad(), shell:
            found = shell.module(*inputs)
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


def _as_imagined(output: torch.Tensor, stride: tuple[int, ...], own: set[int]) -> torch.Tensor:
    """The output in the memory that an operator promises: its own, with the strides named."""
    if output.numel() and output.untyped_storage().data_ptr() in own:
        output = output.clone()
    if tuple(output.stride()) == stride:
        return output
    return torch.empty_strided(
        output.shape, stride, dtype=output.dtype, device=output.device
    ).copy_(output)


def _refuse_backward(ctx: Any, *gradients: Any) -> Any:
    raise NotImplementedError(
        "A kernel written by kmem has no backward: call it under torch.no_grad(), or use the "
        "module's own code where gradients are needed"
    )


def _schema(entry: Entry) -> str:
    arguments = [
        f"Tensor input{place}" for place, each in enumerate(entry.inputs) if each.is_tensor
    ]
    arguments += [
        f"Tensor p{place}_{re.sub(r'[^A-Za-z0-9_]', '_', each.name)}"
        for place, each in enumerate(entry.state)
    ]
    returned = ", ".join("Tensor" for _ in entry.outputs)
    return f"({', '.join(arguments)}) -> {returned if len(entry.outputs) == 1 else f'({returned})'}"


class _Shell:
    """A ModelNew that holds tensors while it is called, and none between calls."""

    def __init__(self, entry: Entry, state: Sequence[torch.Tensor]) -> None:
        self.module = make_shell(entry)
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

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._known: dict[tuple[int, ...], _Shell] = {}

    def of(self, state: Sequence[torch.Tensor]) -> _Shell:
        """The shell for these tensors: what a kernel keeps of its weights is kept with it."""
        key = tuple(id(tensor) for tensor in state)
        known = self._known.get(key)
        if known is not None and known.holds(state):
            return known
        self._known = {key: each for key, each in self._known.items() if each.is_alive}
        self._known[key] = _Shell(self._entry, state)
        return self._known[key]
