"""The author that asks models: proposals, kernels, bad answers, and resuming without asking."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from scripted_models import (
    EDITED,
    KERNEL,
    ROOT,
    DictArchive,
    ScriptedProvider,
    answer,
    assign,
    attempted,
    begin,
    diagnosis_answer,
    edit_answer,
    make_situation,
    plan_answer,
    reflection_answer,
    repair_answer,
    seed_answer,
)

from kmem.errors import (
    AnswerLost,
    BudgetExhausted,
    NotRegistered,
    OutOfTime,
    PriceError,
    ProviderError,
)
from kmem.explore.models.author import LlmAuthor
from kmem.explore.models.conversation import REASK_TOKENS
from kmem.explore.models.lessons import standing_lessons
from kmem.explore.models.prompts.message import estimate_tokens
from kmem.explore.models.roles import DIAGNOSER
from kmem.explore.models.selection import allowed_skills
from kmem.interfaces import Completion, ModelRequest, Situation, StopReason
from kmem.plugins import build_plugin_manager, collect
from kmem.records import (
    Attempt,
    Background,
    Budget,
    Candidate,
    Contract,
    Effect,
    Kernel,
    Lesson,
    ModelChoice,
    Move,
    Prescription,
    Purity,
    SiteChoice,
    Status,
    Strategy,
    Veto,
)
from kmem.skills import load_recipe, load_skill

PARENT = Kernel(KERNEL)
BROKEN = Kernel(EDITED.replace("tl.load", "tl.lood"), PARENT.hash)
LOG = "Traceback (most recent call last):\n  ...\nAttributeError: module has no attribute 'lood'"


def later(**changes: object) -> Situation:
    """A situation in round 1, from a parent that passed, with one skill on offer."""
    return make_situation(
        parent=PARENT, offered=["online-softmax"], history=(attempted(PARENT),), round=1, **changes
    )


def failing(kernel: Kernel = BROKEN, **about: object) -> tuple[Situation, Attempt]:
    """The situation after a kernel failed to build."""
    failed = attempted(kernel, Status.BUILD_FAILED, log=LOG, move=Move.FIX, round=1, **about)
    return replace(later(), parent=kernel, history=(attempted(PARENT), failed)), failed


# ---- the path from a problem to a repaired kernel


def test_a_first_kernel_an_edit_and_a_repair_end_to_end() -> None:
    provider = ScriptedProvider(
        generator=[seed_answer(["softmax"])],
        diagnoser=[diagnosis_answer()],
        planner=[plan_answer("online-softmax", "unaided")],
        optimiser=[edit_answer(BROKEN.source)],
        repairer=[repair_answer("no attribute 'lood'", EDITED)],
    )
    author = begin(provider)
    seeds = author.propose(make_situation())
    assert [(seed.move, seed.skill, seed.reason) for seed in seeds] == [
        (Move.SEED, "unaided", "full rewrite")
    ]
    (first,) = author.write(
        assign(make_situation(), Move.SEED, "unaided", instruction=seeds[0].instruction)
    )
    assert (first.kernel.source, first.kernel.parent, first.author) == (KERNEL, None, "llm")

    situation = later()
    directions = author.propose(situation)
    assert [
        (direction.move, direction.skill, direction.instruction) for direction in directions
    ] == [
        (Move.FIX, "online-softmax", "apply online-softmax"),
        (Move.FIX, "unaided", "apply unaided"),
    ]
    assert [str(claim) for claim in directions[0].claims] == ["traffic_ratio <= 0.7x"]
    (edited,) = author.write(assign(situation, Move.FIX, "online-softmax"))
    assert (edited.kernel.source, edited.kernel.parent) == (BROKEN.source, PARENT.hash)

    after, _ = failing()
    (repaired,) = author.write(assign(after, Move.REPAIR, "online-softmax"))
    assert (repaired.kernel.source, repaired.kernel.parent) == (EDITED, BROKEN.hash)
    assert not any(provider.scripts.values()), "every scripted answer was asked for"


def test_the_author_is_registered_through_the_hook_and_works_only_within_a_run() -> None:
    registered = collect(build_plugin_manager()).authors["llm"]
    for author in (registered, LlmAuthor()):
        with pytest.raises(RuntimeError, match="has not begun a run"):
            author.propose(make_situation())
        with pytest.raises(RuntimeError, match="has not begun a run"):
            author.write(assign(make_situation(), Move.SEED, "unaided"))


def test_no_command_but_a_run_imports_the_authors() -> None:
    code = (
        "import sys; from kmem.plugins import build_plugin_manager, collect;"
        "names = collect(build_plugin_manager()).authors.keys();"
        "print(*names, *[name for name in sys.modules if name.endswith('.author')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["given", "recipes", "llm"]


def test_seeds_are_offered_at_the_granularities_a_module_has() -> None:
    author = begin(ScriptedProvider())
    assert [seed.reason for seed in author.propose(make_situation("softmax"))] == ["full rewrite"]
    seeds = author.propose(make_situation("rms_norm"))
    assert [seed.reason for seed in seeds] == [
        "fuse",
        "full rewrite",
        "hottest operator",
        "several operators",
    ]
    assert len({seed.instruction for seed in seeds}) == 4


def test_an_operator_that_hardly_takes_time_is_no_kernel_of_its_own() -> None:
    seeds = begin(ScriptedProvider()).propose(make_situation("linear_swish_scale"))
    assert [seed.reason for seed in seeds] == ["fuse", "full rewrite", "hottest operator"]
    assert "takes most time, linear, in Triton" in seeds[2].instruction


def with_first_skills(situation: Situation, *names: str) -> Situation:
    """The situation with skills for a first kernel."""
    return replace(
        situation,
        skills={name: load_skill(ROOT / "skills" / name) for name in names},
        background=Background(
            first_skills=tuple(Prescription(name, 0.5, (), "never tried yet") for name in names)
        ),
    )


def test_seeds_rest_on_different_skills_and_one_on_none() -> None:
    situation = with_first_skills(make_situation("softmax"), "online-softmax", "row-norm")
    offered = begin(ScriptedProvider()).propose(situation)
    assert [seed.skill for seed in offered] == ["online-softmax", "unaided"]
    assert [seed.reason for seed in offered] == ["full rewrite, by online-softmax", "full rewrite"]
    several = with_first_skills(make_situation("rms_norm"), "tile-matmul", "row-norm")
    assert [seed.skill for seed in begin(ScriptedProvider()).propose(several)] == [
        "tile-matmul",
        "row-norm",
        "unaided",
        "unaided",
    ]


@pytest.mark.parametrize(
    ("third", "chosen"),
    [("fuse-pointwise-chain", "fuse-pointwise-chain"), ("implicit-gemm-conv", "unaided")],
)
def test_a_seed_of_one_operator_rests_on_no_skill_about_another(third: str, chosen: str) -> None:
    situation = with_first_skills(make_situation("rms_norm"), "row-norm", "tile-matmul", third)
    seeds = begin(ScriptedProvider()).propose(situation)
    assert seeds[2].reason.startswith("hottest operator")
    assert seeds[2].skill == chosen


def test_a_seed_is_told_its_skill_with_its_code_and_a_free_one_is_told_none() -> None:
    situation = with_first_skills(make_situation("softmax"), "row-norm", "welford-one-pass")
    provider = ScriptedProvider(generator=[KERNEL, KERNEL])
    author = begin(provider)
    for seed in author.propose(situation):
        author.write(assign(situation, Move.SEED, seed.skill, instruction=seed.instruction))
    led, free = (request.messages[1].text for request in provider.asked("generator"))
    assert "## Skill: row-norm" in led
    assert "Track record: never tried yet" in led
    assert "## Skill" not in free


def test_a_model_alone_begins_from_the_kernel_that_a_recipe_writes() -> None:
    recipe = load_recipe(load_skill(ROOT / "skills" / "online-softmax"))
    situation = make_situation(
        "softmax", recipes={"online-softmax": recipe}, writable={"online-softmax": 1e6}
    )
    provider = ScriptedProvider(generator=[KERNEL, KERNEL])
    author = begin(provider)
    author.write(assign(situation, Move.SEED, "unaided"))
    told = provider.asked("generator")[0].messages[1].text
    assert "## A kernel to begin from\nkmem's own recipe (online-softmax) writes this" in told
    assert "def softmax_" in told
    assert "_fall_back" not in told, "what launches it is left out"
    by_recipe = Kernel(EDITED, choices=(SiteChoice("softmax", "softmax", "online-softmax", ()),))
    seeded = replace(situation, history=(attempted(by_recipe),))
    author.write(assign(seeded, Move.SEED, "unaided", instruction="again"))
    assert "A kernel to begin from" not in provider.asked("generator")[1].messages[1].text


def test_seeds_are_asked_for_at_rising_temperatures_where_the_user_set_one() -> None:
    situation = make_situation("rms_norm")
    asked = {}
    for temperature in (None, 0.2, 0.95, 1.4):
        provider = ScriptedProvider(generator=[KERNEL] * 4)
        author = begin(
            provider,
            models=(ModelChoice("any", "scripted", "scripted-1", temperature=temperature),),
        )
        for seed in author.propose(situation):
            author.write(assign(situation, Move.SEED, seed.skill, instruction=seed.instruction))
        asked[temperature] = [
            request.temperature and round(request.temperature, 3)
            for _, request in provider.requests
        ]
    assert asked == {
        None: [None] * 4,
        0.2: [0.2, 0.3, 0.4, 0.5],
        0.95: [0.95, 1.0, 1.0, 1.0],
        1.4: [1.4] * 4,
    }


def test_nothing_is_left_to_torch_where_all_time_must_be_tritons() -> None:
    situation = make_situation("linear_swish_scale")
    pure = replace(situation.traced, contract=Contract(purity=Purity.TRITON))
    situation = replace(situation, traced=pure)
    seeds = begin(ScriptedProvider()).propose(situation)
    assert [seed.reason for seed in seeds] == ["fuse", "full rewrite"]
    assert not any("torch" in seed.instruction for seed in seeds)


def test_a_module_that_could_not_be_traced_is_rewritten_as_a_whole() -> None:
    situation = make_situation()
    opaque = replace(
        situation.traced.graph,
        placeholders=(),
        nodes=(),
        outputs=(),
        opaque_reason="data-dependent control flow",
    )
    untraced = replace(situation.traced, graphs={"full": opaque}, bound=None)
    situation = replace(situation, traced=untraced)
    provider = ScriptedProvider(generator=[seed_answer(["anything"])])
    author = begin(provider)
    assert [seed.reason for seed in author.propose(situation)] == ["full rewrite"]
    assert len(author.write(assign(situation, Move.SEED, "unaided"))) == 1
    assert (
        "could not be traced: data-dependent control flow"
        in provider.asked("generator")[0].messages[1].text
    )


def test_what_a_model_declares_of_its_file_goes_with_the_kernel() -> None:
    fields = {
        "plan": "a product with a vector",
        "operators": ["softmax"],
        "algebraic": True,
        "knobs": {"BLOCK": [512]},
    }
    candidates = begin(ScriptedProvider(generator=[answer(fields, KERNEL)])).write(
        assign(make_situation(), Move.SEED, "unaided", samples=2)
    )
    assert [candidate.kernel.flags for candidate in candidates] == [("algebraic",), ("algebraic",)]


def test_an_edit_of_an_algebraic_kernel_stays_algebraic() -> None:
    situation = replace(later(), parent=replace(PARENT, flags=("algebraic", "specialised")))
    (edited,) = begin(ScriptedProvider(optimiser=[edit_answer()])).write(
        assign(situation, Move.FIX, "unaided")
    )
    assert edited.kernel.flags == ("algebraic",)


def test_best_of_n_asks_for_every_sample_anew() -> None:
    kernels = [KERNEL, EDITED, KERNEL.replace("* 2", "* 3")]
    provider = ScriptedProvider(
        generator=[seed_answer(["softmax"], code, BLOCK=[128, 512]) for code in kernels]
    )
    author = begin(provider, strategy=Strategy.BEST_OF_N)
    candidates = author.write(assign(make_situation(), Move.SEED, "unaided", samples=3))
    assert sorted(candidate.kernel.source for candidate in candidates) == sorted(kernels), (
        "which answer comes first is the provider's"
    )


def test_the_samples_of_best_of_n_are_asked_for_side_by_side_and_come_back_in_order() -> None:
    together = threading.Barrier(3, timeout=20)

    class Slow(ScriptedProvider):
        def complete(self, request: ModelRequest) -> Completion:
            together.wait()
            return super().complete(request)

    author = begin(
        Slow(generator=[seed_answer(["softmax"])] * 3),
        archive := DictArchive(),
        strategy=Strategy.BEST_OF_N,
    )
    assert len(author.write(assign(make_situation(), Move.SEED, "unaided", samples=3))) == 3
    assert len(archive.kept) == 3
    slots = [
        author.write(assign(make_situation(), Move.SEED, "unaided", samples=3))[place].kernel.source
        for place in range(3)
    ]
    assert slots == [KERNEL] * 3, "found in the archive, nobody is asked again"


def test_an_answer_that_stays_lost_is_no_attempt_and_asked_for_no_more() -> None:
    archive, said = DictArchive(), []
    provider = ScriptedProvider(
        generator=[AnswerLost("the line went dead")] * 3, diagnoser=[AnswerLost("gone")] * 3
    )
    author = begin(provider, archive, said=said)
    assert author.write(assign(make_situation(), Move.SEED, "unaided")) == []
    assert author.propose(later()) == [], "without a diagnosis there is no direction"
    assert said == [
        "the generator of round 0 gave no answer: the line went dead",
        "the diagnoser of round 1 gave no answer: gone",
    ]
    assert (
        begin(ScriptedProvider(), archive).write(assign(make_situation(), Move.SEED, "unaided"))
        == []
    )


# ---- answers that cannot be used


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("I cannot decide.", "there is no ```python block with the whole file"),
        (
            answer({"plan": "p", "operators": ["softmax"], "algebraic": False, "knobs": {}}),
            "there is no ```python block",
        ),
        (seed_answer(["gelu"]), "'gelu' is no node of the graph; the nodes are softmax"),
        (seed_answer(["softmax"], "class Model: pass\n"), "call the class Model so"),
        (f"```python\n{KERNEL[KERNEL.index('BLOCK') :]}```", "uses torch, triton, tl and imports"),
        (seed_answer(["softmax"], BLOCKS=[1, 2]), "knobs: BLOCKS is no module-level constant"),
        (StopReason.LENGTH, "cut off at its length limit"),
        (StopReason.REFUSAL, "you declined"),
        ("  \n", "your answer was empty"),
    ],
)
def test_one_bad_answer_is_asked_again_with_what_was_wrong(
    first: str | StopReason, said: str
) -> None:
    provider = ScriptedProvider(generator=[first, seed_answer(["softmax"])])
    said_aloud: list[str] = []
    (candidate,) = begin(provider, said=said_aloud).write(
        assign(make_situation(), Move.SEED, "unaided")
    )
    assert candidate.kernel.source == KERNEL
    again = provider.asked("generator")[1].messages
    assert [message.role for message in again] == ["system", "user", "assistant", "user"]
    assert said in again[3].text
    assert again[2].text, "servers refuse an empty turn"
    assert said_aloud == []


@pytest.mark.parametrize(
    "given",
    [
        f"```python\n{KERNEL}```\n",
        f"Here it is:\n\n```\n{KERNEL}```\nIt uses a block of 256.",
        KERNEL,
        f"```python\n{KERNEL}```\n```json\n{{'plan': ...\n```",
        f"{{}}\n```python\n{KERNEL}```",
        seed_answer(["softmax"]).replace('"algebraic": false', '"algebraic": "no"'),
        f"<think>\nmaybe\n</think>\n```python\n{KERNEL}",
    ],
)
def test_an_answer_with_one_python_file_is_taken_whatever_surrounds_it(given: str) -> None:
    provider = ScriptedProvider(generator=[given])
    (candidate,) = begin(provider).write(assign(make_situation(), Move.SEED, "unaided"))
    assert candidate.kernel == Kernel(KERNEL)


@pytest.mark.parametrize(
    "second",
    ["```python\nclass ModelNew:\n```", "sorry", StopReason.LENGTH, StopReason.REFUSAL, ""],
)
def test_two_bad_answers_are_no_attempt_for_there_is_no_code_to_try(
    second: str | StopReason,
) -> None:
    provider = ScriptedProvider(generator=["no idea", second])
    archive, said = DictArchive(), []
    author = begin(provider, archive, said=said)
    assert author.write(assign(make_situation(), Move.SEED, "unaided", samples=4)) == []
    assert len(provider.requests) == 2
    (line,) = said
    assert line.startswith("the generator of round 0 answered twice in a way that cannot be used: ")
    kept = [record.completion.text for record in archive.kept.values()]
    assert kept == ["no idea", second if isinstance(second, str) else "I stop here"]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("", "the first was empty; choose another model with -m"),
        (
            StopReason.LENGTH,
            (
                "the first was cut off at its length limit; raise --max-output-tokens, or lower "
                "--effort"
            ),
        ),
        (StopReason.REFUSAL, "the first was a refusal; choose another model with -m"),
        (
            "no idea",
            (
                "the first was not in the form asked for (there is no ```python block with the "
                "whole file); "
            ),
        ),
    ],
)
def test_a_model_that_gave_no_usable_answer_is_complained_of_with_a_remedy(
    bad: str | StopReason, said: str
) -> None:
    provider = ScriptedProvider(generator=[bad, bad, bad, bad, seed_answer(["softmax"])])
    author = begin(provider, archive := DictArchive())
    assert author.complaint == ""
    for number, questions in enumerate(("1 question", "2 questions")):
        asked = assign(replace(make_situation(), round=number), Move.SEED, "unaided")
        assert author.write(asked) == []
        assert author.complaint.startswith(
            f"scripted-1 gave no usable answer to {questions} as generator: {said}"
        )
    resumed = begin(ScriptedProvider(), archive)
    resumed.write(assign(make_situation(), Move.SEED, "unaided"))
    assert resumed.complaint, "what was answered before it was killed counts"
    author.write(assign(replace(make_situation(), round=2), Move.SEED, "unaided"))
    assert author.complaint == "", "one good answer shows that the model can do it"


def test_each_model_is_complained_of_for_its_own_roles() -> None:
    models = (ModelChoice("any", "scripted", "small"), ModelChoice("planner", "scripted", "large"))
    provider = ScriptedProvider(
        diagnoser=[diagnosis_answer(), "?", "?"],
        planner=["", ""],
        reflector=[AnswerLost("gone")] * 3,
    )
    author = begin(provider, models=models)
    author.propose(later())
    author.propose(replace(later(), round=2))
    author.reflect(later(), [attempted(PARENT)])
    assert author.complaint == (
        "large gave no usable answer to 1 question as planner: the first was empty; choose "
        "another model with -m; small gave no usable answer to 1 question as reflector: the "
        "first never arrived (gone); ask a server that holds on"
    )


def test_a_question_that_was_not_answered_in_time_leaves_what_needs_no_model() -> None:
    parent = Kernel(KERNEL, knob_space=(("BLOCK", (128, 256)),))
    situation = make_situation(parent=parent, history=(attempted(parent),), round=1)
    author = begin(
        ScriptedProvider(
            diagnoser=[OutOfTime("over")], generator=[OutOfTime("over"), seed_answer(["softmax"])]
        )
    )
    assert [direction.move for direction in author.propose(situation)] == [Move.TUNE]
    assert author.write(assign(make_situation(), Move.SEED, "unaided")) == []
    assert (author.spent, author.complaint) == ("", "")


def test_a_diagnosis_or_plan_that_stays_unusable_yields_no_direction() -> None:
    said: list[str] = []
    assert begin(ScriptedProvider(diagnoser=["?", "?"]), said=said).propose(later()) == []
    assert (
        begin(
            ScriptedProvider(diagnoser=[diagnosis_answer()], planner=["?", "?"]), said=said
        ).propose(later())
        == []
    )
    assert [line.split(" of round")[0] for line in said] == ["the diagnoser", "the planner"]


def test_half_a_character_in_json_is_written_as_a_question_mark() -> None:
    half = reflection_answer(BROKEN.hash[:8], text="TEXT").replace(
        "TEXT", "a \\ud83d b \\ud83d\\ude00"
    )
    _, failed = failing()
    (lesson,) = begin(ScriptedProvider(reflector=[half])).reflect(later(), [failed])
    assert lesson.text == "a ? b \U0001f600"


def test_half_a_character_in_an_answer_breaks_nothing() -> None:
    provider = ScriptedProvider(
        generator=["\ud83d no", seed_answer(["softmax"], KERNEL + "# \ud83d\n")]
    )
    (candidate,) = begin(provider).write(assign(make_situation(), Move.SEED, "unaided"))
    assert candidate.kernel.source == KERNEL + "# ?\n"
    assert provider.asked("generator")[1].messages[2].text == "? no"
    assert candidate.kernel.hash


def test_a_very_long_answer_is_not_sent_back() -> None:
    provider = ScriptedProvider(generator=["x" * 100_000, seed_answer(["softmax"])])
    begin(provider).write(assign(make_situation(), Move.SEED, "unaided"))
    assert (
        provider.asked("generator")[1].messages[2].text
        == "(an answer of 100000 characters, left out here)"
    )


def test_a_re_ask_keeps_to_its_roles_budget_whatever_the_answer_was() -> None:
    # all but fills the prompt
    situation = replace(later(), parent=Kernel(KERNEL + "# a remark\n" * 5_000))
    quotes = ["\u6f22" * 20_000, "error"]
    provider = ScriptedProvider(
        diagnoser=[diagnosis_answer(evidence=quotes), diagnosis_answer()],
        planner=[plan_answer("unaided")],
    )
    assert begin(provider).propose(situation)
    first, again = provider.asked("diagnoser")
    tokens = [
        sum(estimate_tokens(message.text) for message in request.messages)
        for request in (first, again)
    ]
    assert DIAGNOSER.prompt_tokens - 5_000 < tokens[0] <= DIAGNOSER.prompt_tokens - REASK_TOKENS
    assert tokens[0] < tokens[1] <= DIAGNOSER.prompt_tokens
    assert again.messages[2].text.endswith(" characters, left out here)")
    assert again.messages[3].text.startswith("Your answer cannot be used: evidence: '\u6f22")


# ---- what each role is held to


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"evidence": ["l2_hit_pct"]},
            (
                "'l2_hit_pct' was not measured; known are dram_throughput_pct, launches, "
                "speed_of_light, traffic_ratio"
            ),
        ),
        (
            {"claim": {"metric": "waves", "comparison": ">=", "number": 1}},
            "waves was not measured for the parent",
        ),
        (
            {"claim": {"metric": "traffic_ratio", "comparison": "<=", "number": 3}},
            "fulfils traffic_ratio <= 3 already",
        ),
        (
            {
                "claim": {
                    "metric": "speed_of_light",
                    "comparison": ">=",
                    "number": 0.9,
                    "relative": True,
                }
            },
            "fulfils speed_of_light >= 0.9x already",
        ),
    ],
)
def test_a_claim_that_the_next_profile_could_not_refute_is_asked_again(
    changes: dict[str, object], said: str
) -> None:
    provider = ScriptedProvider(
        diagnoser=[diagnosis_answer(**changes), diagnosis_answer()],
        planner=[plan_answer("unaided")],
    )
    assert len(begin(provider).propose(later())) == 1
    assert said in provider.asked("diagnoser")[1].messages[3].text


def test_without_a_profile_any_metric_may_be_claimed() -> None:
    claim = {"metric": "waves", "comparison": ">=", "number": 1}
    provider = ScriptedProvider(
        diagnoser=[diagnosis_answer(evidence=["l2_hit_pct"], claim=claim)],
        planner=[plan_answer("unaided")],
    )
    assert len(begin(provider).propose(replace(later(), diagnosis=None))) == 1


def test_the_planners_own_claim_stands_before_the_diagnosers() -> None:
    claim = {"metric": "speed_of_light", "comparison": ">=", "number": 1.5, "relative": True}
    provider = ScriptedProvider(
        diagnoser=[diagnosis_answer()], planner=[plan_answer("unaided", claim=claim)]
    )
    (direction,) = begin(provider).propose(later())
    assert [str(found) for found in direction.claims] == [
        "speed_of_light >= 1.5x",
        "traffic_ratio <= 0.7x",
    ]


def test_a_skill_that_is_not_offered_is_asked_again_and_then_dropped_with_its_reason() -> None:
    provider = ScriptedProvider(
        diagnoser=[diagnosis_answer()],
        planner=[plan_answer("flash-attention"), plan_answer("flash-attention", "online-softmax")],
    )
    said: list[str] = []
    directions = begin(provider, said=said).propose(later())
    assert [direction.skill for direction in directions] == ["online-softmax"]
    assert (
        "'flash-attention' is not offered; choose among online-softmax, unaided"
        in provider.asked("planner")[1].messages[3].text
    )
    assert len(said) == 1
    assert "'flash-attention' is not offered" in said[0]


def test_nothing_is_left_of_a_plan_that_holds_only_what_is_not_offered() -> None:
    provider = ScriptedProvider(
        diagnoser=[diagnosis_answer()], planner=[plan_answer("flash-attention")] * 2
    )
    assert begin(provider).propose(later()) == []


def test_a_plan_may_rest_on_what_is_offered_or_in_the_parent_less_what_is_vetoed() -> None:
    parent = Kernel(KERNEL, choices=(SiteChoice("softmax", "softmax", "row-norm", ()),))
    offered = ["online-softmax", "eviction-hints"]
    situation = make_situation(
        parent=parent,
        offered=[*offered, "row-norm"],
        history=(attempted(parent, skill="eviction-hints"),),
    )
    situation = replace(situation, prescriptions=situation.prescriptions[:1])
    assert allowed_skills(situation, LlmAuthor.name) == [
        "online-softmax",
        "row-norm",
        "eviction-hints",
        "unaided",
    ]
    vetoes = (
        Veto("online-softmax", "failed", author="llm"),
        Veto("row-norm", "only recipes", author="recipes"),
        Veto("eviction-hints", "elsewhere", author="llm", parent="another kernel"),
        Veto("unaided", "one idea", author="llm", instruction="apply magic"),
    )
    assert allowed_skills(replace(situation, vetoes=vetoes), LlmAuthor.name) == [
        "row-norm",
        "eviction-hints",
        "unaided",
    ]


def test_two_directions_that_are_the_same_are_asked_again() -> None:
    provider = ScriptedProvider(
        diagnoser=[diagnosis_answer()],
        planner=[plan_answer("unaided", "unaided"), plan_answer("unaided")],
    )
    assert len(begin(provider).propose(later())) == 1
    assert "two directions are the same" in provider.asked("planner")[1].messages[3].text


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (
            edit_answer(line="y = torch.zeros_like(x)"),
            "the line 'y = torch.zeros_like(x)' for 'allocate' does not occur in your file",
        ),
        (edit_answer(line=")"), "the line ')' for 'allocate' does not occur in your file"),
        (edit_answer(KERNEL + "# a remark\n"), "the file is the parent's, unchanged"),
    ],
)
def test_an_edit_must_change_the_parent_and_quote_its_own_lines(first: str, said: str) -> None:
    provider = ScriptedProvider(optimiser=[first, edit_answer()])
    (candidate,) = begin(provider).write(assign(later(), Move.FIX, "online-softmax"))
    assert candidate.kernel.source == EDITED
    assert said in provider.asked("optimiser")[1].messages[3].text


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (
            repair_answer("TypeError: no such thing", EDITED),
            "'TypeError: no such thing' does not occur in the log",
        ),
        (
            repair_answer("AttributeError", EDITED, issue="numeric"),
            "the status is build_failed, so the issue to cure first is 'build'",
        ),
        (
            repair_answer("AttributeError", EDITED, anchor="x = 1"),
            "anchor: the line 'x = 1' does not occur in the failed file",
        ),
        (repair_answer("AttributeError", BROKEN.source), "the file is the parent's, unchanged"),
    ],
)
def test_a_repair_must_quote_the_log_and_the_file_and_cure_the_first_issue(
    first: str, said: str
) -> None:
    situation, _ = failing()
    provider = ScriptedProvider(
        repairer=[first, repair_answer("AttributeError:  module\nhas no attribute", EDITED)]
    )
    (candidate,) = begin(provider).write(assign(situation, Move.REPAIR, "online-softmax"))
    assert candidate.kernel.source == EDITED
    assert said in provider.asked("repairer")[1].messages[3].text


def test_a_file_whose_claims_stay_false_is_tried_without_them() -> None:
    false = edit_answer(line="y = torch.zeros_like(x)", BLOCK=[128, 256])
    provider, said = ScriptedProvider(optimiser=[false, "I give up"]), []
    (candidate,) = begin(provider, said=said).write(assign(later(), Move.FIX, "online-softmax"))
    assert (candidate.kernel.source, candidate.kernel.knob_space) == (EDITED, ())
    assert said[0].startswith("of two faulty answers of the optimiser of round 1 only what has no")


def test_a_megabyte_of_log_is_shown_by_its_ends_and_may_be_quoted_from_anywhere() -> None:
    situation, failed = failing()
    log = "error: first\n" + "noise " * 170_000 + "the middle " + "noise " * 10 + "\nerror: last"
    failed = replace(failed, measurement=replace(failed.measurement, log=log))
    situation = replace(situation, history=(failed,))
    provider = ScriptedProvider(repairer=[repair_answer("the middle", EDITED)])
    assert len(begin(provider).write(assign(situation, Move.REPAIR, "unaided"))) == 1
    shown = provider.requests[0][1].messages[1].text
    assert "error: first" in shown
    assert "error: last" in shown
    assert len(shown) < 20_000


def test_a_file_that_does_not_parse_may_be_repaired() -> None:
    broken = Kernel(KERNEL.replace("def forward(self, x):", "def forward(self, x)"), PARENT.hash)
    situation, _ = failing(broken)
    provider = ScriptedProvider(repairer=[repair_answer("AttributeError", EDITED)])
    assert len(begin(provider).write(assign(situation, Move.REPAIR, "unaided"))) == 1


def test_a_failure_of_another_run_is_not_repaired() -> None:
    situation, _ = failing()
    assert (
        begin(ScriptedProvider()).write(
            assign(replace(situation, history=()), Move.REPAIR, "unaided")
        )
        == []
    )


def test_a_question_longer_than_its_budget_is_not_asked_and_said() -> None:
    said: list[str] = []
    parent = Kernel(KERNEL + "# " + "x" * 100_000 + "\n")
    assert begin(ScriptedProvider(), said=said).propose(replace(later(), parent=parent)) == []
    assert len(said) == 1
    assert said[0].startswith("the prompt of the diagnoser needs about 3")
    assert said[0].endswith("holds at most 22900; this question is not asked")


def test_a_verdict_without_a_log_is_quoted_by_its_status() -> None:
    situation, failed = failing()
    silent = replace(failed, measurement=replace(failed.measurement, log=""))
    provider = ScriptedProvider(repairer=[repair_answer("build_failed", EDITED)])
    assert (
        len(
            begin(provider).write(
                assign(replace(situation, history=(silent,)), Move.REPAIR, "unaided")
            )
        )
        == 1
    )


# ---- knobs


def test_one_answer_gives_as_many_candidates_as_wanted_the_models_own_first() -> None:
    provider = ScriptedProvider(optimiser=[edit_answer(BLOCK=[128, 512], WARPS=[8])])
    candidates = begin(provider).write(assign(later(), Move.FIX, "online-softmax", samples=4))
    assert len(provider.requests) == 1
    assert candidates[0].kernel.source == EDITED
    assert len({candidate.kernel.hash for candidate in candidates}) == 4
    assert {candidate.kernel.knob_space for candidate in candidates} == {
        (("BLOCK", (128, 256, 512)), ("WARPS", (4, 8)))
    }
    assert {candidate.kernel.parent for candidate in candidates} == {PARENT.hash}


def test_a_repair_and_an_answer_without_knobs_give_one_candidate() -> None:
    provider = ScriptedProvider(optimiser=[edit_answer()])
    assert len(begin(provider).write(assign(later(), Move.FIX, "online-softmax", samples=9))) == 1


def test_settings_of_the_parents_knobs_are_offered_and_written_without_asking() -> None:
    parent = Kernel(KERNEL, knob_space=(("BLOCK", (128, 256, 512)), ("WARPS", (4, 8))))
    tried = Kernel(
        KERNEL.replace("BLOCK = 256", "BLOCK = 512"), parent.hash, knob_space=parent.knob_space
    )
    situation = make_situation(
        parent=parent, history=(attempted(parent), attempted(tried)), round=1
    )
    provider = ScriptedProvider(diagnoser=[diagnosis_answer()], planner=[plan_answer("unaided")])
    author = begin(provider)
    direction = author.propose(situation)[-1]
    assert (direction.move, direction.skill, direction.claims) == (Move.TUNE, "knobs", ())
    candidates = author.write(assign(situation, Move.TUNE, "knobs", samples=20))
    assert len(candidates) == 4, "six settings, of which two are known"
    assert tried.hash not in {candidate.kernel.hash for candidate in candidates}
    assert {candidate.kernel.parent for candidate in candidates} == {parent.hash}
    assert len(provider.requests) == 2

    everything = (*situation.history, *(attempted(candidate.kernel) for candidate in candidates))
    assert (
        author.write(assign(replace(situation, history=everything), Move.TUNE, "knobs", samples=20))
        == []
    )


def test_settings_that_fail_are_not_repaired_and_one_text_is_repaired_once() -> None:
    space = (("BLOCK", (128, 256, 512)),)
    base = Kernel(KERNEL, "p", knob_space=space)
    variant = Kernel(KERNEL.replace("BLOCK = 256", "BLOCK = 512"), "p", knob_space=space)
    author = begin(ScriptedProvider(repairer=[repair_answer("CompilationError", EDITED)]))
    passed = attempted(base, move=Move.FIX)
    failed = attempted(base, Status.BUILD_FAILED, log="CompilationError", move=Move.FIX)
    also = attempted(variant, Status.CRASHED, log="out of shared memory", move=Move.FIX)
    tuned = attempted(variant, Status.CRASHED, log="out of shared memory", move=Move.TUNE)

    def repair(kernel: Kernel, *history: Attempt) -> list[Candidate]:
        return author.write(
            assign(make_situation(parent=kernel, history=history), Move.REPAIR, "unaided")
        )

    assert repair(variant, tuned) == []
    assert repair(variant, passed, also) == []
    assert repair(variant, failed, also) == []
    assert len(repair(base, failed, also)) == 1


def test_a_recalled_kernel_is_not_a_models_to_write() -> None:
    assert begin(ScriptedProvider()).write(assign(make_situation(), Move.RECALL, "row-norm")) == []


# ---- reflection


def test_lessons_are_about_attempts_of_the_round() -> None:
    situation, failed = failing()
    won = attempted(
        Kernel(EDITED, PARENT.hash),
        ms=0.8,
        move=Move.FIX,
        skill="online-softmax",
        instruction="read once",
        round=1,
    )
    short = won.candidate.kernel.hash[:8]
    provider = ScriptedProvider(
        reflector=[reflection_answer("12345678"), reflection_answer(short, worth=True)]
    )
    (lesson,) = begin(provider).reflect(replace(situation, parent=PARENT), [failed, won])
    assert (lesson.round, lesson.kernel, lesson.skill) == (
        1,
        won.candidate.kernel.hash,
        "online-softmax",
    )
    assert (lesson.text, lesson.worth_a_skill) == ("reading once does not help here", True)
    assert "'12345678' is no attempt of this round" in provider.requests[1][1].messages[3].text


def test_a_lesson_that_the_measurement_contradicts_is_asked_again_and_then_dropped() -> None:
    situation, failed = failing()
    won = attempted(Kernel(EDITED, PARENT.hash), ms=0.8, move=Move.FIX, skill="row-norm", round=1)
    lessons = [
        {"kernel": failed.candidate.kernel.hash[:8], "text": "it failed", "effect": "failed"},
        {"kernel": won.candidate.kernel.hash[:8], "text": "it is slower", "effect": "slower"},
    ]
    said = answer({"lessons": [lesson | {"worth_a_skill": False} for lesson in lessons]})
    provider = ScriptedProvider(reflector=[said, said])
    (kept,) = begin(provider).reflect(replace(situation, parent=PARENT), [failed, won])
    assert (kept.text, kept.effect) == ("it failed", Effect.FAILED)
    assert "is said to be slower, but what was measured is faster" in (
        provider.requests[1][1].messages[3].text
    )


@pytest.mark.parametrize(
    ("effect", "later_ms", "stands"),
    [
        (Effect.SLOWER, 1.5, False),
        (Effect.FAILED, 1.5, False),
        (Effect.SLOWER, 3.0, True),
        (Effect.FASTER, 3.0, False),
        (Effect.FASTER, 1.5, True),
        (None, 1.5, True),
    ],
)
def test_a_lesson_that_a_later_round_contradicts_is_told_to_nobody(
    effect: Effect | None, later_ms: float, stands: bool
) -> None:
    lesson = Lesson(1, PARENT.hash, "row-norm", "so it is", effect=effect)
    later = attempted(Kernel(EDITED, PARENT.hash), ms=later_ms, skill="row-norm", round=2)
    assert standing_lessons([lesson], [later]) == ([lesson] if stands else [])
    other = attempted(Kernel(EDITED, PARENT.hash), ms=later_ms, skill="unaided", round=2)
    assert standing_lessons([lesson], [other]) == [lesson]


def test_an_attempt_has_one_lesson() -> None:
    short = PARENT.hash[:8]
    provider = ScriptedProvider(
        reflector=[reflection_answer(short, short), reflection_answer(short)]
    )
    assert len(begin(provider).reflect(later(), [attempted(PARENT)])) == 1
    assert "at most one for each attempt" in provider.requests[1][1].messages[3].text


def test_nothing_is_asked_about_settings_of_knobs() -> None:
    tuned = attempted(PARENT, move=Move.TUNE)
    interrupted = attempted(PARENT, Status.INTERRUPTED)
    assert begin(ScriptedProvider()).reflect(later(), [tuned, interrupted]) == []


def test_of_many_settings_of_one_answer_the_reflector_sees_the_fastest() -> None:
    slow, fast = Kernel(KERNEL, "p"), Kernel(EDITED, "p")
    attempts = [attempted(slow, ms=2.0, move=Move.FIX), attempted(fast, ms=1.0, move=Move.FIX)]
    provider = ScriptedProvider(reflector=[reflection_answer()])
    assert begin(provider).reflect(later(), attempts) == []
    shown = provider.requests[0][1].messages[1].text
    assert f"### {fast.hash[:8]}" in shown
    assert f"### {slow.hash[:8]}" not in shown


def test_a_reflection_that_stays_unusable_teaches_nothing() -> None:
    assert begin(ScriptedProvider(reflector=["?", "?"])).reflect(later(), [attempted(PARENT)]) == []


# ---- models, budget, resuming


def test_roles_may_have_models_of_their_own() -> None:
    models = (
        ModelChoice("any", "scripted", "small", temperature=0.2),
        ModelChoice(
            "planner", "scripted", "large", "http://here", effort="high", max_output_tokens=999
        ),
    )
    provider = ScriptedProvider(diagnoser=[diagnosis_answer()], planner=[plan_answer("unaided")])
    begin(provider, models=models).propose(later())
    (diagnoser,), (planner,) = provider.asked("diagnoser"), provider.asked("planner")
    assert (
        diagnoser.model,
        diagnoser.temperature,
        diagnoser.effort,
        diagnoser.max_output_tokens,
    ) == ("small", 0.2, None, 8000)
    assert (planner.model, planner.base_url, planner.effort, planner.max_output_tokens) == (
        "large",
        "http://here",
        "high",
        999,
    )


@pytest.mark.parametrize(
    ("models", "error", "said"),
    [
        ((), ProviderError, "No language model for the role generator; name one with -m MODEL"),
        (
            (ModelChoice("planner", "scripted", "m"),),
            ProviderError,
            "No language model for the role generator",
        ),
        (
            (ModelChoice("any", "scripted", "m"), ModelChoice("any", "scripted", "n")),
            ProviderError,
            "Two models for the role any: m and n",
        ),
        (
            (ModelChoice("any", "scripted", "m"), ModelChoice("poet", "scripted", "n")),
            ProviderError,
            "There is no role 'poet' for n",
        ),
        (
            (ModelChoice("any", "elsewhere", "m"),),
            NotRegistered,
            "There is no provider 'elsewhere' for m; registered: scripted",
        ),
    ],
)
def test_a_run_that_cannot_be_asked_for_says_so_before_its_first_question(
    models: tuple[ModelChoice, ...], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        begin(ScriptedProvider(), models=models)


def test_a_budget_in_dollars_needs_a_price() -> None:
    with pytest.raises(PriceError, match="The price of scripted-1 is not known"):
        begin(ScriptedProvider(), budget=Budget(usd=1.0))


def test_a_spent_budget_is_said_once_and_leaves_what_needs_no_model() -> None:
    parent = Kernel(KERNEL, knob_space=(("BLOCK", (128, 256)),))
    situation = make_situation(parent=parent, history=(attempted(parent),), round=1)
    provider, said = ScriptedProvider(), []
    author = begin(provider, budget=Budget(tokens=50), said=said)
    assert [direction.move for direction in author.propose(situation)] == [Move.TUNE]
    assert author.write(assign(make_situation(), Move.SEED, "unaided")) == []
    assert author.propose(make_situation()) == []
    assert author.reflect(situation, [attempted(parent)]) == []
    assert provider.requests == []
    assert len(said) == 1
    assert said[0].startswith(
        "no more questions to language models: The budget for language models is spent"
    )
    assert author.spent in said[0]


def test_a_resumed_run_asks_nothing_that_was_answered() -> None:
    archive = DictArchive()
    provider = ScriptedProvider(
        generator=["?", seed_answer(["softmax"])],
        diagnoser=[diagnosis_answer()],
        planner=[plan_answer("unaided")],
        optimiser=[edit_answer(BLOCK=[512])],
        repairer=[repair_answer("no attribute 'lood'", EDITED)],
        reflector=[reflection_answer(BROKEN.hash[:8])],
    )

    def everything(author: LlmAuthor) -> list[object]:
        after, failed = failing()
        return [
            author.propose(make_situation()),
            author.write(assign(make_situation(), Move.SEED, "unaided")),
            author.propose(later()),
            author.write(assign(later(), Move.FIX, "unaided", samples=2)),
            author.write(assign(after, Move.REPAIR, "unaided")),
            author.reflect(later(), [failed]),
        ]

    before = everything(begin(provider, archive))
    assert len(archive.kept) == 7
    assert everything(begin(ScriptedProvider(), archive)) == before
    spent = begin(ScriptedProvider(), archive, budget=Budget(tokens=7 * 110), said=(said := []))
    assert everything(spent) == before, "what was answered is found however little is left"
    assert spent.write(assign(replace(later(), round=2), Move.FIX, "unaided")) == []
    assert "0 tokens left" in said[-1]


def test_an_answer_is_kept_before_it_is_used_so_that_a_killed_run_has_it() -> None:
    archive = DictArchive()
    provider = ScriptedProvider(generator=["?", ProviderError("the server is gone")])
    with pytest.raises(ProviderError, match="the server is gone"):
        begin(provider, archive).write(assign(make_situation(), Move.SEED, "unaided"))
    assert [(key.role, key.round, key.turn) for key in archive.kept] == [("generator", 0, 0)]
    again = ScriptedProvider(generator=[seed_answer(["softmax"])])
    assert len(begin(again, archive).write(assign(make_situation(), Move.SEED, "unaided"))) == 1
    assert len(again.requests) == 1


def test_questions_of_different_tasks_parents_and_rounds_are_different() -> None:
    archive = DictArchive()  # which refuses to keep two answers to one question
    provider = ScriptedProvider(optimiser=[edit_answer()] * 4)
    author = begin(provider, archive)
    other = replace(later(), parent=Kernel(KERNEL + "# another\n"))
    for situation, skill, instruction in (
        (later(), "unaided", "a"),
        (later(), "unaided", "b"),
        (later(), "online-softmax", "a"),
        (other, "unaided", "a"),
    ):
        assert author.write(assign(situation, Move.FIX, skill, instruction=instruction))
    assert len(archive.kept) == 4


def test_several_tasks_may_be_written_at_once() -> None:
    together = threading.Barrier(4, timeout=20)

    class Slow(ScriptedProvider):
        def complete(self, request: ModelRequest) -> Completion:
            together.wait()
            return super().complete(request)

    provider = Slow(optimiser=[edit_answer()] * 4)
    author = begin(provider, archive := DictArchive())
    tasks = [
        assign(later(), Move.FIX, "unaided", instruction=f"idea {number}") for number in range(4)
    ]
    with ThreadPoolExecutor(4) as pool:
        written = list(pool.map(author.write, tasks))
    assert [[candidate.task for candidate in candidates] for candidates in written] == [
        [task.task] for task in tasks
    ]
    assert len(archive.kept) == 4


def test_an_error_of_the_provider_reaches_the_run() -> None:
    with pytest.raises(ProviderError, match="no key"):
        begin(ScriptedProvider(diagnoser=[ProviderError("no key")])).propose(later())


def test_the_budgets_own_error_never_leaves_the_author() -> None:
    author = begin(ScriptedProvider(generator=[BudgetExhausted("spent")]))
    assert author.write(assign(make_situation(), Move.SEED, "unaided")) == []
