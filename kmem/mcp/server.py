"""The protocol: tools.py over stdio by the mcp SDK.

Stdout carries the protocol and nothing else; the SDK sends stray prints to stderr. Every failure a
caller can mend is a result marked as an error, in one line that names the remedy. A bug of ours is
logged with its traceback on stderr, and the agent is told that much. The SDK demands async in one
place: how it calls tools.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.context import Context
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp_types import CallToolResult, InputRequiredResult
from pydantic import ValidationError

import kmem
from kmem.errors import KmemError
from kmem.mcp.tools import Tools
from kmem.plugins import Registry

INSTRUCTIONS = """kmem remembers how GPU kernels were made fast, and judges new ones. To speed up a
PyTorch module: best_kernel says what is known for it; diagnose names the bottleneck and offers
skills; explain gives a skill's whole text; write ModelNew in Triton; verify proves it correct;
measure times it on a GPU against the best baseline; record keeps what the judge said. Numbers are
never taken from you."""

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class OneLineServer(MCPServer):
    """Says in one line what is wrong with a call, where the SDK repeats a validator's report."""

    async def call_tool(
        self, name: str, arguments: dict[str, object], context: Context | None = None
    ) -> CallToolResult | InputRequiredResult:
        known = {tool.name: tool for tool in await self.list_tools()}
        if name not in known:
            raise ToolError(f"No tool named '{name}'; there are {', '.join(known)}")
        expected = known[name].input_schema.get("properties", {})
        unknown = [argument for argument in arguments if argument not in expected]
        if unknown:
            raise ToolError(
                f"{name} takes no argument '{unknown[0]}'; it takes {', '.join(expected)}"
            )
        try:
            return await super().call_tool(name, arguments, context)
        except UnexpectedToolError:
            raise
        except ToolError as ex:
            raise ToolError(_one_line(name, ex)) from ex.__cause__


def build_server(registry: Registry) -> MCPServer:
    """The server with every tool; `run()` serves stdio until the client hangs up."""
    tools = Tools(registry)
    server = OneLineServer(
        "kmem", version=kmem.__version__, instructions=INSTRUCTIONS, log_level="WARNING"
    )
    for tool in (
        tools.search_skills,
        tools.explain,
        tools.best_kernel,
        tools.profile,
        tools.diagnose,
        tools.verify,
        tools.measure,
        tools.record,
    ):
        server.add_tool(_mended(tool))
    return server


def _mended(tool: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """The tool with kmem's errors as the SDK's: those whose text is for the caller."""

    @wraps(tool)
    def call(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        try:
            return tool(*arguments, **options)
        except KmemError as ex:
            raise ToolError(str(ex)) from ex

    return call


def _one_line(name: str, error: ToolError) -> str:
    if isinstance(error.__cause__, ValidationError):
        faults = [
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg'].lower()}"
            for fault in error.__cause__.errors()
        ]
        return f"{name} cannot be called so: {'; '.join(faults)}"
    return str(error).removeprefix(f"Error executing tool {name}: ")
