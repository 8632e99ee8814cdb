"""Pieces of a model that is trained: a forward that saves, and a backward that reads what it saved.

- joint_tracing.py: a piece's forward and backward as two graphs, each a problem of its own.
- saving.py: what of a forward is saved for its backward, and what is computed again.
- groups.py: the pieces of a model, each with its forward and backward.
"""
