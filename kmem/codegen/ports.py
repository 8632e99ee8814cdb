"""Ports: where an anchor's kernel calls a function that it is handed.

An anchor is static text. At each of its ports the kernel takes a function, the pointers that the
function reads as one tuple, and their steps along both batch axes, rows and columns as another:

    if AFTER is not None:
        acc, rows, columns = AFTER(acc, batch, rows, columns, extra, STEPS, M, N, BATCH_INNER)

What comes back of AFTER are the values and the places where they belong: a function that leaves one
row of a tile, or one value of each of its windows, says so by these. BEFORE_A and BEFORE_B give
back values alone. Such a function is written from the statements of an epilogue or an opening
(`write_function`), a launch passes it (`port_arguments`), and `hand_in` gives the kernels that take
it names of their own, so that two sites whose functions differ do not share a kernel.
specialising.py then writes the function's name where the kernel calls its port, and takes the
tuples apart.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kmem.codegen.epilogue import Epilogue
from kmem.records import content_hash

#: Elements of the inner tuples of a port's steps.
STEPS_ALONG = ("outer batches", "inner batches", "rows", "columns")


@dataclass(frozen=True, slots=True)
class Port:
    """A place in a kernel's text at which it calls a function.

    `function`, `extra` and `steps` are parameters of the kernel, `pointer` what a launcher calls
    the pointers before their number. `moves` is whether the function says where values belong.
    """

    function: str
    extra: str
    steps: str
    pointer: str
    moves: bool = False


AFTER = Port("AFTER", "extra", "STEPS", "e", moves=True)
#: What AFTER is where a kernel reads, of which the launcher has another one for what it writes.
AFTER_LOAD = Port("AFTER", "extra", "STEPS", "p", moves=True)
BEFORE_A = Port("BEFORE_A", "extra_a", "STEPS_A", "p")
BEFORE_B = Port("BEFORE_B", "extra_b", "STEPS_B", "q")

#: What is handed in at each port; a port that is left out, or has no statements, stays empty.
Functions = Mapping[Port, Epilogue]

_HEAD = """@triton.jit
def {name}(
    acc, batch, rows, columns, extra,
    STEPS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BATCH_INNER: tl.constexpr,
):
"""
_MADE = '    """What is made of a tile of values."""\n'
_MOVED = '    """What is made of a tile of values, and the rows and columns where it belongs."""\n'


def write_function(port: Port, chain: Epilogue) -> tuple[str, str]:
    """The name and the text of the function that runs a chain's statements on `acc`."""
    lines = [line for index in range(len(chain.operands)) for line in _load_operand(index)]
    lines += [f"{name} = {text}" for name, text in chain.statements]
    value = chain.statements[-1][0]
    lines.append(f"return {value}, rows, columns" if port.moves else f"return {value}")
    name = _function_name(port, chain)
    head = _HEAD.format(name=name) + (_MOVED if port.moves else _MADE)
    return name, head + "".join(f"    {line}\n" for line in lines)


def port_arguments(
    port: Port, chain: Epilogue, steps: Sequence[tuple[int, int, int, int]]
) -> tuple[str, ...]:
    """Keyword arguments of a launch that hands a chain in at a port, in groups.

    Args:
        steps: of each operand along both batch axes, rows and columns, in elements.
    """
    pointers = "".join(f"{port.pointer}{index}, " for index in range(len(steps))).rstrip()
    function = _function_name(port, chain) if chain.statements else None
    return (
        f"{port.extra}=({pointers}), {port.function}={function}",
        f"{port.steps}={tuple(steps)!r}",
    )


def hand_in(
    kernels: Sequence[tuple[str, str]], functions: Functions
) -> tuple[tuple[str, str], ...]:
    """Kernels with ports under names of their own, after the functions that they are handed."""
    names = {name: ported_name((name, text), functions) for name, text in kernels}
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")
    filled = [(port, chain) for port, chain in functions.items() if chain.statements]
    written = [helper for _, chain in filled for helper in chain.helpers]
    written += [write_function(port, chain) for port, chain in filled]
    written += [
        (names[name], pattern.sub(lambda match: names[match[0]], text)) for name, text in kernels
    ]
    return tuple(dict.fromkeys(written))


def ported_name(kernel: tuple[str, str], functions: Functions) -> str:
    """What a kernel, given as name and text, is called where these are handed in."""
    name, text = kernel
    suffixes = [
        chain.suffix
        for port, chain in functions.items()
        if chain.statements and re.search(rf"\b{port.function}\b", text)
    ]
    if len(suffixes) > 1:
        return f"{name}_{content_hash(*suffixes)[:8]}"
    return name + "".join(suffixes)


def _function_name(port: Port, chain: Epilogue) -> str:
    return f"kmem_{'after' if port.moves else 'before'}{chain.suffix}"


def _load_operand(index: int) -> list[str]:
    """The tile of one operand."""
    steps = ", ".join(f"STEPS[{index}][{axis}]" for axis in range(len(STEPS_ALONG)))
    return [
        f"x{index} = kmem_load_operand(",
        f"    extra[{index}], batch // BATCH_INNER, batch % BATCH_INNER, rows, columns, M, N,",
        f"    {steps},",
        ")",
    ]
