"""The beginning of a run compiled on a worker: `python -m kmem.away.compiling`.

It works in the directory of a job, needs no GPU and measures nothing. What it leaves follows from
its files, wherever it runs.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from kmem.away.compiled import pack_kernels
from kmem.away.request import COMPILED, MEMORY, RUN
from kmem.bench.results import Settings
from kmem.errors import KmemError
from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect
from kmem.problem.source.load import load_problem
from kmem.records import Budget, Contract, Device, Precision, Purity, Run, Strategy
from kmem.run.ahead import compile_beginning
from kmem.serialize import from_json

#: The request, in the job's directory, and what is left there.
BEGINNING = "beginning.json"


@dataclass(frozen=True, slots=True)
class Beginning:
    """A run of which the beginning is to be compiled."""

    problem: str  # its file
    settings: Settings
    device: str  # as JSON, with the rates that the run will know
    present: bool  # whether the run will be measured on it

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Beginning":
        data = json.loads(text)
        settings = data.pop("settings")
        authors = tuple(settings.pop("authors"))
        return cls(**data, settings=Settings(**settings, authors=authors))


def main() -> int:
    """Carry out the request in this directory."""
    asked = Beginning.from_json(Path(BEGINNING).read_text(encoding="utf-8"))
    here = Path.cwd()
    os.environ["KMEM_DB"] = str(here / MEMORY)  # the skills that the user added lie beside it
    device, settings = from_json(Device, asked.device), asked.settings
    try:
        with Memory(here / MEMORY) as memory:
            run = Run(
                "beginning",
                load_problem(Path(asked.problem)),
                device.name,
                Contract(Precision(settings.precision), Purity(settings.purity)),
                Budget(
                    settings.rounds,
                    settings.minutes,
                    settings.candidates,
                    baselines=tuple(settings.baselines.split(",")),
                ),
                settings.memory,
                0,
                str(here / RUN),
                "",
                strategy=Strategy(settings.strategy),
            )
            registry = collect(build_plugin_manager())
            compile_beginning(run, device, asked.present, registry, memory, here / "triton")
    except KmemError as ex:  # the run itself says so, to whoever wants to know
        print(f"Error: {ex}", file=sys.stderr)
        return 1
    pack_kernels(here / "triton", here / "out" / COMPILED)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
