"""A composed model bound to a model of the user's, and taken away again.

Only `forward` of single instances is replaced. A call that the composed graph was not made for
(other shapes, dtypes or nesting, autocast, another device or mode, gradients recorded where it was
not made for training) runs the module's own code, and `status` says why.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kmem.errors import OutputError
from kmem.whole.composing.bound_piece import BoundPiece, Halves, load_module, owner_of
from kmem.whole.composing.compiled_rest import CompiledRest
from kmem.whole.composing.compose import (
    COMPILED_REST,
    EAGER_REST,
    GRAPH,
    KERNELS,
    MANIFEST,
    VERSION,
)
from kmem.whole.composing.in_place import BoundForward, Standing
from kmem.whole.graphs.capture import inner_hooks

#: What is known of a tensor among the arguments: its shape, strides and dtype.
_TENSOR = 3


@dataclass(frozen=True, slots=True)
class Composed:
    """A composed model on disk."""

    directory: Path
    data: Mapping[str, Any]

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the pieces that have kernels, and of those whose backward has one."""
        pieces = [each for part in self.data["segments"] for each in part["pieces"]]
        halves = [half for each in pieces for half in (each, each["backward"]) if half is not None]
        return tuple(dict.fromkeys(half["kernel"] for half in halves if half["is_kernel"]))

    @property
    def rest(self) -> str:
        """How what is outside of the kernels runs: as eager operators, or compiled."""
        return str(self.data["rest"])

    def with_rest(self, rest: str) -> "Composed":
        """The same with its rest run in another way."""
        return Composed(self.directory, {**self.data, "rest": rest})


def read_composed(directory: Path) -> Composed | None:
    """The composed model in a directory, or in the run directory that it is; None without one.

    Raises OutputError: if there is a damaged one, or one of another version.
    """
    for place in (directory, directory / "composed"):
        if (place / MANIFEST).is_file():
            try:
                data = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
            except (OSError, ValueError) as ex:
                raise OutputError(f"{place} holds no composed model: {ex}; run it again") from ex
            if data.get("version") != VERSION:
                raise OutputError(f"{place} is of another version of kmem; run the model again")
            return Composed(place, data)
    return None


class ModelHandle:
    """What was bound to a model; also a context manager that undoes it at its end."""

    def __init__(self, forwards: Sequence[BoundForward]) -> None:
        self.forwards = list(forwards)

    def __enter__(self) -> "ModelHandle":
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()

    @property
    def replaced(self) -> list[str]:
        """Paths of the modules that are replaced; "" is the model itself."""
        return [forward.path for forward in self.forwards]

    def undo(self) -> None:
        """Give every module the very forward that it had; doing so again changes nothing."""
        for forward in self.forwards:
            forward.remove()
        self.forwards = []

    def status(self) -> list[Standing]:
        """What serves which calls, what was passed on, and why."""
        return [standing for forward in self.forwards for standing in forward.standings()]

    def __str__(self) -> str:
        return "\n".join(map(str, self.status())) or "nothing is replaced"


def bind(
    model: nn.Module,
    composed: Composed,
    *,
    only: Sequence[str] | None = None,
    kernel_class: str = "ModelNew",
) -> ModelHandle:
    """Bind a composed model to a model, on its device and in the mode in which it will run.

    Args:
        only: names of the pieces whose kernels are used; the others run what they replace.
        kernel_class: "Model" runs what every kernel replaces, to prove what is around them.

    Raises ValueError: if the model is another one, or has kernels already.
    """
    forwards = forwards_of(model, composed, only=only, kernel_class=kernel_class)
    for forward in forwards:
        forward.install()
    return ModelHandle(forwards)


@contextmanager
def installed(forwards: Sequence["SegmentForward"]) -> Iterator[None]:
    """Have them in their places for a while."""
    for each in forwards:
        each.install()
    try:
        yield
    finally:
        for each in forwards:
            each.remove()


def why_not_compiled(forwards: Sequence["SegmentForward"]) -> str:
    """Why a rest that was to be compiled ran as eager operators; empty if it did not."""
    for each in forwards:
        if each.rest is not None and (each.rest.fault or not each.rest.compilations):
            return each.rest.fault or "it was not called where it could be compiled"
    return ""


def forwards_of(
    model: nn.Module,
    composed: Composed,
    *,
    only: Sequence[str] | None = None,
    kernel_class: str = "ModelNew",
) -> list["SegmentForward"]:
    """What `bind` puts into a model, not yet in its place.

    Raises ValueError: if the model is another one, or has kernels already.
    """
    graph = load_module(composed.directory / GRAPH)
    forwards = []
    for data in composed.data["segments"]:
        module = model.get_submodule(data["path"])
        if isinstance(vars(module).get("forward"), BoundForward):
            raise ValueError(
                f"{data['path'] or 'The model'} has kernels already; call undo() on their handle"
            )
        _check_state(model, data)
        place = composed.directory / KERNELS
        chosen = composed.kernels if only is None else only
        halves = Halves(place, chosen, kernel_class, data["training"])
        pieces = [BoundPiece(halves, each, model) for each in data["pieces"]]
        function = getattr(graph, data["function"])
        rest = None
        if composed.rest == COMPILED_REST:
            names = [each["name"] for each in data["state"]]
            rest = CompiledRest(function, [piece.for_compiler(names) for piece in pieces])
        forwards.append(SegmentForward(model, module, data, function, pieces, rest))
    return forwards


def _check_state(model: nn.Module, data: Mapping[str, Any]) -> None:
    for each in data["state"]:
        try:
            found = getattr(*owner_of(model, each["name"]))
        except AttributeError:
            found = None
        if not isinstance(found, torch.Tensor) or list(found.shape) != each["shape"]:
            raise ValueError(
                f"The model has no {each['name']} of shape {each['shape']}: kernels were made for "
                "another one"
            )


class SegmentForward(BoundForward):
    """A composed graph in the place of a module's forward."""

    def __init__(
        self,
        model: nn.Module,
        module: nn.Module,
        data: Mapping[str, Any],
        function: Callable[..., Any],
        pieces: Sequence[BoundPiece],
        rest: CompiledRest | None = None,
    ) -> None:
        super().__init__(data["path"], module)
        self._function, self._pieces = function, pieces
        self.rest = rest  # None: it is eager
        training = data["training"]
        self._has_backward = data["backward"]
        self._modes = [
            (each, training is (name not in data["modes"]))
            for name, each in module.named_modules(prefix=self.path)
        ]
        self._inner_hooks, self._hooks = inner_hooks(module), data["hooks"]
        self._inputs = pytree.treespec_loads(data["inputs"])
        self._outputs = pytree.treespec_loads(data["outputs"])
        self._leaves = data["leaves"]
        self._given = [_expected(each) for each in data["given"]]
        self._recorded = [each["recorded"] for each in (*data["given"], *data["state"])]
        self._state = [(*owner_of(model, each["name"]), _dtype(each)) for each in data["state"]]
        self._ties = [[owner_of(model, name) for name in names] for names in data["ties"]]

    def standings(self) -> list[Standing]:
        return [self.standing("")]

    def standing(self, bucket: str) -> Standing:
        """How it has fared at shapes that have such a name."""
        rest = EAGER_REST
        if self.rest is not None:
            rest = f"eager, for {self.rest.fault}" if self.rest.fault else COMPILED_REST
        kernels = len(self._pieces)
        return Standing(self.path, bucket, kernels, self.served, self.passed_on, self.reason, rest)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the tensors that it takes."""
        return tuple(each[0] for each in self._given if len(each) == _TENSOR)

    def find(self, leaves: Sequence[Any], spec: pytree.TreeSpec) -> Callable[[], Any] | str:
        state = [getattr(module, name) for module, name, _ in self._state]
        return self._objection(leaves, spec, state) or partial(self._answer, leaves, state)

    def _answer(self, leaves: Sequence[Any], state: Sequence[torch.Tensor]) -> Any:
        made = None if self.rest is None else self.rest.answer(state, leaves)
        if made is None:
            made = self._function(state, self._pieces, leaves)
        results = [leaf[0] if isinstance(leaf, list) else made[leaf] for leaf in self._leaves]
        return pytree.tree_unflatten(results, self._outputs)

    def _objection(
        self, leaves: Sequence[Any], spec: pytree.TreeSpec, state: Sequence[torch.Tensor]
    ) -> str:
        """Why this call runs the module's own code; empty if the graph can answer it."""
        if any(each.training is not training for each, training in self._modes):
            return "the module is in another mode than when it was captured"
        if sum(map(len, self._inner_hooks)) != self._hooks:
            return "submodules have other hooks than when they were captured"
        if spec != self._inputs:
            return "it is called with arguments that are nested otherwise"
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        for leaf, expected in zip(leaves, self._given, strict=True):
            found = _found(leaf)
            if found != expected:
                return f"an argument is {found}, captured was {expected}"
        for tensor, (_, name, dtype) in zip(state, self._state, strict=True):
            if tensor.dtype != dtype:
                return f"{name} is of {tensor.dtype}, captured was {dtype}"
        for (first, name), *others in self._ties:
            if any(getattr(owner, other) is not getattr(first, name) for owner, other in others):
                return f"{name} has several names, and was one tensor when it was captured"
        is_recorded = torch.is_grad_enabled() and any(
            each.requires_grad for each in (*tensors, *state)
        )
        if is_recorded and not self._has_backward:
            return "gradients are recorded, for which it was not made; run it with --backward"
        if is_recorded and any(
            isinstance(each, torch.Tensor) and each.requires_grad and not was_recorded
            for each, was_recorded in zip((*leaves, *state), self._recorded, strict=True)
        ):
            return "gradients are recorded of what had none when it was captured"
        if len({each.device for each in (*tensors, *state)}) > 1:
            return "tensors are on several devices"
        if tensors and torch.is_autocast_enabled(tensors[0].device.type):
            return "autocast is on"
        return ""


def _dtype(each: Mapping[str, Any]) -> torch.dtype:
    return getattr(torch, each["dtype"])


def _expected(each: Mapping[str, Any]) -> tuple[Any, ...]:
    if "value" in each:
        return type(each["value"]), each["value"]
    return tuple(each["shape"]), tuple(each["stride"]), _dtype(each)


def _found(leaf: Any) -> tuple[Any, ...]:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype
    return type(leaf), leaf
