"""`kmem mcp`: serve the memory and the judge to coding agents."""

import click

from kmem.plugins import Registry


@click.command()
@click.pass_obj
def mcp(registry: Registry) -> None:
    """Serve skills, profiles, diagnoses and the judge to coding agents.

    Speaks the Model Context Protocol on stdin and stdout. Started by the agent, not by hand: name
    `kmem mcp` as the command of an MCP server in its settings. Verdicts can be recorded until the
    server ends; estimates never.
    """
    from kmem.mcp.server import build_server  # loads the SDK mcp, and torch

    build_server(registry).run()
