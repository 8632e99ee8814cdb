"""How long the commands take that a user waits for: medians of repeated runs, in fresh processes.

python tools/benchmark_commands.py [--repeats 9] [--only search]

The limits hold for two idle cores, without a GPU, and exit code 1 says that a median is above its
limit. On a busy machine look at the processor's time: no command can take less.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
KMEM = (sys.executable, "-m", "kmem")
SOFTMAX = str(ROOT / "problems" / "softmax" / "problem.py")


@dataclass(frozen=True)
class Case:
    """A command, or two of which the second reads what the first prints, and its limit."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    limit_s: float
    reads_profile: bool = False


CASES = (
    Case("--help", (("--help",),), 0.4),
    Case("search", (("skills", "search", "how do I make softmax faster"),), 0.5),
    Case("doctor", (("doctor", "--no-measure"),), 2.0),
    # torch and what it traces with take 2.1 s of a processor before anything of kmem's begins
    Case("problem check", (("problem", "check", SOFTMAX, "--target", "h200"),), 3.5),
    Case("diagnose | prescribe", (("diagnose",), ("prescribe",)), 1.0, reads_profile=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", default="", help="part of a case's name")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        environment = {**os.environ, "KMEM_DB": f"{place}/kmem.db"}
        profile = Path(place) / "profile.jsonl"
        chosen = [case for case in CASES if asked.only in case.name]
        if any(case.reads_profile for case in chosen):
            line = (*KMEM, "profile", SOFTMAX, "--target", "h200")
            with profile.open("wb") as file:
                subprocess.run(line, check=True, stdout=file, env=environment)
        over = [
            case.name for case in chosen if not measure(case, asked.repeats, profile, environment)
        ]
    raise SystemExit(f"above the limit: {', '.join(over)}" if over else 0)


def measure(case: Case, repeats: int, profile: Path, environment: dict[str, str]) -> bool:
    """Print how long a case takes; whether its median is within the limit.

    One run that is not counted comes first: it makes the database and embeds the library.
    """
    runs = [run(case, profile, environment) for _ in range(repeats + 1)][1:]
    wall = statistics.median(seconds for seconds, _ in runs)
    processor = statistics.median(seconds for _, seconds in runs)
    print(
        f"kmem {case.name:24} median {wall:.2f} s (slowest {max(runs)[0]:.2f}), processor "
        f"{processor:.2f} s, limit {case.limit_s:.1f} s",
        flush=True,
    )
    return wall <= case.limit_s


def run(case: Case, profile: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Seconds that passed, and seconds of processors, of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    with open(profile if case.reads_profile else os.devnull, "rb") as source:
        *earlier, last = case.commands
        reads, running = source, []
        for command in earlier:
            process = subprocess.Popen(
                (*KMEM, *command), stdin=reads, stdout=subprocess.PIPE, env=environment
            )
            running.append(process)
            reads = process.stdout
        subprocess.run(
            (*KMEM, *last),
            stdin=reads,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            env=environment,
        )
        for process in running:
            process.wait()
    passed = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return passed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
