"""The conversations of a run as text for people, beside the archive that resuming reads."""

from collections.abc import Iterable

from kmem.interfaces import CompletionArchive, CompletionKey, CompletionRecord, Unanswered
from kmem.run.directory import RunDirectory


class FiledArchive:
    """A CompletionArchive that also writes every conversation to a file.

    The file is conversations/<round>-<role>-<slot>-<turn>.md in the run directory.
    """

    def __init__(self, archive: CompletionArchive, directory: RunDirectory) -> None:
        self._archive, self._directory = archive, directory

    def note(self, question: Unanswered) -> None:
        """Store that a question is about to be put."""
        self._archive.note(question)

    def withdraw(self, key: CompletionKey) -> None:
        """Take back the last note on a question."""
        self._archive.withdraw(key)

    def unanswered(self) -> Iterable[Unanswered]:
        """Every note that stands."""
        return self._archive.unanswered()

    def find(self, key: CompletionKey) -> CompletionRecord | None:
        """The answer the archive already has to a question."""
        return self._archive.find(key)

    def keep(self, record: CompletionRecord) -> None:
        """Store a question and its answer, then write the file.

        In this order, because an answer that is paid for must not be lost to a full run directory.
        """
        self._archive.keep(record)
        key = record.key
        self._directory.write_text(
            f"conversations/{key.round:02d}-{key.role}-{key.slot}-{key.turn}.md",
            render_conversation(record),
        )

    def records(self) -> Iterable[CompletionRecord]:
        """Every answer the archive already has, oldest first."""
        return self._archive.records()


def render_conversation(record: CompletionRecord) -> str:
    """A question with its messages, the answer, and the provider's own counts."""
    key, completion = record.key, record.completion
    cost = "" if record.usd is None else f", {record.usd:.4f} USD"
    question = f"{key.role} of round {key.round} about {key.slot}, turn {key.turn}"
    counts = f"{completion.input_tokens} tokens read, {completion.output_tokens} written"
    lines = [
        f"==== {question}, asked of {record.request.model}",
        *(f"---- {message.role}\n{message.text}" for message in record.request.messages),
        f"---- answer ({completion.stop.value}, {counts}{cost}, {record.seconds:.1f} s)",
        completion.text,
    ]
    return "\n".join(lines) + "\n"
