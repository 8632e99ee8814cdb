"""Proof that memory helps: knob landscapes measured once, and every search answered from them.

- suite.py: which problems, at which sizes.
- landscape.py: the record of one problem's knob settings, and the directory of such records.
- recording/: the settings of a suite chosen, written, compiled and judged.
- simulate.py: a search answered from a landscape instead of a GPU.
- arms.py: what the memory of a run holds in each arm of an ablation.
- metrics.py: what one simulated run cost and reached.
- ablation.py: every arm on every problem and seed.
- elsewhere.py: seeds of an ablation as works of a crew.
- comparison.py: arms compared pair by pair, with intervals.
- picture.py: the plot of an ablation.
"""
