"""A live panel on a terminal, plain lines elsewhere."""

import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Generic, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live

Event = TypeVar("Event")

#: Where there is no terminal, a log is told that work goes on after so many seconds without an
#: event, then after twice as many, and so on; and how often it is looked at how long it was.
SILENCE_S, _LOOK_S = 30.0, 1.0


class LiveDisplay(AbstractContextManager[Callable[[Event], None]], Generic[Event]):
    """A context manager that gives the function to call with each event."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._spoke_at = time.monotonic()
        self._closed = threading.Event()

    @property
    def is_live(self) -> bool:
        """Whether there is a terminal with a panel on it."""
        return self._live is not None

    def __enter__(self) -> Callable[[Event], None]:
        console = Console(stderr=True)
        if not console.is_terminal:
            threading.Thread(target=self._break_silences, daemon=True).start()
            return self._speak
        self._live = Live(
            get_renderable=self.render, console=console, refresh_per_second=4, transient=True
        )
        self._live.__enter__()
        return self.update

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closed.set()
        if self._live is not None:
            self._live.__exit__(kind, value, traceback)

    def _speak(self, event: Event) -> None:
        self._spoke_at = time.monotonic()
        self.print_line(event)

    def _break_silences(self) -> None:
        seen, due_s = self._spoke_at, SILENCE_S
        while not self._closed.wait(min(_LOOK_S, SILENCE_S)):
            silent_s = time.monotonic() - self._spoke_at
            if self._spoke_at != seen:
                seen, due_s = self._spoke_at, SILENCE_S
            elif silent_s >= due_s:
                self.print_still(silent_s)
                due_s *= 2

    @abstractmethod
    def print_line(self, event: Event) -> None:
        """Print a line about the event where stderr is no terminal."""

    def print_still(self, seconds: float) -> None:
        """Print that the last event still lasts where stderr is no terminal, if it is worth it."""

    @abstractmethod
    def update(self, event: Event) -> None:
        """Take the event into what `render` shows."""

    @abstractmethod
    def render(self) -> RenderableType:
        """The panel as it is now; called four times a second by a thread of its own."""
