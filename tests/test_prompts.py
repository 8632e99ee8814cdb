"""Prompts: what they say of a run, that they fit, stay the same, and give no answer away."""

import difflib
import re
from dataclasses import replace

import pytest
from prompt_cases import (
    PARENT,
    PROBLEMS,
    SNAPSHOTS,
    all_briefs,
    make_run,
    real_skill,
    render_user_messages,
    snapshots,
)
from scripted_models import KERNEL, assign, attempted, make_diagnosis, make_situation

from kmem.explore.models.prompts.briefs import optimiser_brief
from kmem.explore.models.prompts.excerpts import kernel_excerpt
from kmem.explore.models.prompts.history import history_section
from kmem.explore.models.prompts.message import (
    PromptTooLong,
    Section,
    Worth,
    estimate_tokens,
    fit_prompt,
)
from kmem.explore.models.prompts.rendering import both_ends, fenced, one_line
from kmem.explore.models.prompts.sections import graph_section, skill_sections
from kmem.explore.models.prompts.system import system_prompt
from kmem.explore.models.roles import DIAGNOSER, OPTIMISER, ROLES, Role
from kmem.explore.recipes.author import RecipeAuthor
from kmem.interfaces import Situation
from kmem.measure.source_check import REFUSED_BUILTINS
from kmem.measure.source_names import ALLOWED_MODULES
from kmem.problem.graph import Node, Ref
from kmem.recipes import Recipe
from kmem.records import (
    Bottleneck,
    Contract,
    Kernel,
    Lesson,
    Move,
    Precision,
    Prescription,
    Purity,
    Status,
    Veto,
)
from kmem.skills import Skill, bundled_skills_root, load_recipe, load_skill, skill_directories

#: Roles whose prompts are about a kernel to go on from.
ABOUT_A_PARENT = ("diagnoser", "planner", "optimiser", "reflector")


# ---- snapshots


@pytest.fixture(scope="module")
def rendered() -> dict[str, str]:
    return snapshots()


@pytest.mark.parametrize("name", [*(f"{problem}.md" for problem in PROBLEMS), "system.md"])
def test_prompts_are_as_they_were_reviewed(rendered: dict[str, str], name: str) -> None:
    kept = (SNAPSHOTS / name).read_text(encoding="utf-8")
    difference = difflib.unified_diff(
        kept.splitlines(), rendered[name].splitlines(), "reviewed", "now", lineterm="", n=1
    )
    assert rendered[name] == kept, (
        "run tools/write_prompt_snapshots.py if this is meant:\n" + "\n".join(difference)
    )


def test_no_snapshot_is_left_over_and_rendering_is_deterministic(rendered: dict[str, str]) -> None:
    assert {path.name for path in SNAPSHOTS.iterdir()} == set(rendered)
    assert snapshots() == rendered


# ---- budgets


def crowded_run() -> Situation:
    """A run with hundreds of attempts, many lessons and vetoes, and the three longest skills.

    Its logs and sources are long, too.
    """
    long_source = (
        KERNEL
        + "\n".join(f"# line {number} of a long kernel file" for number in range(1100))
        + "\n"
    )
    parent = Kernel(long_source)
    attempts = [attempted(parent, ms=3.0)]
    for number in range(300):
        kernel = Kernel(long_source + f"# {number}\n", parent.hash)
        status = Status.PASSED if number % 3 == 0 else Status.BUILD_FAILED
        log = (
            ""
            if status is Status.PASSED
            else "error: " + "x" * 20_000 + f"\nthe last line {number}"
        )
        attempts.append(
            attempted(
                kernel,
                status,
                ms=2.0 - number / 1000,
                log=log,
                move=Move.FIX,
                instruction="change it " * 30,
                round=number // 10,
            )
        )
    attempts.append(
        attempted(
            Kernel(long_source + "# fails\n", parent.hash),
            Status.CRASHED,
            log="y" * 1_000_000,
            move=Move.FIX,
            round=31,
        )
    )
    longest = sorted(
        (load_skill(path) for path in skill_directories(bundled_skills_root())),
        key=lambda skill: -len(skill.body),
    )[:3]
    situation = make_run("linear_swish_scale", parent=parent, history=tuple(attempts))
    return replace(
        situation,
        skills={skill.name: skill for skill in longest},
        prescriptions=tuple(Prescription(skill.name, 0.5, ("because " * 20,)) for skill in longest),
        lessons=tuple(
            Lesson(number, parent.hash, "unaided", "a long lesson " * 30) for number in range(80)
        ),
        vetoes=tuple(
            Veto("unaided", "it failed " * 20, author="llm", instruction=f"idea {number} " * 10)
            for number in range(60)
        ),
    )


@pytest.fixture(scope="module")
def crowded() -> Situation:
    return crowded_run()


@pytest.fixture(scope="module")
def crowded_briefs(crowded: Situation) -> list[tuple[Role, list[Section]]]:
    return all_briefs(crowded)


@pytest.fixture(scope="module")
def crowded_messages(
    crowded: Situation, crowded_briefs: list[tuple[Role, list[Section]]]
) -> dict[str, str]:
    return {
        role.name: fit_prompt(role, system_prompt(role, crowded.traced.contract), sections)
        for role, sections in crowded_briefs
    }


def test_no_prompt_exceeds_its_budget_however_much_there_is_to_say(
    crowded_briefs: list[tuple[Role, list[Section]]], crowded_messages: dict[str, str]
) -> None:
    trimmed = set()
    for role, sections in crowded_briefs:
        system = estimate_tokens(system_prompt(role, Contract()))
        assert system + estimate_tokens(crowded_messages[role.name]) <= role.prompt_tokens, (
            role.name
        )
        if (
            system + sum(estimate_tokens(section.texts[0]) for section in sections)
            > role.prompt_tokens
        ):
            trimmed.add(role.name)
    assert {"generator", "planner", "optimiser", "reflector"} <= trimmed, (
        "for the others there is room enough"
    )


def test_what_is_trimmed_leaves_the_kernel_the_task_and_the_history(
    crowded: Situation, crowded_messages: dict[str, str]
) -> None:
    for role in ABOUT_A_PARENT:
        assert crowded.parent.source.strip() in crowded_messages[role], role
    for role, message in crowded_messages.items():
        rows = re.findall(r"^\| \d+ \| \d+ \| ", message, flags=re.MULTILINE)
        assert len(rows) >= 6, role
        assert f"({len(crowded.history) - len(rows)} more attempts are left out)" in message or len(
            rows
        ) == len(crowded.history)
        assert f"| {len(crowded.history)} | 31 | " in message, "the last attempt is never left out"
        assert "\n\n## The task\n" in message


def test_the_graph_is_told_without_checks_and_without_shares_of_nothing() -> None:
    situation = make_situation("linear_swish_scale")
    traced = situation.traced
    first = traced.graph.nodes[0]
    check = Node("check", "aten._assert_tensor_metadata.default", (Ref("x"),), {}, None)
    view = Node("view", "aten.view.default", (Ref(first.name), (-1,)), {}, first.output)
    graph = replace(traced.graph, nodes=(check, first, view, *traced.graph.nodes[1:]))
    told = graph_section(replace(situation, traced=replace(traced, graphs={"full": graph}))).texts
    assert "_assert" not in told[0]
    assert re.search(r"^linear = .*of eager's time$", told[0], re.MULTILINE)
    assert re.search(r"^view = .*\]$", told[0], re.MULTILINE)


def test_code_is_whole_or_absent(crowded: Situation, crowded_messages: dict[str, str]) -> None:
    sources = [attempt.candidate.kernel.source.strip() for attempt in crowded.history] + [
        crowded.traced.problem.source.strip(),
        *(kernel_excerpt(skill.example) for skill in crowded.skills.values()),
    ]
    told = "".join(skill.body for skill in crowded.skills.values())
    for role, message in crowded_messages.items():
        blocks = re.findall(r"^```python\n(.*?)\n```$", message, flags=re.MULTILINE | re.DOTALL)
        assert blocks, role
        assert all(block in sources or block in told for block in blocks), role


def test_the_fastest_attempts_stay_in_a_trimmed_history(crowded: Situation) -> None:
    fastest = min(
        (item for item in crowded.history if item.measurement.latency_ms),
        key=lambda item: item.measurement.latency_ms,
    )
    first = replace(
        crowded, history=(fastest, *[item for item in crowded.history if item is not fastest])
    )
    for text in history_section(first).texts:
        assert f"| 1 | {fastest.round} | {fastest.candidate.kernel.hash[:8]} |" in text


def test_the_least_valuable_section_shrinks_first_and_the_later_of_equals() -> None:
    role = Role("tester", prompt_tokens=100, output_tokens=10)
    sections = [
        Section("task", ("t" * 30,), Worth.TASK),
        Section("graph", ("g" * 60, "g" * 30, ""), Worth.STRUCTURE),
        Section("skill one", ("1" * 60, ""), Worth.OTHER_SKILLS),
        Section("skill two", ("2" * 60, ""), Worth.OTHER_SKILLS),
    ]
    seen = []
    for tokens in range(110, 15, -1):
        try:
            message = fit_prompt(replace(role, prompt_tokens=tokens), "", sections)
        except PromptTooLong:
            break
        shape = tuple(
            len(re.findall(letter, message.replace("graph", "").replace("skill", "")))
            for letter in "tg12"
        )
        if not seen or seen[-1] != shape:
            seen.append(shape)
    assert [shape[1:] for shape in seen] == [
        (60, 60, 60),
        (30, 60, 60),
        (0, 60, 60),
        (60, 60, 0),  # what fits in place of a larger section comes back
        (30, 60, 0),
        (0, 60, 0),
        (60, 0, 0),
        (30, 0, 0),
        (0, 0, 0),
    ]


def test_what_a_role_cannot_do_without_may_be_too_long() -> None:
    situation = make_run("softmax", parent=Kernel(KERNEL + "# " + "x" * 100_000 + "\n"))
    sections = optimiser_brief(assign(situation, Move.FIX, "online-softmax"))
    with pytest.raises(
        PromptTooLong,
        match=r"the prompt of the optimiser needs about \d+ tokens and holds at most 32000",
    ):
        fit_prompt(OPTIMISER, system_prompt(OPTIMISER, Contract()), sections)


def test_tokens_are_estimated_from_bytes_so_that_no_script_is_underestimated() -> None:
    assert estimate_tokens("abc") == 1
    assert estimate_tokens("漢字") == 2
    assert estimate_tokens("") == 0


# ---- what every prompt carries


def history_of(message: str) -> str:
    return message.split("## What this run has tried\n")[1].split("\n\n## ")[0]


def test_the_history_reads_the_same_after_re_basing_and_whether_or_not_retrieval_matched() -> None:
    run = make_run("softmax")
    rebased = replace(run, parent=Kernel(KERNEL + "# another base\n"))
    nothing_offered = replace(run, prescriptions=(), skills={}, diagnosis=None)
    histories = {
        history_of(message)
        for one in (run, rebased, nothing_offered)
        for message in render_user_messages(one).values()
    }
    assert len(histories) == 1
    (history,) = histories
    assert "AttributeError: no attribute 'lood'" in history
    assert "BLOCK=256" in history


def test_lessons_with_their_claims_and_vetoes_with_their_reasons_are_in_every_prompt() -> None:
    for role, message in render_user_messages(make_run("softmax")).items():
        assert "wider blocks do not help [traffic_ratio <= 0.7x: 2.1 -> 2, refuted]" in message, (
            role
        )
        assert "no-giant-tiles (for llm): 3 candidates, none passed: wrong_values" in message, role


def test_a_vetoed_idea_is_shown_in_its_own_words() -> None:
    veto = Veto(
        "unaided", "it spilled", author="llm", parent=PARENT.hash, instruction="unroll | the loop"
    )
    message = render_user_messages(make_run("softmax", vetoes=(veto,)))["planner"]
    assert f"- unaided: unroll / the loop from {PARENT.hash[:8]} (for llm): it spilled" in message


def test_at_most_three_skills_are_shown_the_chosen_one_first_with_their_track_records() -> None:
    names = ["row-norm", "online-softmax", "eviction-hints", "fill-the-grid"]
    situation = make_situation("softmax", parent=PARENT, offered=names)
    sections = skill_sections(situation, "fill-the-grid")
    assert [section.title for section in sections] == [
        "Skill: fill-the-grid",
        "Skill: row-norm",
        "Skill: online-softmax",
    ]
    assert "Track record: won 3 of 5 on sm_90, 1.4x" in sections[0].texts[-1]
    assert "Offered because: the bottleneck fits" in sections[0].texts[-1]
    said = replace(situation, track_records={"row-norm": "won twice; the bottleneck fits"})
    assert "Offered because" not in skill_sections(said)[0].texts[0], "nothing is said twice"
    assert sections[1].texts[-1] == "", "a skill that was not chosen may be left out"
    assert (
        "Track record: none is known"
        in skill_sections(replace(situation, track_records={}))[0].texts[0]
    )


def test_headings_of_a_skill_sink_below_the_prompts_and_comments_in_its_code_stay() -> None:
    skill = replace(
        real_skill("online-softmax"),
        body="## Mechanism\nx\n```python\n# a comment\n## two\ny = 1\n```\n## In Triton\nz\n",
    )
    situation = replace(make_run("softmax"), skills={"online-softmax": skill})
    text = skill_sections(situation)[0].texts[0]
    assert "### Mechanism\nx\n```python\n# a comment\n## two\ny = 1\n```\n### In Triton\nz" in text


def test_the_best_other_kernels_are_shown_whole_fastest_first() -> None:
    kernels = [Kernel(KERNEL + f"# {number}\n") for number in range(4)]
    times = [1.5, 0.9, 1.1, 1.3]
    history = tuple(attempted(kernel, ms=ms) for kernel, ms in zip(kernels, times, strict=True))
    message = render_user_messages(make_run("softmax", parent=kernels[0], history=history))[
        "planner"
    ]
    others = message.split("## Other fast kernels of this run\n")[1]
    assert re.findall(r"^([0-9a-f]{8})$", others, flags=re.MULTILINE) == [
        kernels[1].hash[:8],
        kernels[2].hash[:8],
    ]


def test_without_a_bound_or_profile_the_prompts_say_so() -> None:
    situation = make_run("softmax", diagnosis=None)
    unbounded = replace(situation.traced, bound=None)
    messages = render_user_messages(replace(situation, traced=unbounded))
    assert "There is no profile of this kernel" in messages["diagnoser"]
    assert "The forward must move" not in messages["diagnoser"]


def test_an_estimated_diagnosis_is_called_so() -> None:
    diagnosis = replace(
        make_diagnosis(), estimated=True, secondary=(), headroom_ms=None, hottest=None
    )
    message = render_user_messages(make_run("softmax", diagnosis=diagnosis))["planner"]
    assert "These figures are estimated by the compiler, not measured." in message
    assert "Next after it" not in message
    assert "Removing it could save" not in message
    assert "The hottest launch" not in message


def test_a_layout_that_is_not_contiguous_is_shown() -> None:
    assert "strides [1, " in render_user_messages(make_run("matmul_transposed"))["generator"]


# ---- rules


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
@pytest.mark.parametrize(
    "contract",
    [Contract(precision, purity) for precision in Precision for purity in Purity],
    ids=str,
)
def test_no_placeholder_is_left_and_the_contract_is_stated(role: Role, contract: Contract) -> None:
    text = system_prompt(role, contract)
    assert "$" not in text
    if role.name in ("generator", "optimiser", "repairer"):
        assert ("at most 1% elsewhere" in text) == (contract.purity is Purity.TRITON)
        assert {
            Precision.MATCH: "no TF32",
            Precision.TF32: "TF32 is allowed",
            Precision.BF16: "bfloat16",
        }[contract.precision] in text


def test_the_rules_name_what_the_source_check_allows_and_refuses() -> None:
    rules = system_prompt(OPTIMISER, Contract())
    listed = rules.split("Imports other than ")[1].split(" (and what")[0]
    assert set(re.findall(r"\w+", listed)) | {"__future__"} == set(ALLOWED_MODULES)
    for name in ("exec", "eval", "compile", "open", "globals", "__import__"):
        assert name in REFUSED_BUILTINS
        assert name in rules


def test_the_diagnoser_is_told_every_bottleneck() -> None:
    text = system_prompt(DIAGNOSER, Contract())
    listed = re.split(r"`bottleneck` is one of ", text)[1].split(".")[0]
    named = set(Bottleneck) - {Bottleneck.UNKNOWN}
    assert set(re.split(r",\s+", listed)) == {bottleneck.value for bottleneck in named}


# ---- no answers


def telling_windows(source: str) -> set[tuple[str, ...]]:
    """Five consecutive lines of code: what a kernel has in common only with itself."""
    lines = [line.strip() for line in source.splitlines()]
    lines = [
        line
        for line in lines
        if line and not line.startswith(("#", "import ", "from ", "@", '"""'))
    ]
    return {tuple(lines[start : start + 5]) for start in range(len(lines) - 4)}


@pytest.fixture(scope="module")
def library() -> dict[str, Skill]:
    return {
        skill.name: skill
        for skill in (load_skill(path) for path in skill_directories(bundled_skills_root()))
    }


@pytest.fixture(scope="module")
def recipes(library: dict[str, Skill]) -> dict[str, Recipe]:
    return {
        name: recipe
        for name, skill in library.items()
        if (recipe := load_recipe(skill)) is not None
    }


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_only_code_of_others_in_a_prompt_is_that_of_the_skills_offered(
    problem: str, library: dict[str, Skill], recipes: dict[str, Recipe]
) -> None:
    situation = make_situation(problem, recipes=recipes)
    run = make_run(problem)
    offered = [library[prescription.skill] for prescription in run.prescriptions]
    author = RecipeAuthor()
    written = [
        candidate.kernel.source
        for name in recipes
        for candidate in author.write(assign(situation, Move.SEED, name))
    ]
    others = [skill.example for skill in library.values() if skill not in offered] + written
    told = [skill.example + skill.body for skill in offered]
    secret = set().union(*map(telling_windows, others)) - set().union(
        *map(telling_windows, [*told, situation.traced.problem.source])
    )
    assert written
    for role, message in render_user_messages(run).items():
        assert not secret & telling_windows(message), role


# ---- pieces of text


def test_a_fence_is_longer_than_any_in_the_text() -> None:
    assert fenced("x\n````\ny", "python") == "`````python\nx\n````\ny\n`````"
    assert fenced("x") == "```\nx\n```"


def test_a_cell_is_one_line_without_bars() -> None:
    assert one_line("a |\n  b") == "a / b"
    assert one_line("word " * 100, 20) == "word word word wo..."


def test_a_long_log_keeps_both_ends() -> None:
    assert both_ends("short", 10) == "short"
    assert both_ends("a" * 50 + "b" * 50, 10) == "aaaaa\n... 90 characters left out ...\nbbbbb"
