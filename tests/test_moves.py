"""Moves of skills change the knobs of any recipe by their role, and the loop makes them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kmem.cli.runs.rounds import Round, describe_round, round_data
from kmem.devices import named_target
from kmem.explore.recipes.author import RecipeAuthor
from kmem.interfaces import Assignment, Direction, Situation
from kmem.moves import moved_settings
from kmem.orchestrate.plan import make_task
from kmem.recipes import ACCURACY
from kmem.records import (
    Attempt,
    Bottleneck,
    Candidate,
    ClaimCheck,
    Diagnosis,
    Lesson,
    Measurement,
    Move,
    Prescription,
    Problem,
    Signature,
    Status,
    Task,
    Timing,
)
from kmem.skills import (
    Skill,
    load_recipes,
    load_skill,
    parse_claim,
    parse_condition,
    parse_move,
    read_skill,
    skill_directories,
    skill_template,
)
from kmem.skills.validate import needs_change
from kmem.testing import check_moves, open_situation
from kmem.testing.moves import MovableSite, shipped_sites
from kmem.vocabulary import KNOB_ROLES

PASSED = Measurement(Status.PASSED, Timing(1.0, 1.0, 1.0, 1), estimated=False)
ROOT = Path(__file__).parent.parent / "skills"
LIBRARY = {skill.name: skill for skill in map(load_skill, skill_directories(ROOT))}
RECIPES = load_recipes(LIBRARY.values())[0]
MOVING = [skill for skill in LIBRARY.values() if skill.moves]
ROLES = {(step.role, step.is_up) for skill in MOVING for move in skill.moves for step in move.steps}
PRODUCT = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, y):
        return torch.relu(x @ y)
def get_inputs():
    return [torch.rand(2048, 2048, dtype=torch.bfloat16) for _ in range(2)]
"""


@pytest.fixture(scope="module")
def sites() -> list[MovableSite]:
    return shipped_sites()


def test_every_knob_of_every_recipe_has_a_role_with_grades(sites: list[MovableSite]) -> None:
    assert {site.recipe.name for site in sites} >= RECIPES.keys() - {
        "chunked-linear-recurrence",  # no layer has its graph: its own tests hold its roles
        "dual-gemm-gated-mlp",  # these share their recipe's class with others that are here
        "fused-cross-entropy",
        "gemm-prologue-fusion",
        "horizontal-fusion",
        "reduce-after-gemm",
        "row-similarity-one-pass",
        "scan-without-flip-copies",
    }
    for recipe in RECIPES.values():
        assert recipe.roles, recipe.name
        names = {role.name for roles in recipe.roles.values() for role in roles}
        assert names <= KNOB_ROLES.keys()
    for site in sites:
        for settings in site.settings:
            for knob in settings.keys() - {ACCURACY}:
                roles = site.recipe.roles.get(knob, ())
                assert roles, f"{site.recipe.name}: {knob} has no role"
                assert all(role.grade(settings[knob]) is not None for role in roles), knob


def test_a_move_goes_its_way_in_every_recipe_and_the_nearest_comes_first(
    sites: list[MovableSite],
) -> None:
    tried = 0
    for site in sites:
        for role, is_up in sorted(ROLES):
            move = parse_move(f"{role} {'up' if is_up else 'down'} then waves >= 2x")
            base = site.settings[len(site.settings) // 2]
            led = moved_settings(move, base, site.settings, site.recipe.roles)
            for settings in led:
                changes = [
                    (found.grade(settings[knob]) or 0) - (found.grade(base[knob]) or 0)
                    for knob, roles in site.recipe.roles.items()
                    for found in roles
                    if found.name == role and knob in base
                ]
                assert any(changes)
                assert all(change >= 0 if is_up else change <= 0 for change in changes)
            if led:
                alike = [sum(each[knob] == base[knob] for knob in base) for each in led]
                assert alike[0] >= alike[-1]
                tried += 1
    assert tried > 100


@pytest.mark.parametrize("skill", MOVING, ids=lambda skill: skill.name)
def test_every_move_of_the_library_changes_a_recipe_of_its_operators(skill: Skill) -> None:
    check_moves(skill)


def test_a_move_of_a_role_that_no_recipe_of_its_operators_has_is_named() -> None:
    idle = replace(
        LIBRARY["eviction-hints"],
        operators=("matmul",),
        moves=(parse_move("eviction up then l2_hit_pct >= 1.1x"),),
    )
    with pytest.raises(
        AssertionError, match=r"'eviction up' changes no knob .* for matmul; .*tile"
    ):
        check_moves(idle)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("tile smaller then waves >= 2x", "'tile smaller' is not `ROLE up`"),
        ("tiles down then waves >= 2x", "role 'tiles' is unknown; did you mean tile"),
        ("tile down", "is not `ROLE up|down"),
        ("tile down if wave < 2 then waves >= 2x", "metric 'wave' is unknown"),
        ("tile down then waves more", "'waves more' is not"),
    ],
)
def test_a_move_that_cannot_be_read_says_why(text: str, fault: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_move(text)
    assert fault in str(caught.value)


def test_a_move_reads_back_as_it_was_written() -> None:
    text = "tile down and warps up if waves < 2 and launches >= 3 then waves >= 2 and waves >= 1.5x"
    assert str(parse_move(text)) == text


@pytest.mark.parametrize(
    ("claim", "conditions", "expected"),
    [
        ("waves >= 1.5x", [], True),
        ("waves >= 1x", [], False),
        ("waves <= 0.9x", [], True),
        ("waves <= 1.02x", [], False),
        ("waves >= 2", [], False),
        ("waves >= 2", ["waves < 2"], True),
        ("waves >= 2", ["waves <= 2"], False),
        ("waves >= 2", ["waves < 3"], False),
        ("waves >= 2", ["waves > 1"], False),
        ("waves >= 2", ["launches < 1"], False),
        ("waves <= 2", ["waves >= 2.5"], True),
        ("waves <= 2", ["waves >= 2"], False),
    ],
)
def test_a_claim_needs_a_change_where_its_conditions_exclude_it(
    claim: str, conditions: list[str], expected: bool
) -> None:
    read = [parse_condition(condition) for condition in conditions]
    assert needs_change(parse_claim(claim), read) is expected


def test_an_idle_claim_and_two_ways_to_act_are_faults(tmp_path: Path) -> None:
    skill = tmp_path / "fill-the-grid"
    skill.mkdir()
    text = (ROOT / "fill-the-grid" / "SKILL.md").read_text()
    text = text.replace('kmem-claims: "waves >= 2"', 'kmem-claims: "waves >= 1"')
    (skill / "SKILL.md").write_text(
        text.replace("tile down then waves >= 1.5x", "tile down then waves >= 1x")
    )
    (skill / "recipe.py").write_text("")
    faults = read_skill(skill)[1]
    assert len(faults) == 3
    assert "recipe.py and kmem-moves in one directory" in faults[0]
    assert "kmem-claims 'waves >= 1' holds if nothing changes; say it as a multiple" in faults[1]
    assert "kmem-moves 'tile down' 'waves >= 1x' holds if nothing changes" in faults[2]


def prescribed(names: list[str], values: dict[str, float]) -> Situation:
    """A situation after one round: a product that a recipe wrote, diagnosed, skills offered."""
    problem = Problem("product", "product.py", PRODUCT)
    blank = open_situation(
        problem,
        named_target("h200"),
        recipes={"tile-matmul": RECIPES["tile-matmul"]},
        skills=LIBRARY,
    )
    (first,) = RecipeAuthor().write(assigned(blank, Task(Move.SEED, "tile-matmul", None, 1, "")))
    diagnosis = Diagnosis(
        Bottleneck.LATENCY, (), Signature(values), None, None, "latency", hottest=None
    )
    attempt = Attempt(0, first, PASSED, None)
    return replace(
        blank,
        round=1,
        parent=first.kernel,
        history=(attempt,),
        diagnosis=diagnosis,
        prescriptions=tuple(Prescription(name, 1.0, ()) for name in names),
    )


def assigned(situation: Situation, task: Task) -> Assignment:
    known = {name: getattr(situation, name) for name in Situation.__dataclass_fields__}
    return Assignment(**known, task=task)


def knobs(candidate: Candidate) -> dict[str, object]:
    return dict(candidate.kernel.choices[0].knobs)


def fixes(directions: list[Direction]) -> Iterator[Direction]:
    return (direction for direction in directions if direction.move is Move.FIX)


def test_a_prescribed_move_is_made_from_the_parents_knobs_with_its_prediction() -> None:
    author = RecipeAuthor()
    situation = prescribed(["no-giant-tiles", "warp-specialize-matmul"], {})
    direction = author.propose(situation)[0]  # what answers the diagnosis comes first
    assert (direction.skill, direction.move) == ("no-giant-tiles", Move.FIX)
    assert [str(claim) for claim in direction.claims] == ["registers_per_thread <= 0.9x"]
    assert situation.parent is not None
    task = make_task(direction, situation.parent.hash, 3)
    written = author.write(assigned(situation, task))
    before = dict(situation.parent.choices[0].knobs)
    assert len(written) == 3
    for candidate in written:
        after = knobs(candidate)
        assert candidate.task.claims == direction.claims
        assert candidate.kernel.parent == situation.parent.hash
        assert (after["block_m"], after["block_n"]) != (before["block_m"], before["block_n"])
        assert after["block_m"] <= before["block_m"] and after["block_n"] <= before["block_n"]


def test_the_profile_chooses_among_a_skills_moves_and_what_was_tried_is_not_tried_again() -> None:
    author = RecipeAuthor()
    (narrow,) = fixes(author.propose(prescribed(["raise-occupancy"], {"registers_per_thread": 40})))
    assert narrow.instruction.startswith("depth down")  # the first move is about many registers
    wide = prescribed(["raise-occupancy"], {"registers_per_thread": 200})
    (direction,) = fixes(author.propose(wide))
    assert direction.instruction.startswith("tile down")
    assert wide.parent is not None
    made = author.write(assigned(wide, make_task(direction, wide.parent.hash, 99)))
    attempts = [Attempt(1, each, PASSED, None) for each in made]
    later = replace(wide, history=(*wide.history, *attempts))
    (direction,) = fixes(author.propose(later))
    assert direction.instruction.startswith("depth down")


def test_an_author_uses_the_skills_that_would_make_another_kernel() -> None:
    author = RecipeAuthor()
    situation = prescribed([], {})
    used = {name for name, skill in LIBRARY.items() if author.uses(skill, situation)}
    assert "no-giant-tiles" in used
    assert "tile-matmul" not in used  # it wrote the parent
    assert "eviction-hints" not in used  # the recipe has no such knob
    assert "warp-specialize-matmul" not in used  # prose


def test_the_template_of_moves_acts_and_lacks_only_its_text(tmp_path: Path) -> None:
    (tmp_path / "smaller-tiles").mkdir()
    text = skill_template("smaller-tiles", moves=True)["SKILL.md"]
    (tmp_path / "smaller-tiles" / "SKILL.md").write_text(text)
    skill, faults = read_skill(tmp_path / "smaller-tiles")
    assert skill is not None and skill.manner == "moves"
    assert all("still the template's" in fault for fault in faults)
    check_moves(skill)


def test_why_shows_what_was_predicted_beside_what_came_of_it() -> None:
    author = RecipeAuthor()
    situation = prescribed(["no-giant-tiles"], {"registers_per_thread": 200})
    assert situation.parent is not None
    direction = author.propose(situation)[0]
    (made,) = author.write(assigned(situation, make_task(direction, situation.parent.hash, 1)))
    attempt = Attempt(1, made, PASSED, parent_ms=1.25)
    (claim,) = direction.claims
    check = ClaimCheck(claim, 200.0, 128.0, held=True)
    lesson = Lesson(1, made.kernel.hash, "no-giant-tiles", "it held", (check,))
    told = describe_round(Round(1, [], None, [attempt], [lesson]))
    assert (
        f"no-giant-tiles predicted registers_per_thread <= 0.9x: kernel {made.kernel.hash[:12]} "
        f"came to 1.25x over its parent {situation.parent.hash[:12]}; the claim "
        "registers_per_thread <= 0.9x held (200 before, 128 after)"
    ) in told
    unsettled = describe_round(Round(1, [], None, [attempt], []))
    assert "; not settled by a profile" in unsettled
    (data,) = round_data(Round(1, [], None, [attempt], []))["attempts"]
    assert (data["predicted"], data["speedup"]) == (["registers_per_thread <= 0.9x"], 1.25)
    assert data["parent"] == situation.parent.hash
