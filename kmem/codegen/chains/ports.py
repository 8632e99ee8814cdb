"""Ports: where an anchor's kernel calls a function that it is handed.

An anchor is static text. At each of its ports the kernel takes a function, the pointers that the
function reads as one tuple, and their steps along both batch axes, rows and columns as another:

    if AFTER is not None:
        acc = AFTER(acc, batch, rows, columns, extra, STEPS, M, N, BATCH_INNER)
    if PLACE is not None:
        rows, columns = PLACE(rows, columns, N)

Where AFTER leaves one row of a tile, or one value of each of its windows, PLACE says where these
belong. It is a function of its own, so that no address follows from one that is given pointers:
compilers that look for what a kernel writes would take these for written. Such a function is
written from the statements of an epilogue or an opening (`write_function`), and a launch passes it
(`port_arguments`): one kernel serves all launches, whatever they hand in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kmem.codegen.chains.epilogue import Epilogue
from kmem.codegen.text.definitions import write_definition

#: Elements of the inner tuples of a port's steps.
STEPS_ALONG = ("outer batches", "inner batches", "rows", "columns")


@dataclass(frozen=True, slots=True)
class Port:
    """A place in a kernel's text at which it calls a function.

    `function`, `extra` and `steps` are parameters of the kernel, `pointer` what a launcher calls
    the pointers before their number. `moves` is whether the kernel takes PLACE, too.
    """

    function: str
    extra: str
    steps: str
    pointer: str
    moves: bool = False


AFTER = Port("AFTER", "extra", "STEPS", "e", moves=True)
#: The same where values stay where they are; and where pointers are named apart from those.
IN_PLACE = Port("AFTER", "extra", "STEPS", "e")
AFTER_LOAD = Port("AFTER", "extra", "STEPS", "p")
BEFORE_A = Port("BEFORE_A", "extra_a", "STEPS_A", "p")
BEFORE_B = Port("BEFORE_B", "extra_b", "STEPS_B", "q")

#: What is handed in at each port; a port that is left out, or has no statements, stays empty.
Functions = Mapping[Port, Epilogue]

_PARAMETERS = (
    "acc, batch, rows, columns, extra",
    "STEPS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BATCH_INNER: tl.constexpr",
)


def write_function(port: Port, chain: Epilogue) -> tuple[str, str]:
    """The name and the text of the function that runs a chain's statements on `acc`."""
    lines = [f"{name} = {text}" for name, text in chain.before_reads]
    read_at = chain.read_at or (("columns", "N"),) * len(chain.operands)
    for index, (columns, count) in enumerate(read_at):
        lines += _load_operand(index, columns, count)
    lines += [f"{name} = {text}" for name, text in chain.statements]
    lines.append(f"return {chain.statements[-1][0]}")
    name = _function_name(port, chain)
    says = "What is made of a tile of values."
    return name, write_definition(name, _PARAMETERS, lines, says)


def write_place(chain: Epilogue) -> tuple[str, str]:
    """The name and the text of the function that says where a chain's values belong."""
    lines = [*(f"{name} = {text}" for name, text in chain.places), "return rows, columns"]
    name = f"kmem_place{chain.suffix}"
    says = "The rows and columns where what is left of a tile belongs."
    return name, write_definition(name, ("rows, columns, N: tl.constexpr",), lines, says)


def port_arguments(
    port: Port, chain: Epilogue, steps: Sequence[tuple[int, int, int, int]]
) -> tuple[str, ...]:
    """Keyword arguments of a launch that hands a chain in at a port, in groups.

    Args:
        steps: of each operand along both batch axes, rows and columns, in elements.
    """
    pointers = "".join(f"{port.pointer}{index}, " for index in range(len(steps))).rstrip()
    function = _function_name(port, chain) if chain.statements else None
    place = f"kmem_place{chain.suffix}" if chain.places else None
    return (
        f"{port.extra}=({pointers}), {port.function}={function}",
        f"{port.steps}={tuple(steps)!r}" + (f", PLACE={place}" if port.moves else ""),
    )


def hand_in(
    kernels: Sequence[tuple[str, str]], functions: Functions
) -> tuple[tuple[str, str], ...]:
    """Kernels with ports, after the functions that they are handed."""
    filled = [(port, chain) for port, chain in functions.items() if chain.statements]
    written = [helper for _, chain in filled for helper in chain.helpers]
    written += [write_function(port, chain) for port, chain in filled]
    written += [write_place(chain) for _, chain in filled if chain.places]
    return tuple(dict.fromkeys((*written, *kernels)))


def _function_name(port: Port, chain: Epilogue) -> str:
    return f"kmem_{port.function.split('_')[0].lower()}{chain.suffix}"


def _load_operand(index: int, columns: str, count: str) -> list[str]:
    """The tile of one operand at so many columns."""
    steps = ", ".join(f"STEPS[{index}][{axis}]" for axis in range(len(STEPS_ALONG)))
    return [
        f"x{index} = kmem_load_operand(",
        f"    extra[{index}], batch // BATCH_INNER, batch % BATCH_INNER, rows, "
        f"{columns}, M, {count},",
        f"    {steps},",
        ")",
    ]
