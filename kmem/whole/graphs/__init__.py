"""A model as graphs, from what a user names.

- source.py: what a user may name as a model, and the module and inputs behind the name.
- observe.py: with which shapes submodules are called, where only values can show it.
- drawing.py: which operators draw random numbers, and the same numbers drawn again.
- pairing.py: a sum of products of many values, as products of two.
- tidying.py: a captured graph without what only tracing needed.
- capture.py: a model as graphs of plain operators.
"""
