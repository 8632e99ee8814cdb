"""The minutes of a run: the clock that the loop looks at, and providers that keep to it.

A part of the minutes is kept for the final verification: the search is over when the rest is.

Only the loop and its stages ask the clock, in one thread and in an order that follows from the
run's records. A replay therefore needs two numbers of the time: how often the answer was "not yet"
to the search (`RunResult.looks_in_time`) and to the verification
(`RunResult.verifications_in_time`). Whether a model answered in time is in its record.
"""

import threading
from collections.abc import Callable
from dataclasses import replace

from kmem.errors import AnswerLost, OutOfTime, ProviderError
from kmem.host.parallel import AT_ONCE
from kmem.interfaces import Completion, ModelRequest, Provider


class Clock:
    """The run's minutes. Once the minutes are over they stay over."""

    def __init__(
        self, seconds_left: Callable[[], float], reserve_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        """Nothing has been asked yet.

        Args:
            seconds_left: of all the run's minutes; negative once they are used up.
            reserve_s: how many seconds of them are kept for the final verification.
        """
        self._all_seconds_left, self._reserve_s = seconds_left, reserve_s
        self._in_time, self._over = 0, False
        self._verified_in_time, self._verifying_over = 0, False

    @property
    def run_seconds_left(self) -> float:
        """What is left of the run's minutes, in seconds; 0 or less when they are over."""
        return self._all_seconds_left()

    @property
    def seconds_left(self) -> float:
        """What is left of them for the search, in seconds; 0 or less when that is over."""
        return self._all_seconds_left() - self._reserve_s()

    @property
    def looks_in_time(self) -> int | None:
        """How often `is_over` said no before the minutes were over; None if they never were."""
        return self._in_time if self._over else None

    @property
    def verifications_in_time(self) -> int | None:
        """How often `may_verify` said yes before it said no; None if it never said no."""
        return self._verified_in_time if self._verifying_over else None

    def is_over(self) -> bool:
        """Whether the search's minutes are used up; every call is counted (`looks_in_time`)."""
        if not self._over and self.seconds_left > 0:
            self._in_time += 1
            return False
        self._over = True
        return True

    def may_verify(self, *, is_first: bool) -> bool:
        """Whether there is time for one more final verdict; every call is counted.

        Args:
            is_first: of the run: one is always due.
        """
        if not self._verifying_over and (is_first or self.run_seconds_left > 0):
            self._verified_in_time += 1
            return True
        self._verifying_over = True
        return False

    def is_ready(self, known: bool) -> bool:
        """Whether something that runs beside the search has come to its end by now.

        A replay goes by what the run recorded instead.
        """
        return known


class PunctualProvider(Provider):
    """A provider that is asked AT_ONCE questions at once at most, none longer than the run lasts.

    `complete` raises OutOfTime if the minutes are over before the question is put, or before the
    server has answered. `interrupt` is for good here: after it `complete` raises ProviderError,
    because the run is to end.
    """

    def __init__(self, provider: Provider, clock: Clock) -> None:
        self._provider, self._clock = provider, clock
        self._slots = threading.Semaphore(AT_ONCE)
        self._ended = False
        self.name, self.counts_tokens = provider.name, provider.counts_tokens

    def complete(self, request: ModelRequest) -> Completion:
        with self._slots:
            left_s = self._clock.seconds_left
            if self._ended:
                raise ProviderError(f"The run was interrupted, so {request.model} is not asked")
            if left_s <= 0:
                raise OutOfTime(
                    f"The minutes of this run are over, so {request.model} is not asked; raise "
                    f"--minutes"
                )
            try:
                return self._provider.complete(
                    replace(request, timeout_s=min(request.timeout_s, left_s))
                )
            except AnswerLost:  # may be charged: the budget books it, and the next try fails above
                raise
            except ProviderError as ex:
                if self._clock.seconds_left > 0:
                    raise
                raise OutOfTime(
                    f"The minutes of this run were over before {request.model} answered: {ex}"
                ) from ex

    def models(self, base_url: str | None = None) -> list[str]:
        return self._provider.models(base_url)

    def interrupt(self) -> None:
        self._ended = True
        self._provider.interrupt()
