"""`kmem.optimize`: the main job, from Python."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TypedDict, Unpack

from torch import nn

from kmem.api.from_module import write_problem
from kmem.api.keywords import choose, refuse_unknown
from kmem.errors import ProblemError
from kmem.explore.models.roles import check_models
from kmem.memory.location import default_db_path
from kmem.plugins import build_plugin_manager, collect
from kmem.records import Budget, Contract, ModelChoice, Precision, Purity, Strategy
from kmem.run.perform import Audience, perform
from kmem.run.progress import Event
from kmem.run.result import Result
from kmem.run.settings import RunSettings, new_run

Progress = Callable[[Event], None]


class Settings(TypedDict, total=False):
    """The keywords of `optimize`: the options of `kmem optimize`, with its defaults."""

    rounds: int  # rounds after the first
    minutes: float  # wall-clock budget, final verification included
    target: str  # device to optimise for, such as h200; default: the GPU of this machine
    mode: str  # train or eval; default: as the module is
    precision: str  # match, tf32 or bf16
    purity: str  # library or triton
    memory: str  # off, read or rw
    models: Sequence[ModelChoice]  # language models that write kernels beside the recipes
    usd: float  # most that language models may cost
    tokens: int  # most tokens that they may read and write
    strategy: str  # bandit, beam, greedy or best-of-n
    baselines: Sequence[str]  # of eager, compile, max_autotune
    out: str | Path  # directory of this run alone
    seed: int


def optimize(
    problem: nn.Module | str | Path,
    inputs: Sequence[object] | None = None,
    *,
    progress: Progress | None = None,
    **settings: Unpack[Settings],
) -> Result:
    """Make a module fast, as `kmem optimize` does, and return what came of it.

        result = kmem.optimize(model.eval(), inputs=(x,), target="h200", minutes=5)
        print(result)

    Args:
        problem: a problem file (or a directory with problem.py), or a module. A module is written
            as a problem file by `torch.export`, in the mode in which it is, without its weights.
        inputs: the positional arguments of one forward of a module; None for a file.
        progress: called with each event of the run: its stage, a sentence, the best time so far.
        settings: see `Settings`; what is not given is as `kmem optimize` has it.

    Raises ProblemError, TargetError, ProviderError, OutputError: each with its remedy.
    """
    registry = collect(build_plugin_manager())
    told = _settings(settings)
    check_models(told.models, registry.providers)
    run = new_run(_problem_file(problem, inputs), told)
    audience = Audience(nullcontext(progress or _ignore), lambda text: None)
    performed = perform(run, registry, audience)
    return Result(run, performed.finished.result)


def _ignore(event: Event) -> None:
    """Nobody watches."""


def _problem_file(problem: nn.Module | str | Path, inputs: Sequence[object] | None) -> Path:
    if not isinstance(problem, nn.Module):
        if inputs is not None:
            raise ProblemError(
                f"{problem} is a file, whose get_inputs() gives the inputs; leave inputs= out"
            )
        return Path(problem)
    if inputs is None:
        raise ProblemError(
            f"A {type(problem).__name__} is made fast for inputs of one shape; give them: "
            "inputs=(x,)"
        )
    # beside the database, for a run that is resumed reads it again
    return write_problem(problem, inputs, default_db_path().parent / "problems")


def _settings(given: Settings) -> RunSettings:
    refuse_unknown("optimize", given, Settings)
    budget = Budget()
    models = tuple(given.get("models", ()))
    out = given.get("out")
    return RunSettings(
        Budget(
            given.get("rounds", budget.rounds),
            given.get("minutes", budget.minutes),
            usd=given.get("usd"),
            tokens=given.get("tokens"),
            baselines=tuple(given.get("baselines", budget.baselines)),
        ),
        Contract(
            choose(Precision, given.get("precision", "match")),
            choose(Purity, given.get("purity", "library")),
        ),
        given.get("target"),
        given.get("mode"),
        given.get("memory", "rw"),
        ("recipes", "llm") if models else ("recipes",),
        models,
        choose(Strategy, given.get("strategy", "bandit")),
        Path(out) if out is not None else None,
        given.get("seed", 0),
    )
