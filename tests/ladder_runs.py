"""Whole runs by recipe without a compiler: kernels are as fast and as exact as their knobs say.

The problem of scripted_evaluator.py has two sites, `relu` and `mul`, and one recipe here writes
both. Its BLOCK is the time of a site in ms, and its ladder has the rungs 0, 1 and 2.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from scripted_evaluator import (
    ScriptedEvaluator,
    make_run,
    open_traced_session,
    small_registry,
    timing,
)

from kmem.measure.competition import Awaited
from kmem.memory.store import Memory
from kmem.plugins import Registry, build_plugin_manager, collect
from kmem.problem.graph import OpGraph
from kmem.recipes import ACCURACY, Emission, Operand, Recipe, Settings, Site, Space
from kmem.records import (
    Attempt,
    Baseline,
    Contract,
    Device,
    ErrorReport,
    Kernel,
    Knob,
    Launch,
    Measurement,
    Profile,
    Run,
    RunResult,
    Status,
)
from kmem.run.evaluation.evaluator import Admitted
from kmem.run.loop import optimize
from kmem.run.setup.session import Session
from kmem.run.state.clock import Clock

RUNGS = (0, 1, 2)


class LadderRecipe(Recipe):
    """Writes one pointwise operator a site."""

    name = "ladder"

    def match(self, graph: OpGraph, contract: Contract) -> list[Site]:
        return [
            Site(
                node.name,
                "pointwise",
                (node.name,),
                (Operand(node.args[0].name, graph.spec(node.args[0].name)),),
                (Operand(node.name, node.spec),),
                node.target.split(".")[1],
                2 * node.spec.bytes,
            )
            for node in graph.nodes
            if node.target.split(".")[1] in ("relu", "mul")
        ]

    def space(self, site: Site, device: Device) -> Space:
        return Space({"BLOCK": (1, 2, 4, 8), ACCURACY: RUNGS})

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        return 1e-9 * settings["BLOCK"] + 1e-12 * settings.get(ACCURACY, 0)

    def emit(self, site: Site, settings: Settings) -> Emission:
        body = "torch.relu(x)" if site.detail == "relu" else "x * 2.0"
        return Emission((), f"def launch(x):\n    knobs = {dict(settings)}\n    return {body}\n")


def knobs(kernel: Kernel) -> dict[str, Mapping[str, Knob]]:
    """The knobs of a kernel by site."""
    return {choice.site: dict(choice.knobs) for choice in kernel.choices}


def rungs(kernel: Kernel) -> list[Knob]:
    return [choice[ACCURACY] for choice in knobs(kernel).values()]


def takes_ms(kernel: Kernel) -> float:
    """The blocks of all sites, and a tenth more for every rung."""
    return sum(choice["BLOCK"] + 0.1 * choice[ACCURACY] for choice in knobs(kernel).values())


def passed(kernel: Kernel, against_ms: float | None = None) -> Measurement:
    return Measurement(Status.PASSED, timing(takes_ms(kernel), against_ms), estimated=False)


def inaccurate(family: str = "nan", excess: float = 1.3) -> Measurement:
    """What the judge says of a kernel whose error is so many times what is allowed."""
    error = ErrorReport(family, 7, excess * 1e-6, 4e-7, 1e-6, excess)
    log = f"output 0 on family {family}: relative error {excess * 1e-6:.2e} (allowed 1.00e-06)"
    return Measurement(Status.WRONG_VALUES, None, estimated=False, errors=(error,), log=log)


@dataclass
class Judgement:
    """What the scripted judge says, and what it was asked; times in ms, seconds by its own clock.

    `needs` are the rungs below which a screening or the final verification refuses a kernel.
    """

    screening_needs: int = 0
    verifying_needs: int = 0
    excess: float = 1.3
    baselines: Mapping[str, float] = field(default_factory=lambda: {"eager": 20.0})
    judged: list[Kernel] = field(default_factory=list)
    verified: list[Kernel] = field(default_factory=list)
    against: list[str] = field(default_factory=list)
    expected: list[Kernel] = field(default_factory=list)  # to be compiled ahead
    admitted: list[Kernel] = field(default_factory=list)
    awaited: list[Kernel] = field(default_factory=list)  # verified while baselines were timed
    late: str = ""  # the baseline that is timed once a verification waits for it
    timed: threading.Event = field(default_factory=threading.Event)
    now_s: float = 0.0
    screening_s: float = 0.0
    verifying_s: float = 0.0
    refuses: Callable[[Kernel], bool] = lambda kernel: False
    has_no_room: Callable[[Kernel], bool] = lambda kernel: False  # when it is verified
    breaks: Callable[[Kernel], bool] = lambda kernel: False  # when it is compiled
    wrong: Callable[[Kernel], bool] = lambda kernel: False  # when it is screened
    slower: Callable[[Kernel], float] = lambda kernel: 1.0  # than its knobs say, in a screening


class LadderEvaluator(ScriptedEvaluator):
    """Judges by a kernel's knobs."""

    def __init__(self, session: Session, judgement: Judgement, minutes: float = 60.0) -> None:
        super().__init__(session, lambda: 60 * minutes - judgement.now_s)
        self._session, self._judgement = session, judgement

    def baselines(
        self, names: Sequence[str], limit_s: float, on_found: Callable[[Baseline], None]
    ) -> None:
        for name in names:
            if name == self._judgement.late:
                assert self._judgement.timed.wait(10)
            if name in self._judgement.baselines:
                on_found(Baseline(name, timing(self._judgement.baselines[name]), estimated=False))

    def expect(self, kernels: Sequence[Kernel]) -> None:
        self._judgement.expected += kernels

    def admit(self, kernels: Sequence[Kernel]) -> Admitted:
        self._judgement.admitted += kernels
        broken = [kernel for kernel in kernels if self._judgement.breaks(kernel)]
        ready = [kernel for kernel in kernels if kernel not in broken]
        return Admitted(tuple((kernel, "it does not build") for kernel in broken), tuple(ready))

    def screen(
        self,
        kernels: Sequence[Kernel],
        on_result: Callable[[int, Measurement], None],
        *,
        by_recipes: Set[str] = frozenset(),
    ) -> None:
        told = self._judgement
        for index, kernel in enumerate(kernels):
            told.judged.append(kernel)
            told.now_s += told.screening_s
            if told.wrong(kernel):
                log = "output 0 is wrong"
                verdict = Measurement(Status.WRONG_VALUES, None, estimated=False, log=log)
            elif min(rungs(kernel)) < told.screening_needs:
                verdict = inaccurate(excess=told.excess)
            else:
                time_ms = told.slower(kernel) * takes_ms(kernel)
                verdict = Measurement(Status.PASSED, timing(time_ms), estimated=False)
            on_result(index, verdict)

    def verify(self, kernel: Kernel, baselines: Sequence[Baseline] | Awaited) -> Measurement:
        told = self._judgement
        told.verified.append(kernel)
        told.now_s += told.verifying_s
        if told.has_no_room(kernel):
            log = "other processes hold the GPU's memory"
            return Measurement(Status.INTERRUPTED, None, estimated=False, log=log)
        if told.refuses(kernel):
            return Measurement(Status.NOT_REPEATABLE, None, estimated=False, log="it wavers")
        if min(rungs(kernel)) < told.verifying_needs:
            return inaccurate(excess=told.excess)
        if isinstance(baselines, Awaited):
            told.awaited.append(kernel)
            while not baselines.is_settled():
                told.timed.set()
                time.sleep(0.01)
            baselines = baselines.known()
        best = min(baselines, key=lambda each: each.timing.latency_ms)
        told.against.append(best.name)
        verdict = passed(kernel, best.timing.latency_ms)
        return replace(verdict, timing=replace(verdict.timing, reference=best.name))

    def profile(self, attempt: Attempt) -> Profile:
        time_ms = attempt.measurement.latency_ms
        needed = 3 * self._session.traced.bound.bytes
        counters = {"dram__bytes_read.sum": needed, "dram__bytes_write.sum": 0.0}
        launch = Launch("kernel", time_ms, (64, 1, 1), (128, 1, 1), counters)
        return Profile(attempt.candidate.kernel.hash, "scripted", "NVIDIA H200", False, (launch,))


def ladder_session(memory: Memory, source: str = "", version: str = "v1") -> Session:
    """A session whose one recipe is the ladder's.

    Args:
        source: of another problem with the same graph.
        version: of the recipe.
    """
    session = open_traced_session(memory)
    recipe, traced = LadderRecipe(), session.traced
    sites = recipe.match(traced.graph, traced.contract)
    problem = replace(traced.problem, source=source or traced.problem.source)
    return replace(
        session,
        traced=replace(traced, problem=problem),
        recipes={"ladder": recipe},
        writable={"ladder": sum(site.bytes for site in sites)},
        recipe_versions={"ladder": version},
    )


def ladder_registry() -> Registry:
    """The installed plugins; their skills are not the ladder's."""
    return replace(small_registry(), authors=collect(build_plugin_manager()).authors)


def ladder_run(home: Path, name: str = "r1", **budget: object) -> Run:
    run = make_run(home, base_url="", **budget)
    return replace(run, id=name, out_dir=str(home / name), authors=("recipes",), models=())


def walk_ladder(
    run: Run,
    memory: Memory,
    judgement: Judgement,
    *,
    clock: Clock | None = None,
    source: str = "",
    version: str = "v1",
) -> tuple[RunResult, list[Attempt], list[str]]:
    """Run or resume: the result, the attempts, and what was announced."""
    memory.runs.start(run)
    session = ladder_session(memory, source, version)
    said: list[str] = []
    result = optimize(
        run,
        session,
        memory,
        ladder_registry(),
        lambda event: said.append(event.text),
        open_evaluator=lambda announce: LadderEvaluator(session, judgement, run.budget.minutes),
        clock=clock,
    )
    return result, memory.runs.attempts(run.id), said
