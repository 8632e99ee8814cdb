"""An answer while its stream is read: what has come so far, and whether reading goes on."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from kmem.errors import AnswerLost, Interrupted, ProviderError
from kmem.interfaces import Completion, ModelRequest, StopReason
from kmem.providers.keys import redact_answer

logger = logging.getLogger(__name__)

EventT = TypeVar("EventT")

#: A model that has written more bytes than this for every token it may write is not keeping to
#: max_output_tokens. Source: the longest tokens of OpenAI's o200k_base, runs of spaces, have 128
#: bytes.
BYTES_PER_TOKEN = 128


class Answer:
    """Collects what the events of a stream say.

    `stop` stays None until the server says that the answer is whole.
    """

    def __init__(
        self, request: ModelRequest, base_url: str, deadline: float, interrupted: threading.Event
    ) -> None:
        self.begun = False  # whether any event has been read
        self.refused = False  # whether the text is a refusal
        self.deadline = deadline  # on the clock of time.monotonic
        self.model = request.model
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens = self.written_tokens = 0  # of the input, in the provider's cache
        self.stop: StopReason | None = None
        self._request = request
        self._base_url = base_url
        self._interrupted = interrupted
        self._pieces: list[str] = []
        self._bytes = 0

    @property
    def left_s(self) -> float:
        """Seconds until the request's timeout; more than 0, as HTTP clients want it."""
        return max(0.01, self.deadline - time.monotonic())

    def write(self, text: str) -> None:
        """Add a piece of text."""
        self._pieces.append(text)
        self._bytes += len(text.encode(errors="replace"))

    def goes_on(self) -> bool:
        """Whether to read the event that has come: not if the model has long passed its limit.

        Raises:
            AnswerLost: if the time is up.
            Interrupted: if the call was interrupted.
        """
        if self._interrupted.is_set():
            raise Interrupted(f"Interrupted while {self._base_url} was answering")
        if time.monotonic() > self.deadline:
            raise self.timed_out()
        if self._bytes > self._request.max_output_tokens * BYTES_PER_TOKEN:
            self.stop = StopReason.LENGTH
            # what it has counted so far is not the whole
            self.input_tokens = self.output_tokens = None
            return False
        return True

    def timed_out(self) -> AnswerLost:
        """The error for an answer that is not whole when the request's time is up."""
        said = "was still answering" if self.begun else "gave no answer"
        return AnswerLost(
            f"{self._base_url} {said} after {self._request.timeout_s:.0f} s; use a lower effort, "
            "fewer output tokens or a faster model"
        )

    def completion(self, wire: str) -> Completion:
        """The whole answer.

        Raises:
            AnswerLost: if the stream ended before it was whole.
            ProviderError: if it was no answer at all.
        """
        if not self.begun:
            raise ProviderError(
                f"{self._base_url} sent no answer in the form of {wire}; correct --base-url"
            )
        if self.stop is None:
            raise AnswerLost(f"{self._base_url} ended its answer before it was whole; ask again")
        stop = StopReason.REFUSAL if self.refused else self.stop
        # A server that does not count may say 0, which no question has.
        counts = (self.input_tokens, self.output_tokens) if self.input_tokens else (None, None)
        # an alias is answered by a dated model of that name
        if not self.model.startswith(self._request.model):
            logger.warning(
                "%s answered with the model %s where %s was asked",
                self._base_url,
                self.model,
                self._request.model,
            )
        # answers are archived, and a relay may repeat what it was sent
        text = redact_answer(_whole_characters("".join(self._pieces)))
        kept = (self.cached_tokens, self.written_tokens) if counts[0] else (0, 0)
        return Completion(text, self.model, *counts, stop, *kept)


def at_once(ask: Callable[[], EventT]) -> AbstractContextManager[Iterable[EventT]]:
    """An answer that comes whole, as a stream of one event that is asked for when it is read."""

    def only() -> Iterator[EventT]:
        yield ask()

    return nullcontext(only())


def _whole_characters(text: str) -> str:
    """The text with the halves of split surrogate pairs joined, and a lone half replaced.

    A server may split a pair between two pieces. JSON can carry a half, but no file or request can.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
