"""What a new run is told, and the run made of it."""

import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from kmem.devices import resolve_target
from kmem.interfaces import GIVEN
from kmem.problem.features.mode import in_mode
from kmem.problem.source.load import load_problem
from kmem.records import Budget, Contract, Kernel, ModelChoice, Run, Strategy, UserTest
from kmem.run.directory import default_run_directory


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Everything that a run is told beside its problem."""

    budget: Budget = field(default_factory=Budget)
    contract: Contract = field(default_factory=Contract)
    target: str | None = None  # None: the GPU of this machine
    mode: str | None = None  # train or eval; None: as the problem's file leaves the module
    memory_mode: str = "rw"  # off, read, rw
    authors: tuple[str, ...] = ("recipes",)
    models: tuple[ModelChoice, ...] = ()
    strategy: Strategy = Strategy.BANDIT
    out: Path | None = None  # None: <problem>-<run id> in KMEM_OUT, or in runs/ here
    seed: int = 0
    start: Kernel | None = None  # the user's own kernel to start from
    test: UserTest | None = None  # the user's own, which a winner must pass as well


def new_run(problem: Path, settings: RunSettings) -> Run:
    """A new run with an id of its own.

    Raises ProblemError, and TargetError for its device.
    """
    loaded = in_mode(load_problem(problem), settings.mode)
    device, _ = resolve_target(settings.target)
    now = datetime.now(UTC)
    run_id = now.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2)
    place = settings.out or default_run_directory(f"{loaded.name}-{run_id}")
    return Run(
        run_id,
        loaded,
        device.name,
        settings.contract,
        settings.budget,
        settings.memory_mode,
        settings.seed,
        str(place.resolve()),
        now.isoformat(timespec="seconds"),
        authors=(GIVEN, *settings.authors) if settings.start else settings.authors,
        strategy=settings.strategy,
        models=settings.models,
        start=settings.start,
        test=settings.test,
    )
