"""Distilling: measured wins become drafts, and the ledger alone makes a draft verified.

A draft states only what was changed and measured.
"""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_memory_store import RUN, make_outcome

from kmem.curate.change import change_fingerprint, explain_change
from kmem.curate.distill import Distilled, distill_runs
from kmem.curate.draft import draft_files, moved_metrics
from kmem.curate.wins import find_wins, measured_effect
from kmem.errors import SkillError
from kmem.memory.ledger.outcomes import ledger_entry
from kmem.memory.skills.standing import (
    Interval,
    Standing,
    effect_interval,
)
from kmem.memory.store import Memory
from kmem.prescribe.consult import consult_memory
from kmem.prescribe.gate import SkillQuery
from kmem.records import (
    Attempt,
    Bottleneck,
    Candidate,
    Claim,
    ClaimCheck,
    Contract,
    Diagnosis,
    Evidence,
    Kernel,
    Lesson,
    Measurement,
    Move,
    Outcome,
    Run,
    Signature,
    SiteChoice,
    Status,
    Task,
    Timing,
)
from kmem.skills import DRAFT, Skill, load_skill, skill_directories, validate_library

PARENT = (
    "import triton.language as tl\n\n\ndef kernel(x):\n    for i in range(4):\n"
    "        y = tl.load(x + i)\n    return y\n"
)
CHILD = (
    "import triton.language as tl\n\n\ndef kernel(x):\n"
    "    y = tl.load(x + tl.arange(0, 4))  # one wide load\n    return tl.sum(y)\n"
)
POOR = Signature({"sector_efficiency_pct": 25.0, "waves": 1.0})
BEFORE = Diagnosis(
    Bottleneck.UNCOALESCED,
    (Evidence("sector_efficiency_pct", 25.0, "<=", 50.0),),
    POOR,
    0.2,
    1.6,
    "loads use a quarter of it",
    "kernel",
)
AFTER = replace(BEFORE, signature=Signature({"sector_efficiency_pct": 100.0, "waves": 1.01}))


@pytest.fixture(autouse=True)
def words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")


@pytest.fixture
def memory(tmp_path: Path):
    with Memory(tmp_path / "data" / "kmem.db") as memory:
        yield memory


def timing(latency_ms: float, spread: float = 0.02) -> Timing:
    return Timing(latency_ms, latency_ms * (1 - spread), latency_ms * (1 + spread), 30)


def attempt(
    kernel: Kernel,
    latency_ms: float | None,
    *,
    skill: str = "unaided",
    status: Status = Status.PASSED,
    log: str = "",
) -> Attempt:
    measured = Measurement(status, timing(latency_ms) if latency_ms else None, False, log=log)
    task = Task(Move.FIX, skill, kernel.parent, 1, "because")
    return Attempt(1, Candidate(kernel, task, "llm"), measured, 2.0, Bottleneck.UNCOALESCED)


def record_run(
    memory: Memory, attempts: list[Attempt], run: Run = RUN, *, recorded: bool = True
) -> None:
    """Keep a run as the loop would: attempts, kernels, diagnoses, outcomes."""
    memory.runs.start(run)
    for each in attempts:
        memory.runs.record_attempt(run.id, each)
        time = each.measurement.timing
        if recorded and time is not None:
            memory.ledger.record(outcome_of(each, run, origin=memory.contributors.own_name))


def outcome_of(each: Attempt, run: Run, **changes: object) -> Outcome:
    time = each.measurement.timing
    made = make_outcome(
        time.latency_ms,
        source=each.candidate.kernel.source,
        skill=each.candidate.task.skill,
        choices=each.candidate.kernel.choices,
        parent_hash=each.candidate.kernel.parent,
        parent_ms=each.parent_ms,
        latency_ms_p20=time.latency_ms_p20,
        latency_ms_p80=time.latency_ms_p80,
        bottleneck=each.bottleneck,
        seed=run.seed,
        move=Move.FIX,
    )
    return replace(made, **changes)


def a_win(
    memory: Memory,
    run: Run = RUN,
    *,
    diagnosed: bool = True,
    recorded: bool = True,
    child: str = CHILD,
) -> tuple[Kernel, Kernel]:
    parent = Kernel(PARENT)
    better = Kernel(child, parent=parent.hash)
    failed = Kernel(CHILD + "# worse\n", parent=parent.hash)
    refused = attempt(
        failed, None, status=Status.WRONG_VALUES, log="output 0: relative error 0.5\nmore"
    )
    record_run(
        memory, [attempt(parent, 2.0), attempt(better, 1.0), refused], run, recorded=recorded
    )
    if diagnosed:
        memory.runs.put_diagnosis(run.id, 1, parent.hash, BEFORE, ())
        memory.runs.put_diagnosis(run.id, 2, better.hash, AFTER, ())
    return parent, better


def distilled_skill(memory: Memory) -> Skill:
    (draft,) = distill_runs(memory, [memory.runs.get(RUN.id)], {}).drafts
    return load_skill(Path(draft.path))


def reproduce(
    memory: Memory,
    skill: Skill,
    graph: str,
    seed: int | None,
    *,
    latency_ms: float = 1.0,
    **changes: object,
) -> Outcome:
    made = make_outcome(
        latency_ms,
        graph=graph,
        skill=skill.name,
        parent_ms=2.0,
        seed=seed,
        source=f"{graph}{seed}{latency_ms}",
    )
    made = replace(made, **{"origin": memory.contributors.own_name} | changes)
    memory.ledger.record(made)
    return made


def test_a_win_becomes_a_draft_that_passes_every_check_and_names_its_outcomes(
    memory: Memory,
) -> None:
    parent, better = a_win(memory)
    skill = distilled_skill(memory)
    assert skill.name == f"learnt-softmax-{change_fingerprint(parent, better)[:12]}"
    assert (skill.status, skill.operators, skill.bottlenecks, skill.arch) == (
        DRAFT,
        ("softmax",),
        (Bottleneck.UNCOALESCED,),
        ("sm_90",),
    )
    assert [str(condition) for condition in skill.signature] == ["sector_efficiency_pct <= 50"]
    (won,) = (entry for entry in memory.ledger.outcomes() if entry.parent_hash)
    assert [str(claim) for claim in skill.claims] == [
        "speed_of_light >= 1.5x",
        "sector_efficiency_pct >= 2.5x",
    ]
    assert skill.source == f"run {RUN.id}; outcomes {ledger_entry(won).hash}"
    assert validate_library([skill]) == []
    assert skill.path.is_relative_to(memory.path.parent / "skills")
    assert (skill.path / "references" / "child.py").read_text() == CHILD


def test_the_text_states_what_was_changed_and_measured_and_nothing_else(memory: Memory) -> None:
    a_win(memory)
    body = distilled_skill(memory).body
    assert "from 2 ms to 1 ms" in body
    assert "2.000x (1.922 to 2.082), from the 20th to 80th percentiles of both times." in body
    assert "- `sector_efficiency_pct` from 25 to 100" in body
    assert "`waves`" not in body  # moved by one percent: noise
    assert "+    y = tl.load(x + tl.arange(0, 4))  # one wide load" in body
    assert "- Another attempt in this direction: wrong_values: output 0: relative error 0.5" in body
    assert "- `speed_of_light >= 1.5x`\n- `sector_efficiency_pct >= 2.5x`" in body
    assert "Why it is faster has not been established." in body


def test_without_both_profiles_no_metric_is_claimed(memory: Memory) -> None:
    a_win(memory, diagnosed=False)
    skill = distilled_skill(memory)
    assert "which resource it saves was not measured" in skill.body
    assert "sector_efficiency_pct" not in skill.body
    assert skill.signature == ()
    assert validate_library([skill]) == []


def test_distilling_is_deterministic_and_the_same_change_is_one_draft(
    memory: Memory, tmp_path: Path
) -> None:
    a_win(memory)
    again = replace(RUN, id="20260102-bbbb", created_at="2026-01-02T00:00:00+00:00", seed=1)
    a_win(memory, again, child=CHILD.replace("  # one wide load", "  # a comment"))
    runs = [entry.run for entry in memory.run_entries.all()]
    (win,), _ = find_wins(memory, memory.runs.get(RUN.id))
    assert draft_files(win, {}) == draft_files(find_wins(memory, memory.runs.get(RUN.id))[0][0], {})
    first = distill_runs(memory, runs, {}, tmp_path / "out")
    assert [(draft.is_new, draft.run) for draft in first.drafts] == [
        (True, RUN.id),
        (False, again.id),
    ]
    assert len({draft.name for draft in first.drafts}) == 1
    content = {
        path.name: path.read_bytes()
        for path in Path(first.drafts[0].path).rglob("*")
        if path.is_file()
    }
    second = distill_runs(memory, runs, {draft.name: Path(draft.path) for draft in first.drafts})
    assert [draft.is_new for draft in second.drafts] == [False, False]
    assert content == {
        path.name: path.read_bytes()
        for path in Path(second.drafts[0].path).rglob("*")
        if path.is_file()
    }
    assert [path.name for path in skill_directories(tmp_path / "out")] == [first.drafts[0].name]


_STATEMENTS = st.lists(
    st.sampled_from(["x = 1", "y = f(x)", "x = x + y", "z = [x, y]", "print(z)"]), max_size=8
)


@given(_STATEMENTS, _STATEMENTS, st.sampled_from(["import a", "q = 0", "def g():\n    return 1"]))
def test_a_fingerprint_is_of_the_edit_alone(
    before: list[str], after: list[str], surrounding: str
) -> None:
    plain = change_fingerprint(Kernel("\n".join(before)), Kernel("\n".join(after)))
    commented = change_fingerprint(
        Kernel("\n# why\n\n".join(before)), Kernel("  # so\n".join(after))
    )
    elsewhere = change_fingerprint(
        *(Kernel("\n".join([surrounding, *lines, surrounding])) for lines in (before, after))
    )
    assert plain == commented == elsewhere
    assert (plain == change_fingerprint(Kernel(""), Kernel(""))) == (before == after)


@settings(
    max_examples=10,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(order=st.permutations(range(3)))
def test_runs_distilled_in_any_order_give_the_same_bytes(tmp_path: Path, order: list[int]) -> None:
    runs = [
        replace(RUN, id=f"run-{n}", created_at=f"2026-01-0{n + 1}T00:00:00+00:00", seed=n)
        for n in range(3)
    ]
    with (
        tempfile.TemporaryDirectory(dir=tmp_path) as place,
        Memory(Path(place) / "kmem.db") as memory,
    ):
        memory.storage.db.execute("insert into contributor (id, name) values (1, 'kmem-same')")
        for n in order:
            a_win(memory, runs[n], child=CHILD if n < 2 else CHILD + "x = 3\n")
        found = distill_runs(memory, [runs[n] for n in order], {})
        seen = sorted((draft.name, draft.is_new, draft.run) for draft in found.drafts)
        skills = sorted(
            load_skill(Path(path)).hash for path in {draft.path for draft in found.drafts}
        )
    expected = _ANY_ORDER.setdefault("drafts", (seen, skills))
    assert (seen, skills) == expected
    assert [is_new for _, is_new, _ in seen].count(True) == len(skills) == 2


_ANY_ORDER: dict[str, object] = {}  # what the first order gave


def test_two_memories_distil_the_same_bytes_from_the_same_records(tmp_path: Path) -> None:
    hashes = []
    for name in "ab":
        with Memory(tmp_path / name / "kmem.db") as memory:
            memory.storage.db.execute("insert into contributor (id, name) values (1, 'kmem-same')")
            a_win(memory)
            hashes.append(distilled_skill(memory).hash)
    assert hashes[0] == hashes[1]


def test_a_win_of_the_same_recipe_by_knobs_is_explained_and_no_draft(memory: Memory) -> None:
    slow = Kernel(
        "a = 1\n", choices=(SiteChoice("s", "softmax", "online-softmax", (("BLOCK", 256),)),)
    )
    fast = Kernel(
        "a = 2\n",
        parent=slow.hash,
        choices=(SiteChoice("s", "softmax", "online-softmax", (("BLOCK", 512),)),),
    )
    record_run(
        memory,
        [attempt(slow, 2.0, skill="online-softmax"), attempt(fast, 1.0, skill="online-softmax")],
    )
    found = distill_runs(memory, [RUN], {})
    assert found.drafts == ()
    (explained,) = found.knobs
    assert (explained.skills, explained.change) == (
        ("online-softmax",),
        "online-softmax BLOCK 256 -> 512",
    )
    assert not (memory.path.parent / "skills").exists()


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("B = 64\ndef f(): return B\n", "B = 128\ndef f(): return B\n", "B 64 -> 128"),
        (
            "B = tl.constexpr(64)\nf(B)\n",
            "B = tl.constexpr(32)\nf(B)\n",
            "B tl.constexpr(64) -> tl.constexpr(32)",
        ),
        ("x = 1\n", "x = 1  # said\n", "nothing but formatting"),
        ("B = 64\ndef f(): return B\n", "B = 64\ndef f(): return B + 1\n", None),
        ("B = 64\n", "def (:\n", None),
    ],
)
def test_other_values_of_module_constants_are_knobs(
    before: str, after: str, text: str | None
) -> None:
    found = explain_change(Kernel(before), Kernel(after), "some-skill")
    assert (found.text if found else None) == text
    assert found is None or found.skills == ("some-skill",)


def test_what_is_within_noise_estimated_or_not_in_the_ledger_is_no_win(memory: Memory) -> None:
    parent, _ = a_win(memory, recorded=False)
    barely = Kernel("noise\n", parent=parent.hash)
    memory.runs.record_attempt(RUN.id, attempt(barely, 1.98, skill="other"))
    estimated = attempt(Kernel("guess\n", parent=parent.hash), 0.1, skill="third")
    memory.runs.record_attempt(
        RUN.id, replace(estimated, measurement=replace(estimated.measurement, estimated=True))
    )
    found = distill_runs(memory, [RUN], {})
    assert (found.drafts, found.knobs) == ((), ())
    assert len(found.left_out) == 2
    assert (
        "is not in the ledger (the run had --memory rw, or it was retracted)" in found.left_out[0]
    )
    assert "is within what a rerun moves" in found.left_out[1]


def test_the_parent_of_a_repaired_winner_is_the_last_kernel_that_passed(memory: Memory) -> None:
    parent = Kernel(PARENT)
    broken = Kernel("broken\n", parent=parent.hash)
    repaired = Kernel(CHILD, parent=broken.hash)
    record_run(
        memory,
        [
            attempt(parent, 2.0),
            attempt(broken, None, status=Status.CRASHED, log="boom"),
            attempt(repaired, 1.0),
        ],
    )
    (win,), _ = find_wins(memory, RUN)
    assert win.parent.candidate.kernel.hash == parent.hash
    assert "crashed: boom" in draft_files(win, {})["SKILL.md"]


def test_of_several_wins_in_one_direction_the_largest_stands_for_all(memory: Memory) -> None:
    parent = Kernel(PARENT)
    record_run(
        memory,
        [
            attempt(parent, 2.0),
            *(attempt(Kernel(f"k{n}\n", parent=parent.hash), 1.0 + n / 10) for n in range(3)),
        ],
    )
    (win,), _ = find_wins(memory, RUN)
    assert win.effect.value == pytest.approx(2.0)
    assert (
        "2 other attempts in this direction passed and gained less"
        in draft_files(win, {})["SKILL.md"]
    )


def test_what_the_run_learnt_goes_along_as_words_or_as_a_refuted_claim(memory: Memory) -> None:
    _, better = a_win(memory)
    check = ClaimCheck(Claim("waves", ">=", 2.0, relative=True), 1.0, 1.01, False)
    noted = Lesson(1, better.hash, "unaided", "wide loads help here", worth_a_skill=True)
    memory.runs.put_lessons(
        RUN.id, 1, [noted, Lesson(1, better.hash, "unaided", "waves should double", (check,))]
    )
    body = distilled_skill(memory).body
    assert "In its author's words, which nobody checked: wide loads help here" in body
    assert "- The claim `waves >= 2x` did not hold: 1 became 1.01." in body
    assert "waves should double" not in body


def test_a_licence_that_was_stated_is_the_draft_s(memory: Memory) -> None:
    a_win(memory)
    memory.contributors.set_licence(memory.contributors.own_name, "CC-BY-4.0")
    assert distilled_skill(memory).license == "CC-BY-4.0"


def test_the_interval_is_the_best_there_is() -> None:
    paired = replace(timing(1.0), reference="parent", ratio=1.9, ratio_low=1.8, ratio_high=2.0)
    assert measured_effect(timing(2.0), paired, "parent") == (
        Interval(1.8, 1.9, 2.0),
        "95% interval, timed pair by pair",
    )
    before = replace(timing(2.0), reference="eager", ratio=1.0, ratio_low=0.9, ratio_high=1.1)
    after = replace(timing(1.0), reference="eager", ratio=2.2, ratio_low=1.98, ratio_high=2.4)
    effect, source = measured_effect(before, after, "parent")
    assert (effect.low, effect.value, source) == (
        pytest.approx(1.8),
        2.2,
        "from the 95% intervals of both against eager",
    )
    effect, _ = measured_effect(timing(2.0, 0.5), timing(1.0, 0.5), "parent")
    assert effect == Interval(1.0 / 1.5, 2.0, 3.0 / 0.5)


def test_metrics_that_moved_are_those_both_profiles_have_furthest_first() -> None:
    before = Signature({"traffic_ratio": 2.0, "l1_hit_pct": 0.0, "waves": 3.0})
    after = Signature({"traffic_ratio": 1.0, "l1_hit_pct": 60.0})
    assert moved_metrics(before, after) == [("l1_hit_pct", 0.0, 60.0), ("traffic_ratio", 2.0, 1.0)]


def test_the_ledger_alone_makes_a_draft_verified(memory: Memory) -> None:
    a_win(memory)
    skill = distilled_skill(memory)
    assert memory.standings.of(skill).standing is Standing.DRAFT
    reproduce(memory, skill, "graph-1", 0)
    reproduce(memory, skill, "graph-1", 1)
    assert memory.standings.of(skill).standing is Standing.DRAFT  # two seeds, one problem
    reproduce(memory, skill, "graph-2", None)
    assert memory.standings.of(skill).standing is Standing.VERIFIED
    assert (
        memory.standings.of(skill).reason
        == "verified: reproduced on 2 of at least 2 problems, under 2 of at least 2 seeds"
    )
    before = skill.hash
    assert load_skill(skill.path).hash == before  # nothing was edited


@pytest.mark.parametrize(
    "changes",
    [
        {"status": Status.WRONG_VALUES, "latency_ms": None},
        {"latency_ms_p80": 2.1},
        {"graph_hash": "redacted"},
        {"origin": "stranger"},
        {"move": Move.RECALL},
    ],
)
def test_what_does_not_reproduce_a_draft_does_not_count(
    memory: Memory, changes: dict[str, object]
) -> None:
    a_win(memory)
    skill = distilled_skill(memory)
    memory.contributors.set_trust("stranger", 0.0)
    reproduce(memory, skill, "graph-1", 0)
    reproduce(memory, skill, "graph-2", 1, **changes)
    assert memory.standings.of(skill).standing is Standing.DRAFT


def test_retracting_a_reproduction_makes_a_draft_of_a_verified_skill_again(memory: Memory) -> None:
    a_win(memory)
    skill = distilled_skill(memory)
    reproduce(memory, skill, "graph-1", 0)
    last = reproduce(memory, skill, "graph-2", 1)
    assert memory.standings.of(skill).standing is Standing.VERIFIED
    memory.ledger.retract(
        ledger_entry(last).hash, "measured on a busy machine", memory.contributors.own_name
    )
    assert memory.standings.of(skill).standing is Standing.DRAFT


def test_a_retracted_skill_is_a_record_that_travels_and_is_used_no_more(
    memory: Memory, tmp_path: Path
) -> None:
    a_win(memory)
    skill = distilled_skill(memory)
    assert memory.standings.without_retracted({skill.name: skill}) == {skill.name: skill}
    retraction = memory.standings.retract(skill, "it reads past the end")
    assert memory.standings.retract(skill, "again") == retraction
    assert memory.standings.of(skill).reason == "retracted: it reads past the end"
    assert memory.standings.without_retracted({skill.name: skill}) == {}
    with pytest.raises(SkillError, match="needs a reason"):
        memory.standings.retract(skill, " ")
    from kmem.memory.team.exchange import export_outcomes, import_outcomes

    export_outcomes(memory, tmp_path / "all.jsonl")
    with Memory(tmp_path / "other" / "kmem.db") as other:
        import_outcomes(other, tmp_path / "all.jsonl")
        assert other.standings.of(skill).standing is Standing.RETRACTED


def test_a_draft_is_offered_last_alone_and_labelled_and_never_without_memory(
    memory: Memory,
) -> None:
    from test_memory_library import make_skill

    a_win(memory)
    draft = distilled_skill(memory)
    others = [
        make_skill(memory.path.parent / "plugin", f"skill-{n}", "Helps.", bottlenecks="uncoalesced")
        for n in range(4)
    ]
    library = [draft, *others]
    memory.skills.sync(library)

    def offer(**options: object) -> list[str]:
        found = consult_memory(
            memory,
            SkillQuery(replace(BEFORE, headroom_ms=None), ("softmax",), "sm_90", Contract()),
            library,
            {},
            **options,
        )
        assert all(
            one.reasons[0].startswith("a draft: ") for one in found if one.skill == draft.name
        )
        return [one.skill for one in found]

    assert offer()[2:] == [draft.name]
    assert draft.name not in offer(limit=1)
    assert draft.name not in offer(outcomes=False)
    memory.standings.retract(draft, "no")
    assert draft.name not in offer()


def test_a_search_shows_drafts_last_and_labelled_and_no_retracted_skill(memory: Memory) -> None:
    from test_memory_library import make_skill

    a_win(memory)
    draft = distilled_skill(memory)
    other, gone = (
        make_skill(memory.path.parent / "plugin", name, "A softmax kernel.")
        for name in ("other-skill", "gone-skill")
    )
    library = {skill.name: skill for skill in (draft, other, gone)}
    memory.skills.sync(list(library.values()))
    memory.standings.retract(gone, "wrong")

    def search() -> list[tuple[str, str]]:
        hits = memory.skills.search(
            "change to a softmax kernel that measured 2.00x its parent's speed"
        )
        ordered = memory.standings.order_hits(library, hits, 10)
        return [(hit.name, hit.reasons[0]) for hit in ordered]

    assert [name for name, _ in search()] == ["other-skill", draft.name]
    assert (
        search()[1][1]
        == "draft: reproduced on 0 of at least 2 problems, under 0 of at least 2 seeds"
    )
    reproduce(memory, draft, "graph-1", 0)
    reproduce(memory, draft, "graph-2", 1)
    assert [name for name, _ in search()] == [draft.name, "other-skill"]


def test_a_retraction_by_an_origin_that_is_not_trusted_takes_no_skill_away(memory: Memory) -> None:
    a_win(memory)
    skill = distilled_skill(memory)
    retraction = memory.standings.retract(skill, "no")
    memory.contributors.set_trust(retraction.origin, 0.0)
    assert memory.standings.of(skill).standing is Standing.DRAFT


def test_an_effect_is_against_the_parent_else_the_best_baseline() -> None:
    stepped = make_outcome(1.0, parent_ms=2.0, latency_ms_p20=0.5, latency_ms_p80=1.25)
    assert effect_interval(stepped) == Interval(1.6, 2.0, 4.0)
    assert effect_interval(make_outcome(1.0, ratio=1.5, ratio_low=1.4, ratio_high=1.6)) == Interval(
        1.4, 1.5, 1.6
    )
    assert effect_interval(make_outcome(1.0)) is None
    assert effect_interval(make_outcome(None, parent_ms=2.0)) is None


def test_an_outcome_without_a_seed_keeps_the_hash_it_had_before_there_were_seeds() -> None:
    old = make_outcome(1.0)
    assert "seed" not in json.loads(ledger_entry(old).record)
    assert (
        ledger_entry(old).hash
        == old.hash
        == "dfb6d277f998a7c76bbd897b103123b6d65146e3fd3739e5c5bb62ff380d6ab3"
    )
    seeded = replace(old, seed=0)
    assert ledger_entry(seeded).hash == seeded.hash != old.hash


def test_the_command_says_what_became_of_each_win(memory: Memory) -> None:
    from kmem.cli.skills.skills import skills
    from kmem.plugins import Registry

    a_win(memory)
    result = CliRunner().invoke(
        skills, ["distill", RUN.id[:8]], obj=Registry(), env={"KMEM_DB": str(memory.path)}
    )
    assert result.exit_code == 0, result.output
    (draft,) = skill_directories(memory.path.parent / "skills")
    assert result.stdout == f"{draft}\n"
    assert f"New draft {draft.name}: 2.000x (1.922 to 2.082)" in result.stderr
    listed = CliRunner().invoke(
        skills,
        ["list", "--json"],
        obj=Registry(skills={draft.name: draft}),
        env={"KMEM_DB": str(memory.path)},
    )
    assert json.loads(listed.stdout)["skills"][0]["status"] == "draft"
    everything = CliRunner().invoke(
        skills,
        ["distill", "--all", "--json"],
        obj=Registry(skills={draft.name: draft}),
        env={"KMEM_DB": str(memory.path)},
    )
    data = json.loads(everything.stdout)
    assert [entry["is_new"] for entry in data["drafts"]] == [False]
    assert set(data) == set(Distilled.__dataclass_fields__)
    nothing = CliRunner().invoke(
        skills, ["distill"], obj=Registry(), env={"KMEM_DB": str(memory.path)}
    )
    assert nothing.exit_code == 2
