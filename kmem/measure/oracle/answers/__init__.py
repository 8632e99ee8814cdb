"""The right answer to one case, and how far from it an output may be.

- elements.py: single elements, for modules that take each by itself.
- origins.py: how large the values were that a result was computed from.
- trivial.py: what a candidate that computes nothing might return.
- trial.py: how wrong eager and trivial outputs are where the answer is made slice by slice.
- answer.py: what is right beside the values of outputs, and errors beside it.
- whole.py: one case in one piece, eager beside the oracle.
- expected.py: the right answer to one case, whole or in slices.
- wrong_elements.py: the first wrong elements of a refused output, in words.
"""
