"""`kmem ui`: serve the page to a browser of this machine."""

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kmem.cli.making.optimize import optimize
from kmem.cli.page_beside import open_in_browser
from kmem.memory.location import default_db_path
from kmem.plugins import Registry

if TYPE_CHECKING:
    from kmem.ui.server import PageService

#: How often a page that was started beside a run looks whether that is still there, in seconds.
_LOOK_EVERY_S = 0.5


@click.command()
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Port to listen on; default: 8765, or a free one where that is taken.",
)
@click.option("--open", "opens", is_flag=True, help="Open a browser too.")
@click.option(
    "--landscapes",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("db/evidence/landscapes"),
    show_default=True,
    help="Directory of recorded landscapes to show (kmem bench --record).",
)
@click.option("--beside", type=int, hidden=True, help="The process with which the page ends.")
@click.pass_obj
def ui(
    registry: Registry | None, port: int | None, opens: bool, landscapes: Path, beside: int | None
) -> None:
    """Show runs, kernels, skills and the memory in a browser, live.

    Listens on 127.0.0.1 alone. Reading needs nothing; starting, stopping and resuming runs needs
    the token in the address that is printed. Runs that the page starts go on when it ends; Ctrl-C
    ends it, with exit code 130.
    """
    from kmem.cli.actions.page import page_parts  # loads torch
    from kmem.ui.server import make_service  # a web server, for this command alone

    parts = page_parts(optimize, registry or Registry(), default_db_path(), landscapes)
    service = make_service(parts, port)
    click.echo(service.keys.address)
    click.echo("Ctrl-C ends the page; runs go on.", err=True)
    if opens:
        open_in_browser(service.keys.address)
    if beside is not None:
        threading.Thread(target=_end_with, args=(beside, service), daemon=True).start()
    service.run()


def _end_with(parent: int, service: "PageService") -> None:
    """End the server once the process that started this one is gone, by a kill too."""
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    service.server.should_exit = True
