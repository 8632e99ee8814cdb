"""What a run tells its display: the stage, a sentence, and where the run stands."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from kmem.records import Run
from kmem.run.setup.session import Session
from kmem.run.state.clock import Clock
from kmem.run.state.history import History

Announce: TypeAlias = Callable[[str, str], None]  # (stage, text)


@dataclass(frozen=True, slots=True)
class Event:
    """What a progress display shows: the stage, a sentence, and where the run stands.

    `seconds_left` of the run's minutes is negative once they are over.
    """

    stage: str
    text: str
    best_ms: float | None
    baseline_ms: float | None
    speed_of_light: float | None
    measurements: int
    seconds_left: float
    estimated: bool


class Announcer:
    """Makes an Event of a sentence.

    `clock` shows all of the budget until the run's own clock is put in its place: opening an
    evaluator may have to wait for the GPU's memory, and says so.
    """

    def __init__(
        self, run: Run, session: Session, history: History, on_event: Callable[[Event], None]
    ) -> None:
        self._session = session
        self._history = history
        self._on_event = on_event
        self.clock = Clock(lambda: 60 * run.budget.minutes)

    def announce(self, stage: str, text: str) -> None:
        """Tell the display."""
        best_ms, bound = self._history.best_ms, self._session.traced.bound
        timed = [each.timing.latency_ms for each in self._history.baselines if each.timing]
        self._on_event(
            Event(
                stage=stage,
                text=text,
                best_ms=best_ms,
                baseline_ms=min(timed, default=None),
                speed_of_light=bound.time_ms / best_ms if bound and best_ms else None,
                measurements=self._history.measurements,
                seconds_left=self.clock.run_seconds_left,
                estimated=not self._session.present,
            )
        )
