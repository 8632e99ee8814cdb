"""Settings of row kernels: which are worth compiling, and how one is fitted to another size.

What a setting should cost is cost.py's.
"""

from dataclasses import dataclass, replace

from kmem.codegen.regions.reductions import REDUCTIONS
from kmem.codegen.regions.region import Reduce, Region
from kmem.codegen.rows.access import line_classes, region_lines
from kmem.codegen.text.accumulate import LONG_CHAIN
from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.recipes import ACCURACY, Rule, Settings, Space
from kmem.records import Device, Knob

#: Most fp32 values that one thread should hold of a tile before registers run out (255 per thread,
#: several tiles and addresses live), and most where programs share a row: 128 take 152 to 160
#: registers (instance norm, L1 norm, compiled for sm_90 by Triton 3.6).
_MAX_VALUES_PER_THREAD, _MAX_VALUES_SHARED = 64, 128
#: Programs that may share a row where a multiprocessor holds one: twice as many must fit a device
#: (see kernel.py), and those this project targets have 128 or more multiprocessors.
_MAX_SHARING = 64
#: Threads for which a multiprocessor has registers when each takes the most it can: 65536 of 256
#: (NVIDIA), 131072 of 512 (AMD).
_THREADS_AT_MOST_REGISTERS = 256
#: Largest tile of one program that still fits registers with 32 warps.
_MAX_TILE = 32768
#: Elements of a tile whose lines are of one class. Source: a prototype on H200, sums over dim 1 of
#: (128, 4096, 4095): 2.002, 2.009 and 2.016 ms for tiles of 128 x 32 (32 warps, 8) and 256 x 16
#: (8), 2.101 for 128 x 64 (16). The programs written here were not measured.
CLASSED_TILE = 4096
#: Programs of one warp that run at once on the devices this project targets: 132 multiprocessors of
#: 2048 threads at half occupancy. Half of them reduce, so that a writer as many programs behind
#: finds its states ready; a tile of 16 values a thread in 4 steps keeps 17 MB in L2.
_REDUCING_WARPS = 132 * 32 // 2
#: Strategies whose SPLIT knob cuts rows into parts.
PARTED = ("split", "classes", "pipelined")
#: Strategies whose programs loop over a row or a part of it.
LOOPS = ("loop", *PARTED)
#: Elements that the tiles of a line may take, of those that it has.
_MOST_BEYOND = 1.5
_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def sharing_places(warps: int, warp_size: int = 32) -> int:
    """How many programs of so many warps a multiprocessor holds, whatever registers they take.

    Programs that wait for each other count on it.
    """
    return max(1, _THREADS_AT_MOST_REGISTERS // (warps * warp_size))


def waiting(warps: int) -> list[str]:
    """Launcher lines that set `wait`: whether two launches of programs that wait fit the device.

    See kernel.py for why that is safe.
    """
    places = f"max(1, {_THREADS_AT_MOST_REGISTERS} // ({warps} * device.warp_size))"
    return [
        # a meta tensor asks for compilation alone: no device to hold the programs
        "device = torch.cuda.get_device_properties(p0.device) if p0.is_cuda else None",
        f"places = device.multi_processor_count * {places} if device else 2 * SPLIT",
        # on the CPU Triton interprets, one program after another
        "wait = not p0.is_cpu and 2 * SPLIT <= places",
    ]


@dataclass(frozen=True, slots=True)
class RowKnobs:
    """The knobs of one setting, as numbers."""

    strategy: str
    rows: int  # BK, per program
    columns: int  # BR, per tile
    split: int  # SPLIT, programs per row
    warps: int

    @property
    def tile(self) -> int:
        """Elements of a tile."""
        return self.rows * self.columns


def is_compensated(region: Region, fitted: Settings) -> bool:
    """Whether loops keep what their sums lose: long ones do, and all of several steps on rung 1.

    Args:
        fitted: a setting as `fit_settings` leaves it.
    """
    if not has_ladder(region) or fitted["STRATEGY"] not in LOOPS:
        return False
    steps = ceil_div(int(fitted["SEGMENT"]), int(fitted["BR"]))
    return steps > (1 if fitted.get(ACCURACY, 0) else LONG_CHAIN)


def has_ladder(region: Region) -> bool:
    """Whether something is added up, so that a loop over a row may lose digits."""
    return any(REDUCTIONS[item.kind].adds for item in region.statements if isinstance(item, Reduce))


def read_knobs(settings: Settings) -> RowKnobs:
    """The knobs of a setting."""
    return RowKnobs(
        str(settings["STRATEGY"]),
        int(settings["BK"]),
        int(settings["BR"]),
        int(settings["SPLIT"]),
        int(settings["num_warps"]),
    )


def fit_settings(
    region: Region, settings: Settings, is_lined: bool | None = None
) -> dict[str, Knob]:
    """A setting with SPLIT, SEGMENT, BR and LINED as they must be for this region's sizes.

    SEGMENT is how many elements of a row a program takes. A setting found at one size stays correct
    at another: "registers" always takes the whole row, and falls back to "loop" above the largest
    tile; "shared" widens its tile until at most 64 programs share a row (more if several fit a
    multiprocessor), and falls back to "split", as "classes" does where lines have none. SPLIT
    counts the parts of all classes together. LINED says that no part crosses from one line of a row
    over several axes to the next (see access.py).

    Args:
        is_lined: whether parts may not cross lines; None: where that is worth it.
    """
    strategy, columns = str(settings["STRATEGY"]), region.columns
    fitted = {**settings, "SPLIT": 1, "SEGMENT": columns, "LINED": False}
    if len(region.reduced) == 1:  # also of a size at which a row that had lines has none
        is_lined = False
    classes = line_classes(region) if strategy == "classes" else 1
    if strategy == "registers":
        fitted |= _fit_registers(region, settings)
    elif strategy == "shared":
        fitted |= _fit_shared(region, settings, is_lined)
    elif strategy == "pipelined" and max(region.passes().values()) > 1:
        fitted["STRATEGY"] = "split"  # a second pass would have to wait for the first
    elif strategy == "classes" and classes == 1:
        fitted["STRATEGY"] = "split"
    if fitted["STRATEGY"] in PARTED:
        wanted = int(settings["SPLIT"]) if strategy in PARTED else _MAX_SHARING
        fitted["LINED"] = _is_lined(region, fitted, wanted) if is_lined is None else is_lined
        kinds = region_lines(region) if fitted["LINED"] else classes  # of parts
        block, share = int(fitted["BR"]), ceil_div(columns, kinds)
        segment = ceil_div(share, max(1, wanted // kinds) * block) * block
        fitted |= {"SEGMENT": segment, "SPLIT": kinds * ceil_div(share, segment)}
    if fitted["STRATEGY"] == "pipelined":
        lead = _REDUCING_WARPS / int(settings["num_warps"]) / int(fitted["SPLIT"])
        fitted["LEAD"] = max(1, round(lead))
    return fitted


def _fit_registers(region: Region, settings: Settings) -> dict[str, Knob]:
    whole = next_power_of_two(region.columns)
    if whole * int(settings["BK"]) > 2 * _MAX_TILE:
        return {"STRATEGY": "loop", "BR": 1024}
    return {"BR": whole, "SEGMENT": whole}


def _fit_shared(region: Region, settings: Settings, is_lined: bool | None) -> dict[str, Knob]:
    sharing = _MAX_SHARING * sharing_places(int(settings["num_warps"]))
    share = max(int(settings["BR"]), next_power_of_two(-(-region.columns // sharing)))
    # without waiting the kernel would run more than once, which a buffer must not see
    if share * int(settings["BK"]) > _MAX_TILE or region.changes_inputs:
        return {"STRATEGY": "split", "SPLIT": _MAX_SHARING, "BR": 1024}
    fitted = {"BR": share, "SPLIT": ceil_div(region.columns, share), "SEGMENT": share}
    if is_lined is None:
        is_lined = _is_lined(region, {**settings, **fitted}, sharing)
    if is_lined:
        lines = region_lines(region)
        fitted["SPLIT"] = lines * ceil_div(region.columns // lines, share)
    return {**fitted, "LINED": is_lined}


def _is_lined(region: Region, fitted: Settings, most: int) -> bool:
    """Whether parts should not cross lines, though tiles then reach beyond the ends of lines.

    Args:
        fitted: with the tile that is to be.
        most: parts that there may be.
    """
    if int(fitted["BK"]) > 1 or fitted["STRATEGY"] == "classes":
        return False
    lines, tile = region_lines(region), int(fitted["BR"])
    line = region.columns // lines
    tiles = ceil_div(line, tile)
    fits = lines * (tiles if fitted["STRATEGY"] == "shared" else 1) <= most
    return fits and line % tile != 0 and tiles * tile <= _MOST_BEYOND * line


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Sizes of tiles that suit the layout of a region."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    whole: int  # the smallest that holds a row


def _tiles(region: Region) -> _Tiles:
    inner = region.axes[region.kept[-1]].size if region.kept else 1
    whole = next_power_of_two(region.columns)
    widest = min(next_power_of_two(inner), 256)
    if region.row_is_contiguous:
        rows = _up_to(widest, (1, 2, 4, 8, 16, 32, 64, 128, 256))
        columns = _up_to(whole, (1024, 2048, 4096, 8192, 16384, 32768))
    else:  # bursts run along the rows' axis, so a tile is at least 16 rows wide
        rows = _up_to(widest, (16, 32, 64, 128, 256))
        columns = _up_to(whole, (4, 8, 16, 32, 64, 128, 256, 512))
    return _Tiles(rows, columns, whole)


def _up_to(most: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes up to `most`; `most` itself if it is smaller than all."""
    return tuple(size for size in sizes if size <= most) or (most,)


def row_space(region: Region, device: Device) -> Space:
    """Knobs of a region's kernels.

    STRATEGY, BK rows per program, BR elements of the row per tile, SPLIT programs per row,
    num_warps, and ACCURACY where a strategy loops over sums: its rung 1 compensates all of them.
    """
    tiles = _tiles(region)
    strategies = _strategies(region, tiles)
    loops_by_row = region.row_is_contiguous

    def is_legal(settings: Settings) -> bool:
        knobs = read_knobs(settings)
        if knobs.strategy == "registers":
            knobs = replace(knobs, columns=tiles.whole)
        if not _fits_threads(region, knobs, tiles, device):
            return False  # most settings: before anything that takes longer is asked
        fitted = fit_settings(region, settings)
        return (
            (not settings.get(ACCURACY, 0) or is_compensated(region, fitted))
            and _is_worth_compiling(region, knobs, device)
            and not _idles(region, knobs, strategies, device)
            and _combines_in_registers(region, read_knobs(fitted), device)
        )

    knobs = {
        "STRATEGY": strategies,
        "BK": tiles.rows,
        "BR": tiles.columns,
        "SPLIT": _SPLITS,
        "num_warps": (1, 2, 4, 8, 16, 32),
    }
    if has_ladder(region) and set(strategies) & set(LOOPS):
        knobs[ACCURACY] = (0, 1)
    rules = (
        Rule(
            ("STRATEGY", "BK"),
            lambda strategy, rows: rows == 1 or strategy == "registers" or not loops_by_row,
        ),
        # there the tile is the whole row whatever BR says
        Rule(
            ("STRATEGY", "BR"),
            lambda strategy, columns: strategy != "registers" or columns == tiles.columns[0],
        ),
        Rule(("STRATEGY", "SPLIT"), lambda strategy, split: split == 1 or strategy in PARTED),
    )
    return Space(knobs, is_legal, rules=rules)


def _strategies(region: Region, tiles: _Tiles) -> tuple[str, ...]:
    fits_registers = tiles.whole * min(tiles.rows) * region.held_loads <= _MAX_TILE
    found = ["registers"] if fits_registers else []
    if region.columns > max(tiles.columns) // 2 or region.columns > 1024 or not found:
        found += ["loop", "split"]
    if "split" in found and line_classes(region) > 1:
        found.append("classes")
    if region.has_element_output and region.columns > 2048:
        found += ["shared"] if not region.changes_inputs else []
        if max(region.passes().values()) == 1 and "split" in found:
            found.append("pipelined")
    return tuple(found)


def _fits_threads(region: Region, knobs: RowKnobs, tiles: _Tiles, device: Device) -> bool:
    """Whether the tile neither starves nor overflows a program's threads."""
    by_one = knobs.strategy != "registers" and region.row_is_contiguous
    allowed_rows = (1,) if by_one else tiles.rows
    allowed_columns = (tiles.whole,) if knobs.strategy == "registers" else tiles.columns
    threads = knobs.warps * device.warp_size
    shares_narrowly = knobs.strategy == "shared" and knobs.warps <= 4
    most = _MAX_VALUES_SHARED if shares_narrowly else _MAX_VALUES_PER_THREAD
    return (
        min(512, max(allowed_rows) * max(allowed_columns)) <= knobs.tile <= _MAX_TILE
        and knobs.tile * region.held_loads <= threads * most
        and (knobs.tile >= 4 * threads or threads == device.warp_size)
    )


def _is_worth_compiling(region: Region, knobs: RowKnobs, device: Device) -> bool:
    """Whether programs of a strategy fill the device and pay for what they do more."""
    if knobs.strategy == "pipelined":
        return _is_worth_pipelining(region, knobs, device)
    if knobs.strategy == "split":
        return _is_worth_splitting(region, knobs, device)
    if knobs.strategy == "classes":
        return _is_worth_classing(region, knobs, device)
    if knobs.strategy == "shared":
        return _fits_sharing(ceil_div(region.columns, knobs.columns), knobs.warps, device)
    return True


def _idles(region: Region, knobs: RowKnobs, strategies: tuple[str, ...], device: Device) -> bool:
    """Whether a loop over rows leaves most of the device idle where rows can be split."""
    few = row_blocks(region, knobs.rows) < device.sm_count // 4
    return knobs.strategy == "loop" and few and "split" in strategies


def _fits_sharing(programs: int, warps: int, device: Device) -> bool:
    places = device.sm_count * sharing_places(warps, device.warp_size)
    return 2 <= programs <= min(_MAX_SHARING * sharing_places(warps), places // 2)


def _combines_in_registers(region: Region, fitted: RowKnobs, device: Device) -> bool:
    """Whether a program that combines all parts of its rows itself holds their states in registers.

    Source: batch norm of (16384, 4096) in turns of 128 rows and 512 parts, compiled for sm_90: 15
    kB of a thread's stack; 14.5 ms on H200 where parts and a kernel that combines them take 1.
    """
    if fitted.strategy not in ("shared", "pipelined"):
        return True
    states = max(
        len(REDUCTIONS[item.kind].states) for item in region.statements if isinstance(item, Reduce)
    )
    held = fitted.rows * next_power_of_two(fitted.split) * states
    return held <= _MAX_VALUES_PER_THREAD * fitted.warps * device.warp_size


def _is_worth_splitting(region: Region, knobs: RowKnobs, device: Device) -> bool:
    programs = row_blocks(region, knobs.rows) * knobs.split
    return (
        knobs.split > 1
        and knobs.split * knobs.columns < region.columns * 2
        and 2 * device.sm_count <= programs <= 64 * device.sm_count
    )


def _is_worth_classing(region: Region, knobs: RowKnobs, device: Device) -> bool:
    """Whether tiles have the size that was measured, and are at least 128 rows wide.

    More parts than classes are worth it only where that fills the device.
    """
    classes = line_classes(region)
    is_multiple = knobs.split % classes == 0 and _is_worth_splitting(region, knobs, device)
    is_filled = knobs.split == classes or is_multiple
    return knobs.rows >= 128 and knobs.tile == CLASSED_TILE and is_filled


def _is_worth_pipelining(region: Region, knobs: RowKnobs, device: Device) -> bool:
    """Whether segments of 4 to 16 small tiles fill the device, and a few rows fit L2."""
    blocks = row_blocks(region, knobs.rows)
    row_bytes = knobs.rows * sum(operand.spec.bytes for operand in region.inputs) / region.rows
    per_thread = knobs.tile * region.held_loads / (knobs.warps * device.warp_size)
    return (
        knobs.warps in (4, 8)
        and 8 <= per_thread <= 16
        and blocks >= 8
        and blocks * knobs.split >= 8 * device.sm_count
        and 4 <= -(-region.columns // (knobs.split * knobs.columns)) <= 16
        and row_bytes <= 0.4 * device.l2_bytes
    )


def row_blocks(region: Region, block_rows: int) -> int:
    """Groups of at most `block_rows` rows along the innermost kept axis."""
    inner = region.axes[region.kept[-1]].size if region.kept else 1
    return region.rows // inner * -(-inner // block_rows)
