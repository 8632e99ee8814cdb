"""Judges the winners of the shipped evidence again, by the judge as it is today.

    python tools/judge_winners.py [--problems PATH ...] [--only 'PATTERN' ...] [--out FILE]
    python tools/judge_winners.py --first --purity triton --problems KernelBench/level2

For each problem under the paths (kmem's own in problems/, others as KernelBench/level1 too) it
takes the best kernel that db/evidence remembers for exactly this graph, writes it anew from its
recipe and knobs, and gives it a whole verdict: on a GPU at full size, beside eager, else in the
interpreter at small sizes. With --first these are the kernels that a run would begin with,
whatever evidence remembers: what recipes are predicted to write fastest, until one passes. A line
for each verdict goes to the file at once, and a call goes on where an earlier one was cut off;
with --again what did not pass is judged once more. In the end it says which winners fall and why,
and exits with 1 if one does. What is to be retracted, a person decides.
"""

import argparse
import json
import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from kmem.bench.problems import BenchProblem, find_problems
from kmem.devices import detect_device, named_target
from kmem.errors import KmemError, first_line
from kmem.explore.recipes.author import RecipeAuthor
from kmem.interfaces import Assignment
from kmem.memory.store import Memory
from kmem.memory.team.exchange import import_outcomes
from kmem.orchestrate.accuracy import near_miss, next_rungs
from kmem.plugins import build_plugin_manager, collect
from kmem.problem.source.load import load_problem
from kmem.records import (
    Candidate,
    Contract,
    Device,
    Kernel,
    Measurement,
    Move,
    Precision,
    Problem,
    Purity,
    Recalled,
    Status,
    Task,
    fastest_baseline,
)
from kmem.run.evaluation.single import Case, Terms, judge_case
from kmem.run.setup.session import Session, open_session

ROOT = Path(__file__).resolve().parent.parent
#: On a lent GPU machine only what lies under $OUT comes back.
OUT = Path(os.environ.get("OUT", "runs")) / "judged_winners.jsonl"
#: What the row of a problem says that has no winner, or whose winner is written no more.
NONE, LOST = "no winner", "not written"
TARGET = "h200"
SEED = 20
#: Kernels that a run would begin with of which one should pass.
_FIRST = 4


def first_kernels(session: Session) -> list[Candidate]:
    """The first kernel in each direction that recipes take, those predicted to be fastest first."""
    author = RecipeAuthor()
    tasks = [
        Task(Move.SEED, skill, None, 1, "what a run begins with")
        for skill in (*session.rewritten, *session.writable)
    ]
    written = [each for task in tasks for each in _write(author, session, task)]
    return sorted(written, key=lambda each: each.whole_ms or math.inf)[:_FIRST]


def remembered_kernel(session: Session, hit: Recalled) -> Kernel | None:
    """The kernel of a remembered outcome, written anew as in a run, or as it was; None of neither.

    Another module with the same graph may have another constructor.
    """
    task = Task(Move.RECALL, hit.outcome.skill, None, 1, "remembered", hit.outcome.choices)
    written = _write(RecipeAuthor(), session, task)
    if written:
        return written[0].kernel
    if hit.source is None:
        return None
    return Kernel(
        hit.source,
        choices=hit.outcome.choices,
        flags=hit.outcome.flags,
        small_constants=hit.small_constants,
    )


def _write(author: RecipeAuthor, session: Session, task: Task) -> list[Candidate]:
    return author.write(
        Assignment(
            traced=session.traced,
            parent=None,
            diagnosis=None,
            prescriptions=(),
            history=(),
            recipes=session.recipes,
            writable=session.writable,
            rewrites=session.rewrites,
            rewritten=session.rewritten,
            skills=session.skills,
            seed=SEED,
            task=task,
        )
    )


def judge_winner(
    bench: BenchProblem, contract: Contract, database: Path | None
) -> dict[str, object]:
    """The row of one problem; errors of kmem's own become rows too.

    Args:
        database: what remembers winners; None for the kernel that a run would begin with.
    """
    present = detect_device()
    started = time.monotonic()
    try:
        with TemporaryDirectory() as home, Memory(database or Path(home) / "empty.db") as memory:
            row = _judge_winner(bench, contract, present, memory, is_first=database is None)
    except KmemError as ex:
        row = {"status": "error", "log": first_line(ex)}
    return {**row, "s": round(time.monotonic() - started, 1)}


def _judge_winner(
    bench: BenchProblem,
    contract: Contract,
    present: Device | None,
    memory: Memory,
    *,
    is_first: bool,
) -> dict[str, object]:
    device = present or named_target(TARGET)
    gpu = present is not None
    problem = load_problem(bench.path)
    registry = collect(build_plugin_manager())
    session = open_session(problem, contract, device, gpu, registry, memory)
    if is_first:
        return _judge_first(problem, session, gpu=gpu)
    hits = [hit for hit in memory.winners.recall(session.graph_key) if hit.exact]
    if not hits:
        return {"status": NONE}
    outcome = hits[0].outcome
    found: dict[str, object] = {
        "skill": outcome.skill,
        "knobs": [[choice.recipe, dict(choice.knobs)] for choice in outcome.choices],
        "remembered_ms": outcome.latency_ms,
    }
    kernel = remembered_kernel(session, hits[0])
    if kernel is None:
        return {**found, "status": LOST, "log": "no recipe writes it any more"}
    return {**found, **_judge(problem, kernel, session, gpu=gpu)[1]}


def _judge_first(problem: Problem, session: Session, *, gpu: bool) -> dict[str, object]:
    """The row of the first kernel to pass, of those that a run would begin with or climb to."""
    row: dict[str, object] = {"status": NONE}
    before: list[str] = []
    waiting = first_kernels(session)
    while waiting and row["status"] != Status.PASSED.value:
        candidate = waiting.pop(0)
        skill = candidate.task.skill
        measurement, verdict = _judge(problem, candidate.kernel, session, gpu=gpu)
        row = {"skill": skill, "predicted_ms": candidate.whole_ms, **verdict, "before": before}
        before = [*before, f"{skill}: {measurement.status.value} {measurement.log}"[:200]]
        if near_miss(measurement) is not None:
            waiting = [*_climb(candidate, session), *waiting]
    return row


def _climb(candidate: Candidate, session: Session) -> list[Candidate]:
    """The same kernel one rung up the ladder of accuracy, if there is one."""
    kernel = candidate.kernel
    above = next_rungs(kernel, session.traced, session.recipes, session.rewrites)
    if above is None:
        return []
    skill = candidate.task.skill
    return _write(RecipeAuthor(), session, Task(Move.CLIMB, skill, kernel.hash, 1, "", above))


def _judge(
    problem: Problem, kernel: Kernel, session: Session, *, gpu: bool
) -> tuple[Measurement, dict[str, object]]:
    """A whole verdict, and as a row says it."""
    case = Case(problem, kernel, Terms(session.traced.contract, seed=SEED))
    measurement, baselines = judge_case(
        case, session.traced.device, gpu=gpu, announce=lambda text: None, baselines=("eager",)
    )
    best = fastest_baseline(baselines)
    return measurement, {
        "status": measurement.status.value,
        "log": measurement.log.strip()[:2000],
        "flags": list(measurement.flags),
        "latency_ms": measurement.latency_ms,
        "estimated": measurement.estimated,
        "baseline": best.name if best is not None else None,
        "baseline_ms": best.timing.latency_ms if best is not None else None,
    }


def read_rows(path: Path) -> dict[str, dict[str, object]]:
    """Rows by key; the last of a key counts, and a line that was cut off does not."""
    rows = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        rows[row["key"]] = row
    return rows


def has_fallen(row: dict[str, object]) -> bool:
    return row["status"] not in (Status.PASSED.value, NONE)


def judge_all(
    options: argparse.Namespace, database: Path | None, done: dict[str, dict[str, object]]
) -> Iterator[dict[str, object]]:
    """Rows that are not there yet, as they come."""
    present = detect_device()
    where = present.name if present else "interpreter"
    # a GPU's context is not passed on to processes that are forked
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        judged = {}
        for precision, bench in product(
            options.precision, find_problems(options.problems, only=options.only)
        ):
            key = f"{bench.key}/{precision}/{where}"
            if key in done and not (options.again and has_fallen(done[key])):
                continue
            about = {"key": key, "problem": bench.name, "precision": precision}
            contract = Contract(Precision(precision), Purity(options.purity))
            judged[pool.submit(judge_winner, bench, contract, database)] = about
        for future in as_completed(judged):
            yield {**judged[future], **future.result()}


def main() -> int:
    """Judge, and say which winners fall."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", nargs="+", type=Path, default=[ROOT / "problems"])
    parser.add_argument("--only", nargs="+", default=(), help="shell patterns of problems' names")
    parser.add_argument("--evidence", type=Path, default=ROOT / "db" / "evidence")
    parser.add_argument(
        "--precision", nargs="+", choices=[each.value for each in Precision], default=["match"]
    )
    parser.add_argument(
        "--purity", choices=[each.value for each in Purity], default=Purity.LIBRARY.value
    )
    parser.add_argument("--first", action="store_true", help="what a run begins with, instead")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--jobs", type=int, default=1, help="that take turns on the GPU")
    parser.add_argument("--again", action="store_true", help="judge what has fallen once more")
    options = parser.parse_args()
    rows = read_rows(options.out)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="kmem-winners-", ignore_cleanup_errors=True) as place,
        options.out.open("a", encoding="utf-8") as lines,
    ):
        database = None if options.first else Path(place) / "evidence.db"
        if database is not None:
            with Memory(database) as memory:
                import_outcomes(memory, options.evidence)
        for row in judge_all(options, database, rows):
            rows[row["key"]] = row
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            said = " ".join(str(row.get("log", "")).split())[:160]
            print(f"{row['problem']} {row['precision']}: {row['status']} {said}", flush=True)
    fallen = [row for row in rows.values() if has_fallen(row)]
    held = sum(row["status"] == Status.PASSED.value for row in rows.values())
    print(f"{held} winners hold, {len(fallen)} fall, {len(rows) - held - len(fallen)} have none")
    for row in fallen:
        print(f"  {row['problem']} ({row['precision']}, {row.get('skill')}): {row['status']}")
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
