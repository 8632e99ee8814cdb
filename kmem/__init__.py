"""kmem makes a PyTorch module fast and remembers how: see `kmem --help` and README.md.

The Python API is `kmem.optimize`, `kmem.load`, `kmem.apply`, `kmem.verify` and
`kmem.search_skills` (kmem/api). Their modules, which load torch, are imported when a name is first
asked for, so that `import kmem` costs next to nothing.

A plugin marks its functions with `kmem.hookimpl`; kmem/hookspecs.py lists the hooks.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pluggy import HookimplMarker

    from kmem.api.applying import apply
    from kmem.api.judging import Verdict, verify
    from kmem.api.loading import load
    from kmem.api.optimizing import optimize
    from kmem.api.searching import search_skills
    from kmem.deploy.backend import compile_report
    from kmem.deploy.bucketed import Bucketed
    from kmem.run.report.result import Result

    hookimpl: HookimplMarker

__version__ = "0.1.0"

__all__ = [
    "Bucketed",
    "Result",
    "Verdict",
    "apply",
    "compile_report",
    "hookimpl",
    "load",
    "optimize",
    "search_skills",
    "verify",
]

#: Where each name of the API is defined.
_LAZY = {
    "Bucketed": "kmem.deploy.bucketed",
    "Result": "kmem.run.report.result",
    "Verdict": "kmem.api.judging",
    "apply": "kmem.api.applying",
    "compile_report": "kmem.deploy.backend",
    "load": "kmem.api.loading",
    "optimize": "kmem.api.optimizing",
    "search_skills": "kmem.api.searching",
    "verify": "kmem.api.judging",
}


def __getattr__(name: str) -> Any:
    if name == "hookimpl":
        value = import_module("pluggy").HookimplMarker("kmem")
    elif name in _LAZY:
        value = getattr(import_module(_LAZY[name]), name)
    else:
        raise AttributeError(f"module 'kmem' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
