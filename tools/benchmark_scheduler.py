"""What the scheduler of kmem/engines/ costs, and how near it comes to the least possible makespan.

The scheduler is the one that every executor uses; only its crew is simulated: workers that take as
long as they take on a clock of their own, die with what they have, and come back.

    python tools/benchmark_scheduler.py --works 10000 --gpus 512 --deaths 200

Of the durations the scheduler knows an estimate that is off by a factor (a lognormal error). The
lower bound is the greater of the longest work, and of all work over all workers with what the dead
took with them counted as done for nothing.
"""

import argparse
import heapq
import random
import time
import tracemalloc
from collections import deque
from dataclasses import dataclass, field

from kmem.engines.executor import (
    Began,
    Crew,
    Ended,
    Event,
    Failed,
    Job,
    JobResult,
    Joined,
    Lost,
    Said,
    Worker,
)
from kmem.engines.scheduler import Listener, Scheduler, Verdict, Work

_RESULT = JobResult(0, "", "", {}, 0.0)
_JOB = Job(("python",), {}, {})


@dataclass(frozen=True, slots=True)
class Asked:
    """What is simulated."""

    works: int
    gpus: int
    deaths: int  # of workers, spread over the first four fifths of the ideal makespan
    back_after_s: float
    failing: float  # part of jobs at which a machine fails half-way
    median_s: float
    sigma: float  # of the logarithm of durations
    error: float  # of the logarithm of estimates
    lines: int  # that a job says
    ahead: int
    seed: int


@dataclass(slots=True)
class _Running:
    """What a simulated worker has."""

    now: str = ""
    since: float = 0.0
    queue: deque[str] = field(default_factory=deque)


class SimulatedCrew(Crew):
    """Workers on a clock that jumps from event to event."""

    def __init__(self, asked: Asked, durations: dict[str, float]) -> None:
        self._asked = asked
        self._durations = durations
        self._random = random.Random(asked.seed + 1)
        self.now = self.lost_s = 0.0
        self.own_s = 0.0
        self._order = 0
        self._coming: list[tuple[float, int, Event | str]] = []
        self._workers: dict[str, _Running] = {}
        self._place: dict[str, str] = {}  # of a ticket
        for number in range(asked.gpus):
            self._push(0.0, Joined(self._worker(number)))
        ideal_s = sum(durations.values()) / asked.gpus
        for _ in range(asked.deaths):
            name = f"gpu-{self._random.randrange(asked.gpus)}"
            self._push(self._random.uniform(0, 0.8 * ideal_s), Lost(name, "the node died"))

    def _worker(self, number: int) -> Worker:
        return Worker(f"gpu-{number}", f"host-{number // 8}", str(number), 1, self._asked.ahead)

    def _push(self, at: float, event: Event) -> None:
        self._order += 1
        heapq.heappush(self._coming, (at, self._order, event))

    def start(self, worker: Worker, ticket: str, job: Job, *, timeout_s: float) -> None:
        began = time.perf_counter()
        has = self._workers[worker.id]
        self._place[ticket] = worker.id
        has.queue.append(ticket)
        if not has.now:
            self._next(worker.id)
        self.own_s += time.perf_counter() - began

    def _next(self, name: str) -> None:
        has = self._workers[name]
        has.now, has.since = (has.queue.popleft() if has.queue else ""), self.now
        if not has.now:
            return
        seconds = self._durations[has.now.partition("#")[0]]
        self._push(self.now, Began(has.now))
        for number in range(self._asked.lines):
            at = self.now + seconds * (number + 1) / (self._asked.lines + 1)
            self._push(at, Said(has.now, "stderr", "a stage of it"))
        if self._random.random() < self._asked.failing:
            self._push(self.now + seconds / 2, Failed(has.now, "a full disk"))
        else:
            self._push(self.now + seconds, Ended(has.now, _RESULT))

    def cancel(self, ticket: str) -> None:
        name = self._place.pop(ticket, None)  # given ahead, and taken over by another
        if name is not None:
            self._workers[name].queue.remove(ticket)

    def events(self, timeout_s: float) -> list[Event]:
        began = time.perf_counter()
        until, found = self.now + timeout_s, []
        while self._coming and not found:
            at = self._coming[0][0]
            if at > until:
                break
            self.now = at
            while self._coming and self._coming[0][0] == at:
                event = heapq.heappop(self._coming)[2]
                if self._holds(event):
                    found.append(event)
        if not found:
            self.now = until
        self.own_s += time.perf_counter() - began
        return found

    def _holds(self, event: Event) -> bool:
        """Make an event happen; False if its worker died before."""
        if isinstance(event, Joined):
            self._workers[event.worker.id] = _Running()
        elif isinstance(event, Lost):
            has = self._workers.pop(event.worker, None)
            if has is None:
                return False
            self.lost_s += self.now - has.since if has.now else 0.0
            for ticket in (has.now, *has.queue):
                self._place.pop(ticket, None)
            number = int(event.worker.removeprefix("gpu-"))
            self._push(self.now + self._asked.back_after_s, Joined(self._worker(number)))
        elif event.ticket not in self._place:
            return False
        elif isinstance(event, Ended | Failed):
            name = self._place.pop(event.ticket)
            if isinstance(event, Failed):
                self.lost_s += self.now - self._workers[name].since
            self._next(name)
        return True

    def close(self) -> None:
        pass


class _Counting(Listener):
    """Counts the ends of one work: there is one."""

    def __init__(self) -> None:
        self.ends = 0

    def ended(self, worker: Worker, result: JobResult) -> Verdict:
        self.ends += 1
        return Verdict.DONE

    def gave_up(self, reason: str) -> None:
        raise AssertionError(f"no work fails so often: {reason}")


def simulate(asked: Asked) -> dict[str, float]:
    """One simulated bench: its figures by name, times in seconds."""
    generator = random.Random(asked.seed)
    durations = {
        f"p{number}": asked.median_s * generator.lognormvariate(0.0, asked.sigma)
        for number in range(asked.works)
    }
    crew = SimulatedCrew(asked, durations)
    notes: list[str] = []
    scheduler = Scheduler(crew, notes.append, lambda: crew.now)
    listeners = []
    began = time.perf_counter()
    for key, seconds in durations.items():
        listeners.append(_Counting())
        expected_s = seconds * generator.lognormvariate(0.0, asked.error)
        scheduler.add(
            Work(key, lambda worker: _JOB, listeners[-1], expected_s, 10 * seconds, gpu=True)
        )
    steps = 0
    while not scheduler.is_done:
        scheduler.step(60.0)
        steps += 1
    wall_s = time.perf_counter() - began
    assert all(listener.ends == 1 for listener in listeners), "every work ends once"
    longest_s = max(durations.values())
    bound_s = max((sum(durations.values()) + crew.lost_s) / asked.gpus, longest_s)
    return {
        "makespan_s": crew.now,
        "bound_s": bound_s,
        "over_bound": crew.now / bound_s,
        "longest_s": longest_s,
        "lost_s": crew.lost_s,
        "notes": float(len(notes)),
        "steps": float(steps),
        "scheduler_s": wall_s - crew.own_s,
        "scheduler_us_per_work": 1e6 * (wall_s - crew.own_s) / asked.works,
    }


def main() -> None:
    """Print the figures of one simulated bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--works", type=int, default=10_000)
    parser.add_argument("--gpus", type=int, default=512)
    parser.add_argument("--deaths", type=int, default=200)
    parser.add_argument("--back-after", type=float, default=300.0, help="seconds")
    parser.add_argument("--failing", type=float, default=0.01)
    parser.add_argument("--median", type=float, default=180.0, help="seconds of a work")
    parser.add_argument("--sigma", type=float, default=0.6)
    parser.add_argument("--error", type=float, default=0.3)
    parser.add_argument("--lines", type=int, default=10)
    parser.add_argument("--ahead", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    asked = Asked(
        given.works,
        given.gpus,
        given.deaths,
        given.back_after,
        given.failing,
        given.median,
        given.sigma,
        given.error,
        given.lines,
        given.ahead,
        given.seed,
    )
    found = simulate(asked)
    tracemalloc.start()
    simulate(asked)
    found["peak_mib"] = tracemalloc.get_traced_memory()[1] / 2**20
    for name, value in found.items():
        print(f"{name:24} {value:14.3f}")


if __name__ == "__main__":
    main()
