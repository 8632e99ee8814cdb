"""Export and merge: a union by content, in any order, any number of times; damage is named."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_memory_store import make_outcome

from kmem.errors import MemoryStoreError, OutputError
from kmem.memory.ledger.descents import recall_descents
from kmem.memory.ledger.graphs import GraphKey
from kmem.memory.ledger.outcomes import Retraction
from kmem.memory.ledger.settlements import Settlement, predictions_held
from kmem.memory.stats import memory_stats
from kmem.memory.store import Memory
from kmem.memory.team.carried import copy_memory
from kmem.memory.team.exchange import Exchanged, export_outcomes, import_outcomes
from kmem.memory.verify import verify_memory
from kmem.records import Claim, ClaimCheck, Kernel, SiteChoice, content_hash


def _export(memory: Memory, path: Path, **options) -> bytes:
    export_outcomes(memory, path, **options)
    return path.read_bytes()


def _rehash(text: str) -> str:
    """Lines with the hash their outcomes have, whatever these say."""
    lines = []
    for data in map(json.loads, text.splitlines()):
        if "outcome" in data:
            data["hash"] = content_hash(json.dumps(data["outcome"], sort_keys=True))
        lines.append(json.dumps(data, sort_keys=True))
    return "\n".join(lines) + "\n"


@pytest.fixture
def filled(tmp_path: Path):
    with Memory(tmp_path / "filled.db") as memory:
        memory.runs.put_kernel(
            Kernel("fast", choices=(SiteChoice("a", "sum", "reduce", ()),), flags=("algebraic",))
        )
        for latency in (1.0, 2.0, None):
            memory.ledger.record(
                make_outcome(latency, source="fast" if latency == 1.0 else "unstored")
            )
        memory.ledger.retract(make_outcome(2.0, source="unstored").hash, "clock was wrong", "test")
        yield memory


def test_a_fresh_memory_that_merges_an_export_knows_the_same(
    filled: Memory, tmp_path: Path
) -> None:
    content = _export(filled, tmp_path / "a.jsonl")
    with Memory(tmp_path / "fresh.db") as fresh:
        assert import_outcomes(fresh, tmp_path / "a.jsonl") == Exchanged(3, 1, 1)
        assert import_outcomes(fresh, tmp_path / "a.jsonl") == Exchanged(0, 0, 0)
        assert fresh.ledger.outcomes() == filled.ledger.outcomes()
        assert fresh.track_records.of_skill("online-softmax") == filled.track_records.of_skill(
            "online-softmax"
        )
        assert fresh.runs.kernel(Kernel("fast").hash) == filled.runs.kernel(Kernel("fast").hash)
        assert _export(fresh, tmp_path / "b.jsonl") == content
        assert verify_memory(fresh) == []


def test_an_export_without_sources_holds_no_code(filled: Memory, tmp_path: Path) -> None:
    content = _export(filled, tmp_path / "a.jsonl", sources=False)
    assert all("kernel" not in json.loads(line) for line in content.splitlines())
    with Memory(tmp_path / "fresh.db") as fresh:
        assert import_outcomes(fresh, tmp_path / "a.jsonl") == Exchanged(3, 1, 0)


def test_an_export_never_takes_the_place_of_what_is_no_export(
    filled: Memory, tmp_path: Path
) -> None:
    (tmp_path / "keep.txt").write_text("precious\n")
    with pytest.raises(OutputError, match="is no export of kmem"):
        export_outcomes(filled, tmp_path / "keep.txt")
    assert (tmp_path / "keep.txt").read_text() == "precious\n"
    export_outcomes(filled, tmp_path / "keep.txt", force=True)
    assert len((tmp_path / "keep.txt").read_text().splitlines()) == 4


def test_an_export_never_shrinks(filled: Memory, tmp_path: Path) -> None:
    place = tmp_path / "team.jsonl"
    content = _export(filled, place)
    with Memory(tmp_path / "empty.db") as empty:
        with pytest.raises(OutputError, match="holds 4 records that this memory lacks"):
            export_outcomes(empty, place)
        with pytest.raises(OutputError, match="texts of kernels"):
            export_outcomes(filled, place, sources=False)
        assert place.read_bytes() == content
        import_outcomes(empty, place)
        empty.ledger.record(make_outcome(9.0))
        assert _export(empty, place).count(b"\n") == 5
    assert sorted(tmp_path.glob("*.partial")) == []


def test_an_export_that_cannot_be_finished_leaves_the_old_one(
    filled: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "team.jsonl"
    content = _export(filled, place)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OutputError, match="No space left"):
        export_outcomes(filled, place)
    assert place.read_bytes() == content
    assert sorted(tmp_path.glob("*.partial")) == []


def test_a_directory_merges_all_its_files(filled: Memory, tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    export_outcomes(filled, tmp_path / "evidence" / "a.jsonl")
    with Memory(tmp_path / "other.db") as other:
        other.ledger.record(make_outcome(7.0))
        export_outcomes(other, tmp_path / "evidence" / "b.jsonl")
    with Memory(tmp_path / "fresh.db") as fresh:
        assert import_outcomes(fresh, tmp_path / "evidence").outcomes == 4
        (tmp_path / "empty").mkdir()
        with pytest.raises(MemoryStoreError, match="holds no"):
            import_outcomes(fresh, tmp_path / "empty")


def test_an_export_leaves_out_what_others_have_already(filled: Memory, tmp_path: Path) -> None:
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    before = _export(filled, shipped / "a.jsonl").decode()
    filled.ledger.record(make_outcome(7.0))
    for redact in (False, True):
        new = _export(filled, tmp_path / "new.jsonl", without=shipped, redact=redact, force=True)
        (outcome,) = [line for line in map(json.loads, new.splitlines()) if "hash" in line]
        assert outcome["outcome"]["latency_ms"] == 7.0
    with Memory(tmp_path / "theirs.db") as theirs, Memory(tmp_path / "all.db") as every:
        import_outcomes(theirs, shipped)
        _export(filled, tmp_path / "new.jsonl", without=shipped / "a.jsonl", force=True)
        assert import_outcomes(theirs, tmp_path / "new.jsonl").outcomes == 1
        _export(filled, tmp_path / "all.jsonl")
        import_outcomes(every, tmp_path / "all.jsonl")
        assert _export(theirs, tmp_path / "t.jsonl") == _export(every, tmp_path / "e.jsonl")
    assert before == (shipped / "a.jsonl").read_text()
    (shipped / "notes.jsonl").write_text("not an export")
    with pytest.raises(MemoryStoreError, match="notes.jsonl is no export of kmem; name a file or"):
        _export(filled, tmp_path / "x.jsonl", without=shipped)
    assert not (tmp_path / "x.jsonl").exists()


def test_a_retraction_counts_even_if_it_arrives_before_its_outcome(tmp_path: Path) -> None:
    outcome = make_outcome()
    with Memory(tmp_path / "kmem.db") as memory:
        assert memory.ledger.record_retraction(
            Retraction(outcome.hash, "wrong", "team", "2026-01-01")
        )
        memory.ledger.record(outcome)
        assert memory.ledger.outcomes() == []


@settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(0.1, 10.0)), max_size=8),
    st.booleans(),
)
def test_merging_either_way_or_twice_equals_one_memory_that_saw_everything(
    tmp_path_factory, measured: list, reverse: bool
) -> None:
    root = tmp_path_factory.mktemp("merge")
    with (
        Memory(root / "a.db") as a,
        Memory(root / "b.db") as b,
        Memory(root / "all.db") as everything,
    ):
        for in_a, in_b, latency in measured:
            outcome = make_outcome(latency, parent_ms=1.0)
            for memory, sees in ((a, in_a), (b, in_b), (everything, in_a or in_b)):
                if sees:
                    memory.ledger.record(outcome)
        export_outcomes(a, root / "a.jsonl")
        export_outcomes(b, root / "b.jsonl")
        with Memory(root / "merged.db") as merged:
            for name in ["b.jsonl", "a.jsonl"] if reverse else ["a.jsonl", "b.jsonl", "a.jsonl"]:
                import_outcomes(merged, root / name)
            assert merged.ledger.outcomes() == everything.ledger.outcomes()
            assert merged.track_records.of_skill(
                "online-softmax"
            ) == everything.track_records.of_skill("online-softmax")
            assert _export(merged, root / "m.jsonl") == _export(everything, root / "e.jsonl")


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda text: text.replace('"latency_ms": 1.0', '"latency_ms": 0.1'), "its hash is"),
        (
            lambda text: text.replace('"source": "fast"', '"source": "evil"'),
            "its kernel is not the one it names",
        ),
        (lambda text: text.replace('"reason": "clock', '"reason": "clack'), "its hash is"),
        (lambda text: text.replace('"status": "passed"', '"status": "great"'), "its hash is"),
        (
            lambda text: _rehash(text.replace('"status": "passed"', '"status": "great"')),
            "no exported outcome",
        ),
        # the same outcome, spelled otherwise
        (lambda text: _rehash(text.replace('"latency_ms": 1.0', '"latency_ms": 1')), "its hash is"),
        (
            lambda text: _rehash(text.replace('"latency_ms": 1.0', '"latency_ms": 0.0')),
            "latency_ms cannot be 0",
        ),
        (
            lambda text: _rehash(text.replace('"latency_ms": 1.0', '"latency_ms": NaN')),
            "latency_ms cannot be nan",
        ),
        (lambda text: _rehash(text.replace('"ratio": 2.0', '"ratio": -2.0')), "ratio cannot be -2"),
        (
            lambda text: _rehash(
                text.replace('"bound_ms": 0.5', '"bound_ms": 0.5, "predicted_ms": Infinity')
            ),
            "predicted_ms cannot be inf",
        ),
        (
            lambda text: _rehash(text.replace('"sizes": [64', '"sizes": [9223372036854775808')),
            "sizes must be",
        ),
        (lambda text: text[:-30], "no exported outcome"),
        (lambda text: text + "[]\n", "no exported outcome"),
        (lambda text: text + "{}\n", "no exported outcome"),
    ],
)
def test_a_damaged_line_is_named_by_file_and_number(
    filled: Memory, tmp_path: Path, spoil, fault: str
) -> None:
    text = _export(filled, tmp_path / "a.jsonl").decode()
    assert spoil(text) != text
    (tmp_path / "bad.jsonl").write_text(spoil(text))
    with Memory(tmp_path / "fresh.db") as fresh:
        with pytest.raises(MemoryStoreError, match=rf"bad\.jsonl:\d+ .*{fault}"):
            import_outcomes(fresh, tmp_path / "bad.jsonl")
        assert memory_stats(fresh).outcomes == 0


def test_files_that_cannot_be_read_or_written_are_named(filled: Memory, tmp_path: Path) -> None:
    with pytest.raises(MemoryStoreError, match="missing.jsonl cannot be read"):
        import_outcomes(filled, tmp_path / "missing.jsonl")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(MemoryStoreError, match="not text in UTF-8"):
        import_outcomes(filled, tmp_path / "binary.jsonl")
    with pytest.raises(OutputError, match="cannot be written"):
        export_outcomes(filled, tmp_path / "no" / "such" / "directory.jsonl")


def test_verify_names_numbers_that_no_measurement_gives(filled: Memory) -> None:
    outcome = make_outcome(0.0)
    filled.ledger.record(outcome)
    assert verify_memory(filled) == [
        f"outcome {outcome.hash[:12]}: its record is no outcome (latency_ms cannot be 0)"
    ]


def test_verify_finds_what_somebody_changed_by_hand(filled: Memory) -> None:
    assert verify_memory(filled) == []
    for statement in (
        "drop trigger outcomes_are_never_updated",
        "drop trigger retractions_are_never_updated",
        "update outcomes set record = replace(record, '2.0', '0.2') where latency_ms = 2.0",
        "update retractions set record = replace(record, 'clock', 'clack')",
        "update kernels set source = 'evil'",
        "pragma foreign_keys = off",
        "update outcomes set graph_hash = 'nowhere' where latency_ms = 1.0",
    ):
        filled.storage.db.execute(statement)
    faults = verify_memory(filled)
    assert len(faults) == 4
    for fault, expected in zip(
        faults,
        ("table outcomes, row 1: points to", "kernel ", "outcome ", "retraction "),
        strict=True,
    ):
        assert fault.startswith(expected)


def test_what_is_imported_is_never_this_memorys_own_whatever_it_says(tmp_path: Path) -> None:
    claim = Claim("dram_throughput_pct", "<=", 0.7, relative=True)
    with Memory(tmp_path / "own.db") as memory:
        own_name = memory.contributors.own_name
        measured = make_outcome(origin=own_name, claims=(claim,))
        memory.ledger.record(measured)
        before = _earned(memory)

        with Memory(tmp_path / "forger.db") as forger:
            for number in range(50):
                forger.ledger.record(make_outcome(0.01, source=f"{number}", origin=own_name))
            failed = ClaimCheck(claim, 0.5, 0.6, held=False)
            settled = Settlement(measured.hash, (failed,), own_name, "2026")
            forger.ledger.record_settlement(settled)
            forger.contributors.keep_licences({own_name: "public domain"})
            export_outcomes(forger, tmp_path / "forged.jsonl")
        import_outcomes(memory, tmp_path / "forged.jsonl")

        assert memory.contributors.origins() == {
            own_name: 1,
            f"claims to be {own_name}": 50,
        }
        weight = memory.contributors.trust().weight
        assert weight(own_name) == 1.0 and weight("local") == 0.5
        assert weight(f"claims to be {own_name}") == 0.5
        assert predictions_held(memory.storage.db.conn, [(measured.hash, measured)]) == {}
        assert memory.contributors.licences() == {}
        graph = GraphKey("another", "s", (), (), measured.arch, measured.contract)
        searches = recall_descents(
            memory.storage, graph, memory.contributors.trust(), own_name, measured.versions
        )
        assert sorted((len(each.best_ms), each.is_own) for each in searches) == [
            (1, True),
            (50, False),
        ]
        assert memory.track_records.rebuild().differing == 0

        # no longer trusted, they are as if they had never come
        memory.contributors.set_trust(f"claims to be {own_name}", 0.0)
        assert _earned(memory) == before


def test_a_copy_of_a_database_that_went_on_elsewhere_is_not_this_memorys_own(
    tmp_path: Path,
) -> None:
    with Memory(tmp_path / "desk.db") as desk:
        desk.ledger.record(make_outcome(1.0, origin=desk.contributors.own_name))
        copy_memory(desk, tmp_path / "laptop.db")
        with Memory(tmp_path / "laptop.db") as laptop:
            own_name = laptop.contributors.own_name
            laptop.ledger.record(make_outcome(2.0, source="b", origin=own_name))
            export_outcomes(laptop, tmp_path / "laptop.jsonl")
        assert import_outcomes(desk, tmp_path / "laptop.jsonl").outcomes == 1
        assert desk.contributors.origins() == {own_name: 1, f"claims to be {own_name}": 1}


def _earned(memory: Memory) -> tuple[float, ...]:
    question = {"bottleneck": None, "operators": (), "arch": "sm_90", "versions": {}}
    found = memory.track_records.posteriors(("online-softmax",), **question)["online-softmax"]
    return found.correct, found.log_speedup, found.deviation, found.keeps
