"""A piece of a composed model: its modules on the parameters of the model that it is in."""

import importlib.util
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from kmem.errors import OutputError
from kmem.whole.composing.compiled_rest import RestPiece, piece_operator
from kmem.whole.composing.trained import Trained


def load_module(place: Path) -> ModuleType:
    """A file of a composed directory as a module.

    Raises OutputError: if it is gone.
    """
    name = f"kmem_composed_{abs(hash(str(place.resolve()))):x}_{place.stem}"
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None or not place.is_file():
        raise OutputError(f"{place} is gone; run the model again")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def owner_of(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that holds a parameter or buffer of a path, and what that calls it."""
    return model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Halves:
    """Where the modules of pieces lie, and of which a kernel's class is used."""

    directory: Path
    chosen: Collection[str]
    kernel_class: str
    training: bool

    def place(self, half: Mapping[str, Any]) -> Path:
        """The file of a half, from its row in composed.json."""
        return self.directory / f"{half['kernel']}.py"

    def kind(self, half: Mapping[str, Any] | None) -> str:
        """The class of its module that runs."""
        is_used = half is not None and half["is_kernel"] and half["kernel"] in self.chosen
        return self.kernel_class if is_used else "Model"

    def build(self, half: Mapping[str, Any]) -> nn.Module:
        """A module without state."""
        with torch.device("meta"):
            made: nn.Module = getattr(load_module(self.place(half)), self.kind(half))(*half["init"])
        return made.train(self.training)


class BoundPiece:
    """A piece's modules on the parameters of the model that it is in.

    Where gradients are recorded, a piece of which neither half is a kernel runs as autograd has it.
    """

    def __init__(self, halves: Halves, data: Mapping[str, Any], model: nn.Module) -> None:
        self._shell = halves.build(data)
        self._kind, self._data = halves.kind(data), data
        self._place = halves.place(data)
        self._names = list(data["state"])
        self._owners = [owner_of(model, name) for name in data["state"].values()]
        later = data["backward"]
        self._trained: Trained | None = None
        if later is not None and (halves.kind(later), self._kind) != ("Model", "Model"):
            self._trained = Trained(
                partial(self._run, self._shell),
                halves.build(later),
                later["outputs"],
                tuple((kind, place) for kind, place in later["given"]),
                tuple(later["recorded"]),
                tuple(later["takes"]),
                tuple(later["gradients"]),
            )

    def __call__(self, *inputs: Any) -> Any:
        state = [getattr(module, name) for module, name in self._owners]
        needs = torch.is_grad_enabled() and any(
            isinstance(each, torch.Tensor) and each.requires_grad for each in (*inputs, *state)
        )
        if not needs:
            return self._own(self._run(self._shell, inputs, state))
        if self._trained is not None:
            return self._own(self._trained.run(inputs, state))
        if self._data["backward"] is not None or self._kind == "Model":
            return self._own(self._run(self._shell, inputs, state))
        with torch.no_grad():  # no output has a gradient
            return self._own(self._run(self._shell, inputs, state))

    def _own(self, made: Any) -> Any:
        """What the piece makes, without what its forward saves."""
        later = self._data["backward"]
        if later is None:
            return made
        outputs = made[: later["outputs"]] if isinstance(made, tuple) else (made,)
        return outputs if self._data["returns_tuple"] else outputs[0]

    def for_compiler(self, state_names: Sequence[str]) -> RestPiece:
        """What a compiler takes it for: an operator, or what stands in the place of one.

        Args:
            state_names: of all state of the graph that it is in.
        """
        places = tuple(map(state_names.index, self._data["state"].values()))
        if self._kind == "ModelNew":
            return RestPiece(partial(piece_operator, self._data, self._place), places)
        return RestPiece(partial(partial, self._run, self._shell), places)

    def _run(self, shell: nn.Module, inputs: Sequence[Any], state: Sequence[torch.Tensor]) -> Any:
        for name, value in zip(self._names, state, strict=True):
            is_parameter = name in shell._parameters
            held: dict[str, Any] = shell._parameters if is_parameter else shell._buffers
            held[name] = value
        return shell(*inputs)
