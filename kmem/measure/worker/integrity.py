"""Functions and global flags of torch, triton and time that a candidate has replaced.

Runs inside the worker, from a copy of this file. What follows from a replacement is for the judge
to say.
"""

import os
import time

import torch
import triton
import triton.language

_LIBRARIES = (os.path.dirname(torch.__file__), os.path.dirname(triton.__file__))


class Integrity:
    """Notices what a candidate has replaced, however it reached it.

    Compared by identity with what stood there when the worker started. Names added since are no
    concern, nor are torch's wrappers around its own functions: torch imports parts of itself only
    when they are needed, and importing its compiler wraps some functions.
    """

    def __init__(self) -> None:
        owners = (
            torch,
            torch.Tensor,
            torch.nn.Module,
            torch.nn.functional,
            torch.cuda,
            torch.cuda.Event,
            torch.linalg,
            triton,
            triton.language,
            triton.JITFunction,
            time,
        )
        self._names = {
            owner: {name: value for name, value in vars(owner).items() if callable(value)}
            for owner in owners
        }
        self._flags = _global_flags()

    def changed(self) -> list[str]:
        """Names of what is no longer what it was; empty if all is well."""
        found = [
            f"{owner.__name__}.{name}"
            for owner, names in self._names.items()
            for name, value in names.items()
            if (now := vars(owner).get(name)) is not value
            and not name.startswith("__")
            and not _wraps_itself(name, now)
        ]
        return found + [
            name for name, value in _global_flags().items() if value != self._flags[name]
        ]


def _wraps_itself(name: str, value: object) -> bool:
    """Whether this is a function of the libraries' own files, under its own name."""
    code = getattr(value, "__code__", None)
    return (
        getattr(value, "__name__", None) == name
        and code is not None
        and code.co_filename.startswith(_LIBRARIES)
    )


def _global_flags() -> dict[str, object]:
    return {
        "the default dtype": str(torch.get_default_dtype()),
        "the default device": str(torch.get_default_device()),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "grad mode": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled(),
        "the number of threads": torch.get_num_threads(),
    }
