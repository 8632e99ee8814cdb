"""A user's kernel file whose numbers to tune are module-level constants, with their spaces.

Constants of the module stay where they are. A number that stands in a launch or in a local variable
gets a name at the top of the file; a list of configurations of `triton.autotune` becomes the one
configuration that the names give. Nothing else of the text changes.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kmem.explore.given.launches import Autotuned, Number, Place, find_numbers
from kmem.explore.models.knobs import make_knob_space, with_knobs
from kmem.host.syntax import parse_python
from kmem.records import Kernel, Knob

_PREFIX = "TUNED_"
_WARPS, _STAGES = (1, 2, 4, 8, 16), (1, 2, 3, 4, 5)
#: A tile may be so many times smaller or larger than it was given; `tl.dot` wants 16 at least.
_STEPS, _LEAST_TILE = (4, 2), 16


@dataclass(frozen=True, slots=True)
class Tunable:
    """A kernel with a space of its own numbers.

    `configurations` are the settings that the user listed for an autotuner, to be tried first.
    """

    kernel: Kernel
    configurations: tuple[Mapping[str, Knob], ...] = ()

    def configured(self) -> list[Kernel]:
        """The kernel at each of the user's own configurations."""
        source = self.kernel.source
        return [
            replace(self.kernel, source=with_knobs(source, settings))
            for settings in self.configurations
        ]


def make_tunable(given: Kernel) -> Tunable | None:
    """The kernel with its numbers as knobs; None if it has none that can be read."""
    source = given.source
    tree = parse_python(source)
    numbers, autotuned = find_numbers(tree, source)
    names = _Names(source)
    for number in numbers:
        names.add_number(number)
    for found in autotuned:
        names.add_autotuned(found)
    if not names.values:
        return None
    text = _edited(source, _top(tree), names)
    space = make_knob_space(text, names.values)
    kernel = replace(given, source=text, knob_space=space)
    return Tunable(kernel, tuple(names.configurations))


@dataclass
class _Names:
    """The constants that stand for numbers, and the edits that put them in."""

    source: str
    values: dict[str, Sequence[int]] = field(default_factory=dict)
    new: dict[str, int] = field(default_factory=dict)
    edits: dict[Place, str] = field(default_factory=dict)
    appended: dict[Place, str] = field(default_factory=dict)
    configurations: list[Mapping[str, Knob]] = field(default_factory=list)
    _of: dict[tuple[str, str, int], str] = field(default_factory=dict)

    def add_number(self, number: Number) -> None:
        """One number of a launch; equal ones of one kernel share a name."""
        if number.constant:
            self.values[number.constant] = _space(number.name, number.value)
            return
        key = number.kernel, number.name, number.value
        if number.place is not None and number.place in self.edits:
            return  # one local variable for several launches
        name = self._of.get(key) or self._name(number.name, number.value)
        self._of[key] = name
        if number.place is not None:
            self.edits[number.place] = name
        elif number.behind is not None:
            before = self.appended.get(number.behind, "")
            self.appended[number.behind] = f"{before}, {number.name}={name}"

    def add_autotuned(self, found: Autotuned) -> None:
        """The one configuration that names give, beginning with the first of the list."""
        first = found.settings[0]
        names = {knob: self._name(knob, value) for knob, value in first.items()}
        for knob, name in names.items():
            listed = [entry[knob] for entry in found.settings]
            self.values[name] = listed if len(set(listed)) > 1 else _space(knob, first[knob])
        tiles = ", ".join(f"{tile!r}: {names[tile]}" for tile in found.tiles)
        rest = "".join(
            f", {knob}={name}" for knob, name in names.items() if knob not in found.tiles
        )
        self.edits[found.place] = f"[{found.config}({{{tiles}}}{rest})]"
        self.configurations += [
            {names[knob]: value for knob, value in entry.items()} for entry in found.settings[1:]
        ]

    def _name(self, knob: str, value: int) -> str:
        wanted = name = f"{_PREFIX}{knob.upper()}"
        number = 2
        while name in self.new or name in self.source:
            name = f"{wanted}_{number}"
            number += 1
        self.new[name] = value
        self.values[name] = _space(knob, value)
        return name


def _space(knob: str, value: int) -> tuple[int, ...]:
    """The values worth trying for a number of this name."""
    if knob == "num_warps":
        return _WARPS
    if knob == "num_stages":
        return _STAGES
    smaller = [value // step for step in _STEPS if value % step == 0]
    larger = [value * step for step in reversed(_STEPS)]
    least = min(value, _LEAST_TILE) if value >= _LEAST_TILE else 1
    return tuple(each for each in (*smaller, value, *larger) if each >= least)


def _top(tree: ast.Module) -> int:
    """The line behind the imports and the docstring at the head of a file, from 0."""
    line = 0
    for place, statement in enumerate(tree.body):
        is_docstring = place == 0 and isinstance(statement, ast.Expr)
        if not is_docstring and not isinstance(statement, ast.Import | ast.ImportFrom):
            break
        line = statement.end_lineno or line
    return line


def _edited(source: str, top: int, names: _Names) -> str:
    if not names.new:
        return source
    lines = source.encode().split(b"\n")
    changes = list(names.edits.items())
    changes += [
        (Place(place.end_line, place.end, place.end_line, place.end), text)
        for place, text in names.appended.items()
    ]
    # from the end to the start, so that places not yet reached stay valid
    for place, text in sorted(
        changes, key=lambda change: (change[0].line, change[0].start), reverse=True
    ):
        before, after = lines[place.line - 1][: place.start], lines[place.end_line - 1][place.end :]
        lines[place.line - 1 : place.end_line] = [before + text.encode() + after]
    constants = [f"{name} = {value}".encode() for name, value in names.new.items()]
    lines[top:top] = [b"", *constants]
    return b"\n".join(lines).decode()
