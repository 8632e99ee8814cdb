"""Asking again after failures that cost nothing and may pass.

This is the one place where kmem waits for a server; the SDKs' own retries are off. A try that fails
so raises `TryAgain`. The wait doubles from try to try, with seeded jitter so that parallel writers
spread; a server's Retry-After is honoured in its place. No wait goes past the deadline of the
request.
"""

import email.utils
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from kmem.errors import ProviderError

logger = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT")


class TryAgain(Exception):
    """One try failed in a way that cost nothing and may pass."""

    def __init__(
        self, reason: str, remedy: str, retry_after_s: float | None = None, tries: int | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason  # names the server and what it did
        self.remedy = remedy  # what the user can do once kmem has given up
        self.retry_after_s = retry_after_s
        self.tries = tries  # not to be tried more often than this, whatever Backoff says


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often to try, and how long to wait before the second try and at most.

    Each wait is shortened by up to half, at random.
    """

    tries: int = 6
    first_s: float = 1.0
    longest_s: float = 30.0

    def delays_s(self, seed: str) -> list[float]:
        """The waits between the tries, the same for the same seed."""
        rng = random.Random(seed)
        return [
            min(self.longest_s, self.first_s * 2**number) * rng.uniform(0.5, 1.0)
            for number in range(self.tries - 1)
        ]


def retrying(
    attempt: Callable[[], AnswerT],
    backoff: Backoff,
    *,
    seed: str,
    deadline: float,
    interrupted: threading.Event,
) -> AnswerT:
    """Call `attempt` until it does not raise TryAgain.

    Args:
        seed: of the jitter.
        deadline: on the clock of time.monotonic; no wait ends after it.
        interrupted: when it is set, nothing more is tried and waiting stops. In the main thread
            Ctrl-C ends a wait, too.

    Raises:
        ProviderError: if the last try failed, the next wait would go past the deadline, or the call
            was interrupted.
    """
    start = time.monotonic()
    delays_s = backoff.delays_s(seed)
    for tried in range(1, backoff.tries + 1):
        if interrupted.is_set():
            raise ProviderError("Interrupted before the question was put")
        try:
            return attempt()
        except TryAgain as ex:
            failure = ex
        spent = f"tried {_times(tried)} in {time.monotonic() - start:.0f} s"
        if tried >= min(backoff.tries, failure.tries or backoff.tries):
            raise ProviderError(f"{failure.reason} ({spent}); {failure.remedy}")
        wait_s = delays_s[tried - 1] if failure.retry_after_s is None else failure.retry_after_s
        left_s = deadline - time.monotonic()
        if wait_s > left_s:
            raise ProviderError(
                f"{failure.reason} ({spent}) and the next try, in {wait_s:.0f} s, is later than "
                f"the question may take; {failure.remedy}"
            )
        logger.info("%s; trying again in %.1f s", failure.reason, wait_s)
        if interrupted.wait(wait_s):
            raise ProviderError(
                f"{failure.reason} ({spent}); interrupted while waiting to try again"
            )
    raise AssertionError("the last try returns or raises")


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The wait a server asks for, in seconds.

    None if it asks for none or what it says cannot be read. Source: RFC 9110 section 10.2.3
    (seconds or a date); `retry-after-ms` is OpenAI's.
    """
    milliseconds, written = headers.get("retry-after-ms"), headers.get("retry-after")
    try:
        if milliseconds is not None:
            return max(0.0, float(milliseconds) / 1000)
        if written is None:
            return None
        if written.strip().replace(".", "", 1).isdigit():
            return float(written)
        date = email.utils.parsedate_to_datetime(written)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
