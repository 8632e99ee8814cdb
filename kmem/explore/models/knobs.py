"""Knob spaces of kernels that a model wrote: numbers the model names and the tuner chooses.

A knob is a module-level constant of the emitted source, `NAME = 64` or `NAME = "ieee"`, assigned
exactly once; its space lists the values that may stand there. Recipes have spaces of their own
(kmem/recipes.py); these belong to one source text.
"""

import ast
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from kmem.host.syntax import parse_python
from kmem.records import Kernel, Knob

KnobSpace: TypeAlias = tuple[tuple[str, tuple[Knob, ...]], ...]

#: Draws per variant wanted: a small space is soon exhausted, and then there is nothing more to
#: find.
_DRAWS_PER_SAMPLE = 20


def make_knob_space(source: str, values: Mapping[str, Sequence[Knob]]) -> KnobSpace:
    """The space that these values span over a source.

    Names are sorted. A constant's own value always belongs to its values; numbers are in order.

    Raises:
        SyntaxError: if the source does not parse.
        ValueError: naming every knob that is no module-level int or str constant assigned once, has
            a value of another type, or nothing to choose from.
    """
    constants = _constants(source)
    space, faults = [], []
    for name, listed in sorted(values.items()):
        constant = constants.get(name)
        if constant is None:
            faults.append(
                f"{name} is no module-level constant `{name} = <int or str>` assigned exactly once"
            )
            continue
        if wrong := [value for value in listed if type(value) is not type(constant.value)]:
            faults.append(f"{name} = {constant.value!r} cannot take {wrong[0]!r}")
            continue
        choices = list(dict.fromkeys([constant.value, *listed]))
        if len(choices) < 2:
            faults.append(f"{name} has nothing to choose from beside {constant.value!r}")
            continue
        if isinstance(constant.value, int):
            choices.sort(key=int)
        space.append((name, tuple(choices)))
    if faults:
        raise ValueError("; ".join(faults))
    return tuple(space)


def current_settings(source: str, space: KnobSpace) -> dict[str, Knob]:
    """The values that a source has now for the knobs of its space."""
    constants = _constants(source)
    return {name: constants[name].value for name, _ in space}


def with_knobs(source: str, settings: Mapping[str, Knob]) -> str:
    """The source with other values in place of these constants; every other character stays.

    Raises:
        KeyError: for a name that is no knob of the source.
    """
    constants = _constants(source)
    lines = source.split("\n")
    # From the end to the start, so that positions not yet used stay valid.
    for name in sorted(
        settings, key=lambda name: (constants[name].line, constants[name].start), reverse=True
    ):
        constant = constants[name]
        line = lines[constant.line - 1].encode()
        lines[constant.line - 1] = (
            line[: constant.start] + repr(settings[name]).encode() + line[constant.end :]
        ).decode()
    return "\n".join(lines)


def knob_variants(kernel: Kernel, seed: str) -> Iterator[Kernel]:
    """Kernels that differ from this one in knobs only, each text once.

    Steps of one knob come first, then a seeded sample of the space. The parent of each is the
    kernel's own parent; the caller sets another.
    """
    base = current_settings(kernel.source, kernel.knob_space)
    generator = random.Random(seed)
    near = list(_neighbours(base, kernel.knob_space))
    generator.shuffle(near)
    seen = [base]
    for settings in [*near, *_samples(kernel.knob_space, generator)]:
        if settings not in seen:
            seen.append(settings)
            yield replace(kernel, source=with_knobs(kernel.source, settings))


def differ_in_knobs_only(one: Kernel, other: Kernel) -> bool:
    """Whether two kernels are one text at two settings of the same knobs."""
    if not one.knob_space or one.knob_space != other.knob_space:
        return False
    return with_knobs(one.source, current_settings(other.source, other.knob_space)) == other.source


def _neighbours(base: Mapping[str, Knob], space: KnobSpace) -> Iterator[dict[str, Knob]]:
    """One knob moved: to the next value below or above for a number, to any other for a name."""
    for name, values in space:
        place = values.index(base[name])
        others = values if isinstance(base[name], str) else values[max(0, place - 1) : place + 2]
        yield from ({**base, name: value} for value in others if value != base[name])


def _samples(space: KnobSpace, generator: random.Random) -> Iterator[dict[str, Knob]]:
    size = 1
    for _, values in space:
        size *= len(values)
    for _ in range(_DRAWS_PER_SAMPLE * min(size, 100)):
        yield {name: generator.choice(values) for name, values in space}


@dataclass(frozen=True, slots=True)
class _Constant:
    """A literal in a source and where it stands.

    The line counts from 1; start and end are in bytes of UTF-8, as ast counts them.
    """

    value: Knob
    line: int
    start: int
    end: int


def _constants(source: str) -> dict[str, _Constant]:
    """Module-level names assigned exactly once, to an int or str literal written on one line.

    A bool is no int here.
    """
    found: dict[str, _Constant] = {}
    assigned: list[str] = []
    for statement in parse_python(source).body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=value)
            ):
                assigned.append(name)
                if (
                    isinstance(value, ast.Constant)
                    and value.lineno == value.end_lineno
                    and value.end_col_offset is not None
                ):
                    literal = value.value
                    if isinstance(literal, int | str) and not isinstance(literal, bool):
                        found[name] = _Constant(
                            literal, value.lineno, value.col_offset, value.end_col_offset
                        )
            case (
                ast.Assign()
                | ast.AugAssign()
                | ast.For()
                | ast.While()
                | ast.If()
                | ast.With()
                | ast.Try()
            ):
                assigned += [
                    node.id
                    for node in ast.walk(statement)
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                ]
    return {name: constant for name, constant in found.items() if assigned.count(name) == 1}
