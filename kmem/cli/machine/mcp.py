"""`kmem mcp`: serve the memory and the judge to coding agents."""

import os
import signal
import sys

import click

from kmem.cli.exit_codes import EXIT_INTERRUPTED
from kmem.plugins import Registry


@click.command()
@click.pass_obj
def mcp(registry: Registry) -> None:
    """Serve skills, profiles, diagnoses and the judge to coding agents.

    Speaks the Model Context Protocol on stdin and stdout. Started by the agent, not by hand: name
    `kmem mcp` as the command of an MCP server in its settings. Verdicts can be recorded until the
    server ends; estimates never. Ctrl-C ends it, with exit code 130.
    """
    if sys.stdin.isatty():
        click.echo(
            "kmem mcp is a server for coding agents and waits for one on stdin: name `kmem mcp` as "
            "the command of an MCP server in your agent's settings. Ctrl-C ends it.",
            err=True,
        )
    from kmem.mcp.server import build_server  # loads the SDK mcp, and torch

    server = build_server(registry)
    signal.signal(signal.SIGINT, _end)
    server.run()


def _end(number: int, frame: object) -> None:
    """End at once, as SIGTERM does.

    An exception would not: the SDK reads stdin in a thread, for which Python waits until there is a
    line. What the judge started ends by itself when its pipe breaks.
    """
    click.echo("\nInterrupted", err=True)
    os._exit(EXIT_INTERRUPTED)
