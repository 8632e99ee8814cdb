"""How long each GPU of a bench was in use between its first and its last measurement.

In use is a GPU while anybody holds its lease (kmem/host/lease.py): checks of candidates, which
share it, and timings, which are alone. Where several hold it at once, that time counts once.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

#: Begin, end (seconds since 1970), and whether the GPU was held alone.
Hold: TypeAlias = "tuple[float, float, bool]"


#: Where a bench keeps it: a line for each piece of the bench.
FILE = "utilisation.jsonl"


@dataclass(frozen=True, slots=True)
class Utilisation:
    """How long a GPU was held between its first hold and its last one, in seconds."""

    gpu: str
    span_s: float
    held_s: float
    alone_s: float

    @property
    def share(self) -> float:
        """Of the time between the first and the last measurement."""
        return self.held_s / self.span_s if self.span_s else 0.0


def read_holds(directory: Path, word: str) -> dict[str, list[Hold]]:
    """What was written down under a word beside the lock files, by GPU, joined."""
    found = {}
    for file in directory.glob(f"gpu-*.{word}.holds"):
        gpu = file.name.removeprefix("gpu-").removesuffix(f".{word}.holds")
        holds = []
        for line in file.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if len(words) == 3:  # else a kill tore it
                holds.append((float(words[0]), float(words[1]), words[2] == "1"))
        found[gpu] = join_holds(holds)
    return found


def join_holds(holds: Iterable[Hold]) -> list[Hold]:
    """The same holds as few that do not overlap, those alone and those shared each for itself."""
    joined: list[Hold] = []
    every = list(holds)
    for alone in (False, True):
        last: Hold | None = None
        for begin, end, _ in sorted(hold for hold in every if hold[2] is alone):
            if last is not None and begin <= last[1]:
                last = last[0], max(last[1], end), alone
                joined[-1] = last
            else:
                last = begin, end, alone
                joined.append(last)
    return joined


def measure_utilisation(holds: Mapping[str, Sequence[Hold]]) -> list[Utilisation]:
    """The utilisation of each GPU that was held at all, by name."""
    found = []
    for gpu, own in sorted(holds.items()):
        if not own:
            continue
        held = join_holds((begin, end, False) for begin, end, _ in own)
        span_s = max(end for _, end, _ in own) - min(begin for begin, _, _ in own)
        alone_s = sum(end - begin for begin, end, alone in join_holds(own) if alone)
        found.append(Utilisation(gpu, span_s, sum(end - begin for begin, end, _ in held), alone_s))
    return found


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
        f"last measurement, timing alone {each.alone_s / each.span_s if each.span_s else 0:.0%}"
        for each in found
    )
