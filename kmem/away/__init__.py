"""Runs on the workers of a crew, with the memory of the process that asks for them.

On this machine a run works with the database itself. Elsewhere a worker gets a copy, and tells what
its run commits as it goes, so that a run whose worker is lost goes on from there; the process that
asked alone writes its database.

- request.py: what a worker is told, and the lines in which it tells how it goes.
- compiled.py: compiled kernels as one file.
- ceilings.py: whether a card is as fast as those that the bounds were measured on.
- fit.py: whether figures of the card that is here belong to those of a reference.
- process.py: a run on a worker, as a process of its own.
- errand.py: the run as the process that asked sees it.
- here.py: one on this machine.
- home.py: the database of that process: copies for workers, and what they tell taken in.
- there.py: one that may be anywhere.
- compiling.py: the beginning of a run compiled on a worker without a GPU.
- prefetch.py: the beginnings of problems compiled before their turn comes.
- runner.py: the problems of a bench on the workers of a crew.
"""
