"""Does the loop's prescribing earn its keep? Three arms, problem by problem.

    python tools/three_arms.py KERNELBENCH --out DIR [--seconds 560] [--gpus 2 --jobs 4]

For each of 48 problems (16 of KernelBench's level 1 with headroom, 24 of level 2, 8 of this
repository) three benches run one after the other on the same GPU: the loop with its prescriptions,
the loop with prescriptions drawn at random, and best-of-n by as many measurements as the loop made.
All have the same minutes, rounds and candidates for a problem, and are held to eager alone: no
other baseline tells one arm from another, and each arm would compile and tune it anew. The two
loops have a memory each, which begins as db/evidence; the control has none. With --jobs several
problems share a GPU, for one at a time leaves it idle for half of the hour that they take; the arms
of a problem wait for it alike.

A call ends after --seconds; the same call goes on, whatever ended the last one, also a kill. What
is there so far is compared in DIR, and what the two memories learned is exported there. On a
machine that keeps nothing, bring DIR back before the next call; its *.db, large copies of
db/evidence for the most part, may be left out: the next call makes them from what was exported.
"""

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kmem.bench.comparing import compare_rows, render_comparison
from kmem.bench.problems import BenchProblem, choose_problems, find_problems
from kmem.bench.results import read_rows
from kmem.bench.rows import Row
from kmem.host.process_group import kill_group

ROOT = Path(__file__).parent.parent
#: Of level 1, where the shipped kernels are at less than half of the bound (db/results-level1.md).
LEVEL_1 = (3, 6, 11, 50, 54, 57, 58, 60, 61, 62, 64, 70, 71, 72, 78, 97)
LEVEL_2, OWN = 24, 8
ARMS = ("loop", "random", "control")
MEMORIES = ("loop", "random")
EVIDENCE = ROOT / "db" / "evidence"
KMEM = (sys.executable, "-P", "-m", "kmem")
_GRACE_S = 60.0


@dataclass(frozen=True)
class Arms:
    """Where the three benches lie, and what each problem is given."""

    root: Path
    minutes: float
    rounds: int
    candidates: int

    def directory(self, arm: str, problem: BenchProblem) -> Path:
        """A bench of its own for each problem: several are under way."""
        return self.root / arm / problem.name

    def rows(self, arm: str, wanted: Sequence[BenchProblem]) -> list[Row]:
        """What an arm has made of the problems so far."""
        return [row for problem in wanted for row in read_rows(self.directory(arm, problem))]

    def command(self, arm: str, problem: BenchProblem) -> list[str]:
        """The bench of one arm on one problem."""
        words = [*KMEM, "bench", "--resume", str(self.directory(arm, problem))]
        words += [problem.path, "--only", problem.name]
        if arm == "control":
            return [*words, "--control", str(self.directory("loop", problem))]
        words += ["--minutes-per-problem", f"{self.minutes:g}"]
        words += ["--candidates", str(self.candidates), "--baselines", "eager"]
        strategy = "bandit" if arm == "loop" else "random-skills"
        return [*words, "--rounds", str(self.rounds), "--strategy", strategy]

    def open_memory(self, arm: str) -> None:
        """Give an arm its memory, if it has none: db/evidence, and what it learned earlier."""
        if (self.root / f"{arm}.db").is_file():
            return
        first, learned = self.root / f"{arm}.first.db", self.root / f"{arm}.jsonl"
        first.unlink(missing_ok=True)
        for path in (EVIDENCE, *([learned] if learned.is_file() else [])):
            words = [*KMEM, "memory", "import", str(path)]
            subprocess.run(words, env={**os.environ, "KMEM_DB": str(first)}, check=True)
        shutil.move(first, self.root / f"{arm}.db")

    def export_memory(self, arm: str) -> None:
        """Write what an arm has learned so far beside its database."""
        words = [*KMEM, "memory", "export", str(self.root / f"{arm}.jsonl"), "--force"]
        words += ["--no-sources", "--without", str(EVIDENCE)]
        subprocess.run(words, env=self.environment(arm), check=True)

    def environment(self, arm: str, gpu: str | None = None) -> dict[str, str]:
        """Where a bench remembers, and the one GPU that it sees; by default all."""
        alone = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        return {**os.environ, **alone, "KMEM_DB": str(self.root / f"{arm}.db")}

    def missing(self, problem: BenchProblem) -> list[str]:
        """The arms that have no row of a problem."""
        return [
            arm for arm in ARMS if problem.key not in {row.key for row in self.rows(arm, [problem])}
        ]


def problems(checkout: Path) -> list[BenchProblem]:
    """The 48 problems, those of the levels in turn, so that a part is like the whole."""
    numbers = {f"{number}_*" for number in LEVEL_1}
    first = find_problems([checkout], 1, tuple(sorted(numbers)))
    second = choose_problems(find_problems([checkout], 2, ()), None, LEVEL_2)
    own = choose_problems(find_problems([ROOT / "problems"], None, ()), None, OWN)
    found = list(_in_turn([first, second, own]))
    names = [problem.name for problem in found]
    return [problem for place, problem in enumerate(found) if problem.name not in names[:place]]


def _in_turn(groups: list[list[BenchProblem]]) -> Iterator[BenchProblem]:
    """Every group spread evenly over the whole."""
    placed = [
        ((place + 0.5) / len(group), number, problem)
        for number, group in enumerate(groups)
        for place, problem in enumerate(group)
    ]
    for _, _, problem in sorted(placed, key=lambda entry: entry[:2]):
        yield problem


def run_all(
    arms: Arms, wanted: Sequence[BenchProblem], deadline: float, gpus: int, jobs: int
) -> None:
    """Run what is missing until the deadline, so many problems at once on each GPU.

    Ctrl-C interrupts the benches, which keep what is finished.
    """
    stop = threading.Event()
    waiting: queue.SimpleQueue[BenchProblem] = queue.SimpleQueue()
    for problem in wanted:
        waiting.put(problem)

    def work(gpu: str | None) -> None:
        with suppress(queue.Empty):
            while time.monotonic() < deadline - _GRACE_S and not stop.is_set():
                run_piece(arms, waiting.get_nowait(), deadline, gpu, stop)

    with ThreadPoolExecutor(gpus * jobs) as pool:
        places = [str(gpu) if gpus > 1 else None for gpu in range(gpus)] * jobs
        try:
            for worker in [pool.submit(work, gpu) for gpu in places]:
                worker.result()
        except BaseException:
            stop.set()
            raise


def run_piece(
    arms: Arms, problem: BenchProblem, deadline: float, gpu: str | None, stop: threading.Event
) -> None:
    """The arms that a problem lacks; a bench that is under way at the deadline, or at the stop, is
    interrupted.
    """
    for arm in arms.missing(problem):
        if time.monotonic() > deadline - _GRACE_S or stop.is_set():
            return
        print(f"{problem.name}: {arm}", flush=True)
        process = subprocess.Popen(
            arms.command(arm, problem),
            env=arms.environment(arm, gpu),
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        while process.poll() is None and time.monotonic() < deadline and not stop.wait(0.5):
            pass
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                kill_group(process.pid)
                process.wait()
            return


def report(arms: Arms, wanted: Sequence[BenchProblem]) -> str:
    """The loop's rows beside those of each other arm."""
    loop = arms.rows("loop", wanted)
    parts = []
    for arm in ("control", "random"):
        compared = compare_rows(arms.rows(arm, wanted), loop)
        if compared is not None:
            parts += [
                f"# The loop beside {arm}\n",
                render_comparison(compared, {"first": arm, "second": "loop"}),
            ]
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="A checkout of KernelBench.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=560.0)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--candidates", type=int, default=12)
    parser.add_argument("--gpus", type=int, default=1, help="GPUs to spread the problems over.")
    parser.add_argument("--jobs", type=int, default=1, help="Problems at once on each GPU.")
    parser.add_argument("--list", action="store_true", help="Only name the problems.")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    wanted = problems(options.checkout)
    if options.list:
        print("\n".join(problem.name for problem in wanted))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    arms = Arms(options.out.resolve(), options.minutes, options.rounds, options.candidates)
    for arm in MEMORIES:
        arms.open_memory(arm)
    try:
        run_all(arms, wanted, deadline, options.gpus, options.jobs)
    finally:  # also after Ctrl-C: the next call may have no database
        for arm in MEMORIES:
            arms.export_memory(arm)
    (arms.root / "compared.md").write_text(report(arms, wanted), encoding="utf-8")
    left = [problem.name for problem in wanted if arms.missing(problem)]
    if left:
        print(f"{len(left)} of {len(wanted)} problems are left: call again")
        return
    print(report(arms, wanted))


if __name__ == "__main__":
    main()
