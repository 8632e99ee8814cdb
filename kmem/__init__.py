"""kmem makes a PyTorch module fast and remembers how: see `kmem --help` and README.md.

A plugin marks its functions with `kmem.hookimpl`; kmem/hookspecs.py lists the hooks.
"""

import pluggy

__version__ = "0.1.0"

hookimpl = pluggy.HookimplMarker("kmem")
