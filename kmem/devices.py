"""Named targets with datasheet figures, for machines without one, and the GPU that is really here.

Rates are dense ("with sparsity" figures halved), in FLOP/s; bandwidths in bytes/s. This is the only
such table in kmem. What a datasheet cannot say, the ceilings of the very card, is measured before
its first run or by `kmem doctor`, and replaces these figures there.

Limits per SM (threads, blocks, registers, shared memory) are those of the compute capability.
Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". `launch_ms`
is an assumption, not a datasheet figure: the time one more small kernel takes on a busy stream,
about 2-4 microseconds on every GPU here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from kmem.errors import TargetError
from kmem.records import Device

_LAUNCH_MS = 0.003

#: Special-function (MUFU) results per clock per SM. Source: CUDA C++ Programming Guide, "Throughput
#: of Native Arithmetic Instructions", row "reciprocal, reciprocal square root, base-2 logarithm,
#: base-2 exponential, sine, cosine": 16 for 8.0 to 10.0.
_SPECIAL_PER_CLOCK_PER_SM = 16


@dataclass(frozen=True, slots=True)
class _Capability:
    """What one compute capability fixes: limits and rates of an SM."""

    max_threads_per_sm: int
    max_blocks_per_sm: int
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    fp32_lanes: int  # results per clock
    half_tensor_fma: int  # multiply-adds per clock on tensor cores; TF32 has half this rate
    registers_per_sm: int = 65536


# Lanes and tensor rates. Source: NVIDIA A100 white paper (64 lanes, 1024 FP16 FMA per clock per
# SM), H100 white paper (128, 2048), Ada white paper (128, 512; GeForce has half of that when it
# accumulates in fp32), HGX B200 rates over 148 SMs at boost clock (128, 4096), MI300X data sheet
# rates over 304 compute units at 2100 MHz (128, 1024).
_CAPABILITIES: Mapping[str, _Capability] = {
    "sm_80": _Capability(2048, 32, 167936, 166912, 64, 1024),
    "sm_86": _Capability(1536, 16, 102400, 101376, 128, 512),
    "sm_89": _Capability(1536, 24, 102400, 101376, 128, 512),
    "sm_90": _Capability(2048, 32, 233472, 232448, 128, 2048),
    "sm_100": _Capability(2048, 32, 233472, 232448, 128, 4096),
    "sm_120": _Capability(1536, 24, 102400, 101376, 128, 512),
    "gfx942": _Capability(2048, 32, 65536, 65536, 128, 1024, registers_per_sm=131072),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    """An NVIDIA card as its datasheet describes it; rates are dense, in FLOP/s."""

    name: str
    full_name: str
    arch: str
    sm_count: int
    boost_hz: float
    l2_bytes: int
    memory_bytes: int
    dram_bytes_per_s: float
    fp32: float
    tf32: float
    half: float
    source: str


def _device_of(card: _Card) -> Device:
    """A card as a device.

    Limits per SM come from the compute capability, the special-function rate from the boost clock.
    """
    limits = _CAPABILITIES[card.arch]
    return Device(
        name=card.name,
        full_name=card.full_name,
        arch=card.arch,
        warp_size=32,
        sm_count=card.sm_count,
        max_threads_per_sm=limits.max_threads_per_sm,
        max_blocks_per_sm=limits.max_blocks_per_sm,
        registers_per_sm=limits.registers_per_sm,
        shared_bytes_per_sm=limits.shared_bytes_per_sm,
        shared_bytes_per_block=limits.shared_bytes_per_block,
        l2_bytes=card.l2_bytes,
        memory_bytes=card.memory_bytes,
        dram_bytes_per_s=card.dram_bytes_per_s,
        read_bytes_per_s=card.dram_bytes_per_s,
        peak_flops_per_s={
            "fp32": card.fp32,
            "tf32": card.tf32,
            "bf16": card.half,
            "fp16": card.half,
            "special": card.sm_count * _SPECIAL_PER_CLOCK_PER_SM * card.boost_hz,
        },
        launch_ms=_LAUNCH_MS,
        source=card.source,
    )


_CARDS = (
    # Source: NVIDIA A100 Tensor Core GPU datasheet (80GB SXM: 2039 GB/s; TF32 312, FP16/BF16 624
    # with sparsity); boost clock 1410 MHz, 108 SMs and 40 MB L2 from the NVIDIA A100 Tensor Core
    # GPU Architecture white paper.
    _Card(
        name="a100",
        full_name="NVIDIA A100-SXM4-80GB",
        arch="sm_80",
        sm_count=108,
        boost_hz=1.410e9,
        l2_bytes=40 * 2**20,
        memory_bytes=80 * 10**9,
        dram_bytes_per_s=2.039e12,
        fp32=19.5e12,
        tf32=156e12,
        half=312e12,
        source="NVIDIA A100 Tensor Core GPU datasheet",
    ),
    # Source: NVIDIA H100 Tensor Core GPU datasheet (SXM: 67 TFLOPS FP32, 989 TF32 and 1979
    # FP16/BF16 with sparsity, 3.35 TB/s); boost clock 1980 MHz outside the tensor cores, 132 SMs
    # and 50 MB L2 from the H100 Tensor Core GPU Architecture white paper.
    _Card(
        name="h100",
        full_name="NVIDIA H100 80GB HBM3",
        arch="sm_90",
        sm_count=132,
        boost_hz=1.980e9,
        l2_bytes=50 * 2**20,
        memory_bytes=80 * 10**9,
        dram_bytes_per_s=3.35e12,
        fp32=67e12,
        tf32=494.5e12,
        half=989.5e12,
        source="NVIDIA H100 Tensor Core GPU datasheet",
    ),
    # Source: NVIDIA H200 Tensor Core GPU datasheet (SXM: 141 GB, 4.8 TB/s; rates as H100, whose
    # chip it is).
    _Card(
        name="h200",
        full_name="NVIDIA H200",
        arch="sm_90",
        sm_count=132,
        boost_hz=1.980e9,
        l2_bytes=50 * 2**20,
        memory_bytes=141 * 10**9,
        dram_bytes_per_s=4.8e12,
        fp32=67e12,
        tf32=494.5e12,
        half=989.5e12,
        source="NVIDIA H200 Tensor Core GPU datasheet",
    ),
    # Source: NVIDIA HGX B200 datasheet, one of eight GPUs at 1000 W (180 GB, 8 TB/s; FP32 80, TF32
    # 2.2 PF and FP16/BF16 4.5 PF with sparsity); 148 SMs and 126 MB L2 as the driver reports them
    # (github.com/pytorch/ao/pull/4002); highest SM clock 1965 MHz.
    _Card(
        name="b200",
        full_name="NVIDIA B200",
        arch="sm_100",
        sm_count=148,
        boost_hz=1.965e9,
        l2_bytes=126 * 2**20,
        memory_bytes=180 * 10**9,
        dram_bytes_per_s=8.0e12,
        fp32=80e12,
        tf32=1.1e15,
        half=2.25e15,
        source="NVIDIA HGX B200 datasheet",
    ),
    # Source: NVIDIA L40S datasheet (91.6 TFLOPS FP32, TF32 183 | 366, FP16/BF16 362.05 | 733 with
    # sparsity, 864 GB/s, 48 GB GDDR6); 142 SMs (18,176 CUDA cores), boost clock 2520 MHz, 96 MB L2
    # (the full AD102's, NVIDIA Ada GPU Architecture white paper).
    _Card(
        name="l40s",
        full_name="NVIDIA L40S",
        arch="sm_89",
        sm_count=142,
        boost_hz=2.520e9,
        l2_bytes=96 * 2**20,
        memory_bytes=48 * 10**9,
        dram_bytes_per_s=0.864e12,
        fp32=91.6e12,
        tf32=183e12,
        half=362.05e12,
        source="NVIDIA L40S datasheet",
    ),
    # Source: NVIDIA Ada GPU Architecture white paper, GeForce RTX 4090 (82.6 TFLOPS FP32, TF32
    # 82.6, BF16 and FP16 165.2 with FP32 accumulation, all dense; 128 SMs, boost clock 2520 MHz, 72
    # MB L2, 24 GB GDDR6X at 1008 GB/s). FP16 accumulation in FP16 (330.3) is no fp32-accurate rate.
    _Card(
        name="rtx4090",
        full_name="NVIDIA GeForce RTX 4090",
        arch="sm_89",
        sm_count=128,
        boost_hz=2.520e9,
        l2_bytes=72 * 2**20,
        memory_bytes=24 * 10**9,
        dram_bytes_per_s=1.008e12,
        fp32=82.6e12,
        tf32=82.6e12,
        half=165.2e12,
        source="NVIDIA Ada GPU Architecture white paper",
    ),
)

# Source: AMD Instinct MI300X data sheet (304 compute units at 2100 MHz; peak dense FP16/BF16
# 1307.4, TF32 653.7, vector FP32 163.4 TFLOPS; 192 GB, 5.3 TB/s); 32 MB L2 (4 MB per XCD), 64
# KB LDS and a 512 KB vector register file per compute unit from the ROCm "AMD GPU
# specifications" table; 32 waves of 64 per compute unit (8 per SIMD) and quarter-rate
# transcendentals (16 per clock per unit) from the CDNA 3 ISA guide.
_MI300X = Device(
    name="mi300x",
    full_name="AMD Instinct MI300X",
    arch="gfx942",
    warp_size=64,
    sm_count=304,
    max_threads_per_sm=2048,
    max_blocks_per_sm=32,
    registers_per_sm=131072,
    shared_bytes_per_sm=65536,
    shared_bytes_per_block=65536,
    l2_bytes=32 * 2**20,
    memory_bytes=192 * 10**9,
    dram_bytes_per_s=5.3e12,
    read_bytes_per_s=5.3e12,
    peak_flops_per_s={
        "fp32": 163.4e12,
        "tf32": 653.7e12,
        "bf16": 1307.4e12,
        "fp16": 1307.4e12,
        "special": 304 * 16 * 2.1e9,
    },
    launch_ms=_LAUNCH_MS,
    source="AMD Instinct MI300X data sheet",
)

_DEVICES = (*map(_device_of, _CARDS), _MI300X)

TARGETS: Mapping[str, Device] = {device.name: device for device in _DEVICES}


def named_target(name: str) -> Device:
    """A target by name. Raises TargetError listing the names if it is unknown."""
    try:
        return TARGETS[name.lower()]
    except KeyError:
        raise TargetError(
            f"No target named '{name}'; known: {', '.join(sorted(TARGETS))}"
        ) from None


def detect_device() -> Device | None:
    """The GPU that torch would use (index 0 of the visible ones), or None if there is none."""
    if not _has_driver():
        return None
    import torch  # heavy; the table above must be readable without it

    if not torch.cuda.is_available():
        return None
    return device_from_properties(
        torch.cuda.get_device_properties(0), hip=torch.version.hip is not None
    )


def _has_driver() -> bool:
    """Whether a driver of GPUs is here: NVIDIA's, under WSL too, or AMD's.

    Without one torch, which takes seconds to load, need not be asked.
    """
    return any(next(Path("/dev").glob(name), None) for name in ("nvidia*", "dxg", "kfd"))


class _Properties(Protocol):
    """The fields that are read of torch's copy of cudaDeviceProp.

    Clocks are in kHz, sizes in bytes, the width of the bus in bits.
    """

    name: str
    major: int
    minor: int
    gcnArchName: str
    multi_processor_count: int
    total_memory: int
    L2_cache_size: int
    warp_size: int
    max_threads_per_multi_processor: int
    shared_memory_per_multiprocessor: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int


def device_from_properties(properties: _Properties, *, hip: bool = False) -> Device:
    """The device that a card's properties describe.

    A card of the table has its rates from there, with the SMs and the memory that the card reports.
    Of any other card the rates are computed from its clocks, and `source` says so: lanes (or tensor
    multiply-adds) per clock of the compute capability x 2 x SMs x highest clock; bandwidth: two
    transfers per memory clock over the bus. A capability newer than the table's is taken for the
    fastest known one, so that a bound stays a bound.
    """
    for device in _DEVICES:
        if properties.name == device.full_name:
            return replace(
                device,
                sm_count=properties.multi_processor_count,
                memory_bytes=properties.total_memory,
            )
    arch = (
        properties.gcnArchName.split(":")[0] if hip else f"sm_{properties.major}{properties.minor}"
    )
    limits = _CAPABILITIES[_nearest_capability(arch)]
    clocks_per_s = properties.multi_processor_count * properties.clock_rate * 1e3
    half = limits.half_tensor_fma * 2 * clocks_per_s
    bytes_per_s = 2 * properties.memory_clock_rate * 1e3 * properties.memory_bus_width / 8
    return Device(
        name=properties.name.lower().removeprefix("nvidia ").replace(" ", "-"),
        full_name=properties.name,
        arch=arch,
        warp_size=properties.warp_size,
        sm_count=properties.multi_processor_count,
        max_threads_per_sm=properties.max_threads_per_multi_processor,
        max_blocks_per_sm=limits.max_blocks_per_sm,
        registers_per_sm=limits.registers_per_sm,
        shared_bytes_per_sm=properties.shared_memory_per_multiprocessor,
        shared_bytes_per_block=min(
            limits.shared_bytes_per_block, properties.shared_memory_per_multiprocessor
        ),
        l2_bytes=properties.L2_cache_size,
        memory_bytes=properties.total_memory,
        dram_bytes_per_s=bytes_per_s,
        read_bytes_per_s=bytes_per_s,
        peak_flops_per_s={
            "fp32": limits.fp32_lanes * 2 * clocks_per_s,
            "tf32": half / 2,
            "bf16": half,
            "fp16": half,
            "special": _SPECIAL_PER_CLOCK_PER_SM * clocks_per_s,
        },
        launch_ms=_LAUNCH_MS,
        source=f"computed from the clocks that {properties.name} reports",
    )


def cuda_properties(device: Device) -> dict[str, object]:
    """What torch.cuda.get_device_properties would say of an NVIDIA GPU; empty for another."""
    version = device.arch.removeprefix("sm_").removesuffix("a")
    if not device.arch.startswith("sm_") or not version.isdigit():
        return {}
    return {
        "name": device.full_name,
        "multi_processor_count": device.sm_count,
        "total_memory": device.memory_bytes,
        "L2_cache_size": device.l2_bytes,
        "warp_size": device.warp_size,
        "max_threads_per_multi_processor": device.max_threads_per_sm,
        "shared_memory_per_block_optin": device.shared_bytes_per_block,
        "shared_memory_per_multiprocessor": device.shared_bytes_per_sm,
        "regs_per_multiprocessor": device.registers_per_sm,
        "major": int(version) // 10,
        "minor": int(version) % 10,
    }


def _nearest_capability(arch: str) -> str:
    """The capability itself, else one of the same generation, else the fastest of that vendor."""
    if arch in _CAPABILITIES:
        return arch
    family = [name for name in _CAPABILITIES if name[:-1] == arch[:-1]]
    vendor = [name for name in _CAPABILITIES if name[:2] == arch[:2]]
    return max(family or vendor, key=lambda name: _CAPABILITIES[name].half_tensor_fma)


def resolve_target(name: str | None) -> tuple[Device, bool]:
    """The device to optimise for, and whether it is here to measure on.

    Args:
        name: a target of the table or the present GPU's own name; None for the GPU that is here.
    Raises:
        TargetError: if the name is unknown, or None is given where there is no GPU.
    """
    present = detect_device()
    if name is None:
        if present is None:
            raise TargetError(
                f"No GPU here; name the device to write for with --target "
                f"({', '.join(sorted(TARGETS))})"
            )
        return present, True
    if present is not None and name.lower() == present.name:
        return present, True
    return named_target(name), False
