"""`kmem.optimize`: the main job, from Python."""

import hashlib
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TypedDict, Unpack, overload

import torch
from torch import nn

from kmem.api.from_module import write_problem
from kmem.api.keywords import choose, refuse_unknown
from kmem.deploy.bucketed import Bucketed, carry_out_all
from kmem.deploy.entries import Wide
from kmem.deploy.widening import Ranged, Widening
from kmem.errors import ProblemError
from kmem.explore.models.roles import check_models
from kmem.memory.location import default_db_path
from kmem.plugins import Registry, build_plugin_manager, collect
from kmem.problem.sizing.shapes import read_ranges, read_shapes
from kmem.problem.source.load import load_problem
from kmem.records import (
    Budget,
    Contract,
    ModelChoice,
    Precision,
    Purity,
    Run,
    RunResult,
    Strategy,
)
from kmem.run.directory import default_run_directory
from kmem.run.perform import Audience, perform
from kmem.run.report.result import Result
from kmem.run.setup.settings import RunSettings, new_run
from kmem.run.setup.shapes import runs_for_files, write_shapes
from kmem.run.state.progress import Event

Progress = Callable[[Event], None]
#: Sizes of a file's integers, or the arguments of forwards of a module.
Shapes = str | Path | Sequence[Sequence[object]]
#: Labels of shapes are parts of names of files.
_LONGEST_LABEL = 80


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


@overload
def optimize(
    problem: nn.Module | str | Path,
    inputs: Sequence[object] | None = None,
    *,
    shapes: None = None,
    progress: Progress | None = None,
    **settings: Unpack[Settings],
) -> Result: ...


@overload
def optimize(
    problem: nn.Module | str | Path,
    inputs: Sequence[object] | None = None,
    *,
    shapes: Shapes,
    progress: Progress | None = None,
    **settings: Unpack[Settings],
) -> Bucketed: ...


def optimize(
    problem: nn.Module | str | Path,
    inputs: Sequence[object] | None = None,
    *,
    shapes: Shapes | None = None,
    progress: Progress | None = None,
    **settings: Unpack[Settings],
) -> Result | Bucketed:
    """Make a module fast, as `kmem optimize` does, and return what came of it.

        result = kmem.optimize(model.eval(), inputs=(x,), target="h200", minutes=5)
        print(result)

    Args:
        problem: a problem file (or a directory with problem.py), or a module. A module is written
            as a problem file by `torch.export`, in the mode in which it is, without its weights.
        inputs: the positional arguments of one forward of a module; None for a file.
        shapes: several shapes, each a run of its own, which share the minutes and whose winners
            become one package: for a file the text of `--shapes` ("batch=1,8 seq=128..4096") or a
            file of such lines, for a module the arguments of further forwards ([(y,), (z,)]).
        progress: called with each event of the run: its stage, a sentence, the best time so far.
        settings: see `Settings`; what is not given is as `kmem optimize` has it.

    Raises ProblemError, TargetError, ProviderError, OutputError: each with its remedy.
    """
    registry = collect(build_plugin_manager())
    told = _settings(settings)
    check_models(told.models, registry.providers)

    def carry_out(run: Run) -> RunResult:
        audience = Audience(nullcontext(progress or _ignore), lambda text: None)
        return perform(run, registry, audience).finished.result

    if shapes is None:
        run = new_run(_problem_file(problem, inputs), told)
        return Result(run, carry_out(run))
    files, directory = _problem_files(problem, inputs, shapes, told.out)
    runs = runs_for_files(files, told, directory)
    widen = _widening(problem, shapes, directory, registry)
    return carry_out_all(runs, carry_out, directory, lambda text: None, widen)


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
    return write_problem(problem, inputs, _written_place())


def _written_place() -> Path:
    """Where problem files of modules go: beside the database, for resumed runs read them again."""
    return default_db_path().parent / "problems"


def _problem_files(
    problem: nn.Module | str | Path,
    inputs: Sequence[object] | None,
    shapes: Shapes,
    out: Path | None,
) -> tuple[tuple[tuple[str, Path], ...], Path]:
    """A file for each shape with its label, and where their runs go."""
    if not isinstance(problem, nn.Module):
        if not isinstance(shapes, str | Path) or inputs is not None:
            raise ProblemError(
                f"{problem} is a file: name its sizes, as in shapes='batch=1,8 seq=128..4096'"
            )
        loaded = load_problem(Path(problem))
        directory = out or default_run_directory(f"{loaded.name}-shapes")
        return write_shapes(loaded, read_shapes(str(shapes), loaded), directory), directory
    if isinstance(shapes, str | Path):
        raise ProblemError(
            f"A {type(problem).__name__} has no named sizes: give the arguments of a forward for "
            "each, as in shapes=[(x,), (y,)]"
        )
    directory = out or default_run_directory(f"{type(problem).__name__.lower()}-shapes")
    given = [*([inputs] if inputs is not None else []), *shapes]
    if not given:
        raise ProblemError("shapes= names none; give the arguments of a forward for each")
    by_label = {_label_of_inputs(each): each for each in given}  # each shape once
    files = tuple(
        (label, write_problem(problem, each, _written_place(), label))
        for label, each in by_label.items()
    )
    return files, directory


def _widening(
    problem: nn.Module | str | Path, shapes: Shapes, directory: Path, registry: Registry
) -> Callable[[str, Result], Sequence[Wide]]:
    """Who is asked for the sizes inside of ranges; a module's shapes have none."""
    if isinstance(problem, nn.Module):
        return lambda label, result: ()
    text, loaded = str(shapes), load_problem(Path(problem))
    asked = Widening(loaded, directory, registry, lambda text: None)
    return Ranged(read_shapes(text, loaded), read_ranges(text, loaded), asked).widen


def _label_of_inputs(inputs: Sequence[object]) -> str:
    """A name for the shapes of a forward's arguments: `8x64_float32`."""
    parts = [
        "x".join(map(str, value.shape)) + str(value.dtype).replace("torch.", "_")
        if isinstance(value, torch.Tensor)
        else str(value)
        for value in inputs
    ]
    label = re.sub(r"\W+", "_", "_".join(parts)).strip("_") or "nothing"
    mark = hashlib.sha256(label.encode()).hexdigest()[:8]
    return label if len(label) < _LONGEST_LABEL else f"{label[:_LONGEST_LABEL]}_{mark}"


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
