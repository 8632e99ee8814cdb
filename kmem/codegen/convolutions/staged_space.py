"""The space of staged convolutions: their knobs, and which settings a device can run."""

import math
from collections.abc import Container

from kmem.codegen.convolutions.boxed_conv import can_box, fits_boxes
from kmem.codegen.convolutions.convolution import Convolution
from kmem.codegen.convolutions.gathered_taps import gather_choices, gather_taps
from kmem.codegen.convolutions.staged_conv import is_compensated, promote_steps
from kmem.codegen.convolutions.staged_operands import (
    LEAST_DEPTH,
    WIDE,
    StagedSettings,
    contraction,
    read_staged,
    staged_channels,
    staged_sizes,
)
from kmem.codegen.convolutions.walking_conv import FEWEST_POSITIONS, can_walk, programs_at_once
from kmem.problem.sizes import next_power_of_two
from kmem.recipes import ACCURACY, Rule, Space
from kmem.records import Device, Knob

HALF = 2  # bytes of a staged value
BOXES_ARCH = "sm_9"  # boxes were compiled and looked at for sm_90 alone
_DEPTHS = (LEAST_DEPTH, 32, 64)  # of a step
_TILES = (64, 128, 256)  # positions
_MOST_RESIDENT = 4  # programs of an SM that walk
MIN_ROWS = 64  # of a warp group's product. Source: PTX ISA, wgmma.mma_async shapes
MAX_STAGED = 2**31 - 1  # elements of one image: offsets within it are 32-bit
#: Staged channels of which L1 may hold a tile's rows.
MOST_KEPT = 16
#: Sums of a thread; of its 255 registers addresses take the rest.
MIN_THREAD_SUMS, MAX_THREAD_SUMS = 4, 192
#: Of those in windows: 128 of them spilled 1,648 bytes behind a hardswish, 1,960 behind a tanh
#: (sm_90, Triton 3.9), for windows go through shared memory as a tile of their own.
_MAX_POOLED_SUMS = 64
_MOST_REGISTERS, _OTHER_REGISTERS = 255, 60


def staged_space(detail: Convolution, terms: int, rungs: tuple[int, ...], device: Device) -> Space:
    """The knobs of a staged convolution, with what goes together of them.

    Args:
        terms: products that make one, of the recipe.
        rungs: of its precision ladder.
    """
    widest = max(16, min(256, next_power_of_two(detail.group_out)))
    least = widest if detail.is_closed else widest // 2
    channels = (16, 32, 64, 128, 256)
    padded = staged_channels(detail)
    deepest = max(16, next_power_of_two(padded * detail.taps))
    gathers = gather_choices(detail)
    gathering = {"gather": gathers} if len(gathers) > 1 else {}
    optional = {
        **_walk_knobs(detail, device),
        **_box_knobs(detail, device),
        **_cache_knobs(detail),
    }
    walking = (FEWEST_POSITIONS,) if _may_walk(detail) else ()
    knobs = {
        "terms": (terms,),
        "block_p": (*walking, *_TILES),
        "block_co": tuple(count for count in channels if least <= count <= widest),
        "block_k": tuple(depth for depth in _DEPTHS if depth <= deepest),
        "copy_bytes": (16, 8) if padded % 8 == 0 or gathering else (8,),
        "warps": (8, 4),
        "stages": (2, 3, 4),
        "sums_along": ("positions", "channels"),
        **gathering,
        **optional,
        ACCURACY: rungs,
    }
    return Space(
        knobs,
        lambda settings: _is_legal(detail, read_staged(detail, settings), device),
        {
            "sums_along": "channels",
            **dict.fromkeys(gathering, "no"),
            **{name: values[0] for name, values in optional.items()},
        },
        _rules(knobs),
    )


def staged_elements(detail: Convolution) -> int:
    """Elements of one image of one group, staged."""
    return math.prod(staged_sizes(detail)) * staged_channels(detail)


def is_few(detail: Convolution) -> bool:
    """Whether taps meet again over few channels, in what L1 holds."""
    return detail.taps > 1 and staged_channels(detail) <= MOST_KEPT


def resident_programs(detail: Convolution, knobs: StagedSettings, device: Device) -> int:
    """Programs that share an SM, by registers and shared memory; at least one."""
    threads = device.warp_size * knobs.warps
    registers = min(_MOST_REGISTERS, int(_thread_sums(detail, knobs, device)) + _OTHER_REGISTERS)
    fits = min(
        device.registers_per_sm // (registers * threads),
        device.shared_bytes_per_sm // _shared_bytes(knobs),
    )
    return max(1, fits)


def step_bytes(knobs: StagedSettings) -> int:
    """Bytes one step of one program copies to shared memory."""
    return (knobs.block_p + knobs.block_co) * knobs.depth * HALF * knobs.parts


def _box_knobs(detail: Convolution, device: Device) -> dict[str, tuple[Knob, ...]]:
    """Knobs of operands that come as boxes, where the card has them and a step can lie in a tap."""
    has_steps = staged_channels(detail) % min(_DEPTHS) == 0
    if not device.arch.startswith(BOXES_ARCH) or not has_steps or not can_box(detail):
        return {}
    programs = (0, device.sm_count, 2 * device.sm_count)
    return {"copies": ("threads", "boxes"), "programs": programs}


def _walk_knobs(detail: Convolution, device: Device) -> dict[str, tuple[Knob, ...]]:
    """How many programs may walk over the tiles of few channels."""
    counts = tuple(count * device.sm_count for count in range(_MOST_RESIDENT + 1))
    return {"programs": counts} if _may_walk(detail) else {}


def _cache_knobs(detail: Convolution) -> dict[str, tuple[str, ...]]:
    """Where copies may be kept; nothing where taps do not meet again, or in more than L1 holds."""
    return {"kept_in": ("l2", "l1")} if is_few(detail) else {}


def _may_walk(detail: Convolution) -> bool:
    return can_walk(detail) and is_few(detail)


def _thread_sums(detail: Convolution, knobs: StagedSettings, device: Device) -> float:
    """Accumulators of one thread.

    They are the sum, with three terms the cross terms, with promotion a second sum, and what that
    has lost.
    """
    promoted = promote_steps(detail, knobs) > 0
    sets = 1 + (knobs.terms == 3) + promoted + (promoted and is_compensated(knobs))
    return sets * knobs.block_p * knobs.block_co / (device.warp_size * knobs.warps)


def _shared_bytes(knobs: StagedSettings) -> int:
    """Shared memory of one program.

    It holds operands of all stages, or the result on its way between threads.
    """
    result = knobs.block_p * knobs.block_co * 4
    return max(step_bytes(knobs) * knobs.stages, result)


def _rules(knobs: Container[str]) -> tuple[Rule, ...]:
    """What goes together of the knobs that a space has, whatever the convolution."""
    rules = (
        # warps beyond the rows of a tile repeat its products
        Rule(("block_p", "block_co", "warps", "sums_along"), _has_rows),
        # no taps are left that would meet in L1
        Rule(("gather", "copy_bytes"), lambda gather, width: gather == "no" or width == WIDE),
        Rule(("copies", "copy_bytes"), lambda copies, width: copies != "boxes" or width == WIDE),
        Rule(("kept_in", "copy_bytes"), lambda kept_in, width: kept_in != "l1" or width == WIDE),
        Rule(("kept_in", "copies"), lambda kept_in, copies: kept_in != "l1" or copies != "boxes"),
    )
    return tuple(rule for rule in rules if all(name in knobs for name in rule.knobs))


def _has_rows(block_p: int, block_co: int, warps: int, sums_along: str) -> bool:
    rows = block_co if sums_along == "positions" else block_p
    return rows >= (16 * warps if warps > 4 else MIN_ROWS)


def _is_legal(detail: Convolution, knobs: StagedSettings, device: Device) -> bool:
    detail = gather_taps(detail, knobs.gather)
    if knobs.gather != "no" and staged_elements(detail) > MAX_STAGED:
        return False
    if knobs.copies_widely and staged_channels(detail) % 8 != 0:
        return False
    if knobs.walks and (
        knobs.block_k != LEAST_DEPTH  # there are pieces in place of steps
        or promote_steps(detail, knobs) > 0
        or knobs.programs > programs_at_once(detail, knobs, device)
    ):
        return False
    if knobs.block_p not in _TILES and not knobs.walks:
        return False
    if knobs.has_boxes and not (can_box(detail) and fits_boxes(detail, knobs)):
        return False
    # An operand of the epilogue as large as the tile is in registers beside the sums. Source:
    # tile-matmul, where it spilled.
    most = MAX_THREAD_SUMS if not detail.full_operands else MAX_THREAD_SUMS // 2
    if detail.is_pooled:
        most = _MAX_POOLED_SUMS
    if not MIN_THREAD_SUMS <= _thread_sums(detail, knobs, device) <= most:
        return False
    if knobs.walks:
        return True
    if knobs.stages > 2 and contraction(detail, knobs.block_k) // knobs.block_k < knobs.stages:
        return False
    return _shared_bytes(knobs) <= device.shared_bytes_per_block
