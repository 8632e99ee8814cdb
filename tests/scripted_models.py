"""Language models that follow a script, and the situations they are asked about.

Plain Python, no network. `answer(fields, code)` writes an answer in the form the prompts ask for;
`ScriptedProvider` gives answers by role, in order; `DictArchive` keeps conversations in a
dictionary. `make_situation` is about a problem of the repository, traced at its full sizes.
"""

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

from kmem.devices import named_target
from kmem.explore.models.author import LlmAuthor, LlmRunAuthor
from kmem.explore.models.roles import ROLES
from kmem.interfaces import (
    Assignment,
    Completion,
    ModelRequest,
    Provider,
    RunContext,
    Situation,
    StopReason,
)
from kmem.problem.costs.bound import graph_bound
from kmem.problem.graph import OpGraph
from kmem.problem.source.load import FULL, load_problem
from kmem.problem.traced import TracedProblem
from kmem.records import (
    Attempt,
    Bottleneck,
    Budget,
    Candidate,
    Contract,
    Diagnosis,
    Evidence,
    Kernel,
    Measurement,
    ModelChoice,
    Move,
    Prescription,
    Problem,
    Run,
    Signature,
    Status,
    Strategy,
    Task,
    Timing,
)
from kmem.skills import load_skill
from kmem.testing import DictArchive, trace_once

ROOT = Path(__file__).parent.parent
H200 = named_target("h200")
#: A kernel file as a model might write it; it is read here and never run.
KERNEL = """import torch
import triton
import triton.language as tl

BLOCK = 256
WARPS = 4


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + columns, tl.load(x_ptr + columns, mask=columns < n) * 2, mask=columns < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        scale_kernel[(triton.cdiv(x.numel(), BLOCK),)]\
(x, y, x.numel(), BLOCK=BLOCK, num_warps=WARPS)
        return y
"""
EDITED = KERNEL.replace("* 2, mask", "* 2.0, mask")
CLAIM = {"metric": "traffic_ratio", "comparison": "<=", "number": 0.7, "relative": True}


def answer(given: Mapping[str, object], code: str | None = None) -> str:
    """A JSON block, and a Python block if there is code."""
    text = f"```json\n{json.dumps(given)}\n```\n"
    return text if code is None else f"{text}```python\n{code}```\n"


def seed_answer(operators: Iterable[str], code: str = KERNEL, **knobs: list[int | str]) -> str:
    return answer(
        {"plan": "one pass", "operators": list(operators), "algebraic": False, "knobs": knobs}, code
    )


def diagnosis_answer(**changes: object) -> str:
    return answer(
        {
            "bottleneck": "redundant_traffic",
            "cause": "the row is read twice",
            "evidence": ["traffic_ratio"],
            "claim": CLAIM,
        }
        | changes
    )


def plan_answer(*skills: str, claim: Mapping[str, object] = CLAIM) -> str:
    return answer(
        {
            "directions": [
                {
                    "skill": skill,
                    "change": f"apply {skill}",
                    "reason": "fewer bytes",
                    "claim": claim,
                }
                for skill in skills
            ]
        }
    )


def edit_answer(
    code: str = EDITED, line: str = "y = torch.empty_like(x)", **knobs: list[int | str]
) -> str:
    return answer(
        {
            "summary": "one read",
            "checklist": [{"item": "allocate", "line": line}],
            "algebraic": False,
            "knobs": knobs,
        },
        code,
    )


def repair_answer(
    evidence: str, code: str = KERNEL, issue: str = "build", anchor: str = "y = torch.empty_like(x)"
) -> str:
    return answer(
        {
            "issue": issue,
            "evidence": [evidence],
            "cause": "a typing error",
            "trigger": "always",
            "invariants": ["one read"],
            "fix": "mend it",
            "anchor": anchor,
            "algebraic": False,
            "knobs": {},
        },
        code,
    )


def reflection_answer(
    *kernels: str, text: str = "reading once does not help here", worth: bool = False
) -> str:
    return answer(
        {
            "lessons": [
                {"kernel": kernel, "text": text, "worth_a_skill": worth} for kernel in kernels
            ]
        }
    )


class ScriptedProvider(Provider):
    """Answers each role's questions in order.

    A StopReason in a script is an answer that stopped so, an exception is raised.
    """

    name = "scripted"

    def __init__(self, **scripts: list[str | StopReason | Exception]) -> None:
        self.scripts = scripts
        self.requests: list[tuple[str, ModelRequest]] = []
        self._lock = threading.Lock()

    def complete(self, request: ModelRequest) -> Completion:
        first = request.messages[0].text.splitlines()[0]
        role = next(role.name for role in ROLES if first == _first_line(role.name))
        with self._lock:
            self.requests.append((role, request))
            reply = self.scripts[role].pop(0)
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, StopReason):
            return Completion("I stop here", request.model, 100, 10, reply)
        return Completion(reply, request.model, 100, 10)

    def models(self, base_url: str | None = None) -> list[str]:
        return ["scripted-1"]

    def asked(self, role: str) -> list[ModelRequest]:
        return [request for name, request in self.requests if name == role]


@cache
def _first_line(role: str) -> str:
    return (
        (ROOT / "kmem" / "explore" / "models" / "prompts" / f"{role}.md")
        .read_text(encoding="utf-8")
        .splitlines()[0]
    )


def begin(
    provider: Provider,
    archive: DictArchive | None = None,
    *,
    budget: Budget | None = None,
    strategy: Strategy = Strategy.BANDIT,
    models: tuple[ModelChoice, ...] = (ModelChoice("any", "scripted", "scripted-1"),),
    said: list[str] | None = None,
) -> LlmRunAuthor:
    """The author of a run with one provider; what it announces is appended to `said`."""
    run = Run(
        "r1",
        Problem("p", "p.py", ""),
        "h200",
        Contract(),
        budget or Budget(),
        "off",
        0,
        "out",
        "2026-11-21T00:00:00",
        ("llm",),
        strategy,
        models,
    )
    announce = (said if said is not None else []).append
    return LlmAuthor().begin(
        RunContext(
            run,
            {provider.name: provider},
            archive if archive is not None else DictArchive(),
            announce,
        )
    )


@cache
def problem_and_graph(name: str) -> tuple[Problem, OpGraph]:
    """A problem of the repository, traced at its full sizes (nothing is computed)."""
    problem = load_problem(ROOT / "problems" / name)
    return replace(problem, path=f"problems/{name}/problem.py"), trace_once(problem)


def make_diagnosis(**values: float) -> Diagnosis:
    """Redundant traffic, with these metrics beside."""
    signature = Signature(
        {"traffic_ratio": 2.1, "dram_throughput_pct": 83.0, "speed_of_light": 0.42, "launches": 1.0}
        | values
    )
    return Diagnosis(
        Bottleneck.REDUNDANT_TRAFFIC,
        (Evidence("traffic_ratio", 2.1, ">=", 1.3),),
        signature,
        0.42,
        0.31,
        "redundant_traffic: 2.1 times the bytes that must move",
        "scale_kernel",
        (Bottleneck.LATENCY,),
    )


def make_situation(
    name: str = "softmax",
    *,
    parent: Kernel | None = None,
    offered: Iterable[str] = (),
    **changes: object,
) -> Situation:
    """A situation about a problem; with a parent there is a diagnosis, and skills are offered."""
    problem, graph = problem_and_graph(name)
    skills = {skill: load_skill(ROOT / "skills" / skill) for skill in offered}
    situation = Situation(
        traced=TracedProblem(
            problem,
            Contract(),
            H200,
            {"full": FULL},
            {"full": graph},
            graph_bound(graph, H200, Contract()),
        ),
        parent=parent,
        diagnosis=make_diagnosis() if parent else None,
        prescriptions=tuple(Prescription(skill, 0.5, ("the bottleneck fits",)) for skill in skills),
        history=(),
        recipes={},
        skills=skills,
        track_records=dict.fromkeys(skills, "won 3 of 5 on sm_90, 1.4x"),
        seed=0,
    )
    return replace(situation, **changes)


def assign(
    situation: Situation,
    move: Move,
    skill: str,
    *,
    samples: int = 1,
    instruction: str = "do it",
    parent: str | None = None,
) -> Assignment:
    """The situation with one task."""
    known = {field.name: getattr(situation, field.name) for field in fields(Situation)}
    start = parent or (situation.parent.hash if situation.parent else None)
    return Assignment(
        **known,
        task=Task(move, skill, start, samples, "why", author="llm", instruction=instruction),
    )


def attempted(
    kernel: Kernel,
    status: Status = Status.PASSED,
    *,
    ms: float = 1.0,
    log: str = "",
    move: Move = Move.SEED,
    skill: str = "unaided",
    instruction: str = "write it",
    round: int = 0,
) -> Attempt:
    """An attempt of the author llm with this kernel."""
    timing = Timing(ms, ms, ms, 10) if status is Status.PASSED else None
    task = Task(move, skill, kernel.parent, 1, "why", author="llm", instruction=instruction)
    return Attempt(
        round,
        Candidate(kernel, task, "llm"),
        Measurement(status, timing, estimated=False, log=log),
        2.0,
    )
