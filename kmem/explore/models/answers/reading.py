"""Answers held to the situation: what a model claims of code, log, metrics or skills must be so.

One reader per role, text in, typed result out. Whatever is not so raises Malformed, which
conversation.py sends back once. An answer with one whole file is a candidate whatever surrounds it:
the judge, not the form, decides on a kernel. Without an object that fits, nothing is declared of
the file and no knob is left open; where an object says something of the file or the log that is not
so, the file alone is what is usable.
"""

import ast
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kmem.explore.models.answers.files import read_file
from kmem.explore.models.answers.malformed import Malformed
from kmem.explore.models.answers.objects import read_fields
from kmem.explore.models.answers.schema import (
    ALGEBRAIC,
    DiagnoserAnswer,
    GeneratorAnswer,
    OptimiserAnswer,
    PlannedDirection,
    PlannerAnswer,
    ReflectorAnswer,
    RepairerAnswer,
    TaughtLesson,
    issue_of,
    short_hash,
)
from kmem.explore.models.knobs import KnobSpace, make_knob_space
from kmem.explore.models.lessons import effect_of
from kmem.host.syntax import parse_python
from kmem.records import Attempt, Claim, Kernel, Knob, Signature, Status

logger = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT")

#: A shorter quotation occurs anywhere and shows nothing. The shortest status is as long as this,
#: for a status may be all there is to quote.
_SHORTEST_QUOTE = len(Status.IMPURE.value)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A whole module file, the knobs its author left open, and what its author declares of it.

    The declarations are flags (records.Kernel.flags).
    """

    source: str
    knob_space: KnobSpace
    flags: tuple[str, ...]


def read_generator(text: str, operators: Collection[str]) -> WrittenFile:
    """A first kernel.

    Args:
        operators: names of the graph's nodes; empty where the forward could not be traced, and then
            any name will do.
    """
    bare = _bare(read_file(text))
    answer = _fields_beside(GeneratorAnswer, text)
    if answer is None:
        return bare
    if operators and (unknown := [name for name in answer.operators if name not in operators]):
        raise Malformed(
            f"operators: {unknown[0]!r} is no node of the graph; the nodes are "
            f"{', '.join(operators)}",
            usable=bare,
        )
    return _declared(bare, answer.knobs, answer.algebraic)


def read_diagnoser(text: str, signature: Signature | None) -> DiagnoserAnswer:
    """A diagnosis whose metrics were measured and whose claim the next profile can refute."""
    answer = read_fields(DiagnoserAnswer, text)
    if signature is not None and (
        unknown := [name for name in answer.evidence if name not in signature.values]
    ):
        raise Malformed(
            f"evidence: {unknown[0]!r} was not measured; known are "
            f"{', '.join(sorted(signature.values))}"
        )
    _demand_falsifiable(answer.claim, signature)
    return answer


def read_planner(
    text: str, allowed: Collection[str], signature: Signature | None
) -> tuple[PlannedDirection, ...]:
    """Distinct directions among the allowed skills.

    Raises:
        Malformed: with the allowed directions as what is usable, if a direction rests on another
            skill.
    """
    directions = read_fields(PlannerAnswer, text).directions
    for direction in directions:
        _demand_falsifiable(direction.claim, signature)
    if len({(direction.skill, direction.change.strip()) for direction in directions}) < len(
        directions
    ):
        raise Malformed("two directions are the same; give distinct ones or fewer")
    if outside := [direction.skill for direction in directions if direction.skill not in allowed]:
        kept = tuple(direction for direction in directions if direction.skill in allowed)
        raise Malformed(
            f"{outside[0]!r} is not offered; choose among {', '.join(sorted(allowed))}", usable=kept
        )
    return directions


def read_optimiser(text: str, parent: Kernel) -> WrittenFile:
    """An edit of the parent, with every item of the plan at a line of the new file."""
    bare = _bare(read_file(text, parent.source))
    _demand_changed(bare.source, parent.source)
    answer = _fields_beside(OptimiserAnswer, text)
    if answer is None:
        return bare
    written = _declared(bare, answer.knobs, answer.algebraic)
    for item in answer.checklist:
        if not _occurs(item.line, written.source):
            raise Malformed(
                f"checklist: the line {item.line!r} for {item.item!r} does not occur in your "
                "file; quote a line of it exactly",
                usable=bare,
            )
    return written


def read_repairer(text: str, failed: Attempt) -> WrittenFile:
    """A repaired file for the issue at hand.

    The quotes must stand in the log, and the anchor in the failed file.
    """
    source = failed.candidate.kernel.source
    bare = _bare(read_file(text, source))
    _demand_changed(bare.source, source)
    answer = _fields_beside(RepairerAnswer, text)
    if answer is None:
        return bare
    issue = issue_of(failed.measurement.status)
    if answer.issue is not issue and issue is not None:
        raise Malformed(
            f"issue: the status is {failed.measurement.status.value}, so the issue to cure first "
            f"is {issue.value!r}",
            usable=bare,
        )
    # A judge's verdict may come without any text; then the status itself is all there is to quote.
    log = failed.measurement.log
    if not log.strip():
        log = failed.measurement.status.value
    for quote in answer.evidence:
        if not _occurs(quote, log):
            raise Malformed(
                f"evidence: {quote!r} does not occur in the log; quote it word for word",
                usable=bare,
            )
    if not _occurs(answer.anchor, source):
        raise Malformed(
            f"anchor: the line {answer.anchor!r} does not occur in the failed file; quote a line "
            "of it exactly",
            usable=bare,
        )
    return _declared(bare, answer.knobs, answer.algebraic)


def read_reflector(text: str, attempts: Sequence[Attempt]) -> tuple[TaughtLesson, ...]:
    """Lessons about attempts of the round, one each at most, that its measurements bear out.

    Raises:
        Malformed: with the lessons that are borne out as what is usable, if another is not.
    """
    lessons = read_fields(ReflectorAnswer, text).lessons
    known = [short_hash(attempt.candidate.kernel.hash) for attempt in attempts]
    if unknown := [lesson.kernel for lesson in lessons if lesson.kernel not in known]:
        raise Malformed(
            f"lessons: {unknown[0]!r} is no attempt of this round; they are {', '.join(known)}"
        )
    if len({lesson.kernel for lesson in lessons}) < len(lessons):
        raise Malformed("lessons: at most one for each attempt")
    found = {short_hash(attempt.candidate.kernel.hash): effect_of(attempt) for attempt in attempts}
    wrong = [
        lesson
        for lesson in lessons
        if None not in (lesson.effect, found[lesson.kernel])
        and lesson.effect is not found[lesson.kernel]
    ]
    if wrong:
        right = tuple(lesson for lesson in lessons if lesson not in wrong)
        raise Malformed(
            f"lessons: {wrong[0].kernel} is said to be {wrong[0].effect.value}, but what was "
            f"measured is {found[wrong[0].kernel].value}",
            usable=right,
        )
    return lessons


def _bare(source: str) -> WrittenFile:
    """A file of which nothing is declared."""
    return WrittenFile(source, make_knob_space(source, {}), ())


def _declared(
    bare: WrittenFile, knobs: Mapping[str, Sequence[Knob]], algebraic: bool
) -> WrittenFile:
    """The file with what its author declares of it."""
    try:
        space = make_knob_space(bare.source, knobs)
    except ValueError as ex:
        raise Malformed(f"knobs: {ex}", usable=bare) from ex
    return WrittenFile(bare.source, space, (ALGEBRAIC,) if algebraic else ())


def _fields_beside(cls: type[AnswerT], text: str) -> AnswerT | None:
    """The object beside a file; None if there is none that fits: a file is an answer without."""
    try:
        return read_fields(cls, text)
    except Malformed as ex:
        logger.info("the file is taken without what stands beside it: %s", ex)
        return None


def _demand_falsifiable(claim: Claim, signature: Signature | None) -> None:
    """Refuse a claim that could not be refuted.

    Such a claim is about a metric nobody measured, or the parent fulfils it already.
    """
    if signature is None:
        return
    value = signature.values.get(claim.metric)
    if value is None:
        raise Malformed(
            f"claim: {claim.metric} was not measured for the parent; known are "
            f"{', '.join(sorted(signature.values))}"
        )
    wanted = claim.number * value if claim.relative else claim.number
    if value <= wanted if claim.comparison == "<=" else value >= wanted:
        raise Malformed(
            f"claim: the parent fulfils {claim} already ({claim.metric} = {value:g}); claim a "
            "change that could fail to come"
        )


def _demand_changed(source: str, parent: str) -> None:
    try:
        same = ast.dump(parse_python(source)) == ast.dump(parse_python(parent))
    # a parent that failed because it does not parse; nesting too deep to compare
    except (SyntaxError, ValueError, RecursionError):
        return
    if same:
        raise Malformed("the file is the parent's, unchanged")


def _occurs(quote: str, text: str) -> bool:
    """Whether a quotation of some length stands in a text, however white space is broken."""
    words = " ".join(quote.split())
    return len(words) >= _SHORTEST_QUOTE and words in " ".join(text.split())
