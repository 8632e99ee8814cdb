"""Gates in three-valued logic; rankings that are never empty, keep ceilings and say why."""

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kmem.memory.ledger.posteriors import Posterior
from kmem.memory.skills.search import NO_MATCHES, TextMatches
from kmem.prescribe.figures import can_move, with_wanted_registers
from kmem.prescribe.gate import Gate, SkillQuery, gate_skill
from kmem.prescribe.likeness import signature_distance, skill_likeness
from kmem.prescribe.rank import Knowledge, prescribe_skills
from kmem.records import (
    Bottleneck,
    Claim,
    Contract,
    Diagnosis,
    Evidence,
    Precision,
    Signature,
)
from kmem.skills import (
    Condition,
    Skill,
    bundled_skills_root,
    load_skill,
    parse_claim,
    parse_move,
    skill_directories,
)
from kmem.vocabulary import OPERATORS


def skill(name: str = "s", **changes: object) -> Skill:
    fields: dict[str, object] = {
        "name": name,
        "description": "d",
        "body": "",
        "path": Path("."),
        "license": "",
        "operators": ("max_pool",),
        "bottlenecks": (Bottleneck.REDUNDANT_TRAFFIC,),
        "signature": (Condition("traffic_ratio", ">=", 1.3),),
        "arch": ("sm_80+",),
        "precision": "exact",
        "conflicts": (),
        "source": "",
        "has_recipe": False,
        "claims": (Claim("barrier_stall_pct", "<=", 0.9, relative=True),),
    }
    return Skill(**{**fields, **changes})


def diagnosis(bottleneck: Bottleneck = Bottleneck.REDUNDANT_TRAFFIC, **values: float) -> Diagnosis:
    return Diagnosis(bottleneck, (), Signature(values), None, None, "moves too many bytes", None)


CASES = [
    ("all tests hold", {}, {"traffic_ratio": 2.0}, ("max_pool",), "sm_90", True, 1.0),
    ("an unknown metric counts half", {}, {}, ("max_pool",), "sm_90", True, 4 / 4.5),
    (
        "a metric below its threshold excludes",
        {},
        {"traffic_ratio": 1.0},
        ("max_pool",),
        "sm_90",
        False,
        0.8,
    ),
    (
        "a related operator is unknown",
        {},
        {"traffic_ratio": 2.0},
        ("avg_pool",),
        "sm_90",
        True,
        0.8,
    ),
    ("another family excludes", {}, {"traffic_ratio": 2.0}, ("softmax",), "sm_90", False, 0.8),
    (
        "any operator",
        {"operators": ("any",)},
        {"traffic_ratio": 2.0},
        ("softmax",),
        "sm_90",
        True,
        1.0,
    ),
    (
        "an older architecture excludes",
        {"arch": ("sm_90+",)},
        {"traffic_ratio": 2.0},
        ("max_pool",),
        "sm_80",
        False,
        0.8,
    ),
    ("another vendor excludes", {}, {"traffic_ratio": 2.0}, ("max_pool",), "gfx942", False, 0.8),
    (
        "another bottleneck excludes",
        {"bottlenecks": (Bottleneck.LATENCY,)},
        {"traffic_ratio": 2.0},
        ("max_pool",),
        "sm_90",
        False,
        0.8,
    ),
    (
        "no bottleneck named means any",
        {"bottlenecks": ()},
        {"traffic_ratio": 2.0},
        ("max_pool",),
        "sm_90",
        True,
        1.0,
    ),
]


@pytest.mark.parametrize(
    ("what", "changes", "values", "operators", "arch", "applies", "strength"),
    CASES,
    ids=[case[0] for case in CASES],
)
def test_gate(
    what: str,
    changes: dict,
    values: dict,
    operators: tuple,
    arch: str,
    applies: bool,
    strength: float,
) -> None:
    verdict = gate_skill(
        skill(**changes), SkillQuery(diagnosis(**values), operators, arch, Contract())
    )
    assert verdict.applies is applies
    assert verdict.strength == pytest.approx(strength)


@pytest.mark.parametrize(
    ("precision", "contract", "applies"),
    [
        ("exact", "match", True),
        ("tf32", "match", False),
        ("tf32", "tf32", True),
        ("bf16", "tf32", False),
        ("bf16", "bf16", True),
        ("match", "match", True),
    ],
)
def test_a_looser_skill_is_not_offered_under_a_stricter_contract(
    precision: str, contract: str, applies: bool
) -> None:
    verdict = gate_skill(
        skill(precision=precision),
        SkillQuery(diagnosis(), ("max_pool",), "sm_90", Contract(Precision(contract))),
    )
    assert verdict.applies is applies


def test_a_secondary_bottleneck_is_treated_too() -> None:
    found = Diagnosis(
        Bottleneck.LATENCY,
        (),
        Signature({}),
        None,
        None,
        "s",
        None,
        secondary=(Bottleneck.REDUNDANT_TRAFFIC,),
    )
    assert gate_skill(skill(), SkillQuery(found, ("max_pool",), "sm_90", Contract())).applies


def posterior(improves: float, correct: float = 1.0, log_speedup: float = 0.1) -> Posterior:
    return Posterior(correct, log_speedup, 0.1, improves, 10, 10, keeps=1.0, held=4, refuted=0)


def rank(
    skills: list[Skill],
    found: Diagnosis,
    *,
    similarity: Mapping[str, float] | None = None,
    posteriors: Mapping[str, Posterior] | None = None,
    signatures: Mapping[str, Mapping[str, float]] | None = None,
):
    known = Knowledge(
        matches=TextMatches(similarity or {}, {}),
        posteriors=lambda names: posteriors or {},
        signatures=lambda names: {
            name: value for name, value in (signatures or {}).items() if name in names
        },
    )
    query = SkillQuery(found, ("max_pool",), "sm_90", Contract())
    return prescribe_skills(query, skills, known)


def names(prescriptions) -> list[str]:
    return [prescription.skill for prescription in prescriptions]


def test_score_is_strength_times_relevance_times_likeness_times_posterior() -> None:
    (only,) = rank(
        [skill()],
        diagnosis(traffic_ratio=2.0),
        similarity={"s": 0.6},
        posteriors={"s": posterior(0.75, 0.8)},
    )
    assert only.score == pytest.approx(1.0 * (0.5 + 0.6 / 2) * 0.75 * 0.8)
    assert "similarity 0.60" in only.reasons
    assert (
        "10 tried, 10 of them on this very case: 80% correct, 75% of those improve, "
        "expected 1.11x; 4 of 4 predictions held" in only.reasons
    )


def test_naming_few_operators_and_the_first_bottleneck_is_relevance() -> None:
    found = Diagnosis(
        Bottleneck.LATENCY,
        (),
        Signature({}),
        None,
        None,
        "s",
        None,
        secondary=(Bottleneck.REDUNDANT_TRAFFIC,),
    )
    gate = Gate(SkillQuery(found, ("max_pool", "pointwise"), "sm_90", Contract()))
    first = (Bottleneck.LATENCY,)
    order = [
        skill(operators=("max_pool", "pointwise"), bottlenecks=first),
        skill(operators=("max_pool",), bottlenecks=first),
        skill(operators=("max_pool", "sum", "mean", "softmax"), bottlenecks=first),
        skill(operators=("any",), bottlenecks=first),
        skill(operators=("any",), bottlenecks=(Bottleneck.REDUNDANT_TRAFFIC,)),
        skill(operators=("any",), bottlenecks=()),
    ]
    relevance = [gate.relevance(item) for item in order]
    assert relevance == sorted(relevance, reverse=True) and len(set(relevance)) == len(relevance)
    # one operator of the graph's two
    assert relevance[1] == pytest.approx((1 + (1 + 1 / 2) / 2 + 1) / 3)
    assert relevance[-3:] == [pytest.approx(2 / 3), pytest.approx(1 / 2), pytest.approx(1 / 3)]


def test_likeness_is_the_mean_of_what_is_known_and_unknown_is_not_zero() -> None:
    signature = Signature({"traffic_ratio": 2.0, "waves": 1.0})
    assert skill_likeness(None, None, signature, None).value is None
    # they share no metric
    assert skill_likeness(None, None, signature, {"launches": 3.0}).value is None
    assert (
        skill_likeness(None, None, signature, {"traffic_ratio": 2.0, "launches": 3.0}).value == 1.0
    )
    assert skill_likeness(0.5, 1, signature, None).value == pytest.approx((0.5 + 1.0) / 2)
    assert skill_likeness(0.5, 1, signature, {"waves": 1.0}).value == pytest.approx(
        (1.0 + 0.5 + 1.0) / 3
    )


def test_a_signature_distance_is_in_units_of_the_scale_of_each_metric() -> None:
    assert signature_distance(
        {"waves": 2.0, "launches": 1.0}, {"waves": 6.0, "launches": 1.0}
    ) == pytest.approx((0.5**2 / 2) ** 0.5)
    assert signature_distance({"traffic_ratio": 1.0}, {"traffic_ratio": 100.0}) == 1.0
    assert signature_distance({"traffic_ratio": 1.0}, {}) is None


def test_a_skill_that_improved_a_like_case_comes_before_one_that_improved_another() -> None:
    signatures = {"near": {"traffic_ratio": 2.0}, "far": {"traffic_ratio": 8.0}}
    ranked = rank(
        [skill("far"), skill("near")], diagnosis(traffic_ratio=2.0), signatures=signatures
    )
    assert names(ranked) == ["near", "far"]
    assert "signature distance 0.75 from what it improved before" in ranked[1].reasons


def test_looking_up_signatures_only_where_they_can_matter_changes_no_rank() -> None:
    draw = random.Random(3)
    skills = [skill(f"skill-{index:02d}") for index in range(60)]
    similarity = {item.name: draw.random() for item in skills}
    signatures = {item.name: {"traffic_ratio": draw.uniform(1.0, 4.0)} for item in skills[::2]}
    posteriors = {item.name: posterior(draw.random()) for item in skills}
    found = diagnosis(traffic_ratio=2.0)

    def score(item: Skill) -> float:
        likeness = skill_likeness(
            similarity[item.name], None, found.signature, signatures.get(item.name)
        ).value
        return 1.0 * (0.5 + likeness / 2) * posteriors[item.name].probability

    expected = sorted(skills, key=lambda item: -score(item))[:3]
    ranked = rank(
        skills, found, similarity=similarity, posteriors=posteriors, signatures=signatures
    )
    assert [(entry.skill, entry.score) for entry in ranked] == [
        (item.name, pytest.approx(score(item))) for item in expected
    ]


def test_evidence_outranks_likeness() -> None:
    posteriors = {"alike": posterior(0.1), "other": posterior(0.5)}
    ranked = rank(
        [skill("alike"), skill("other")],
        diagnosis(),
        similarity={"alike": 0.9, "other": 0.2},
        posteriors=posteriors,
    )
    assert names(ranked) == ["other", "alike"]


def test_operator_family_and_any_compete_and_each_says_at_which_level_it_applies() -> None:
    skills = [
        skill("exact"),
        skill("family", operators=("avg_pool",)),
        skill("generic", operators=("any",)),
    ]
    ranked = rank(skills, diagnosis(traffic_ratio=2.0))
    assert names(ranked) == ["exact", "family", "generic"]
    assert [prescription.reasons[0] for prescription in ranked] == [
        "operator max_pool",
        "family pooling of max_pool",
        "applies to any operator",
    ]


def test_gates_are_relaxed_one_after_the_other_so_that_something_is_offered() -> None:
    low = skill("signature", signature=(Condition("traffic_ratio", ">=", 3.0),))
    other = skill("bottleneck", bottlenecks=(Bottleneck.FMA_BOUND,))
    foreign = skill("operator", operators=("softmax",))
    found = diagnosis(traffic_ratio=2.0)
    for remaining, name in (
        ([foreign, other, low], "signature"),
        ([foreign, other], "bottleneck"),
        ([foreign], "operator"),
    ):
        (only,) = rank(remaining, found)
        assert only.skill == name
        assert only.reasons[0] == f"no skill passes every gate; offered without regard to {name}"


def test_what_may_not_be_used_here_is_never_offered() -> None:
    assert (
        rank([skill("loose", precision="tf32"), skill("elsewhere", arch=("gfx942",))], diagnosis())
        == ()
    )


def test_at_most_three_and_ties_by_name() -> None:
    assert names(rank([skill(name) for name in "edcba"], diagnosis())) == ["a", "b", "c"]


def test_of_two_skills_that_conflict_the_better_is_offered_and_names_the_other() -> None:
    posteriors = {"a": posterior(0.2), "b": posterior(0.9), "c": posterior(0.1)}
    ranked = rank(
        [skill("a"), skill("b", conflicts=("a",)), skill("c")], diagnosis(), posteriors=posteriors
    )
    assert names(ranked) == ["b", "c"]
    assert "offered instead of a, which it conflicts with" in ranked[0].reasons
    swapped = rank(
        [skill("a"), skill("b", conflicts=("a",))],
        diagnosis(),
        posteriors={"a": posterior(0.9), "b": posterior(0.2)},
    )
    assert names(swapped) == ["a"]


def slow(speed_of_light: float, headroom_ms: float) -> Diagnosis:
    return Diagnosis(
        Bottleneck.REDUNDANT_TRAFFIC,
        (),
        Signature({"traffic_ratio": 2.0}),
        speed_of_light,
        headroom_ms,
        "s",
        None,
    )


@pytest.mark.parametrize(
    ("log_speedup", "reason"),
    [
        (0.1, "expected to save 0.19 ms of at most 0.2 ms"),  # 2 ms x (1 - exp(-0.1))
        (1.0, "expected to save 0.2 ms, its ceiling (its record alone would promise 1.26 ms)"),
        (-0.1, "can save at most 0.2 ms"),
    ],
)
def test_no_skill_promises_more_than_the_headroom(log_speedup: float, reason: str) -> None:
    (only,) = rank(
        [skill()], slow(0.9, 0.2), posteriors={"s": posterior(0.9, log_speedup=log_speedup)}
    )
    assert only.reasons[-1] == reason


def test_a_prescription_carries_its_prediction_and_the_time_it_should_save() -> None:
    moving = skill(
        "moving",
        claims=(parse_claim("waves >= 2x"),),
        moves=(
            parse_move("tile down if waves > 8 then registers_per_thread <= 0.9x"),
            parse_move("split up then waves >= 1.5x"),
        ),
    )
    seen = replace(slow(0.9, 0.2), signature=Signature({"waves": 1.0}))
    (offer,) = rank([moving], seen, posteriors={"moving": posterior(0.9, log_speedup=0.1)})
    assert [str(claim) for claim in offer.claims] == ["waves >= 1.5x"]  # of the move that suits
    assert offer.saves_ms == pytest.approx(2.0 * (1 - math.exp(-0.1)))
    (offer,) = rank([moving], seen, posteriors={"moving": posterior(0.9, log_speedup=1.0)})
    assert offer.saves_ms == 0.2
    (untried,) = rank([replace(moving, moves=())], seen)
    assert (untried.claims, untried.saves_ms) == (moving.claims, None)


def test_what_a_skill_names_first_is_what_it_is_for() -> None:
    first = skill("first", bottlenecks=(Bottleneck.REDUNDANT_TRAFFIC, Bottleneck.LATENCY))
    last = skill("last", bottlenecks=(Bottleneck.LATENCY, Bottleneck.REDUNDANT_TRAFFIC))
    assert names(rank([last, first], slow(0.5, 0.2))) == ["first", "last"]


def test_at_the_bound_only_a_skill_that_changes_the_work_keeps_its_place() -> None:
    algorithmic = skill(
        "less-work", bottlenecks=(Bottleneck.REDUNDANT_TRAFFIC, Bottleneck.ALGORITHMIC)
    )
    ranked = rank(
        [skill("same-work"), algorithmic],
        slow(0.999, 0.001),
        posteriors={"same-work": posterior(0.9), "less-work": posterior(0.1)},
    )
    assert names(ranked) == ["less-work", "same-work"]
    guessed = rank(
        [skill("same-work"), algorithmic],
        replace(slow(0.999, 0.001), estimated=True),
        posteriors={"same-work": posterior(0.9), "less-work": posterior(0.1)},
    )
    assert names(guessed) == ["same-work", "less-work"], "an estimate rules nothing out"
    assert (
        ranked[1].reasons[-1]
        == "its ceiling is 0.001 ms: the kernel runs at 99.9% of the speed of light"
    )
    assert names(rank([skill("same-work")], slow(0.999, 0.001))) == ["same-work"]  # never empty


def test_for_every_bottleneck_and_family_something_is_offered_and_the_same_again() -> None:
    library = [load_skill(path) for path in skill_directories(bundled_skills_root())]
    operators = {family: name for name, family in OPERATORS.items()}
    nothing = Knowledge(NO_MATCHES, lambda names: {}, lambda names: {})
    for bottleneck in Bottleneck:
        for name in operators.values():
            query = SkillQuery(diagnosis(bottleneck), (name,), "sm_90", Contract())
            offered = prescribe_skills(query, library, nothing)
            assert 1 <= len(offered) <= 3, (bottleneck, name)
            assert offered == prescribe_skills(query, library[::-1], nothing)
            assert all(prescription.reasons for prescription in offered)


def test_the_short_test_of_a_gate_agrees_with_the_one_that_gives_reasons() -> None:
    library = [load_skill(path) for path in skill_directories(bundled_skills_root())]
    library += [
        skill(precision="bf16"),
        skill(arch=("gfx942",)),
        skill(bottlenecks=()),
        skill(operators=("any",), signature=()),
    ]
    values = {"traffic_ratio": 2.0, "dram_throughput_pct": 50.0, "waves": 0.4, "launches": 3.0}
    for bottleneck in (None, *Bottleneck):
        for operators in ((), *((name,) for name in OPERATORS)):
            found = diagnosis(bottleneck, **values) if bottleneck else None
            gate = Gate(SkillQuery(found, operators, "sm_90", Contract(Precision.TF32)))
            verdicts = [gate.test(item) for item in library]
            assert [gate.passes(item) for item in library] == [
                verdict.applies for verdict in verdicts
            ]
            assert [gate.strength(item) for item in library] == [
                verdict.strength if verdict.applies else None for verdict in verdicts
            ]


def test_architectures_compare_by_number() -> None:
    for older, newer in (("sm_90", "sm_100"), ("gfx90a", "gfx942")):
        assert (
            gate_skill(
                skill(arch=(f"{older}+",)), SkillQuery(None, ("max_pool",), newer, Contract())
            ).refused
            == frozenset()
        )
        assert gate_skill(
            skill(arch=(f"{newer}+",)), SkillQuery(None, ("max_pool",), older, Contract())
        ).refused == {"architecture"}


@pytest.mark.parametrize(
    ("claim", "value", "moves"),
    [
        (Claim("sector_efficiency_pct", ">=", 1.1, relative=True), 60.0, True),
        (Claim("sector_efficiency_pct", ">=", 1.1, relative=True), 100.0, False),
        (Claim("sector_efficiency_pct", ">=", 90.0), 95.0, False),
        (Claim("traffic_ratio", "<=", 0.8, relative=True), 1.1, False),
        (Claim("traffic_ratio", "<=", 0.8, relative=True), 2.0, True),
        (Claim("launches", "<=", 0.5, relative=True), 1.0, False),
        (Claim("spill_bytes_per_thread", "<=", 0.5, relative=True), 0.0, False),
    ],
)
def test_a_claim_that_is_fulfilled_or_out_of_reach_speaks_for_no_skill(
    claim: Claim, value: float, moves: bool
) -> None:
    assert can_move(claim, value) is moves
    found = SkillQuery(
        diagnosis(traffic_ratio=2.0, **{claim.metric: value})
        if claim.metric != "traffic_ratio"
        else diagnosis(traffic_ratio=value),
        ("max_pool",),
        "sm_90",
        Contract(),
    )
    with_claim, without = (
        Gate(found).strength(skill(signature=(), claims=claims)) for claims in ((claim,), ())
    )
    assert (with_claim < without) is not moves
    assert gate_skill(skill(signature=(), claims=(claim,)), found).strength == with_claim


def test_what_a_thread_spills_counts_among_the_registers_that_it_wants() -> None:
    known = {"registers_per_thread": 32.0, "spill_bytes_per_thread": 512.0}
    assert with_wanted_registers(known)["registers_per_thread"] == 160.0
    assert with_wanted_registers({"registers_per_thread": 32.0}) == {"registers_per_thread": 32.0}


def test_how_near_the_bound_an_estimate_comes_is_not_known() -> None:
    near = skill(signature=(Condition("speed_of_light", ">=", 0.9),))
    for estimated, holds in ((True, "unknown"), (False, "does not hold")):
        found = replace(diagnosis(speed_of_light=0.5), estimated=estimated)
        verdict = gate_skill(near, SkillQuery(found, ("max_pool",), "sm_90", Contract()))
        assert f"speed_of_light >= 0.9 {holds}" in verdict.reasons
        assert verdict.applies is estimated


def test_a_skill_that_claims_nothing_is_about_no_bottleneck_but_the_bound_itself() -> None:
    for bottleneck, heeded in ((Bottleneck.REDUNDANT_TRAFFIC, False), (Bottleneck.AT_BOUND, True)):
        gate = Gate(SkillQuery(diagnosis(bottleneck), ("max_pool",), "sm_90", Contract()))
        warning, fix = (
            gate.relevance(skill(bottlenecks=(bottleneck,), **claims))
            for claims in ({"claims": ()}, {})
        )
        assert (warning == fix) is heeded and warning <= fix


def test_what_is_read_of_a_launch_comes_before_what_the_graph_shows() -> None:
    shown = skill(patterns=("few_rows",), bottlenecks=(Bottleneck.REDUNDANT_TRAFFIC,))
    relevance = []
    for metric in ("waves", "sm_throughput_pct"):
        found = replace(
            diagnosis(Bottleneck.LOW_PARALLELISM),
            evidence=(Evidence(metric, 0.1, "<=", 0.5),),
            estimated=True,
            patterns=("few_rows",),
        )
        gate = Gate(SkillQuery(found, ("max_pool",), "sm_90", Contract()))
        relevance.append(gate.relevance(shown))
    assert relevance[0] == pytest.approx(2.5 / 3) and relevance[1] == 1.0


def test_an_estimated_share_of_a_peak_weakens_a_skill_but_refuses_none() -> None:
    busy = skill(signature=(Condition("sm_throughput_pct", ">=", 40.0),))
    held = [
        Gate(
            SkillQuery(
                replace(diagnosis(sm_throughput_pct=pct), estimated=estimated),
                ("max_pool",),
                "sm_90",
                Contract(),
            )
        )
        for pct, estimated in ((50.0, True), (39.0, True), (39.0, False))
    ]
    strengths = [gate.strength(busy) for gate in held]
    assert strengths[0] > strengths[1] and strengths[2] is None
    assert [gate.test(busy).strength for gate in held[:2]] == strengths[:2]
    assert held[1].test(busy).applies and not held[2].test(busy).applies
    assert any("by an estimate" in reason for reason in held[1].test(busy).reasons)
