"""The problem's module run by the judge: eager, in float64, and slice by slice.

- widening.py: a forward that casts inside, computed in float64 all the same.
- masking.py: attention in which what the mask hides is not read.
- own_precision.py: running products as a GPU's eager has them.
- forward.py: what surrounds one forward: room on the device, flags, float64.
- slices.py: whether a large module can be taken slice by slice.
- adding.py: a module whose results add up over its rows, in float64 piece by piece.
- copies.py: a copy of a module whose functions use the copy.
- module.py: the problem's module as the judge runs it: eager, and in float64.
- parameters.py: a second set of parameters and buffers.
- randomness.py: whether a module draws random numbers.
- draws.py: the random numbers that eager drew, dealt again to the float64 oracle.
"""
