"""Commands on packages of kernels.

- export.py: `kmem export`, winners of runs as a package.
- install.py: `kmem install`, a package checked and kept on this machine.
"""
