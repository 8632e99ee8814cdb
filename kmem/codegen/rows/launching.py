"""Index arithmetic of row kernels, and what launchers of several writers allocate.

Variables that `OffsetWriter` makes: from `block` and `part`, which are given, `row` (BK, 1) number
of each row, `k` (BK, 1) place along the innermost kept axis, `k_valid`, `o0..` scalars of the outer
kept axes; from `columns`, `r` (1, BR), `valid`, and `r0..` when the row has several axes.
"""

from collections.abc import Iterable, Mapping, Sequence

from kmem.codegen.regions.region import Region
from kmem.problem.sizes import next_power_of_two
from kmem.recipes import Operand, Settings

#: A mask for places along both axes of a tile, None where the tile divides both.
_BOTH_MASKS = "(None if EVEN_K else k_valid) if {even} else (valid if EVEN_K else k_valid & valid)"
BOTH_MASKS = _BOTH_MASKS.format(even="EVEN_R")


class OffsetWriter:
    """Offsets and masks of a region's operands as text.

    Strides are named constants S_<value>_<axis>.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        self.kept, self.reduced = region.kept, region.reduced
        self.inner = self.kept[-1] if self.kept else None
        self.outer = self.kept[:-1]

    def rows(self) -> list[str]:
        """Decode `block` into the outer kept axes and a tile of BK along the innermost."""
        lines = ["tile = block % INNER_BLOCKS", "outer = (block // INNER_BLOCKS).to(tl.int64)"]
        lines += [
            "k = tile * BK + tl.arange(0, BK)[:, None]",
            "k_valid = k < KI",
            "row = outer * KI + k",
            "k0 = tl.zeros((BK, 1), tl.int32)",
        ]
        lines += ["if WIDE:", "    k = k.to(tl.int64)"]
        rest = "outer"
        for place in reversed(range(len(self.outer))):
            last = place == 0
            lines += [f"o{place} = {rest}" if last else f"o{place} = {rest} % O{place}"]
            if not last:
                lines += [f"outer{place} = {rest} // O{place}"]
                rest = f"outer{place}"
        return lines

    def columns(self, start: str, end: str) -> list[str]:
        """A tile of BR elements of the row from `start` (a multiple of BR), masked at `end`.

        Where BR divides the innermost reduced axis, the tile lies within one step of the outer
        ones, whose indices are then numbers.
        """
        lines = [f"r = {start} + tl.arange(0, BR)[None, :]", f"valid = r < {end}"]
        lines += ["if WIDE:", "    r = r.to(tl.int64)"]
        if len(self.reduced) > 1:
            last = len(self.reduced) - 1
            lines += [f"if {self._within_one()}:"]
            lines += [f"    r{last} = r - ({start}) // R{last} * R{last}"]
            # a tile beyond the end has its start clamped, so that operands of the outer axes alone
            # need no mask
            first = f"tl.minimum({start}, R - 1) // R{last}"
            lines += [f"    rest{last} = {first} + tl.zeros((1, 1), tl.int32)"]
            lines += ["else:", f"    r{last} = r % R{last}", f"    rest{last} = r // R{last}"]
            lines += self._outer_places(f"rest{last}")
        return lines

    def _outer_places(self, rest: str) -> list[str]:
        """`r0`.. of all reduced axes but the innermost, from their common number `rest`."""
        lines = []
        for place in reversed(range(len(self.reduced) - 1)):
            lines += [f"r{place} = {rest}" if place == 0 else f"r{place} = {rest} % R{place}"]
            if place:
                lines += [f"rest{place} = {rest} // R{place}"]
                rest = f"rest{place}"
        return lines

    def _changes_within_tile(self, strides: tuple[int, ...]) -> bool:
        """Whether an operand may have another element for another element of a row's tile."""
        return any(strides[axis] for axis in self.reduced)

    def _within_one(self) -> str:
        """The constexpr condition that a tile changes along the innermost reduced axis alone."""
        return f"R{len(self.reduced) - 1} % BR == 0"

    def offset(self, name: str, strides: tuple[int, ...]) -> str:
        """Sum of index times stride over the axes an operand moves along; "0" if none."""
        terms = [
            f"o{place} * S_{name}_{axis}" for place, axis in enumerate(self.outer) if strides[axis]
        ]
        text = " + ".join(terms)
        if self.inner is not None and strides[self.inner]:
            text = f"{text} + k * S_{name}_{self.inner}" if text else f"k * S_{name}_{self.inner}"
        single = len(self.reduced) == 1
        for place, axis in enumerate(self.reduced):
            if strides[axis]:
                term = f"{'r' if single else f'r{place}'} * S_{name}_{axis}"
                text = f"({text}) + {term}" if text else term
        return text or "0"

    def covers_tile(self, strides: tuple[int, ...]) -> bool:
        """Whether an operand has an element of its own for every element of the tile.

        Such an operand is streamed.
        """
        return all(strides[axis] for axis in (*self.kept[-1:], *self.reduced))

    def mask(
        self, strides: tuple[int, ...], *, is_store: bool = False, is_row: bool = False
    ) -> str:
        """The mask of a load or store, None where the tile divides the axes."""
        rows = is_store or (self.inner is not None and bool(strides[self.inner]))
        columns = not is_row and (is_store or self._changes_within_tile(strides))
        row_mask = "None if EVEN_K else k_valid"
        is_even = "EVEN_R"
        if len(self.reduced) > 1 and not is_store and not strides[self.reduced[-1]]:
            is_even = f"(EVEN_R or {self._within_one()})"
        if rows and columns:
            return _BOTH_MASKS.format(even=is_even)
        if columns:
            return f"None if {is_even} else valid"
        return row_mask if rows else "None"

    def constants(self, settings: Settings) -> dict[str, object]:
        """Every constexpr argument of a row kernel by name.

        Args:
            settings: as space.fit_settings leaves them.
        """
        region = self.region
        inner = region.axes[self.inner].size if self.inner is not None else 1
        rows, columns = int(settings["BK"]), int(settings["BR"])
        split, segment = int(settings["SPLIT"]), int(settings["SEGMENT"])
        blocks = -(-inner // rows)
        constants: dict[str, object] = {"R": region.columns, "KI": inner, "ROWS": region.rows}
        constants |= {f"O{place}": region.axes[axis].size for place, axis in enumerate(self.outer)}
        if len(self.reduced) > 1:
            constants |= {
                f"R{place}": region.axes[axis].size for place, axis in enumerate(self.reduced)
            }
        items = {load.name: load.strides for load in region.loads}
        items |= {f"{store.pointer}_out": store.strides for store in region.stores}
        for name, strides in items.items():
            constants |= stride_constants(name, strides)
        return constants | {
            "BK": rows,
            "BR": columns,
            "SPLIT": split,
            "SPLIT_TILE": next_power_of_two(split),
            "SEGMENT": segment,
            "STEPS": -(-segment // columns),
            "INNER_BLOCKS": blocks,
            "BLOCKS": region.rows // inner * blocks,
            "PASSES": max(region.passes().values()),
            "EVEN_K": inner % rows == 0,
            "EVEN_R": segment % columns == 0 and segment * split == region.columns,
            "WIDE": region.is_wide,
        }


def stride_constants(name: str, strides: Sequence[int]) -> dict[str, object]:
    """The strides of a value that are not 0, as named constants S_<value>_<axis>."""
    return {f"S_{name}_{axis}": stride for axis, stride in enumerate(strides) if stride}


def indent(lines: Iterable[str], levels: int = 1) -> list[str]:
    """Lines of a body, so many levels deeper."""
    return [f"{'    ' * levels}{line}" for line in lines]


def assignments(constants: Mapping[str, object]) -> list[str]:
    """Lines of a launcher that give the constants their values."""
    return [f"{key} = {value}" for key, value in constants.items()]


def allocate(name: str, operand: Operand) -> str:
    """A line that makes an uninitialised tensor with an operand's traced strides."""
    spec = operand.spec
    kind = f"dtype=torch.{spec.dtype}, device=p0.device"
    if spec.is_contiguous:
        return f"{name} = torch.empty({spec.shape!r}, {kind})"
    return f"{name} = torch.empty_strided({spec.shape!r}, {spec.stride!r}, {kind})"


def allocations(region: Region) -> list[str]:
    """A line for each output of a region."""
    return [allocate(f"q{index}", operand) for index, operand in enumerate(region.outputs)]
