"""`kmem optimize`: the main job, with a live display of where it stands."""

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from kmem.cli import EXIT_INTERRUPTED
from kmem.cli.model_options import choose_models, model_options
from kmem.cli.options import memory_option, precision_option, purity_option, target_option
from kmem.errors import KmemError
from kmem.plugins import Registry
from kmem.records import (
    Budget,
    Contract,
    Device,
    Precision,
    Problem,
    Purity,
    Run,
    RunResult,
    RunState,
    Strategy,
)

if TYPE_CHECKING:
    from rich.live import Live
    from rich.panel import Panel

    from kmem.explore.models.cost.usage import Usage
    from kmem.memory.store import Memory
    from kmem.run.directory import RunDirectory
    from kmem.run.workbench import Event

EXIT_NOTHING_BEAT_BASELINE = 3

#: Who writes kernels, by what --author says, in the order in which they seed.
AUTHORS = {"recipes": ("recipes",), "llm": ("llm",), "both": ("recipes", "llm")}


@click.command()
@click.argument("problem", type=click.Path(path_type=Path))
@click.option(
    "--rounds",
    type=click.IntRange(min=0),
    default=4,
    show_default=True,
    help="Rounds after the first.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=3.0,
    show_default=True,
    help="Wall-clock budget; timing the module itself is apart.",
)
@target_option
@precision_option
@purity_option
@memory_option
@click.option(
    "--author",
    type=click.Choice(list(AUTHORS)),
    default="recipes",
    show_default=True,
    help=(
        "Who writes kernels: executable skills, language models (needs -m), or both: recipes seed "
        "and models go on."
    ),
)
@model_options
@click.option(
    "--strategy",
    type=click.Choice([item.value for item in Strategy]),
    default="bandit",
    show_default=True,
    help="How a round's candidates are shared out; best-of-n is the control that search must beat.",
)
@click.option(
    "--usd",
    type=click.FloatRange(min=0),
    help="Most that language models may cost; default: no limit.",
)
@click.option(
    "--tokens",
    type=click.IntRange(min=0),
    help="Most tokens that language models may read and write; default: no limit.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    envvar="KMEM_OUT",
    help="Run directory; default: runs/<problem>-<run id>.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of every random choice.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.pass_obj
def optimize(
    registry: Registry,
    problem: Path,
    rounds: int,
    minutes: float,
    target: str | None,
    precision: str,
    purity: str,
    memory_mode: str,
    author: str,
    models: tuple[str, ...],
    base_url: str | None,
    temperatures: tuple[str, ...],
    efforts: tuple[str, ...],
    output_limits: tuple[str, ...],
    strategy: str,
    usd: float | None,
    tokens: int | None,
    out: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Make the module in PROBLEM fast.

    PROBLEM is a Python file (or a directory with problem.py) that defines Model, get_inputs() and
    perhaps get_init_inputs(). The winner is best_kernel.py in the run directory, with report.md
    beside it and the three fastest kernels in top_kernels/. Exit code 0: a verified kernel was
    produced; 3: nothing beat the best baseline; 130: interrupted, and `kmem runs resume` goes on.
    """
    # these import torch, which `kmem --help` should not pay for
    from kmem.devices import resolve_target
    from kmem.problem.load import load_problem

    loaded = load_problem(problem)
    device, _ = resolve_target(target)
    run = make_run(
        loaded,
        device.name,
        Contract(Precision(precision), Purity(purity)),
        Budget(rounds, minutes, usd=usd, tokens=tokens),
        memory_mode,
        seed,
        out,
    )
    run = replace(run, authors=AUTHORS[author], strategy=Strategy(strategy))
    if author != "recipes":
        if not models:
            raise click.UsageError(f"--author {author} needs a language model: give one with -m")
        run = replace(
            run,
            models=choose_models(
                models, registry.providers, base_url, temperatures, efforts, output_limits
            ),
        )
    elif click.get_current_context().get_parameter_source("models") is ParameterSource.COMMANDLINE:
        raise click.UsageError(
            "-m names a language model, but --author recipes asks none: add --author llm or "
            "--author both"
        )
    execute_run(run, registry, as_json=as_json)


def make_run(
    problem: Problem,
    target: str,
    contract: Contract,
    budget: Budget,
    memory_mode: str,
    seed: int,
    out: Path | None,
) -> Run:
    """A new run with an id of its own."""
    import secrets
    from datetime import UTC, datetime

    run_id = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2)
    place = out or Path("runs") / f"{problem.name}-{run_id}"
    return Run(
        run_id,
        problem,
        target,
        contract,
        budget,
        memory_mode,
        seed,
        str(place.resolve()),
        datetime.now(UTC).isoformat(timespec="seconds"),
    )


def execute_run(run: Run, registry: Registry, *, as_json: bool) -> None:
    """Run or resume, show progress on stderr, print the result on stdout, and exit with its code."""
    from kmem.devices import resolve_target
    from kmem.explore.models.cost.budget import Spending
    from kmem.memory.runs.conversations import RunArchive
    from kmem.memory.store import Memory
    from kmem.run.directory import RunDirectory
    from kmem.run.evaluator import Announce, EvaluatorProcesses, LiveEvaluator
    from kmem.run.loop import optimize as run_loop
    from kmem.run.report import summarise, write_report
    from kmem.run.session import open_session
    from kmem.serialize import to_json

    directory = RunDirectory(Path(run.out_dir))
    device, present = resolve_target(run.target)
    with Memory() as memory, directory.work():
        memory.runs.start(run)
        click.echo(f"run {run.id} in {run.out_dir}", err=True)
        kills = directory.kills()
        if kills:
            click.echo(
                f"the process at work on it was killed; taken up again at {kills[-1]}", err=True
            )
        try:
            if present:
                device = measured_ceilings(device, memory)
            # beside the database: compiled kernels are shared by all runs
            with (
                EvaluatorProcesses(
                    Path(run.out_dir), memory.path.parent / "cache", present=present
                ) as processes,
                Progress(run) as show,
            ):
                session = open_session(run.problem, run.contract, device, present, registry, memory)

                def open_evaluator(announce: Announce) -> LiveEvaluator:
                    return LiveEvaluator(run, session, registry, processes, announce)

                result = run_loop(
                    run, session, memory, registry, show, open_evaluator=open_evaluator
                )
            usage = Spending(run.budget, RunArchive(memory.path, run.id)).usage()
            lessons = memory.runs.lessons(run.id)
            report = write_report(
                directory,
                run,
                result,
                memory.runs.attempts(run.id),
                memory.runs.diagnoses(run.id),
                (
                    *session.notes,
                    *(f"its process was killed; taken up again at {time}" for time in kills),
                ),
                lessons=lessons,
                usage=usage,
            )
            directory.write_text("result.json", to_json(result))
        except KeyboardInterrupt:
            click.echo(
                f"\nInterrupted. Nothing measured is lost: kmem runs resume {run.id}", err=True
            )
            memory.runs.set_state(run.id, RunState.INTERRUPTED)
            raise SystemExit(EXIT_INTERRUPTED) from None
        except BaseException as ex:
            memory.runs.set_state(run.id, RunState.FAILED)
            if isinstance(ex, KmemError) and memory.runs.attempts(run.id):
                click.echo(
                    f"Nothing measured is lost; when it is mended: kmem runs resume {run.id}",
                    err=True,
                )
            raise
    click.echo(summarise(result), err=True)
    if worth := sum(lesson.worth_a_skill for lesson in lessons):
        click.echo(
            (
                f"{worth} of {len(lessons)} lessons may hold for other modules: kmem skills "
                f"distill {run.id}"
            ),
            err=True,
        )
    if result.best is not None:  # otherwise the summary says so
        click.echo(f"It stopped because {result.reason}.", err=True)
    click.echo(f"report: {report}", err=True)
    if as_json:
        click.echo(json.dumps(result_summary(run, result, directory, usage)))
    elif result.best is not None:
        click.echo(str(directory.best_kernel))
    if result.best is None:
        raise SystemExit(EXIT_NOTHING_BEAT_BASELINE)


def measured_ceilings(device: Device, memory: "Memory") -> Device:
    """The device with its rates as measured here: remembered, or measured now and kept.

    The bound is only as good as these.

    Of several runs that start together one measures, with the GPU to itself, and the others wait
    for what it finds. Where GPUs of one name are measured at once, all take what was kept first.
    """
    from kmem.measure.resources import open_lease
    from kmem.profile.ceilings import measure_ceilings
    from kmem.run.session import versions

    known = memory.devices.ceilings(device.name)
    if known is not None:
        return known
    with (
        open_lease(
            memory.path.parent / "cache" / "locks", lambda text: click.echo(text, err=True)
        ) as lease,
        lease.hold(exclusive=True),
    ):
        known = memory.devices.ceilings(device.name)
        if known is not None:
            return known
        click.echo("measuring what this GPU can do at most (once)", err=True)
        measured = measure_ceilings(device)
        with memory.storage.write():
            known = memory.devices.ceilings(device.name)
            if known is None:
                memory.devices.put_ceilings(measured, versions())
        return known or measured


def result_summary(
    run: Run, result: RunResult, directory: "RunDirectory", usage: "Sequence[Usage]"
) -> dict[str, object]:
    """The result as one flat JSON object; times in ms, `estimated` true where no GPU measured them.

    `recalled` says that the winner came from memory: its speedup is no new gain. `usage` has a row
    per role and model, the total last.
    """
    from kmem.explore.models.cost.usage import total_usage

    timing = result.best.measurement.timing if result.best else None
    return {
        "run": run.id,
        "problem": result.problem,
        "target": result.target,
        "estimated": result.estimated,
        "status": "passed" if result.best else "baseline_is_best",
        "latency_ms": timing.latency_ms if timing else None,
        "speedup": result.speedup,
        "ratio_low": timing.ratio_low if timing else None,
        "ratio_high": timing.ratio_high if timing else None,
        "baselines_ms": {
            baseline.name: baseline.timing.latency_ms
            for baseline in result.baselines
            if baseline.timing
        },
        "paired_baseline_ms": timing.reference_ms if timing else None,
        "bound_ms": result.bound.time_ms if result.bound else None,
        "speed_of_light": result.speed_of_light,
        "precision": run.contract.precision.value,
        "purity": run.contract.purity.value,
        "library_share": result.best.measurement.library_share if result.best else None,
        "recalled": result.recalled,
        "authors": list(run.authors),
        "strategy": run.strategy.value,
        "usage": [asdict(row) for row in (*usage, total_usage(usage))],
        "flags": list(result.flags),
        "within_kernelbench": "beyond_kernelbench" not in result.flags if result.best else None,
        "measurements": result.measurements,
        "seconds": round(result.seconds, 1),
        "choices": [
            {
                "site": choice.site,
                "operator": choice.operator,
                "recipe": choice.recipe,
                "knobs": dict(choice.knobs),
            }
            for choice in (result.best.candidate.kernel.choices if result.best else ())
        ],
        "best_kernel": str(directory.best_kernel) if result.best else None,
        "top_kernels": [str(path) for path in directory.top_kernels()],
        "report": str(directory.root / "report.md"),
        "reason": result.reason,
    }


class Progress(AbstractContextManager["Callable[[Event], None]"]):
    """A live panel on a terminal, plain lines elsewhere, with the time since the start: stage, best
    time, distance to the bound, budget.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._live: Live | None = None
        self._recent = [
            f"{'trace':11} tracing {run.problem.name} and finding the bound for {run.target}"
        ]
        self._event: Event | None = None
        self._event_at = 0.0
        self._started = time.monotonic()

    def __enter__(self) -> "Callable[[Event], None]":
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True)
        if not console.is_terminal:
            return self._print_line
        self._live = Live(
            get_renderable=self._render, console=console, refresh_per_second=4, transient=True
        )
        self._live.__enter__()
        return self._update

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, value, traceback)

    def _print_line(self, event: "Event") -> None:
        seconds = time.monotonic() - self._started
        click.echo(
            (
                f"{event.stage:11} {event.text}  [{_standing(event, event.seconds_left)}, at "
                f"{seconds:.1f} s]"
            ),
            err=True,
        )

    def _update(self, event: "Event") -> None:
        self._recent = [*self._recent[-5:], f"{event.stage:11} {event.text}"]
        self._event, self._event_at = event, time.monotonic()

    def _render(self) -> "Panel":
        """Called four times a second, so that the time left runs also while a stage works."""
        from rich.panel import Panel
        from rich.text import Text

        lines = list(self._recent)
        if self._event is not None:
            left = max(0.0, self._event.seconds_left - (time.monotonic() - self._event_at))
            lines += ["", _standing(self._event, left)]
        # Text, not markup: a message may hold square brackets.
        return Panel(
            Text("\n".join(lines)),
            title=Text(f"{self._run.problem.name} on {self._run.target}"),
            title_align="left",
        )


def _standing(event: "Event", seconds_left: float) -> str:
    unit = " ms est." if event.estimated else " ms"
    parts = [
        f"best {event.best_ms:.4g}{unit}" if event.best_ms is not None else "nothing passed yet"
    ]
    if event.baseline_ms is not None:
        parts.append(f"baseline {event.baseline_ms:.4g}{unit}")
    if event.speed_of_light is not None:
        parts.append(f"{event.speed_of_light:.0%} of bound")
    parts.append(f"{event.measurements} measured")
    if seconds_left < math.inf:  # a replay has no clock
        parts.append(f"{seconds_left:.0f} s left")
    return ", ".join(parts)
