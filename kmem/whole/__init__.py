"""Whole models: looked at, cut into pieces, and made fast piece by piece.

In the order in which a model passes:

- source.py: what a user may name as a model, and the module and inputs behind the name.
- observe.py: with which shapes submodules are called, where only values can show it.
- drawing.py: which operators draw random numbers, and the same numbers drawn again.
- pairing.py: a sum of products of many values, as products of two.
- tidying.py: a captured graph without what only tracing needed.
- capture.py: a model as graphs of plain operators.
- loops.py: loops over time in a graph.
- cut.py: a graph cut into pieces.
- pieces.py: the pieces of a model, equal ones as one, with what they take and could take.
- process.py: a question to a process of its own.
- turns.py: the GPU for one process as long as something is timed.
- measured.py: what each operator takes, measured where there is a GPU.
- remembered.py: what memory holds of the pieces.
- account.py: where the time goes, by operator, submodule, launch and piece.
- values.py: how the values of a model are spread.
- free_sizes.py: which sizes of a piece may vary, and how all its others follow from them.
- write_piece.py: a piece as a problem file.
- extract.py: the pieces as files, and told in a table.
- compose.py: a model put together again, with kernels in the places of pieces.
- recompute.py: a backward for kernels that have none.
- in_place.py: what stands in the place of a module's forward, and how it has fared.
- binding.py: a composed model bound to a user's model, and taken away again.
- bucket_table.py: a model composed at several shapes, and the one that serves a call.
- clock.py: how fast a composed model is beside the model and other ways to run it.
- oracle.py: what a model must compute, in float64 and as its graph was captured.
- proof.py: a composed model held to its model, in a process of its own.
- state.py: how a run on a model stands, kept after every step.
- holding.py: the model of a run held to itself before, with each piece, and in the end.
- beginning.py: the model of a run held to itself, and timed, while its first pieces are tried.
- trying.py: where the runs of pieces work: here, or on the workers of a crew.
- result.py: what a run on a model came to.
- report.py: its report.md.
- optimizing.py: a run on a model, piece by piece.
- at_shapes.py: a run for each of many shapes of a model.
"""
