"""Figures as SVG and text, placed here and drawn by templates.

- frame.py: scales, ticks and labels of a plot.
- staircase.py: the plot of a run.
- genealogy.py: the tree of a run's kernels.
- history.py: the best times of a problem's runs as they came.
- roofline.py: how fast a kernel computes, below what the device allows.
- treemap.py: where the time of one forward goes.
- heat_map.py: the best time at each pair of values of two knobs.
- posterior.py: the plot of a skill over time.
"""
