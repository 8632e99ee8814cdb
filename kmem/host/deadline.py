"""A deadline for code of the user's that runs in this process."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class DeadlinePassed(BaseException):
    """Raised in the code that took too long; no `except Exception` of its own stops it."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise DeadlinePassed inside, in this thread, once the seconds are over.

    Covered: whatever runs Python, in any thread. Not covered: one call into C that does not return.
    """
    thread = threading.get_ident()
    lock = threading.Lock()
    is_over = False

    def interrupt() -> None:
        with lock:
            if not is_over:
                _raise_in(thread, DeadlinePassed)

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            is_over = True
        timer.cancel()


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Source: PyThreadState_SetAsyncExc, Python/C API; raised at the next byte code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
