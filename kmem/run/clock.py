"""The minutes of a run: the clock that the loop looks at, and language-model providers that keep to
it.

`Clock.is_over` is asked by the loop alone, in one thread and in an order that follows from the
run's records; so how often it said "not yet" (`RunResult.looks_in_time`) is all that a replay must
know of the time. Whether a model answered in time, its record says.
"""

import threading
from collections.abc import Callable
from dataclasses import replace

from kmem.errors import AnswerLost, OutOfTime, ProviderError
from kmem.host.parallel import AT_ONCE
from kmem.interfaces import Completion, ModelRequest, Provider


class Clock:
    """The run's minutes. Once they are over they stay so."""

    def __init__(self, seconds_left: Callable[[], float]) -> None:
        self._seconds_left = seconds_left
        self._in_time, self._over = 0, False

    @property
    def seconds_left(self) -> float:
        """0 or less when they are over."""
        return self._seconds_left()

    @property
    def looks_in_time(self) -> int | None:
        """How often `is_over` was asked before they were over; None if they never were."""
        return self._in_time if self._over else None

    def is_over(self) -> bool:
        """Whether they are used up: a look that counts."""
        if not self._over and self.seconds_left > 0:
            self._in_time += 1
            return False
        self._over = True
        return True


class PunctualProvider(Provider):
    """Another provider, asked AT_ONCE questions at once at most, whose calls end with the run's
    clock at the latest.

    `complete` raises OutOfTime if the clock has run out, before the question or while it waited for
    a server that gave no answer, and ProviderError after `interrupt`, which is for good here: it
    ends the run, not the provider.
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
            # it may be charged: for the purse to book, which then asks again and is told above
            except AnswerLost:
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
