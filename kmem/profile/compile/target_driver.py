"""A Triton driver that can only compile, so that kernels are built for a GPU that is not there.

The one place that knows Triton's driver interface. Checked against Triton 3.6 and 3.9, which ask
the active driver for a target, a device number and a stream before they compile, and for nothing
else while `warmup=True`.
"""

import re

from kmem.errors import ProfilerError


def compute_capability(arch: str) -> int:
    """90 for "sm_90".

    Raises:
        ProfilerError: if the architecture is not NVIDIA's.
    """
    match = re.fullmatch(r"sm_(\d+)a?", arch)
    if match is None:
        raise ProfilerError(
            f"Cannot compile for {arch} here: the static profiler reads NVIDIA machine code only; "
            "use --target h200 or another sm_ target"
        )
    return int(match[1])


def use_compile_only_driver(arch: str) -> None:
    """Make every Triton compilation of this process one for `arch`; not undone.

    Raises:
        ProfilerError: if the architecture is not NVIDIA's.
    """
    import triton
    from triton.backends.compiler import GPUTarget

    target = GPUTarget("cuda", compute_capability(arch), 32)

    class CompileOnlyDriver:
        def get_current_target(self) -> GPUTarget:
            return target

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_active_torch_device(self) -> object:
            import torch

            return torch.device("meta")

    triton.runtime.driver.set_active(CompileOnlyDriver())


def tool_paths() -> tuple[str, str]:
    """cuobjdump and nvdisasm, as Triton finds them.

    They are Triton's own copies, or what TRITON_CUOBJDUMP_PATH and TRITON_NVDISASM_PATH name.
    """
    from triton import knobs

    return knobs.nvidia.cuobjdump.path, knobs.nvidia.nvdisasm.path
