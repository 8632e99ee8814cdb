"""Lessons held to outcomes: what a lesson says became of a kernel must be what was measured.

A lesson that the round's own measurement contradicts is never taken over; one that a later round
contradicts is told to nobody any more.
"""

from collections.abc import Sequence

from kmem.interfaces import KNOBS, UNAIDED
from kmem.records import Attempt, Effect, Lesson, Status

#: A smaller change of time is noise. Source: orchestrate/stop.py, MIN_IMPROVEMENT.
_LEAST_CHANGE = 1.005


def effect_of(attempt: Attempt) -> Effect | None:
    """What became of an attempt beside its parent; None where nothing can be said."""
    status, speedup = attempt.measurement.status, attempt.speedup
    if status is Status.INTERRUPTED:
        return None
    if status is not Status.PASSED:
        return Effect.FAILED
    if speedup is None:
        return None
    if speedup >= _LEAST_CHANGE:
        return Effect.FASTER
    return Effect.SLOWER if speedup * _LEAST_CHANGE <= 1 else Effect.SAME


def standing_lessons(lessons: Sequence[Lesson], history: Sequence[Attempt]) -> list[Lesson]:
    """The lessons that no later attempt with the same skill contradicts, oldest first."""
    return [lesson for lesson in lessons if not _is_contradicted(lesson, history)]


def _is_contradicted(lesson: Lesson, history: Sequence[Attempt]) -> bool:
    """Whether a skill that did not help has helped since, or one that helped never did again."""
    if lesson.effect is None or lesson.skill in (UNAIDED, KNOBS):
        return False
    later = {
        effect_of(attempt)
        for attempt in history
        if attempt.round > lesson.round and attempt.candidate.task.skill == lesson.skill
    }
    if lesson.effect is Effect.FASTER:
        return Effect.SLOWER in later and Effect.FASTER not in later
    return Effect.FASTER in later
