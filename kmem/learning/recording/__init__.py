"""Landscapes recorded: every chosen setting of a problem written, compiled and judged.

- request.py: what is to be recorded, on which device, for how long at most.
- outlook.py: what of a suite is missing, and how long it takes.
- sampling.py: which settings of a problem are worth recording.
- write.py: a problem traced, its settings chosen and written.
- compile.py: the written kernels compiled.
- screen.py: the compiled kernels judged, each verdict kept at once.
- schedule.py: many problems at once, each through all steps.
- elsewhere.py: the same on the workers of a crew, one problem a work.
"""
