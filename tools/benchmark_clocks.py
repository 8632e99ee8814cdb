"""How long a run takes to its first verified kernel and to its end, problem after problem.

    python tools/benchmark_clocks.py                        # 20 shipped problems, a minute each
    python tools/benchmark_clocks.py --until-verified       # each is interrupted at its first one
    python tools/benchmark_clocks.py softmax my/problem.py --minutes 2 --json c.json

Runs `kmem optimize` with default settings, one problem after another, on a machine with a GPU, and
prints a Markdown table of seconds since each process was started: when the problem was traced, the
first candidate passed its screening, the quick baselines were timed, the first verified kernel
stood, and the process ended. The last row holds the medians. Exit code 1 says that one of them is
above its limit: 20 s by the run's own clock to the first verified kernel, and the minutes and 10 s
to the end, baselines included.

All runs share one new database, so that the device's ceilings are measured once, and nothing else
is remembered.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROBLEMS = (
    *("argmax", "avg_pool2d", "batched_matmul", "conv2d_relu_bias", "cross_entropy", "cumsum"),
    *("depthwise_conv2d", "gelu_chain", "group_norm", "instance_norm", "layer_norm"),
    *("linear_swish_scale", "matmul_square", "matvec", "max_pool2d", "pointwise_conv", "rms_norm"),
    *("softmax", "sum_reduce", "triangular_matmul"),
)
FIRST_VERIFIED_S, BEYOND_MINUTES_S = 20.0, 10.0
#: What a line of progress says first, by the column that its time goes into.
MOMENTS = {
    "traced": re.compile(r"recall +memory offers"),
    "compiling": re.compile(r"explore +compiling"),
    "judging": re.compile(r"measure +judging"),
    "eager": re.compile(r"measure +timing baseline eager"),
    "compile": re.compile(r"measure +timing baseline compile"),
    "passed": re.compile(r"measure +[\w-]+: passed"),
    "verifying": re.compile(r"measure +verifying"),
    "verified": re.compile(r"measure +first verified kernel(?: after (\d+) s)?"),
}


@dataclass
class Clocks:
    """One problem: seconds since its process began, by moment; its end, and what came of it."""

    problem: str
    seconds: dict[str, float]
    verified_by_run_s: float | None = None  # by the run's own clock
    total_s: float | None = None  # None if it was interrupted
    speedup: float | None = None
    unverified_faster: int | None = None
    status: str = ""


def run_problem(problem: str, asked: argparse.Namespace, home: Path) -> Clocks:
    """Optimise one problem and watch what it says."""
    command = [sys.executable, "-P", "-m", "kmem", "optimize", problem, "--json"]
    command += ["--minutes", f"{asked.minutes:g}", "--memory", "off"]
    command += ["--out", str(home / "runs" / Path(problem).stem)]
    command += ["--target", asked.target] if asked.target else []
    clocks = Clocks(Path(problem).stem, {})
    started = time.monotonic()
    with open(home / "result.json", "w+", encoding="utf-8") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, "KMEM_DB": str(home / "kmem.db")},
        )
        for line in process.stderr:
            seconds = time.monotonic() - started
            if asked.verbose:
                print(f"{seconds:6.1f}  {line.rstrip()[:150]}", file=sys.stderr, flush=True)
            for name, moment in MOMENTS.items():
                found = moment.match(line)
                if found is None or name in clocks.seconds:
                    continue
                clocks.seconds[name] = seconds
                if name == "verified":
                    clocks.verified_by_run_s = float(found[1]) if found[1] else None
                    if asked.until_verified:
                        process.send_signal(signal.SIGINT)
        code = process.wait()
        output.seek(0)
        lines = output.read().strip().splitlines()
    if code in (0, 3):
        result = json.loads(lines[-1])
        clocks.total_s = time.monotonic() - started
        clocks.speedup = result["speedup"]
        clocks.unverified_faster = result["unverified_faster"]
        clocks.status = result["status"]
    else:
        clocks.status = "interrupted" if code == 130 else f"exit code {code}"
    return clocks


def render(rows: list[Clocks]) -> str:
    """The table, with the medians of what is known in its last row."""
    names = [*MOMENTS, "by its clock", "total"]
    lines = [
        f"| problem | {' | '.join(names)} | speedup | unverified | |",
        "|---" * (len(names) + 4) + "|",
    ]
    columns = [
        [row.seconds.get(name) for name in MOMENTS] + [row.verified_by_run_s, row.total_s]
        for row in rows
    ]
    for row, cells in zip(rows, columns, strict=True):
        speedup = "" if row.speedup is None else f"{row.speedup:.2f}"
        unverified = "" if row.unverified_faster is None else str(row.unverified_faster)
        lines.append(_line(row.problem, cells, [speedup, unverified, row.status]))
    medians = [median(list(column)) for column in zip(*columns, strict=True)]
    lines.append(_line("median", medians, ["", "", f"{len(rows)} problems"]))
    return "\n".join(lines)


def _line(name: str, seconds: list[float | None], rest: list[str]) -> str:
    cells = ["" if each is None else f"{each:.1f}" for each in seconds]
    return f"| {' | '.join([name, *cells, *rest])} |"


def median(values: list[float | None]) -> float | None:
    """Of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def main() -> None:
    """Run all problems; rows are written as they come."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", help="files or directories; by default 20 shipped")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--until-verified", action="store_true")
    parser.add_argument("--target", help="as of kmem optimize; without a GPU nothing is verified")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--verbose", action="store_true", help="repeat what runs say, with times")
    asked = parser.parse_args()
    shipped = ROOT / "problems"
    problems = [
        str(shipped / name) if (shipped / name).is_dir() else name
        for name in asked.problems or PROBLEMS
    ]
    rows: list[Clocks] = []
    with tempfile.TemporaryDirectory(prefix="kmem-clocks-") as home:
        for problem in problems:
            rows.append(run_problem(problem, asked, Path(home)))
            row = rows[-1]
            told = _line(row.problem, [row.seconds.get("verified"), row.total_s], [row.status])
            print(told, file=sys.stderr, flush=True)
            if asked.json:
                text = json.dumps([asdict(row) for row in rows], indent=1)
                asked.json.write_text(text + "\n", encoding="utf-8")
    print(render(rows))
    first = median([row.verified_by_run_s for row in rows])
    total = median([row.total_s for row in rows])
    late = first is not None and first > FIRST_VERIFIED_S
    long = total is not None and total > 60 * asked.minutes + BEYOND_MINUTES_S
    raise SystemExit(1 if late or long else 0)


if __name__ == "__main__":
    main()
