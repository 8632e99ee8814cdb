"""Measure what this GPU can do: bandwidths, matrix products, special functions, launches.

Each figure is the best of several repeats of one long run, timed with CUDA events on an otherwise
idle device: a ceiling is what the hardware reached, not what it usually does. Measuring takes some
seconds and a tenth of the device memory.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from kmem.records import Device

logger = logging.getLogger(__name__)

REPEATS = 7
#: Bytes of the bandwidth buffers: far beyond any L2, at most a twentieth of the device memory.
BUFFER_BYTES = 2 * 2**30
#: Side of the square products. Source: chosen where cuBLAS's rate has levelled off on an H200
#: (8192: within 1% of 16384).
MATRIX_SIDE = 8192
FLOAT32_SIDE = 4096  # an fp32 product of 8192 takes over 20 ms for no better rate
LAUNCHES = 2000


def measure_ceilings(device: Device) -> Device:
    """The device with measured rates in place of its datasheet's, `measured=True`.

    Args:
        device: what `detect_device` found; torch's current CUDA device is measured.

    Raises:
        torch.OutOfMemoryError: if another program holds nearly all of the device memory.
    """
    import torch

    bytes_wanted = min(BUFFER_BYTES, device.memory_bytes // 20)
    copy, read = _measure_bandwidth(bytes_wanted)
    rates = {
        "fp32": _measure_product(torch.float32, FLOAT32_SIDE, tf32=False),
        "tf32": _measure_product(torch.float32, MATRIX_SIDE, tf32=True),
        "bf16": _measure_product(torch.bfloat16, MATRIX_SIDE, tf32=False),
        "fp16": _measure_product(torch.float16, MATRIX_SIDE, tf32=False),
        "special": _measure_special(),
    }
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}"
    return replace(
        device,
        dram_bytes_per_s=copy,
        read_bytes_per_s=read,
        peak_flops_per_s=rates,
        launch_ms=_measure_launch_ms(),
        source=f"measured {datetime.now(UTC).date().isoformat()}, {versions}",
        measured=True,
    )


def _best_ms(run: Callable[[], object], repeats: int = REPEATS) -> float:
    import torch

    run()  # warm up: libraries load and clocks rise
    best = float("inf")
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end))
    return best


def _measure_bandwidth(size: int) -> tuple[float, float]:
    """Bytes per second of a copy (read plus written) and of a sum (read)."""
    import torch

    source = torch.ones(size // 4, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    copy_ms = _best_ms(lambda: target.copy_(source))
    read_ms = _best_ms(lambda: torch.sum(source))
    moved = source.numel() * 4
    return 2e3 * moved / copy_ms, max(1e3 * moved / read_ms, 2e3 * moved / copy_ms)


def _measure_product(dtype: object, side: int, *, tf32: bool) -> float:
    """FLOP/s of a square matrix product by cuBLAS; the TF32 flag is put back."""
    import torch

    kept = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        left = torch.randn(side, side, device="cuda").to(dtype)
        right = torch.randn(side, side, device="cuda").to(dtype)
        result = torch.empty_like(left)
        best_ms = _best_ms(lambda: torch.mm(left, right, out=result))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = kept
    return 2.0 * side**3 / best_ms * 1e3


_SPECIAL_ROUNDS = 256


def _measure_special() -> float:
    """Special-function operations per second: chains of base-2 exponentials in registers.

    The unit does one step of a chain per clock.
    """
    import torch
    import triton

    from kmem.profile.special_function import exponentials

    programs, block = 132 * 64, 1024
    result = torch.empty(programs * block, device="cuda")
    best_ms = _best_ms(
        lambda: exponentials[(programs,)](result, ROUNDS=_SPECIAL_ROUNDS, BLOCK=block, num_warps=4)
    )
    logger.debug("special functions with triton %s: %.3f ms", triton.__version__, best_ms)
    return programs * block * _SPECIAL_ROUNDS / best_ms * 1e3


def _measure_launch_ms() -> float:
    """What one more small kernel costs on a busy stream."""
    import torch

    value = torch.zeros(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        value.add_(1)  # warm up outside the capture
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            value.add_(1)
    # From a graph, so that Python's own time per launch is left out; it is the host's, not the
    # stream's.
    return _best_ms(graph.replay, 3) / LAUNCHES
