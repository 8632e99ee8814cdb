"""From raw counters to skills, by the product's path: is a right skill among the first three?

tests/data/labelled_profiles.jsonl holds the Nsight Compute reports recorded on an H200 and profiles
made of raw counters after cases that shared notes and the field describe. What is right for each
was written down before retrieval was first run on it, by what an expert would prescribe, and is not
changed to fit results. Every fourth case is held out: rules and ranking were mended while looking
at the others only, which took these from 30 to 40 of 42; the held-out cases were run once,
afterwards: 12 of 14, and no change followed from that run.

Not blind: whoever wrote the labels had read the skills' names and metadata, invented the counters
of the 44 made profiles, and knew the held-out cases when the rules changed (one, the diagonal
product, was thought of while wording the rule on needless arithmetic). The bounds of a few made
cases, which were below the time their bytes need, were corrected between the runs; no label was.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from kmem.counters import BY_NAME
from kmem.devices import named_target
from kmem.diagnose.bottleneck import diagnose
from kmem.memory.skills.embeddings import load_embedder
from kmem.memory.store import Memory
from kmem.prescribe.consult import consult_memory
from kmem.prescribe.gate import SkillQuery
from kmem.profile.ncu_csv import read_report
from kmem.records import Bottleneck, Bound, Contract, Diagnosis, Launch, Precision, Profile
from kmem.skills import Skill, bundled_skills_root, load_skill, skill_directories
from kmem.vocabulary import OPERATORS

HERE = Path(__file__).parent
CASES = [
    json.loads(line)
    for line in (HERE / "data" / "labelled_profiles.jsonl").read_text(encoding="utf-8").splitlines()
]
VERSIONS = {"torch": "2.11.0", "triton": "3.6.0"}


@dataclass(frozen=True)
class Answer:
    """What the product says to one case."""

    diagnosis: Diagnosis
    skills: tuple[str, ...]


def profile_of(case: Mapping) -> Profile:
    device = case.get("device", "h200")
    if "report" in case:
        return Profile("", "ncu", device, False, read_report(HERE / "recordings" / case["report"]))
    launches = [
        Launch(f"kernel_{index}", entry["duration_ms"], None, None, entry["counters"])
        for index, entry in enumerate(case["launches"])
        for _ in range(entry["count"])
    ]
    return Profile("", "ncu", device, False, tuple(launches))


def answer(case: Mapping, memory: Memory, library: list[Skill]) -> Answer:
    bound = Bound(**case["bound"]) if "bound" in case else None
    diagnosis = diagnose(
        profile_of(case),
        named_target(case.get("device", "h200")),
        bound,
        latency_ms=case.get("latency_ms"),
    )
    contract = Contract(Precision(case["precision"]))
    query = SkillQuery(diagnosis, case["operators"], case["arch"], contract)
    offered = consult_memory(memory, query, library, VERSIONS)
    return Answer(diagnosis, tuple(prescription.skill for prescription in offered))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    library = [load_skill(path) for path in skill_directories(bundled_skills_root())]
    with Memory(tmp_path_factory.mktemp("labelled") / "kmem.db", load_embedder()) as memory:
        memory.skills.sync(library)
        return {case["case"]: answer(case, memory, library) for case in CASES}


def test_the_cases_are_many_distinct_and_written_in_known_names() -> None:
    known = {path.name for path in skill_directories(bundled_skills_root())}
    assert len({case["case"] for case in CASES}) == len(CASES) >= 40
    assert {case["report"] for case in CASES if "report" in case} == {
        path.name for path in (HERE / "recordings").glob("*.csv")
    }
    assert sum(case["split"] == "held_out" for case in CASES) >= len(CASES) // 4
    for case in CASES:
        assert case["skills"] and set(case["skills"]) <= known, case["case"]
        assert (
            set(case["operators"]) <= set(OPERATORS)
            and case["source"]
            and Bottleneck(case["bottleneck"])
        )
        for entry in case.get("launches", ()):
            assert set(entry["counters"]) <= set(BY_NAME)


def missed_cases(answers: Mapping[str, Answer], splits: Collection[str]) -> list[str]:
    return [
        case["case"]
        for case in CASES
        if case["split"] in splits and not set(case["skills"]) & set(answers[case["case"]].skills)
    ]


@pytest.mark.slow
def test_a_right_skill_is_in_the_first_three_for_nine_of_ten_profiles(
    answers: dict[str, Answer],
) -> None:
    missed = missed_cases(answers, ("development", "held_out"))
    assert len(missed) <= len(CASES) / 10, missed


@pytest.mark.slow
def test_what_was_held_out_is_answered_no_worse_than_at_first_sight(
    answers: dict[str, Answer],
) -> None:
    missed = missed_cases(answers, ("held_out",))
    assert len(missed) <= 2, missed


@pytest.mark.slow
@pytest.mark.parametrize("split", ["development", "held_out"])
def test_the_experts_bottleneck_is_named_first_or_beside_it_for_nine_of_ten(
    answers: dict[str, Answer], split: str
) -> None:
    cases = [case for case in CASES if case["split"] == split]
    named = [(case, answers[case["case"]].diagnosis) for case in cases]
    missed = [
        case["case"]
        for case, found in named
        if Bottleneck(case["bottleneck"]) not in (found.bottleneck, *found.secondary)
    ]
    assert len(missed) <= len(cases) / 10, missed


@pytest.mark.slow
def test_at_most_three_skills_are_offered_and_some_always(answers: dict[str, Answer]) -> None:
    assert all(1 <= len(found.skills) <= 3 for found in answers.values())
