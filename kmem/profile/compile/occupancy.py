"""How many blocks of a kernel live on one multiprocessor at once, by formula.

Source: CUDA Occupancy Calculator (CUDA toolkit, "CUDA_Occupancy_Calculator.xls") and CUDA C++
Programming Guide, "Compute Capabilities": registers are allotted per warp in units of 256, shared
memory in units of 128 bytes plus 1 KiB a block for the system.
"""

from dataclasses import dataclass

from kmem.records import Device

REGISTER_UNIT = 256  # registers, per warp
SHARED_UNIT = 128  # bytes
# per block; Source: CUDA C++ Programming Guide, "Shared Memory", compute capability 8.x and 9.0
SYSTEM_SHARED_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Resident blocks per multiprocessor, their warps over the maximum (0..1), and the limit.

    `limiter` is what sets the limit: warps, registers, shared or blocks.
    """

    blocks_per_sm: int
    ratio: float
    limiter: str


def compute_occupancy(
    device: Device, *, warps_per_block: int, registers_per_thread: int, shared_bytes_per_block: int
) -> Occupancy:
    """Occupancy of one kernel on a device; zero blocks if one block does not fit."""
    max_warps = device.max_threads_per_sm // device.warp_size
    registers_per_warp = _round_up(max(registers_per_thread, 1) * device.warp_size, REGISTER_UNIT)
    shared = _round_up(shared_bytes_per_block + SYSTEM_SHARED_BYTES, SHARED_UNIT)
    limits = {
        "warps": max_warps // warps_per_block,
        "registers": device.registers_per_sm // registers_per_warp // warps_per_block,
        "shared": device.shared_bytes_per_sm // shared,
        "blocks": device.max_blocks_per_sm,
    }
    limiter = min(limits, key=lambda name: limits[name])
    blocks = limits[limiter]
    return Occupancy(blocks, min(1.0, blocks * warps_per_block / max_warps), limiter)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
