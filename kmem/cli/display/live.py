"""A live panel on a terminal, plain lines elsewhere."""

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Generic, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live

Event = TypeVar("Event")


class LiveDisplay(AbstractContextManager[Callable[[Event], None]], Generic[Event]):
    """A context manager that gives the function to call with each event."""

    def __init__(self) -> None:
        self._live: Live | None = None

    @property
    def is_live(self) -> bool:
        """Whether there is a terminal with a panel on it."""
        return self._live is not None

    def __enter__(self) -> Callable[[Event], None]:
        console = Console(stderr=True)
        if not console.is_terminal:
            return self.print_line
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
        if self._live is not None:
            self._live.__exit__(kind, value, traceback)

    @abstractmethod
    def print_line(self, event: Event) -> None:
        """Print a line about the event where stderr is no terminal."""

    @abstractmethod
    def update(self, event: Event) -> None:
        """Take the event into what `render` shows."""

    @abstractmethod
    def render(self) -> RenderableType:
        """The panel as it is now; called four times a second by a thread of its own."""
