"""The memory as one object: runs and attempts, the ledger, recall, devices.

Real SQLite files throughout.
"""

import math
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from kmem.devices import named_target
from kmem.errors import MemoryStoreError
from kmem.memory.ledger.graphs import GraphKey
from kmem.memory.ledger.outcomes import ledger_entry
from kmem.memory.runs.entries import RunEntry
from kmem.memory.runs.runs import RoundDiagnosis
from kmem.memory.store import Memory, default_db_path
from kmem.problem.graph import Node, OpGraph, Placeholder, Ref, graph_sizes
from kmem.records import (
    Attempt,
    Baseline,
    Bottleneck,
    Budget,
    Candidate,
    Claim,
    Contract,
    Diagnosis,
    Kernel,
    Measurement,
    Move,
    Outcome,
    Precision,
    Prescription,
    Problem,
    Profile,
    Run,
    RunResult,
    RunState,
    Signature,
    SiteChoice,
    Status,
    Task,
    TensorSpec,
    Timing,
)

RUN = Run(
    "20260101-aaaa",
    Problem("p", "/p.py", "x"),
    "h200",
    Contract(),
    Budget(),
    "rw",
    0,
    "/out",
    "2026-01-01T00:00:00+00:00",
)
DIAGNOSIS = Diagnosis(
    Bottleneck.LATENCY, (), Signature({"waves": 0.5}), None, None, "too little in flight", None
)


def make_outcome(
    latency_ms: float | None = 1.0,
    *,
    graph: str = "g",
    structure: str = "s",
    sizes: tuple[int, ...] = (64, 64),
    source: str = "k",
    **changes,
) -> Outcome:
    passed = latency_ms is not None
    outcome = Outcome(
        problem="p",
        graph_hash=graph,
        structure_hash=structure,
        operators=("softmax",),
        workload="full",
        device="h200",
        arch="sm_90",
        contract=Contract(),
        skill="online-softmax",
        choices=(SiteChoice("softmax", "softmax", "online-softmax", (("BLOCK", 1024),)),),
        move=Move.SEED,
        bottleneck=None,
        signature=None,
        source_hash=Kernel(source).hash,
        parent_hash=None,
        status=Status.PASSED if passed else Status.WRONG_VALUES,
        latency_ms=latency_ms,
        latency_ms_p20=latency_ms,
        latency_ms_p80=latency_ms,
        parent_ms=None,
        baseline="eager",
        baseline_ms=2.0,
        ratio=2.0 / latency_ms if latency_ms else None,
        ratio_low=None,
        ratio_high=None,
        bound_ms=0.5,
        flags=(),
        versions={"triton": "3.6"},
        origin="test",
        created_at="2026-01-01T00:00:00+00:00",
        sizes=sizes,
    )
    return replace(outcome, **changes)


def make_attempt(source: str, status: Status = Status.PASSED, move: Move = Move.SEED) -> Attempt:
    timing = Timing(1.0, 0.9, 1.1, 10) if status is Status.PASSED else None
    candidate = Candidate(
        Kernel(source, choices=(SiteChoice("a", "sum", "reduce", ()),)),
        Task(move, "reduce", None, 1, "first"),
        "recipes",
    )
    return Attempt(1, candidate, Measurement(status, timing, False), 2.0)


@pytest.fixture
def memory(tmp_path: Path):
    with Memory(tmp_path / "kmem.db") as memory:
        yield memory


def recall(
    memory: Memory,
    *,
    graph: str = "g",
    structure: str = "s",
    operators=("softmax",),
    sizes=(64, 64),
    contract=None,
    limit: int = 3,
):
    key = GraphKey(graph, structure, operators, sizes, "sm_90", contract or Contract())
    return memory.winners.recall(key, limit)


def test_the_database_lies_where_KMEM_DB_says_else_in_the_data_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KMEM_DB", str(tmp_path / "mine.db"))
    assert default_db_path() == tmp_path / "mine.db"
    monkeypatch.delenv("KMEM_DB")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("sys.platform", "linux")
    assert default_db_path() == tmp_path / "data" / "kmem" / "kmem.db"
    monkeypatch.setattr("sys.platform", "darwin")
    assert default_db_path() == Path.home() / "Library" / "Application Support" / "kmem" / "kmem.db"


def test_a_run_is_found_by_a_unique_beginning_of_its_id(memory: Memory) -> None:
    memory.runs.start(RUN)
    memory.runs.start(replace(RUN, id="20260101-bbbb", created_at="2026-01-02T00:00:00+00:00"))
    assert memory.runs.get("20260101-a") == RUN
    with pytest.raises(MemoryStoreError, match="2 runs begin with '2026'"):
        memory.runs.get("2026")
    for missing in ("x", "", "%"):
        with pytest.raises(MemoryStoreError, match="No run"):
            memory.runs.get(missing)


def test_runs_come_newest_first_with_state_and_result(memory: Memory) -> None:
    later = replace(RUN, id="later", created_at="2026-01-02T00:00:00+00:00")
    memory.runs.start(RUN)
    memory.runs.start(later)
    result = RunResult(
        "later",
        "p",
        "h200",
        False,
        make_attempt("k"),
        (),
        None,
        2.0,
        0.9,
        False,
        3,
        1.5,
        "target reached",
    )
    memory.runs.set_state("later", RunState.FINISHED, result)
    assert memory.run_entries.all() == [
        RunEntry(later, RunState.FINISHED, result),
        RunEntry(RUN, RunState.RUNNING),
    ]
    memory.runs.set_state("later", RunState.RUNNING)
    assert (memory.runs.state("later"), memory.runs.result("later")) == (RunState.RUNNING, result)
    with pytest.raises(MemoryStoreError, match="No run 'nobody'"):
        memory.runs.set_state("nobody", RunState.FAILED)


def test_an_attempt_is_kept_once_and_comes_back_whole(memory: Memory) -> None:
    memory.runs.start(RUN)
    first, second = make_attempt("kernel 1"), make_attempt("kernel 2", Status.WRONG_VALUES)
    assert [memory.runs.record_attempt(RUN.id, attempt) for attempt in (first, second, first)] == [
        True,
        True,
        False,
    ]
    assert memory.runs.attempts(RUN.id) == [first, second]
    assert memory.runs.kernel(first.candidate.kernel.hash) == first.candidate.kernel
    assert memory.runs.kernel("0" * 64) is None
    assert memory.runs.record_attempt(RUN.id, make_attempt("kernel 1", move=Move.TUNE))


def test_an_interrupted_attempt_gives_way_to_the_one_that_was_measured(memory: Memory) -> None:
    memory.runs.start(RUN)
    memory.runs.record_attempt(RUN.id, make_attempt("k", Status.INTERRUPTED))
    assert memory.runs.record_attempt(RUN.id, make_attempt("k"))
    assert not memory.runs.record_attempt(RUN.id, make_attempt("k", Status.CRASHED))
    assert memory.runs.attempts(RUN.id) == [make_attempt("k")]


def test_what_belongs_to_a_run_needs_the_run(memory: Memory) -> None:
    for write in (
        lambda: memory.runs.record_attempt("no", make_attempt("k")),
        lambda: memory.runs.put_profile("no", Profile("k", "ncu", "h200", False, ())),
        lambda: memory.runs.put_diagnosis("no", 1, "k", DIAGNOSIS, ()),
        lambda: memory.runs.result("no"),
    ):
        with pytest.raises(MemoryStoreError, match="No run 'no'"):
            write()


def test_profiles_and_diagnoses_come_back_by_round(memory: Memory) -> None:
    memory.runs.start(RUN)
    profile = Profile("k", "ncu", "h200", False, ())
    memory.runs.put_profile(RUN.id, replace(profile, estimated=True))
    memory.runs.put_profile(RUN.id, profile)
    assert memory.runs.profiles(RUN.id) == [profile]
    offered = (Prescription("split-reductions", 0.5, ("similar",)),)
    memory.runs.put_diagnosis(RUN.id, 2, "k", DIAGNOSIS, ())
    memory.runs.put_diagnosis(RUN.id, 1, "k", DIAGNOSIS, offered)
    assert memory.runs.diagnoses(RUN.id) == [
        RoundDiagnosis(1, "k", DIAGNOSIS, offered),
        RoundDiagnosis(2, "k", DIAGNOSIS, ()),
    ]


def test_the_ledger_takes_an_outcome_once_and_never_changes_it(memory: Memory) -> None:
    outcome = make_outcome()
    assert memory.ledger.record(outcome)
    assert not memory.ledger.record(outcome)
    assert memory.ledger.outcomes() == [outcome]
    for change in ("update outcomes set status = 'crashed'", "delete from outcomes"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            memory.storage.db.execute(change)


def test_the_ledger_keeps_what_a_prescribed_change_was_predicted_to_do(memory: Memory) -> None:
    plain = make_outcome()
    told = replace(plain, claims=(Claim("waves", ">=", 2.0, relative=True),))
    assert told.hash != plain.hash == ledger_entry(plain).hash
    assert memory.ledger.record(told)
    assert memory.ledger.outcomes() == [told]
    assert "claims" not in ledger_entry(plain).record  # as before there were predictions


def test_the_hash_of_an_entry_is_the_outcomes_own_whatever_type_its_numbers_had() -> None:
    outcome = make_outcome(1.5)
    assert ledger_entry(outcome).hash == outcome.hash
    assert ledger_entry(make_outcome(2)).hash == make_outcome(2.0).hash


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, [1.0, 2.0, None]),
        ({"graph_hash": "g"}, [1.0, None]),
        ({"structure_hash": "t"}, [2.0]),
        ({"operator": "softmax"}, [1.0, None]),
        ({"operator": "matmul"}, [2.0]),
        ({"skill": "tile-matmul"}, [2.0]),
        ({"arch": "sm_80"}, []),
        ({"status": Status.WRONG_VALUES}, [None]),
        ({"graph_hash": "g", "status": Status.PASSED}, [1.0]),
    ],
)
def test_outcomes_are_filtered_and_oldest_first(
    memory: Memory, filters: dict, expected: list
) -> None:
    matmul = SiteChoice("m", "matmul", "tile-matmul", ())
    memory.ledger.record(make_outcome(None, created_at="2026-01-03T00:00:00+00:00"))
    memory.ledger.record(
        make_outcome(
            2.0,
            graph="h",
            structure="t",
            operators=("linear",),
            choices=(matmul,),
            skill="tile-matmul",
            created_at="2026-01-02",
        )
    )
    memory.ledger.record(make_outcome(1.0))
    assert [outcome.latency_ms for outcome in memory.ledger.outcomes(**filters)] == expected


def test_a_retracted_outcome_no_longer_counts(memory: Memory) -> None:
    fast, slow = make_outcome(0.1, source="wrong"), make_outcome(1.0)
    memory.ledger.record(fast)
    memory.ledger.record(slow)
    memory.ledger.retract(fast.hash, "timer was broken", "test")
    assert memory.ledger.outcomes() == [slow]
    assert [hit.outcome for hit in recall(memory)] == [slow]
    assert memory.track_records.of_skill("online-softmax")[0].tried == 1
    with pytest.raises(MemoryStoreError, match="No outcome"):
        memory.ledger.retract("0" * 64, "none", "test")


def test_recall_offers_exact_hits_by_speed_each_kernel_once_with_its_source(memory: Memory) -> None:
    memory.runs.put_kernel(Kernel("fast"))
    for latency, source in (
        (2.0, "slow"),
        (1.0, "fast"),
        (1.5, "fast"),
        (1.2, "middle"),
        (9.0, "slowest"),
    ):
        memory.ledger.record(make_outcome(latency, source=source))
    memory.ledger.record(make_outcome(None, source="wrong"))
    hits = recall(memory)
    assert [(hit.outcome.latency_ms, hit.source, hit.exact, hit.distance) for hit in hits] == [
        (1.0, "fast", True, 0.0),
        (1.2, None, True, 0.0),
        (2.0, None, True, 0.0),
    ]


def test_recall_prefers_kernels_judged_in_full_and_offers_none_the_judge_refused(
    memory: Memory,
) -> None:
    memory.ledger.record(make_outcome(0.5, source="screened", ratio=None))
    memory.ledger.record(make_outcome(1.0, source="verified"))
    memory.ledger.record(make_outcome(0.4, source="refused", ratio=None))
    memory.ledger.record(make_outcome(None, source="refused", status=Status.IMPURE))
    assert [(hit.outcome.latency_ms, hit.outcome.ratio) for hit in recall(memory)] == [
        (1.0, 2.0),
        (0.5, None),
    ]


def test_recall_keeps_contracts_and_architectures_apart(memory: Memory) -> None:
    memory.ledger.record(make_outcome(1.0, contract=Contract(Precision.TF32), source="tf32"))
    memory.ledger.record(make_outcome(1.0, arch="sm_80", source="ampere"))
    assert recall(memory) == []
    assert [hit.exact for hit in recall(memory, contract=Contract(Precision.TF32))] == [True]


def test_recall_offers_the_nearest_sizes_of_the_same_structure_next(memory: Memory) -> None:
    for graph, sizes in (("far", (64, 4096)), ("near", (64, 128)), ("nearer", (64, 96))):
        memory.ledger.record(make_outcome(1.0, graph=graph, sizes=sizes, source=graph))
    memory.ledger.record(make_outcome(3.0, graph="near", sizes=(64, 128), source="slower"))
    hits = recall(memory, limit=2)
    assert [(hit.outcome.graph_hash, hit.outcome.latency_ms, hit.exact) for hit in hits] == [
        ("nearer", 1.0, False),
        ("near", 1.0, False),
    ]
    assert hits[0].distance == pytest.approx(math.log2(1.5) / 2)
    assert hits[1].distance == 0.5


def test_recall_falls_back_on_recipes_for_the_same_operator(memory: Memory) -> None:
    memory.ledger.record(make_outcome(1.0, graph="x", structure="other", source="good"))
    memory.ledger.record(make_outcome(0.5, graph="y", structure="third", source="better"))
    memory.ledger.record(
        make_outcome(0.1, graph="z", structure="fourth", source="by a model", choices=())
    )
    hits = recall(memory)
    assert [(hit.outcome.graph_hash, hit.exact, hit.distance) for hit in hits] == [
        ("y", False, math.inf),
        ("x", False, math.inf),
    ]
    assert recall(memory, operators=("matmul",)) == []


def test_graph_sizes_lists_every_size_of_every_tensor_placeholder() -> None:
    x = Placeholder("x", "input", "", TensorSpec((4, 8), "float32", (8, 1)))
    n = Placeholder("n", "input", "", None, 3)
    w = Placeholder("w", "parameter", "weight", TensorSpec((16,), "float32", (1,)))
    node = Node("y", "aten.relu.default", (Ref("x"),), {}, TensorSpec((4, 8), "float32", (8, 1)))
    assert graph_sizes(OpGraph((x, n, w), (node,), ("y",), False, True, False)) == (4, 8, 16)


def test_a_skills_record_is_the_geometric_mean_of_its_steps(memory: Memory) -> None:
    for latency, parent in ((1.0, 2.0), (1.0, 8.0), (2.0, 1.0)):  # two steps forward, one back
        memory.ledger.record(make_outcome(latency, parent_ms=parent, move=Move.FIX))
    memory.ledger.record(make_outcome(None))
    memory.ledger.record(make_outcome(None, status=Status.INTERRUPTED))
    memory.ledger.record(make_outcome(None, arch="sm_80"))
    ampere, hopper = memory.track_records.of_skill("online-softmax")
    assert (hopper.arch, hopper.tried, hopper.passed, hopper.improved) == ("sm_90", 4, 3, 2)
    assert hopper.compared == 3
    assert hopper.speedup == pytest.approx((2 * 8 * 0.5) ** (1 / 3))
    assert (ampere.arch, ampere.tried, ampere.passed, ampere.speedup) == ("sm_80", 1, 0, None)
    assert memory.track_records.of_skill("never-tried") == []


def test_a_seed_is_compared_with_the_best_that_does_without_its_skill(memory: Memory) -> None:
    def seed(latency_ms: float, skill: str, **changes) -> Outcome:
        fields = {"move": Move.SEED, "ratio": None, "choices": (), **changes}
        return make_outcome(latency_ms, skill=skill, source=f"{skill}{latency_ms}", **fields)

    def told(skill: str) -> tuple[int, int, float | None]:
        found = memory.track_records.of_skill(skill)[0]
        return found.compared, found.improved, found.speedup

    memory.ledger.record(seed(2.0, "slow"))
    assert told("slow") == (0, 0, None), "nothing else was timed at this graph"
    memory.ledger.record(seed(1.0, "fast"))
    memory.ledger.record(seed(4.0, "fast"))  # another setting: still one comparison a graph
    assert told("slow") == (1, 0, pytest.approx(0.5))
    assert told("fast") == (1, 1, pytest.approx(2.0))
    # tuning makes both sides better, and is no comparison of its own
    memory.ledger.record(seed(0.5, "fast", move=Move.TUNE, parent_ms=1.0))
    assert told("fast") == (1, 1, pytest.approx(4.0))
    # a kernel with both skills is no case without either
    both = SiteChoice("s", "softmax", "slow", ())
    memory.ledger.record(seed(0.1, "fast", choices=(both,)))
    assert told("slow") == (1, 1, pytest.approx(0.5 / 0.1))
    # another's clock, another device, another graph: no comparison
    memory.ledger.record(seed(1e-3, "slow", origin="stranger"))
    memory.ledger.record(seed(1e-3, "slow", device="another"))
    memory.ledger.record(seed(1e-3, "slow", graph="another"))
    assert told("fast") == (1, 1, pytest.approx(2.0 / 0.1))
    # the best baseline does without it, too
    verdict = seed(0.1, "fast", choices=(both,), ratio=3.0, baseline_ms=0.3)
    memory.ledger.record(verdict)
    assert told("fast") == (1, 1, pytest.approx(3.0))
    memory.ledger.retract(verdict.hash, "the clock was wrong", "test")
    assert told("fast") == (1, 1, pytest.approx(2.0 / 0.1))
    assert memory.track_records.rebuild().differing == 0


def test_baselines_belong_to_exactly_one_set_of_versions(memory: Memory) -> None:
    eager = Baseline("eager", Timing(1.0, 0.9, 1.1, 10), False)
    compiled = Baseline("compile", None, False, "failed")
    versions = {"torch": "2.11", "triton": "3.6"}
    memory.devices.put_baselines("p", "full", "h200", Contract(), versions, [eager])
    memory.devices.put_baselines("p", "full", "h200", Contract(), versions, [eager, compiled])
    assert memory.devices.baselines(
        "p", "full", "h200", Contract(), dict(reversed(versions.items()))
    ) == (
        compiled,
        eager,
    )
    assert memory.devices.baselines("p", "full", "h200", Contract(Precision.TF32), versions) == ()
    assert memory.devices.baselines("p", "full", "h200", Contract(), {"torch": "2.13"}) == ()


def test_the_ceilings_measured_last_are_used(memory: Memory) -> None:
    old = replace(named_target("h200"), measured=True, dram_bytes_per_s=4.0e12)
    new = replace(old, dram_bytes_per_s=4.1e12)
    assert memory.devices.ceilings("h200") is None
    memory.devices.put_ceilings(old, {"driver": "550"})
    memory.devices.put_ceilings(new, {"driver": "560"})
    assert memory.devices.ceilings("h200") == new
    assert memory.devices.ceilings("h200", {"driver": "550"}) == old
    assert memory.devices.ceilings("h200", {"driver": "1"}) is None
