"""Figures as SVG and text, placed here and drawn by templates.

- frame.py: scales, ticks and labels of a plot.
- staircase.py: the plot of a run.
- genealogy.py: the tree of a run's kernels.
- posterior.py: the plot of a skill over time.
"""
