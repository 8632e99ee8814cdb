"""A kernel's ModelNew on the parameters and buffers of somebody's module.

The shell, a ModelNew made on no memory, gets the very dictionaries in which the module keeps its
parameters and buffers: whatever is loaded into the module, moved or replaced is what the kernel
reads at its next call.
"""

import copy
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import nn

from kmem.deploy.shipped.table import Entry, load_kernel


class CannotShare(Exception):
    """A kernel keeps state that the module does not have; the message names it."""


def make_shell(entry: Entry, kind: type[nn.Module] | None = None) -> nn.Module:
    """A ModelNew of an entry without memory, in the mode that the entry is for.

    Args:
        entry: whose kernel it is, if no other class is given.
        kind: another class with the same constructor, such as the module that it replaces.

    Raises CannotShare: if it needs memory, or holds tensors that are no parameters or buffers.
    """
    kind = kind or load_kernel(entry)
    try:
        with torch.device("meta"):
            shell = kind(*entry.init)
    except Exception as ex:  # noqa: BLE001  # a constructor raises anything at all
        raise CannotShare(f"{kind.__name__} cannot be made without memory: {ex}") from ex
    _follow_weights(shell)
    for path, module in shell.named_modules():
        for name, value in vars(module).items():
            if name not in ("_parameters", "_buffers", "_modules") and any(_tensors(value)):
                raise CannotShare(
                    f"{kind.__name__} keeps tensors in {path or 'itself'}.{name}, which is neither "
                    "parameter nor buffer"
                )
    return shell.train(entry.training)


def _follow_weights(shell: nn.Module) -> None:
    """Let recurrent layers list the parameters that they will have at each call.

    torch keeps a second list of them, which would still hold those without memory.
    """
    for module in shell.modules():
        if isinstance(module, nn.RNNBase):
            del vars(module)["_flat_weights"]
            module.__class__ = _listing(type(module))


@cache
def _listing(kind: type[nn.RNNBase]) -> type[nn.RNNBase]:
    def listed(layer: nn.RNNBase) -> list[torch.Tensor | None]:
        return [getattr(layer, name, None) for name in layer._flat_weights_names]

    # torch writes the list anew where it moves or copies a layer
    weights = property(listed, lambda layer, weights: None)
    return type(kind.__name__, (kind,), {"_flat_weights": weights})


def copy_shell(shell: nn.Module) -> nn.Module:
    """Another one that keeps nothing of what this one's kernel has kept; no tensor is made."""
    held = (*shell.parameters(), *shell.buffers())
    return copy.deepcopy(shell, {id(tensor): tensor for tensor in held})


def _tensors(value: Any) -> Iterator[bool]:
    if isinstance(value, torch.Tensor):
        yield True
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def share_state(shell: nn.Module, module: nn.Module) -> None:
    """Put the module's dictionaries of parameters and buffers in the place of the shell's.

    Raises CannotShare: if the shell has a parameter or buffer that the module has not.
    """
    theirs = dict(module.named_modules(remove_duplicate=False))
    for path, mine in shell.named_modules(remove_duplicate=False):
        for kind in ("_parameters", "_buffers"):
            names = vars(mine)[kind].keys()
            if not names:
                continue
            if path not in theirs or not names <= vars(theirs[path])[kind].keys():
                where = f"{path}." if path else ""
                raise CannotShare(f"the module lacks {where}{', '.join(sorted(names))}")
            vars(mine)[kind] = vars(theirs[path])[kind]


def holder_of(module: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """The dictionary of a module in which a parameter or buffer lies, and its key there."""
    last = name.rpartition(".")[2]
    owner = module.get_submodule(name.rpartition(".")[0])
    return (owner._parameters if last in owner._parameters else owner._buffers), last
