"""A model as graphs, from what a user names.

- source.py: what a user may name as a model, and the module and inputs behind the name.
- observe.py: with which shapes submodules are called, where only values can show it.
- drawing.py: which operators draw random numbers, and the same numbers drawn again.
- pairing.py: a sum of products of many values, as products of two.
- tidying.py: a captured graph without what only tracing needed.
- needs.py: which values of a graph have gradients, and what stays the library's in training.
- joint.py: a piece that is trained, as two graphs.
- capture.py: a model as graphs of plain operators.
"""
