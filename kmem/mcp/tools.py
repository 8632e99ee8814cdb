"""The tools an agent gets: methods whose annotations are their schema, and docstrings their text.

They are search_skills, explain, best_kernel, profile, diagnose, verify, measure and record. Each
returns plain JSON data and raises KmemError with one line that names the remedy. They run the same
code as the commands of the same names. server.py calls them in threads; the lock keeps to one judge
at a time.
"""

import logging
import math
import threading
from pathlib import Path

from kmem.devices import detect_device, named_target
from kmem.diagnose.bottleneck import diagnose as name_bottleneck
from kmem.errors import CaseError, NotRegistered, TargetError
from kmem.interfaces import UNAIDED
from kmem.mcp.arguments import (
    DEFAULT_TARGET,
    Arch,
    FollowedSkill,
    Json,
    KernelOperators,
    KernelPath,
    KernelSource,
    LatencyMs,
    Limit,
    ParentVerdict,
    PrecisionName,
    ProblemIfAny,
    ProblemPath,
    ProfilerName,
    PurityName,
    Query,
    ReportPath,
    RoundNumber,
    RunId,
    Seed,
    SkillName,
    SkillOperators,
    Target,
    VerdictName,
    check_operators,
    kernel_text,
    resolve_device,
)
from kmem.mcp.explanations import explain_run, explain_skill
from kmem.mcp.verdicts import Verdict, Verdicts, outcome_of, recorded_kernel
from kmem.memory.store import Memory
from kmem.plugins import Registry, lookup
from kmem.prescribe.consult import consult_memory
from kmem.prescribe.gate import SkillQuery
from kmem.problem.source.load import load_problem
from kmem.problem.traced import trace_at_full_size
from kmem.profile.collect import collect_profile
from kmem.profile.job import reference_kernel
from kmem.profile.ncu_csv import read_report
from kmem.records import Contract, Device, Kernel, Precision, Profile, Purity
from kmem.run.evaluation.single import Case, Terms, judge_case, make_case, read_small_constants
from kmem.run.setup.session import Session, load_library, open_session, versions
from kmem.serialize import to_data
from kmem.skills import Skill, load_skill

logger = logging.getLogger(__name__)


class Tools:
    """The tools over one registry of plugins; verdicts live as long as it does."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._verdicts = Verdicts()
        self._judging = threading.Lock()

    # ---- what is known

    def search_skills(
        self, query: Query, operators: SkillOperators = None, arch: Arch = None, limit: Limit = 5
    ) -> Json:
        """Search the memory's skills by meaning and words.

        Each comes with its standing, how it acts and why it was found. Read one with explain. If
        nothing in the library is about the query, fits is false and no skill is given: name an
        operator, a bottleneck or what a profile shows.
        """
        check_operators(operators or ())
        with Memory.to_read() as memory:
            library = self._library(memory)
            fits = memory.skills.fits(query)
            hits = memory.skills.search(
                query,
                operators=operators,
                arch=arch,
                limit=len(self._registry.skills) if fits else 0,
            )
            found = memory.standings.order_hits(library, hits, limit)
            return {
                "fits": fits,
                "skills": [
                    {
                        "name": hit.name,
                        "description": library[hit.name].description,
                        "status": memory.standings.of(library[hit.name]).standing.value,
                        "recipe": library[hit.name].has_recipe,
                        "score": hit.score,
                        "reasons": list(hit.reasons),
                    }
                    for hit in found
                ],
            }

    def explain(
        self, skill: SkillName = None, run: RunId = None, round: RoundNumber = None
    ) -> Json:
        """Read a skill in full with what it has earned here, or why a run did what it did.

        Give either skill or run.
        """
        if (skill is None) == (run is None):
            raise CaseError("Say what to explain: either skill or run")
        with Memory.to_read() as memory:
            if skill is not None:
                return explain_skill(memory, self._find_skill(skill))
            return explain_run(memory, run or "", round)

    def best_kernel(
        self, problem: ProblemPath, target: Target = None, precision: PrecisionName = "match"
    ) -> Json:
        """The fastest kernels the memory holds for this problem's graph, then for graphs like it.

        Each comes with its source where that is kept. What was measured elsewhere is not proved
        here: verify or measure it before you rely on it.
        """
        with Memory.to_read() as memory:
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
        profiler: ProfilerName = "auto",
    ) -> Json:
        """Profile every launch of one forward, with raw counters.

        Without a kernel it is the problem's own Model. Estimates are labelled.
        """
        return to_data(
            self._profile(problem, kernel, kernel_source, target, precision, profiler)[0]
        )

    def diagnose(
        self,
        problem: ProblemIfAny = None,
        kernel: KernelPath = None,
        kernel_source: KernelSource = None,
        report: ReportPath = None,
        operators: KernelOperators = None,
        target: Target = None,
        precision: PrecisionName = "match",
        latency_ms: LatencyMs = None,
    ) -> Json:
        """Name the bottleneck by arithmetic, with evidence and headroom, and offer skills for it.

        At most three skills are offered, each with its reasons.
        """
        if problem is None and report is None:
            raise CaseError(
                "Say what to diagnose: problem (with a kernel, if there is one) or report"
            )
        check_operators(operators or ())
        if report is not None:
            device, _ = resolve_device(target)
            profile = Profile("", "ncu", device.name, False, read_report(Path(report)))
        else:
            profile, device = self._profile(
                problem or "", kernel, kernel_source, target, precision, "auto"
            )
        contract = Contract(Precision(precision))
        bound = None
        if problem is not None:
            bound = trace_at_full_size(load_problem(problem), contract, device).bound
        diagnosis = name_bottleneck(profile, device, bound, latency_ms=latency_ms)
        with Memory() as memory:
            library = list(self._library(memory).values())
            query = SkillQuery(diagnosis, operators or diagnosis.operators, device.arch, contract)
            offered = consult_memory(memory, query, library, versions())
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
        device, present = resolve_device(target)
        text = kernel_text(kernel, source, optional=True)
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
        """Judge a kernel against the module it replaces.

        It must have the same values within eager's own error, on many inputs, honestly computed.
        Without a GPU the verdict comes from the Triton interpreter on small sizes and the time is
        an estimate, marked as such.
        """
        present = detect_device()
        device = present or named_target(target or DEFAULT_TARGET)
        case = _make_case(problem, kernel, kernel_source, precision, purity, seed)
        return self._judge(case, device, gpu=present is not None)

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
        case = _make_case(problem, kernel, kernel_source, precision, purity, seed)
        return self._judge(case, device, gpu=True)

    def _judge(self, case: Case, device: Device, *, gpu: bool) -> Json:
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
        verdict: VerdictName,
        skill: FollowedSkill = UNAIDED,
        parent: ParentVerdict = None,
    ) -> Json:
        """Store the outcome of a kernel that the judge of this server measured, good or bad.

        The skill's track record learns from it. Only verdicts are taken, never numbers.
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
        device, present = resolve_device(target)
        return open_session(
            load_problem(problem),
            Contract(Precision(precision)),
            device,
            present,
            self._registry,
            memory,
        )


def _make_case(
    problem: str,
    kernel: str | None,
    source: str | None,
    precision: str,
    purity: str,
    seed: int | None,
) -> Case:
    text = kernel_text(kernel, source)
    contract = Contract(Precision(precision), Purity(purity))
    return make_case(
        Path(problem),
        text or "",
        Terms(contract, seed),
        name=kernel or "The kernel",
        small_constants=read_small_constants(Path(kernel)) if kernel else "",
    )
