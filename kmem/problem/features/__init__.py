"""What a graph shows beside its operators and sizes.

- mode.py: training or evaluation, and what that means for a kernel.
- naming.py: what a graph does, in words of the vocabulary.
- patterns.py: what it shows beside its operators, for skills that act on it.
"""
