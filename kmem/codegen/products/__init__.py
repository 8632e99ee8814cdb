"""Matrix products, from a graph to kernels; those that serve one skill lie beside its recipe.py.

What a product is, and what it does to its operands:

- prologue.py: what is done to an operand of a product while it is read.
- places.py: places along axes as text, through operators that lay data out anew.
- unpacking.py: what a product does to packed weights while it reads them.
- contraction.py: matrix products of every spelling in one form.

Sites:

- sites.py: the products of a graph as sites.
- joined.py: several products of one operand as one: the copy of their weights.
- joined_text.py: what follows joined products, as the statements of one function.
- joined_sites.py: two products of one operand and what is made of both.
- shared_sites.py: products of one operand that are written in one launch.
- partial_rows.py: rows of a product reduced where its tiles are stored.

Kernels:

- tuning.py: settings and costs of tiled products.
- matmul.py: text that the matrix-product recipes share.
- tiled_kernel.py: the kernel of tiled products.
- tiled_recipe.py: the recipe class of tiled products.
"""
