"""The recipes of staged convolutions: which sites they take, a rough time.

Kernels in staged_conv.py, knobs in staged_space.py. Two skills share them and differ in how many
products make one: staged-half-conv (as many bits as TF32) and split-half-conv (exact fp32). They
are two because what eager rounds is not in the graph: cuDNN is exact for grouped and some odd
convolutions, so both must be tried.
"""

import math
from collections.abc import Sequence

from kmem.codegen.chains.approximate import chain_s, has_quick_form
from kmem.codegen.convolutions.boxed_conv import box_tiles
from kmem.codegen.convolutions.closing import close_sites
from kmem.codegen.convolutions.convolution import Convolution, find_convolutions, judge_eager
from kmem.codegen.convolutions.gathered_taps import gather_taps
from kmem.codegen.convolutions.launching import SHARE_OF_BANDWIDTH
from kmem.codegen.convolutions.norming import norm_cost_ms, norm_sites
from kmem.codegen.convolutions.pooled_tile import pool_sites
from kmem.codegen.convolutions.staged_conv import emit_staged, follow_staged, is_long
from kmem.codegen.convolutions.staged_operands import (
    StagedSettings,
    contraction,
    is_scaled,
    read_staged,
    staged_channels,
)
from kmem.codegen.convolutions.staged_space import (
    HALF,
    MAX_STAGED,
    is_few,
    resident_programs,
    staged_elements,
    staged_space,
    step_bytes,
)
from kmem.codegen.convolutions.summing import sum_cost_ms, sum_sites
from kmem.codegen.convolutions.walking_conv import filter_bytes
from kmem.codegen.rates import by_card, ceiling, issues_per_s
from kmem.problem.graph import OpGraph
from kmem.problem.sizes import ceil_div
from kmem.recipes import Emission, Recipe, Role, Settings, Site, Space
from kmem.records import DTYPE_BYTES, Contract, Device

#: What follows is fitted to one H200 (torch 2.11, Triton 3.6, 2026-11-21; KernelBench level 1,
#: problems 50, 54, 57, 58, 64, 86) and ranks. From L2 to shared memory, all SMs together; and how
#: often L1 (8-byte copies) gives the rows that taps of several rows share.
L2_BYTES_PER_S, L1_GAIN = 3.4e12, 2.4
#: Copies of 16 bytes, and L1's gain with 4 staged channels. Source: the same card on 2026-11-23; 64
#: to 128 channels, 3x3: the product reaches 439 TFLOP/s with copies of 16 bytes, 302 with 8; over 3
#: channels in 3D 46.
L2_WIDE_BYTES_PER_S, L1_GAIN_OF_FEW = 8e12, 1.3
#: Of the time over few channels, wherever they are kept, what a card took, but with four of them in
#: copies of 8 bytes. Source: H200, 2026-11-23 and -24, 36 kernels of level 1's 50, 54, 60, 63, 66
#: and level 2's 7, 57, 69, 71, 73, 82, 90: 0.98 to 1.7, 1.41 in the geometric mean.
FEW_CHANNELS_COST = 1.4
#: Of the product's time, what it takes with the sums along positions. Source: the same; 64 to 128
#: channels, 3x3: 0.98 and 1.1.
ALONG_POSITIONS = {1: 0.98, 3: 1.06}
#: Share of the fp16 ceiling that three products a tile reach while nothing waits, and that one
#: reaches.
SHARE_OF_CEILING, SHARE_COPYING_WIDELY = {3: 0.55, 1: 0.5}, {3: 0.55, 1: 0.65}
#: Of the product's time, what sums that are promoted or compensated beyond the first rungs take.
#: Not measured yet.
_EFFORT_COST = 0.05
#: One product where eager is expected to be exact begins as three, behind those of split-half-conv.
REFUSED = 3.0
#: Instructions for an element that is staged with its taps gathered (13 to 40 as Triton 3.9 writes
#: them for sm_90); and the factor by which a time that nobody has measured is put higher.
GATHER_INSTRUCTIONS, GATHER_MARGIN = 20, 1.1
#: The same of operands that come as boxes, with a program a tile and with programs that walk: an
#: H200 took 2.6 to 3.6 times as long with them as with threads (3x3, 128 channels, 56 pixels).
BOXES_MARGIN = (2.8, 3.2)
#: From a step's loads to their arrival, with at most two steps ahead of the one that multiplies: a
#: third hid nothing. Start of a program.
STEP_S = 1e-6
MOST_AHEAD = 2
PROGRAM_S = 1.5e-6
#: What a program that walks takes from tile to tile, beside copies and products.
TILE_S = 1e-6
#: Of the time of programs that walk, what a card took: by whether an SM has one or more, with two
#: stages and with more. Source: H200, 2026-11-24, 72 kernels over 3 and 8 channels, geometric
#: means; the fastest take 0.79 to 0.98 of the fastest of those with a program a tile.
WALKING_COST = {1: (1.63, 1.25), 2: (1.19, 1.37)}
#: Of a program's other phases, what its longest does not hide: always, and more the fewer programs
#: share the SM.
EXPOSED, EXPOSED_ALONE = 0.1, 0.3
#: Of that, with copies of 16 bytes.
EXPOSED_COPYING_WIDELY = 0.4


class StagedConv(Recipe):
    """A convolution of staged operands, with one product or three for each.

    One term has as many bits as TF32 (bf16 and fp16 go as they are), three have as many as fp32.
    """

    operators = ("conv", "pointwise_conv", "conv_transpose")
    roles = {
        "terms": (Role("precision"),),
        "block_p": (Role("tile"),),
        "block_co": (Role("tile"),),
        "block_k": (Role("depth"),),
        "copy_bytes": (Role("vector"),),
        "warps": (Role("warps"),),
        "stages": (Role("stages"),),
        "sums_along": (Role("layout", (("channels",), ("positions",))),),
        "gather": (Role("layout", (("no",), ("row",), ("window",))),),
        "copies": (Role("copying", (("threads",), ("boxes",))),),
        "programs": (Role("persistence"),),
        "kept_in": (Role("residency", (("l2",), ("l1",))),),
    }

    def __init__(self, terms: int) -> None:
        self.terms = terms

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        sites = pool_sites(graph, close_sites(graph, find_convolutions(graph)))
        sites = norm_sites(graph, sites)
        fitting = [site for site in sites if self._fits(_convolution(site))]
        judged = [judge_eager(site, contract.precision) for site in fitting]
        return sum_sites(graph, judged)

    def _fits(self, detail: Convolution) -> bool:
        # cuDNN computes grouped fp32 ones in full fp32 (see transposed-conv-phases).
        exact = is_scaled(detail)
        wanted = exact if self.terms == 3 else not exact or detail.groups == 1
        return wanted and staged_elements(detail) <= MAX_STAGED

    def space(self, site: Site, device: Device) -> Space:
        detail = _convolution(site)
        return staged_space(detail, self.terms, self._rungs(detail), device)

    def _rungs(self, detail: Convolution) -> tuple[int, ...]:
        """One term of fp32 becomes three; a long sum is promoted, if it is not, or compensated.

        With the last one what follows is exact, too. Where eager is expected to be exact the first
        has three: one term would be refused.
        """
        gains_terms = self.terms == 1 and is_scaled(detail) and not detail.is_eager_exact
        gains_digits = is_scaled(detail) and has_quick_form(detail.epilogue)
        return tuple(range(1 + gains_terms + (is_long(detail) or gains_digits)))

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        detail = _convolution(site)
        knobs = read_staged(detail, settings)
        is_slow = is_few(detail) and (knobs.copies_widely or staged_channels(detail) > 4)
        source = detail.images * detail.channels_in * detail.inputs * DTYPE_BYTES[detail.dtype]
        detail = gather_taps(detail, knobs.gather)
        elements = detail.batches * staged_elements(detail)
        staged = elements * HALF * knobs.parts
        passes = 2 if is_scaled(detail) else 1  # the first looks for the scale
        bandwidth = SHARE_OF_BANDWIDTH * device.dram_bytes_per_s
        stage_s = (source * passes + staged) / bandwidth
        if knobs.gather != "no":
            gather_s = elements * GATHER_INSTRUCTIONS / device.warp_size / issues_per_s(device)
            stage_s = max(stage_s, source / bandwidth + gather_s)
        tiles = (
            ceil_div(detail.positions, knobs.block_p)
            * ceil_div(detail.group_out, knobs.block_co)
            * detail.batches
        )
        if knobs.has_boxes:
            tiles = box_tiles(detail, knobs)
        steps = contraction(detail, knobs.depth) // knobs.depth
        waves = ceil_div(tiles, device.sm_count) * device.sm_count / tiles
        flops = 2.0 * knobs.terms * knobs.block_p * knobs.block_co * knobs.depth
        product_s = waves * tiles * flops * steps / _product_rate(knobs, device)
        product_s *= 1.0 + _EFFORT_COST * knobs.accuracy
        if knobs.sums_along == "positions":
            product_s *= ALONG_POSITIONS[knobs.terms]
        copied = tiles * steps * step_bytes(knobs)
        if knobs.walks:  # each program copies the filter once
            copied -= (tiles - knobs.programs) * filter_bytes(detail, knobs)
        copy_s = copied / _copied_bytes_per_s(detail, knobs, device)
        memory_s = (staged + site.outputs[0].spec.bytes) / bandwidth
        resident = resident_programs(detail, knobs, device)
        waits_s = (steps - 1) * STEP_S / min(MOST_AHEAD, knobs.stages - 1) + PROGRAM_S
        if knobs.walks:
            resident, waits_s = ceil_div(knobs.programs, device.sm_count), TILE_S
        seconds = (product_s, copy_s, memory_s, tiles / (device.sm_count * resident) * waits_s)
        chain = follow_staged(detail, knobs).statements
        values = detail.positions * detail.batches * detail.group_out
        following_s = chain_s(chain, values, device, math.prod(detail.window))
        exposed = (EXPOSED + EXPOSED_ALONE / resident) * (sum(seconds) - max(seconds))
        exposed *= EXPOSED_COPYING_WIDELY if knobs.copies_widely else 1.0
        launches = 3 + (not site.inputs[1].kept)  # the filter is packed once
        total_ms = (
            1e3 * (stage_s + max(seconds) + exposed + following_s) + launches * device.launch_ms
        )
        total_ms += norm_cost_ms(detail, site, device) + sum_cost_ms(detail, device)
        # split-half-conv has three terms
        is_refused = detail.is_eager_exact and self.terms == 1
        total_ms *= 1.0 if knobs.gather == "no" else GATHER_MARGIN
        if knobs.walks:
            total_ms *= WALKING_COST[min(resident, 2)][knobs.stages > 2]
        else:
            total_ms *= FEW_CHANNELS_COST if is_slow else 1.0
        total_ms *= BOXES_MARGIN[bool(knobs.programs)] if knobs.has_boxes else 1.0
        return total_ms * (REFUSED if is_refused else 1.0)

    def emit(self, site: Site, settings: Settings) -> Emission:
        detail = _convolution(site)
        return emit_staged(detail, read_staged(detail, settings))


def _convolution(site: Site) -> Convolution:
    assert isinstance(site.detail, Convolution)
    return site.detail


def _product_rate(knobs: StagedSettings, device: Device) -> float:
    """FLOP/s of the products of all SMs while nothing waits.

    An SM multiplies 4096 fp16 a clock but reads 128 bytes of shared memory: 64 positions of a warp
    group read all of a narrow tile's.
    """
    shares = SHARE_COPYING_WIDELY if knobs.copies_widely else SHARE_OF_CEILING
    rate = ceiling(device, "fp16") * shares[knobs.terms]
    of_depth = 1.0 if knobs.walks else min(1.0, knobs.block_k / 32)
    return rate / max(1.0, 0.5 + 32 / knobs.block_co) * of_depth


def _copied_bytes_per_s(detail: Convolution, knobs: StagedSettings, device: Device) -> float:
    """What copies to shared memory reach, all SMs together."""
    if knobs.copies_widely:
        return by_card(L2_WIDE_BYTES_PER_S, device)
    meets_again = detail.taps > detail.axes[2].kernel > 1
    gain = L1_GAIN_OF_FEW if staged_channels(detail) <= 4 else L1_GAIN
    return by_card(L2_BYTES_PER_S, device) * (gain if meets_again else 1.0)
