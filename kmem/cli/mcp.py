"""`kmem mcp`: serve the memory and the judge to coding agents."""

import click

from kmem.plugins import Registry

# kmem.mcp imports the mcp SDK and torch: inside the command, so that `kmem --help` does not pay for
# them.


@click.command()
@click.pass_obj
def mcp(registry: Registry) -> None:
    """Serve skills, profiles, diagnoses and the judge to coding agents, over the Model Context
    Protocol on stdin and stdout.

    Started by the agent, not by hand: name `kmem mcp` as the command of an MCP server in its
    settings. Verdicts can be recorded until the server ends; estimates never.
    """
    from kmem.mcp.server import build_server

    build_server(registry).run()
