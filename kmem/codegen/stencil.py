"""Stencils as Triton text: pooling and depthwise convolution over contiguous N, C, (D, H, W)
tensors, as strips of whole input rows.

One program makes `depths` x `rows` output rows of one plane and loads each input row it needs once.
A row is loaded as groups of `lanes_in` neighbouring columns (16-byte vectors), which are split into
their lanes in registers; a tap of the window is then a lane of a group at a fixed distance, so
strides and dilations along the row cost no strided loads. A group at another distance comes from
another aligned load (`shift` "load") or from a neighbouring thread's registers (`shift` "gather").

One kernel text per structure; sizes are `tl.constexpr`. Geometry is in windows.py; the recipes that
call it own matching.
"""

from collections.abc import Iterable, Sequence
from math import prod

from kmem.codegen.windows import Axis, Tile, column_taps, lanes_in, row_starts
from kmem.errors import RecipeError
from kmem.records import content_hash


class StripWriter:
    """Writes the kernel of one structure: `combine` is "max", "sum" or "weighted" (sum of taps
    times weights, plus bias).

    Its arguments: x, y (and w, bias for "weighted") pointers, then constexprs;
    `write_strip_launcher` passes them.
    """

    def __init__(
        self, axes: Sequence[Axis], tile: Tile, combine: str, *, has_bias: bool = False
    ) -> None:
        if tile.lanes & (tile.lanes - 1) or tile.shift not in ("load", "gather"):
            raise RecipeError(f"A tile needs a power of two of lanes and a known shift, not {tile}")
        self.axes = axes
        self.tile = tile
        self.combine = combine
        self.has_bias = has_bias
        self.width = lanes_in(axes[2], tile.lanes)
        self.step = axes[2].stride * tile.lanes // self.width
        self.taps = column_taps(axes[2], tile.lanes)
        self.pad = '-float("inf")' if combine == "max" else "0.0"
        # A gather keeps the groups' rank 2; loads of groups have their lanes as a third axis, in
        # which a strip's own values need one more.
        self.lift = "[:, :, None]" if tile.strips > 1 and self.width > 1 else ""
        self.lines: list[str] = []

    def write(self) -> tuple[str, str]:
        """(name, source); the name carries a hash of the text, so different texts never share one."""
        self._write_position()
        self._write_columns()
        if self.combine == "weighted":
            self._write_weights()
        if self.combine != "weighted" and self.tile.shift == "gather":
            self._write_rows_first()
        else:
            self._write_columns_first()
        self._write_outputs()
        pointers = (
            ["x", "y"]
            + (["w"] if self.combine == "weighted" else [])
            + (["bias"] if self.has_bias else [])
        )
        sizes = (
            "PLANES",
            "CHANNELS",
            "MULTIPLIER",
            "D",
            "H",
            "W",
            "OD",
            "OH",
            "OW",
            "T",
            "DIVISOR",
            "COUNT_PADDING",
        )
        body = "".join(f"    {line}\n" for line in self.lines)
        arguments = ", ".join(pointers + [f"{size}: tl.constexpr" for size in sizes])
        name = f"_strip_{self.combine}_{content_hash(arguments, body)[:10]}"
        return name, f"@triton.jit\ndef {name}({arguments}):\n{body}"

    def _add(self, *lines: str) -> None:
        self.lines.extend(lines)

    def _write_position(self) -> None:
        tile = self.tile
        self._add(
            (
                f"COLUMN_BLOCKS: tl.constexpr = "
                f"{'1' if tile.shift == 'gather' else f'(OW + T * {tile.lanes} - 1) // (T * {tile.lanes})'}"
            ),
            f"H_STRIPS: tl.constexpr = (OH + {tile.rows - 1}) // {tile.rows}",
            f"D_STRIPS: tl.constexpr = (OD + {tile.depths - 1}) // {tile.depths}",
            "pid = tl.program_id(0)",
            "strip = pid // COLUMN_BLOCKS"
            + (
                f" * {tile.strips} + tl.arange(0, {tile.strips})[:, None]"
                if tile.strips > 1
                else ""
            ),
            f"h0 = strip % H_STRIPS * {tile.rows}",
            f"d0 = strip // H_STRIPS % D_STRIPS * {tile.depths}",
            "plane = strip // (H_STRIPS * D_STRIPS)",
            "channel = plane % CHANNELS",
            (
                "# planes of outputs may be MULTIPLIER times those of inputs; offsets of planes "
                "may pass 2**31"
            ),
            "x_plane = x + (plane // MULTIPLIER).to(tl.int64) * (D * H * W)",
            "y_plane = y + plane.to(tl.int64) * (OD * OH * OW)",
            "group = pid % COLUMN_BLOCKS * T + tl.arange(0, T)[None, :]",
        )
        for axis, letter, count in (
            (self.axes[0], "d", tile.depths),
            (self.axes[1], "h", tile.rows),
        ):
            for start in row_starts(axis, count):
                self._add(
                    f"{letter}_{start} = {letter}0 * {axis.stride} + ({start - axis.padding})"
                )
                checks = [f"({letter}_{start} < {letter.upper()})"] + (
                    [f"({letter}_{start} >= 0)"] if start < axis.padding else []
                )
                if tile.strips > 1 and letter == "h":
                    checks.append("(plane < PLANES)")
                self._add(f"{letter}_{start}_ok = {' & '.join(checks)}")

    def _write_columns(self) -> None:
        """Offsets of every group distance, and what is compared with a row's end: groups where
        possible, so that vectors stay whole.
        """
        width, wide = self.width, self.width > 1
        lanes = f" + tl.arange(0, {width})[None, None, :]" if wide else ""
        if self.tile.shift == "gather":
            distances, index = {0}, "group"
        else:
            distances = {distance for distance, _ in self.taps.values()}
            index = f"(group * {self.step} + ({{}}))"
        for distance in sorted(distances):
            name = _signed(distance)
            self._add(
                f"g_{name} = {index.format(distance)}",
                f"c_{name} = g_{name}{'[:, :, None]' if wide else ''} * {width}{lanes}",
                f"if W % {width} == 0:",
                f"    at_{name} = g_{name}{'[:, :, None]' if wide else ''}",
                "else:",
                f"    at_{name} = c_{name}",
            )
        if self.tile.shift == "gather":
            for distance in sorted({distance for distance, _ in self.taps.values()}):
                if self.step == 1 and distance == 0:
                    continue
                name = _signed(distance)
                self._add(
                    f"from_{name} = group * {self.step} + ({distance})",
                    f"from_{name}_ok = (from_{name} >= 0) & (from_{name} < T)",
                    (
                        f"from_{name} = tl.broadcast_to(tl.minimum(tl.maximum(from_{name}, 0), T - "
                        f"1), ({self.tile.strips}, T))"
                    ),
                )

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
        self._add(
            f"end = tl.where(d_{d}_ok & h_{h}_ok, W // {self.width} if W % {self.width} == 0 else "
            f"W, 0){self.lift}"
        )

    def _load(self, d: int, h: int, distance: int, target: str) -> None:
        name = _signed(distance)
        below = f"(at_{name} >= 0) & " if distance < 0 else ""
        self._add(
            f"{target} = tl.load((x_plane + (d_{d} * H + h_{h}) * W){self.lift} + c_{name}, "
            f"mask={below}(at_{name} < end), other={self.pad}).to(tl.float32)"
        )

    def _split(self, value: str, prefix: str) -> dict[int, str]:
        """Lane -> name of a value of shape (strips, T)."""
        if self.width == 1:
            return {0: value}
        names = {0: value}
        width = self.width
        while width > 1:
            width //= 2
            split = {}
            # names holds lanes 0..distance-1, each of the lanes `distance` apart
            distance = self.width // (2 * width)
            for lane, name in names.items():
                low, high = f"{prefix}_{width}_{lane}", f"{prefix}_{width}_{lane + distance}"
                shape = (
                    f"({self.tile.strips}, T, {width}, 2)"
                    if width > 1
                    else f"({self.tile.strips}, T, 2)"
                )
                self._add(f"{low}, {high} = tl.split(tl.reshape({name}, {shape}))")
                split[lane], split[lane + distance] = low, high
            names = split
        return names

    def _gathered(self, lanes: dict[int, str], prefix: str) -> dict[tuple[int, int], str]:
        """(distance, lane) -> name, for every tap, from the lanes of one whole row."""
        found = {}
        for distance, lane in sorted(set(self.taps.values())):
            if self.step == 1 and distance == 0:
                found[distance, lane] = lanes[lane]
                continue
            name = _signed(distance)
            found[distance, lane] = f"{prefix}_{name}_{lane}"
            self._add(
                f"{found[distance, lane]} = tl.where(from_{name}_ok, tl.gather({lanes[lane]}, "
                f"from_{name}, 1), {self.pad})"
            )
        return found

    def _columns_of(self, d: int, h: int) -> dict[tuple[int, int], str]:
        """Load one input row and give every (distance, lane) the taps need."""
        self._load_ends(d, h)
        if self.tile.shift == "gather":
            self._load(d, h, 0, "row")
            return self._gathered(self._split("row", "lane"), "near")
        found = {}
        for distance in sorted({distance for distance, _ in self.taps.values()}):
            self._load(d, h, distance, f"row_{_signed(distance)}")
            for lane, name in self._split(
                f"row_{_signed(distance)}", f"lane_{_signed(distance)}"
            ).items():
                found[distance, lane] = name
        return found

    def _fold(self, target: str, values: Iterable[str], started: bool) -> None:
        """target = target (if started) combined with the values."""
        terms = ([target] if started else []) + list(values)
        text = terms[0]
        for term in terms[1:]:
            text = (
                f"tl.maximum({text}, {term}, propagate_nan=tl.PropagateNan.ALL)"
                if self.combine == "max"
                else f"{text} + {term}"
            )
        if text != target:
            self._add(f"{target} = {text}")

    def _write_columns_first(self) -> None:
        """Each input row once: its taps along the row, then its share of every output row that
        reads it.
        """
        depth, height, width = self.axes
        started: set[str] = set()
        for h, row_users in row_starts(height, self.tile.rows).items():
            for d, depth_users in row_starts(depth, self.tile.depths).items():
                columns = self._columns_of(d, h)
                for lane in range(self.tile.lanes):
                    values = [columns[self.taps[lane, tap]] for tap in range(width.kernel)]
                    if self.combine != "weighted":
                        self._fold(f"across_{d}_{lane}", values, False)
                        continue
                    for a, depth_tap in depth_users:
                        for i, row_tap in row_users:
                            first = (depth_tap * height.kernel + row_tap) * width.kernel
                            target = f"acc_{a}_{i}_{lane}"
                            terms = " + ".join(
                                f"{value} * w_{first + tap}" for tap, value in enumerate(values)
                            )
                            self._add(
                                f"{target} = {target if target in started else 'start'} + {terms}"
                            )
                            started.add(target)
            if self.combine == "weighted":
                continue
            for a in range(self.tile.depths):
                starts = [a * depth.stride + tap * depth.dilation for tap in range(depth.kernel)]
                for lane in range(self.tile.lanes):
                    self._fold("down", [f"across_{d}_{lane}" for d in starts], False)
                    for i, _ in row_users:
                        target = f"acc_{a}_{i}_{lane}"
                        self._fold(target, ["down"], target in started)
                        started.add(target)

    def _write_rows_first(self) -> None:
        """Whole rows are combined down the window first; only the result is split and moved along
        the row.
        """
        depth, height, width = self.axes
        started: set[str] = set()
        for h, row_users in row_starts(height, self.tile.rows).items():
            for d in row_starts(depth, self.tile.depths):
                self._load_ends(d, h)
                self._load(d, h, 0, f"row_{d}")
            for a in range(self.tile.depths):
                self._fold(
                    "down",
                    [
                        f"row_{a * depth.stride + tap * depth.dilation}"
                        for tap in range(depth.kernel)
                    ],
                    False,
                )
                for i, _ in row_users:
                    self._fold(f"rows_{a}_{i}", ["down"], f"rows_{a}_{i}" in started)
                    started.add(f"rows_{a}_{i}")
        for a in range(self.tile.depths):
            for i in range(self.tile.rows):
                columns = self._gathered(self._split(f"rows_{a}_{i}", "lane"), "near")
                for lane in range(self.tile.lanes):
                    self._fold(
                        f"acc_{a}_{i}_{lane}",
                        [columns[self.taps[lane, tap]] for tap in range(width.kernel)],
                        False,
                    )

    def _write_outputs(self) -> None:
        lanes, wide = self.tile.lanes, self.tile.lanes > 1
        lift = "[:, :, None]" if self.tile.strips > 1 and wide else ""
        self._add(
            f"oc = group{'[:, :, None]' if wide else ''} * {lanes}"
            + (f" + tl.arange(0, {lanes})[None, None, :]" if wide else "")
        )
        for a in range(self.tile.depths):
            for i in range(self.tile.rows):
                names = [f"acc_{a}_{i}_{lane}" for lane in range(lanes)]
                if self.combine == "sum":
                    self._write_means(a, i, names)
                value = _join(names)
                if wide:
                    value = f"tl.reshape({value}, ({self.tile.strips}, T, {lanes}))"
                checks = [f"(d0 + {a} < OD)", f"(h0 + {i} < OH)"] + (
                    ["(plane < PLANES)"] if self.tile.strips > 1 else []
                )
                self._add(
                    f"tl.store((y_plane + ((d0 + {a}) * OH + h0 + {i}) * OW){lift} + oc, "
                    f"{value}.to(y.dtype.element_ty), "
                    f"mask=oc < tl.where({' & '.join(checks)}, OW, 0){lift})"
                )

    def _write_means(self, a: int, i: int, names: Sequence[str]) -> None:
        """Divide by what the window covers: inside the input, or inside the padded input, as torch
        counts it.
        """
        self._add("if DIVISOR > 0:")
        self._add(*(f"    {name} = {name} * (1.0 / DIVISOR)" for name in names))
        self._add("else:")
        counts = []
        for axis, size, place, label in zip(
            self.axes, "DHW", (f"(d0 + {a})", f"(h0 + {i})", None), "dhw", strict=True
        ):
            for lane in range(len(names) if place is None else 1):
                position = place or f"(group * {self.tile.lanes} + {lane})"
                label_lane = f"n_{label}_{lane}"
                self._add(
                    f"    begin = {position} * {axis.stride} - {axis.padding}",
                    (
                        f"    end = tl.minimum(begin + {axis.kernel}, {size} + {axis.padding} * "
                        f"COUNT_PADDING)"
                    ),
                    f"    {label_lane} = end - tl.maximum(begin, -{axis.padding} * COUNT_PADDING)",
                )
                counts.append(label_lane)
        for lane, name in enumerate(names):
            self._add(
                f"    {name} = {name} / tl.maximum(n_d_0 * n_h_0 * n_w_{lane}, 1).to(tl.float32)"
            )


def _signed(number: int) -> str:
    return f"m{-number}" if number < 0 else f"p{number}"


def _join(names: Sequence[str]) -> str:
    """tl.join tree whose trailing axes, read in order, are the names in order."""
    if len(names) == 1:
        return names[0]
    return f"tl.join({_join(names[0::2])}, {_join(names[1::2])})"


def write_strip_launcher(
    kernel: str,
    tile: Tile,
    axes: Sequence[Axis],
    output: Sequence[int],
    *,
    channels: int,
    multiplier: int,
    divisor: float,
    count_padding: bool,
    weighted: bool,
    has_bias: bool,
    warps: int,
) -> str:
    """`launch(x[, w[, bias]])` of a strip kernel; sizes are written as numbers, for an emission
    belongs to one workload.
    """
    depth, height, width = axes
    planes = output[0] * output[1]
    strips = planes * -(-height.out // tile.rows) * -(-depth.out // tile.depths)
    blocks = 1 if tile.shift == "gather" else -(-width.out // (tile.groups * tile.lanes))
    inputs = ["x"] + (["w"] if weighted else []) + (["bias"] if has_bias else [])
    pointers = ["x", "y"] + inputs[1:]
    sizes = (
        planes,
        channels,
        multiplier,
        depth.size,
        height.size,
        width.size,
        depth.out,
        height.out,
        width.out,
        tile.groups,
        divisor,
        int(count_padding),
    )
    return (
        f"def launch({', '.join(inputs)}):\n"
        f"    y = torch.empty({tuple(output)!r}, dtype=x.dtype, device=x.device)\n"
        f"    {kernel}[({-(-strips // tile.strips) * blocks},)]({', '.join(pointers)}, "
        f"{', '.join(map(repr, sizes))}, num_warps={warps})\n"
        "    return y\n"
    )
