"""Rivals' released kernels under kmem's contract, beside ours on the same card.

    python tools/compare_kernels.py --theirs DIR --problems KernelBench/level2 --runs RUNS --out OUT
        [--jobs N] [--seconds S] [--baselines NAMES] [--only PATTERN ...] [--clock-only] [--list]

DIR holds a file with `ModelNew` for each problem, called by its number or its name, as AdaExplore
releases them; nothing of it is kept in this repository. RUNS is a directory of kmem's runs or a
database of its memory: the best kernel of each problem is ours. For each problem: what can be read
off the text, our judge's verdict under precision match after mends that change no value (at small
sizes in the interpreter, where there is no GPU), and on a GPU its pairs against the best of eager,
compile and max-autotune; and by tools/rival_clock.py, which imports nothing of kmem, the rivals'
own tolerance, errors against float64, what is kept between calls, and times.

OUT/rows.jsonl has a row for each problem, as they come: a call goes on where an earlier one was cut
off, and --again tries anew what did not end in time; of a row that has its times, only the verdicts
are missing then. With --clock-only no verdict is asked for: times come within seconds, verdicts
take a minute. A page beside it is written anew at the end, also after Ctrl-C.
With --list nothing runs: what texts say, and for what they are refused as released and as mended.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from judge_winners import read_rows
from models_page import distinct
from rival_clock import BASELINE_MODES
from rival_judging import refusals_of
from rival_kernels import mend_source, signs_of
from rival_page import INTERPRETER, LATE, one_of_each, reason_of, write_page

from kmem.bench.problems import BenchProblem, find_problems, problem_number
from kmem.devices import detect_device
from kmem.host.lease import GpuLease
from kmem.host.process_group import kill_group
from kmem.measure.resources import open_lease
from kmem.memory.location import default_db_path
from kmem.records import BASELINES
from kmem.run.setup.session import versions

#: On a lent GPU machine only what lies under $OUT comes back.
OUT = Path(os.environ.get("OUT", "runs")) / "compared"
_TOOLS = Path(__file__).resolve().parent
#: Independent clocks under way.
_CLOCKS: "set[subprocess.Popen[str]]" = set()
#: What a row that is tried again keeps where its verdict, or its times, had come.
_OF_JUDGING = ("signs", "mends", "refused", "renamed", "alone", "added", "judge")
_OF_TIMES = ("failures", "their_gate", "accuracy", "what_it_keeps", "times_ms")


def released_file(directory: Path, problem: BenchProblem) -> Path | None:
    """Their file for a problem; None if there is none."""
    number = problem_number(problem.name)
    names = [problem.name, *([str(int(number))] if number < float("inf") else [])]
    places = [directory / f"{name}.py" for name in names]
    return next((place for place in places if place.is_file()), None)


def compare(
    problem: BenchProblem,
    theirs: Path,
    options: argparse.Namespace,
    where: str,
    earlier: Mapping[str, Any],
) -> dict[str, Any]:
    """The row of one problem, from processes that are stopped when their time is over.

    Args:
        earlier: the row that is tried again, or nothing; its verdict and its times are kept.
    """
    started = time.monotonic()
    row: dict[str, Any] = {
        "problem": problem.name,
        "theirs": theirs.name,
        "device": where,
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "versions": ", ".join(map(" ".join, versions().items())),
    }
    is_judged = where != INTERPRETER and "theirs" in earlier.get("judge", {})
    is_clocked = is_timed(earlier, options.baselines)
    kept = _OF_JUDGING * is_judged + _OF_TIMES * is_clocked
    row |= {name: earlier[name] for name in kept if name in earlier}
    runs = str(options.runs.resolve()) if options.runs else ""
    asked = {
        "problem": problem.path,
        "theirs": str(theirs.resolve()),
        "runs": runs,
        "baselines": options.baselines,
        "judged": not (options.clock_only or is_judged),
    }
    if options.clock_only and not is_judged:
        row["late"] = "the judge"
    dry = ["--dry"] if where == INTERPRETER else []
    try:
        _ask("rival_judging.py", [json.dumps(asked), *dry], options.seconds, row)
        if not dry and not is_clocked:
            _clock(problem, theirs, row, options)
        row.pop("ours", None)
    except Exception as ex:  # noqa: BLE001 - one row must not end the others
        row["error"] = f"{type(ex).__name__}: {ex}"[:500]
    return {**row, "s": round(time.monotonic() - started, 1)}


def _clock(
    problem: BenchProblem, theirs: Path, row: dict[str, Any], options: argparse.Namespace
) -> None:
    """Times by the independent clock; every judge keeps off the GPU while it times."""
    kernels = {"theirs": str(theirs.resolve())}
    locks = default_db_path().parent / "cache" / "locks"
    with tempfile.TemporaryDirectory() as place, open_lease(locks, lambda said: None) as lease:
        if (ours := row.pop("ours", None)) is not None:
            kernels["ours"] = str(Path(place) / "ours.py")
            Path(kernels["ours"]).write_text(ours, encoding="utf-8")
        asked = {
            "problem": problem.path,
            "kernels": kernels,
            "seconds": options.seconds * 0.8,
            "turns": True,
            "baselines": [name for name in options.baselines if name in BASELINE_MODES],
        }
        ask_in_turns("rival_clock.py", asked, options.seconds, row, lease)


def ask_in_turns(
    tool: str, asked: Mapping[str, Any], seconds: float, row: dict[str, Any], lease: GpuLease
) -> None:
    """As `_ask`, of a tool that says when it wants the GPU alone. Waiting for that takes no time
    of its own.
    """
    command = [sys.executable, str(_TOOLS / tool), json.dumps(asked)]
    ends = time.monotonic() + seconds
    late: list[str] = []
    with tempfile.TemporaryFile("w+") as complained, ExitStack() as held:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complained,
            text=True,
            bufsize=1,
            start_new_session=True,  # a compiler that it waits for, and has its pipe, ends with it
        )
        _CLOCKS.add(process)
        assert process.stdin is not None and process.stdout is not None

        def end() -> None:
            late.append(tool)
            kill_group(process.pid)

        def take(turn: str) -> None:
            nonlocal ends, timer
            timer.cancel()
            began = time.monotonic()
            held.close()
            if turn != "none":
                alone = turn == "alone"
                held.enter_context(lease.hold(exclusive=alone, purpose="an independent clock"))
            ends += time.monotonic() - began
            timer = threading.Timer(max(0.0, ends - time.monotonic()), end)
            timer.start()

        timer = threading.Timer(seconds, end)
        take("none")
        for line in process.stdout:
            found = _read_row(line)
            if "turn" in found:
                take(str(found["turn"]))
                with suppress(BrokenPipeError):  # it was ended meanwhile
                    process.stdin.write("\n")
            else:
                merge(row, found)
        code = process.wait()
        timer.cancel()
        _CLOCKS.discard(process)
        process.stdin.close()
        if late:
            row["late"] = tool
        elif code:
            row["error"] = _last_words(complained, tool, code)


def _ask(tool: str, words: list[str], seconds: float, row: dict[str, Any]) -> None:
    """Merge what a tool prints into a row; a tool that fails or is late leaves what it had."""
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complained:
        process = subprocess.Popen(
            [sys.executable, str(_TOOLS / tool), *words], stdout=said, stderr=complained
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # so that the judge ends its workers
            process.wait()
            row["late"] = tool
            code = 0
        said.seek(0)
        for line in said:
            merge(row, _read_row(line))
        if code:
            row["error"] = _last_words(complained, tool, code)


def _read_row(line: str) -> dict[str, Any]:
    """What a tool said in a line; nothing of a line that a stranger's kernel printed."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _last_words(complained: IO[str], tool: str, code: int) -> str:
    complained.seek(0)
    lines = complained.read().strip().splitlines() or [f"{tool} ended with {code}"]
    return lines[-1][:500]


def merge(row: dict[str, Any], found: Mapping[str, Any]) -> None:
    """Put what was found into a row; dictionaries within are merged too."""
    for name, value in found.items():
        if isinstance(value, dict) and isinstance(row.get(name), dict):
            merge(row[name], value)
        else:
            row[name] = value


def list_files(options: argparse.Namespace) -> None:
    """Print what can be read off each file, and how often."""
    counts: Counter[str] = Counter()
    for problem in find_problems(options.problems, only=options.only):
        theirs = released_file(options.theirs, problem)
        if theirs is None:
            continue
        released = theirs.read_text(encoding="utf-8")
        mended, mends = mend_source(released)
        refused, still = refusals_of(released), refusals_of(mended)
        said = [*signs_of(released), *(["refused as released"] if refused else [])]
        counts.update([*said, *(["refused as mended"] if still else []), "files"])
        print(f"{problem.name}: {', '.join(said) or 'nothing'}")
        for line in (*(f"mended: {each}" for each in mends), *still):
            print(f"    {line}")
    for said, count in counts.most_common():
        print(f"{count:4}  {said}")


def is_wanting(row: Mapping[str, Any], options: argparse.Namespace, where: str) -> bool:
    """Whether a row lacks something that is asked for: its time was over, or the tool failed."""
    lacks_times = where != INTERPRETER and not is_timed(row, options.baselines)
    lacks_verdict = not options.clock_only and reason_of(row) == LATE
    return lacks_verdict or "error" in row or ("late" in row and lacks_times)


def is_timed(row: Mapping[str, Any], baselines: Sequence[str]) -> bool:
    """Whether the clock has a time of theirs and of each baseline, or says why not."""
    told = {**row.get("times_ms", {}), **row.get("failures", {})}
    return {"theirs", *baselines} <= told.keys()


def compare_all(
    options: argparse.Namespace, rows: Mapping[str, Mapping[str, Any]], where: str
) -> Iterator[dict[str, Any]]:
    """Rows that are not there yet, as they come.

    Where it is ended early, problems under way are not waited for.
    """
    pool = ThreadPoolExecutor(options.jobs)
    try:
        asked = {}
        for problem in find_problems(options.problems, only=options.only):
            theirs = released_file(options.theirs, problem)
            if theirs is None:
                print(f"{problem.name}: no file of theirs", file=sys.stderr)
                continue
            digest = hashlib.sha256(theirs.read_bytes()).hexdigest()[:12]
            key = f"{problem.key}/{digest}/{where}"
            if key not in rows or (options.again and is_wanting(rows[key], options, where)):
                earlier = rows.get(key, {})
                begun = pool.submit(compare, problem, theirs, options, where, earlier)
                asked[begun] = key
        for future in as_completed(asked):
            yield {"key": asked[future], **future.result()}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def describe(row: Mapping[str, Any], options: argparse.Namespace) -> str:
    """What a row came to, in a line: its verdict, and the clock's times if there is one."""
    times = ", ".join(f"{name} {ms:.4g} ms" for name, ms in row.get("times_ms", {}).items())
    if times and options.runs and "ours" not in row["times_ms"]:
        times += ", no kernel of ours"
    if options.clock_only:
        return times or row.get("error") or f"no times: {row.get('late', 'it failed')}"
    return f"{reason_of(row)}; {times}" if times else reason_of(row)


def main() -> None:
    """Compare, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--theirs", type=Path, required=True, help="directory of released files")
    parser.add_argument("--problems", type=Path, nargs="+", required=True)
    parser.add_argument("--runs", type=Path, help="runs of kmem or its database; ours")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--only", nargs="+", default=(), help="shell patterns of problems' names")
    parser.add_argument("--jobs", type=int, default=1, help="problems at once (default: 1)")
    parser.add_argument(
        "--baselines",
        type=lambda names: names.split(","),
        default=list(BASELINES),
        help="what both are held to: eager and any of compile, max_autotune (default: all)",
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="for each part of a problem")
    parser.add_argument(
        "--again", action="store_true", help="try what was late, or failed here, once more"
    )
    parser.add_argument("--clock-only", action="store_true", help="no verdicts for now")
    parser.add_argument("--list", action="store_true", help="run nothing")
    options = parser.parse_args()
    if options.list:
        list_files(options)
        return
    device = detect_device()
    where = device.name if device else INTERPRETER
    options.out.mkdir(parents=True, exist_ok=True)
    place = options.out / "rows.jsonl"
    rows = read_rows(place)
    is_whole = False
    with place.open("a", encoding="utf-8") as lines, suppress(KeyboardInterrupt):
        for row in compare_all(options, rows, where):
            rows[row["key"]] = row
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            print(f"{row['problem']}: {describe(row, options)} ({row['s']:.0f} s)", flush=True)
        is_whole = True
    shown = one_of_each(rows)
    dates = sorted(row["date"] for row in shown if "date" in row) or [""]
    head = {
        "devices": distinct(row.get("device") for row in shown),
        "date": distinct((dates[0], dates[-1])),
        "versions": distinct(row.get("versions") for row in shown),
        "theirs": str(options.theirs),
        "command": "python tools/compare_kernels.py " + " ".join(sys.argv[1:]),
    }
    (options.out / "page.md").write_text(write_page(shown, head), encoding="utf-8")
    for reason, count in Counter(map(reason_of, shown)).most_common():
        print(f"{count:4}  {reason}", flush=True)
    if not is_whole:  # threads still wait for what is under way
        for process in list(_CLOCKS):
            kill_group(process.pid)
        os._exit(130)


if __name__ == "__main__":
    main()
