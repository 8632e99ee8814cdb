"""How much one program of a kernel does, from Triton's own IR: bytes and FLOPs, loops included.

Sizes are constants in emitted kernels, and a launch says those that are arguments, so loops have
known bounds and can be multiplied out exactly; the machine code cannot tell.

Covered: loads, stores and atomic updates, through pointers and descriptors, and `tt.dot`, inside
nests of `scf.for`; both sides of a branch are counted, and elements that a mask leaves out, which
are told apart where masks.py knows them. An `if`
without an `else` that hangs on values that were loaded is the exception that a kernel provides for
(tiles that overflowed and are done again), and is left out. Not covered: loops with bounds known
only at run time and `while`: then nothing is reported rather than too little.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence

from kmem.profile.compile.lanes import sector_efficiencies
from kmem.profile.compile.masks import kept_shares

_LOCATION = re.compile(r" loc\((?:[^()]|\([^()]*\))*\)")
_CONSTANT = re.compile(r"^\s*(%[\w$.]+) = arith\.constant (-?\d+) : (?:i32|i64|index)")
_FOR = re.compile(r"scf\.for %[\w$.]+ = (%[\w$.]+) to (%[\w$.]+) step (%[\w$.]+)")
_LOAD = re.compile(
    r"= tt\.load .*: (?:tensor<(?P<shape>(?:\d+x)*)!tt\.ptr<(?P<type>\w+)|!tt\.ptr<(?P<scalar>\w+))"
)
_DESCRIPTOR = re.compile(r"= tt\.descriptor_load .*-> tensor<(?P<shape>(?:\d+x)*)(?P<type>\w+)>")
_STORE = re.compile(
    r"tt\.(?:store|atomic_rmw|atomic_cas) .*?: \(?"
    r"(?:tensor<(?P<shape>(?:\d+x)*)!tt\.ptr<(?P<type>\w+)|!tt\.ptr<(?P<scalar>\w+))"
)
_DESCRIPTOR_STORE = re.compile(
    r"tt\.descriptor_(?:store|reduce) .*, tensor<(?P<shape>(?:\d+x)*)(?P<type>\w+)>"
)
_DOT = re.compile(r"= tt\.dot .*: tensor<((?:\d+x)+)\w+> \* tensor<((?:\d+x)+)\w+> ->")
#: Scalar arithmetic that bounds of loops are made of.
_SCALAR = re.compile(
    r"^\s*(%[\w$.]+) = arith\.(\w+) (%[\w$.]+)(?:, (%[\w$.]+))?(?: : | to )?.*i(?:32|64)$"
)
_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "addi": operator.add,
    "subi": operator.sub,
    "muli": operator.mul,
    "minsi": min,
    "maxsi": max,
    "divsi": lambda first, second: int(first / second),
    "ceildivsi": lambda first, second: -(-first // second),
}
_MASKED_STORE = re.compile(
    r"tt\.store %[\w$.]+, %[\w$.]+, %[\w$.]+ .*?"
    r": tensor<(?P<shape>(?:\d+x)+)!tt\.ptr<(?P<type>\w+)"
)
_VECTOR_FLOPS = re.compile(r"= arith\.(?:addf|subf|mulf) .*: tensor<((?:\d+x)+)f32>")
_DEFINED = re.compile(r"^\s*(%[\w$.]+)(?::\d+)? = ")
_VALUE = re.compile(r"%[\w$.]+(?:#\d+)?")
#: Atomic updates are left out: what they give is a program's turn, on which all of its work hangs.
_LOADED = re.compile(r"= tt\.(?:load|descriptor_load) ")
_IF = re.compile(r"scf\.if (%[\w$.]+)")
_PRODUCT = re.compile(r"= tt\.dot(?:_scaled)? .*?: tensor<(?:\d+x)+(\w+)>")
_PRECISION = re.compile(r"inputPrecision = (\w+)")
_BITS = re.compile(r"(\d+)")
#: Products on the tensor core per product asked for. Source: Triton language reference, tl.dot,
#: input_precision.
_PASSES = {"tf32x3": 3, "bf16x3": 3, "bf16x6": 6}


def count_program_work(
    ttir: str, arguments: Mapping[str, int] | None = None
) -> Mapping[str, float]:
    """Bytes that one program loads and stores, and the FLOPs of its products, as metrics.

    The metrics are `static__program_load_bytes`, `static__program_store_bytes`,
    `static__program_flops` and `static__program_vector_flops`, of what is no product; products
    count as the hardware does them. `static__program_sector_bytes` are those of the sectors that
    loads touch, where that is known of all, `static__program_store_sector_bytes` those of the
    sectors that stores touch, `static__program_masked_store_bytes` those of
    stores with a mask, outside of loops, and `static__program_left_out_bytes` those of loads that
    masks leave out. There are no metrics if a loop's length is not known.

    Args:
        arguments: the integers that a launch passed, by the names of their parameters.
    """
    lines = [_LOCATION.sub("", line).rstrip() for line in ttir.splitlines()]
    left_out = _exceptions(lines)
    efficiencies = sector_efficiencies(lines)
    constants = {
        f"%{name}": value for name, value in (arguments or {}).items() if f"%{name}: i" in ttir
    }
    kept = kept_shares(lines, constants)
    left_out_bytes = 0.0
    factors = [1]
    loaded = stored = 0.0
    masked = vector_flops = 0.0
    flops = 0.0
    sectors = stored_sectors = 0.0
    for number, text in enumerate(lines):
        if match := _CONSTANT.match(text):
            constants[match[1]] = int(match[2])
        elif match := _SCALAR.match(text):
            _evaluate(constants, match)
        if text.lstrip().startswith("}"):
            factors.pop()
        if number in left_out:
            factors.append(0)
            continue
        if factors[-1] and "scf.while" in text:
            return {}
        if match := _FOR.search(text):
            trips = _constant_trips(constants, match)
            if trips is None and factors[-1]:
                return {}
            factors.append(factors[-1] * (trips or 0))
        elif text.endswith("{"):
            factors.append(factors[-1])
        if match := _LOAD.search(text) or _DESCRIPTOR.search(text):
            loaded += factors[-1] * _accessed_bytes(match)
            left_out_bytes += factors[-1] * _accessed_bytes(match) * (1.0 - kept.get(number, 1.0))
            sectors += factors[-1] * _accessed_bytes(match) / efficiencies.get(number, math.nan)
        if match := _MASKED_STORE.search(text):
            masked += _accessed_bytes(match) if factors[-1] == 1 else 0.0
        if match := _VECTOR_FLOPS.search(text):
            vector_flops += factors[-1] * _elements(match[1])
        if match := _STORE.search(text) or _DESCRIPTOR_STORE.search(text):
            stored += factors[-1] * _accessed_bytes(match)
            touched = _accessed_bytes(match) / efficiencies.get(number, math.nan)
            stored_sectors += factors[-1] * touched
        if match := _DOT.search(text):
            columns = int(match[2].split("x")[-2])
            passes = next(
                (count for name, count in _PASSES.items() if f"inputPrecision = {name}" in text), 1
            )
            flops += factors[-1] * passes * 2.0 * _elements(match[1]) * columns
    found = {"static__program_load_bytes": loaded, "static__program_store_bytes": stored}
    figures = {"flops": flops, "vector_flops": vector_flops, "masked_store_bytes": masked}
    figures |= {"sector_bytes": sectors, "store_sector_bytes": stored_sectors}
    figures |= {"left_out_bytes": left_out_bytes}
    # what is not known of one access, NaN, is not known of all
    found |= {f"static__program_{name}": figure for name, figure in figures.items() if figure > 0.0}
    return found


def _exceptions(lines: Sequence[str]) -> frozenset[int]:
    """Numbers of the lines that open an `if` without `else` whose condition was loaded.

    A value was loaded if it comes of a load, also by way of a loop or a reduction around it.
    """
    found: set[int] = set()
    loaded: set[str] = set()
    regions: list[tuple[int, str | None]] = []  # where each begins, and what it results in
    for number, text in enumerate(lines):
        stripped = text.lstrip()
        if stripped.startswith("}"):
            begin, _ = regions.pop()
            if "} else {" in text:
                found.discard(begin)
        defined = _DEFINED.match(text)
        name = defined[1] if defined else None
        operands = {value.split("#")[0] for value in _VALUE.findall(text)} - {name}
        hangs = bool(_LOADED.search(text)) or bool(operands & loaded)
        if name is not None:
            loaded.discard(name)  # names are used again in other regions
        if hangs:
            # what a region around it results in hangs on it as well
            loaded.update(result for _, result in regions if result is not None)
            if name is not None:
                loaded.add(name)
        if text.endswith("{"):
            condition = _IF.search(text)
            if condition and condition[1] in loaded:
                found.add(number)
            regions.append((number, name))
    return frozenset(found)


def list_products(ttir: str) -> tuple[str, ...]:
    """Each kind of `tt.dot` once: type of the first operand and its precision, as "f32 tf32".

    The precision is "ieee" where none is said.
    """
    found = {}
    for line in ttir.splitlines():
        if match := _PRODUCT.search(line):
            precision = _PRECISION.search(line)
            found[f"{match[1]} {precision[1] if precision else 'ieee'}"] = None
    return tuple(found)


def _evaluate(constants: dict[str, int], match: re.Match[str]) -> None:
    """Keep what a scalar of constants comes to, forget a name that is used again for another."""
    name, operation = match[1], match[2]
    left, right = constants.get(match[3]), constants.get(match[4] or match[3])
    constants.pop(name, None)
    if left is None or right is None:
        return
    if operation in ("extsi", "trunci", "index_cast"):
        constants[name] = left
    elif operation in _ARITHMETIC and (right or not operation.endswith("divsi")):
        constants[name] = _ARITHMETIC[operation](left, right)


def _constant_trips(constants: Mapping[str, int], loop: re.Match[str]) -> int | None:
    """How often a loop runs; None if a bound of it is no constant."""
    start, stop = constants.get(loop[1]), constants.get(loop[2])
    step = constants.get(loop[3])
    if start is None or stop is None or step is None or step <= 0:
        return None
    return max(0, -(-(stop - start) // step))


def _accessed_bytes(match: re.Match[str]) -> float:
    groups = match.groupdict()
    return _elements(groups["shape"] or "") * _bytes(
        groups["type"] or groups.get("scalar") or "i32"
    )


def _elements(shape: str) -> int:
    total = 1
    for size in shape.split("x")[:-1]:
        total *= int(size)
    return total


def _bytes(element: str) -> float:
    match = _BITS.search(element)
    return max(1, int(match[1]) // 8) if match else 4
