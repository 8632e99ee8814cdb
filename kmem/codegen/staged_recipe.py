"""The recipes of staged convolutions: which sites they take, their knobs, a rough time.

Kernels in staged_conv.py.

Two skills share them and differ in how many products make one: staged-half-conv (as many bits as
TF32) and split-half-conv (exact fp32). They are two because what eager rounds is not in the graph:
cuDNN is exact for grouped and some odd convolutions, so both must be tried.
"""

from collections.abc import Sequence

from kmem.codegen.convolution import Convolution, find_convolutions
from kmem.codegen.matmul import ceil_div, ceiling
from kmem.codegen.staged_conv import (
    contraction,
    emit_staged,
    promote_steps,
    staged_channels,
    staged_sizes,
)
from kmem.problem.graph import OpGraph
from kmem.problem.sizes import next_power_of_two
from kmem.recipes import Emission, Recipe, Settings, Site, Space
from kmem.records import DTYPE_BYTES, Contract, Device

HALF = 2  # bytes of a staged value
MAX_STAGED = 2**31 - 1  # elements of one image: offsets within it are 32-bit
MAX_THREAD_SUMS = 192  # of 255 registers; addresses take the rest
#: What follows is fitted to one H200 (torch 2.11, Triton 3.6, 2026-11-21; KernelBench level 1,
#: problems 50, 54, 57, 58, 64, 86) and ranks. From L2 to shared memory, all SMs together; and how
#: often L1 (8-byte copies) gives the rows that taps of several rows share.
L2_BYTES_PER_S, L1_GAIN = 3.4e12, 2.4
#: Share of the fp16 ceiling that three and one products a tile reach while nothing waits.
SHARE_OF_CEILING = {3: 0.55, 1: 0.5}
SHARE_OF_BANDWIDTH = 0.9  # of a copy, that reading for the scale, staging and the result reach
#: From a step's loads to their arrival, with at most two steps ahead of the one that multiplies: a
#: third hid nothing. Start of a program.
STEP_S = 1e-6
MOST_AHEAD = 2
PROGRAM_S = 1.5e-6
#: Of a program's other phases, what its longest does not hide: always, and more the fewer programs
#: share the SM.
EXPOSED, EXPOSED_ALONE = 0.1, 0.3


class StagedConv(Recipe):
    """fp32 with as many bits as TF32 (one term; bf16 and fp16 as they are) or as fp32 (three
    terms).
    """

    operators = ("conv", "pointwise_conv", "conv_transpose")

    def __init__(self, terms: int) -> None:
        self.terms = terms

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        return [site for site in find_convolutions(graph) if self._fits(_convolution(site))]

    def _fits(self, detail: Convolution) -> bool:
        # cuDNN computes grouped fp32 ones in full fp32 (see transposed-conv-phases).
        exact = detail.dtype == "float32"
        wanted = exact if self.terms == 3 else not exact or detail.groups == 1
        return wanted and _staged_elements(detail) <= MAX_STAGED

    def space(self, site: Site, device: Device) -> Space:
        detail = _convolution(site)
        widest = max(16, min(256, next_power_of_two(detail.group_out)))
        padded = staged_channels(detail)
        length = next_power_of_two(padded * detail.taps)
        knobs = {
            "terms": (self.terms,),
            "block_p": (64, 128, 256),
            "block_co": tuple(
                count for count in (16, 32, 64, 128, 256) if widest // 2 <= count <= widest
            ),
            "block_k": tuple(depth for depth in (16, 32, 64) if depth <= max(16, length)),
            "copy_bytes": (8, 16) if padded % 8 == 0 else (8,),
            "warps": (4, 8),
            "stages": (2, 3, 4),
        }
        return Space(knobs, lambda settings: _is_legal(detail, settings, device))

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        detail = _convolution(site)
        terms, block_p, block_co, block_k = (
            int(settings[name]) for name in ("terms", "block_p", "block_co", "block_k")
        )
        source = detail.images * detail.channels_in * detail.inputs * DTYPE_BYTES[detail.dtype]
        staged = detail.batches * _staged_elements(detail) * HALF * (2 if terms == 3 else 1)
        passes = 2 if detail.dtype == "float32" else 1  # the first looks for the scale
        bandwidth = SHARE_OF_BANDWIDTH * device.dram_bytes_per_s
        stage_s = (source * passes + staged) / bandwidth
        tiles = (
            ceil_div(detail.positions, block_p)
            * ceil_div(detail.group_out, block_co)
            * detail.batches
        )
        steps = contraction(detail, block_k) // block_k
        # An SM multiplies 4096 fp16 a clock but reads 128 bytes of shared memory: 64 positions of a
        # warp group read all of a narrow tile's.
        rate = (
            ceiling(device, "fp16")
            * SHARE_OF_CEILING[terms]
            / max(1.0, 0.5 + 32 / block_co)
            * min(1.0, block_k / 32)
        )
        waves = ceil_div(tiles, device.sm_count) * device.sm_count / tiles
        product_s = waves * tiles * 2.0 * terms * block_p * block_co * block_k * steps / rate
        gain = (
            L1_GAIN
            if int(settings["copy_bytes"]) == 8 and detail.taps > detail.axes[2].kernel > 1
            else 1.0
        )
        copy_s = tiles * steps * _step_bytes(settings) / (L2_BYTES_PER_S * gain)
        memory_s = (staged + site.outputs[0].spec.bytes) / bandwidth
        resident = _resident(detail, settings, device)
        waits_s = (steps - 1) * STEP_S / min(MOST_AHEAD, int(settings["stages"]) - 1) + PROGRAM_S
        seconds = (product_s, copy_s, memory_s, tiles / (device.sm_count * resident) * waits_s)
        exposed = (EXPOSED + EXPOSED_ALONE / resident) * (sum(seconds) - max(seconds))
        return 1e3 * (stage_s + max(seconds) + exposed) + 4 * device.launch_ms

    def emit(self, site: Site, settings: Settings) -> Emission:
        return emit_staged(_convolution(site), settings)


def _convolution(site: Site) -> Convolution:
    assert isinstance(site.detail, Convolution)
    return site.detail


def _staged_elements(detail: Convolution) -> int:
    """Elements of one image of one group, staged."""
    depth, height, width = staged_sizes(detail)
    return depth * height * width * staged_channels(detail)


def _step_bytes(settings: Settings) -> int:
    """Bytes one step of one program copies to shared memory."""
    parts = 2 if int(settings["terms"]) == 3 else 1
    return (
        (int(settings["block_p"]) + int(settings["block_co"]))
        * int(settings["block_k"])
        * HALF
        * parts
    )


def _thread_sums(detail: Convolution, settings: Settings) -> float:
    """Accumulators of one thread: the sum, with three terms the cross terms, with promotion a
    second sum.
    """
    sets = 1 + (int(settings["terms"]) == 3) + (promote_steps(detail, settings) > 0)
    return (
        sets * int(settings["block_p"]) * int(settings["block_co"]) / (32 * int(settings["warps"]))
    )


def _resident(detail: Convolution, settings: Settings, device: Device) -> int:
    threads = 32 * int(settings["warps"])
    registers = min(255, int(_thread_sums(detail, settings)) + 60)
    return max(
        1,
        min(
            device.registers_per_sm // (registers * threads),
            device.shared_bytes_per_sm // _shared_bytes(detail, settings),
        ),
    )


def _shared_bytes(detail: Convolution, settings: Settings) -> int:
    """Shared memory of one program: operands of all stages, or the result on its way between
    threads.
    """
    result = int(settings["block_p"]) * int(settings["block_co"]) * 4
    return max(_step_bytes(settings) * int(settings["stages"]), result)


def _is_legal(detail: Convolution, settings: Settings, device: Device) -> bool:
    block_p, block_co, block_k, warps, stages = (
        int(settings[name]) for name in ("block_p", "block_co", "block_k", "warps", "stages")
    )
    # An operand of the epilogue as large as the tile is in registers beside the sums. Source:
    # tile-matmul, where it spilled.
    most = MAX_THREAD_SUMS if not detail.full_operands else MAX_THREAD_SUMS // 2
    if not 4 <= _thread_sums(detail, settings) <= most or (warps > 4 and block_p < 16 * warps):
        return False
    if stages > 2 and contraction(detail, block_k) // block_k < stages:
        return False
    return _shared_bytes(detail, settings) <= device.shared_bytes_per_block
