"""SIGTERM taken for a Ctrl-C, so that work on many problems ends as cleanly."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupt_on_termination() -> Iterator[None]:
    """Take SIGTERM, as `timeout` and job schedulers send it, for a Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
