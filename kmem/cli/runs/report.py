"""`kmem report`: what came of a run, as text or as one file to share."""

from pathlib import Path

import click

from kmem.cli.options.run_name import RUN_NAME
from kmem.memory.store import Memory
from kmem.run.directory import RunDirectory


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN_NAME)
@click.option("--html", "as_html", is_flag=True, help="Write the page of the run as one file.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write; default with --html: report.html in the run directory.",
)
def report(run_id: str, as_html: bool, out: Path | None) -> None:
    """Show the report of a run, or write its page as one HTML file.

    The file needs nothing else: it has its styles, its plot and the source of its fastest kernels,
    and runs no script. RUN may be a unique prefix of its id, its directory, or a problem's name,
    for its latest run.
    """
    with Memory.to_read() as memory:
        run = memory.runs.get(run_id)
        if as_html:
            from kmem.ui.one_file import render_run  # templates and colours, for this option alone

            text, name = render_run(memory, run.id), "report.html"
        else:
            text, name = _read_report(Path(run.out_dir)), "report.md"
    if not as_html and out is None:
        click.echo(text, nl=False)
        return
    place = out or Path(run.out_dir) / name
    written = RunDirectory(place.absolute().parent).write_text(place.name, text)
    click.echo(str(written))


def _read_report(root: Path) -> str:
    place = root / "report.md"
    if not place.is_file():
        raise click.ClickException(
            f"{place} is not there: the run has not finished, or its directory was moved; "
            "--html makes a report from memory"
        )
    return place.read_text(encoding="utf-8")
