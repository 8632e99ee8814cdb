"""The end of a round: what its measurements taught.

First arithmetic holds the claims of the telling attempts against their profiles, then the authors
say what they make of their own attempts.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kmem.diagnose.claims import check_claims
from kmem.errors import ProfilerError
from kmem.interfaces import Situation
from kmem.orchestrate.lineage import base_of, origin
from kmem.orchestrate.vetoes import describe_check
from kmem.records import Attempt, Lesson, Move
from kmem.run.stages.authors import Authors
from kmem.run.stages.parts import Parts
from kmem.run.state.history import History

logger = logging.getLogger(__name__)


def reflect(
    number: int,
    parts: Parts,
    situations: Mapping[str | None, Situation],
    authors: Authors,
) -> None:
    """Check the claims of the round's telling attempts, then ask the authors about their own.

    The lessons go into the history.
    """
    history, clock = parts.history, parts.clock
    measured = [attempt for attempt in history.attempts if attempt.round == number]
    telling = [] if clock.is_over() else _telling(measured, history)
    lessons = [
        lesson
        for attempt in telling
        if (lesson := _check_attempt(number, attempt, parts)) is not None
    ]
    for kernel_hash, situation in situations.items():
        after = replace(
            situation, history=tuple(history.attempts), lessons=(*situation.lessons, *lessons)
        )
        answered = [
            attempt
            for attempt in measured
            if base_of(attempt.candidate.task, history.attempts) == kernel_hash
        ]
        if not clock.is_over():
            lessons += authors.reflect(after, answered)
    history.lessons += lessons
    parts.recorder.record_lessons(number, lessons)


def _check_attempt(number: int, attempt: Attempt, parts: Parts) -> Lesson | None:
    """Profile an attempt and hold its claims against the profile of its parent kernel.

    None if that cannot be done, or if every claim stays unknown.
    """
    history = parts.history
    parent = history.find(base_of(attempt.candidate.task, history.attempts))
    before = history.signature(parent) if parent else None
    if before is None:
        return None
    try:
        parts.measurer.profile(attempt)
    except ProfilerError as ex:
        logger.warning("the claims of round %d are not checked: %s", number, ex)
        return None
    task = attempt.candidate.task
    checks = check_claims(task.claims, before, history.signature(attempt))
    settled = [check for check in checks if check.held is not None]
    if not settled:
        return None
    text = f"{task.skill}: " + "; ".join(describe_check(check) for check in settled)
    parts.announce("reflect", text)
    return Lesson(number, attempt.candidate.kernel.hash, task.skill, text, checks)


def _telling(measured: Sequence[Attempt], history: History) -> list[Attempt]:
    """The attempts of a round that are worth a profile: those of them that claimed something.

    The new best, which the next round profiles anyway, and the fastest other attempt at a fix: at
    most one extra profile a round, which explains why the fix did not win.
    """
    passed = sorted(
        (attempt for attempt in measured if attempt.measurement.timing),
        key=lambda attempt: attempt.measurement.latency_ms,
    )
    fixes = [
        attempt
        for attempt in passed
        if origin(attempt.candidate.task, history.attempts).move is Move.FIX
    ]
    chosen = [attempt for attempt in passed if attempt is history.best]
    if fixes and fixes[0] not in chosen:
        chosen.append(fixes[0])
    return [attempt for attempt in chosen if attempt.candidate.task.claims]
