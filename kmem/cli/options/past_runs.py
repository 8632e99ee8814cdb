"""Which of the past runs a command is about: RunFilter."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase

import click

from kmem.cli.display.entries import seen_state
from kmem.cli.options.records import option
from kmem.memory.runs.entries import RunEntry
from kmem.records import RunState


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Runs by state and problem."""

    state: str | None = option(
        "--state",
        type=click.Choice([*(state.value for state in RunState), "killed"]),
        help="Only runs in this state.",
    )
    problem: str | None = option(
        "--problem",
        help="Only runs of problems with this name, or a pattern such as 'conv*'.",
    )

    @property
    def is_empty(self) -> bool:
        """Whether every run passes."""
        return self.state is None and self.problem is None

    def choose(self, entries: Sequence[RunEntry]) -> list[RunEntry]:
        """Those of the entries that are asked for."""
        return [
            entry
            for entry in entries
            if (self.problem is None or fnmatchcase(entry.run.problem.name, self.problem))
            and (self.state is None or seen_state(entry) == self.state)
        ]


def read_moment(when: str, option_name: str) -> str:
    """A moment as runs write it, in UTC: a date, or a time ago. Raises BadParameter."""
    if match := re.fullmatch(r"(\d+)([hd])", when):
        hours = int(match[1]) * (24 if match[2] == "d" else 1)
        return (datetime.now(UTC) - timedelta(hours=hours)).isoformat(timespec="seconds")
    try:
        found = datetime.fromisoformat(when)
    except ValueError as ex:
        raise click.BadParameter(
            f"'{when}' is no date (2026-01-31) and no time (12h, 7d)", param_hint=option_name
        ) from ex
    return found.astimezone(UTC).isoformat(timespec="seconds")
