"""`kmem memory ablate`: searches with and without memory on recorded landscapes, compared."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from kmem.cli.actions.crews import crew_directory, find_executor, say
from kmem.cli.actions.termination import interrupt_on_termination
from kmem.cli.display.landscapes import show_comparison
from kmem.cli.options.ablation import AblationOptions
from kmem.engines.executor import Wanted
from kmem.errors import LandscapeError
from kmem.learning.ablation import Lanes, Setup, Trial, ablate
from kmem.learning.arms import Arm
from kmem.learning.comparison import compare_arms
from kmem.learning.elsewhere import lanes_of
from kmem.learning.landscape import Landscape, LandscapeDirectory
from kmem.learning.picture import draw_ablation
from kmem.plugins import Registry
from kmem.records import Strategy
from kmem.serialize import to_data


def ablate_suite(
    root: Path, options: AblationOptions, registry: Registry | None, *, as_json: bool
) -> None:
    """Search with every arm on recorded landscapes, and print how the arms compare.

    The table goes to stdout, or to stderr where stdout has the JSON object that was asked for.

    Raises LandscapeError if no setting of any landscape has passed.
    """
    setup = Setup(
        read_arms(options.arms), options.seeds, options.left_out, Strategy(options.strategy)
    )
    directory = LandscapeDirectory(root)
    found = directory.read(options.only)
    landscapes = [landscape for landscape in found if landscape.is_searchable]
    empty = [landscape.name for landscape in found if not landscape.is_searchable]
    unfinished = [
        landscape for landscape in landscapes if not directory.is_finished(landscape.name)
    ]
    _tell_what_is_missing(empty, unfinished)
    if not landscapes:
        raise LandscapeError(
            f"No setting of any landscape in {root} has passed; go on with kmem bench SUITE "
            f"--record {root}"
        )
    click.echo(
        f"{len(landscapes)} landscapes, {len(setup.arms)} arms, {setup.seeds} seeds", err=True
    )
    with _lanes(root, setup, options, registry or Registry()) as lanes:
        trials = ablate(
            landscapes,
            setup,
            lambda done, total: click.echo(f"seed {done} of {total}", err=True),
            lanes,
        )
    compared = compare_arms(trials)
    summary = {
        "landscapes": {landscape.name: len(landscape.settings) for landscape in landscapes},
        "recorded_in_part": sorted(landscape.name for landscape in unfinished),
        "left_out_as_empty": empty,
        "devices": sorted({landscape.header.device.full_name for landscape in landscapes}),
        "setup": to_data(setup),
        "arms": [to_data(entry) for entry in compared],
    }
    if options.out is not None:
        without = f", without {', '.join(setup.left_out)}" if setup.left_out else ""
        title = f"{len(landscapes)} problems, {setup.seeds} seeds, {options.strategy}{without}"
        _keep(options.out, trials, summary, title)
    show_comparison(compared, on_stderr=as_json)
    if options.out is not None:
        click.echo(f"trials, comparison and plot: {options.out}", err=True)
    if as_json:
        click.echo(json.dumps(summary, sort_keys=True))


@contextmanager
def _lanes(
    root: Path, setup: Setup, options: AblationOptions, registry: Registry
) -> Iterator[Lanes | None]:
    """Where seeds are run: None for the cores of this machine."""
    if options.where.executor == "local":
        yield None
        return
    executor = find_executor(registry, options.where)
    with crew_directory() as place, interrupt_on_termination():
        wanted = Wanted(0, setup.seeds, address=options.where.address, directory=place)
        with executor.hire(wanted, say) as crew:
            yield lanes_of(crew, root, say)


def read_arms(names: str) -> tuple[Arm, ...]:
    """Arms from their names, in the order of the table.

    `off` is always among them, since the others are compared with it.
    """
    named = {name.strip() for name in names.split(",") if name.strip()}
    unknown = sorted(named - {arm.value for arm in Arm})
    if unknown:
        raise click.UsageError(
            f"No arm is called {', '.join(unknown)}; there are "
            f"{', '.join(arm.value for arm in Arm)}."
        )
    return tuple(arm for arm in Arm if arm.value in named or arm is Arm.OFF)


def _tell_what_is_missing(empty: Sequence[str], unfinished: Sequence[Landscape]) -> None:
    if empty:
        click.echo(f"left out, for no setting of theirs has passed: {', '.join(empty)}", err=True)
    if unfinished:
        counts = ", ".join(
            f"{landscape.name} ({len(landscape.settings)})" for landscape in unfinished
        )
        click.echo(
            f"recorded in part, searched as if there were no other settings: {counts}", err=True
        )


def _keep(place: Path, trials: Sequence[Trial], summary: dict[str, object], title: str) -> None:
    """Write trials, comparison and plot into a directory."""
    place.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(to_data(trial), sort_keys=True) + "\n" for trial in trials)
    (place / "trials.jsonl").write_text(lines, encoding="utf-8")
    (place / "comparison.json").write_text(
        json.dumps(summary, indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )
    draw_ablation(place / "ablation.png", trials, title=title)
