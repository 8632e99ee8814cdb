"""Kernels compiled, judged and measured, and the module that they are measured against.

- processes.py: compilers and workers, started before the problem is traced.
- compiling.py: what a kernel comes to when it is compiled for the target.
- evaluator.py: the seam to the world: where kernels are compiled, judged and profiled.
- baselines.py: how fast the unmodified module is.
- measuring.py: stage 6: candidates through the evaluator, without the duplicates.
- single.py: one kernel before the judge, outside a run.
"""
