"""A composed model held to its model: right, and faster.

- oracle.py: what a model must compute, in float64 and as its graph was captured.
- comparing.py: a composed model's results held to that.
- gpu_clock.py: one call on the GPU, timed, captured or compiled.
- clock.py: how fast a composed model is beside the model and other ways to run it.
- proof.py: a composed model held to its model, in a process of its own.
"""
