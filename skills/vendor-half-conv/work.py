"""How many instructions the kernels behind a vendor's convolution issue for an element.

Read off what is compiled for sm_90: rough counts by functions and signs of the statements. Where a
chain has a gelu or two mishes, or sums over positions, they take longer than the bytes.
"""

from math import log2, prod

from kmem.codegen.chains.approximate import count_instructions
from kmem.codegen.rates import issues_per_s
from kmem.records import Device

from .behind import follow, precede
from .settings import VendorSettings
from .vendor import VendorConv

#: Of a value that is read, scaled back and written; with the place of a phase; that is summed; and
#: whose mean and deviation are kept, besides what follows and precedes.
_READ, _PHASED = 12.0, 3.0
_SUMMED, _CENTRED = 9.0, 18.0
#: Of the norm of a row whose values are in a thread's registers mostly, and are not.
_LINE, _LINE_APART = 11.0, 24.0
_LINE_VALUES = 128
#: For each time that a window's positions are halved between lanes or warps.
_HALVING = 4.0
#: Share of the instructions an H200 could issue: 0.79 for a norm over rows (level 2's 3), 0.76 to
#: 0.85 for statistics (10, 17, 19); 0.92 and more where values only pass through: two mishes took
#: 1.04 ms as a relu did (4).
_ISSUED, _ISSUED_PASSING = 0.79, 0.95
_CHANNELS_OF_A_THREAD = 8


def finish_s(detail: VendorConv, knobs: VendorSettings, elements: int, device: Device) -> float:
    """Time in which the instructions of the last kernel are issued."""
    chain, _ = follow(detail, knobs)
    per_element = _READ + count_instructions(chain.statements, prod(detail.base.window))
    if knobs.is_phased(detail):
        per_element += _PHASED
    values = knobs.finish // (32 * knobs.warps)
    if detail.lines is not None:
        per_element += _LINE if values >= _LINE_VALUES else _LINE_APART
    elif detail.base.is_pooled:
        apart = log2(prod(detail.base.window) * _CHANNELS_OF_A_THREAD / values)
        per_element += _HALVING * max(0.0, apart)
    is_passing = detail.lines is None and not detail.base.is_pooled
    share = _ISSUED_PASSING if is_passing else _ISSUED
    return _issue_s(elements * per_element, share, device)


def statistics_s(detail: VendorConv, knobs: VendorSettings, elements: int, device: Device) -> float:
    """Time in which the instructions of the kernel that sums over positions are issued."""
    chain, _ = precede(detail, knobs)
    window = 1 if detail.is_norm else prod(detail.base.window)
    per_element = _CENTRED if detail.is_norm else _SUMMED
    return _issue_s(
        elements * (per_element + count_instructions(chain.statements, window)), _ISSUED, device
    )


def _issue_s(instructions: float, share: float, device: Device) -> float:
    return instructions / device.warp_size / (share * issues_per_s(device))
