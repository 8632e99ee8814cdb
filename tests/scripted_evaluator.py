"""An evaluator that believes what a kernel says of itself: whole runs without a compiler.

A kernel states its fate in module-level constants: TAKES_MS (what it is timed at), TRAFFIC (DRAM
bytes over those needed, for its profile) and FAILS (the value of a Status, "" for none).
Conversations go through the real SDK to a scripted server.
"""

import ast
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from kmem.devices import named_target
from kmem.host.syntax import parse_python
from kmem.memory.store import Memory
from kmem.plugins import Registry, build_plugin_manager, collect
from kmem.records import (
    Attempt,
    Baseline,
    Budget,
    Contract,
    Kernel,
    Launch,
    Measurement,
    ModelChoice,
    Problem,
    Profile,
    Run,
    RunResult,
    Status,
    Strategy,
    Timing,
)
from kmem.run.evaluation.evaluator import Admitted, Evaluator
from kmem.run.loop import optimize
from kmem.run.setup.session import Session, open_session
from kmem.run.state.progress import Announce

SOURCE = """
import torch
SIZE = 4096
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0
def get_inputs():
    return [torch.randn(SIZE, 256)]
"""
EAGER_MS = 10.0
_PROBLEM = Problem("relu_twice", "relu_twice.py", SOURCE)


def kernel_text(takes_ms: float, traffic: float = 2.0, fails: str = "", note: str = "") -> str:
    """A kernel file with its fate."""
    return (
        f"import torch\nTAKES_MS = {takes_ms}\nTRAFFIC = {traffic}\nFAILS = {fails!r}\n"
        f"NOTE = {note!r}\n\n\n"
        "class ModelNew(torch.nn.Module):\n    def forward(self, x):\n"
        "        return torch.relu(x) * 2.0\n"
    )


def fate(source: str) -> dict[str, object]:
    """The constants a kernel states; a text that does not parse does not build."""
    try:
        statements = parse_python(source).body
    except SyntaxError:
        return {"FAILS": Status.BUILD_FAILED.value}
    return {
        item.targets[0].id: ast.literal_eval(item.value)
        for item in statements
        if isinstance(item, ast.Assign)
    }


def timing(takes_ms: float, against_ms: float | None = None) -> Timing:
    if against_ms is None:
        return Timing(takes_ms, takes_ms, takes_ms, 10)
    ratio = against_ms / takes_ms
    return Timing(
        takes_ms, takes_ms, takes_ms, 10, "eager", against_ms, ratio, ratio * 0.99, ratio * 1.01
    )


class ScriptedEvaluator(Evaluator):
    """Believes the kernels; `judged` holds every kernel that was screened, in order."""

    def __init__(self, session: Session, clock: Callable[[], float] = lambda: 1000.0) -> None:
        self._session, self._clock = session, clock
        self.judged: list[Kernel] = []

    @property
    def seconds_left(self) -> float:
        return self._clock()

    def baselines(
        self, names: Sequence[str], limit_s: float, on_found: Callable[[Baseline], None]
    ) -> None:
        on_found(Baseline("eager", timing(EAGER_MS), estimated=False))

    def admit(self, kernels: Sequence[Kernel]) -> Admitted:
        broken = [
            kernel
            for kernel in kernels
            if fate(kernel.source)["FAILS"] == Status.BUILD_FAILED.value
        ]
        return Admitted(
            tuple((kernel, "SyntaxError: it does not build") for kernel in broken),
            tuple(kernel for kernel in kernels if kernel not in broken),
        )

    def screen(
        self,
        kernels: Sequence[Kernel],
        on_result: Callable[[int, Measurement], None],
        *,
        by_recipes: Set[str] = frozenset(),
    ) -> None:
        for index, kernel in enumerate(kernels):
            self.judged.append(kernel)
            told = fate(kernel.source)
            if told["FAILS"]:
                on_result(
                    index,
                    Measurement(
                        Status(told["FAILS"]),
                        None,
                        estimated=False,
                        log=f"it fails: {told['FAILS']}",
                    ),
                )
            else:
                on_result(
                    index, Measurement(Status.PASSED, timing(told["TAKES_MS"]), estimated=False)
                )

    def verify(self, kernel: Kernel, baselines: Sequence[Baseline]) -> Measurement:
        return Measurement(
            Status.PASSED, timing(fate(kernel.source)["TAKES_MS"], EAGER_MS), estimated=False
        )

    def profile(self, attempt: Attempt) -> Profile:
        told = fate(attempt.candidate.kernel.source)
        counters = {
            "dram__bytes_read.sum": told["TRAFFIC"] * self._session.traced.bound.bytes,
            "dram__bytes_write.sum": 0.0,
        }
        launch = Launch("relu_kernel", told["TAKES_MS"], (64, 1, 1), (128, 1, 1), counters)
        return Profile(attempt.candidate.kernel.hash, "scripted", "NVIDIA H200", False, (launch,))

    def close(self) -> None:
        pass


@cache
def small_registry() -> Registry:
    """The installed plugins, with few skills: none of them matches the problem by a recipe."""
    registry = collect(build_plugin_manager())
    few = ("drop-masks-when-even", "widen-vector-access", "more-loads-in-flight")
    return replace(registry, skills={name: registry.skills[name] for name in few})


def make_run(
    home: Path, *, base_url: str, strategy: Strategy = Strategy.BANDIT, **budget: object
) -> Run:
    """A run of the author llm with one model at a server."""
    models = (ModelChoice("any", "openai", "scripted-large", base_url),)
    limits = Budget(**{"rounds": 3, "minutes": 60.0, "candidates_per_round": 6} | budget)
    return Run(
        "r1",
        _PROBLEM,
        "h200",
        Contract(),
        limits,
        "rw",
        0,
        str(home / "run"),
        "2026-11-21T00:00:00",
        ("llm",),
        strategy,
        models,
    )


def walk(
    run: Run, memory: Memory, make: Callable[[Session], Evaluator] = ScriptedEvaluator
) -> tuple[RunResult, list[str]]:
    """Run or resume; the result and what was announced."""
    registry = small_registry()
    memory.runs.start(run)
    session = open_traced_session(memory)
    said: list[str] = []

    def open_evaluator(announce: Announce) -> Evaluator:
        return make(session)

    result = optimize(
        run,
        session,
        memory,
        registry,
        lambda event: said.append(event.text),
        open_evaluator=open_evaluator,
    )
    return result, said


def open_traced_session(memory: Memory) -> Session:
    """What open_session does for this problem, without tracing it again."""
    session = _session()
    memory.skills.sync(list(session.skills.values()))
    return session


@cache
def _session() -> Session:
    """Traced once for all runs."""
    with TemporaryDirectory() as home, Memory(Path(home) / "kmem.db") as memory:
        return open_session(
            _PROBLEM, Contract(), named_target("h200"), True, small_registry(), memory
        )


# one walk in a process of its own, so that a test can kill it: HOME BASE_URL
if __name__ == "__main__":
    import sys

    home = Path(sys.argv[1])
    with Memory(home / "kmem.db") as memory:
        walk(make_run(home, base_url=sys.argv[2]), memory)
