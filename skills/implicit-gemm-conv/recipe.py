"""Writes dense convolutions as products of output channels by positions of the input as it lies;
see kmem/codegen/direct_conv.py.
"""

from collections.abc import Sequence

from kmem.codegen.convolution import Convolution, find_convolutions
from kmem.codegen.direct_conv import emit_direct
from kmem.codegen.matmul import ceil_div, ceiling
from kmem.problem.graph import OpGraph
from kmem.problem.sizes import next_power_of_two
from kmem.recipes import Emission, Recipe, Settings, Site, Space
from kmem.records import Contract, Device

MIN_CHANNELS = 8  # fewer leave most of a step of the contraction empty
MAX_REGISTERS = 250  # of 255
CLOCK_HZ = 1.7e9  # of an SM under tensor-core load; it only ranks settings
#: Of a thread: instructions for one element of the input (address, load, round, store to where the
#: tensor core reads), more where the tensor core reads registers (it takes tiles of fewer than 64
#: channels so), and for a step beside them. Source: the loop that Triton 3.6 writes for sm_90, 174
#: to 192 instructions at 16 elements and 317 to 335 at 32; from registers 251 to 264 and 320 to
#: 463.
ELEMENT_INSTRUCTIONS = 9
REGISTER_INSTRUCTIONS = 4
STEP_INSTRUCTIONS = 45
ISSUED_LANES = 128  # that an SM issues a clock
#: Lines that a load of a warp touches, one a clock: its 32 positions seldom begin with one. Source:
#: with 16 and 32 lines (loads along channels) a step of 64 and 128 of them took 1390 to 1700 and
#: 4580 to 4960 clocks, the lines plus what `busy` below sums. H200, 2026-11-21, KernelBench level
#: 1, problems 57, 58, 64, 86.
LOAD_LINES, LANES = 1.5, 32
MULTIPLIED_ROWS = 64  # a warp group multiplies at least as many
# from a step's loads to their arrival; start, first loads and store of a program
STEP_CYCLES, PROGRAM_CYCLES = 700, 2500


class ImplicitGemmConv(Recipe):
    """fp32 as TF32 (which eager's convolutions are by default), bf16 and fp16 as they are."""

    operators = ("conv", "pointwise_conv", "conv_transpose")

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        # cuDNN computes grouped fp32 ones in full fp32 (see transposed-conv-phases): TF32 would be
        # refused.
        return [site for site in find_convolutions(graph) if _fits(site.detail)]

    def space(self, site: Site, device: Device) -> Space:
        detail: Convolution = site.detail
        widest = max(16, min(128, next_power_of_two(detail.group_out)))
        knobs = {
            "block_p": (128, 256),
            "block_co": tuple(
                count for count in (16, 32, 64, 128) if widest // 2 <= count <= widest
            ),
            "block_k": tuple(
                depth
                for depth in (16, 32, 64)
                if depth <= max(16, next_power_of_two(detail.group_in))
            ),
        }
        # An operand of the epilogue as large as the tile is in registers beside the sums, where the
        # next step's operands were.
        spare = 0 if not detail.full_operands else 60
        return Space(knobs, lambda settings: _registers(settings) + spare <= MAX_REGISTERS)

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        detail: Convolution = site.detail
        block_p, block_co, block_k = (
            int(settings[name]) for name in ("block_p", "block_co", "block_k")
        )
        steps = detail.taps * ceil_div(detail.group_in, block_k)
        tiles = (
            ceil_div(detail.positions, block_p)
            * ceil_div(detail.group_out, block_co)
            * detail.batches
        )
        rate = (
            ceiling(device, "tf32" if detail.dtype == "float32" else "bf16")
            * 0.85
            / (device.sm_count * CLOCK_HZ)
        )
        per_element = ELEMENT_INSTRUCTIONS + (
            REGISTER_INSTRUCTIONS if block_co < MULTIPLIED_ROWS else 0
        )
        issue = block_p * (block_k * per_element + STEP_INSTRUCTIONS) / ISSUED_LANES
        multiply = 2.0 * max(MULTIPLIED_ROWS, block_co) * block_p * block_k / rate
        # Barriers before and after the product keep these apart, in every program and, as measured,
        # in programs side by side.
        busy = issue + multiply + block_k * block_p * LOAD_LINES / LANES
        alone = steps * max(busy, STEP_CYCLES) + PROGRAM_CYCLES + block_p * block_co / 16
        resident = max(1, min(_resident(settings, device), ceil_div(tiles, device.sm_count)))
        cycles = max(steps * busy + block_p * block_co / 16, alone / resident)
        compute_ms = ceil_div(tiles, device.sm_count) * cycles / CLOCK_HZ * 1e3
        # Taps of other rows come from L2 again where a tile's rows have left L1.
        bytes_ms = site.bytes / (0.93 * device.dram_bytes_per_s) * 1e3
        return max(compute_ms, bytes_ms) + 0.15 * min(compute_ms, bytes_ms) + 2 * device.launch_ms

    def emit(self, site: Site, settings: Settings) -> Emission:
        return emit_direct(site.detail, settings)


def _fits(detail: Convolution) -> bool:
    return detail.group_in >= MIN_CHANNELS and (detail.groups == 1 or detail.dtype != "float32")


def _registers(settings: Settings) -> float:
    """Of a thread: sums, and operands of this step and the next; addresses and the rest of a kernel
    beside them.
    """
    block_p, block_co, block_k = (
        int(settings[name]) for name in ("block_p", "block_co", "block_k")
    )
    return (block_p * block_co + 2 * block_k * (block_p + block_co)) / block_p + 50


def _resident(settings: Settings, device: Device) -> int:
    """Programs that share an SM by registers; a thread for each position."""
    return max(1, int(device.registers_per_sm / (_registers(settings) * int(settings["block_p"]))))


RECIPE = ImplicitGemmConv()
