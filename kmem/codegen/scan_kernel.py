"""Kernels for one scan: a program per row that carries a total from tile to tile, or several
programs per row in two launches.

Strategies (the STRATEGY knob):
- "carry": one program goes over its BK rows tile by tile; inputs are read once and results written
  once.
- "split": one kernel leaves the totals of SPLIT segments per row, a second scans each segment on
top of the totals that precede it. A tile is (BK rows, BR positions), scanned along axis 1; the
layout puts lanes along whichever axis is dense in memory, so scans over any dimension share one
text. Totals combine in a fixed order: results repeat bitwise. Everything computes in fp32; sizes,
strides and bounds are constexpr arguments.
"""

from kmem.codegen.launching import entry, next_power_of_two
from kmem.codegen.pointwise import HELPERS, compute_type
from kmem.codegen.reductions import MULTIPLY
from kmem.codegen.region import Map
from kmem.codegen.scan import SCANNED, Scan, ScanLoad, ScanStore
from kmem.codegen.scan_space import fit_settings
from kmem.recipes import Emission, Settings
from kmem.records import content_hash

#: kind -> (identity, scan of a tile, total of a tile, how two totals combine).
_TEXTS = {
    "sum": (
        "0.0",
        "tl.cumsum({0}, axis=1, reverse=REVERSE)",
        "tl.sum({0}, axis=1, keep_dims=True)",
        "+",
    ),
    "prod": (
        "1.0",
        "tl.cumprod({0}, axis=1, reverse=REVERSE)",
        "tl.reduce({0}, 1, multiply, keep_dims=True)",
        "*",
    ),
}


def emit_scan(scan: Scan, settings: Settings) -> Emission:
    """The kernels and launcher for a scan at one setting of STRATEGY, BK, BR, SPLIT and num_warps."""
    return _Writer(scan, fit_settings(scan, settings)).emit()


class _Writer:
    """Text of one scan's kernels; strides are named constants S_<value>_<axis>, the step along the
    scan S_<value>_r.
    """

    def __init__(self, scan: Scan, settings: Settings) -> None:
        self.scan, self.settings = scan, settings
        self.identity, self.scan_text, self.total_text, self.combine = _TEXTS[scan.kind]

    def emit(self) -> Emission:
        pointers = [f"p{index}" for index in range(len(self.scan.inputs))]
        constants = self._constants()
        grid = "BLOCKS * SPLIT"
        if self.settings["STRATEGY"] == "carry":
            bodies = [
                (
                    "kmem_scan_carry",
                    [*pointers, "q"],
                    ["block = tl.program_id(0)", "part = 0"],
                    self._scan_lines(),
                )
            ]
        else:
            program = ["pid = tl.program_id(0)", "block = pid // SPLIT", "part = pid % SPLIT"]
            bodies = [
                ("kmem_scan_totals", [*pointers, "totals"], program, self._total_lines()),
                (
                    "kmem_scan_apply",
                    [*pointers, "q", "totals"],
                    program,
                    [*self._prefix_lines(), *self._scan_lines()[1:]],
                ),
            ]
        kernels, launches = [], []
        for name, arguments, program, lines in bodies:
            text = entry(name, arguments, list(constants), [*program, *self._row_lines(), *lines])
            unique = f"{name}_{content_hash(text)[:8]}"
            kernels.append((unique, text.replace(f"def {name}(", f"def {unique}(", 1)))
            passed = ", ".join([*arguments, *(f"{key}={key}" for key in constants)])
            launches.append(
                f"{unique}[({grid},)]({passed}, num_warps={self.settings['num_warps']})"
            )
        return Emission(
            (*self._helpers(kernels), *kernels), self._launcher(pointers, constants, launches)
        )

    def _helpers(self, kernels: list[tuple[str, str]]) -> list[tuple[str, str]]:
        text = "\n".join(source for _, source in kernels)
        return [
            (name, source)
            for name, source in {**HELPERS, "multiply": MULTIPLY}.items()
            if f"{name}(" in text or f"{name}," in text
        ]

    def _launcher(
        self, pointers: list[str], constants: dict[str, object], launches: list[str]
    ) -> str:
        lines = [f"{key} = {value}" for key, value in constants.items()]
        spec = self.scan.output.spec
        lines += [
            (
                f"q = torch.empty_strided({spec.shape!r}, {spec.stride!r}, "
                f"dtype=torch.{spec.dtype}, device=p0.device)"
            )
        ]
        if len(launches) > 1:
            lines += ["totals = torch.empty(ROWS * SPLIT, dtype=torch.float32, device=p0.device)"]
        lines += [*launches, "return q"]
        return (
            f"def launch({', '.join(pointers)}):\n"
            + "\n".join(f"    {line}" for line in lines)
            + "\n"
        )

    def _constants(self) -> dict[str, object]:
        scan, settings = self.scan, self.settings
        inner = scan.kept[-1] if scan.kept else 1
        rows = int(settings["BK"])
        block = int(settings["BR"])
        segment = int(settings["SEGMENT"])
        split = int(settings["SPLIT"])
        constants: dict[str, object] = {"N": scan.length, "KI": inner, "ROWS": scan.rows}
        constants |= {f"O{place}": size for place, size in enumerate(scan.kept[:-1])}
        for item in (*scan.loads, scan.store):
            name = _name(item)
            constants |= {
                f"S_{name}_{axis}": stride for axis, stride in enumerate(item.strides) if stride
            }
            constants |= {f"S_{name}_r": item.step} if item.step else {}
        blocks = -(-inner // rows)
        constants |= {
            "BK": rows,
            "BR": block,
            "SPLIT": split,
            "SPLIT_TILE": next_power_of_two(split),
            "SEGMENT": segment,
        }
        constants |= {"INNER_BLOCKS": blocks, "BLOCKS": scan.rows // inner * blocks}
        is_even = segment % block == 0 and segment * split == scan.length
        return constants | {
            "EVEN_K": inner % rows == 0,
            "EVEN_R": is_even,
            "WIDE": scan.is_wide,
            "REVERSE": scan.reverse,
        }

    def _row_lines(self) -> list[str]:
        """Decode `block` into the outer kept axes (scalars o0..) and BK places `k` along the
        densest, `part` into positions begin..end.
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
            lines += (
                [f"o{place} = outer % O{place}", f"outer = outer // O{place}"]
                if place
                else ["o0 = outer"]
            )
        return [
            *lines,
            "begin = part * SEGMENT",
            "end = tl.minimum(begin + SEGMENT, N)",
            "last = begin + (end - 1 - begin) // BR * BR",
        ]

    def _tile_lines(self) -> list[str]:
        """Positions `r` of the tile whose turn comes at `start`: in a reverse scan the last one
        first.
        """
        return [
            "r = (last - (start - begin) if REVERSE else start) + tl.arange(0, BR)[None, :]",
            "valid = r < end",
            "if WIDE:",
            "    r = r.to(tl.int64)",
        ]

    def _source_lines(self) -> list[str]:
        source = (
            f"{self.scan.source} if EVEN_R else tl.where(valid, {self.scan.source}, "
            f"{self.identity})"
        )
        return [
            *(self._write(item) for item in self.scan.before),
            f"source = tl.broadcast_to({source}, (BK, BR))",
        ]

    def _scan_lines(self) -> list[str]:
        body = self._tile_lines() + self._source_lines()
        body += [f"{SCANNED} = {self.scan_text.format('source')} {self.combine} carry"]
        # does not wait for the scan
        body += [f"carry = carry {self.combine} {self.total_text.format('source')}"]
        body += [self._write(item) for item in self.scan.after] + [self._write_result()]
        return [
            f"carry = tl.full((BK, 1), {self.identity}, tl.float32)",
            "for start in range(begin, end, BR):",
            *(f"    {line}" for line in body),
        ]

    def _total_lines(self) -> list[str]:
        body = self._tile_lines() + self._source_lines()
        body += [f"lanes = lanes {self.combine} source"]
        lines = [
            f"lanes = tl.full((BK, BR), {self.identity}, tl.float32)",
            "for start in range(begin, end, BR):",
        ]
        lines += [f"    {line}" for line in body]
        return [
            *lines,
            (
                f"tl.store(totals + row * SPLIT + part, {self.total_text.format('lanes')}, "
                f"mask=k_valid)"
            ),
        ]

    def _prefix_lines(self) -> list[str]:
        """The total of every segment that comes before this one."""
        return [
            "other = tl.arange(0, SPLIT_TILE)[None, :]",
            "precedes = (other > part) & (other < SPLIT) if REVERSE else other < part",
            (
                f"ahead = tl.load(totals + row * SPLIT + other, mask=k_valid & precedes, "
                f"other={self.identity})"
            ),
            f"carry = {self.total_text.format('ahead')}",
        ]

    def _write(self, item: ScanLoad | Map) -> str:
        if isinstance(item, Map):
            return f"{item.name} = {item.text}"
        offset, mask = self._offset(item), self._mask(item)
        hint = ', eviction_policy="evict_first"' if item.step else ""
        return (
            f"{item.name} = tl.load(p{item.operand} + {offset}, "
            f"mask={mask}{hint}).to({compute_type(item.dtype)})"
        )

    def _write_result(self) -> str:
        mask = "(None if EVEN_K else k_valid) if EVEN_R else (valid if EVEN_K else k_valid & valid)"
        return (
            f"tl.store(q + {self._offset(self.scan.store)}, "
            f"({self.scan.result}).to(q.dtype.element_ty), mask={mask})"
        )

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
        tests = [f"(r >= {item.low})"] * (item.low > 0) + [f"(r < {item.high})"] * (
            item.high < self.scan.length
        )
        if item.step and tests:
            return " & ".join([*tests, "valid", *["k_valid"] * by_row])
        if by_row and item.step:
            return (
                "(None if EVEN_K else k_valid) if EVEN_R else (valid if EVEN_K else k_valid & "
                "valid)"
            )
        return columns if item.step else (rows if by_row else "None")


def _name(item: ScanLoad | ScanStore) -> str:
    return item.name if isinstance(item, ScanLoad) else "q"
