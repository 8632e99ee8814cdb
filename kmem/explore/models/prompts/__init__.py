"""What a role is told: a system message by role, and a user message made of sections.

The texts of the system messages are <role>.md and rules.md in this directory.

- system.py: the system message: a role's prompt file with the contract's rules filled in.
- rendering.py: pieces of text that sections are made of: fenced blocks, table cells, short logs.
- excerpts.py: what matters of a kernel file: kernels, launches, constants.
- sections.py: sections on the task at hand: module, graph, device, diagnosis, skills, kernels.
- history.py: sections on the run so far: attempts, lessons, vetoes, and a failed file's log.
- background.py: sections on what a run knows beside: times, launches, remembered kernels, pitfalls.
- briefs.py: which sections each role reads, in which order.
- message.py: the user message: sections shrunk until they fit a role's limit.
"""
