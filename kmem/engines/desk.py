"""A scheduler in a thread of its own, for callers that wait for single works."""

import queue
import threading
from collections.abc import Callable
from types import TracebackType

from kmem.engines.executor import Crew
from kmem.engines.scheduler import Scheduler, Work

#: How long the scheduler waits for events before it looks for new works.
_TURN_S = 0.1


class Desk:
    """Takes works from several threads. A context manager, whose end ends the crew."""

    def __init__(
        self,
        crew: Crew,
        note: Callable[[str], None],
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin to wait for works.

        Args:
            note: as for `Scheduler`; called from a thread of its own.
            at_end: called by that thread when it ends.
        """
        self._crew = crew
        self._at_end = at_end
        self._scheduler = Scheduler(crew, note)
        self._asked: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def add(self, work: Work) -> None:
        """Have a work done; its listener is called from the desk's thread."""
        self._asked.put(lambda: self._scheduler.add(work))

    def cancel(self, key: str) -> None:
        """Have a work not done, or not to its end."""
        self._asked.put(lambda: self._scheduler.cancel(key))

    def check(self) -> None:
        """Raise what ended the desk's thread, if anything did."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the crew, with all that it has; a second time does nothing."""
        self._closed.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            while not self._closed.is_set():
                while not self._asked.empty():
                    self._asked.get()()
                self._scheduler.step(_TURN_S)
            while not self._asked.empty():  # what is to be cancelled
                self._asked.get()()
        except BaseException as ex:  # noqa: BLE001 - raised where somebody waits
            self._error = ex
        finally:
            self._crew.close()
            self._at_end()

    def __enter__(self) -> "Desk":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
