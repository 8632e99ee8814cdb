"""Whole models: looked at, cut into pieces, and made fast piece by piece.

In the order in which a model passes:

- process.py: a question to a process of its own.
- turns.py: the GPU for one process as long as something is timed.
- graphs/: a model as graphs, from what a user names.
- cutting/: graphs cut into pieces, and the pieces written as problems.
- training/: pieces of a model that is trained, each a forward and a backward.
- accounting/: where the time of a model goes, and what is known of its pieces.
- composing/: a model put together again, with kernels in it, and bound to the user's own.
- proving/: a composed model held to its model: right, and faster.
- state.py: how a run on a model stands, kept after every step.
- holding.py: the model of a run held to itself before, with each piece, and in the end.
- opening.py: the model of a run captured, cut, and written as problem files.
- beginning.py: the model of a run held to itself, and timed, while its first pieces are tried.
- trying.py: where the runs of pieces work: here, or on the workers of a crew.
- result.py: what a run on a model came to.
- report.py: its report.md.
- optimizing.py: a run on a model, piece by piece.
- at_shapes.py: a run for each of many shapes of a model.
"""
