"""`kmem optimize`: the main job."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import click
from click.core import ParameterSource

from kmem.cli.options.authors import needed_models, with_author
from kmem.cli.options.records import nested, takes
from kmem.cli.options.run import RunOptions
from kmem.cli.options.whole import PieceOptions, is_no_file
from kmem.cli.options.words import words_of
from kmem.cli.page_beside import page_beside
from kmem.plugins import Registry

#: Options of this command that say nothing about the search.
_STAYS_HERE = frozenset({"executor", "address", "out", "as_json", "ui", "shapes"})
#: Of a whole model, where --minutes does not say.
MODEL_MINUTES = 30.0


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """The options of `kmem optimize`: of a run, and of a model that is cut into pieces."""

    run: RunOptions = nested(RunOptions)
    pieces: PieceOptions = nested(PieceOptions)


@click.command()
@click.argument("problem", metavar="PROBLEM|MODEL")
@takes(OptimizeOptions)
@click.option(
    "--shapes",
    metavar="TEXT|FILE",
    help="Sizes of the file's top-level integers, as in 'batch=1,8,64 seq=128..4096', or a file of "
    "such lines; a range is its borders and the powers of two between. A run for each, which share "
    "--minutes; what they find becomes one package, in DIR/package, which serves a range's other "
    "sizes too where a kernel's code is the same for them. Of a whole model, sizes of its inputs, "
    "or names in the brackets of --input; a call at another shape runs the model's own code.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.option("--ui", is_flag=True, help="Serve the page and open it on this run.")
@click.pass_context
def optimize(
    context: click.Context,
    problem: str,
    options: OptimizeOptions,
    shapes: str | None,
    as_json: bool,
    ui: bool,
) -> None:
    """Make the module in PROBLEM fast.

    PROBLEM is a Python file (or a directory with problem.py) that defines Model, get_inputs() and
    perhaps get_init_inputs(). The winner is best_kernel.py in the run directory, with report.md
    beside it and the three fastest kernels in top_kernels/. Exit code 0: a verified kernel was
    produced; 3: nothing beat the best baseline; 130: interrupted, and `kmem runs resume` goes on.

    MODEL is a whole model: problem.py:factory, package:Class(arguments), a config.json of Hugging
    Face transformers, or a problem file with --pieces. It is tried as one problem, then its pieces,
    as long as they pay, each a run of its own; composed/ in the run directory is what `kmem.load`
    and `kmem.apply` take.
    The same command with the same --out goes on with a run that was ended, or that has finished
    if it is given more minutes. It counts as won if the whole beats the fastest of eager,
    torch.compile and max-autotune launched alike: as they are called, or each as one CUDA graph.

    With --executor the run works on a machine of a cluster, on a GPU there unless --target names a
    device to write for. What it commits comes back as it goes; after an interrupt the same command
    with the same --out goes on. Of a whole model the pieces are tried there, some at once; the
    whole is held to its model here, on a GPU like theirs.
    """
    registry: Registry = context.obj
    run_options, pieces = options.run, options.pieces
    is_model = pieces.pieces or is_no_file(problem)
    if not is_model:
        _refuse_options_of_models(context)
    is_elsewhere = run_options.where.executor != "local"
    if is_elsewhere:
        _refuse_what_stays_here(run_options)
    elif pieces.gpus is not None:
        raise click.UsageError("--gpus says how many pieces are tried at once with --executor")
    if is_elsewhere and not is_model:
        from kmem.cli.actions.optimize_away import optimize_away  # loads torch

        words = words_of(context, _STAYS_HERE)
        optimize_away(Path(problem), words, run_options, registry, as_json=as_json)
        return
    run_options = with_author(run_options)
    models = needed_models(registry, run_options)
    if is_model:
        if ui or run_options.start is not None or run_options.test is not None:
            raise click.UsageError(
                "A whole model takes no --ui, --from or --test; run a piece by itself"
            )
        if context.get_parameter_source("minutes") is ParameterSource.DEFAULT:
            run_options = replace(run_options, minutes=MODEL_MINUTES)
        from kmem.cli.actions.whole_run import run_model  # loads torch

        run_model(problem, run_options, pieces, models, registry, shapes=shapes, as_json=as_json)
        return
    from kmem.cli.actions.optimize import execute_run, make_run, run_settings  # loads torch

    if shapes is not None:
        if ui:
            raise click.UsageError("--ui opens on one run; for --shapes start kmem ui beside it")
        from kmem.cli.actions.shapes import execute_shapes

        settings = run_settings(Path(problem), run_options, models)
        execute_shapes(Path(problem), shapes, settings, registry, as_json=as_json)
        return
    run = make_run(Path(problem), run_options, models)
    with page_beside(run) if ui else nullcontext():
        execute_run(run, registry, as_json=as_json)


def _refuse_options_of_models(context: click.Context) -> None:
    names = {
        "inputs": "--input",
        "piece_minutes": "--piece-minutes",
        "least_gain": "--least-gain",
        "within": "--within",
        "backward": "--backward",
        "gpus": "--gpus",
    }
    for name, said in names.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{said} is for a model that is cut into pieces; add --pieces")


def _refuse_what_stays_here(options: RunOptions) -> None:
    """Raise UsageError for what would have to leave this machine."""
    context = click.get_current_context()
    refused = {
        "--from": options.start is not None,
        "--test": options.test is not None,
        "--shapes": context.params["shapes"] is not None,
        "--ui": context.params["ui"],
        "language models": options.author != "recipes" or bool(options.models.models),
    }
    if named := [name for name, given in refused.items() if given]:
        raise click.UsageError(
            f"{named[0]} does not go with --executor {options.where.executor}: it would have to "
            "leave this machine; run without it, or here"
        )
