"""How long each GPU of a bench was in use between its first and its last measurement, and for what.

In use is a GPU while anybody holds its lease (kmem/host/lease.py): checks of candidates, which
share it, and timings, which are alone. Where several hold it at once, that time counts once. What
it was held for is counted in the seconds of all holders: of two that share it each has its own.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

#: Where a bench keeps it: a line for each piece of the bench.
FILE = "utilisation.jsonl"
#: So many purposes are told, those that took longest first.
_TOLD = 5


class Hold(NamedTuple):
    """A GPU that was held once. Times are in seconds since 1970."""

    begin: float
    end: float
    alone: bool
    purpose: str


@dataclass(frozen=True, slots=True)
class Utilisation:
    """How long a GPU was held between its first hold and its last one, in seconds."""

    gpu: str
    span_s: float
    held_s: float
    alone_s: float
    # by purpose: the seconds of all holders, how often it was held, and the longest hold
    held_for_s: Mapping[str, float] = field(default_factory=dict)
    times: Mapping[str, int] = field(default_factory=dict)
    longest_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Of the time between the first and the last measurement."""
        return self.held_s / self.span_s if self.span_s else 0.0


def read_holds(directory: Path, word: str, since: float = 0.0) -> dict[str, list[Hold]]:
    """What was written down under a word beside the lock files, by GPU.

    Args:
        since: holds that ended before, in seconds since 1970, are left out.
    """
    found = {}
    for file in directory.glob(f"gpu-*.{word}.holds"):
        gpu = file.name.removeprefix("gpu-").removesuffix(f".{word}.holds")
        holds = []
        for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
            words = line.split(maxsplit=3)
            if len(words) == 4 and line.endswith("\n"):  # else a kill tore it
                alone = words[2] == "1"
                holds.append(Hold(float(words[0]), float(words[1]), alone, words[3].strip()))
        found[gpu] = [hold for hold in holds if hold.end >= since]
    return found


def measure_utilisation(holds: Mapping[str, Sequence[Hold]]) -> list[Utilisation]:
    """The utilisation of each GPU that was held at all, by name."""
    found = []
    for gpu, own in sorted(holds.items()):
        if not own:
            continue
        span_s = max(hold.end for hold in own) - min(hold.begin for hold in own)
        lengths: dict[str, list[float]] = defaultdict(list)
        for hold in own:
            lengths[hold.purpose].append(hold.end - hold.begin)
        by_time = sorted(lengths, key=lambda purpose: -sum(lengths[purpose]))
        found.append(
            Utilisation(
                gpu,
                span_s,
                _joined_s(own),
                _joined_s(hold for hold in own if hold.alone),
                {purpose: sum(lengths[purpose]) for purpose in by_time},
                {purpose: len(lengths[purpose]) for purpose in by_time},
                {purpose: max(lengths[purpose]) for purpose in by_time},
            )
        )
    return found


def _joined_s(holds: Iterable[Hold]) -> float:
    """How long at least one of the holds lasted, in seconds."""
    total_s, until = 0.0, 0.0
    for hold in sorted(holds):
        total_s += max(0.0, hold.end - max(hold.begin, until))
        until = max(until, hold.end)
    return total_s


def utilisation_data(found: Sequence[Utilisation], wall_s: float) -> dict[str, Any]:
    """What one piece of a bench keeps: how long it took, and how long each GPU was in use."""
    gpus = [{**asdict(each), "share": each.share} for each in found]
    return {"wall_s": wall_s, "gpus": gpus}


def keep_utilisation(root: Path, data: Mapping[str, Any]) -> None:
    """Add a line to the directory of a bench."""
    with (root / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(data) + "\n")


def describe_utilisation(found: Sequence[Utilisation]) -> str:
    """A line for each GPU; empty without any."""
    return "\n".join(
        f"{each.gpu}: in use {each.share:.0%} of {each.span_s / 60:.1f} min between its first and "
        f"last measurement, timing alone {each.alone_s / each.span_s if each.span_s else 0:.0%}; "
        f"of its holders' time {_describe_purposes(each.held_for_s)}"
        for each in found
    )


def _describe_purposes(held_for_s: Mapping[str, float]) -> str:
    total_s = sum(held_for_s.values()) or 1.0
    told = list(held_for_s.items())[:_TOLD]
    return ", ".join(f"{purpose} {seconds / total_s:.0%}" for purpose, seconds in told)
