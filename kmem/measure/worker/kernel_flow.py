"""What a compiled kernel stores where, read in its Triton IR: values worked out, or only carried.

Runs inside the worker, from a copy of this file. Values are followed line by line, without regard
to the order of blocks: what any path may store counts.

Covered: loads, stores, atomics and descriptors, conversions and changes of shape, loops and
conditions. Not covered: a kernel that calls a function which was not inlined counts as one that
computes all it stores; arithmetic that leaves a value as it is counts as computing.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

#: What leaves every value what it was, but for its type and place.
_CARRYING = frozenset(
    """
    arith.extf arith.truncf arith.extsi arith.extui arith.trunci arith.sitofp arith.uitofp
    arith.fptosi arith.fptoui arith.bitcast arith.constant tt.bitcast tt.fp_to_fp tt.reshape
    tt.trans tt.expand_dims tt.broadcast tt.splat tt.unsplat tt.cat tt.join tt.split tt.gather
    tt.int_to_ptr tt.ptr_to_int ub.poison scf.yield scf.condition
    """.split()  # noqa: SIM905 - so many quoted words read worse
)
_LOADS = ("tt.load", "tt.descriptor_load", "tt.descriptor_gather", "tt.atomic_poll")
_STORES = ("tt.store", "tt.descriptor_store", "tt.descriptor_scatter")
_ATOMICS = ("tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_reduce")
_REGIONS = ("scf.for", "scf.while", "scf.if")
_LOCATION = re.compile(r"\s+loc\(.*$")
_POINTER = re.compile(r"%([\w.$-]+): !tt\.")
_VALUE = re.compile(r"%[\w.$-]+")
_LINE = re.compile(r'^(?:(?P<results>%[^=]*?) = )?"?(?P<operation>[a-z]\w*\.\w+)"?(?P<rest>.*)$')
_BEGUN = re.compile(r"(%[\w.$-]+) = (%[\w.$-]+)")


@dataclass(frozen=True, slots=True)
class Stored:
    """What is stored through the parameters `targets`.

    `carried` are the parameters through which values were loaded that come to this store as they
    were; `computed` whether any part of it was worked out.
    """

    targets: frozenset[str]
    carried: frozenset[str]
    computed: bool


@dataclass(slots=True)
class _Flow:
    """One value: the parameters that it was made of, and whether by computing."""

    sources: frozenset[str] = frozenset()
    computed: bool = False

    def joined(self, other: "_Flow") -> "_Flow":
        return _Flow(self.sources | other.sources, self.computed or other.computed)


@lru_cache(maxsize=256)
def read_stores(ttir: str) -> tuple[Stored, ...] | None:
    """Every store of a kernel; None where a call hides some."""
    lines = [_LOCATION.sub("", line).strip() for line in ttir.splitlines()]
    head = next((line for line in ttir.splitlines() if "tt.func public" in line), "")
    if any(re.search(r"\btt\.call\b", line) for line in lines):
        return None
    values = {f"%{name}": _Flow(frozenset([name])) for name in _POINTER.findall(head)}
    while True:
        before = dict(values)
        stored = _walk(lines, values)
        if values == before:
            return tuple(stored)


def _walk(lines: list[str], values: dict[str, _Flow]) -> list[Stored]:
    """One pass over all lines, in which flows of values only grow."""
    stored: list[Stored] = []
    regions: list[list[str]] = []  # the results of the operation that each open region belongs to
    for line in lines:
        if line.startswith("}"):
            if not line.endswith("{") and regions:
                regions.pop()
            continue
        found = _LINE.match(line)
        if found is None:
            if line.endswith("{"):
                regions.append([])
            continue
        operation, rest = found["operation"], found["rest"]
        names = _VALUE.findall(found["results"] or "")
        operands = [values.get(name, _Flow()) for name in _VALUE.findall(rest)]
        if operation == "scf.condition":
            del operands[:1]  # whether the loop goes on
        if operation in (*_STORES, *_ATOMICS):
            stored.append(_stored(operation, operands))
        flow = _result(operation, operands)
        targets = names
        if operation in ("scf.for", "scf.while"):
            for begun, first in _BEGUN.findall(rest):
                _grow(values, begun, values.get(first, _Flow()))
            targets = names + [begun for begun, _ in _BEGUN.findall(rest)]
        if operation in _REGIONS:
            flow = _Flow()  # what its regions yield
        elif operation in ("scf.yield", "scf.condition") and regions:
            targets = regions[-1]
        for name in targets:
            _grow(values, name, flow)
        if line.endswith("{"):
            regions.append(targets)
    return stored


def _grow(values: dict[str, _Flow], name: str, flow: _Flow) -> None:
    values[name] = values.get(name, _Flow()).joined(flow)


def _result(operation: str, operands: list[_Flow]) -> _Flow:
    if operation in (*_LOADS, "tt.addptr", "tt.make_tensor_descriptor"):
        return _Flow(operands[0].sources) if operands else _Flow()
    joined = _Flow(computed=operation not in _CARRYING)
    for operand in operands:
        joined = joined.joined(operand)
    return joined


def _stored(operation: str, operands: list[_Flow]) -> Stored:
    """Of a descriptor's indices nothing is known apart from its value, which comes last."""
    target = operands[0].sources
    value = operands[-1] if operation.startswith("tt.descriptor") else operands[1]
    computed = value.computed or operation in _ATOMICS or not value.sources
    return Stored(target, value.sources if not value.computed else frozenset(), computed)
