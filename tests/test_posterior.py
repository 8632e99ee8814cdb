"""Posteriors of skills: shrunk, weighed by age and trust."""

import math
from pathlib import Path

import pytest
from test_memory_store import make_outcome

from kmem.memory.ledger.ageing import CHANGED_RECIPE, age_weight, recipe_weight
from kmem.memory.ledger.outcomes import Retraction
from kmem.memory.ledger.posteriors import Posterior
from kmem.memory.ledger.settlements import Settlement
from kmem.memory.store import Memory
from kmem.memory.team.exchange import export_outcomes, import_outcomes
from kmem.memory.verify import verify_memory
from kmem.records import (
    Bottleneck,
    Claim,
    ClaimCheck,
    Move,
    Outcome,
    Signature,
    SiteChoice,
    Status,
    recipe_component,
)
from kmem.skills import (
    bundled_skills_root,
    load_library,
    recipe_version,
    recipe_versions,
    skill_directories,
)

NOW = {"torch": "2.11.0+cu128", "triton": "3.6.0"}
SKILLS = ("good", "bad", "never")
RETRACTION = Retraction("", "clock was wrong", "test", "2026-01-01")


@pytest.fixture
def memory(tmp_path: Path):
    with Memory(tmp_path / "kmem.db") as memory:
        memory.contributors.set_trust("here", 1.0)
        yield memory


def step(number: int, skill: str, speedup: float | None = 1.5, **changes) -> Outcome:
    """An outcome that changed the time by a factor; None: it failed."""
    fields = {
        "bottleneck": Bottleneck.LATENCY,
        "move": Move.FIX,
        "versions": NOW,
        "origin": "here",
        "created_at": f"{number:04d}",
        **changes,
    }
    return make_outcome(
        None if speedup is None else 1.0 / speedup, parent_ms=1.0, skill=skill, **fields
    )


def ask(memory: Memory, *skills: str, **changes) -> dict[str, Posterior]:
    question = {
        "bottleneck": Bottleneck.LATENCY,
        "operators": ("softmax",),
        "arch": "sm_90",
        "versions": NOW,
        **changes,
    }
    return memory.track_records.posteriors(skills or SKILLS, **question)


def test_without_any_outcome_every_skill_is_as_likely_to_help_as_not(memory: Memory) -> None:
    found = ask(memory, "a", "b")
    assert found["a"] == found["b"]
    assert (found["a"].correct, found["a"].improves, found["a"].log_speedup) == (0.5, 0.5, 0.0)
    assert found["a"].reason == "never tried: 25% to improve, as skills do on average"


def test_outcomes_move_a_skill_and_a_skill_nobody_tried_moves_with_the_average(
    memory: Memory,
) -> None:
    for number in range(10):
        memory.ledger.record(step(number, "good", 1.5 + number / 100))
        memory.ledger.record(step(number, "bad", 0.8 + number / 100))
    found = ask(memory)
    assert found["good"].probability > 0.7 > found["never"].probability > found["bad"].probability
    # shrunk from the mean of what was seen towards nothing
    assert 0 < found["good"].log_speedup < math.log(1.545)
    assert found["never"].deviation > 3 * found["good"].deviation
    assert (found["good"].tried, found["good"].matching) == (10, 10)
    assert found["good"].reason.startswith("10 tried, 10 of them on this very case: ")


def test_shrinkage_is_the_normal_normal_formula(memory: Memory) -> None:
    """One skill, one outcome: both variances are their guesses, the update can be written down."""
    memory.ledger.record(step(0, "good", 2.0))
    # four levels below the grand mean, none with outcomes of its own
    variance = 0.3**2 + 4 * 0.2**2
    gain = variance / (variance + 0.3**2)
    found = ask(memory, "good")["good"]
    assert found.log_speedup == pytest.approx(gain * math.log(2.0), rel=1e-9)
    assert found.deviation == pytest.approx(math.sqrt(variance * (1 - gain)), rel=1e-9)
    assert found.correct == pytest.approx(2 / 3)  # Beta(1, 1) and one success


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"bottleneck": Bottleneck.FMA_BOUND},
        {"operators": ("sum",), "choices": ()},
        {"arch": "sm_80"},
        {"bottleneck": None},
    ],
    ids=["another bottleneck", "another operator", "another architecture", "no bottleneck"],
)
def test_outcomes_from_elsewhere_count_less_than_outcomes_from_here(
    tmp_path: Path, elsewhere: dict
) -> None:
    with Memory(tmp_path / "here.db") as here, Memory(tmp_path / "there.db") as there:
        for number in range(8):
            here.ledger.record(step(number, "good", 1.5))
            there.ledger.record(step(number, "good", 1.5, **elsewhere))
        near, far = ask(here, "good")["good"], ask(there, "good")["good"]
        nothing = ask(here, "never")["never"]
    assert near.log_speedup > far.log_speedup > 0
    assert near.deviation < far.deviation
    assert near.correct > far.correct > 0.5
    assert (far.tried, far.matching) == (8, 0)
    assert far.deviation < nothing.deviation


def test_an_architecture_away_is_nearer_than_an_operator_and_that_than_a_bottleneck_away(
    tmp_path: Path,
) -> None:
    correct = []
    for name, changes in (
        ("a", {"arch": "sm_80"}),
        ("o", {"operators": ("sum",), "choices": ()}),
        ("b", {"bottleneck": None}),
    ):
        with Memory(tmp_path / f"{name}.db") as memory:
            for number in range(20):
                memory.ledger.record(step(number, "good", 1.5, **changes))
            correct.append(ask(memory, "good")["good"].correct)
    assert correct == sorted(correct, reverse=True)
    assert len(set(correct)) == 3


def test_older_versions_weigh_less_and_are_never_forgotten(memory: Memory) -> None:
    assert age_weight(NOW, NOW) == 1.0
    # two minor releases of each: four
    assert age_weight({"torch": "2.9", "triton": "3.4"}, NOW) == 0.5
    assert age_weight({"torch": "2.11", "triton": "4.6"}, NOW) == pytest.approx(0.5**2.5)
    assert age_weight({}, NOW) == age_weight(NOW, {}) == age_weight({"torch": "main"}, NOW) == 1.0
    for number in range(8):
        memory.ledger.record(step(number, "good", 1.5))
    new = ask(memory, "good")["good"]
    old = ask(memory, "good", versions={"torch": "3.5", "triton": "5.0"})["good"]
    assert new.log_speedup > old.log_speedup > 0
    assert old.tried == new.tried == 8


def by_recipe(number: int, version: str | None, **changes) -> Outcome:
    """An outcome that a version of the recipe of skill "good" wrote."""
    choice = SiteChoice("softmax", "softmax", "good", (("BLOCK", 1024),))
    versions = NOW if version is None else {**NOW, recipe_component("good"): version}
    return step(number, "good", 1.5, **{"choices": (choice,), "versions": versions} | changes)


def test_outcomes_of_a_recipe_that_has_changed_count_half(memory: Memory) -> None:
    assert recipe_weight("one", {"one", "another"}) == 1.0
    assert recipe_weight("one", {"two"}) == CHANGED_RECIPE == 0.5
    for number in range(8):
        memory.ledger.record(by_recipe(number, "one"))

    def at(version: str) -> Posterior:
        return ask(memory, "good", versions={**NOW, recipe_component("good"): version})["good"]

    same, changed = at("one"), at("two")
    assert same.log_speedup > changed.log_speedup > 0
    assert same.deviation < changed.deviation
    assert same == ask(memory, "good")["good"], "nobody said which recipes are in use"
    for number in range(8, 16):
        memory.ledger.record(by_recipe(number, "two"))
    assert at("two").log_speedup > changed.log_speedup
    assert at("two").tried == 16


@pytest.mark.parametrize(("choices", "weight"), [({}, 0.5), ({"choices": ()}, 1.0)])
def test_a_recipe_whose_version_was_not_kept_has_changed_and_no_recipe_cannot(
    memory: Memory, choices: dict, weight: float
) -> None:
    for number in range(8):
        memory.ledger.record(by_recipe(number, None, **choices))
    (row,) = memory.track_records.sums()
    assert recipe_weight(row.recipe, {"one"}) == weight


def test_the_recipes_in_use_are_named_as_outcomes_name_them() -> None:
    skills = load_library({path.name: path for path in skill_directories(bundled_skills_root())})
    found = recipe_versions(skills.values())
    assert found[recipe_component("online-softmax")] == recipe_version(skills["online-softmax"])
    assert len(found) == sum(skill.has_recipe for skill in skills.values()) < len(skills)


def test_an_origin_counts_as_far_as_it_is_trusted(memory: Memory) -> None:
    for number in range(8):
        memory.ledger.record(step(number, "good", 1.5, origin="elsewhere"))
    half = ask(memory, "good")["good"]
    memory.contributors.set_trust("elsewhere", 1.0)
    full = ask(memory, "good")["good"]
    memory.contributors.set_trust("elsewhere", 0.0)
    none = ask(memory, "good")["good"]
    assert full.log_speedup > half.log_speedup > none.log_speedup == 0.0
    assert none.correct == 0.5


def test_failures_lower_correctness_and_interruptions_say_nothing(memory: Memory) -> None:
    for number in range(6):
        memory.ledger.record(step(number, "good", None))
    failed = ask(memory, "good")["good"]
    assert failed.correct == pytest.approx(1 / 8)
    for number in range(6):
        memory.ledger.record(step(10 + number, "good", None, status=Status.INTERRUPTED))
    assert ask(memory, "good")["good"] == failed


def test_a_retraction_takes_its_outcome_back_whenever_it_arrives(tmp_path: Path) -> None:
    wrong = step(99, "good", 9.0, signature=Signature({"waves": 7.0}))
    with (
        Memory(tmp_path / "a.db") as clean,
        Memory(tmp_path / "b.db") as later,
        Memory(tmp_path / "c.db") as before,
    ):
        for memory in (clean, later, before):
            memory.ledger.record(step(0, "good", 1.5))
        later.ledger.record(wrong)
        assert ask(later) != ask(clean)  # the cache holds it now
        before.ledger.record_retraction(later.ledger.retract(wrong.hash, "clock was wrong", "test"))
        ask(before)
        before.ledger.record(wrong)
        assert ask(later) == ask(before) == ask(clean)
        assert (
            later.track_records.sums() == before.track_records.sums() == clean.track_records.sums()
        )
        assert (
            later.track_records.winning_signatures()
            == before.track_records.winning_signatures()
            == {}
        )


def test_the_winning_signature_is_the_mean_over_what_improved(memory: Memory) -> None:
    memory.ledger.record(step(0, "good", 1.5, signature=Signature({"waves": 2.0, "launches": 1.0})))
    memory.ledger.record(step(1, "good", 1.2, signature=Signature({"waves": 4.0})))
    memory.ledger.record(step(2, "good", 0.9, signature=Signature({"waves": 100.0})))
    assert memory.track_records.winning_signatures() == {"good": {"waves": 3.0, "launches": 1.0}}


def test_rebuilding_finds_nothing_different_unless_somebody_changed_the_sums(
    memory: Memory,
) -> None:
    for number in range(5):
        memory.ledger.record(step(number, "good", 1.1 + number))
    memory.ledger.record(step(7, "bad", None))
    memory.ledger.retract(step(3, "good", 4.1).hash, "wrong", "test")
    expected = ask(memory)
    found = memory.track_records.rebuild()
    assert (found.sums, found.differing) == (2, 0)
    memory.storage.db.execute("update skill_sums set tried = tried + 1 where skill = 'good'")
    with Memory(memory.path) as another:  # this one need not look again
        assert ask(another) != expected
    assert memory.track_records.rebuild().differing == 2  # one row as it was, one as it should be
    assert ask(memory) == expected


def test_a_recalled_kernel_raises_no_skill_again_and_is_counted_apart(memory: Memory) -> None:
    signature = Signature({"waves": 2.0})
    memory.ledger.record(step(0, "good", 1.5, signature=signature))
    memory.ledger.record(step(1, "bad", 0.9))
    before = ask(memory), memory.track_records.winning_signatures()
    for number in range(20):  # every run on the same problem finds the same kernel again
        memory.ledger.record(
            step(10 + number, "good", 3.0, move=Move.RECALL, signature=Signature({"waves": 50.0}))
        )
    memory.ledger.record(step(40, "good", None, move=Move.RECALL))
    assert (ask(memory), memory.track_records.winning_signatures()) == before
    (record,) = memory.track_records.of_skill("good")
    assert (record.tried, record.passed, record.improved, record.recalled) == (1, 1, 1, 20)
    assert record.speedup == pytest.approx(1.5)
    (gain,) = memory.storage.read(
        "select recalled_log_speedup_e9 * 1e-9 as gain from skill_sums where skill = 'good'"
    )
    assert gain["gain"] == pytest.approx(20 * math.log(3.0))
    assert memory.track_records.rebuild().differing == 0


def test_outcomes_of_an_older_kmem_are_summed_when_first_asked_for(memory: Memory) -> None:
    for number in range(5):
        memory.ledger.record(step(number, "good", 1.1 + number))
    expected = ask(memory)
    for statement in (
        "delete from skill_sums",
        "delete from skill_signature_sums",
        "update skill_sums_state set outcome = 0",
    ):
        memory.storage.db.execute(statement)  # as the migration leaves it
    memory.ledger.record(step(9, "bad", 0.5))  # does not hide that the others are missing
    memory.ledger.retract(step(9, "bad", 0.5).hash, "wrong", "test")
    with Memory(memory.path) as another:
        assert ask(another) == expected


CLAIM = Claim("occupancy", ">=", 0.5)


def settle(memory: Memory, outcome: Outcome, held: bool | None, **changes) -> Settlement:
    check = ClaimCheck(CLAIM, 0.2, {True: 0.8, False: 0.2}.get(held), held)
    fields = {"origin": outcome.origin, "created_at": "2026", **changes}
    settlement = Settlement(outcome.hash, (check,), **fields)
    memory.ledger.record_settlement(settlement)
    return settlement


def test_a_skill_whose_predictions_fail_falls_behind_one_whose_hold(
    memory: Memory, tmp_path: Path
) -> None:
    steps = {
        name: [step(number, name, 1.2, claims=(CLAIM,)) for number in range(4)]
        for name in ("good", "bad")
    }
    for outcome in (*steps["good"], *steps["bad"]):
        memory.ledger.record(outcome)
    before = ask(memory)
    assert before["good"].credit == before["bad"].credit
    for outcome in steps["good"]:
        settle(memory, outcome, True)
    for outcome in steps["bad"]:
        settle(memory, outcome, False)
    found = ask(memory)
    scores = {name: found[name].probability * found[name].credit for name in SKILLS}
    assert scores["good"] > scores["never"] > 0 and scores["good"] > 1.25 * scores["bad"]
    assert found["bad"].probability == before["bad"].probability, "the times are as they were"
    assert "0 of 4 predictions held" in found["bad"].reason
    (record,) = memory.track_records.of_skill("good")
    assert (record.held, record.refuted) == (4, 0)

    # it is shared, redacted or not, whatever comes first; and it is nobody else's to say
    settle(memory, steps["good"][0], False, origin="stranger")
    settle(memory, steps["good"][0], None)
    settle(memory, steps["good"][1], True, created_at="2027")
    assert ask(memory) == found
    assert memory.track_records.rebuild().differing == 0
    for redact in (False, True):
        export_outcomes(memory, tmp_path / "all.jsonl", redact=redact, force=True)
        lines = (tmp_path / "all.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / "reversed.jsonl").write_text("".join(reversed(lines)), encoding="utf-8")
        with Memory(tmp_path / f"other-{redact}.db") as other:
            other.contributors.set_trust("here", 1.0)
            assert import_outcomes(other, tmp_path / "reversed.jsonl").settlements == 11
            assert ask(other) == found
            import_outcomes(other, tmp_path / "all.jsonl")
            assert ask(other) == found
            assert verify_memory(other) == []

    # a retracted outcome says nothing any more, nor does what became of its prediction
    for outcome in steps["bad"]:
        memory.ledger.retract(outcome.hash, "wrong", "test")
    assert ask(memory)["bad"].refuted == 0
    assert memory.track_records.rebuild().differing == 0
