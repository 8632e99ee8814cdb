"""How the skill library grows, from others and from runs, and how it leaves as folders for agents.

In the order in which a skill passes through them:

- team_skills.py: skills that travel with a team's outcomes.
- own_skills.py: which skills were made here: their code is the user's own.
- recipe_check.py: whether the code of skills can be imported, in a confined process.
- sources.py: skills that others wrote, from directories, archives, URLs and git repositories.
- change.py: what differs between two kernels, and whether an existing skill explains it.
- wins.py: the measured improvements of a run.
- draft.py: a win as a skill directory.
- distill.py: from runs to drafts, by change.py, wins.py and draft.py.
- search.py: skills found by meaning and by words, with what each earned.
- export.py: the library as folders for coding agents.

Where a skill stands is kmem/memory/skills/standing.py; where added skills lie is
kmem/memory/skills/added.py.
"""
