"""What a graph shows beside its operators and sizes.

- mode.py: training or evaluation, and what that means for a kernel.
- naming.py: what a graph does, in words of the vocabulary.
- families.py: the family of each node, and ways through a graph.
- spelled.py: operators that a graph spells out in others.
- axes.py: patterns that show in axes and copies.
- sizes.py: patterns that show in how many rows, terms and planes there are.
- patterns.py: what it shows beside its operators, for skills that act on it.
"""
