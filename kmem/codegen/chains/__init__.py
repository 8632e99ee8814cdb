"""Chains: what stands around an anchor (a product, a convolution), written into its kernel.

- epilogue.py: what follows an anchor element by element, as statements on its tile.
- approximate.py: the same where operands were rounded, in cheaper arithmetic.
- ports.py: the functions that kernels are handed, and how launches hand them in.
- chain.py: a chain of pointwise nodes as a function that the anchor's kernel calls.
- partial.py: rows reduced where an anchor's tiles are stored.
- finishing.py: the kernel that finishes rows of which tiles left parts.
"""
