"""What memory tells an author of settings tried elsewhere: the right rows, and few of them."""

from dataclasses import replace
from pathlib import Path

import pytest
from test_memory_store import make_outcome

from kmem.memory.ledger import experience
from kmem.memory.ledger.experience import recall_experience, recall_measured
from kmem.memory.ledger.graphs import GraphKey
from kmem.memory.ledger.outcomes import ledger_entry
from kmem.memory.ledger.redaction import redact_outcome
from kmem.memory.store import Memory
from kmem.records import Contract, Experience, Outcome, Status


@pytest.fixture
def memory(tmp_path: Path):
    with Memory(tmp_path / "kmem.db") as memory:
        yield memory


def setting(block: int, latency_ms: float | None = 1.0, **changes) -> Outcome:
    outcome = make_outcome(latency_ms, seed=block, **changes)
    return replace(outcome, choices=(replace(outcome.choices[0], knobs=(("BLOCK", block),)),))


def ask(memory: Memory, *, structure: str = "s", arch: str = "sm_90") -> tuple[Experience, ...]:
    key = GraphKey("mine", structure, (), (), arch, Contract())
    return recall_experience(memory.storage, ["online-softmax"], key)


def blocks(found: tuple[Experience, ...]) -> list[object]:
    return [value for entry in found for _, value in entry.knobs]


def work(memory: Memory, **asked) -> int:
    """Hundreds of SQLite's instructions that a question takes."""
    steps = []
    memory.storage.db.conn.set_progress_handler(lambda: steps.append(1), 100)
    ask(memory, **asked)
    memory.storage.db.conn.set_progress_handler(None, 100)
    return len(steps)


def test_what_failed_was_retracted_or_was_measured_here_is_left_out(memory: Memory) -> None:
    kept = [setting(1, graph="g"), setting(2, graph="other", structure="other")]
    left_out = [
        setting(3, None, graph="g"),
        setting(4, graph="mine"),
        setting(5, graph="g"),
        setting(6, graph="g", arch="sm_80"),
    ]
    memory.ledger.record_entries(map(ledger_entry, [*kept, *left_out]))
    memory.ledger.retract(left_out[2].hash, "the clock was wrong", "test")
    assert blocks(ask(memory)) == [1, 2]


def test_a_setting_measured_twice_on_a_graph_counts_at_its_fastest(memory: Memory) -> None:
    memory.ledger.record_entries(
        [
            ledger_entry(setting(1, latency, graph="g", predicted_ms=0.5))
            for latency in (1.5, 1.25, 2.0)
        ]
    )
    assert [(entry.latency_ms, entry.predicted_ms) for entry in ask(memory)] == [(1.25, 0.5)]


def test_times_that_a_busy_host_spread_teach_nothing(memory: Memory) -> None:
    steady = replace(setting(1, 1.4, graph="g"), latency_ms_p20=1.39, latency_ms_p80=1.5)
    spread = replace(setting(2, 9.3, graph="g"), latency_ms_p20=1.37, latency_ms_p80=9.8)
    unknown = replace(setting(3, 2.0, graph="g"), latency_ms_p20=None, latency_ms_p80=None)
    memory.ledger.record_entries(map(ledger_entry, [steady, spread, unknown]))
    assert blocks(ask(memory)) == [1, 3]


def test_what_was_redacted_or_has_no_time_teaches_nothing(memory: Memory) -> None:
    # Redacted outcomes of many graphs name one; their times cannot be compared.
    redacted = [redact_outcome(setting(block, graph=f"g{block}")) for block in range(1, 4)]
    damaged = [setting(4, 0.0, graph="g"), setting(5, None, graph="g", status=Status.PASSED)]
    memory.ledger.record_entries(map(ledger_entry, [*redacted, *damaged]))
    assert ask(memory) == ()


def test_of_many_the_newest_are_taken(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experience, "_MAX_ALIKE", 3)
    monkeypatch.setattr(experience, "_MAX_GRAPHS", 2)
    monkeypatch.setattr(experience, "_MAX_OTHERS", 1)
    alike = [
        setting(10 * graph + place, graph=f"g{graph}")
        for graph in range(1, 4)
        for place in range(2)
    ]
    others = [setting(block, graph=f"h{block}", structure="other") for block in (91, 92)]
    memory.ledger.record_entries(map(ledger_entry, [*alike, *others]))
    assert sorted(blocks(ask(memory))) == [21, 30, 31, 92]


@pytest.mark.parametrize(
    "asked",
    [{}, {"structure": "never seen"}, {"arch": "sm_80"}],
    ids=["its structure", "another structure", "another architecture"],
)
def test_ten_times_the_outcomes_are_not_ten_times_the_work(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, asked: dict
) -> None:
    for name, value in (
        ("_MAX_ALIKE", 20),
        ("_MAX_OTHERS", 10),
        ("_MAX_GRAPHS", 4),
        ("_MAX_ROWS", 50),
    ):
        monkeypatch.setattr(experience, name, value)
    memory.ledger.record_entries(
        [ledger_entry(setting(block, graph=f"g{block % 5}")) for block in range(200)]
    )
    few = work(memory, **asked)
    memory.ledger.record_entries(
        [ledger_entry(setting(block, graph=f"g{block % 5}")) for block in range(200, 2000)]
    )
    assert work(memory, **asked) <= 1.2 * few + 2


def test_of_the_graph_itself_each_kernel_has_its_least_time_on_that_very_card(
    memory: Memory,
) -> None:
    here = [setting(block, latency, graph="mine") for block, latency in ((1, 1.5), (1, 1.25))]
    left_out = [
        replace(setting(2, graph="mine"), device="another card of the same architecture"),
        setting(3, graph="other"),
        setting(4, None, graph="mine"),
        replace(setting(5, graph="mine"), choices=()),
        setting(6, graph="mine"),
    ]
    memory.ledger.record_entries(map(ledger_entry, [*here, *left_out]))
    memory.ledger.retract(left_out[-1].hash, "the clock was wrong", "test")
    key = GraphKey("mine", "s", (), (), "sm_90", Contract())
    (found,) = recall_measured(memory.storage, key, here[0].device)
    assert (found.choices, found.latency_ms) == (here[0].choices, 1.25)
