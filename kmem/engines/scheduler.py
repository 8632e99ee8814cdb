"""Which worker gets which work when, and what a lost worker costs.

Longest first: the work that is expected to take longest is begun before all others, so that none is
left over at the end. A worker is given what it can run at once and, while there is more to do than
there are workers, one job ahead, whose files then lie there when its turn comes; nothing else is
handed over, so that what waits can still go to whoever is free first.

What a machine failed at is tried elsewhere, a few times. A work is known by its key: its end counts
once, whoever delivers it again. One thread uses a scheduler; tools/benchmark_scheduler.py drives it
with simulated crews of hundreds.
"""

import heapq
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

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
from kmem.errors import ExecutorError

#: How often a work is begun at most, when machines fail at it. Some are unlucky: of 10,000 works on
#: 512 GPUs that die 200 times in an hour, one or two lose three workers.
ATTEMPTS = 5
#: A job ends at its limit where it runs. One that is heard of no more so long after that is on a
#: machine that does not answer: it is begun elsewhere.
_OVERDUE_S = 120.0
#: How often that is looked for.
_LOOK_S = 5.0


class Verdict(Enum):
    """What the end of a job means for its work and its worker."""

    DONE = "done"
    ELSEWHERE = "elsewhere"  # the worker is not fit: it gets nothing more, and the work goes on


class Listener:
    """Who is told how a work goes; every method has a silent default."""

    def began(self, worker: Worker) -> None:
        """Its process was started."""

    def said(self, worker: Worker, stream: str, text: str) -> None:
        """It wrote a line to stdout or stderr."""

    def ended(self, worker: Worker, result: JobResult) -> Verdict:
        """It came to its end."""
        return Verdict.DONE

    def gave_up(self, reason: str) -> None:
        """Machines failed at it too often."""


@dataclass(frozen=True, slots=True)
class Work:
    """Something to be done once.

    `job` is asked when a worker is found, so that a job carries what is known by then.
    """

    key: str
    job: Callable[[Worker], Job]
    listener: Listener
    expected_s: float = 0.0  # how long it takes, about
    limit_s: float = math.inf
    gpu: bool = False


@dataclass(slots=True)
class _Placed:
    """A work with its worker."""

    work: Work
    worker: str
    deadline: float = math.inf


class Scheduler:
    """Hands works to the workers of a crew until all are done."""

    def __init__(
        self,
        crew: Crew,
        note: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is to be done yet.

        Args:
            note: told in a line of each worker that is lost or not fit.
            clock: in seconds.
        """
        self._crew = crew
        self._note = note
        self._clock = clock
        self.workers: dict[str, Worker] = {}
        self._has: dict[str, set[str]] = {}  # tickets of each worker
        self._known: dict[str, Work] = {}  # by key, until it is done
        self._done: set[str] = set()
        self._begun: dict[str, int] = {}  # how often each was begun
        self._failed_at: dict[str, set[str]] = {}  # workers that failed at it
        self._placed: dict[str, _Placed] = {}  # by ticket
        self._tickets: dict[str, str] = {}  # by key
        # by whether they need a GPU: works that wait, longest first, and workers by their load
        self._waiting: dict[bool, list[tuple[float, int, str]]] = {False: [], True: []}
        self._idle: dict[bool, list[tuple[int, int, str]]] = {False: [], True: []}
        self._counts = {False: 0, True: 0}  # workers
        self._ahead: dict[bool, dict[str, None]] = {False: {}, True: {}}  # tickets not begun
        self._order = 0
        self._next_look = -math.inf

    def add(self, work: Work) -> None:
        """Have a work done; one whose key was added before is not done again."""
        if work.key not in self._known and work.key not in self._done:
            self._known[work.key] = work
            self._wait(work)

    def cancel(self, key: str) -> None:
        """Have a work not done, or not to its end; its listener hears nothing more."""
        work = self._known.pop(key, None)
        if work is None:
            return
        ticket = self._tickets.pop(key, None)
        if ticket is not None:
            self._crew.cancel(ticket)
            self._take_back(ticket)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return not self._known

    def step(self, timeout_s: float) -> None:
        """Hand out what can be handed out, and take in what happened.

        Raises:
            ExecutorError: if the last worker is not fit, as it says.
        """
        self._hand_out()
        for event in self._crew.events(timeout_s):
            self._take_in(event)
        self._look_for_overdue()

    def run(self) -> None:
        """Go on until all is done."""
        while not self.is_done:
            self.step(1.0)

    def _wait(self, work: Work) -> None:
        self._order += 1
        heapq.heappush(self._waiting[work.gpu], (-work.expected_s, self._order, work.key))

    def _offer(self, worker: Worker) -> None:
        """Note that a worker has room, if it has."""
        load = len(self._has[worker.id])
        if load < worker.at_once + worker.ahead:
            self._order += 1
            heapq.heappush(self._idle[bool(worker.gpu)], (load, self._order, worker.id))

    def _hand_out(self) -> None:
        for gpu in (True, False):
            waiting, idle = self._waiting[gpu], self._idle[gpu]
            aside: list[tuple[float, int, str]] = []
            while waiting and idle:
                load, name = idle[0][0], idle[0][2]
                worker = self.workers.get(name)
                if worker is None or load != len(self._has[name]):
                    heapq.heappop(idle)  # an older offer
                    continue
                if waiting[0][2] not in self._known:
                    heapq.heappop(waiting)  # cancelled
                    continue
                # ahead only while there is enough for everybody
                if load >= worker.at_once and len(waiting) <= self._counts[gpu]:
                    break
                chosen = heapq.heappop(waiting)
                failed_at = self._failed_at.get(chosen[2], ())
                if name in failed_at and len(failed_at) < self._counts[gpu]:
                    aside.append(chosen)  # for somebody else
                    continue
                heapq.heappop(idle)
                self._place(self._known[chosen[2]], worker)
            for entry in aside:
                heapq.heappush(waiting, entry)
            if not waiting and idle:
                self._take_over(gpu)

    def _take_over(self, gpu: bool) -> None:
        """Have a worker that has nothing to do take over what another was given ahead."""
        name = self._idle[gpu][0][2]
        ahead = self._ahead[gpu]
        if self._has.get(name) or name not in self.workers:
            return
        others = [ticket for ticket in ahead if self._placed[ticket].worker != name]
        if others:
            self._crew.cancel(others[-1])
            work = self._placed[others[-1]].work
            self._begun[work.key] -= 1
            self._take_back(others[-1])
            self._place(work, self.workers[name])

    def _place(self, work: Work, worker: Worker) -> None:
        self._begun[work.key] = self._begun.get(work.key, 0) + 1
        self._order += 1
        ticket = f"{work.key}#{self._order}"
        self._placed[ticket] = _Placed(work, worker.id)
        self._tickets[work.key] = ticket
        if len(self._has[worker.id]) >= worker.at_once:
            self._ahead[work.gpu][ticket] = None
        self._has[worker.id].add(ticket)
        self._crew.start(worker, ticket, work.job(worker), timeout_s=work.limit_s)
        self._offer(worker)

    def _take_back(self, ticket: str) -> _Placed | None:
        """The work of a ticket, whose worker has room again; None if it is known no more."""
        placed = self._placed.pop(ticket, None)
        if placed is not None:
            self._ahead[placed.work.gpu].pop(ticket, None)
        if placed is not None and placed.worker in self.workers:
            self._has[placed.worker].discard(ticket)
            self._offer(self.workers[placed.worker])
        return placed

    def _take_in(self, event: Event) -> None:
        if isinstance(event, Joined):
            self._join(event.worker)
        elif isinstance(event, Lost):
            self._lose(event.worker, event.reason)
        elif event.ticket not in self._placed:
            return  # of a work that was cancelled, or is done
        elif isinstance(event, Began):
            placed = self._placed[event.ticket]
            self._ahead[placed.work.gpu].pop(event.ticket, None)
            placed.deadline = self._clock() + placed.work.limit_s + _OVERDUE_S
            placed.work.listener.began(self.workers[placed.worker])
        elif isinstance(event, Said):
            placed = self._placed[event.ticket]
            worker = self.workers[placed.worker]
            placed.work.listener.said(worker, event.stream, event.text)
        elif isinstance(event, Ended):
            self._end(event.ticket, event.result)
        else:
            self._fail(event)

    def _join(self, worker: Worker) -> None:
        if worker.id not in self.workers:
            self.workers[worker.id] = worker
            self._has[worker.id] = set()
            self._counts[bool(worker.gpu)] += 1
            self._offer(worker)

    def _lose(self, name: str, reason: str) -> None:
        worker = self.workers.pop(name, None)
        if worker is None:
            return
        self._counts[bool(worker.gpu)] -= 1
        tickets = self._has.pop(name)
        keys = ", ".join(sorted(self._placed[ticket].work.key for ticket in tickets))
        what = f"; begun again: {keys}" if keys else ""
        self._note(f"worker {name} is lost: {reason}{what}")
        for ticket in sorted(tickets):
            self._ahead[bool(worker.gpu)].pop(ticket, None)
            self._again(self._placed.pop(ticket).work, f"worker {name} was lost: {reason}")

    def _end(self, ticket: str, result: JobResult) -> None:
        placed = self._placed[ticket]
        worker, work = self.workers[placed.worker], placed.work
        verdict = work.listener.ended(worker, result)
        self._take_back(ticket)
        if verdict is Verdict.ELSEWHERE:
            self._begun[work.key] -= 1  # it is the worker that was not fit
            self._wait(work)
            for other in sorted(self._has[worker.id]):
                self._crew.cancel(other)
            self._lose(worker.id, "it is not fit, as it says")
            if not self._counts[work.gpu]:
                raise ExecutorError(
                    "No worker is fit to measure any more, as each says; kmem doctor shows how "
                    "machines differ"
                )
            return
        self._finish(work)

    def _finish(self, work: Work) -> None:
        self._known.pop(work.key, None)
        self._tickets.pop(work.key, None)
        self._begun.pop(work.key, None)
        self._failed_at.pop(work.key, None)
        self._done.add(work.key)

    def _fail(self, event: Failed) -> None:
        placed = self._take_back(event.ticket)
        if placed is not None:
            work, name = placed.work, placed.worker
            self._failed_at.setdefault(work.key, set()).add(name)
            self._note(f"worker {name} failed at {work.key}: {event.reason}")
            self._again(work, event.reason)

    def _again(self, work: Work, reason: str) -> None:
        if work.key not in self._known:
            return
        if self._begun[work.key] < ATTEMPTS:
            self._wait(work)
            return
        self._finish(work)
        work.listener.gave_up(f"begun {ATTEMPTS} times, the last time: {reason}")

    def _look_for_overdue(self) -> None:
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        overdue = [ticket for ticket, placed in self._placed.items() if placed.deadline < now]
        for ticket in overdue:
            self._crew.cancel(ticket)
            self._fail(Failed(ticket, "nothing is heard of it any more"))
