"""From a traced graph to Triton: what recipes share, and the file that holds what they wrote.

A room imports only from those above it. What one skill needs alone lies beside its recipe.py.

What everything below asks:

- settings.py: settings as a record, and what their tiles are laid out for.
- rates.py: what a device reaches under load.
- steady.py: what parameters alone decide of a forward.
- text/: kernels and launchers as text, written and read.

What is fused:

- regions/: pointwise chains and reductions, from nodes to the statements of a small program.
- chains/: what stands around an anchor, as functions and statements of its kernel.

The anchors, a family each: what of a graph it matches, its settings and costs, its kernels. None
imports another:

- rows/: regions as kernels: pointwise chains, reductions, softmax, norms, losses.
- scans/: running sums and products.
- products/: matrix products.
- convolutions/: convolutions and poolings.

The file:

- module/: what recipes wrote as one module, with constants, launchers and a forward.

A recipe begins with its family's class, where one fits: `RowRecipe` and `PointwiseRecipe`
(rows/recipe.py), `ScanRecipe` (scans/recipe.py), `TiledProducts` (products/tiled_recipe.py),
`StagedConv` (convolutions/staged_recipe.py). One with kernels of its own takes its sites from
products/sites.py or convolutions/convolution.py, what follows them from chains/, its settings'
record from settings.py, times from rates.py, and writes launches with text/calls.py.
"""
