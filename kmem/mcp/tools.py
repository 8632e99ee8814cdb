"""The tools an agent gets: search_skills, explain, profile, diagnose, verify, measure, record,
best_kernel.

Each is a method whose annotations are its schema and whose docstring is what the agent reads; each
returns plain JSON data and raises KmemError with one line that names the remedy. They run the same
code as the commands of the same names. server.py calls them in threads; the lock keeps to one judge
at a time.
"""

import logging
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from kmem.devices import detect_device, named_target
from kmem.diagnose.bottleneck import diagnose as name_bottleneck
from kmem.errors import CaseError, MemoryStoreError, NotRegistered, TargetError
from kmem.interfaces import UNAIDED
from kmem.mcp.verdicts import Verdict, Verdicts, outcome_of, recorded_kernel
from kmem.memory.store import Memory
from kmem.plugins import Registry, lookup
from kmem.prescribe.consult import consult_memory
from kmem.problem.load import load_problem
from kmem.problem.traced import trace_at_full_size
from kmem.profile.collect import collect_profile
from kmem.profile.job import reference_kernel
from kmem.profile.ncu_report import read_report
from kmem.records import Contract, Device, Kernel, Precision, Profile, Purity
from kmem.run.session import Session, load_library, open_session, versions
from kmem.run.single import Terms, judge_case, make_case, read_kernel
from kmem.serialize import to_data
from kmem.skills import Skill, load_skill
from kmem.vocabulary import OPERATORS

logger = logging.getLogger(__name__)

#: Profiles, estimates and remembered kernels are for this device where there is no GPU and none is
#: named.
DEFAULT_TARGET = "h200"

ProblemPath: TypeAlias = Annotated[
    str,
    Field(
        description="Path of the problem file: Model, get_inputs() and perhaps get_init_inputs()."
    ),
]
KernelPath: TypeAlias = Annotated[
    str | None, Field(description="Path of the kernel file, which defines ModelNew.")
]
KernelSource: TypeAlias = Annotated[
    str | None, Field(description="The kernel file's text, instead of a path.")
]
Target: TypeAlias = Annotated[
    str | None, Field(description="Device, such as h200; default: the GPU here, else h200.")
]
PrecisionName: TypeAlias = Annotated[
    Literal["match", "tf32", "bf16"],
    Field(description="Accuracy contract; match is as accurate as eager PyTorch."),
]
PurityName: TypeAlias = Annotated[
    Literal["library", "triton"],
    Field(description="Whether library calls may be part of the kernel; triton: they may not."),
]
Seed: TypeAlias = Annotated[
    int | None,
    Field(description="Seed of inputs and parameters, to repeat a verdict; default: drawn anew."),
]
Json: TypeAlias = "dict[str, object]"


class Tools:
    """The tools over one registry of plugins; verdicts live as long as it does."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._verdicts = Verdicts()
        self._judging = threading.Lock()

    # ---- what is known

    def search_skills(
        self,
        query: Annotated[
            str,
            Field(
                description="What to look for, in words: a symptom, an operator, a technique.",
                min_length=1,
            ),
        ],
        operators: Annotated[
            list[str] | None,
            Field(description="Only skills about one of these operators, such as max_pool."),
        ] = None,
        arch: Annotated[
            str | None, Field(description="Only skills for this architecture, such as sm_90.")
        ] = None,
        limit: Annotated[int, Field(description="How many skills at most.", ge=1, le=50)] = 5,
    ) -> Json:
        """Search the memory's skills by meaning and words; each comes with its standing and why it
        was found. Read one with explain.
        """
        _check_operators(operators or ())
        with Memory() as memory:
            library = self._library(memory)
            hits = memory.skills.search(
                query, operators=operators, arch=arch, limit=len(self._registry.skills)
            )
            found = memory.standings.order_hits(library, hits, limit)
            return {
                "skills": [
                    {
                        "name": hit.name,
                        "description": library[hit.name].description,
                        "status": memory.standings.of(library[hit.name]).standing.value,
                        "score": hit.score,
                        "reasons": list(hit.reasons),
                    }
                    for hit in found
                ]
            }

    def explain(
        self,
        skill: Annotated[
            str | None,
            Field(
                description="Name of a skill: its whole text, where it stands, and its track record."
            ),
        ] = None,
        run: Annotated[
            str | None,
            Field(description="Id of a run, or a unique prefix: why it did what it did, by round."),
        ] = None,
        round: Annotated[int | None, Field(description="Only this round of the run.", ge=0)] = None,
    ) -> Json:
        """Read a skill in full with what it has earned here, or why a run did what it did.

        Give either skill or run.
        """
        if (skill is None) == (run is None):
            raise CaseError("Say what to explain: either skill or run")
        with Memory() as memory:
            return (
                self._explain_skill(memory, skill)
                if skill is not None
                else _explain_run(memory, run or "", round)
            )

    def _explain_skill(self, memory: Memory, name: str) -> Json:
        skill = self._find_skill(name)
        standing = memory.standings.of(skill)
        return {
            "name": skill.name,
            "description": skill.description,
            "status": standing.standing.value,
            "standing": standing.reason,
            "license": skill.license,
            "body": skill.body,
            "path": str(skill.path),
            "record": [to_data(record) for record in memory.track_records.of_skill(name)],
            "reproductions": [to_data(each) for each in standing.reproductions],
        }

    def best_kernel(
        self, problem: ProblemPath, target: Target = None, precision: PrecisionName = "match"
    ) -> Json:
        """The fastest kernels the memory holds for this problem's graph, with source where it is
        kept, and the nearest for graphs like it.

        What it measured elsewhere is not proved here: verify or measure it before you rely on it.
        """
        with Memory() as memory:
            session = self._open_session(problem, precision, target, memory)
            traced = session.traced
            found = memory.winners.recall(session.graph_key)
            return {
                "graph": traced.graph.hash,
                "device": traced.device.name,
                "bound_ms": traced.bound.time_ms if traced.bound else None,
                "kernels": [
                    {
                        "exact": hit.exact,
                        "distance": hit.distance if math.isfinite(hit.distance) else None,
                        "source": hit.source,
                        "outcome": to_data(hit.outcome),
                    }
                    for hit in found
                ],
            }

    # ---- what a kernel does

    def profile(
        self,
        problem: ProblemPath,
        kernel: KernelPath = None,
        kernel_source: KernelSource = None,
        target: Target = None,
        precision: PrecisionName = "match",
        profiler: Annotated[
            str, Field(description="ncu, cupti, static, or auto: the first that works.")
        ] = "auto",
    ) -> Json:
        """Profile every launch of one forward, with raw counters; without a kernel the problem's
        own Model. Estimates are labelled.
        """
        return to_data(
            self._profile(problem, kernel, kernel_source, target, precision, profiler)[0]
        )

    def diagnose(
        self,
        problem: Annotated[
            str | None,
            Field(description="Path of the problem file; needed unless a report is given."),
        ] = None,
        kernel: KernelPath = None,
        kernel_source: KernelSource = None,
        report: Annotated[
            str | None,
            Field(
                description="Nsight Compute report (CSV or .ncu-rep) to read instead of profiling."
            ),
        ] = None,
        operators: Annotated[
            list[str] | None,
            Field(description="Operators the kernel computes: skills for them are offered."),
        ] = None,
        target: Target = None,
        precision: PrecisionName = "match",
        latency_ms: Annotated[
            float | None, Field(description="Time of one forward in ms, if it is known.", gt=0)
        ] = None,
    ) -> Json:
        """Name the bottleneck by arithmetic, with evidence and headroom, and offer at most three
        skills for it, each with its reasons.
        """
        if problem is None and report is None:
            raise CaseError(
                "Say what to diagnose: problem (with a kernel, if there is one) or report"
            )
        _check_operators(operators or ())
        if report is not None:
            device, _ = _device(target)
            profile = Profile("", "ncu", device.name, False, read_report(Path(report)))
        else:
            profile, device = self._profile(
                problem or "", kernel, kernel_source, target, precision, "auto"
            )
        contract = Contract(Precision(precision))
        bound = (
            trace_at_full_size(load_problem(problem), contract, device).bound
            if problem is not None
            else None
        )
        diagnosis = name_bottleneck(profile, device, bound, latency_ms=latency_ms)
        with Memory() as memory:
            library = list(self._library(memory).values())
            offered = consult_memory(
                memory, diagnosis, operators or (), library, device.arch, contract, versions()
            )
        return {
            "diagnosis": to_data(diagnosis),
            "prescriptions": [to_data(each) for each in offered],
        }

    def _profile(
        self,
        problem: str,
        kernel: str | None,
        source: str | None,
        target: str | None,
        precision: str,
        profiler: str,
    ) -> tuple[Profile, Device]:
        loaded = load_problem(problem)
        device, present = _device(target)
        text = _kernel_text(kernel, source, optional=True)
        candidate = Kernel(text) if text is not None else reference_kernel(loaded)
        executor = lookup(self._registry.executors, "local", "executor")
        contract = Contract(Precision(precision))
        with self._judging:
            profile = collect_profile(
                candidate,
                trace_at_full_size(loaded, contract, device),
                self._registry.profilers,
                executor,
                present=present,
                name=profiler,
            )
        return profile, device

    # ---- the judge

    def verify(
        self,
        problem: ProblemPath,
        kernel: KernelPath = None,
        kernel_source: KernelSource = None,
        precision: PrecisionName = "match",
        purity: PurityName = "library",
        seed: Seed = None,
        target: Target = None,
    ) -> Json:
        """Judge a kernel against the module it replaces: the same values within eager's own error,
        on many inputs, honestly computed.

        Without a GPU the verdict comes from the Triton interpreter on small sizes and the time is
        an estimate, marked as such.
        """
        present = detect_device()
        device = present or named_target(target or DEFAULT_TARGET)
        return self._judge(
            problem, kernel, kernel_source, precision, purity, seed, device, gpu=present is not None
        )

    def measure(
        self,
        problem: ProblemPath,
        kernel: KernelPath = None,
        kernel_source: KernelSource = None,
        precision: PrecisionName = "match",
        purity: PurityName = "library",
        seed: Seed = None,
    ) -> Json:
        """Judge a kernel and time it, in pairs, against eager and compiled PyTorch; needs a GPU.

        The verdict it names can be recorded.
        """
        device = detect_device()
        if device is None:
            raise TargetError("No GPU here to measure on; verify judges a kernel without one")
        return self._judge(
            problem, kernel, kernel_source, precision, purity, seed, device, gpu=True
        )

    def _judge(
        self,
        problem: str,
        kernel: str | None,
        source: str | None,
        precision: str,
        purity: str,
        seed: int | None,
        device: Device,
        *,
        gpu: bool,
    ) -> Json:
        text = _kernel_text(kernel, source)
        contract = Contract(Precision(precision), Purity(purity))
        case = make_case(
            Path(problem), text or "", Terms(contract, seed), name=kernel or "The kernel"
        )
        with self._judging:
            measurement, baselines = judge_case(case, device, gpu=gpu, announce=logger.info)
        name = self._verdicts.keep(Verdict(case, device, measurement, baselines))
        data = to_data(measurement)
        if measurement.latency_ms is not None and not math.isfinite(measurement.latency_ms):
            data["timing"] = None  # no estimate; JSON has no infinity
        return {
            "verdict": name,
            **data,
            "kernel": case.kernel.hash,
            "baselines": [to_data(baseline) for baseline in baselines],
        }

    def record(
        self,
        verdict: Annotated[str, Field(description="The verdict, as measure named it.")],
        skill: Annotated[
            str, Field(description="The skill the kernel followed, or 'unaided'.")
        ] = UNAIDED,
        parent: Annotated[
            str | None,
            Field(
                description="The verdict on the kernel it was made from, if that was measured too."
            ),
        ] = None,
    ) -> Json:
        """Store the outcome of a kernel the judge of this server measured, good or bad, so that the
        skill's record learns from it.

        Only verdicts are taken, never numbers.
        """
        found = self._verdicts.find(verdict)
        before = self._verdicts.find(parent) if parent is not None else None
        if skill != UNAIDED:
            self._find_skill(skill)
        with Memory() as memory:
            session = open_session(
                found.case.problem,
                found.case.terms.contract,
                found.device,
                not found.measurement.estimated,
                self._registry,
                memory,
            )
            outcome = outcome_of(found, before, skill, session, memory.contributors.own_name)
            memory.runs.put_kernel(recorded_kernel(found, before))
            is_new = memory.ledger.record(outcome)
        return {
            "outcome": outcome.hash,
            "is_new": is_new,
            "skill": skill,
            "status": outcome.status.value,
        }

    # ---- shared

    def _library(self, memory: Memory) -> dict[str, Skill]:
        """Every skill that was not retracted, known to the memory."""
        skills = load_library(self._registry)
        memory.skills.sync(list(skills.values()))
        return memory.standings.without_retracted(skills)

    def _find_skill(self, name: str) -> Skill:
        if name not in self._registry.skills:
            raise NotRegistered(
                f"No skill named '{name}'; search_skills finds one of the "
                f"{len(self._registry.skills)} there are"
            )
        return load_skill(self._registry.skills[name])

    def _open_session(
        self, problem: str, precision: str, target: str | None, memory: Memory
    ) -> Session:
        device, present = _device(target)
        return open_session(
            load_problem(problem),
            Contract(Precision(precision)),
            device,
            present,
            self._registry,
            memory,
        )


def _device(target: str | None) -> tuple[Device, bool]:
    """The device asked for, and whether it is here; without a name the GPU here, else
    DEFAULT_TARGET.
    """
    present = detect_device()
    if present is not None and (target is None or target.lower() == present.name):
        return present, True
    return named_target(target or DEFAULT_TARGET), False


def _kernel_text(path: str | None, source: str | None, *, optional: bool = False) -> str | None:
    if path is not None and source is not None:
        raise CaseError("Give the kernel once: kernel (a path) or kernel_source (its text)")
    if path is None and source is None and not optional:
        raise CaseError("Give the kernel: kernel (a path) or kernel_source (its text)")
    return read_kernel(Path(path)) if path is not None else source


def _check_operators(operators: Sequence[str]) -> None:
    for name in operators:
        if name not in OPERATORS:
            raise CaseError(f"'{name}' is not an operator; they are: {', '.join(OPERATORS)}")


def _explain_run(memory: Memory, run_id: str, number: int | None) -> Json:
    run = memory.runs.get(run_id)
    diagnoses = memory.runs.diagnoses(run.id)
    plans = memory.runs.plans(run.id)
    attempts = memory.runs.attempts(run.id)
    lessons = memory.runs.lessons(run.id)
    rounds = sorted({*(entry.round for entry in diagnoses), *(entry.round for entry in plans)})
    if number is not None and number not in rounds:
        raise MemoryStoreError(
            f"Run {run.id} has no round {number}; it has: {', '.join(map(str, rounds)) or 'none'}"
        )
    return {
        "run": run.id,
        "problem": run.problem.name,
        "rounds": [
            {
                "round": each,
                "diagnoses": [to_data(entry) for entry in diagnoses if entry.round == each],
                "plans": [to_data(entry.plan) for entry in plans if entry.round == each],
                "attempts": [
                    {
                        "kernel": attempt.candidate.kernel.hash,
                        "skill": attempt.candidate.task.skill,
                        "status": attempt.measurement.status.value,
                        "latency_ms": attempt.measurement.latency_ms,
                        "estimated": attempt.measurement.estimated,
                    }
                    for attempt in attempts
                    if attempt.round == each
                ],
                "lessons": [to_data(lesson) for lesson in lessons if lesson.round == each],
            }
            for each in (rounds if number is None else [number])
        ],
    }
