"""In which order the candidates of a round are measured, and how many of them at a time.

After each batch the run looks at its clock, at what memory expects of the rest, and for a kernel
that deserves a verdict.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kmem.interfaces import UNAIDED
from kmem.records import Candidate, Move, SiteChoice, Task
from kmem.run.stages.parts import Parts
from kmem.run.stages.recall import Remembered

#: Candidates that are measured ahead of all others, each from another direction.
_SCOUTS = 4
#: A kernel is expected to be faster than another below this ratio of their times. Predictions are
#: off by more, but one measurement more is soon paid back.
_CLEARLY_FASTER = 0.9


@dataclass(frozen=True, slots=True)
class Guess:
    """The first kernel of a task before it is written; its time in ms, if one is predicted."""

    task: Task
    whole_ms: float | None


Scout = TypeVar("Scout", Candidate, Guess)


def first_tasks(guesses: Sequence[Guess], parts: Parts, remembered: Remembered) -> list[Task]:
    """The tasks whose first kernels `in_batches` puts ahead of all others in a first round."""
    return [scout.task for scout in _ahead(_scouts(guesses, remembered), parts, remembered)]


def in_batches(
    candidates: Sequence[Candidate],
    parts: Parts,
    remembered: Remembered,
    *,
    has_passed: bool,
) -> list[Sequence[Candidate]]:
    """The candidates in the order in which they are measured.

    The kernel that a run starts from is measured by itself, ahead of all others. While nothing has
    passed, the best guess of all goes ahead, then those of the next directions, on a GPU: so a run
    has a verified kernel long before it has compiled and measured the rest. What memory holds goes
    ahead with the best guess beside it, where that is expected to be faster: of a large module one
    verdict takes most of the minutes. Knobs that won in a graph of another structure are a guess
    among others: whole networks share an operator with much that is unlike them.

    Args:
        has_passed: whether any kernel had passed when they were planned.
    """
    start, written = parts.run.start, _credit_unaided(candidates)
    own = [each for each in written if start and each.kernel.hash == start.hash]
    others = [each for each in written if each not in own]
    is_beginning = not has_passed and parts.session.present
    rest = _likeliest_first(others, parts, remembered) if is_beginning else [others]
    return [batch for batch in (own, *rest) if batch]


def _credit_unaided(candidates: Sequence[Candidate]) -> list[Candidate]:
    """One candidate for each text: a skill earns nothing by what is written without it too."""
    kept: dict[str, Candidate] = {}
    for candidate in candidates:
        if candidate.task.skill == UNAIDED:
            kept[candidate.kernel.hash] = candidate
        else:
            kept.setdefault(candidate.kernel.hash, candidate)
    return list(kept.values())


def _likeliest_first(
    candidates: Sequence[Candidate], parts: Parts, remembered: Remembered
) -> list[Sequence[Candidate]]:
    first: dict[Task, Candidate] = {}
    for candidate in candidates:
        first.setdefault(candidate.task, candidate)
    scouts = _scouts(list(first.values()), remembered)
    ahead = _ahead(scouts, parts, remembered)
    behind = [scout for scout in scouts if scout not in ahead]
    others = [candidate for candidate in candidates if candidate not in scouts]
    return [ahead, behind, others]


def _scouts(first: Sequence[Scout], remembered: Remembered) -> list[Scout]:
    """Of the first kernels of all tasks those that are measured before second ones."""
    held = [hit.outcome.choices for hit in remembered.winners if hit.distance < math.inf]
    leads = {choices: place for place, choices in reversed([*enumerate(held)])}
    return sorted(first, key=lambda scout: _promise(scout, leads))[:_SCOUTS]


def _ahead(scouts: Sequence[Scout], parts: Parts, remembered: Remembered) -> list[Scout]:
    """The one that is measured before all others, with the guess that goes beside it."""
    return [*scouts[:1], *_faster_guess(scouts, parts, remembered)]


def _promise(
    candidate: Scout, leads: Mapping[tuple[SiteChoice, ...], int]
) -> tuple[bool, int, float]:
    """What sorts the likeliest first: what memory holds, best first as it was measured; then by the
    predicted time.

    Args:
        leads: what memory holds for graphs of this structure, and its place among that.
    """
    task = candidate.task
    is_held = task.move is Move.RECALL and task.choices in leads
    place = leads[task.choices] if is_held else 0
    return not is_held, place, _predicted_ms(candidate)


def _faster_guess(scouts: Sequence[Scout], parts: Parts, remembered: Remembered) -> list[Scout]:
    """The best guess, if memory's kernel leads and is expected to be slower.

    By its prediction or by what it took, whichever is longer: what a graph takes beside predictions
    it takes of both. ShuffleNet took 4.8 ms of a predicted 8.5 (H200, 2026-11-28); a guess of 6.0
    is no slower for that.
    """
    guesses = [scout for scout in scouts[1:] if scout.task.move is not Move.RECALL][:1]
    if not guesses or scouts[0].task.move is not Move.RECALL:
        return []
    limit_ms = _CLEARLY_FASTER * _remembered_ms(scouts[0], parts, remembered)
    return guesses if _predicted_ms(guesses[0]) < limit_ms else []


def _remembered_ms(recalled: Scout, parts: Parts, remembered: Remembered) -> float:
    """What is predicted of a recalled kernel, or what it took for this very graph on such a card if
    that is longer; infinite if neither is known.
    """
    card, took_ms = parts.session.traced.device.full_name, None
    for hit in remembered.winners:
        outcome = hit.outcome
        is_same = hit.exact and outcome.choices == recalled.task.choices
        if is_same and outcome.device == card and outcome.latency_ms is not None:
            took_ms = outcome.latency_ms
            break
    return max((ms for ms in (took_ms, recalled.whole_ms) if ms is not None), default=math.inf)


def _predicted_ms(candidate: Scout) -> float:
    return math.inf if candidate.whole_ms is None else candidate.whole_ms
