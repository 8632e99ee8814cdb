"""The memory and the judge for coding agents, over the Model Context Protocol: `kmem mcp`.

- server.py: the protocol, by the mcp SDK over stdio; every error is one line.
- arguments.py: the arguments that several tools share: their schema, and how they are read.
- tools.py: the tools, which run the same code as the commands of the same names.
- explanations.py: what the tool `explain` answers about a skill or a run.
- verdicts.py: what the judge of this server said, which is all that can be recorded.
"""
