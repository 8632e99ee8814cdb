"""The problem's file: its text, and the module that is built from it.

- reach.py: which constants, functions and classes of a file reach which function.
- constructor.py: how a class of a file may be called, read from its text.
- substitution.py: other sizes put in place of those that a file gives.
- load.py: a problem file read, held to the contract, and built at a workload.
"""
