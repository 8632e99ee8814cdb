"""The launches of a scan: what the kernels of kernels.py are handed and told.

Strategies (the STRATEGY knob):

- "carry": one program goes over its BK rows tile by tile; inputs are read once and results written
  once.
- "split": one kernel leaves the totals of SPLIT segments per row, a second scans each segment on
  top of the totals that precede it.
"""

import re
from collections.abc import Sequence

from kmem.codegen.regions.pointwise import compute_type
from kmem.codegen.regions.region import Map
from kmem.codegen.scans.scan import SCANNED, Scan, ScanLoad
from kmem.codegen.scans.space import fit_settings
from kmem.codegen.text.calls import write_call, write_launch, write_launch_function
from kmem.codegen.text.definitions import write_definition
from kmem.codegen.text.kernel_files import read_anchor
from kmem.problem.operators.expressions import order_helpers
from kmem.problem.sizes import next_power_of_two
from kmem.recipes import Emission, Settings
from kmem.records import Knob, content_hash

_NAME = re.compile(r"\w+")
#: What kernels call scans of these kinds.
_EXTREMES = {"max": 1, "min": -1}
#: Parameters of what is handed in, behind the values that it is given.
_PORT = (
    "STRIDES: tl.constexpr, PLACES: tl.constexpr, SIZES: tl.constexpr",
    "EVEN_K: tl.constexpr, EVEN_R: tl.constexpr",
)


def emit_scan(scan: Scan, settings: Settings) -> Emission:
    """The kernels and launcher for a scan at one setting.

    Args:
        settings: STRATEGY, BK, BR, SPLIT and num_warps, as `scan_space` offers them.
    """
    before = _write_port(scan, "before", scan.before, scan.source)
    handed_in, after = [before], "None"
    if scan.after or scan.result != SCANNED:
        handed_in.append(_write_port(scan, "after", (*scan.before, *scan.after), scan.result))
        after = handed_in[-1][0]
    maps = [item for item in (*scan.before, *scan.after) if isinstance(item, Map)]
    helpers = order_helpers(helper for item in maps for helper in item.helpers)
    inputs = [f"p{index}" for index in range(len(scan.inputs))]
    statements = _write_statements(scan, fit_settings(scan, settings), before[0], after)
    return Emission(
        (*helpers, *read_anchor("scans.kernels"), *handed_in),
        write_launch_function(inputs, statements),
    )


def _write_port(
    scan: Scan, name: str, items: Sequence[ScanLoad | Map], result: str
) -> tuple[str, str]:
    """The function that makes what is scanned, or what is stored of it."""
    lines, wanted = [f"return {result}"], set(_NAME.findall(result))
    for item in reversed(items):
        if item.name in wanted:
            text = item.text if isinstance(item, Map) else _write_load(scan, item)
            lines.insert(0, f"{item.name} = {text}")
            wanted.update(item.reads if isinstance(item, Map) else ())
    if "r" in _NAME.findall(" ".join(lines)):
        lines.insert(0, "r = at[3]")
    given = "inputs, at" if name == "before" else f"{SCANNED}, inputs, at"
    says = "What is scanned." if name == "before" else "What is stored."
    unique = f"kmem_{name}_{content_hash(*lines)[:8]}"
    return unique, write_definition(unique, (given, *_PORT), lines, says)


def _write_load(scan: Scan, item: ScanLoad) -> str:
    place = scan.loads.index(item)
    given = f"inputs[{item.operand}], at, {place}, STRIDES, PLACES, SIZES, EVEN_K, EVEN_R"
    return f"kmem_scan_load({given}).to({compute_type(item.dtype)})"


def _write_statements(scan: Scan, fitted: dict[str, Knob], before: str, after: str) -> list[str]:
    """Statements of the launcher."""
    inner = scan.kept[-1] if scan.kept else 1
    rows, block = int(fitted["BK"]), int(fitted["BR"])
    segment, split = int(fitted["SEGMENT"]), int(fitted["SPLIT"])
    programs = scan.rows // inner * -(-inner // rows) * split
    strides = tuple(item.strides or (0,) for item in (*scan.loads, scan.store))
    places = (
        *(
            (load.step, load.base, load.low, load.high if load.high < scan.length else -1)
            for load in scan.loads
        ),
        (scan.store.step, scan.store.base, 0, -1),
    )
    pointers = "".join(f"p{index}, " for index in range(len(scan.inputs))).rstrip()
    is_even = segment % block == 0 and segment * split == scan.length
    shared = (
        f"BEFORE={before}, STRIDES={strides!r}, PLACES={places!r}, SIZES={scan.kept or (1,)!r}",
        f"N={scan.length}, KI={inner}, BK={rows}, BR={block}, SPLIT={split}, SEGMENT={segment}",
        f"EVEN_K={inner % rows == 0}, EVEN_R={is_even}, WIDE={scan.is_wide}",
        f"PRODUCT={scan.kind == 'prod'}, EXTREME={_EXTREMES.get(scan.kind, 0)}, "
        f"REVERSE={scan.reverse}, num_warps={fitted['num_warps']}",
    )
    out = scan.output.spec
    memory = f"dtype=torch.{out.dtype}, device=p0.device"
    statements = [write_call("q = torch.empty_strided", f"{out.shape!r}, {out.stride!r}", memory)]
    totals = "None"
    if fitted["STRATEGY"] == "split":
        totals = "totals"
        size = f"{scan.rows * split}, dtype=torch.float32, device=p0.device"
        statements.append(write_call("totals = torch.empty", size))
        launch = write_launch("kmem_scan_totals", programs, f"({pointers}), totals", *shared)
        statements.append(launch)
    own = f"AFTER={after}, SPLIT_TILE={next_power_of_two(split)}"
    launch = write_launch("kmem_scan", programs, f"({pointers}), q, {totals}", own, *shared)
    return [*statements, launch, "return q"]
