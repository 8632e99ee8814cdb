"""Writes chunked scans (reading.py says which): knobs, times, and which kernels (kernels.py)."""

from collections.abc import Sequence

from kmem.codegen.rates import ceiling
from kmem.codegen.settings import read_settings
from kmem.codegen.text.calls import write_launch_function
from kmem.codegen.text.parts import STORE_PARTS
from kmem.problem.graph import OpGraph
from kmem.problem.operators.expressions import STABLE_EXP
from kmem.problem.sizes import ceil_div
from kmem.recipes import ACCURACY, Emission, Recipe, Role, Settings, Site, Space
from kmem.records import Contract, Device

from .kernels import FUSED, OUTPUT, PASS, STATES, SUMS
from .launching import parameters_of, write_chunked, write_fused, write_results
from .reading import find_scans
from .scan import PRECISIONS, Scan, ScanSettings, columns_of, padded, precision_of
from .steps import HELPERS

#: Registers of a thread for tiles; addresses and statistics take the rest.
MOST_VALUES = 192
#: Elements of a state that one program carries from chunk to chunk. Compiled for sm_90: 64 spill 16
#: to 224 bytes a thread beside the tiles of a chunk, 16 nothing.
MOST_FUSED_STATE = 32
#: Rows of a tile of weights. Compiled for sm_90: 128 on 8 warps spill 16 to 344 bytes a thread, 64
#: on 4 nothing.
MOST_ROWS = 64
#: Of the bandwidth of a copy, what passes reach; of the shorter of computing and moving, what the
#: longer does not hide. As attention's.
SHARE_OF_BANDWIDTH, EXPOSED = 0.9, 0.1
#: Share of the ceiling of each precision. Guesses after split products (0.68 of fp16) and exact
#: ones (0.9); nothing of this recipe was measured yet.
SHARE_OF_CEILING = {"tf32": 0.5, "tf32x3": 0.5, "ieee": 0.7}
#: What a chunk takes from its loads to its state where no other program hides it. A guess.
CHUNK_S = 3e-6
#: Registers of a thread beside tiles, to tell how many programs share an SM.
OTHER_REGISTERS = 60
#: Share that is left with one stage of loads. It only ranks settings.
ONE_STAGE = 0.9


class ChunkedScan(Recipe):
    """Selective scans by chunks, fp32."""

    operators = ("recurrent",)
    roles = {
        "form": (Role("fusion", (("chunked",), ("fused",))),),
        "block_l": (Role("tile"),),
        "block_p": (Role("tile"),),
        "warps": (Role("warps"),),
        "stages": (Role("stages"),),
    }

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        return find_scans(graph, contract)

    def space(self, site: Site, device: Device) -> Space:
        scan: Scan = site.detail
        length, columns = padded(scan.sizes["place"]), padded(scan.sizes["column"])
        most = MOST_ROWS if scan.has_y else 2 * MOST_ROWS
        tiles = [side for side in (16, 32, 64, 128) if side <= min(length, most)]
        is_narrow = padded(scan.sizes["state"]) <= MOST_FUSED_STATE
        forms = ("fused", "chunked") if is_narrow else ("chunked",)
        knobs = {
            "form": forms,
            "block_l": tuple(tiles[-2:]),
            "block_p": tuple(side for side in (16, 32, 64, 128) if side <= columns)[-2:],
            "warps": (4, 8),
            "stages": (1, 2),
            ACCURACY: tuple(range(len(PRECISIONS) - scan.first_rung)),
        }
        return Space(knobs, lambda settings: _is_legal(scan, _knobs(settings), device))

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        scan: Scan = site.detail
        knobs = _knobs(settings)
        bandwidth = SHARE_OF_BANDWIDTH * device.dram_bytes_per_s
        moved = site.bytes
        if not knobs.is_fused:
            passes = 4 if scan.has_y else 2
            moved += 4 * passes * scan.state_elements
            moved += sum(operand.spec.bytes for operand in site.inputs)
        memory_ms = moved / bandwidth * 1e3
        product_ms = _product_ms(scan, knobs, device)
        launches = 2 if knobs.is_fused else 3 + scan.has_y
        exposed_ms = EXPOSED * min(product_ms, memory_ms)
        return max(product_ms, memory_ms) + exposed_ms + launches * device.launch_ms

    def emit(self, site: Site, settings: Settings) -> Emission:
        scan: Scan = site.detail
        knobs = _knobs(settings)
        made, returned = write_results(scan)
        launches = write_fused(scan, knobs) if knobs.is_fused else write_chunked(scan, knobs)
        kernels = (SUMS, FUSED) if knobs.is_fused else (SUMS, STATES, PASS)
        if scan.has_y and not knobs.is_fused:
            kernels = (*kernels, OUTPUT)
        return Emission(
            (STORE_PARTS, (STABLE_EXP.name, STABLE_EXP.source), HELPERS, *kernels),
            write_launch_function(parameters_of(scan), [*made, *launches, f"return {returned}"]),
        )


def _knobs(settings: Settings) -> ScanSettings:
    return read_settings(ScanSettings, settings)


def _product_ms(scan: Scan, knobs: ScanSettings, device: Device) -> float:
    """Time of the products with all that tiles pad, at the rate of their precision."""
    precision = precision_of(scan, knobs)
    terms = 3 if precision == "tf32x3" else 1
    rate = ceiling(device, "fp32" if precision == "ieee" else "tf32")
    rate *= SHARE_OF_CEILING[precision] * (ONE_STAGE if knobs.stages == 1 else 1.0)
    state, wide = padded(scan.sizes["state"]), columns_of(scan, knobs) * knobs.block_p
    length = ceil_div(scan.sizes["place"], knobs.block_l) * knobs.block_l
    within = length * length * (columns_of(scan, knobs) * state + wide) if scan.has_y else 0
    through = (2 if scan.has_y else 1) * length * state * wide
    places = scan.rows * scan.chunks
    seconds = 2.0 * terms * places * (within + through) / rate
    programs = scan.rows * columns_of(scan, knobs)
    if knobs.is_fused:
        threads = knobs.warps * device.warp_size
        registers = int(_values(scan, knobs) / threads) + OTHER_REGISTERS
        resident = max(1, device.registers_per_sm // (threads * registers))
        turns = ceil_div(programs, device.sm_count * resident)
        seconds = max(seconds, turns * scan.chunks * CHUNK_S)
    return seconds * 1e3


def _is_legal(scan: Scan, knobs: ScanSettings, device: Device) -> bool:
    steps = ceil_div(scan.sizes["place"], knobs.block_l)
    if knobs.is_fused and steps == 1:
        steps = scan.chunks
    if knobs.stages > 1 and steps == 1:
        return False  # nothing is loaded ahead
    rows, columns = knobs.block_l, knobs.block_p
    state = padded(scan.sizes["state"])
    loaded = rows * (columns + state * (2 if scan.has_y else 1))
    parts = 2 if precision_of(scan, knobs) == "tf32x3" else 1
    widest = max(columns, state, rows if scan.has_y else 0)
    shared = 4 * (loaded * (knobs.stages - 1) + parts * rows * widest)
    fits = shared <= device.shared_bytes_per_block
    return fits and _values(scan, knobs) / (knobs.warps * device.warp_size) <= MOST_VALUES


def _values(scan: Scan, knobs: ScanSettings) -> int:
    """Elements of tiles that a program has in registers at once, at most."""
    rows, columns = knobs.block_l, knobs.block_p
    state = padded(scan.sizes["state"])
    # the weights and the columns of y, what is held and what is added to it
    sums = rows * columns + 2 * state * columns + (rows * rows if scan.has_y else 0)
    return sums + rows * (columns + state * (2 if scan.has_y else 1)) // 2


RECIPE = ChunkedScan()
