"""Row kernels: regions (regions/) as kernels, from a skill's recipe class to text.

- recipe.py: the recipe classes of row-wise and pointwise skills.
- pointwise_body.py: what one program of a pointwise kernel does with its tile.
- pointwise_kernel.py: the kernel, settings and cost of a region without reductions.
- launching.py: index arithmetic of row kernels, and what launchers allocate.
- access.py: loads and stores of row kernels, 16 bytes at a time.
- rotated.py: those of rows that start beside 16 bytes, and which of all kinds a kernel has.
- space.py: settings of row kernels.
- cost.py: what a setting of a row kernel should cost.
- passes.py: text of the passes over a row.
- bodies.py: bodies of row kernels by strategy.
- kernel.py: the kernels and launcher of a region with reductions.
- total.py: the kernel that sums what rows left.
"""
