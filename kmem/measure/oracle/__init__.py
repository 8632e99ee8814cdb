"""What is right: the problem's module, its inputs, and the answers that outputs are held to.

Nothing of this runs in a worker. In the order in which data passes:

- correctness.py: how wrong an output is, and how wrong it may be.
- running/: the problem's module as the judge runs it, once and in float64.
- inputs/: what the module is run on: draws, families, other sizes and layouts.
- answers/: the right answer to one case, and how far from it is still right.
- exploration.py: what kind of module it is, found out on the first case.
- reference.py: all of this for one workload: the problem, and the right answer to a case.
- lost.py: small results that are lost, where eager keeps them.
- domain.py: which families and sizes the module itself refuses, found on the CPU.
- spots.py: a few elements of every timed result, to be held to the reference afterwards.
"""
