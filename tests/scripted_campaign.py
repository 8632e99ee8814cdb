"""A bench of tiny problems whose kernels say themselves how fast they are: HOME BASE_URL.

Schedule, results, memory, loop, authors and SDKs are the real ones; only what compiles and measures
is scripted (scripted_evaluator.py). Every problem is a run of its own in this process. Called as a
program, so that a test can kill it and call it again.
"""

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from scripted_evaluator import make_run, walk

from kmem.bench.problems import BenchProblem
from kmem.bench.results import BenchDirectory
from kmem.bench.rows import Exit
from kmem.bench.schedule import run_problems
from kmem.memory.store import Memory
from kmem.records import ModelChoice, RunResult, RunState

PROBLEMS = tuple(
    BenchProblem(f"{number}_relu", f"{number}_relu.py", f"{number:08x}") for number in range(1, 13)
)
#: The wires in turn: provider, and where its SDK finds the server.
WIRES = (("openai", "/v1"), ("anthropic", ""))


def run_id(problem: BenchProblem) -> str:
    return f"run-{problem.name}"


def run_bench(home: Path, server: str) -> None:
    """Run what has no row yet; a run that was begun goes on."""

    def runner(
        problem: BenchProblem, on_stage: Callable[[str, str], None], stop: threading.Event
    ) -> Exit:
        number = PROBLEMS.index(problem)
        provider, path = WIRES[number % len(WIRES)]
        asked = ModelChoice("any", provider, f"model-of-{problem.name}", server + path)
        run = replace(
            make_run(home, base_url="", rounds=1, candidates_per_round=2),
            id=run_id(problem),
            out_dir=str(home / "runs" / problem.key),
            memory_mode="off",  # one graph: what a run learns would answer the next
            authors=("recipes", "llm"),
            models=(asked,),
        )
        with Memory(home / "kmem.db") as memory:
            result, _ = walk(run, memory)
        return Exit(0, json.dumps(_row(result)), "", 0.0)

    with BenchDirectory(home / "bench") as directory:
        run_problems(PROBLEMS, runner, directory, lambda event: None, jobs=1, measured=True)


def _row(result: RunResult) -> dict[str, object]:
    best = result.best
    return {
        "status": "passed" if best else "baseline_is_best",
        "estimated": False,
        "speedup": result.speedup,
        "latency_ms": best.measurement.latency_ms if best else None,
        "baselines_ms": {"eager": 10.0},
        "bound_ms": None,
    }


def finished(home: Path) -> list[str]:
    """Ids of the runs that memory knows as finished."""
    with Memory(home / "kmem.db") as memory:
        return [
            entry.run.id for entry in memory.run_entries.all() if entry.state is RunState.FINISHED
        ]


if __name__ == "__main__":
    run_bench(Path(sys.argv[1]), sys.argv[2])
