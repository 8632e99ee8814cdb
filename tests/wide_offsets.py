"""Whether the 32-bit integers of a kernel may overflow: intervals over Triton's IR.

Each integer is followed from program ids, ranges and constants through arithmetic as an interval.
What is computed in 32 bits and reaches past them is found; what a loop carries, or what is read
from memory, is not known and taken to fit.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import product

Interval = tuple[int, int]
MOST = {"i8": 2**7, "i16": 2**15, "i32": 2**31, "i64": 2**63}

_MADE = re.compile(r"^\s*%(?P<name>[\w.]+) = (?P<op>[\w.]+) (?P<rest>.*)$")
_LOOP = re.compile(r"scf\.for (?:unsigned )?%([\w.]+) = %([\w.]+) to %([\w.]+) step")
_RESULT = re.compile(r"(?:->|to|:) (?:tensor<(?:\d+x)*)?(i\d+)>?(?: loc\(.*)?$")
_AXES = "xyz"


def overflows(ttir: str, grid: Sequence[int]) -> list[str]:
    """Lines whose result may pass the 32-bit integer that it is computed in.

    Args:
        ttir: of one kernel, as Triton compiled it.
        grid: programs along each axis of its launch.
    """
    known: dict[str, Interval] = {}
    found = []
    for line in ttir.splitlines():
        loop = _LOOP.search(line)
        if loop is not None and loop[2] in known and loop[3] in known:
            known[loop[1]] = (known[loop[2]][0], max(known[loop[2]][0], known[loop[3]][1] - 1))
        made = _MADE.match(line)
        width = _RESULT.search(line.split(" loc(")[0])
        if made is None or width is None or width[1] not in MOST:
            continue
        interval = _interval(made["op"], made["rest"], known, grid)
        if interval is None:
            continue
        low, high = interval
        most = MOST[width[1]]
        if width[1] == "i32" and (low < -most or high >= most):
            found.append(f"{line.split(' loc(')[0].strip()}  # {low}..{high}")
        known[made["name"]] = (max(low, -most), min(high, most - 1))
    return found


def _interval(
    op: str, rest: str, known: Mapping[str, Interval], grid: Sequence[int]
) -> Interval | None:
    """What an operation makes; None where it is not known."""
    if op == "arith.constant":
        number = re.match(r"(?:dense<)?(-?\d+)>? :", rest)
        return (int(number[1]), int(number[1])) if number else None
    if op == "tt.get_program_id":
        return 0, (*grid, 1, 1)[_AXES.index(rest[0])] - 1
    if op == "tt.make_range":
        end, start = (int(re.search(rf"{name} = (\d+)", rest)[1]) for name in ("end", "start"))
        return start, end - 1
    names = re.findall(r"%([\w.]+)", rest.split(" : ")[0])
    if op == "arith.select":
        names = names[1:]
    if not names or any(name not in known for name in names):
        return _of_division(op, names, known)
    given = [known[name] for name in names]
    if op in _PASSED_ON:
        return given[0]
    if op == "arith.select":
        return min(low for low, _ in given), max(high for _, high in given)
    if op in _CORNERS and len(given) == 2:
        corners = [_CORNERS[op](a, b) for a, b in product(*given)]
        return min(corners), max(corners)
    return _of_division(op, names, known)


_PASSED_ON = {
    f"{dialect}.{name}"
    for dialect, names in {
        "tt": ("splat", "broadcast", "expand_dims", "reshape", "trans"),
        "arith": ("extsi", "extui", "trunci", "index_cast"),
    }.items()
    for name in names
}
_CORNERS = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.minsi": min,
    "arith.maxsi": max,
    "arith.shli": lambda a, b: a << max(b, 0),
    "arith.shrsi": lambda a, b: a >> max(b, 0),
}


def _of_division(op: str, names: Sequence[str], known: Mapping[str, Interval]) -> Interval | None:
    """What is left of a division, or what is cut off, by a positive number."""
    low, high = known.get(names[-1], (0, 0)) if names else (0, 0)
    if low <= 0:
        return None
    if op in ("arith.remsi", "arith.remui"):
        first = known.get(names[0])
        if first is not None and first[0] >= 0:
            return 0, min(first[1], high - 1)
        return -(high - 1), high - 1
    if op in ("arith.divsi", "arith.divui") and names[0] in known:
        corners = [
            int(a / b) if abs(a) < 2**52 else a // b
            for a, b in product(known[names[0]], (low, high))
        ]
        return min(corners), max(corners)
    return None
