"""Regions: pointwise chains, reductions, softmax, norms and losses, from nodes to statements.

- pointwise.py: pointwise nodes as expressions.
- region.py: a region: a small program over tiles.
- space.py: the spaces over whose rows nodes reduce.
- lowering.py: from nodes to the statements of a region.
- naming.py: names of a region's values that do not count the graph's nodes.
- indices.py: where an element lies: a place along each dimension.
- stepping.py: where it comes from, back through views, concatenations, paddings and shuffles.
- boxes.py: regions around values whose elements are put elsewhere.
- called.py: what the vocabulary calls a region.
- company.py: what joins a region only together with other reductions of the same rows.
- matching.py: which nodes form one region.
- reduction.py: what a kind of reduction keeps, and how its tiles, lanes and parts combine.
- softmax.py: the statistics of softmax.
- reductions.py: all kinds, by name.
"""
