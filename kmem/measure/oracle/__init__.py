"""What is right: the problem's module, its inputs, and the answers that outputs are held to.

Nothing of this runs in a worker. In the order in which data passes:

- widening.py: a forward that casts inside, computed in float64 all the same.
- own_precision.py: running products as a GPU's eager has them.
- forward.py: what surrounds one forward: room on the device, flags, float64.
- module.py: the problem's module as the judge runs it: eager, and in float64.
- parameters.py: a second set of parameters and buffers.
- drawing.py: lets a problem draw its inputs where they will lie.
- traits.py: what every input family keeps of the problem's own inputs.
- families.py: values beyond those that the problem draws.
- variants.py: the same inputs at other sizes and in other layouts.
- inputs.py: the inputs of one workload, filled with a draw or a family.
- randomness.py: whether a module draws random numbers.
- draws.py: the random numbers that eager drew, dealt again to the float64 oracle.
- slices.py: whether a large module can be taken slice by slice.
- exploration.py: what kind of module it is, found out on the first case.
- elements.py: single elements, for modules that take each by itself.
- origins.py: how large the values were that a result was computed from.
- trial.py: how wrong eager and trivial outputs are where the answer is made slice by slice.
- answer.py: what is right beside the values of outputs, and errors beside it.
- expected.py: the right answer to one case, whole or in slices.
- whole.py: one case in one piece, eager beside the oracle.
- correctness.py: how wrong an output is, and how wrong it may be.
- trivial.py: what a candidate that computes nothing might return.
- wrong_elements.py: the first wrong elements of a refused output, in words.
- reference.py: all of this for one workload: the problem, and the right answer to a case.
- lost.py: small results that are lost, where eager keeps them.
- domain.py: which families and sizes the module itself refuses, found on the CPU.
- spots.py: a few elements of every timed result, to be held to the reference afterwards.
"""
