"""Prescribe: the skills that fit a diagnosis, each with a score and its reasons.

- gate.py: whether a skill applies: typed tests in three-valued logic.
- figures.py: what a claim can still move, and the registers that a thread wants.
- likeness.py: how alike a diagnosis and a skill are: by signature, by meaning, by words.
- rank.py: the skills to offer: gate, likeness and track record put together.
- consult.py: the memory asked for everything that a ranking needs.
"""
