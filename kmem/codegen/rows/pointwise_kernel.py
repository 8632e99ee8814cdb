"""The kernel for a region without reductions: one flat index, a tile of BLOCK elements per program.

What a program does stands in pointwise_body.py. Where outputs are put together from parts, it makes
a tile of each part; regions beside each other have ranges of the programs. Settings: BLOCK,
num_warps, HINT ("keep" or "stream": evict_first loads).
"""

from collections.abc import Sequence
from math import log2

from kmem.codegen.regions.region import Map, Region
from kmem.codegen.rows.launching import allocations, assignments, indent
from kmem.codegen.rows.pointwise_body import PointwiseBody, vectors_between
from kmem.codegen.text.calls import write_launch_function
from kmem.codegen.text.definitions import define
from kmem.problem.operators.expressions import order_helpers
from kmem.problem.sizes import ceil_div
from kmem.recipes import Emission, Settings, Space
from kmem.records import Device

#: Most elements that a thread should have of all parts that its program makes.
_MOST_PER_THREAD = 32
#: What a tile of several vectors a thread costs where parts lie between each other: Triton lays it
#: out anew through shared memory beside what is one vector a thread. Seen in what it compiles for
#: sm_90 (3 conversions, 8 bytes of 24 a thread moves); the share of time is assumed, not measured.
_CONVERTED = 0.05


def emit_pointwise(region: Region, settings: Settings) -> Emission:
    """The kernel and launcher for one setting. The region must have kept axes alone."""
    inputs = [f"p{index}" for index in range(len(region.inputs))]
    outputs = [f"q{index}" for index in range(len(region.outputs))]
    bodies = _bodies(region, streams=settings["HINT"] == "stream")
    constants: dict[str, object] = {}
    for body in bodies:
        constants |= body.constants(int(settings["BLOCK"]))
    says = "BLOCK elements of the result, element by element."
    kernel = define("pointwise", [*inputs, *outputs], constants, _lines(bodies), says)
    programs = " + ".join(f"triton.cdiv(N{body.tag}, BLOCK)" for body in bodies)
    launch = kernel.write_launch(programs, {}, {"num_warps": settings["num_warps"]})
    lines = [
        *assignments(constants),
        *allocations(region),
        launch,
        f"return {', '.join(outputs)}",
    ]
    statements = [item for body in bodies for item in body.region.statements]
    maps = [item for item in statements if isinstance(item, Map)]
    helpers = order_helpers(helper for item in maps for helper in item.helpers)
    return Emission((*helpers, kernel.kernel), write_launch_function(inputs, lines))


def _bodies(region: Region, *, streams: bool) -> list[PointwiseBody]:
    if not region.beside:
        return [PointwiseBody(region, "", streams, region.is_of_parts)]
    return [
        PointwiseBody(each, f"_{number}", streams, has_parts=True)
        for number, each in enumerate((region, *region.beside))
    ]


def _lines(bodies: Sequence[PointwiseBody]) -> list[str]:
    """What a program does: of several regions, the one in whose range its number is."""
    lines = ["pid = tl.program_id(0)"]
    if len(bodies) == 1:
        return lines + bodies[0].lines()
    before = ""
    for number, body in enumerate(bodies[:-1], 1):
        lines.append(f"first{number} = {before}tl.cdiv(N{body.tag}, BLOCK)")
        before = f"first{number} + "
    condition, begin = "if pid < first1:", "pid"
    for number, body in enumerate(bodies, 1):
        lines += [condition, *indent([f"pid{body.tag} = {begin}", *body.lines()])]
        begin = f"pid - first{number}"
        condition = "else:" if number + 1 == len(bodies) else f"elif pid < first{number + 1}:"
    return lines


def pointwise_space(region: Region, device: Device) -> Space:
    """BLOCK elements per program, warps, and whether loads are marked for early eviction."""
    most = _MOST_PER_THREAD // _parts(region)

    def is_legal(settings: Settings) -> bool:
        per_thread = int(settings["BLOCK"]) // (int(settings["num_warps"]) * device.warp_size)
        return 2 <= per_thread <= most

    return Space(
        {"BLOCK": (512, 1024, 2048, 4096, 8192), "num_warps": (4, 8), "HINT": ("keep", "stream")},
        is_legal,
    )


def _parts(region: Region) -> int:
    """Elements of one output that a program makes for each of its index."""
    stores = max(len(each.stores) for each in (region, *region.beside))
    return max(1, stores // len(region.outputs)) if region.is_of_parts else 1


def pointwise_cost_ms(region: Region, settings: Settings, device: Device) -> float:
    """Bytes over bandwidth, less where few elements per thread or few programs leave it idle.

    Source of the factors: swish, tanh and gelu of 4096 x 393216 at ten settings each on an H200
    (tools/gpu_rowwise.py, 2026-11-21).
    """
    block, threads = int(settings["BLOCK"]), int(settings["num_warps"]) * device.warp_size
    programs = sum(ceil_div(each.rows, block) for each in (region, *region.beside))
    per_thread = block / threads
    vectors = max(vectors_between(each, per_thread) for each in (region, *region.beside))
    if vectors:
        thinness = _CONVERTED if vectors > 1 else 0.1 * (vectors < 1)
    else:
        thinness = 0.1 if per_thread < 4 else 0.01 * abs(log2(per_thread / 8))
    shape = 1.0 + 0.02 * max(0.0, log2(block / 1024)) + thinness
    fill = min(1.0, programs / device.sm_count)
    streaming = 1.02 if settings["HINT"] == "stream" else 1.0
    copy_ms = 1e3 * region.bytes / (0.93 * device.dram_bytes_per_s)
    return copy_ms * shape * streaming / max(fill, 1e-3) ** 0.5 + device.launch_ms
