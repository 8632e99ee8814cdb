"""A range of shapes for one problem: what `--shapes` says, and the problem at each of them."""

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kmem.errors import ProblemError
from kmem.host.syntax import parse_python
from kmem.problem.sizes import next_power_of_two
from kmem.problem.source.reach import assigned_constants
from kmem.problem.source.substitution import substitute
from kmem.records import Problem

Shape = tuple[tuple[str, int], ...]  # names of the file's constants, with their sizes


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Sizes that were asked for from border to border; `name` is that of the file's constant."""

    name: str
    low: int
    high: int


_PART = re.compile(r"(\w+)=(\d+(?:\.\.\d+)?(?:,\d+(?:\.\.\d+)?)*)")
#: More runs than this are a mistake in what was typed.
MAX_SHAPES = 256


def read_shapes(text: str, problem: Problem) -> tuple[Shape, ...]:
    """The shapes that a text or a file of such lines names, largest first, each once.

    A line is `batch=1,8,64 seq=128..4096`: every combination. A range stands for its borders and
    the powers of two between them. Names are those of integers at the problem's top level, in
    whatever case.

    Raises ProblemError: if the text is no such thing, or names what the problem has not.
    """
    return combine_sizes(text, _constants(problem), f"no integer at the top of {problem.path}")


def combine_sizes(text: str, names: Mapping[str, str], what: str) -> tuple[Shape, ...]:
    """The shapes that a text or a file of such lines names, as `read_shapes` does.

    Args:
        names: that sizes may have, by their lower case.
        what: is said of another name, as in "no size of an input".

    Raises ProblemError: if the text is no such thing, or names none of the names.
    """
    shapes = dict.fromkeys(
        shape for line in _lines(text) for shape in _combinations(line, names, what)
    )
    if not shapes:
        raise ProblemError(f"{text} names no shape; write lines like batch=1,8,64 seq=128..4096")
    if len(shapes) > MAX_SHAPES:
        raise ProblemError(
            f"These are {len(shapes)} shapes, each a run of its own; at most {MAX_SHAPES} go"
        )
    return tuple(sorted(shapes, key=lambda shape: [-size for _, size in shape]))


def read_ranges(text: str, problem: Problem) -> tuple[SizeRange, ...]:
    """The ranges in what `read_shapes` takes, whose inner sizes are wanted, too; each once."""
    constants = _constants(problem)
    found = dict.fromkeys(
        SizeRange(constants[name.lower()], int(low), int(high))
        for line in _lines(text)
        for name, sizes in _PART.findall(line)
        for low, high in re.findall(r"(\d+)\.\.(\d+)", sizes)
    )
    return tuple(found)


def _lines(text: str) -> list[str]:
    """The lines that name shapes: of a file, or a text as the one line.

    Raises ProblemError: if the file cannot be read.
    """
    place = Path(text)
    try:
        lines = place.read_text(encoding="utf-8").splitlines() if place.is_file() else [text]
    except (OSError, UnicodeDecodeError) as ex:
        raise ProblemError(f"Cannot read the shapes in {place}: {ex}") from ex
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def problem_at(problem: Problem, shape: Shape) -> str:
    """The problem file's text with these sizes."""
    return ast.unparse(substitute(problem, dict(shape))) + "\n"


def label_of(shape: Shape) -> str:
    """A name for a shape: `batch8_seq128`."""
    return "_".join(f"{name.lower()}{size}" for name, size in shape)


def _constants(problem: Problem) -> dict[str, str]:
    """Names of integers at top level by their lower case."""
    tree = parse_python(problem.source, filename=problem.path)
    return {
        name.lower(): name
        for statement in tree.body
        for name, value in assigned_constants(statement)
        if isinstance(value, ast.Constant) and type(value.value) is int
    }


def _combinations(line: str, constants: Mapping[str, str], kind: str) -> Iterator[Shape]:
    names: list[str] = []
    sizes: list[list[int]] = []
    for part in line.split():
        match = _PART.fullmatch(part)
        if match is None:
            raise ProblemError(
                f"{part!r} is no size of a shape; write batch=1,8,64 or seq=128..4096"
            )
        name = constants.get(match[1].lower())
        if name is None or name in names:
            known = ", ".join(sorted(constants)) or "none"
            what = "is given twice" if name else f"is {kind}"
            raise ProblemError(f"{match[1]} {what}; there are: {known}")
        names.append(name)
        sizes.append(sorted({size for each in match[2].split(",") for size in _sizes(each)}))
    for chosen in itertools.product(*sizes):
        yield tuple(zip(names, chosen, strict=True))


def _sizes(text: str) -> Iterator[int]:
    """One size, or the borders of a range and the powers of two between them."""
    borders = [int(each) for each in text.split("..")]
    low, high = borders[0], borders[-1]
    if not 0 < low <= high:
        raise ProblemError(f"{text} is no range of sizes; write the smaller one first, from 1 on")
    yield low
    power = next_power_of_two(low + 1)
    while power < high:
        yield power
        power *= 2
    yield high
