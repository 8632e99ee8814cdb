"""What of a suite is recorded, what is missing, and how long the rest takes on a GPU.

A graph class is one problem file, at whatever sizes. What nobody has recorded at any size comes
first, so that a recording that is ended early has as many classes as it can.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kmem.learning.landscape import LandscapeDirectory, is_set_aside
from kmem.learning.recording.request import Asked, is_same_work
from kmem.records import Problem

#: What judging one setting takes, in seconds, one after another. Source: the median over the runs
#: of db/evidence/h200-2026-11-21.jsonl of the time between a run's outcomes.
SECONDS_A_SETTING = 1.4


@dataclass(frozen=True, slots=True)
class Outlook:
    """One problem of a suite: how many of its settings have a verdict, and what is left.

    `family` and `set_aside` are known of what was begun. `seconds_left` is an estimate.
    """

    name: str
    graph_class: str
    recorded: int
    finished: bool
    family: str | None
    set_aside: bool | None
    seconds_left: float


def look_ahead(
    directory: LandscapeDirectory, problems: Sequence[Problem], asked: Asked
) -> list[Outlook]:
    """The problems in the order in which they are recorded, those that are finished first."""
    found = {}
    for problem in problems:
        landscape = directory.find(problem.name)
        if landscape is not None and not is_same_work(landscape.header, problem, asked):
            landscape = None
        finished = landscape is not None and directory.is_finished(problem.name)
        recorded = len(landscape.settings) if landscape else 0
        family = landscape.header.family if landscape else None
        found[problem.name] = Outlook(
            problem.name,
            graph_class(problem),
            recorded,
            finished,
            family,
            is_set_aside(family) if family else None,
            0.0 if finished else SECONDS_A_SETTING * max(0, asked.settings - recorded),
        )
    finished_first = [each for each in problems if found[each.name].finished]
    waiting = [each for each in problems if not found[each.name].finished]
    turns = by_turns(waiting, [graph_class(each) for each in finished_first])
    return [found[each.name] for each in (*finished_first, *turns)]


def by_turns(waiting: Sequence[Problem], recorded: Sequence[str]) -> list[Problem]:
    """Problems of classes that were recorded least often first.

    Args:
        recorded: the class of each problem that is recorded.
    """
    seen = Counter(recorded)
    places = {}
    for problem in waiting:
        places[problem.name] = seen[graph_class(problem)]
        seen[graph_class(problem)] += 1
    return sorted(waiting, key=lambda problem: places[problem.name])


def graph_class(problem: Problem) -> str:
    """The name of the file that a problem is a size of."""
    file = problem.path.rstrip("/").removesuffix("/problem.py").removesuffix(".py")
    return file.rsplit("/", 1)[-1]
