"""Calls as text, laid out: the launch of a kernel, an allocation, the function around them.

    write_launch("kmem_scale", 12, "x, y", "ROWS=64, COLUMNS=32", "num_warps=4")

gives `kmem_scale[(12,)](x, y, ROWS=64, COLUMNS=32, num_warps=4)` where that fits on a line, and
else a line, or as many as it takes, for each group of arguments.
"""

from collections.abc import Iterable, Iterator, Sequence
from textwrap import indent

from kmem.records import TensorSpec

#: Columns of a statement in the body of a launcher, which is indented once.
COLUMNS = 96
_OPENING, _CLOSING = "([{", ")]}"


def write_call(callee: str, *groups: str, columns: int = COLUMNS) -> str:
    """A call as one statement; each group holds some of its arguments, with commas between."""
    filled = [group for group in groups if group]
    line = f"{callee}({', '.join(filled)})"
    if len(line) <= columns:
        return line
    lines = [line for group in filled for line in _fill(_arguments(group), columns)]
    return "\n".join([f"{callee}(", *lines, ")"])


def write_launch(kernel: str, programs: int, *groups: str) -> str:
    """The launch of so many programs of a kernel."""
    return write_call(f"{kernel}[({programs},)]", *groups)


def write_allocation(name: str, spec: TensorSpec, like: str) -> str:
    """A statement that makes an uninitialised tensor with the strides of a spec.

    Args:
        like: the tensor whose dtype and device it has; places in rows are whole numbers.
    """
    dtype = "torch.int64" if spec.dtype == "int64" else f"{like}.dtype"
    kind = f"dtype={dtype}", f"device={like}.device"
    if spec.is_contiguous:
        return write_call(f"{name} = torch.empty", f"{spec.shape!r}", *kind)
    return write_call(f"{name} = torch.empty_strided", f"{spec.shape!r}, {spec.stride!r}", *kind)


def write_launch_function(parameters: Sequence[str], statements: Iterable[str]) -> str:
    """`launch` with these parameters: what an emission calls its launcher."""
    body = "".join(f"{statement}\n" for statement in statements)
    return f"def launch({', '.join(parameters)}):\n{indent(body, '    ')}"


def _fill(arguments: Iterable[str], columns: int) -> Iterator[str]:
    """Lines of arguments, as many on each as fit."""
    line = "   "
    for argument in arguments:
        if line.strip() and len(line) + len(argument) + 2 > columns:
            yield line
            line = "   "
        line += f" {argument},"
    yield line


def _arguments(group: str) -> Iterator[str]:
    """The arguments of a group; a comma within brackets parts none."""
    depth = start = 0
    for place, letter in enumerate(group):
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if letter == "," and depth == 0:
            yield group[start:place].strip()
            start = place + 1
    yield group[start:].strip()
