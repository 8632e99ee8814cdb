"""How fast: times that workers take on the judge's orders, and what they mean.

In the order in which data passes:

- inputs.py: fresh values for every timed call.
- gpu_clock.py: orders times from workers: single samples, pairs, CUDA graphs.
- baseline.py: the unmodified module as the competition: loaded, compiled, timed.
- race.py: spends samples on candidates in proportion to their promise.
- statistics.py: what samples mean: medians, paired ratios, and times that cannot be.
"""
