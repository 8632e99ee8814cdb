"""Which launches of a forward have their counters read, where reading all would take a minute.

A counter pass repeats a launch some ten times, and puts back each time what it wrote: half a second
for each launch, with the GPU held alone. A forward of many has equal ones, of which one is enough,
and short ones, which do not matter. So all are timed first, and the counters of those are read that
hold most of the time. The others have their times, and the counters of an equal one.
"""

import json
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from kmem.records import Launch

#: Share of a forward's time whose launches are counted, and the most launches that are.
SHARE, MOST = 0.95, 16

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a forward: one Triton launch, or what a library runs between two (no name)."""

    name: str
    grid: Grid | None
    ms: float
    counted: bool = False

    @property
    def is_library(self) -> bool:
        return not self.name


def pick(spans: Sequence[Span]) -> tuple[Span, ...]:
    """The spans of a forward, in order, with those marked whose counters are to be read.

    Of launches of one kernel over one grid that is the first.
    """
    groups: dict[object, list[int]] = defaultdict(list)
    for place, span in enumerate(spans):
        groups[place if span.is_library else (span.name, span.grid)].append(place)
    times = {places[0]: sum(spans[place].ms for place in places) for places in groups.values()}
    missing = SHARE * sum(times.values())
    counted = set()
    for place in sorted(times, key=times.__getitem__, reverse=True)[:MOST]:
        if missing <= 0 and counted:
            break
        counted.add(place)
        missing -= times[place]
    return tuple(replace(span, counted=place in counted) for place, span in enumerate(spans))


def put_together(spans: Sequence[Span], rows: Sequence[Launch]) -> tuple[Launch, ...]:
    """All launches of a forward, from those that were counted; the rows if they do not fit spans.

    In order, but that those of a library may be too early by launches that were not counted: how
    many it made in each place is not known.

    Args:
        rows: launches with counters, in order: one for each launch that was picked, any number for
            what was picked of a library.
    """
    waiting = deque(rows)
    picked = deque(span.name for span in spans if span.counted and not span.is_library)
    found: list[Launch | Span] = []
    counters: dict[tuple[str, Grid | None], Launch] = {}
    for span in spans:
        if span.is_library:
            while span.counted and waiting and not (picked and waiting[0].name == picked[0]):
                found.append(waiting.popleft())
        elif not span.counted:
            found.append(span)
        elif waiting and waiting[0].name == picked.popleft():
            counters[span.name, span.grid] = waiting.popleft()
            found.append(counters[span.name, span.grid])
        else:
            return tuple(rows)
    if waiting:
        return tuple(rows)
    return tuple(
        each if isinstance(each, Launch) else _uncounted(each, counters.get((each.name, each.grid)))
        for each in found
    )


def _uncounted(span: Span, equal: Launch | None) -> Launch:
    return equal if equal is not None else Launch(span.name, span.ms, span.grid, None, {})


def write_spans(spans: Sequence[Span]) -> str:
    """Spans as JSON."""
    return json.dumps([asdict(span) for span in spans])


def read_spans(text: str) -> tuple[Span, ...]:
    """Spans from JSON."""
    return tuple(
        Span(
            each["name"], tuple(each["grid"]) if each["grid"] else None, each["ms"], each["counted"]
        )
        for each in json.loads(text)
    )
