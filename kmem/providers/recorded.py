"""The `replay` provider: recorded conversations in place of a model.

The model is the path of a JSON-lines file with one CompletionRecord per line, as
kmem.serialize.to_json writes it. A question gets the answer that was recorded for exactly the same
messages; where they were recorded several times, the answers are given in the file's order and the
last one again and again. A question that was not recorded is an error: an answer to another
question would be a silent fallback. (`kmem runs replay` does not need this: it finds a run's
answers in its archive, by the place of the question in the run.)
"""

import threading
from collections import defaultdict
from pathlib import Path

from kmem.errors import ProviderError
from kmem.interfaces import Completion, CompletionRecord, Message, ModelRequest, Provider
from kmem.serialize import from_json


class RecordingsProvider(Provider):
    """Answers from files, each of which is read once.

    A file keeps its place for as long as the provider lives.
    """

    name = "replay"

    def __init__(self) -> None:
        self._recordings: dict[str, _Recording] = {}
        self._lock = threading.Lock()

    def complete(self, request: ModelRequest) -> Completion:
        """The recorded answer.

        Raises:
            ProviderError: if the file cannot be read or has no answer to these messages.
        """
        self.check(request.model)
        with self._lock:
            return self._recordings[request.model].next(request.messages)

    def check(self, model: str, base_url: str | None = None) -> None:
        """See `Provider.check`: whether the file can be read."""
        with self._lock:
            if model not in self._recordings:
                self._recordings[model] = _Recording(Path(model))

    def models(self, base_url: str | None = None) -> list[str]:
        """No names: any file of recorded conversations is a model of this provider."""
        return []


class _Recording:
    """One file: the answers to each list of messages, and how many of them were given."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._answers: dict[tuple[Message, ...], list[Completion]] = defaultdict(list)
        self._given: dict[tuple[Message, ...], int] = defaultdict(int)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as ex:
            raise ProviderError(
                f"Recorded conversations {path} cannot be read ({type(ex).__name__}); name "
                "another with -m"
            ) from None
        for number, line in enumerate(lines, start=1):
            if line.strip():
                self._add(number, line)

    def next(self, messages: tuple[Message, ...]) -> Completion:
        answers = self._answers.get(messages)
        if answers is None:
            start = " ".join(messages[-1].text.split())[:60]
            raise ProviderError(
                f"{self._path} has no answer to the question that starts '{start}'; record it "
                "first, or use a live model"
            )
        place = min(self._given[messages], len(answers) - 1)
        self._given[messages] += 1
        return answers[place]

    def _add(self, number: int, line: str) -> None:
        try:
            record = from_json(CompletionRecord, line)
        except ValueError as ex:
            reason = str(ex).splitlines()[0]
            raise ProviderError(
                f"{self._path}, line {number}, is not a recorded conversation ({reason}); mend or "
                "remove it"
            ) from None
        self._answers[record.request.messages].append(record.completion)
