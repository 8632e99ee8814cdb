"""Regions: pointwise chains, reductions, softmax, norms and losses, from nodes to statements.

- pointwise.py: pointwise nodes as expressions.
- region.py: a region: a small program over tiles.
- lowering.py: from nodes to the statements of a region.
- naming.py: names of a region's values that do not count the graph's nodes.
- indices.py: where an element lies: a place along each dimension.
- stepping.py: where it comes from, back through views, concatenations, paddings and shuffles.
- boxes.py: regions around values whose elements are put elsewhere.
- matching.py: which nodes form one region.
- reductions.py: what each kind of reduction keeps, and how its tiles, lanes and parts combine.
"""
