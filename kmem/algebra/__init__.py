"""What rewrites share: matching linear maps in a graph, and writing an equal graph.

A skill's rewrite.py (kmem/rewrites.py is its API) is written with these, in the order in which it
needs them:

- inferring.py: what a node makes, as torch says on fake tensors.
- editing.py: a graph with other nodes in place of some, their shapes as torch gives them.
- linear.py: products, convolutions and transposed convolutions read as linear maps.
- reducing.py: reductions, poolings and pointwise affine steps, by what they reduce or keep.
- adding.py: weights added up, so that infinities and NaN come out as from the single ones.
- visiting.py: sums of an image over the positions that each tap of a convolution visits.
"""
