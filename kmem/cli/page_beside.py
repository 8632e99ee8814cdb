"""The page in a process beside a run, opened on it: `kmem optimize --ui`."""

import os
import subprocess
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from urllib.parse import quote

import click

from kmem.cli.exit_codes import EXIT_INTERRUPTED
from kmem.records import Run

_say = partial(click.echo, err=True)
#: One of these says that there is a screen, or a browser that the user chose.
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


@contextmanager
def page_beside(run: Run) -> Iterator[None]:
    """Serve the page while the block runs, and say where.

    At a terminal it stays after the run's end until Ctrl-C; otherwise it ends with the run. A kill
    of this process ends it too.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "kmem", "ui", "--beside", str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    # its address takes a second or two, for which the run does not wait
    telling = threading.Thread(target=_tell, args=(process, run.id), daemon=True)
    telling.start()
    try:
        try:
            yield
        except SystemExit as ex:
            if ex.code != EXIT_INTERRUPTED:
                _stay(process)
            raise
        _stay(process)
    finally:
        process.terminate()
        process.wait()
        telling.join()


def open_in_browser(address: str) -> None:
    """Open an address where there is a screen: a browser of text would take the terminal."""
    if sys.platform != "linux" or any(os.environ.get(name) for name in _SCREENS):
        webbrowser.open(address)


def _tell(process: "subprocess.Popen[str]", run_id: str) -> None:
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    if not address:  # it ended before it could serve
        _say("The page could not be served; `kmem ui` says why.")
        return
    place = address.replace("/?", f"/starting/{quote(run_id, safe='')}?", 1)
    _say(f"page: {place}")
    open_in_browser(place)


def _stay(process: "subprocess.Popen[str]") -> None:
    """Wait for Ctrl-C, or the end of the page."""
    if process.poll() is not None or not sys.stderr.isatty():
        return
    _say("The page stays until Ctrl-C; `kmem ui` shows it again.")
    try:
        process.wait()
    except KeyboardInterrupt:
        return
