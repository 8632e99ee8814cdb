"""Commands on this machine, and the servers that run on it.

- doctor.py: `kmem doctor`, what this machine can do.
- plugins.py: `kmem plugins`, what is registered.
- ui.py: `kmem ui`, the page.
- mcp.py: `kmem mcp`, the server for coding agents.
"""
