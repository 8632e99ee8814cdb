"""Compile what an emission launches without running it, for the tools that measure many settings.

A launcher is called on meta tensors, and every kernel in its reach stands for itself but compiles
only. The results lie in Triton's disk cache, where the process that measures finds them.
"""

from collections.abc import Sequence

from kmem.recipes import Emission
from kmem.testing import import_source

_HEAD = "import torch\nimport triton\nimport triton.language as tl\n"


class _CompilesOnly:
    """Stands for a kernel: a launch compiles it and runs nothing."""

    def __init__(self, kernel) -> None:  # noqa: ANN001 - a triton.JITFunction
        self.kernel = kernel

    def __getitem__(self, grid):  # noqa: ANN001, ANN204
        return lambda *args, **kwargs: self.kernel.warmup(*args, grid=grid, **kwargs)


def write_kernels(emission: Emission) -> str:
    """The module of an emission's kernels, without its launcher."""
    return _HEAD + "\n\n".join(text for _, text in emission.kernels)


def write_emission(emission: Emission) -> str:
    """The module of an emission: its kernels and `launch`."""
    return f"{write_kernels(emission)}\n\n{emission.launcher}"


def compile_launches(emission: Emission, specs: Sequence[tuple]) -> str:
    """Compile every launch; the failure's text, or "".

    Args:
        specs: (shape, stride, dtype) of each input.
    """
    import torch
    import triton

    kernels = vars(import_source(write_kernels(emission)))
    stood_for = {
        name: _CompilesOnly(value)
        for name, value in kernels.items()
        if isinstance(value, triton.runtime.JITFunction)
    }
    namespace = {**kernels, **stood_for}
    exec(emission.launcher, namespace)  # noqa: S102 - our own recipe's text
    inputs = (
        torch.empty_strided(shape, stride, dtype=getattr(torch, dtype), device="meta")
        for shape, stride, dtype in specs
    )
    try:
        namespace["launch"](*inputs)
    except Exception as ex:  # noqa: BLE001 - whatever the compiler raises is this setting's result
        return f"{type(ex).__name__}: {str(ex)[:300]}"
    return ""
