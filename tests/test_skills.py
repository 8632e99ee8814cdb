"""Skills: loading reports every fault at once; a library is checked as a whole; the template is
valid as it is.
"""

from pathlib import Path

import numpy as np
import pytest

from kmem.errors import SkillError
from kmem.records import Bottleneck, Claim
from kmem.skills import (
    NEAR_DUPLICATE_COSINE,
    Condition,
    Skill,
    arch_matches,
    bundled_skills_root,
    load_recipe,
    load_skill,
    parse_claim,
    parse_condition,
    read_skill,
    skill_directories,
    skill_template,
    validate_library,
)
from kmem.skills.form import SECTIONS
from kmem.vocabulary import BOTTLENECK_MEANINGS


def filled_template(name: str) -> str:
    """The template with something else in every part that a writer must replace."""
    text = skill_template(name)["SKILL.md"]
    for before, after in (
        ("State in one sentence what makes the kernel faster.", "Make the kernel faster."),
        ("the URL or paper this comes from", "measured here"),
        ("What the hardware does now", "What the device does now"),
        ("The counters or the shape", "Counters or the shape"),
        ("Cases in which it costs", "Cases where it costs"),
        ("The change, in terms", "A change, in terms"),
        ("What goes wrong at the edges", "What fails at the edges"),
        ("name the metric, the direction", "a metric, the direction"),
    ):
        assert before in text
        text = text.replace(before, after)
    return text


def write_skill(
    root: Path, name: str, *, change=lambda text: text, recipe: str | None = None
) -> Path:
    """A valid skill directory, its SKILL.md put through `change`."""
    path = root / name
    path.mkdir(parents=True)
    (path / "SKILL.md").write_text(change(filled_template(name)), encoding="utf-8")
    if recipe is not None:
        (path / "recipe.py").write_text(recipe, encoding="utf-8")
    return path


def test_a_template_that_was_filled_in_loads_and_passes_every_check(tmp_path: Path) -> None:
    skill = load_skill(write_skill(tmp_path, "separable-pooling"))
    assert (skill.name, skill.operators, skill.bottlenecks) == (
        "separable-pooling",
        ("any",),
        (Bottleneck.REDUNDANT_TRAFFIC,),
    )
    assert skill.signature == (Condition("traffic_ratio", ">=", 1.3),)
    assert validate_library([skill]) == []


def test_an_untouched_template_is_refused_part_by_part(tmp_path: Path) -> None:
    (tmp_path / "my-skill").mkdir()
    file = tmp_path / "my-skill" / "SKILL.md"
    file.write_text(skill_template("my-skill")["SKILL.md"], encoding="utf-8")
    faults = read_skill(tmp_path / "my-skill")[1]
    assert [fault.split(" is still the template's")[0] for fault in faults] == [
        "description",
        "kmem-source",
        *(f"section '{section}'" for section in SECTIONS),
    ]
    file.write_text(filled_template("my-skill"), encoding="utf-8")
    assert read_skill(tmp_path / "my-skill")[1] == []


def test_words_of_a_key_are_separated_by_spaces_or_commas(tmp_path: Path) -> None:
    skill = load_skill(
        write_skill(
            tmp_path,
            "two-operators",
            change=lambda text: text.replace("kmem-ops: any", "kmem-ops: softmax, sum mean"),
        )
    )
    assert skill.operators == ("softmax", "sum", "mean")


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("ops: any", "ops: gelu", "'gelu' is not an operator; allowed are: any, pointwise, sum,"),
        ("ops: any", "ops: soft_max", "did you mean softmax or log_softmax or max? allowed are: "),
        (
            "bottlenecks: redundant_traffic",
            "bottlenecks: slow",
            "'slow' is not a bottleneck; allowed are: redundant_traffic, uncoalesced,",
        ),
        (
            "signature: traffic_ratio",
            "signature: trafic_ratio",
            "'trafic_ratio' is unknown; did you mean traffic_ratio",
        ),
    ],
)
def test_an_unknown_word_is_refused_with_the_words_there_are(
    tmp_path: Path, before: str, after: str, fault: str
) -> None:
    path = write_skill(tmp_path, "odd-words", change=lambda text: text.replace(before, after))
    assert any(fault in line for line in read_skill(path)[1]), read_skill(path)[1]


def test_every_bottleneck_has_a_meaning() -> None:
    assert list(BOTTLENECK_MEANINGS) == [
        each.value for each in Bottleneck if each is not Bottleneck.UNKNOWN
    ]


@pytest.mark.parametrize(
    "name", ["Upper", "two--hyphens", "under_score", "", "x" * 65, "../outside"]
)
def test_a_template_needs_a_name_the_format_allows(name: str) -> None:
    with pytest.raises(SkillError, match="lower-case letters"):
        skill_template(name)


def test_every_fault_of_a_directory_is_listed_at_once(tmp_path: Path) -> None:
    def spoil(text: str) -> str:
        return (
            text.replace("kmem-ops: any", "kmem-ops: max_pool polling")
            .replace(
                "kmem-bottlenecks: redundant_traffic",
                "kmem-bottlenecks: slowness\n  kmem-colour: red\n  kmem-arch: hopper",
            )
            .replace("kmem-source: ", "kmem-conflicts: bad\n  kmem-source: ")
            .replace("traffic_ratio >= 1.3", "traffic >= 1.3, waves is low")
            .replace("kmem-precision: exact", "kmem-precision: sloppy")
            .replace("license:", "speed: 9\nlicense:")
            .replace("Use when the profile", "If the profile")
            .replace("## Pitfalls", "## Traps")
        )

    with pytest.raises(SkillError) as caught:
        load_skill(write_skill(tmp_path, "bad", change=spoil))
    message = str(caught.value)
    for fault in (
        "frontmatter key 'speed'",
        "description lacks 'Use when ...'",
        "metadata key 'kmem-colour' is unknown",
        "kmem-ops 'polling' is not an operator",
        "kmem-bottlenecks 'slowness' is not a bottleneck",
        "kmem-signature metric 'traffic' is unknown",
        "kmem-signature 'waves is low' is not `metric op number`",
        "kmem-arch 'hopper'",
        "kmem-precision 'sloppy'",
        "kmem-conflicts names the skill itself",
        "kmem-claims 'traffic_ratio <= 1.1' holds if nothing changes",  # without the condition
        "body lacks the section '## Pitfalls'",
    ):
        assert fault in message
    assert len(message.splitlines()) == 1 + 12


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"no frontmatter", "does not begin with frontmatter"),
        (b"---\na: [\n---\nbody", "not valid YAML"),
        (b"---\n- a\n---\nbody", "frontmatter is not a mapping"),
        (b"\xff\xfe\x00", "cannot be read"),
        (
            b"---\nname: x\nmetadata: {kmem-arch: 80}\n---\nbody",
            "metadata must map strings to strings",
        ),
        (b"---\nname: Bad Name\n---\nbody", "name 'Bad Name' must be"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_fault_not_a_crash(
    tmp_path: Path, text: bytes, fault: str
) -> None:
    path = tmp_path / "x"
    path.mkdir()
    (path / "SKILL.md").write_bytes(text)
    _, faults = read_skill(path)
    assert any(fault in line for line in faults)


def test_a_directory_without_a_skill_file_says_so(tmp_path: Path) -> None:
    assert read_skill(tmp_path) == (None, [f"no SKILL.md in {tmp_path}"])


def test_any_edit_of_any_file_makes_a_new_version(tmp_path: Path) -> None:
    skill = load_skill(write_skill(tmp_path, "a-skill"))
    before = skill.hash
    (skill.path / "__pycache__").mkdir()
    (skill.path / "__pycache__" / "x.pyc").write_bytes(b"1")
    assert skill.hash == before
    (skill.path / "picture.png").write_bytes(b"\xff\x00")
    first = skill.hash
    (skill.path / "picture.png").write_bytes(b"\xfe\x00")
    assert len({before, first, skill.hash}) == 3


@pytest.mark.parametrize(
    ("patterns", "arch", "fits"),
    [
        ((), "sm_90", True),
        (("sm_90",), "sm_90", True),
        (("sm_90",), "sm_90a", True),
        (("sm_90",), "sm_100", False),
        (("sm_80+",), "sm_100", True),
        (("sm_80+",), "sm_75", False),
        (("sm_80+",), "gfx942", False),
        (("gfx90a+",), "gfx942", True),
        (("gfx942",), "gfx90a", False),
        (("sm_70", "sm_90+"), "sm_100", True),
        (("sm_80+",), "cpu", False),
    ],
)
def test_architectures_match_exactly_or_from_one_on(
    patterns: tuple[str, ...], arch: str, fits: bool
) -> None:
    assert arch_matches(patterns, arch) is fits


@pytest.mark.parametrize(("value", "holds"), [(1.5, True), (1.3, True), (1.2, False), (None, None)])
def test_a_condition_is_true_false_or_unknown(value: float | None, holds: bool | None) -> None:
    assert (
        parse_condition("traffic_ratio >= 1.3").holds(
            {} if value is None else {"traffic_ratio": value}
        )
        is holds
    )


RECIPE = """
from kmem.recipes import Recipe

class Nothing(Recipe):
    def match(self, graph, contract): return []
    def space(self, site, device): raise AssertionError
    def cost_ms(self, site, settings, device): raise AssertionError
    def emit(self, site, settings): raise AssertionError

RECIPE = Nothing()
"""


def test_a_recipe_carries_its_skills_name(tmp_path: Path) -> None:
    assert (
        load_recipe(load_skill(write_skill(tmp_path, "with-recipe", recipe=RECIPE))).name
        == "with-recipe"
    )
    assert load_recipe(load_skill(write_skill(tmp_path, "without-recipe"))) is None


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("1 / 0", "fails on import: ZeroDivisionError"),
        ("raise SystemExit('recipe bug')", "fails on import: SystemExit: recipe bug"),
        ("RECIPE = 3", "defines no RECIPE"),
    ],
)
def test_a_broken_recipe_is_named(tmp_path: Path, source: str, fault: str) -> None:
    with pytest.raises(SkillError, match=fault):
        load_recipe(load_skill(write_skill(tmp_path, "broken", recipe=source)))


def _library(root: Path, **changes) -> list[Skill]:
    return [
        load_skill(write_skill(root, name.replace("_", "-"), change=change))
        for name, change in changes.items()
    ]


CLAIMS = "  kmem-claims: traffic_ratio <= 1.1\n"


def test_claims_are_typed_and_print_as_they_are_read() -> None:
    for text in ("traffic_ratio <= 1.05", "l1_throughput_pct <= 0.5x", "waves >= 2"):
        assert str(parse_claim(text)) == text
    assert parse_claim("l1_throughput_pct <= 0.5x") == Claim(
        "l1_throughput_pct", "<=", 0.5, relative=True
    )


@pytest.mark.parametrize(
    "text",
    [
        "speed <= 1",
        "traffic_ratio < 1",
        "traffic_ratio <= 1 x",
        "traffic_ratio <= about 1",
        "traffic_ratio",
    ],
)
def test_a_claim_that_no_profile_could_refute_is_a_fault_of_the_skill(
    text: str, tmp_path: Path
) -> None:
    path = write_skill(
        tmp_path,
        "claims-wrongly",
        change=lambda skill: skill.replace(CLAIMS, f"  kmem-claims: {text}\n"),
    )
    _, faults = read_skill(path)
    assert len(faults) == 1
    assert faults[0].startswith("kmem-claims ")


def test_a_library_is_checked_as_a_whole(tmp_path: Path) -> None:
    library = _library(
        tmp_path,
        claims_nothing=lambda text: text.replace(
            "`traffic_ratio` should fall below 1.1", "It is faster"
        ).replace(CLAIMS, ""),
        claims_unexplained=lambda text: text.replace(
            "`traffic_ratio` should fall below 1.1", "`launches` falls"
        ),
        claims_untyped=lambda text: text.replace(CLAIMS, ""),
        empty_section=lambda text: text.replace(
            "- What fails at the edges: sizes, alignment, precision.", ""
        ),
        quarrels=lambda text: text.replace(
            "kmem-precision", "kmem-conflicts: empty-section nobody\n  kmem-precision"
        ),
    )
    twin = load_skill(write_skill(tmp_path / "elsewhere", "quarrels"))
    assert validate_library([*library, twin]) == [
        (
            "claims-nothing: 'How to check it worked' names no signature metric, such as "
            "traffic_ratio (kmem.vocabulary)"
        ),
        (
            "claims-unexplained: kmem-claims 'traffic_ratio <= 1.1' is not explained in 'How to "
            "check it worked'"
        ),
        (
            "claims-untyped: 'How to check it worked' gives a number for a metric, but kmem-claims "
            "does not state it"
        ),
        "empty-section: section 'Pitfalls' is empty",
        "quarrels: kmem-conflicts 'nobody' is not a skill",
        f"quarrels: two directories have this name: {library[4].path} and {twin.path}",
    ]


def test_descriptions_too_near_to_tell_apart_are_faults(tmp_path: Path) -> None:
    library = _library(tmp_path, first=str, second=str, third=str)
    near = np.array([[1, 0], [np.cos(0.1), np.sin(0.1)], [0, 1]], dtype=np.float32)
    (fault,) = validate_library(library, lambda texts: near)
    assert fault == (
        f"first: the description is a near-duplicate of second's (cosine 1.00, limit "
        f"{NEAR_DUPLICATE_COSINE})"
    )


def test_the_bundled_skills_lie_beside_the_package() -> None:
    assert bundled_skills_root() == Path(__file__).parent.parent / "skills"
    assert all((path / "SKILL.md").is_file() for path in skill_directories(bundled_skills_root()))


def test_skill_directories_of_a_missing_root_are_none(tmp_path: Path) -> None:
    assert skill_directories(tmp_path / "nowhere") == []
