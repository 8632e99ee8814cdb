"""Measure what this GPU can do: bandwidths, matrix products, special functions, launches.

Each figure is the best of several repeats of one long run, timed with CUDA events: a ceiling is
what the hardware reached, not what it usually does. They are taken in rounds with pauses between,
until two agree and are of the datasheet's order, for another program may use the device meanwhile:
below too low a ceiling honest kernels would be refused. Measuring takes some seconds and a tenth of
the device memory.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from kmem.records import Device

REPEATS = 7
#: Rounds at least, between which so many seconds pass; and the seconds after which the best counts,
#: whatever it is.
ROUNDS, PAUSE_S = 3, 0.05
LONGEST_S = 6.0
#: Two rounds agree whose rates differ by no more; and of a datasheet's rate what is reached, at
#: least, where nothing else runs. Source: H200s reached 0.68 to 0.99; beside another program 0.2 to
#: 0.56 (bf16 and copies, 2026-11-24).
AGREEMENT, SHARE_OF_DATASHEET = 0.02, 0.6
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
    copy, read = _measure_bandwidth(bytes_wanted, device)
    expected = device.peak_flops_per_s
    rates = {
        "fp32": _measure_product(torch.float32, FLOAT32_SIDE, expected.get("fp32", 0.0)),
        "tf32": _measure_product(torch.float32, MATRIX_SIDE, expected.get("tf32", 0.0), tf32=True),
        "bf16": _measure_product(torch.bfloat16, MATRIX_SIDE, expected.get("bf16", 0.0)),
        "fp16": _measure_product(torch.float16, MATRIX_SIDE, expected.get("fp16", 0.0)),
        "special": _measure_special(expected.get("special", 0.0)),
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


def settled_rate(rate_of_round: Callable[[], float], expected: float) -> float:
    """The best rate of some rounds, once it is believed.

    Args:
        rate_of_round: takes a round, any unit.
        expected: the datasheet's; 0 if unknown.
    """
    ends = time.monotonic() + LONGEST_S
    rates = [rate_of_round()]
    while len(rates) < ROUNDS or not _is_settled(rates, expected):
        if time.monotonic() >= ends:
            break
        time.sleep(PAUSE_S)
        rates.append(rate_of_round())
    return max(rates)


def _is_settled(rates: Sequence[float], expected: float) -> bool:
    second, best = sorted(rates)[-2:]
    return second >= (1.0 - AGREEMENT) * best and best >= SHARE_OF_DATASHEET * expected


def _best_rate(run: Callable[[], object], done: float, expected: float) -> float:
    """What `run` does, over its least time in seconds."""
    import torch

    def rate_of_round() -> float:
        best_ms = math.inf
        for _ in range(REPEATS):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            end.record()
            end.synchronize()
            best_ms = min(best_ms, start.elapsed_time(end))
        return done / best_ms * 1e3

    run()  # warm up: libraries load and clocks rise
    return settled_rate(rate_of_round, expected)


def _measure_bandwidth(size: int, device: Device) -> tuple[float, float]:
    """Bytes per second of a copy (read plus written) and of a sum (read)."""
    import torch

    source = torch.ones(size // 4, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    moved = source.numel() * 4
    copy = _best_rate(lambda: target.copy_(source), 2.0 * moved, device.dram_bytes_per_s)
    read = _best_rate(lambda: torch.sum(source), moved, device.dram_bytes_per_s)
    return copy, max(read, copy)


def _measure_product(dtype: object, side: int, expected: float, *, tf32: bool = False) -> float:
    """FLOP/s of a square matrix product by cuBLAS; the TF32 flag is put back."""
    import torch

    kept = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        left = torch.randn(side, side, device="cuda").to(dtype)
        right = torch.randn(side, side, device="cuda").to(dtype)
        result = torch.empty_like(left)
        return _best_rate(lambda: torch.mm(left, right, out=result), 2.0 * side**3, expected)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = kept


_SPECIAL_ROUNDS = 256


def _measure_special(expected: float) -> float:
    """Special-function operations per second: chains of base-2 exponentials in registers.

    The unit does one step of a chain per clock.
    """
    import torch

    from kmem.profile.special_function import exponentials

    programs, block = 132 * 64, 1024
    result = torch.empty(programs * block, device="cuda")
    return _best_rate(
        lambda: exponentials[(programs,)](result, ROUNDS=_SPECIAL_ROUNDS, BLOCK=block, num_warps=4),
        programs * block * _SPECIAL_ROUNDS,
        expected,
    )


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
    return 1e3 / _best_rate(graph.replay, LAUNCHES, 0.0)
