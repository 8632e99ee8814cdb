"""Scripts that lie beside an exported package; an export copies them with the package's own name.

- reference.py: the module that an entry replaces, from its evidence.
- check.py: the package's tests.
- benchmark.py: the package's times on this machine.
"""
