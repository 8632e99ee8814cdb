"""The memory and the judge for coding agents, over the Model Context Protocol: `kmem mcp`.

server.py speaks the protocol (mcp SDK, stdio) and turns errors into one line each; tools.py are the
tools, plain functions over the library; verdicts.py remembers what the judge of this server said,
which is all that can be recorded.
"""
