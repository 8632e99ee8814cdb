"""Time every page of `kmem ui` on the server with many runs and outcomes.

python tools/benchmark_page.py [--runs 1000] [--outcomes 1000000] [--database FILE]

The database is made once and kept if a file is named. Each page is asked for by HTTP from the real
server: first once, as the first visitor finds it, then several times; the time of the processor is
what counts on a machine that has other work. Exit code 1 if a page takes longer than --limit
milliseconds of the processor in the median; exports are listed and not held to it.
"""

import argparse
import http.client
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

from made_up_memory import BATCH, make_entries

from kmem.cli.making.optimize import optimize
from kmem.memory.store import Memory
from kmem.plugins import Registry, build_plugin_manager, collect
from kmem.records import (
    Attempt,
    Baseline,
    Bound,
    Budget,
    Candidate,
    Contract,
    Kernel,
    Measurement,
    Move,
    Problem,
    Run,
    RunResult,
    RunState,
    SiteChoice,
    Status,
    Task,
    Timing,
)
from kmem.ui.app import Parts
from kmem.ui.server import make_service

ATTEMPTS = 40
SKILLS = 1000
#: Of these skills the library has; the made-up ones stand in the ledger alone.
POPULAR = "skill-00000"
TIMES = 7
LANDSCAPES = Path(__file__).parent.parent / "db" / "evidence" / "landscapes"


def make_run(number: int) -> Run:
    """A run of its own minute."""
    source = "import torch\n" + "# a line of a problem file\n" * 120
    when = f"2026-{number % 12 + 1:02d}-{number % 28 + 1:02d}T{number % 24:02d}:00:00+00:00"
    return Run(
        f"bench-{number:06d}",
        Problem(f"problem_{number % 70}", f"/problems/{number % 70}.py", source),
        "h200",
        Contract(),
        Budget(),
        "rw",
        number,
        f"/nowhere/{number}",
        when,
    )


def make_attempts(number: int) -> list[Attempt]:
    """The attempts of a run, each made from one before."""
    made: list[Attempt] = []
    for place in range(ATTEMPTS):
        parent = made[place // 3].candidate.kernel.hash if place else None
        text = f"# {number} {place}\n" + "import triton\n# a line of a kernel\n" * 150
        choice = SiteChoice("softmax", "softmax", "online-softmax", (("BLOCK", 1024),))
        task = Task(Move.TUNE, "online-softmax", parent, 1, "move the knobs")
        timing = Timing(1.0 + place / 7 % 1, 0.9, 1.1, 10) if place % 4 else None
        status = Status.PASSED if timing else Status.WRONG_VALUES
        made.append(
            Attempt(
                place // 8,
                Candidate(Kernel(text, parent, (choice,)), task, "recipes"),
                Measurement(status, timing, estimated=False, log="a line of a log\n" * 5),
                2.0,
            )
        )
    return made


def fill(memory: Memory, runs: int, outcomes: int) -> None:
    """Add what is missing."""
    (there,) = memory.storage.read("select coalesce(max(id), 0) as n from outcomes")
    entries = make_entries(there["n"], outcomes, SKILLS)
    while batch := list(islice(entries, BATCH)):
        memory.ledger.record_entries(batch)
    for number in range(len(memory.run_entries.lines()), runs):
        run, attempts = make_run(number), make_attempts(number)
        with memory.storage.write():
            memory.runs.start(run)
            for attempt in attempts:
                memory.runs.record_attempt(run.id, attempt)
            best = replace(attempts[1], measurement=attempts[1].measurement)
            eager = Baseline("eager", Timing(4.0, 4.0, 4.0, 10), estimated=False)
            bound = Bound(10**9, {}, 0.4, "bytes")
            result = RunResult(
                run.id, run.problem.name, "h200", False, best, (eager,), bound, 4.0, 0.4, False,
                ATTEMPTS, 60.0, "the rounds are used up",
            )  # fmt: skip
            memory.runs.set_state(run.id, RunState.FINISHED, result)


def pages(memory: Memory) -> dict[str, str]:
    """What is asked for, by what it is called."""
    lines = memory.run_entries.lines()
    run, other = lines[0].id, lines[1].id
    kernel = memory.runs.attempts(run)[5].candidate.kernel.hash
    return {
        "runs": "/",
        "runs, filtered and sorted": "/?q=problem_7&sort=speedup",
        "runs as JSON": "/?format=json",
        "a run": f"/runs/{run}",
        "a candidate": f"/runs/{run}/kernels/{kernel}",
        "problems": "/problems",
        "a problem": f"/problems/{lines[0].problem}",
        "two runs": f"/compare?a={run}&b={other}",
        "landscapes": "/landscapes",
        "a landscape": "/landscapes/softmax_64k",
        "skills": "/skills",
        "a popular skill": f"/skills/{POPULAR}",
        "a skill": "/skills/online-softmax",
        "memory": "/memory",
        "memory by time": "/memory?sort=latency_ms",
        "memory by time, descending": "/memory?sort=-latency_ms",
        "memory by status alone": "/memory?sort=status",
        "memory as CSV": "/memory?format=csv",
        "memory by status": "/memory?status=build_failed&sort=-recorded",
        "memory of a popular skill": f"/memory?q={POPULAR}&sort=-latency_ms",
        "memory, deep": "/memory?page=90&sort=skill",
        "new run": "/new",
        "machine": "/machine",
    }


def shelve(registry: Registry, scratch: Path) -> Registry:
    """The registry with the most popular skill of the ledger, made of a bundled one."""
    place = scratch / POPULAR
    place.mkdir()
    text = (registry.skills["online-softmax"] / "SKILL.md").read_text(encoding="utf-8")
    (place / "SKILL.md").write_text(text.replace("online-softmax", POPULAR), encoding="utf-8")
    return replace(registry, skills={**registry.skills, POPULAR: place})


def ask(port: int, path: str) -> tuple[float, float]:
    """Milliseconds until the whole answer is here: by the clock, and of the processor."""
    start, busy = time.perf_counter(), time.process_time()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status == 200, (path, answer.status)
    return (time.perf_counter() - start) * 1e3, (time.process_time() - busy) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--outcomes", type=int, default=1_000_000)
    parser.add_argument("--database", type=Path, help="keep the database here, or use this one")
    parser.add_argument("--limit", type=float, default=300.0, help="milliseconds a page may take")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kmem-page-") as scratch:
        path = (arguments.database or Path(scratch) / "kmem.db").absolute()
        start = time.perf_counter()
        with Memory(path) as memory:
            fill(memory, arguments.runs, arguments.outcomes)
            asked = pages(memory)
        print(f"filled in {time.perf_counter() - start:.0f} s", file=sys.stderr)
        registry = shelve(collect(build_plugin_manager()), Path(scratch))
        service = make_service(Parts(path, registry, optimize, list, LANDSCAPES), 0)
        threading.Thread(target=service.run, daemon=True).start()
        while not service.server.started:
            time.sleep(0.01)
        warm = ask(service.keys.port, "/new"), ask(service.keys.port, "/?q=none")
        print(f"{'first answer':28} {warm[1][0]:9.1f} ms")
        slow, medians, busiest = [], [], []
        for name, address in asked.items():
            first, _ = ask(service.keys.port, address)
            taken = [ask(service.keys.port, address) for _ in range(TIMES)]
            median = statistics.median(wall_ms for wall_ms, _ in taken)
            busy = statistics.median(busy_ms for _, busy_ms in taken)
            if "format=" not in address:
                medians.append(median)
                busiest.append(busy)
                slow += [name] if busy > arguments.limit else []
            print(
                f"{name:28} {median:9.1f} ms, of the processor {busy:7.1f} ms, "
                f"the first time {first:7.1f} ms"
            )
        print(f"{'median of pages':28} {statistics.median(medians):9.1f} ms")
        print(f"{'worst page':28} {max(medians):9.1f} ms, of the processor {max(busiest):7.1f} ms")
        service.server.should_exit = True
    if slow:
        raise SystemExit(f"slower than {arguments.limit:g} ms: {', '.join(slow)}")


if __name__ == "__main__":
    main()
