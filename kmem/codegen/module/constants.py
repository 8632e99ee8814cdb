"""The constants of a module: one block at its top, and the same block for other sizes.

Kernels and launchers read sizes, strides and tiles as constants of the module, so that a launch
passes tensors alone. A check at other sizes puts another block in the place of the module's own
(`swap_constants`) and changes nothing else: the kernels that are checked are those that ship.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from kmem.codegen.chains.ports import STEPS_ALONG
from kmem.errors import RecipeError
from kmem.host.syntax import parse_python
from kmem.records import Kernel

#: The lines around the block.
BEGIN = "# --- constants: sizes, strides and tiles\n"
END = "# --- end of constants\n"

#: What makes a constant one that kernels may read.
CONSTANT = '''\
def constant(value):
    """A number that kernels read; a compiler must know it as such, the interpreter must not."""
    return value if _INTERPRETED else tl.constexpr(value)
'''


#: What the short names of row and scan kernels stand for.
_MEANINGS = {
    "_R": "elements of a row",
    "_KI": "rows that lie side by side",
    "_ROWS": "rows in all",
    "_BK": "rows of a tile",
    "_BR": "elements of a row in a tile",
    "_SPLIT": "parts that a row is cut into",
    "_SEGMENT": "elements of a part",
    "_STEPS": "tiles of a part",
    "_INNER_BLOCKS": "tiles of rows that lie side by side",
    "_LANES": "elements of a vector of 16 bytes",
    "_LEAD": "rows that writers stay behind",
    "_SIZES": "of the kept axes",
    "_STRIDES": "of loads and the store along the kept axes",
    "_PLACES": "of loads and the store: step, first, and the positions from and to",
}
_STRIDE = re.compile(r"_S_(?:V_)?(?P<value>\w+)_(?P<axis>\d+|R)$")

#: Steps of what is handed in at a port, see chains/ports.py.
_STEPS = re.compile(r"_STEPS(?P<side>_[AB])?$")


def _meaning(name: str, value: str) -> str:
    """A comment behind a constant whose name is short."""
    steps = _STEPS.search(name)
    if steps is not None and value.startswith("(("):
        read = f"extra{(steps['side'] or '').lower()}"
        return f"  # {read} along {', '.join(STEPS_ALONG)}"
    stride = _STRIDE.search(name)
    if stride is not None:
        axis = "the row" if stride["axis"] == "R" else f"axis {stride['axis']}"
        return f"  # step of {stride['value'].lower()} along {axis}"
    meaning = next((text for end, text in _MEANINGS.items() if name.endswith(end)), None)
    return f"  # {meaning}" if meaning else ""


@dataclass
class Constants:
    """Names and their values, as text, at every workload; equal names have equal values."""

    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    for_kernels: set[str] = field(default_factory=set)

    def add(self, name: str, texts: Sequence[str], *, for_kernels: bool = False) -> str:
        """Add a constant; its name, which is another one if this is taken by other values."""
        wanted, number = name, 2
        while wanted in self.values and (
            self.values[wanted] != tuple(texts) or (wanted in self.for_kernels) != for_kernels
        ):
            wanted = f"{name}_{number}"
            number += 1
        self.values[wanted] = tuple(texts)
        if for_kernels:
            self.for_kernels.add(wanted)
        return wanted

    def write(self, workload: int = 0, *, only: set[str] | None = None) -> str:
        """The block at one workload, without the lines around it.

        Args:
            only: leave out names that are not among these.
        """
        lines = []
        for name, texts in self.values.items():
            if only is None or name in only:
                value = texts[workload]
                made = f"constant({value})" if name in self.for_kernels else value
                lines.append(f"{name} = {made}{_meaning(name, value)}\n")
        return "".join(lines)


def swap_constants(source: str, block: str) -> str:
    """A module with another block of constants.

    Args:
        source: text of an emitted module.
        block: assignments to the names of its own block, as `Constants.write` gives them.
    Raises RecipeError: if the module has no block, or the other one holds anything else.
    """
    if BEGIN not in source or END not in source:
        raise RecipeError("The module has no block of constants; only emitted modules have one")
    head, rest = source.split(BEGIN, 1)
    own, tail = rest.split(END, 1)
    if _names(block) != _names(own):
        raise RecipeError("The constants are not those of this module; emit both anew")
    return f"{head}{BEGIN}{block}{END}{tail}"


def source_at(kernel: Kernel, workload: str) -> str:
    """A kernel's text, at the small workload with its own constants for that."""
    if workload == "small" and kernel.small_constants:
        return swap_constants(kernel.source, kernel.small_constants)
    return kernel.source


def keeps_constants(source: str, block: str) -> bool:
    """Whether a text, an edited module perhaps, still takes another block of constants."""
    try:
        swap_constants(source, block)
    except (RecipeError, SyntaxError, ValueError):
        return False
    return True


def _names(block: str) -> list[str]:
    names = []
    for statement in parse_python(block).body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if not isinstance(target, ast.Name) or not _is_plain(statement.value):
            raise RecipeError("A block of constants gives names to numbers and does nothing else")
        names.append(target.id)
    return names


def _is_plain(value: ast.expr) -> bool:
    """Whether an expression is made of literals, dtypes and `constant`: it runs no other code."""
    if isinstance(value, ast.Tuple | ast.List):
        return all(map(_is_plain, value.elts))
    if isinstance(value, ast.UnaryOp):
        return _is_plain(value.operand)
    if isinstance(value, ast.IfExp):
        return all(map(_is_plain, (value.test, value.body, value.orelse)))
    if isinstance(value, ast.Call):
        is_constant = isinstance(value.func, ast.Name) and value.func.id == "constant"
        return is_constant and not value.keywords and all(map(_is_plain, value.args))
    if isinstance(value, ast.Attribute):
        return isinstance(value.value, ast.Name) and value.value.id == "torch"
    return isinstance(value, ast.Constant) or (
        isinstance(value, ast.Name) and value.id == "_INTERPRETED"
    )
