"""A copy of a module whose functions use the copy.

`copy.deepcopy` leaves functions as they are: a lambda that a constructor keeps, as
`self.mlpf = lambda x: m.c_fc(x)` with m = self.mlp, goes on using the layers of the original.
"""

import copy
from types import CellType, FunctionType

import torch


def copy_module(module: torch.nn.Module) -> torch.nn.Module:
    """A deep copy; what functions among its attributes have enclosed is what was copied."""
    copies: dict[int, object] = {}
    copied = copy.deepcopy(module, copies)
    for each in copied.modules():
        for name, value in list(vars(each).items()):
            if isinstance(value, FunctionType) and value.__closure__:
                vars(each)[name] = _rebound(value, copies)
    return copied


def _rebound(function: FunctionType, copies: dict[int, object]) -> FunctionType:
    """The function with the copies of what it has enclosed, as far as there are any."""
    cells = tuple(_copied_cell(cell, copies) for cell in function.__closure__ or ())
    rebound = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
    )
    rebound.__kwdefaults__ = function.__kwdefaults__
    return rebound


def _copied_cell(cell: CellType, copies: dict[int, object]) -> CellType:
    try:
        enclosed = cell.cell_contents
    except ValueError:  # empty
        return cell
    return CellType(copies[id(enclosed)]) if id(enclosed) in copies else cell
