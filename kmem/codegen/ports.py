"""Ports: where an anchor's kernel calls a function that it is handed.

An anchor is static text. Its kernel takes the function as AFTER, the pointers that the function
reads as one tuple, `extra`, and their steps along both batch axes, rows and columns as another:

    if AFTER is not None:
        acc, rows, columns = AFTER(acc, batch, rows, columns, extra, STEPS, M, N, BATCH_INNER)

What comes back are the values and the places where they belong: a function that leaves one row of a
tile, or one value of each of its windows, says so by these. What follows an anchor is written as
such a function from its statements (`write_function`), a launch passes it (`port_arguments`), and
`hand_in` gives the kernels that take it names of their own, so that two sites whose functions
differ do not share a kernel. specialising.py then writes the function's name where the kernel calls
AFTER, and takes the tuples apart.
"""

import re
from collections.abc import Sequence

from kmem.codegen.epilogue import Epilogue

#: Elements of the inner tuples of STEPS.
STEPS_ALONG = ("outer batches", "inner batches", "rows", "columns")

_HEAD = '''@triton.jit
def {name}(
    acc, batch, rows, columns, extra,
    STEPS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BATCH_INNER: tl.constexpr,
):
    """What is made of a tile of values, and the rows and columns where it belongs."""
'''


def write_function(epilogue: Epilogue) -> tuple[str, str]:
    """The name and the text of the function that runs an epilogue's statements on `acc`."""
    lines = [line for index in range(len(epilogue.operands)) for line in _load_operand(index)]
    lines += [f"{name} = {text}" for name, text in epilogue.statements]
    lines.append(f"return {epilogue.statements[-1][0]}, rows, columns")
    name = _function_name(epilogue)
    return name, _HEAD.format(name=name) + "".join(f"    {line}\n" for line in lines)


def port_arguments(
    epilogue: Epilogue, steps: Sequence[tuple[int, int, int, int]], pointer: str = "e"
) -> tuple[str, ...]:
    """Keyword arguments of a launch that hands an epilogue in, in groups.

    Args:
        steps: of each operand along both batch axes, rows and columns, in elements.
        pointer: what the launcher's operands are called before their number.
    """
    pointers = "".join(f"{pointer}{index}, " for index in range(len(steps)))
    function = _function_name(epilogue) if epilogue.statements else None
    return f"extra=({pointers.rstrip()}), AFTER={function}", f"STEPS={tuple(steps)!r}"


def hand_in(kernels: Sequence[tuple[str, str]], epilogue: Epilogue) -> tuple[tuple[str, str], ...]:
    """Kernels that take an epilogue, under names of their own, after the functions that it is."""
    names = {name: name + epilogue.suffix for name, text in kernels if "AFTER" in text}
    functions = (*epilogue.helpers, write_function(epilogue)) if epilogue.statements else ()
    written = [(names.get(name, name), _renamed(text, names)) for name, text in kernels]
    return (*functions, *written)


def _renamed(text: str, names: dict[str, str]) -> str:
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")
    return pattern.sub(lambda match: names[match[0]], text) if names else text


def _function_name(epilogue: Epilogue) -> str:
    return f"kmem_after{epilogue.suffix}"


def _load_operand(index: int) -> list[str]:
    """The tile of one operand."""
    steps = ", ".join(f"STEPS[{index}][{axis}]" for axis in range(len(STEPS_ALONG)))
    return [
        f"x{index} = kmem_load_operand(",
        f"    extra[{index}], batch // BATCH_INNER, batch % BATCH_INNER, rows, columns, M, N,",
        f"    {steps},",
        ")",
    ]
