"""Claims beside measurements, and where a run keeps what they taught."""

from pathlib import Path

import pytest
from test_memory_store import RUN

from kmem.diagnose.claims import check_claims
from kmem.interfaces import (
    Completion,
    CompletionKey,
    CompletionRecord,
    Message,
    ModelRequest,
    StopReason,
)
from kmem.memory.runs.conversations import RunArchive
from kmem.memory.runs.runs import Verdict
from kmem.memory.store import Memory
from kmem.records import Claim, ClaimCheck, Lesson, Measurement, Signature, Status, Timing
from kmem.skills import bundled_skills_root, load_skill, parse_claim

HALVED = Claim("l1_throughput_pct", "<=", 0.5, relative=True)


@pytest.mark.parametrize(
    ("claim", "before", "after", "held"),
    [
        ("traffic_ratio <= 1.05", 2.0, 1.05, True),
        ("traffic_ratio <= 1.05", 2.0, 1.06, False),
        ("traffic_ratio <= 1.05", None, 1.0, None),  # it may have been so before
        ("traffic_ratio <= 1.05", None, 1.1, False),
        ("traffic_ratio <= 1.05", 1.0, 1.0, None),  # nothing had to change
        ("traffic_ratio <= 1.05", 1.0, 1.1, False),
        ("spill_bytes_per_thread <= 0.5x", 0.0, 0.0, None),
        ("traffic_ratio <= 1.05", 2.0, None, None),
        ("l1_throughput_pct <= 0.5x", 80.0, 40.0, True),
        ("l1_throughput_pct <= 0.5x", 80.0, 41.0, False),
        ("l1_throughput_pct <= 0.5x", None, 41.0, None),
        ("waves >= 2", 1.0, 2.0, True),
        ("waves >= 2", 1.0, 1.9, False),
        ("speed_of_light >= 1.2x", 0.5, 0.6, True),
    ],
)
def test_a_claim_holds_is_falsified_or_stays_unknown(
    claim: str, before: float | None, after: float | None, held: bool | None
) -> None:
    made = parse_claim(claim)
    values = [Signature({} if value is None else {made.metric: value}) for value in (before, after)]
    assert check_claims([made], *values) == (ClaimCheck(made, before, after, held),)


def test_a_skill_carries_what_its_prose_promises() -> None:
    assert "traffic_ratio <= 1.05" in [
        str(claim) for claim in load_skill(bundled_skills_root() / "online-softmax").claims
    ]


def record(turn: int, text: str = "an answer") -> CompletionRecord:
    request = ModelRequest("m", (Message("system", "be brief"), Message("user", "what now?")), 100)
    return CompletionRecord(
        CompletionKey("planner", 1, "slot", turn),
        request,
        Completion(text, "m", 7, 3, StopReason.END),
        0.01,
        1.5,
    )


LESSON = Lesson(1, "k", "online-softmax", "it did not", (ClaimCheck(HALVED, 80.0, 79.0, False),))
VERDICT = Measurement(Status.PASSED, Timing(1.0, 1.0, 1.0, 5), estimated=False)


def test_conversations_lessons_and_verdicts_of_a_run_come_back_equal(tmp_path: Path) -> None:
    with Memory(tmp_path / "kmem.db") as memory:
        memory.runs.start(RUN)
        archive = RunArchive(memory.path, RUN.id)
        assert archive.find(record(0).key) is None
        for entry in (record(0), record(1)):
            archive.keep(entry)
        assert archive.find(record(1).key) == record(1)
        assert archive.records() == memory.conversations.all(RUN.id) == [record(0), record(1)]
        memory.runs.put_lessons(RUN.id, 1, [LESSON, LESSON])
        memory.runs.put_lessons(RUN.id, 1, [LESSON])
        assert memory.runs.lessons(RUN.id) == [LESSON]
        memory.runs.put_verdict(RUN.id, "k", Verdict(VERDICT, 3, early=True))
        assert memory.runs.verdicts(RUN.id) == {"k": Verdict(VERDICT, 3, early=True)}
