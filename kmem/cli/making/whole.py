"""`kmem plan` and `kmem extract`: a whole model looked at and cut, before anything is spent."""

from pathlib import Path

import click

from kmem.cli.options.records import takes
from kmem.cli.options.whole import ExtractOptions, ModelOptions
from kmem.plugins import Registry


@click.command()
@click.argument("model")
@takes(ModelOptions)
@click.option(
    "--piece-minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=3.0,
    show_default=True,
    help="Minutes that the search for one piece may take.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def plan(
    registry: Registry, model: str, options: ModelOptions, piece_minutes: float, as_json: bool
) -> None:
    """Show the pieces of a model, what each would save, and what that would cost.

    MODEL is a problem file, problem.py:factory, package:Class(arguments), or a config.json of
    Hugging Face transformers. Nothing is run and nothing is spent: figures are estimates, or what
    memory holds of such pieces.
    """
    from kmem.cli.actions.whole import show_plan  # loads torch

    show_plan(model, options, piece_minutes, as_json=as_json)


@click.command()
@click.argument("model")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@takes(ExtractOptions)
@click.pass_obj
def extract(registry: Registry, model: str, directory: Path, options: ExtractOptions) -> None:
    """Write the pieces of a model as problem files into DIRECTORY.

    MODEL is as for `kmem plan`. Each file has the real shapes, strides and dtypes, and draws values
    with the spread that they have in the model; equal pieces are one file. pieces.json says where
    in the model each piece is, how often it runs and what it takes. Prints the files, those first
    that would save most.
    """
    from kmem.cli.actions.whole import extract_pieces  # loads torch

    extract_pieces(model, directory, options)
