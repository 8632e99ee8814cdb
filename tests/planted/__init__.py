"""Kernels with one planted bottleneck each, and their healthy twins.

Each file is a problem (`Model`, `get_inputs`) with two kernels that move its data: `Sick` has the
bottleneck that `NAMES` lists (any of them is right), `Healthy` has not. Times and counters are
wanted of them, no results: what they compute beside moving the data is not the problem's.
`tools/planted_bottlenecks.py` asks the diagnosis about all of them: compiled, or counted by ncu.
"""
