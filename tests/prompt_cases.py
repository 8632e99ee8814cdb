"""Prompts of every role for ten problems of the repository, as the snapshots have them.

The snapshot tests and tools/write_prompt_snapshots.py render them. The run they are about is made
up and the same for all: a first kernel that passed, an edit that did not build, a lesson, a veto,
one skill. The skill is made up too, so that editing the skill library changes no snapshot.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from scripted_models import EDITED, KERNEL, ROOT, assign, attempted, make_situation

from kmem.explore.models.answers.schema import DiagnoserAnswer
from kmem.explore.models.author import LlmAuthor
from kmem.explore.models.prompts import briefs
from kmem.explore.models.prompts.message import Section, fit_prompt
from kmem.explore.models.prompts.system import system_prompt
from kmem.explore.models.roles import (
    DIAGNOSER,
    GENERATOR,
    OPTIMISER,
    PLANNER,
    REFLECTOR,
    REPAIRER,
    ROLES,
    Role,
)
from kmem.explore.models.selection import allowed_skills
from kmem.interfaces import Situation
from kmem.records import (
    Bottleneck,
    Claim,
    ClaimCheck,
    Contract,
    Kernel,
    Lesson,
    Move,
    Prescription,
    Status,
    Veto,
)
from kmem.skills import Skill

SNAPSHOTS = ROOT / "tests" / "snapshots"
PROBLEMS = (
    "attention",
    "conv2d_relu_bias",
    "cross_entropy",
    "cumsum",
    "layer_norm",
    "linear_swish_scale",
    "matmul_odd",
    "max_pool2d",
    "separable_conv2d",
    "softmax",
)
CLAIM = Claim("traffic_ratio", "<=", 0.7, relative=True)
PARENT = Kernel(KERNEL, knob_space=(("BLOCK", (128, 256, 512)),))
FAILED = Kernel(EDITED.replace("tl.load", "tl.lood"), PARENT.hash)
FINDING = DiagnoserAnswer(
    bottleneck=Bottleneck.REDUNDANT_TRAFFIC,
    cause="every row is read once for its sum and once for the result",
    evidence=("traffic_ratio",),
    claim=CLAIM,
)
SKILL = Skill(
    name="read-once",
    description=(
        "Keep a row in registers between its statistics and its result. Use when a row is read "
        "twice."
    ),
    body=(
        "# Read once\n\n## Mechanism\nWhat is in a register need not be loaded again.\n\n"
        "## In Triton\nOne program per row.\n"
    ),
    path=Path("read-once"),
    license="MIT",
    operators=("any",),
    bottlenecks=(),
    signature=(),
    arch=(),
    precision="exact",
    conflicts=(),
    source="",
    has_recipe=False,
)


def make_run(problem: str, **changes: object) -> Situation:
    """The situation in round 2 of the made-up run."""
    failed = attempted(
        FAILED,
        Status.BUILD_FAILED,
        log="Traceback (most recent call last):\nAttributeError: no attribute 'lood'",
        move=Move.FIX,
        skill="read-once",
        instruction="keep the row in registers",
        round=1,
    )
    situation = make_situation(
        problem,
        parent=PARENT,
        round=2,
        history=(attempted(PARENT, ms=1.25), failed),
        lessons=(
            Lesson(
                1,
                PARENT.hash,
                "unaided",
                "wider blocks do not help",
                (ClaimCheck(CLAIM, 2.1, 2.0, held=False),),
            ),
        ),
        vetoes=(Veto("no-giant-tiles", "3 candidates, none passed: wrong_values", author="llm"),),
    )
    situation = replace(
        situation,
        skills={"read-once": SKILL},
        prescriptions=(Prescription("read-once", 0.5, ("traffic_ratio 2.1 fits",)),),
        track_records={"read-once": "won 3 of 5 on sm_90"},
    )
    return replace(situation, **changes)


def all_briefs(situation: Situation) -> list[tuple[Role, Sequence[Section]]]:
    """The sections of every role in a situation.

    The repairer is asked about its last attempt, the reflector about its history.
    """
    fix = assign(
        situation,
        Move.FIX,
        situation.prescriptions[0].skill if situation.prescriptions else "unaided",
        instruction="read once",
    )
    fix = replace(fix, task=replace(fix.task, claims=(CLAIM,)))
    last = situation.history[-1]
    repair = assign(situation, Move.REPAIR, fix.task.skill, parent=last.candidate.kernel.hash)
    first = replace(
        assign(situation, Move.SEED, "unaided", instruction="Write the whole forward in Triton."),
        parent=None,
    )
    return [
        (GENERATOR, briefs.generator_brief(first)),
        (DIAGNOSER, briefs.diagnoser_brief(situation)),
        (
            PLANNER,
            briefs.planner_brief(situation, FINDING, allowed_skills(situation, LlmAuthor.name)),
        ),
        (OPTIMISER, briefs.optimiser_brief(fix)),
        (REPAIRER, briefs.repairer_brief(repair, last)),
        (REFLECTOR, briefs.reflector_brief(situation, situation.history)),
    ]


def render_user_messages(situation: Situation) -> dict[str, str]:
    """The fitted user message of every role."""
    return {
        role.name: fit_prompt(role, system_prompt(role, situation.traced.contract), sections)
        for role, sections in all_briefs(situation)
    }


def snapshots() -> dict[str, str]:
    """Text by file name: the user messages of each problem, and the system messages."""
    texts = {
        f"{problem}.md": _chapters(render_user_messages(make_run(problem))) for problem in PROBLEMS
    }
    return texts | {
        "system.md": _chapters({role.name: system_prompt(role, Contract()) for role in ROLES})
    }


def _chapters(texts: dict[str, str]) -> str:
    return "\n\n".join(f"# {name}\n\n{text}" for name, text in texts.items()) + "\n"
