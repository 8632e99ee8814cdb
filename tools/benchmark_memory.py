"""How fast the memory answers when it is large.

    python tools/benchmark_memory.py --outcomes 1000000 --skills 10000

Fills a database with made-up outcomes, and skills mixed from the sentences and metadata of the
bundled ones, by the same calls a merge makes; then times each thing a run asks of its memory:
recall, experience of recipes' settings, posteriors of every skill, the signatures of a few, a skill
search, the whole consultation of a round (search, gate, posteriors, ranking), and the merge of
10,000 outcomes. Prints a table, or JSON with --json.

`start-up` is what a process pays once: loading sums and vectors. Times are by the clock and of this
process's CPU, in ms; everything runs in one thread but for the vectors' product. Questions are
embedded by a stand-in; --model also times the real model (seconds more).
"""

import argparse
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from made_up_memory import (
    BATCH,
    GRAPHS_PER_STRUCTURE,
    METRICS,
    NAMES,
    STRUCTURES,
    VERSIONS,
    HashEmbedder,
    make_entries,
    make_outcome,
    make_skills,
)

from kmem.memory.ledger.experience import recall_experience
from kmem.memory.ledger.graphs import GraphKey
from kmem.memory.ledger.outcomes import Retraction
from kmem.memory.skills.embeddings import Embedder, load_embedder
from kmem.memory.store import Memory
from kmem.memory.team.exchange import export_outcomes, import_outcomes
from kmem.prescribe.consult import consult_memory
from kmem.prescribe.gate import SkillQuery
from kmem.records import (
    Bottleneck,
    Contract,
    Diagnosis,
    Kernel,
    Signature,
    content_hash,
)
from kmem.skills import Skill


@dataclass(frozen=True, slots=True)
class Timed:
    """One line of the table; times in ms."""

    what: str
    calls: int
    median: float
    p95: float
    cpu_median: float
    cpu_p95: float


def _fill(memory: Memory, outcomes: int, skills: list[Skill]) -> None:
    (there,) = memory.storage.read("select coalesce(max(id), 0) as outcomes from outcomes")
    entries = make_entries(there["outcomes"], outcomes, len(skills))
    while batch := list(islice(entries, BATCH)):
        memory.ledger.record_entries(batch)
        memory.ledger.record_retraction(
            Retraction(
                batch[0].hash, "a hundredth of a percent were wrong", "benchmark", "2026-01-01"
            )
        )
    memory.skills.sync_origin(skills, "plugin")
    memory.skills.match_texts("embed every skill")


def _time(what: str, calls: int, call: Callable[[int], object]) -> Timed:
    call(-1)  # the first call fills the process's caches
    wall, cpu = [], []
    for index in range(calls):
        start, start_cpu = time.perf_counter(), time.process_time()
        call(index)
        wall.append((time.perf_counter() - start) * 1e3)
        cpu.append((time.process_time() - start_cpu) * 1e3)
    return Timed(
        what,
        calls,
        *(float(np.percentile(times, share)) for times in (wall, cpu) for share in (50, 95)),
    )


def _once(what: str, call: Callable[[], object]) -> Timed:
    start, start_cpu = time.perf_counter(), time.process_time()
    call()
    wall, cpu = (time.perf_counter() - start) * 1e3, (time.process_time() - start_cpu) * 1e3
    return Timed(what, 1, wall, wall, cpu, cpu)


def _graph_key(
    graph_hash: str, structure: int, operators: tuple[str, ...] = (), sizes: tuple[int, ...] = ()
) -> GraphKey:
    structure_hash = content_hash(f"structure {structure}")
    return GraphKey(graph_hash, structure_hash, operators, sizes, "sm_90", Contract())


def _recall(memory: Memory, index: int) -> object:
    draw = random.Random(index)
    structure, known = draw.randrange(STRUCTURES), index % 2
    graph = content_hash(
        f"graph {structure} {draw.randrange(GRAPHS_PER_STRUCTURE)}"
        if known
        else f"never seen {index}"
    )
    operators = (draw.choice(NAMES), "pointwise")
    return memory.winners.recall(_graph_key(graph, structure, operators, (1024, 77)))


def _experience(memory: Memory, index: int) -> object:
    draw = random.Random(index)
    recipes = [f"skill-{place:05d}" for place in range(3)]
    key = _graph_key(content_hash(f"never seen {index}"), draw.randrange(STRUCTURES))
    return recall_experience(memory.storage, recipes, key)


def _diagnosis(index: int) -> Diagnosis:
    draw = random.Random(index)
    bottleneck = list(Bottleneck)[index % len(Bottleneck)]
    signature = Signature({metric: draw.uniform(0.0, 100.0) for metric in METRICS})
    summary = (
        f"{bottleneck.value}: uncoalesced global loads: "
        "neighbouring threads read scattered addresses and waste most of each sector "
        f"(sector_efficiency_pct {draw.uniform(1, 50):.3g} <= 50, "
        f"memory_stall_pct {draw.uniform(50, 90):.3g} >= 50) "
        f"at 0.2 ms against a bound of 0.1 ms set by dram in kernel_{index}"
    )
    return Diagnosis(bottleneck, (), signature, 0.5, 0.1, summary, None)


def _consult(memory: Memory, skills: list[Skill], index: int) -> object:
    operators = (NAMES[index % len(NAMES)], "pointwise")
    query = SkillQuery(_diagnosis(index), operators, "sm_90", Contract())
    return consult_memory(memory, query, skills, VERSIONS[2])


def _posteriors(memory: Memory, skills: list[Skill], index: int) -> object:
    bottleneck = list(Bottleneck)[index % len(Bottleneck)]
    names = [skill.name for skill in skills]
    return memory.track_records.posteriors(
        names,
        bottleneck=bottleneck,
        operators=(NAMES[index % len(NAMES)],),
        arch="sm_90",
        versions=VERSIONS[2],
    )


def _after_a_measurement(memory: Memory, skills: list[Skill], index: int) -> object:
    outcome = replace(make_outcome(index, len(skills)), created_at=f"now {time.time_ns()}")
    memory.ledger.record(outcome)
    return _posteriors(memory, skills[:100], index)


def measure_questions(memory: Memory, skills: list[Skill]) -> list[Timed]:
    """Time every question; what a process pays once comes first."""
    few = [skill.name for skill in skills[:16]]
    return [
        _once("start-up: sums into memory", lambda: _posteriors(memory, skills[:1], 0)),
        _once("start-up: skills and vectors", lambda: memory.skills.match_texts("first")),
        _time("recall", 200, lambda index: _recall(memory, index)),
        _time("experience of 3 popular recipes", 100, lambda index: _experience(memory, index)),
        _time(
            f"posteriors of {len(skills)} skills",
            100,
            lambda index: _posteriors(memory, skills, index),
        ),
        _time(
            "record an outcome, ask again",
            50,
            lambda index: _after_a_measurement(memory, skills, index),
        ),
        _time(
            "signatures of 16 skills",
            100,
            lambda index: memory.track_records.winning_signatures(few),
        ),
        _time(
            "skill search",
            100,
            lambda index: memory.skills.search(
                _diagnosis(index).summary, operators=[NAMES[index % 40]], limit=3
            ),
        ),
        _time("consultation of a round", 100, lambda index: _consult(memory, skills, index)),
        _time(
            "track record of a skill",
            50,
            lambda index: memory.track_records.of_skill(f"skill-{index:05d}"),
        ),
    ]


def measure_merge(directory: Path) -> list[Timed]:
    """Time the merge of 10,000 outcomes into an empty memory, after start-up, and once more."""
    with Memory(directory / "from.db") as source, Memory(directory / "to.db") as target:
        source.ledger.record_entries(make_entries(0, 10_000, 1000))
        export_outcomes(source, directory / "export.jsonl")
        target.runs.put_kernel(Kernel("start-up: the tables"))
        (directory / "one.jsonl").write_text(
            (directory / "export.jsonl").read_text().splitlines()[0] + "\n"
        )
        import_outcomes(target, directory / "one.jsonl")  # start-up: builds pydantic's validators
    with Memory(directory / "fresh.db") as fresh:
        first = _once(
            "merge of 10,000 outcomes", lambda: import_outcomes(fresh, directory / "export.jsonl")
        )
        return [
            first,
            _once(
                "the same again, all known",
                lambda: import_outcomes(fresh, directory / "export.jsonl"),
            ),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--outcomes", type=int, default=1_000_000, help="outcomes in the ledger")
    parser.add_argument("--skills", type=int, default=10_000, help="skills in the library")
    parser.add_argument(
        "--database",
        type=Path,
        help=(
            "keep the database here; one that is there is filled up or used "
            "(default: a temporary one)"
        ),
    )
    parser.add_argument(
        "--model",
        action="store_true",
        help="also time the embedding of a question by the real model",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    rows: list[Timed] = []
    with tempfile.TemporaryDirectory(prefix="kmem-benchmark-") as scratch:
        path = (arguments.database or Path(scratch) / "kmem.db").absolute()
        skills = make_skills(arguments.skills, path.parent / "benchmark-skills")
        with Memory(path, HashEmbedder()) as memory:
            if not memory.storage.read("select 1 from library limit 1"):  # the last thing filled
                rows.append(
                    _once(
                        f"fill {arguments.outcomes} outcomes",
                        lambda: _fill(memory, arguments.outcomes, skills),
                    )
                )
                print(f"filled in {rows[0].median / 1e3:.0f} s", file=sys.stderr)
        with Memory(path, HashEmbedder()) as memory:
            rows += measure_questions(memory, skills)
            (sums,) = memory.storage.read("select count(*) as n from skill_sums")
        if arguments.model and (embedder := load_embedder()) is not None:
            rows += _time_embedding(embedder)
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rows += measure_merge(Path(scratch))
        sizes = {
            "peak_rss_mib": peak_mib,
            "database_mib": path.stat().st_size / 2**20,
            "sums": sums["n"],
            "cpus": os.cpu_count(),
        }
    if arguments.json:
        print(json.dumps({"timed_ms": [asdict(row) for row in rows], **sizes}))
        return
    print(f"{'':36s} {'calls':>6s} {'median':>9s} {'p95':>9s} {'CPU median':>11s} {'CPU p95':>9s}")
    for row in rows:
        print(
            f"{row.what:36s} {row.calls:6d} {row.median:9.1f} {row.p95:9.1f} "
            f"{row.cpu_median:11.1f} {row.cpu_p95:9.1f}"
        )
    print(", ".join(f"{name} {value:.0f}" for name, value in sizes.items()))


def _time_embedding(embedder: Embedder) -> list[Timed]:
    return [
        _once("start-up: the embedding model", lambda: embedder(["first"])),
        _time("embedding a question", 50, lambda index: embedder([_diagnosis(index).summary])),
    ]


if __name__ == "__main__":
    main()
