"""A winner at the sizes around its own, where its recipe writes one code for all of them.

The recipe writes the winner's knobs anew at odd sizes from one end of the range to the other: no
tile divides those, so that this code has every mask. Where it is the same at all of them but for
its constants, those become formulas of the size, and the judge sees this kernel, as it ships, at
both ends and between. Whatever does not hold keeps the winner to its own size.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kmem.codegen.module.constants import BEGIN, END, keeps_constants
from kmem.deploy.entries import Wide, describe_computation
from kmem.deploy.formulas import fit_numbers, fit_texts
from kmem.deploy.shipped.between import text_at
from kmem.deploy.shipped.table import with_constants
from kmem.devices import named_target
from kmem.errors import CaseError, KmemError
from kmem.explore.recipes.author import RecipeAuthor
from kmem.host.syntax import parse_python
from kmem.interfaces import Assignment
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.problem.sizing.shapes import Shape, SizeRange, label_of
from kmem.problem.source.load import load_problem
from kmem.records import Kernel, Move, Problem, SiteChoice, Status, Task
from kmem.run.evaluation.single import Terms, judge_case, make_case
from kmem.run.report.result import Result
from kmem.run.setup.session import Session, open_session
from kmem.run.setup.shapes import write_shapes

#: Fewer sizes than these tell no formula, unless they are all that there are.
_LEAST_SIZES = 4
#: What of a module may depend on the size; all else must be the same.
_VARYING = ("inputs", "outputs", "calls")


@dataclass(frozen=True, slots=True)
class Span:
    """The sizes that a winner is to serve beside its own, from one odd size to another.

    At both ends the recipe says itself what its constants are, so that one that grows with the size
    and is the same there is the same between.
    """

    shape: Shape  # its own
    name: str  # of what varies
    low: int
    high: int

    @property
    def own(self) -> int:
        return dict(self.shape)[self.name]

    def at(self, size: int) -> Shape:
        """The shape with another size."""
        return tuple((name, size if name == self.name else own) for name, own in self.shape)

    def sizes(self) -> list[int]:
        """Where the recipe is asked: odd sizes at both ends, beside its own and inside."""
        fifth = (self.high - self.low) // 5
        asked = {(self.low + part * fifth) | 1 for part in range(5)} | {self.own | 1, self.high}
        return sorted(size for size in asked if self.low <= size <= self.high)

    def judged(self, *, estimated: bool) -> list[int]:
        """Where the judge is asked: both ends, an odd size between, and on a GPU its own.

        Without a GPU the interpreter proves a kernel at small sizes, and the recipe says which
        those are, with masks, at odd sizes alone.
        """
        asked = {self.low, ((self.low + self.high) // 2) | 1, self.high}
        return sorted(asked if estimated else asked | {self.own})


def spans_of(shape: Shape, shapes: Sequence[Shape], ranges: Sequence[SizeRange]) -> list[Span]:
    """What a shape is the nearest of in log space, for each size that was asked for as a range."""
    spans = []
    for asked in ranges:
        own, others = dict(shape).get(asked.name), _without(shape, asked.name)
        if own is None or not asked.low <= own <= asked.high:
            continue
        sizes = [dict(each)[asked.name] for each in shapes if _without(each, asked.name) == others]
        below = max((size for size in sizes if asked.low <= size < own), default=own)
        above = min((size for size in sizes if own < size <= asked.high), default=own)
        # two neighbours share the odd size between them
        low, high = math.isqrt(below * own) | 1, math.isqrt(own * above)
        high = high | 1 if above > own else (high - 1) | 1
        if low < high:
            spans.append(Span(shape, asked.name, low, high))
    return spans


def _without(shape: Shape, name: str) -> Shape:
    return tuple(each for each in shape if each[0] != name)


@dataclass(frozen=True, slots=True)
class _Sized:
    """What a recipe writes at one size, and what the module is there."""

    file: Path
    kernel: Kernel
    code: str  # of the kernel's file but its constants
    constants: str
    computed: Mapping[str, Any]

    @property
    def shapes(self) -> str:
        return json.dumps({name: self.computed[name] for name in _VARYING})


@dataclass(frozen=True, slots=True)
class Widening:
    """Asks recipes and the judge for the sizes around winners.

    `directory` gets the problem's file at each size that is asked about.
    """

    problem: Problem
    directory: Path
    registry: Registry
    announce: Callable[[str], None]

    def widen(self, result: Result, span: Span) -> Wide | None:
        """The sizes around its own that a winner serves; None, with the reason announced."""
        where = f"{span.name.lower()} {span.low} to {span.high}"
        try:
            found = self._widen(result, span)
        except KmemError as ex:
            self.announce(f"{label_of(span.shape)} serves its own size alone: {ex}")
            return None
        self.announce(f"{label_of(span.shape)} serves {where}, judged at {found.data['judged']}")
        return found

    def _widen(self, result: Result, span: Span) -> Wide:
        best = result.outcome.best.candidate.kernel
        if not best.choices:
            raise CaseError("no recipe wrote its kernel, so nobody knows it at other sizes")
        sizes = span.sizes()
        if len(sizes) < _LEAST_SIZES:
            raise CaseError("there are too few sizes to tell how its constants depend on them")
        own = self._write(result, span, span.own)
        if (own.code, own.constants) != _cut(best.source):
            raise CaseError("its recipe does not write it again as it is")
        written = {size: self._write(result, span, size) for size in sizes}
        first = written[sizes[0]]
        for size, each in written.items():
            if each.code != first.code or _fixed(each) != _fixed(own):
                raise CaseError(f"its recipe writes other code at {size} than at {sizes[0]}")
        tiles = {int(number) for number in re.findall(r"constant\((\d+)\)", first.constants)}
        constants = fit_texts({size: each.constants for size, each in written.items()}, tiles)
        shapes = fit_texts({size: each.shapes for size, each in written.items()}, ())
        place = _place(written)
        if constants is None or shapes is None or place is None or not own.computed["calls"]:
            raise CaseError("its constants or shapes are no plain formulas of the size")
        judged = span.judged(estimated=result.estimated)
        small = []
        for size in judged:
            source = with_constants(first.kernel.source, text_at(constants, size))
            sized = written.get(size) or self._write(result, span, size)
            small.append(self._judge(result, sized, size, source))
        data = {
            "size": span.name,
            "low": span.low,
            "high": span.high,
            "place": place,
            "shapes": shapes,
            "constants": constants,
            "judged": judged,
            "small_constants": small,
        }
        return Wide(data, first.kernel.source)

    def _write(self, result: Result, span: Span, size: int) -> _Sized:
        """The winner's knobs at another size."""
        ((label, file),) = write_shapes(self.problem, [span.at(size)], self.directory)
        run, problem = result.run, load_problem(file)
        device = named_target(result.outcome.target)
        with Memory() as memory:
            session = open_session(
                problem, run.contract, device, not result.estimated, self.registry, memory
            )
        kernel = write_again(session, result.outcome.best.candidate.kernel.choices)
        _, computed = describe_computation(problem, run.contract.precision, label)
        return _Sized(file, kernel, *_cut(kernel.source), computed)

    def _judge(self, result: Result, sized: _Sized, size: int, source: str) -> str:
        """Have a kernel judged at a size; returns its constants for the small workload there.

        Raises CaseError: unless it passes, and is faster than the module there.
        """
        small = sized.kernel.small_constants
        if not keeps_constants(source, small):  # where a tile divides there are fewer
            small = ""
        terms = Terms(result.run.contract, seed=result.run.seed)
        judged, baselines = judge_case(
            make_case(sized.file, source, terms, small_constants=small),
            named_target(result.outcome.target),
            gpu=not result.estimated,
            announce=_ignore,
            baselines=("eager",),
        )
        if judged.status is not Status.PASSED:
            why = (judged.log.strip().splitlines() or [""])[-1]
            raise CaseError(f"at {size} the judge says {judged.status.value}: {why}")
        eager_ms = min(each.timing.latency_ms for each in baselines if each.timing is not None)
        if judged.latency_ms is None or judged.latency_ms >= eager_ms:
            raise CaseError(f"at {size} it is not faster than the module's own code")
        return small


@dataclass(frozen=True, slots=True)
class Ranged:
    """The shapes of a table, the ranges among what named them, and who is asked about those."""

    shapes: Sequence[Shape]
    ranges: Sequence[SizeRange]
    widening: Widening

    def widen(self, label: str, result: Result) -> list[Wide]:
        """What the winner of a shape, known by its label, serves around it."""
        shape = next(each for each in self.shapes if label_of(each) == label)
        spans = spans_of(shape, self.shapes, self.ranges)
        found = (self.widening.widen(result, span) for span in spans)
        return [each for each in found if each is not None]


def _ignore(text: str) -> None:
    """Nobody is told what the judge is doing."""


def write_again(session: Session, choices: tuple[SiteChoice, ...]) -> Kernel:
    """What recipes write at a kernel's choices; raises CaseError if they cannot."""
    task = Task(Move.RECALL, choices[0].recipe, None, 1, "at another size", choices)
    found = RecipeAuthor().write(
        Assignment(
            traced=session.traced,
            parent=None,
            diagnosis=None,
            prescriptions=(),
            history=(),
            recipes=session.recipes,
            writable=session.writable,
            rewrites=session.rewrites,
            rewritten=session.rewritten,
            skills=session.skills,
            seed=0,
            task=task,
        )
    )
    for candidate in found:
        if candidate.kernel.choices == choices:
            return candidate.kernel
    raise CaseError("its recipe cannot write its knobs at every size")


def _fixed(sized: _Sized) -> dict[str, Any]:
    """What must not depend on the size; the fingerprint of the module does."""
    varying = (*_VARYING, "graph")
    return {name: each for name, each in sized.computed.items() if name not in varying}


def _place(written: Mapping[int, _Sized]) -> tuple[int, int, int, int] | None:
    """Which extent of an input tells the size: input, axis, and a and b of a * size + b."""
    shapes = {size: each.computed["inputs"] for size, each in written.items()}
    for number, given in enumerate(next(iter(shapes.values()))):
        for axis in range(len(given.get("shape", ()))):
            extents = {size: inputs[number]["shape"][axis] for size, inputs in shapes.items()}
            if len(set(extents.values())) == len(extents):
                formula = fit_numbers(extents, (), ())
                if formula is not None and formula[0] > 0:
                    return number, axis, formula[0], formula[1]
    return None


def _cut(source: str) -> tuple[str, str]:
    """What a kernel's file does but for its constants, and those. Raises CaseError: without."""
    if BEGIN not in source or END not in source:
        raise CaseError("its file has no block of constants")
    head, rest = source.split(BEGIN, 1)
    constants, tail = rest.split(END, 1)
    tree = parse_python(head + tail)
    if ast.get_docstring(tree, clean=False) is not None:
        del tree.body[0]
    return ast.dump(tree), constants
