"""Kernels as files of Triton: read as text by what emits them, never edited, importable by tests.

A kernel takes sizes, strides and tiles as `tl.constexpr` arguments and calls functions that it is
handed at its ports, see ports.py.

- reading.py: the functions of such a file as text, with those that it imports.
- sums.py: running sums kept short.
- scan.py: running sums and products.
"""
