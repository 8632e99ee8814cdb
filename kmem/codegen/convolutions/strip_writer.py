"""The kernel of a stencil as Triton text, as strips of whole input rows.

A stencil is a pooling or depthwise convolution over N, C, (D, H, W) tensors of contiguous images.

One program makes `depths` x `rows` output rows of one plane and loads each input row it needs once.
A row is loaded as groups of `lanes_in` neighbouring columns (16-byte vectors), which are split into
their lanes in registers; a tap of the window is then a lane of a group at a fixed distance, so
strides and dilations along the row cost no strided loads. A group at another distance comes from
another aligned load (`shift` "load") or from a neighbouring thread's registers (`shift` "gather").

One kernel text per structure; sizes are `tl.constexpr`, passed by stencil.py. Geometry is in
windows.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import prod

from kmem.codegen.chains.chain import Chain
from kmem.codegen.convolutions.windows import Tile, WindowAxis, column_taps, lanes_in, row_starts
from kmem.codegen.text.definitions import Definition, define
from kmem.errors import RecipeError

#: Constants of a kernel, as stencil.py gives them.
SIZES = (
    *("PLANES", "CHANNELS", "MULTIPLIER", "D", "H", "W", "OD", "OH", "OW"),
    *("T", "DIVISOR", "COUNT_PADDING", "Y_CHANNELS", "X_GAP", "Y_GAP"),
)


class StripWriter:
    """Writes the kernel of one structure.

    `combine` is "max", "sum" or "weighted" (sum of taps times weights, plus bias). `chain` is what
    follows element by element.
    """

    def __init__(
        self,
        axes: Sequence[WindowAxis],
        tile: Tile,
        combine: str,
        *,
        has_bias: bool,
        chain: Chain,
    ) -> None:
        if tile.lanes & (tile.lanes - 1) or tile.shift not in ("load", "gather"):
            raise RecipeError(f"A tile needs a power of two of lanes and a known shift, not {tile}")
        self.axes = axes
        self.tile = tile
        self.combine = combine
        self.has_bias = has_bias
        self.chain = chain
        self.width = lanes_in(axes[2], tile.lanes)
        self.step = axes[2].stride * tile.lanes // self.width
        self.taps = column_taps(axes[2], tile.lanes)
        self.pad = '-float("inf")' if combine == "max" else "0.0"
        # A gather keeps the groups' rank 2; loads of groups have their lanes as a third axis, in
        # which a strip's own values need one more.
        self.lift = "[:, :, None]" if tile.strips > 1 and self.width > 1 else ""
        self.lines: list[str] = []

    def write(self) -> Definition:
        """The kernel."""
        self._write_position()
        self._write_columns()
        if self.combine == "weighted":
            self._write_weights()
        if self.combine != "weighted" and self.tile.shift == "gather":
            self._write_rows_first()
        else:
            self._write_columns_first()
        self._write_outputs()
        pointers = strip_pointers(self.combine, self.chain, has_bias=self.has_bias)
        says = "Whole rows of the output in strips: each input row is read once."
        return define(f"kmem_strip_{self.combine}", pointers, SIZES, self.lines, says)

    def _add(self, *lines: str) -> None:
        self.lines.extend(lines)

    def _write_position(self) -> None:
        tile = self.tile
        columns = f"T * {tile.lanes}"
        blocks = "1" if tile.shift == "gather" else f"(OW + {columns} - 1) // ({columns})"
        strip = "pid // COLUMN_BLOCKS"
        if tile.strips > 1:
            strip += f" * {tile.strips} + tl.arange(0, {tile.strips})[:, None]"
        self._add(
            f"COLUMN_BLOCKS: tl.constexpr = {blocks}",
            f"H_STRIPS: tl.constexpr = (OH + {tile.rows - 1}) // {tile.rows}",
            f"D_STRIPS: tl.constexpr = (OD + {tile.depths - 1}) // {tile.depths}",
            "pid = tl.program_id(0)",
            f"strip = {strip}",
            f"h0 = strip % H_STRIPS * {tile.rows}",
            f"d0 = strip // H_STRIPS % D_STRIPS * {tile.depths}",
            "plane = strip // (H_STRIPS * D_STRIPS)",
            "channel = plane % CHANNELS",
            "# planes of outputs may be MULTIPLIER times those of inputs; offsets of planes may "
            "pass 2**31",
            "x_plane = x + (plane // MULTIPLIER).to(tl.int64) * (D * H * W)",
            "y_plane = y + plane.to(tl.int64) * (OD * OH * OW)",
            "# elements of others lie between images where they are slices of channels",
            "if X_GAP > 0:",
            "    x_plane += (plane // Y_CHANNELS).to(tl.int64) * X_GAP",
            "if Y_GAP > 0:",
            "    y_plane += (plane // Y_CHANNELS).to(tl.int64) * Y_GAP",
            "group = pid % COLUMN_BLOCKS * T + tl.arange(0, T)[None, :]",
        )
        self._write_row_starts(self.axes[0], "d", tile.depths)
        self._write_row_starts(self.axes[1], "h", tile.rows)

    def _write_row_starts(self, axis: WindowAxis, letter: str, count: int) -> None:
        """Where every input row of a strip lies along an axis, and whether the input has it."""
        for start in row_starts(axis, count):
            place, size = f"{letter}_{start}", letter.upper()
            self._add(f"{place} = {letter}0 * {axis.stride} + ({start - axis.padding})")
            checks = [f"({place} < {size})"]
            if start < axis.padding:
                checks.append(f"({place} >= 0)")
            if self.tile.strips > 1 and letter == "h":
                checks.append("(plane < PLANES)")
            self._add(f"{place}_ok = {' & '.join(checks)}")

    def _write_columns(self) -> None:
        """Offsets of every group distance, and what is compared with a row's end.

        Groups are compared where possible, so that vectors stay whole.
        """
        width = self.width
        lift = "[:, :, None]" if width > 1 else ""
        lanes = f" + tl.arange(0, {width})[None, None, :]" if width > 1 else ""
        gathers = self.tile.shift == "gather"
        for distance in [0] if gathers else self._distances():
            name = _signed(distance)
            index = "group" if gathers else f"(group * {self.step} + ({distance}))"
            self._add(
                f"g_{name} = {index}",
                f"c_{name} = g_{name}{lift} * {width}{lanes}",
                f"if W % {width} == 0:",
                f"    at_{name} = g_{name}{lift}",
                "else:",
                f"    at_{name} = c_{name}",
            )
        for distance in self._distances() if gathers else []:
            if self._is_in_place(distance):
                continue
            place = f"from_{_signed(distance)}"
            within = f"tl.minimum(tl.maximum({place}, 0), T - 1)"
            self._add(
                f"{place} = group * {self.step} + ({distance})",
                f"{place}_ok = ({place} >= 0) & ({place} < T)",
                f"{place} = tl.broadcast_to({within}, ({self.tile.strips}, T))",
            )

    def _distances(self) -> list[int]:
        """How far, in groups, the taps reach."""
        return sorted({distance for distance, _ in self.taps.values()})

    def _is_in_place(self, distance: int) -> bool:
        """Whether a thread holds that group itself."""
        return self.step == 1 and distance == 0

    def _write_weights(self) -> None:
        taps = prod(axis.kernel for axis in self.axes)
        # a strip past the last plane reads a weight of a real channel: `channel` is a remainder
        self._add(
            *(
                f"w_{tap} = tl.load(w + channel * {taps} + {tap}).to(tl.float32)"
                for tap in range(taps)
            )
        )
        start = "tl.load(bias + channel).to(tl.float32)" if self.has_bias else "0.0"
        self._add(f"start = tl.zeros(({self.tile.strips}, T), tl.float32) + {start}")

    def _load_ends(self, d: int, h: int) -> None:
        # A row outside the input ends before it begins: one scalar select instead of a mask
        # operation per element.
        end = f"W // {self.width} if W % {self.width} == 0 else W"
        self._add(f"end = tl.where(d_{d}_ok & h_{h}_ok, {end}, 0){self.lift}")

    def _load(self, d: int, h: int, distance: int, target: str) -> None:
        name = _signed(distance)
        below = f"(at_{name} >= 0) & " if distance < 0 else ""
        place = f"(x_plane + (d_{d} * H + h_{h}) * W){self.lift} + c_{name}"
        mask = f"{below}(at_{name} < end)"
        self._add(f"{target} = tl.load({place}, mask={mask}, other={self.pad}).to(tl.float32)")

    def _split(self, value: str, prefix: str) -> dict[int, str]:
        """Lane -> name of a value of shape (strips, T)."""
        names = {0: value}
        width = self.width
        while width > 1:
            width //= 2
            split = {}
            # names holds lanes 0..distance-1, each of the lanes `distance` apart
            distance = self.width // (2 * width)
            shape = f"({self.tile.strips}, T, {width}, 2)"
            if width == 1:
                shape = f"({self.tile.strips}, T, 2)"
            for lane, name in names.items():
                low, high = f"{prefix}_{width}_{lane}", f"{prefix}_{width}_{lane + distance}"
                self._add(f"{low}, {high} = tl.split(tl.reshape({name}, {shape}))")
                split[lane], split[lane + distance] = low, high
            names = split
        return names

    def _gathered(self, lanes: dict[int, str], prefix: str) -> dict[tuple[int, int], str]:
        """(distance, lane) -> name, for every tap, from the lanes of one whole row."""
        found = {}
        for distance, lane in sorted(set(self.taps.values())):
            if self._is_in_place(distance):
                found[distance, lane] = lanes[lane]
                continue
            name = _signed(distance)
            found[distance, lane] = f"{prefix}_{name}_{lane}"
            moved = f"tl.gather({lanes[lane]}, from_{name}, 1)"
            self._add(f"{prefix}_{name}_{lane} = tl.where(from_{name}_ok, {moved}, {self.pad})")
        return found

    def _columns_of(self, d: int, h: int) -> dict[tuple[int, int], str]:
        """Load one input row and give every (distance, lane) the taps need."""
        self._load_ends(d, h)
        if self.tile.shift == "gather":
            self._load(d, h, 0, "row")
            return self._gathered(self._split("row", "lane"), "near")
        found = {}
        for distance in self._distances():
            place = _signed(distance)
            self._load(d, h, distance, f"row_{place}")
            lanes = self._split(f"row_{place}", f"lane_{place}")
            found |= {(distance, lane): name for lane, name in lanes.items()}
        return found

    def _fold(self, target: str, values: Iterable[str], started: bool) -> None:
        """target = target (if started) combined with the values."""
        text, *others = ([target] if started else []) + list(values)
        for term in others:
            if self.combine == "max":
                text = f"tl.maximum({text}, {term}, propagate_nan=tl.PropagateNan.ALL)"
            else:
                text = f"{text} + {term}"
        if text != target:
            self._add(f"{target} = {text}")

    def _write_columns_first(self) -> None:
        """Combine every input row along itself first.

        Each input row is read once: its taps along the row, then its share of every output row that
        reads it.
        """
        started: set[str] = set()
        for h, row_users in row_starts(self.axes[1], self.tile.rows).items():
            for d, depth_users in row_starts(self.axes[0], self.tile.depths).items():
                columns = self._columns_of(d, h)
                for lane in range(self.tile.lanes):
                    values = self._values_of(columns, lane)
                    if self.combine != "weighted":
                        self._fold(f"across_{d}_{lane}", values, False)
                        continue
                    for place, first in self._users(depth_users, row_users):
                        self._accumulate(f"acc_{place}_{lane}", values, first, started)
            if self.combine == "weighted":
                continue
            for a in range(self.tile.depths):
                for lane in range(self.tile.lanes):
                    starts = self._depth_starts(a)
                    self._fold("down", [f"across_{d}_{lane}" for d in starts], False)
                    for i, _ in row_users:
                        target = f"acc_{a}_{i}_{lane}"
                        self._fold(target, ["down"], target in started)
                        started.add(target)

    def _values_of(self, columns: dict[tuple[int, int], str], lane: int) -> list[str]:
        """The names of what an output lane's taps along the row read."""
        return [columns[self.taps[lane, tap]] for tap in range(self.axes[2].kernel)]

    def _depth_starts(self, depth: int) -> list[int]:
        """Input depths that an output depth of the strip reads."""
        axis = self.axes[0]
        return [depth * axis.stride + tap * axis.dilation for tap in range(axis.kernel)]

    def _users(
        self, depths: Sequence[tuple[int, int]], rows: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[str, int]]:
        """The output rows that read an input row, each with the first weight that it uses there.

        Args:
            depths, rows: (output position, tap) pairs.
        """
        height, width = self.axes[1:]
        for a, depth_tap in depths:
            for i, row_tap in rows:
                yield f"{a}_{i}", (depth_tap * height.kernel + row_tap) * width.kernel

    def _accumulate(
        self, target: str, values: Sequence[str], first: int, started: set[str]
    ) -> None:
        """Add the values times the weights from the first on."""
        terms = " + ".join(f"{value} * w_{first + tap}" for tap, value in enumerate(values))
        self._add(f"{target} = {target if target in started else 'start'} + {terms}")
        started.add(target)

    def _write_rows_first(self) -> None:
        """Combine whole rows down the window first.

        Only the result is split and moved along the row.
        """
        started: set[str] = set()
        for h, row_users in row_starts(self.axes[1], self.tile.rows).items():
            for d in row_starts(self.axes[0], self.tile.depths):
                self._load_ends(d, h)
                self._load(d, h, 0, f"row_{d}")
            for a in range(self.tile.depths):
                self._fold("down", [f"row_{d}" for d in self._depth_starts(a)], False)
                for i, _ in row_users:
                    self._fold(f"rows_{a}_{i}", ["down"], f"rows_{a}_{i}" in started)
                    started.add(f"rows_{a}_{i}")
        for a in range(self.tile.depths):
            for i in range(self.tile.rows):
                columns = self._gathered(self._split(f"rows_{a}_{i}", "lane"), "near")
                for lane in range(self.tile.lanes):
                    self._fold(f"acc_{a}_{i}_{lane}", self._values_of(columns, lane), False)

    def _write_outputs(self) -> None:
        lanes, is_wide = self.tile.lanes, self.tile.lanes > 1
        lift = "[:, :, None]" if self.tile.strips > 1 and is_wide else ""
        group = "group[:, :, None]" if is_wide else "group"
        lane = f" + tl.arange(0, {lanes})[None, None, :]" if is_wide else ""
        self._add(f"oc = {group} * {lanes}{lane}")
        for a in range(self.tile.depths):
            for i in range(self.tile.rows):
                names = [f"acc_{a}_{i}_{lane}" for lane in range(lanes)]
                if self.combine == "sum":
                    self._write_means(a, i, names)
                value = _join(names)
                if is_wide:
                    value = f"tl.reshape({value}, ({self.tile.strips}, T, {lanes}))"
                checks = [f"(d0 + {a} < OD)", f"(h0 + {i} < OH)"]
                if self.tile.strips > 1:
                    checks.append("(plane < PLANES)")
                row = f"((d0 + {a}) * OH + h0 + {i}) * OW"
                mask = f"oc < tl.where({' & '.join(checks)}, OW, 0){lift}"
                if self.chain.functions:
                    # a strip past the last plane reads what a real one reads
                    own = f"tl.minimum(plane, PLANES - 1){lift}"
                    where = f"{own} // Y_CHANNELS, {own} % Y_CHANNELS, {own} >= 0"
                    where += f", ({row}){lift} + oc, {mask}"
                    value = self.chain.call(value, where, "Y_CHANNELS, OD * OH * OW")
                place = f"(y_plane + {row}){lift} + oc"
                self._add(f"tl.store({place}, {value}.to(y.dtype.element_ty), mask={mask})")

    def _write_means(self, a: int, i: int, names: Sequence[str]) -> None:
        """Divide by what the window covers.

        It counts elements inside the input, or inside the padded input, as torch does.
        """
        self._add("if DIVISOR > 0:")
        self._add(*(f"    {name} = {name} * (1.0 / DIVISOR)" for name in names))
        self._add("else:")
        self._write_count(self.axes[0], "D", f"(d0 + {a})", "n_d_0")
        self._write_count(self.axes[1], "H", f"(h0 + {i})", "n_h_0")
        for lane in range(len(names)):
            column = f"(group * {self.tile.lanes} + {lane})"
            self._write_count(self.axes[2], "W", column, f"n_w_{lane}")
        for lane, name in enumerate(names):
            covered = f"tl.maximum(n_d_0 * n_h_0 * n_w_{lane}, 1)"
            self._add(f"    {name} = {name} / {covered}.to(tl.float32)")

    def _write_count(self, axis: WindowAxis, size: str, place: str, target: str) -> None:
        """Elements of an axis that the window of an output covers."""
        border = f"{axis.padding} * COUNT_PADDING"
        self._add(
            f"    begin = {place} * {axis.stride} - {axis.padding}",
            f"    end = tl.minimum(begin + {axis.kernel}, {size} + {border})",
            f"    {target} = end - tl.maximum(begin, -{border})",
        )


def strip_pointers(combine: str, chain: Chain, *, has_bias: bool) -> list[str]:
    """The kernel's: input, output, for "weighted" what is multiplied and added, and a chain's."""
    weights = ["w"] if combine == "weighted" else []
    return ["x", "y", *weights, *(["bias"] if has_bias else []), *chain.pointers]


def _signed(number: int) -> str:
    return f"m{-number}" if number < 0 else f"p{number}"


def _join(names: Sequence[str]) -> str:
    """tl.join tree whose trailing axes, read in order, are the names in order."""
    if len(names) == 1:
        return names[0]
    return f"tl.join({_join(names[0::2])}, {_join(names[1::2])})"
