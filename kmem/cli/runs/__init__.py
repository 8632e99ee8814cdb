"""Commands on runs: those there are, what they did and why.

- past_runs.py: `kmem runs compare`, `diff` and `prune`.
- rounds.py: what was kept of a round, and its words for people and data for programs.
- runs.py: `kmem runs`, with `resume` and `replay`.
- why.py: `kmem why`, the reasons of a round.
- report.py: `kmem report`, what came of a run, also as one file to share.
"""
