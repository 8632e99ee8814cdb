"""Pieces of text that sections are made of: fenced blocks, table cells, shortened logs, results."""

import re
from collections.abc import Callable, Sequence

from kmem.records import Attempt

_CELL_CHARACTERS = 140
#: A frame of a traceback: two spaces, then four before what it quotes.
_FRAME = re.compile(r'^  File "([^"]*)", line \d+')


def fenced(text: str, label: str = "") -> str:
    """A fenced block whose fence is longer than any in the text."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    body = text.strip("\n")
    return f"{fence}{label}\n{body}\n{fence}"


def one_line(text: str, limit: int = _CELL_CHARACTERS) -> str:
    """A text on one line that fits a table's cell."""
    line = " ".join(text.split()).replace("|", "/")
    return line if len(line) <= limit else line[: limit - 3].rstrip() + "..."


def both_ends(text: str, limit: int) -> str:
    """The beginning and the end of a long text: compilers name the cause first, tracebacks last."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def shrinking(length: int, counts: Sequence[int], render: Callable[[int], str]) -> tuple[str, ...]:
    """Texts of a list for a Section: of as many items as the first count allows, then of fewer."""
    if not length:
        return ("",)
    return tuple(render(count) for count in dict.fromkeys(min(length, count) for count in counts))


def describe_result(attempt: Attempt) -> str:
    """Status, or time and speedup over the parent."""
    measurement = attempt.measurement
    if measurement.latency_ms is None:
        return measurement.status.value
    estimated = " (estimated)" if measurement.estimated else ""
    against = f", {attempt.speedup:.3f}x its parent" if attempt.speedup is not None else ""
    return f"passed, {measurement.latency_ms:.4g} ms{estimated}{against}"


def without_foreign_frames(log: str) -> str:
    """A log whose tracebacks show the candidate's own frames alone, for no other can be mended."""
    kept: list[str] = []
    is_foreign = False
    for line in log.splitlines():
        if match := _FRAME.match(line):
            is_foreign = "candidate" not in match[1]
        elif not line.startswith("    "):
            is_foreign = False
        if not is_foreign:
            kept.append(line)
    return "\n".join(kept)
