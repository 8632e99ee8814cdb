"""What a device reaches under load: figures for times that rank settings.

A record of a device has peaks, sizes and bandwidths of memory. What else a time needs was measured
on an H200 and is carried over to other devices here: rates of one SM by the clock, rates of the
whole card by the clock and the number of SMs. On an H200 they are what was measured.
"""

from kmem.devices import TARGETS
from kmem.records import Device

#: SM clock of an H200 under load, rounded; its highest is 1.98 GHz. Costs that depend on it scale
#: alike, so that ranks do not. Source: the figure with which the costs were fitted to the runs of
#: tools/gpu_stencils.py (H200, torch 2.11, Triton 3.6, 2026-11-21).
_H200_CLOCK_HZ = 1.7e9
_H200 = TARGETS["h200"]
#: Source: CUDA C++ Best Practices Guide and Hopper tuning guide, bandwidth of the L1 cache and
#: shared memory of one SM.
_L1_BYTES_PER_CLOCK = 128
#: Four schedulers in an SM. Source: CUDA C++ Programming Guide, compute capability 9.0.
_WARP_INSTRUCTIONS_PER_CLOCK = 4
#: Source of 0.8: H200 ceilings of 808 (bf16), 781 (fp16), 423 (TF32) and 51 (fp32) against 989,
#: 989, 494 and 67 TFLOP/s.
_CEILING_OF_DATASHEET = 0.8


def ceiling(device: Device, name: str) -> float:
    """What a tuned vendor kernel for products reaches, in FLOP/s.

    It is the device's peak if that was measured, else a share of the data sheet's.
    """
    return device.peak_flops_per_s[name] * (1.0 if device.measured else _CEILING_OF_DATASHEET)


def clock_hz(device: Device) -> float:
    """Clock of an SM under load."""
    return _H200_CLOCK_HZ * _clock_ratio(device)


def l1_bytes_per_s(device: Device) -> float:
    """What the L1 caches of all SMs deliver."""
    return device.sm_count * _L1_BYTES_PER_CLOCK * clock_hz(device)


def sm_issues_per_s(device: Device) -> float:
    """Warp instructions that one SM issues."""
    return _WARP_INSTRUCTIONS_PER_CLOCK * clock_hz(device)


def issues_per_s(device: Device) -> float:
    """Warp instructions that all SMs issue."""
    return device.sm_count * _WARP_INSTRUCTIONS_PER_CLOCK * clock_hz(device)


def by_clock(rate: float, device: Device) -> float:
    """A rate that was measured on an H200 and follows the clock alone."""
    return rate * _clock_ratio(device)


def by_card(rate: float, device: Device) -> float:
    """A rate of all SMs together that was measured on an H200, such as that of its L2 cache."""
    return rate * _clock_ratio(device) * (device.sm_count / _H200.sm_count)


def _clock_ratio(device: Device) -> float:
    """The highest clock over an H200's, by the special functions of an SM.

    Every architecture here has as many of them a clock. A measured device has another rate than its
    data sheet, which is therefore asked first.
    """
    return _specials_per_sm(TARGETS.get(device.name, device)) / _specials_per_sm(_H200)


def _specials_per_sm(device: Device) -> float:
    return device.peak_flops_per_s["special"] / device.sm_count
