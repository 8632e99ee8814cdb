"""How many instructions the kernels behind a vendor's convolution issue for an element.

Read off what is compiled for sm_90: rough counts by functions and signs of the statements. Where a
chain has a gelu or two mishes, or sums over positions, they take longer than the bytes.
"""

import re
from math import log2, prod

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
#: 0.85 for statistics (10, 17, 19), 0.78 for a gelu (19).
_ISSUED = 0.79
#: Of calls, those that are not named count as a special function; of signs, one.
_CALLS = {
    "kmem_one_and_erf": 15.0,
    "kmem_exp": 2.0,
    "kmem_divide": 8.0,
    "tl.div_rn": 16.0,
    "tl.erf": 36.0,
    "stable_exp": 24.0,
    "tl.where": 2.0,
    "tl.minimum": 1.0,
    "tl.maximum": 1.0,
    "tl.abs": 0.0,
    "tl.max": 1.0,
    "tl.min": 1.0,
    "tl.sum": 1.0,
    "tl.arange": 0.0,
    "to": 0.0,
    "float": 0.0,
    "tl.reshape": 0.0,
    "tl.trans": 0.0,
    "kmem_load_line": 0.0,
    "kmem_norm_lines": 0.0,
}
_SPECIAL = 12.0
_CALL, _SIGN = re.compile(r"([a-z_]+(?:\.[a-z_0-9]+)?)\("), re.compile(r" [-+*/<>!=]=? ")
_CHANNELS_OF_A_THREAD = 8


def finish_s(detail: VendorConv, knobs: VendorSettings, elements: int, device: Device) -> float:
    """Time in which the instructions of the last kernel are issued."""
    chain, _ = follow(detail, knobs)
    per_element = _READ + _statements(chain.statements, prod(detail.base.window))
    if knobs.is_phased(detail):
        per_element += _PHASED
    values = knobs.finish // (32 * knobs.warps)
    if detail.lines is not None:
        per_element += _LINE if values >= _LINE_VALUES else _LINE_APART
    elif detail.base.is_pooled:
        apart = log2(prod(detail.base.window) * _CHANNELS_OF_A_THREAD / values)
        per_element += _HALVING * max(0.0, apart)
    return _issue_s(elements * per_element, device)


def statistics_s(detail: VendorConv, knobs: VendorSettings, elements: int, device: Device) -> float:
    """Time in which the instructions of the kernel that sums over positions are issued."""
    chain, _ = precede(detail, knobs)
    window = 1 if detail.is_norm else prod(detail.base.window)
    per_element = _CENTRED if detail.is_norm else _SUMMED
    return _issue_s(elements * (per_element + _statements(chain.statements, window)), device)


def _statements(statements: tuple[tuple[str, str], ...], window: int) -> float:
    """Instructions for one element; behind a pooling a window is one."""
    instructions, share = 0.0, 1.0
    for name, text in statements:
        # what stands in a text several times is done once
        calls = {
            text[found.start() : _end(text, found.end())]: found[1]
            for found in _CALL.finditer(text)
        }
        work = sum(_CALLS.get(call, _SPECIAL) for call in calls.values())
        instructions += share * (work + len(_SIGN.findall(text)))
        if name == "pooled":
            share /= window
    return instructions


def _end(text: str, start: int) -> int:
    """Where the bracket closes that is open at a place of a text."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return len(text)


def _issue_s(instructions: float, device: Device) -> float:
    return instructions / device.warp_size / (_ISSUED * issues_per_s(device))
