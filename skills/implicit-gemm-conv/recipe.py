"""Writes dense convolutions as products of output channels by positions of the input as it lies.

Which sites, knobs and times are here; the kernels are in direct.py.
"""

from collections.abc import Sequence
from dataclasses import replace

from kmem.codegen.chains.approximate import count_instructions, has_quick_form
from kmem.codegen.convolutions.convolution import Convolution, find_convolutions, judge_eager
from kmem.codegen.convolutions.norming import norm_cost_ms, norm_sites
from kmem.codegen.convolutions.summing import sum_cost_ms, sum_sites
from kmem.codegen.rates import ceiling, clock_hz
from kmem.codegen.settings import read_settings
from kmem.problem.graph import OpGraph
from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.recipes import ACCURACY, Emission, Recipe, Role, Settings, Site, Space
from kmem.records import Contract, Device

from .direct import (
    LANES,
    DirectSettings,
    contraction,
    emit_direct,
    follow_direct,
    is_split,
    promote_steps,
)

MIN_CHANNELS = 8  # fewer leave most of a step of one tap empty
STEP = 16  # the shallowest step
#: Steps of packed taps that ptxas unrolls: six of three products each spilled 528 bytes (sm_90).
#: Depth at which one such step still spills none; 64 spilled 8 to 32 bytes.
MOST_UNROLLED, DEEPEST_SPLIT = 8, 32
MOST_PACKED = 32  # channels; more leave little of a step empty
MAX_REGISTERS = 250  # of 255
#: Sums of a thread behind which a chain of more instructions for each spills: 128 of them 480 bytes
#: behind mish twice, 1,664 behind tanh of a softplus; none behind a hardswish, a tanh or one mish.
MOST_SUMS, LONG_CHAIN = 64, 24
#: Of a thread, registers beside sums and operands; and those that an epilogue's operand takes which
#: is as large as the tile.
OTHER_REGISTERS, OPERAND_REGISTERS = 50, 60
#: Of a thread: instructions for one element of the input (address, load, round, store to where the
#: tensor core reads), more where the tensor core reads registers (it takes tiles of fewer than 64
#: channels so), and for a step beside them. Source: the loop that Triton 3.6 writes for sm_90, 174
#: to 192 instructions at 16 elements and 317 to 335 at 32; from registers 251 to 264 and 320 to
#: 463.
ELEMENT_INSTRUCTIONS = 9
REGISTER_INSTRUCTIONS = 4
#: More for an element in two parts: a subtraction, a rounding, a second store. Not measured yet.
PART_INSTRUCTIONS = 5
#: More for an element of packed taps: where its tap and channel lie, and whether that is inside.
#: Source: the loop that Triton 3.9 writes for sm_90 of 3x3 taps of 8 channels, 928 instructions
#: where taps apart have 776, at 16 elements. And what a card took of the time so predicted.
#: Source: H200, 2026-11-23, level 2's 6, 21, 48 and 83: 0.6 to 0.9 with what surrounds them. In
#: tiles of 64 channels and more, by positions: 1.6 to 1.7, and 2.5 (2026-11-24, level 1's 50, 60,
#: 66).
PACKED_INSTRUCTIONS, PACKED_SHARE = 9, 0.7
PACKED_WIDE_SHARES = {128: 1.6, 256: 2.5}
#: The same of three products with taps apart, by positions of a program. Source: the same day, ten
#: problems over 8 channels (57, 65 and others): 1.2 to 1.35 and 1.8 to 2.2.
APART_SHARES = {128: 1.25, 256: 2.0}
STEP_INSTRUCTIONS = 45
ISSUED_LANES = 128  # that an SM issues a clock
#: Lines that a load of a warp touches, one a clock: its 32 positions seldom begin with one. Source:
#: with 16 and 32 lines (loads along channels) a step of 64 and 128 of them took 1390 to 1700 and
#: 4580 to 4960 clocks, the lines plus what `busy` below sums. H200, 2026-11-21, KernelBench level
#: 1, problems 57, 58, 64, 86. A stride takes as many more.
LOAD_LINES = 1.5
MULTIPLIED_ROWS = 64  # a warp group multiplies at least as many
#: From a step's loads to their arrival; start, first loads and store of a program.
STEP_CYCLES, PROGRAM_CYCLES = 700, 2500
STORED_A_CYCLE = 16  # elements of the result, by an SM
#: Of the vendor's ceiling and of the bandwidth of a copy, what this loop reaches. These and the
#: next only rank settings.
SHARE_OF_CEILING, SHARE_OF_BANDWIDTH = 0.85, 0.93
EXPOSED = 0.15  # of the shorter of computing and moving, what the longer does not hide


class ImplicitGemmConv(Recipe):
    """fp32 as TF32 (which eager's convolutions are by default), bf16 and fp16 as they are."""

    operators = ("conv", "pointwise_conv", "conv_transpose")
    roles = {
        "block_p": (Role("tile"),),
        "block_co": (Role("tile"),),
        "block_k": (Role("depth"),),
        "taps": (Role("fusion", (("apart",), ("packed",))),),
    }

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        # cuDNN computes grouped fp32 ones in full fp32 (see transposed-conv-phases): TF32 would be
        # refused.
        found = norm_sites(graph, find_convolutions(graph))
        found = [site for site in found if _fits(site.detail)]
        return sum_sites(graph, [judge_eager(site, contract.precision) for site in found])

    def space(self, site: Site, device: Device) -> Space:
        detail: Convolution = site.detail
        widest = max(16, min(128, next_power_of_two(detail.group_out)))
        taps = _tap_choices(detail)
        packing = {"taps": taps} if "packed" in taps else {}
        in_a_step = detail.group_in * (detail.taps if packing else 1)
        deepest = max(STEP, next_power_of_two(in_a_step))
        channels = (16, 32, 64, 128)
        # narrow tiles are never unrolled so far that they spill
        narrowest = widest // 2 if "apart" in taps else min(widest // 2, 32)
        knobs = {
            "block_p": (128, 256),
            "block_co": tuple(count for count in channels if narrowest <= count <= widest),
            "block_k": tuple(depth for depth in (16, 32, 64) if depth <= deepest),
            **packing,
            ACCURACY: _rungs(detail),
        }
        # An operand of the epilogue as large as the tile is in registers beside the sums, where the
        # next step's operands were.
        spare = 0 if not detail.full_operands else OPERAND_REGISTERS
        return Space(
            knobs,
            lambda settings: _is_legal(detail, _knobs(detail, settings), spare),
            dict.fromkeys(packing, "apart"),
        )

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        detail: Convolution = site.detail
        knobs, clock = _knobs(detail, settings), clock_hz(device)
        steps = contraction(detail, knobs) // knobs.block_k
        tiles = (
            ceil_div(detail.positions, knobs.block_p)
            * ceil_div(detail.group_out, knobs.block_co)
            * detail.batches
        )
        busy = _step_cycles(detail, knobs, device)
        store = knobs.block_p * knobs.block_co / STORED_A_CYCLE
        alone = steps * max(busy, STEP_CYCLES) + PROGRAM_CYCLES + store
        resident = max(1, min(_resident(detail, knobs, device), ceil_div(tiles, device.sm_count)))
        cycles = max(steps * busy + store, alone / resident)
        compute_ms = ceil_div(tiles, device.sm_count) * cycles / clock * 1e3
        # Taps of other rows come from L2 again where a tile's rows have left L1.
        bytes_ms = site.bytes / (SHARE_OF_BANDWIDTH * device.dram_bytes_per_s) * 1e3
        exposed_ms = EXPOSED * min(compute_ms, bytes_ms)
        total_ms = max(compute_ms, bytes_ms) + exposed_ms + 2 * device.launch_ms
        total_ms += norm_cost_ms(detail, site, device) + sum_cost_ms(detail, device)
        if knobs.is_packed:
            is_wide = knobs.block_co >= MULTIPLIED_ROWS
            return total_ms * (PACKED_WIDE_SHARES[knobs.block_p] if is_wide else PACKED_SHARE)
        return total_ms * (APART_SHARES[knobs.block_p] if is_split(detail, knobs) else 1.0)

    def emit(self, site: Site, settings: Settings) -> Emission:
        return emit_direct(site.detail, _knobs(site.detail, settings))


def _fits(detail: Convolution) -> bool:
    return bool(_tap_choices(detail)) and (detail.groups == 1 or detail.dtype != "float32")


def _tap_choices(detail: Convolution) -> tuple[str, ...]:
    """What may share a step: channels of one tap, or of several; nothing if both are empty."""
    can_pack = detail.taps > 1 and detail.group_in < MOST_PACKED and detail.group_in % STEP != 0
    apart = ("apart",) if detail.group_in >= MIN_CHANNELS else ()
    return (*apart, "packed") if can_pack else apart


def _rungs(detail: Convolution) -> tuple[int, ...]:
    """One product of fp32 becomes three; with the last rung what follows is exact, too.

    Where eager is expected to be exact the first has three: one would be refused.
    """
    gains_digits = detail.dtype == "float32" and has_quick_form(detail.epilogue)
    return tuple(range(1 + (not detail.is_eager_exact) + gains_digits))


def _is_legal(detail: Convolution, knobs: DirectSettings, spare: int) -> bool:
    deepest = max(STEP, next_power_of_two(detail.group_in))
    if knobs.is_packed:
        steps = contraction(detail, knobs) // knobs.block_k
        is_wide = knobs.block_co >= MULTIPLIED_ROWS
        is_unrolled = is_wide and steps <= MOST_UNROLLED
        if is_split(detail, knobs) and (is_unrolled or knobs.block_k > DEEPEST_SPLIT):
            return False
    elif knobs.block_k > deepest:
        return False
    if knobs.block_co > MOST_SUMS and _chain_instructions(detail, knobs) > LONG_CHAIN:
        return False
    return _registers(detail, knobs) + spare <= MAX_REGISTERS


def _chain_instructions(detail: Convolution, knobs: DirectSettings) -> float:
    """What follows the sums, for one of them."""
    return count_instructions(follow_direct(detail, knobs).statements)


def _knobs(detail: Convolution, settings: Settings) -> DirectSettings:
    """A site's setting; where eager is expected to be exact its first rung is the split one."""
    knobs = read_settings(DirectSettings, settings)
    return replace(knobs, accuracy=knobs.accuracy + 1) if detail.is_eager_exact else knobs


def _step_cycles(detail: Convolution, knobs: DirectSettings, device: Device) -> float:
    """Clocks of a step of one program that waits for nothing.

    Barriers before and after the product keep its phases apart, in every program and, as measured,
    in programs side by side.
    """
    unit = "tf32" if detail.dtype == "float32" else "bf16"
    clocks_per_s = device.sm_count * clock_hz(device)
    rate = ceiling(device, unit) * SHARE_OF_CEILING / clocks_per_s
    in_registers = knobs.block_co < MULTIPLIED_ROWS
    per_element = ELEMENT_INSTRUCTIONS + (REGISTER_INSTRUCTIONS if in_registers else 0)
    if is_split(detail, knobs):
        per_element += PART_INSTRUCTIONS
    if knobs.is_packed:
        per_element += PACKED_INSTRUCTIONS
    instructions = knobs.block_k * per_element + STEP_INSTRUCTIONS
    if promote_steps(detail, knobs) > 0:
        instructions += knobs.block_co / promote_steps(detail, knobs)
    issue = knobs.block_p * instructions / ISSUED_LANES
    rows = max(MULTIPLIED_ROWS, knobs.block_co)
    multiply = 2.0 * rows * knobs.block_p * knobs.block_k / rate
    multiply *= 3 if is_split(detail, knobs) else 1
    lines = LOAD_LINES + (0 if detail.flipped else detail.axes[2].stride - 1)
    return issue + multiply + knobs.block_k * knobs.block_p * lines / LANES


def _registers(detail: Convolution, knobs: DirectSettings) -> float:
    """Registers of a thread.

    They hold sums and the total that promotes them, operands of this step and the next, and beside
    these the addresses and the rest of a kernel.
    """
    sums = knobs.block_p * knobs.block_co * (2 if promote_steps(detail, knobs) > 0 else 1)
    operands = 2 * knobs.block_k * (knobs.block_p + knobs.block_co)
    return (sums + operands) / knobs.block_p + OTHER_REGISTERS


def _resident(detail: Convolution, knobs: DirectSettings, device: Device) -> int:
    """Programs that share an SM by registers; a thread for each position."""
    return max(1, int(device.registers_per_sm / (_registers(detail, knobs) * knobs.block_p)))


RECIPE = ImplicitGemmConv()
