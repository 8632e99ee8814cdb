"""Kernels for one scan, under one of two strategies.

Strategies (the STRATEGY knob):

- "carry": one program goes over its BK rows tile by tile; inputs are read once and results written
  once.
- "split": one kernel leaves the totals of SPLIT segments per row, a second scans each segment on
  top of the totals that precede it.

A tile is (BK rows, BR positions), scanned along axis 1; the layout puts lanes along whichever axis
is dense in memory, so that scans over any dimension share one text. Totals combine in a fixed
order: results repeat bitwise. Everything computes in fp32; sizes, strides and bounds are constexpr
arguments.
"""

from dataclasses import dataclass

from kmem.codegen.accumulate import COMPENSATION
from kmem.codegen.calls import write_launch_function
from kmem.codegen.definitions import define
from kmem.codegen.launching import BOTH_MASKS, assignments, indent, stride_constants
from kmem.codegen.pointwise import compute_type
from kmem.codegen.region import Map
from kmem.codegen.scan import SCANNED, Scan, ScanLoad, ScanStore
from kmem.codegen.scan_space import fit_settings
from kmem.problem.operators.expressions import MULTIPLY, Helper, order_helpers
from kmem.problem.sizes import next_power_of_two
from kmem.recipes import Emission, Settings

#: What a program of each kernel does, as the kernels say it themselves.
_SAYS = {
    "carry": "Scan BK rows from end to end, carrying the running value from tile to tile.",
    "totals": "The total of a segment of BK rows, into scratch.",
    "apply": "Scan a segment of BK rows, from what the segments before it come to.",
}


@dataclass(frozen=True, slots=True)
class _Texts:
    """How one kind of scan is written; {0} is a tile."""

    identity: str
    scan: str  # of a tile
    total: str  # of a tile
    combine: str  # two totals
    helpers: tuple[Helper, ...] = ()


_TEXTS = {
    "sum": _Texts(
        "0.0",
        "tl.cumsum({0}, axis=1, reverse=REVERSE)",
        "tl.sum({0}, axis=1, keep_dims=True)",
        "+",
        (COMPENSATION,),
    ),
    "prod": _Texts(
        "1.0",
        "tl.cumprod({0}, axis=1, reverse=REVERSE)",
        "tl.reduce({0}, 1, multiply, keep_dims=True)",
        "*",
        (MULTIPLY,),
    ),
}


def emit_scan(scan: Scan, settings: Settings) -> Emission:
    """The kernels and launcher for a scan at one setting.

    Args:
        settings: STRATEGY, BK, BR, SPLIT and num_warps, as `scan_space` offers them.
    """
    return _Writer(scan, fit_settings(scan, settings)).emit()


class _Writer:
    """Text of one scan's kernels.

    Strides are named constants S_<value>_<axis>, the step along the scan is S_<value>_r.
    """

    def __init__(self, scan: Scan, settings: Settings) -> None:
        self.scan, self.settings = scan, settings
        self.texts = _TEXTS[scan.kind]
        self.inputs = [f"p{index}" for index in range(len(scan.inputs))]
        self.constants = self._constants()
        self.kernels: list[tuple[str, str]] = []
        self.launches: list[str] = []

    def emit(self) -> Emission:
        if self.settings["STRATEGY"] == "carry":
            program = ["block = tl.program_id(0)", "part = 0"]
            self._add("carry", [*self.inputs, "q"], [*program, *self._rows(), *self._scan_lines()])
        else:
            program = ["pid = tl.program_id(0)", "block = pid // SPLIT", "part = pid % SPLIT"]
            head = [*program, *self._rows()]
            self._add("totals", [*self.inputs, "totals"], [*head, *self._total_lines()])
            body = [*head, *self._prefix_lines(), *self._scan_loop()]
            self._add("apply", [*self.inputs, "q", "totals"], body)
        maps = [item for item in (*self.scan.before, *self.scan.after) if isinstance(item, Map)]
        helpers = {helper for item in maps for helper in item.helpers} | set(self.texts.helpers)
        launcher = write_launch_function(self.inputs, self._launcher())
        return Emission((*order_helpers(helpers), *self.kernels), launcher)

    def _add(self, name: str, pointers: list[str], body: list[str]) -> None:
        """One more kernel and its launch."""
        kernel = define(f"kmem_scan_{name}", pointers, self.constants, body, _SAYS[name])
        options = {"num_warps": self.settings["num_warps"]}
        self.kernels.append(kernel.kernel)
        self.launches.append(kernel.write_launch("BLOCKS * SPLIT", {}, options))

    def _launcher(self) -> list[str]:
        spec = self.scan.output.spec
        place = f"{spec.shape!r}, {spec.stride!r}, dtype=torch.{spec.dtype}, device=p0.device"
        lines = [*assignments(self.constants), f"q = torch.empty_strided({place})"]
        if len(self.launches) > 1:
            lines += ["totals = torch.empty(ROWS * SPLIT, dtype=torch.float32, device=p0.device)"]
        return [*lines, *self.launches, "return q"]

    def _constants(self) -> dict[str, object]:
        scan, settings = self.scan, self.settings
        inner = scan.kept[-1] if scan.kept else 1
        rows, block = int(settings["BK"]), int(settings["BR"])
        segment, split = int(settings["SEGMENT"]), int(settings["SPLIT"])
        blocks = -(-inner // rows)
        constants: dict[str, object] = {"N": scan.length, "KI": inner, "ROWS": scan.rows}
        constants |= {f"O{place}": size for place, size in enumerate(scan.kept[:-1])}
        for item in (*scan.loads, scan.store):
            name = _name(item)
            constants |= stride_constants(name, item.strides)
            constants |= {f"S_{name}_r": item.step} if item.step else {}
        return constants | {
            "BK": rows,
            "BR": block,
            "SPLIT": split,
            "SPLIT_TILE": next_power_of_two(split),
            "SEGMENT": segment,
            "INNER_BLOCKS": blocks,
            "BLOCKS": scan.rows // inner * blocks,
            "EVEN_K": inner % rows == 0,
            "EVEN_R": segment % block == 0 and segment * split == scan.length,
            "WIDE": scan.is_wide,
            "REVERSE": scan.reverse,
        }

    def _rows(self) -> list[str]:
        """Decode `block` and `part`.

        `block` becomes the outer kept axes (scalars o0..) and BK places `k` along the densest one,
        `part` positions begin..end.
        """
        lines = [
            "k = block % INNER_BLOCKS * BK + tl.arange(0, BK)[:, None]",
            "k_valid = k < KI",
            "outer = (block // INNER_BLOCKS).to(tl.int64)",
            "row = outer * KI + k",
            "if WIDE:",
            "    k = k.to(tl.int64)",
        ]
        for place in reversed(range(len(self.scan.kept) - 1)):
            if place:
                lines += [f"o{place} = outer % O{place}", f"outer = outer // O{place}"]
            else:
                lines.append("o0 = outer")
        return [
            *lines,
            "begin = part * SEGMENT",
            "end = tl.minimum(begin + SEGMENT, N)",
            "last = begin + (end - 1 - begin) // BR * BR",
        ]

    def _tile_lines(self) -> list[str]:
        """Positions `r` of the tile whose turn is at `start`; in reverse the last comes first."""
        return [
            "r = (last - (start - begin) if REVERSE else start) + tl.arange(0, BR)[None, :]",
            "valid = r < end",
            "if WIDE:",
            "    r = r.to(tl.int64)",
        ]

    def _source_lines(self) -> list[str]:
        masked = f"tl.where(valid, {self.scan.source}, {self.texts.identity})"
        source = f"{self.scan.source} if EVEN_R else {masked}"
        return [
            *(self._write(item) for item in self.scan.before),
            f"source = tl.broadcast_to({source}, (BK, BR))",
        ]

    def _scan_lines(self) -> list[str]:
        start = f"carry = tl.full((BK, 1), {self.texts.identity}, tl.float32)"
        return [start, *self._scan_loop()]

    def _extend(self, total: str, part: str, shape: str) -> tuple[list[str], str]:
        """What stands before a loop that gathers a total, and the line that does it.

        Sums keep what they lose to rounding: as many tiles as a row has are added in one chain.
        """
        if self.scan.kind != "sum":
            return [], f"{total} = {total} {self.texts.combine} {part}"
        both = f"{total}, {total}_lost"
        start = f"{total}_lost = tl.zeros({shape}, tl.float32)"
        return [start], f"{both} = kmem_add_compensated({both}, {part})"

    def _scan_loop(self) -> list[str]:
        """Tile by tile on top of `carry`, what precedes."""
        combine = self.texts.combine
        start, extend = self._extend("carry", self.texts.total.format("source"), "(BK, 1)")
        body = [
            *self._tile_lines(),
            *self._source_lines(),
            f"{SCANNED} = {self.texts.scan.format('source')} {combine} carry",
            extend,  # does not wait for the scan
            *(self._write(item) for item in self.scan.after),
            self._write_result(),
        ]
        return [*start, "for start in range(begin, end, BR):", *indent(body)]

    def _total_lines(self) -> list[str]:
        start, extend = self._extend("lanes", "source", "(BK, BR)")
        body = [*self._tile_lines(), *self._source_lines(), extend]
        total = self.texts.total.format("lanes")
        return [
            f"lanes = tl.full((BK, BR), {self.texts.identity}, tl.float32)",
            *start,
            "for start in range(begin, end, BR):",
            *indent(body),
            f"tl.store(totals + row * SPLIT + part, {total}, mask=k_valid)",
        ]

    def _prefix_lines(self) -> list[str]:
        """The total of every segment that comes before this one."""
        masks = f"mask=k_valid & precedes, other={self.texts.identity}"
        return [
            "other = tl.arange(0, SPLIT_TILE)[None, :]",
            "precedes = (other > part) & (other < SPLIT) if REVERSE else other < part",
            f"ahead = tl.load(totals + row * SPLIT + other, {masks})",
            f"carry = {self.texts.total.format('ahead')}",
        ]

    def _write(self, item: ScanLoad | Map) -> str:
        if isinstance(item, Map):
            return f"{item.name} = {item.text}"
        hint = ', eviction_policy="evict_first"' if item.step else ""
        place = f"p{item.operand} + {self._offset(item)}, mask={self._mask(item)}{hint}"
        return f"{item.name} = tl.load({place}).to({compute_type(item.dtype)})"

    def _write_result(self) -> str:
        value = f"({self.scan.result}).to(q.dtype.element_ty)"
        return f"tl.store(q + {self._offset(self.scan.store)}, {value}, mask={BOTH_MASKS})"

    def _offset(self, item: ScanLoad | ScanStore) -> str:
        """What is scalar first, so that the tile's part stays 32-bit."""
        name, last = _name(item), len(self.scan.kept) - 1
        terms = [str(item.base)] if item.base else []
        terms += [
            f"o{axis} * S_{name}_{axis}"
            for axis, stride in enumerate(item.strides[:last])
            if stride
        ]
        text = f"({' + '.join(terms)})" if terms else ""
        tile = [f"k * S_{name}_{last}"] if last >= 0 and item.strides[last] else []
        tile += [f"r * S_{name}_r"] if item.step else []
        return " + ".join(([text] if text else []) + tile) or "0"

    def _mask(self, item: ScanLoad) -> str:
        by_row = bool(item.strides) and item.strides[-1] != 0
        rows, columns = ("None if EVEN_K else k_valid", "None if EVEN_R else valid")
        tests = [f"(r >= {item.low})"] if item.low > 0 else []
        tests += [f"(r < {item.high})"] if item.high < self.scan.length else []
        if item.step and tests:
            return " & ".join([*tests, "valid", *(["k_valid"] if by_row else [])])
        if by_row:
            return BOTH_MASKS if item.step else rows
        return columns if item.step else "None"


def _name(item: ScanLoad | ScanStore) -> str:
    return item.name if isinstance(item, ScanLoad) else "q"
