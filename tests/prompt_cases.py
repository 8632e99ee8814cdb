"""Prompts of every role for ten problems of the repository, as the snapshots have them.

The snapshot tests and tools/write_prompt_snapshots.py render them. The skills are the library's
own: editing one of them changes the snapshots that show it. The run is made up and the same for
all: a first kernel that passed, an edit that did not build, a lesson, a veto, what memory holds.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

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
    Background,
    Baseline,
    Bottleneck,
    Claim,
    ClaimCheck,
    Contract,
    Fault,
    Kernel,
    Launch,
    Lesson,
    Move,
    Prescription,
    Profile,
    Status,
    Timing,
    Veto,
)
from kmem.skills import PITFALLS, Skill, load_skill

SNAPSHOTS = ROOT / "tests" / "snapshots"
#: Problems, each with a skill that is about it.
PROBLEMS = {
    "attention": "flash-attention",
    "conv2d_relu_bias": "implicit-gemm-conv",
    "cross_entropy": "fused-cross-entropy",
    "cumsum": "blocked-row-scan",
    "layer_norm": "row-norm",
    "linear_swish_scale": "gemm-epilogue-fusion",
    "matmul_odd": "tile-matmul",
    "max_pool2d": "separable-pooling",
    "separable_conv2d": "fuse-depthwise-pointwise",
    "softmax": "online-softmax",
}
CLAIM = Claim("traffic_ratio", "<=", 0.7, relative=True)
PARENT = Kernel(KERNEL, knob_space=(("BLOCK", (128, 256, 512)),))
FAILED = Kernel(EDITED.replace("tl.load", "tl.lood"), PARENT.hash)
FINDING = DiagnoserAnswer(
    bottleneck=Bottleneck.REDUNDANT_TRAFFIC,
    cause="every row is read once for its sum and once for the result",
    evidence=("traffic_ratio",),
    claim=CLAIM,
)
#: A second skill for every problem: one with an example.
BESIDE = "more-loads-in-flight"
BACKGROUND = Background(
    baselines=(
        Baseline("eager", Timing(2.0, 1.99, 2.02, 50), estimated=False),
        Baseline("compile", Timing(1.6, 1.59, 1.61, 50), estimated=False),
        Baseline("max_autotune", None, estimated=False, log="failed"),
    ),
    profile=Profile(
        PARENT.hash,
        "cupti",
        "NVIDIA H200",
        False,
        (
            Launch("scale_kernel", 1.1, (4096, 1, 1), (128, 1, 1), {}),
            Launch("void at::native::fill_kernel", 0.05, (64, 1, 1), (256, 1, 1), {}),
            Launch("void at::native::fill_kernel", 0.05, (64, 1, 1), (256, 1, 1), {}),
        ),
    ),
    versions={"torch": "2.13.0", "triton": "3.9.0"},
    faults=(
        Fault(Status.BUILD_FAILED, "ValueError: arange's range must be a power of N", 7),
        Fault(Status.CRASHED, "OutOfResources: out of resource: shared memory", 3),
    ),
)


@cache
def real_skill(name: str) -> Skill:
    return load_skill(ROOT / "skills" / name)


def make_run(problem: str, **changes: object) -> Situation:
    """The situation in round 2 of the made-up run."""
    failed = attempted(
        FAILED,
        Status.BUILD_FAILED,
        log="Traceback (most recent call last):\nAttributeError: no attribute 'lood'",
        move=Move.FIX,
        skill=PROBLEMS.get(problem, "online-softmax"),
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
    offered = PROBLEMS.get(problem, "online-softmax")
    situation = replace(
        situation,
        skills={name: real_skill(name) for name in (offered, BESIDE, PITFALLS)},
        prescriptions=(
            Prescription(offered, 0.5, ("traffic_ratio 2.1 fits",)),
            Prescription(BESIDE, 0.3, ("latency fits",)),
        ),
        track_records={offered: "won 3 of 5 on sm_90"},
        background=BACKGROUND,
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
        assign(situation, Move.SEED, fix.task.skill, instruction="Write the whole forward."),
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
