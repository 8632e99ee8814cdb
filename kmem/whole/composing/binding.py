"""A composed model bound to a model of the user's, and taken away again.

Only `forward` of single instances is replaced. A call that the composed graph was not made for
(other shapes, dtypes or nesting, autocast, another device or mode, gradients recorded where it was
not made for training) runs the module's own code, and `status` says why.
"""

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kmem.errors import OutputError
from kmem.whole.composing.compiled_rest import CompiledRest, RestPiece, piece_operator
from kmem.whole.composing.compose import COMPILED_REST, EAGER_REST, GRAPH, KERNELS, MANIFEST
from kmem.whole.composing.in_place import BoundForward, Standing
from kmem.whole.composing.recompute import run_recomputed
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
        """Names of the pieces that have kernels."""
        names = (each["kernel"] for part in self.data["segments"] for each in part["pieces"])
        return tuple(dict.fromkeys(names))

    @property
    def rest(self) -> str:
        """How what is outside of the kernels runs: as eager operators, or compiled."""
        return str(self.data["rest"])

    def with_rest(self, rest: str) -> "Composed":
        """The same with its rest run in another way."""
        return Composed(self.directory, {**self.data, "rest": rest})


def read_composed(directory: Path) -> Composed | None:
    """The composed model in a directory, or in the run directory that it is; None without one.

    Raises OutputError: if there is a damaged one.
    """
    for place in (directory, directory / "composed"):
        if (place / MANIFEST).is_file():
            try:
                return Composed(place, json.loads((place / MANIFEST).read_text(encoding="utf-8")))
            except (OSError, ValueError) as ex:
                raise OutputError(f"{place} holds no composed model: {ex}; run it again") from ex
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
    graph = _load(composed.directory / GRAPH)
    forwards = []
    for data in composed.data["segments"]:
        module = model.get_submodule(data["path"])
        if isinstance(vars(module).get("forward"), BoundForward):
            raise ValueError(
                f"{data['path'] or 'The model'} has kernels already; call undo() on their handle"
            )
        _check_state(model, data)
        places = [composed.directory / KERNELS / f"{each['kernel']}.py" for each in data["pieces"]]
        pieces = [
            _Piece(
                _load(place),
                "Model" if only is not None and each["kernel"] not in only else kernel_class,
                each,
                model,
                training=data["training"],
            )
            for each, place in zip(data["pieces"], places, strict=True)
        ]
        function = getattr(graph, data["function"])
        rest = None
        if composed.rest == COMPILED_REST:
            names = [each["name"] for each in data["state"]]
            parts = [
                piece.for_compiler(place, names)
                for piece, place in zip(pieces, places, strict=True)
            ]
            rest = CompiledRest(function, parts)
        forwards.append(SegmentForward(model, module, data, function, pieces, rest))
    return forwards


def _load(place: Path) -> ModuleType:
    name = f"kmem_composed_{abs(hash(str(place.resolve()))):x}_{place.stem}"
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None or not place.is_file():
        raise OutputError(f"{place} is gone; run the model again")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    return model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]


def _check_state(model: nn.Module, data: Mapping[str, Any]) -> None:
    for each in data["state"]:
        try:
            found = getattr(*_owner(model, each["name"]))
        except AttributeError:
            found = None
        if not isinstance(found, torch.Tensor) or list(found.shape) != each["shape"]:
            raise ValueError(
                f"The model has no {each['name']} of shape {each['shape']}: kernels were made for "
                "another one"
            )


class _Piece:
    """A kernel's module on the parameters of the model that it is in."""

    def __init__(
        self,
        source: ModuleType,
        kind: str,
        data: Mapping[str, Any],
        model: nn.Module,
        *,
        training: bool,
    ) -> None:
        with torch.device("meta"):
            self._shell: nn.Module = getattr(source, kind)(*data["init"])
            self._original: nn.Module = source.Model(*data["init"])
        self._shell.train(training)
        self._original.train(training)
        self._kind, self._data = kind, data
        self._names = list(data["state"])
        self._owners = [_owner(model, name) for name in data["state"].values()]

    def __call__(self, *inputs: Any) -> Any:
        state = [getattr(module, name) for module, name in self._owners]
        needs = torch.is_grad_enabled() and any(
            isinstance(each, torch.Tensor) and each.requires_grad for each in (*inputs, *state)
        )
        if not needs:
            return self._run(self._shell, inputs, state)
        kernel, original = (partial(self._run, each) for each in (self._shell, self._original))
        return run_recomputed(kernel, original, inputs, state)

    def for_compiler(self, kernel: Path, state_names: Sequence[str]) -> RestPiece:
        """What a compiler takes it for: an operator, or what stands in the place of one.

        Args:
            kernel: its file.
            state_names: of all state of the graph that it is in.
        """
        places = tuple(map(state_names.index, self._data["state"].values()))
        if self._kind == "ModelNew":
            return RestPiece(partial(piece_operator, self._data, kernel), places)
        return RestPiece(partial(partial, self._run, self._shell), places)

    def _run(self, shell: nn.Module, inputs: Sequence[Any], state: Sequence[torch.Tensor]) -> Any:
        for name, value in zip(self._names, state, strict=True):
            is_parameter = name in shell._parameters
            held: dict[str, Any] = shell._parameters if is_parameter else shell._buffers
            held[name] = value
        return shell(*inputs)


class SegmentForward(BoundForward):
    """A composed graph in the place of a module's forward."""

    def __init__(
        self,
        model: nn.Module,
        module: nn.Module,
        data: Mapping[str, Any],
        function: Callable[..., Any],
        pieces: Sequence[_Piece],
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
        self._state = [(*_owner(model, each["name"]), _dtype(each)) for each in data["state"]]
        self._ties = [[_owner(model, name) for name in names] for names in data["ties"]]

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
