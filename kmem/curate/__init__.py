"""How the library of skills grows and leaves: what runs taught, what others wrote, and folders for
other agents.

In order: change.py (what differs between two kernels), wins.py (the measured improvements of a
run), draft.py (a win as a skill directory), distill.py (runs to drafts); sources.py (skills from
directories, archives, URLs and git repositories); export.py (the library as folders). Where a skill
stands is kmem/memory/skills/standing.py; where added skills lie is kmem/memory/skills/added.py.
"""
