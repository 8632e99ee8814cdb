"""Sizes other than the file's: those that are asked for, and small ones for the interpreter.

- shapes.py: a range of shapes, and the problem at each of them.
- shrinking.py: ways to make the numbers of a problem smaller.
- program.py: what a graph is as a program, and how much it computes.
- search.py: which sizes are small, and at which the forward is the same program.
- workload.py: sizes at which a problem is small enough for the interpreter.
- between.py: workloads of which some sizes are those of the file.
"""
