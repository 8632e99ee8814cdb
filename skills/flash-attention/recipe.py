"""Writes scaled dot-product attention, fused (fused.py) or in two stages (two_stages.py).

It is torch's own operator, or written out as products around a softmax (sites.py). What queries see
of the keys may be a band (bands.py), as where attention is causal: blocks outside are skipped.

fp32 is split into parts first (split_rows.py), and written again where parts do not hold it
(mending.py). Its scores have a rung of accuracy: at 0 they are as far off as inputs rounded a few
times over, at 1 as inputs rounded once. Which sites, knobs and times are here.
"""

from collections.abc import Sequence

from kmem.codegen.rates import ceiling
from kmem.codegen.settings import read_settings
from kmem.codegen.text.calls import write_call, write_launch_function
from kmem.codegen.text.parts import SCALES
from kmem.problem.graph import OpGraph
from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.recipes import ACCURACY, Emission, Operand, Recipe, Role, Settings, Site, Space
from kmem.records import Contract, Device

from .attention import Attention, AttentionSettings
from .bounds import BOUNDS, write_bounding
from .flagging import FLAG, write_flagging
from .fused import FUSED, write_fused
from .laying import LAY, write_laying
from .mending import MEND, write_mending
from .sites import MAX_FUSED_WIDTH, read_attention
from .split_rows import SPLIT_ROWS, TILE_HELPERS, write_splitting
from .two_stages import OUTPUT, SCORES, WEIGHTS, output_columns, write_two_stages

MAX_THREAD_SUMS = 176  # of 255 registers; addresses and statistics take the rest
#: Shared memory of a program for what its tiles do not need: statistics of rows on their way
#: between warps.
STATISTICS_BYTES = 4096
#: Share of the fp16 ceiling: three products a tile (source: split-fp16-matmul on an H200,
#: 2026-11-21), and one with the exponentials of a fused kernel between (source: FlashAttention-2 on
#: an H100, arXiv 2307.08691, figure 7: 350 of 640).
SHARE_OF_CEILING = {3: 0.68, 1: 0.55}
#: Of the rate above that three products keep where exponentials wait for every block of scores.
FUSED_SHARE = 0.75
#: Instructions that a score takes: to scale, subtract, exponentiate, add and round it, and its part
#: of loads; for each block of keys one more for each column of the output, which is scaled.
#: Source: counted in the machine code of the loop for sm_90, heads 64 and 128 wide.
SCORE_INSTRUCTIONS = 8
#: Share that is left with two stages of loads, and with steps of 32. These and the next only rank
#: settings.
FEW_STAGES, SHORT_STEPS = 0.95, 0.95
#: Of the bandwidth of a copy, what passes reach; of the shorter of computing and moving, what the
#: longer does not hide.
SHARE_OF_BANDWIDTH, EXPOSED = 0.9, 0.1
_TILE_SIDES = (16, 32, 64, 128)


class FlashAttention(Recipe):
    operators = ("attention",)
    roles = {
        "form": (Role("fusion", (("two_stages",), ("fused",))),),
        "block_m": (Role("tile"),),
        "block_n": (Role("depth"),),
        "block_k": (Role("depth"),),
        "warps": (Role("warps"),),
        "stages": (Role("stages"),),
    }

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        sites = []
        for node in graph.nodes:
            found = read_attention(graph, node)
            if found is not None:
                detail = found.detail
                inputs = tuple(Operand(name, graph.spec(name)) for name in found.reads)
                site = Site(
                    name=node.name,
                    operator="attention",
                    nodes=found.nodes,
                    inputs=inputs,
                    outputs=(Operand(found.made, detail.out),),
                    detail=detail,
                    bytes=sum(operand.spec.bytes for operand in inputs) + detail.out.bytes,
                    flops=detail.flops,
                )
                sites.append(site)
        # of constants, some may be made before those of an attention that comes first
        return sorted(sites, key=lambda site: min(map(graph.place, site.nodes)))

    def space(self, site: Site, device: Device) -> Space:
        detail: Attention = site.detail
        is_narrow = max(detail.depth, detail.width) <= MAX_FUSED_WIDTH
        most_m = max(16, next_power_of_two(detail.queries))
        most_n = max(16, next_power_of_two(detail.keys))
        forms = (("fused",) if is_narrow else ()) + (
            ("two_stages",) if detail.is_split and detail.is_softmax else ()
        )
        knobs = {
            "form": forms,
            "block_m": tuple(rows for rows in _TILE_SIDES if rows <= most_m),
            "block_n": tuple(rows for rows in _TILE_SIDES if rows <= most_n),
            "block_k": (32, 64),
            "warps": (4, 8),
            "stages": (2, 3),
            # 1: no product of parts is left out of a score
            **({ACCURACY: (0, 1)} if detail.is_split else {}),
        }
        return Space(knobs, lambda settings: _is_legal(detail, _knobs(settings), device))

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        detail: Attention = site.detail
        knobs = _knobs(settings)
        bandwidth = SHARE_OF_BANDWIDTH * device.dram_bytes_per_s
        before_ms = 2 * detail.operand_bytes / bandwidth * 1e3 if detail.is_split else 0.0
        moved = detail.operand_bytes + site.outputs[0].spec.bytes
        moved += sum(term.bytes for term in detail.read_terms.values())
        memory_ms = moved / bandwidth * 1e3
        if not knobs.is_fused:
            scores = 4 * 2 * _computed_pairs(detail, knobs)
            memory_ms += scores / bandwidth * 1e3
        product_ms = _product_ms(detail, knobs, device)
        exposed_ms = EXPOSED * min(product_ms, memory_ms)
        launches = (1 if knobs.is_fused else 3) + (4 if detail.is_split else 0)
        if detail.flags_values:
            before_ms += detail.flagged_bytes / bandwidth * 1e3
            launches += 1
        for term in detail.laid_terms.values():
            if not term.is_kept:
                before_ms += 2 * term.bytes / bandwidth * 1e3
                launches += 1
        return before_ms + max(product_ms, memory_ms) + exposed_ms + launches * device.launch_ms

    def emit(self, site: Site, settings: Settings) -> Emission:
        detail: Attention = site.detail
        knobs = _knobs(settings)
        write = write_fused if knobs.is_fused else write_two_stages
        is_bounded = detail.is_bounded and knobs.is_fused
        out = write_call(
            "out = torch.empty_strided",
            f"{detail.out.shape!r}, {detail.out.stride!r}",
            "dtype=q.dtype, device=q.device",
        )
        statements = [
            out,
            *(line for each in detail.laid_terms.items() for line in write_laying(*each)),
            *(write_splitting(detail) if detail.is_split else ()),
            *(write_flagging(detail) if detail.flags_values else ()),
            *(write_bounding(detail, knobs) if is_bounded else ()),
            *write(detail, knobs),
            *((write_mending(detail),) if detail.is_split else ()),
            "return out",
        ]
        kernels = (
            SCALES,
            *((SPLIT_ROWS,) if detail.is_split else ()),
            *((FLAG,) if detail.flags_values else ()),
            *((LAY,) if detail.laid_terms else ()),
            *((BOUNDS,) if is_bounded else ()),
            TILE_HELPERS,
            *((FUSED,) if knobs.is_fused else (SCORES, WEIGHTS, OUTPUT)),
            *((MEND,) if detail.is_split else ()),
        )
        return Emission(kernels, write_launch_function(detail.reads, statements))


def _knobs(settings: Settings) -> AttentionSettings:
    return read_settings(AttentionSettings, settings)


def _product_ms(detail: Attention, knobs: AttentionSettings, device: Device) -> float:
    """Time of the products at the rate of their tiles, in a fused form with its last turn."""
    terms = 3 if detail.is_split else 1
    narrow = min(1.0, knobs.block_m / 128) ** 0.5 * min(1.0, knobs.block_n / 64) ** 0.5
    narrow *= 1.0 if knobs.stages > 2 else FEW_STAGES
    rate = ceiling(device, "fp16") * SHARE_OF_CEILING[terms] * narrow
    if knobs.is_fused:
        rescaling = detail.width / knobs.block_n / SCORE_INSTRUCTIONS
        rate *= FUSED_SHARE if terms == 3 else 1 / (1 + rescaling)
    else:
        intensity = knobs.block_m * knobs.block_n / (knobs.block_m + knobs.block_n)
        rate *= min(1.0, intensity / 64) * (1.0 if knobs.block_k == 64 else SHORT_STEPS)
    pairs = _computed_pairs(detail, knobs)
    flops = 2.0 * ((terms + knobs.accuracy) * detail.depth + terms * detail.width)
    product_ms = flops * pairs / rate * 1e3
    if not knobs.is_fused:
        return product_ms
    band = detail.likely_band
    if band.edges:  # the longest programs come first, and short ones fill up
        longest = knobs.block_m * band.most_keys(detail.queries, detail.keys)
        return product_ms * max(1.0, longest * device.sm_count / pairs)
    programs = detail.heads * ceil_div(detail.queries, knobs.block_m)
    turns = programs / device.sm_count
    return product_ms * max(1.0, ceil_div(programs, device.sm_count) / turns)


def _computed_pairs(detail: Attention, knobs: AttentionSettings) -> float:
    """Pairs of a query and a key whose score is computed.

    At an edge of the band a block of queries needs whole blocks of keys, and these for each of its
    rows: half a block of each more than it sees.
    """
    band = detail.likely_band if knobs.is_fused else detail.band
    seen = band.pairs(detail.queries, detail.keys)
    beside = band.edges * detail.queries * (knobs.block_m + knobs.block_n) / 2
    return detail.heads * min(seen + beside, float(detail.queries * detail.keys))


def _is_legal(detail: Attention, knobs: AttentionSettings, device: Device) -> bool:
    block_m, block_n = knobs.block_m, knobs.block_n
    parts = detail.parts
    threads = device.warp_size * knobs.warps
    spare = device.shared_bytes_per_block - STATISTICS_BYTES
    if knobs.warps > 4 and block_m < 16 * knobs.warps:
        return False  # warps beyond the rows of a block repeat its products
    if knobs.is_fused:
        depth, width = next_power_of_two(detail.depth), next_power_of_two(detail.width)
        # The output, its part under way (three products), and the scores.
        sums = block_m * (width * parts + block_n * parts) / threads
        shared = (block_m * depth + block_n * (depth + width) * knobs.stages) * 2 * parts
        # block_k is of the other form
        return knobs.block_k == 64 and sums <= MAX_THREAD_SUMS and shared <= spare
    columns = max(block_n, output_columns(detail))
    sums = 2 * block_m * columns / threads
    shared = (block_m + columns) * knobs.block_k * 2 * parts * knobs.stages
    return sums <= MAX_THREAD_SUMS and shared <= spare


RECIPE = FlashAttention()
