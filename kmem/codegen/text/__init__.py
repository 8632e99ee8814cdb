"""Kernels and launchers as text: written for all recipes, and read again as data.

Written:

- calls.py: calls as text: launches, allocations, the launcher's function.
- definitions.py: jitted functions from lines, for all kernels that are generated.
- parts.py: device functions for numbers in parts of a lower precision.
- sums.py: device functions that keep running sums short, as a file of kernels.
- accumulate.py: when sums are kept short, and the text for it: chains, and compensated totals.

Read:

- functions.py: jitted functions as text: their parameters, and what a call gives these.
- kernel_files.py: the functions of a file of kernels, with those that it imports.
- evaluating.py: expressions of literals and known names.
- launches.py: a launcher as data: its launches, its constants where they are used.
- written.py: the pointers that a kernel may store through.
"""
