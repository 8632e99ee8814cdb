"""Graphs cut into pieces, and the pieces written as problems.

- loops.py: loops over time in a graph.
- scans.py: chunked scans in a graph.
- cut.py: a graph cut into pieces.
- pieces.py: the pieces of a model, equal ones as one, with what they take and could take.
- values.py: how the values of a model are spread.
- free_sizes.py: which sizes of a piece may vary, and how all its others follow from them.
- write_piece.py: a piece as a problem file.
- extract.py: the pieces as files, and told in a table.
"""
