"""Row reductions as Triton text: what each kind keeps, and how tiles, lanes and parts combine.

A kind has one or two fp32 (index: int32) states per row. Four texts make them:

- `direct`: from one tile that holds all of the row's (or the program's) elements;
- `start`, `update`, `finish`: lane by lane over the tiles of a loop, then across lanes once;
- `combine`: from the states that several programs left for one row.

Names in the surrounding kernel: BK, BR tile sizes, EVEN_R (no tail), valid (1, BR) mask, r (1, BR)
index in the row, count (elements that this program reduces, as fp32), lane_count (1, BR) elements
per lane, part_count (1, SPLIT) elements per partial, part_valid its mask, step the 1-based loop
step, COMPENSATED whether loops keep what their sums lose to rounding, RUN elements that a thread
holds side by side. All reduce along axis 1 and keep it; `combine` of one row's parts makes scalars.

NaN and ties follow torch: a NaN wins every max, min and argmax; the first of equals wins.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

from kmem.codegen.text.accumulate import add_lanes, start_lost, when_compensated
from kmem.problem.operators.expressions import MULTIPLY, Helper, maximum, minimum

#: Arguments of a reduction that takes each row of a tile by itself, and of one whose tile is a
#: single row and becomes a scalar.
BY_ROW, TO_SCALAR = ", axis=1, keep_dims=True", ""
#: Text of a reduction of a tile over BY_ROW or TO_SCALAR.
Across: TypeAlias = Callable[[str, str], str]


class Reduction(ABC):
    """One kind of row reduction over fp32 values.

    `states` are suffixes of its variables, in the order in which results are named.
    """

    states: tuple[str, ...]
    index_states: tuple[str, ...] = ()  # those that are int32
    #: Jitted functions that the texts call.
    helpers: tuple[Helper, ...] = ()
    #: Whether no compiler may fuse the last operation of what is reduced with the first of the
    #: reduction.
    wants_rounded_values = False
    #: Whether `update` adds in fp32, so that a long loop loses digits unless it is COMPENSATED.
    adds: bool = False
    #: How often `finish` reduces across lanes.
    across_lanes: int = 1
    #: Whether a lane is RUN elements of a tile.
    reduces_runs: bool = False

    @abstractmethod
    def direct(self, value: str, name: tuple[str, ...]) -> list[str]:
        """States from one tile."""

    @abstractmethod
    def start(self, name: tuple[str, ...]) -> list[str]:
        """Lanes before the first tile."""

    @abstractmethod
    def update(self, value: str, name: tuple[str, ...]) -> list[str]:
        """Lanes after one more tile."""

    @abstractmethod
    def finish(self, name: tuple[str, ...]) -> list[str]:
        """States from lanes."""

    @abstractmethod
    def combine(self, name: tuple[str, ...], over: str) -> list[str]:
        """States from `<state>_parts` (BK, SPLIT) tiles, reduced over BY_ROW or TO_SCALAR."""

    def keep(self, name: tuple[str, ...]) -> list[str]:
        """Lines between `direct` and `combine` that save what `reuse` reads."""
        return []

    def reuse(self, name: tuple[str, ...]) -> str | None:
        """An element's share of the first state (see region.Map), written more cheaply.

        The text reads what `direct` and `keep` left in registers.
        """
        return None


class _Fold(Reduction):
    """A reduction with one state, an identity and a binary operator."""

    states = ("",)

    def __init__(
        self,
        identity: str,
        step: str,
        across: Across,
        *,
        keeps_nan: bool = False,
        helpers: tuple[Helper, ...] = (),
    ) -> None:
        self.identity = identity
        self.step = step
        self.across = across
        self.keeps_nan = keeps_nan
        self.helpers = helpers
        self.across_lanes = 2 if keeps_nan else 1

    def _fold(self, name: str, tile: str, over: str = BY_ROW) -> list[str]:
        lines = [f"{name} = {self.across(tile, over)}"]
        if self.keeps_nan:  # tl.max and tl.min drop NaN; torch does not
            has_nan = f"tl.max(({tile} != {tile}).to(tl.int32){over}) != 0"
            lines.append(f"{name} = tl.where({has_nan}, float('nan'), {name})")
        return lines

    def direct(self, value: str, name: tuple[str, ...]) -> list[str]:
        return [
            f"{name[0]}_tile = {value} if EVEN_R else tl.where(valid, {value}, {self.identity})",
            *self._fold(name[0], f"{name[0]}_tile"),
        ]

    def start(self, name: tuple[str, ...]) -> list[str]:
        return [f"{name[0]}_lanes = tl.full((BK, BR), {self.identity}, tl.float32)"]

    def update(self, value: str, name: tuple[str, ...]) -> list[str]:
        tile = f"{name[0]}_tile"
        return [
            f"{tile} = {value} if EVEN_R else tl.where(valid, {value}, {self.identity})",
            f"{name[0]}_lanes = {self.step.format(f'{name[0]}_lanes', tile)}",
        ]

    def finish(self, name: tuple[str, ...]) -> list[str]:
        return self._fold(name[0], f"{name[0]}_lanes")

    def combine(self, name: tuple[str, ...], over: str) -> list[str]:
        parts = f"{name[0]}_parts"
        return [
            f"{parts} = tl.where(part_valid, {parts}, {self.identity})",
            *self._fold(name[0], parts, over),
        ]


class _Sum(_Fold):
    """A sum, whose lanes keep what they lose to rounding where a loop is long."""

    adds = True

    def __init__(self) -> None:
        super().__init__("0.0", "{0} + {1}", _across("tl.sum"))

    def start(self, name: tuple[str, ...]) -> list[str]:
        return [*super().start(name), *start_lost(name)]

    def update(self, value: str, name: tuple[str, ...]) -> list[str]:
        tile, plain = super().update(value, name)
        return [tile, *when_compensated([add_lanes(name[0], f"{name[0]}_tile")], [plain])]


class _ArgMax(Reduction):
    """The greatest value and the first index it stands at.

    Source: torch.argmax (NaN counts as greatest).
    """

    states = ("value", "index")
    index_states = ("index",)
    across_lanes = 3

    def _pick(
        self, name: tuple[str, ...], values: str, indices: str, over: str = BY_ROW
    ) -> list[str]:
        best, index = name
        return [
            f"{best} = tl.max({values}{over})",
            f"{best}_nan = tl.max(({values} != {values}).to(tl.int32){over}) != 0",
            f"{index}_hit = tl.where({best}_nan, {values} != {values}, {values} == {best})",
            f"{index} = tl.min(tl.where({index}_hit, {indices}, 2147483647){over})",
            f"{best} = tl.where({best}_nan, float('nan'), {best})",
        ]

    def direct(self, value: str, name: tuple[str, ...]) -> list[str]:
        tile = f"{name[0]}_tile"
        first = [f"{tile} = {value} if EVEN_R else tl.where(valid, {value}, float('-inf'))"]
        return first + self._pick(name, tile, "r.to(tl.int32)")

    def start(self, name: tuple[str, ...]) -> list[str]:
        # A lane's first index stands for a row of -inf: the smallest of them is torch's answer.
        first = "(begin + tl.arange(0, BR)[None, :]).to(tl.int32)"
        return [
            f"{name[0]}_lanes = tl.full((BK, BR), float('-inf'), tl.float32)",
            f"{name[1]}_lanes = tl.zeros((BK, BR), tl.int32) + {first}",
        ]

    def update(self, value: str, name: tuple[str, ...]) -> list[str]:
        tile = f"{name[0]}_tile"
        lanes = f"{name[0]}_lanes"
        index = f"{name[1]}_lanes"
        return [
            f"{tile} = {value} if EVEN_R else tl.where(valid, {value}, float('-inf'))",
            f"{name[0]}_better = ({tile} > {lanes}) | (({tile} != {tile}) & ({lanes} == {lanes}))",
            f"{lanes} = tl.where({name[0]}_better, {tile}, {lanes})",
            f"{index} = tl.where({name[0]}_better, r.to(tl.int32), {index})",
        ]

    def finish(self, name: tuple[str, ...]) -> list[str]:
        return self._pick(name, f"{name[0]}_lanes", f"{name[1]}_lanes")

    def combine(self, name: tuple[str, ...], over: str) -> list[str]:
        values, indices = f"{name[0]}_parts", f"{name[1]}_parts"
        return [
            f"{values} = tl.where(part_valid, {values}, float('-inf'))",
            f"{indices} = tl.where(part_valid, {indices}, 2147483647)",
            *self._pick(name, values, indices, over),
        ]


class _SoftmaxStatistics(Reduction):
    """The maximum m (0 for a row of -inf) and the sum of exp(x - m), in one pass.

    Source: Milakov, Gimelshein, arXiv:1805.02867.

    A NaN may be lost from the maximum (tl.max drops it on a GPU) but never from the sum. Where the
    maximum is +inf, the sum is NaN, as softmax has it; with `infinite_sum` the base is 0 there and
    the sum is +inf unless there is a NaN, as torch.logsumexp has it.
    """

    states = ("max", "sum")
    across_lanes = 2
    adds = True
    reduces_runs = True
    # x * scale - m as one fma takes a maximum that was rounded from a product that was not: at 1e10
    # up to 500 is left where 0 is meant.
    wants_rounded_values = True

    def __init__(self, infinite_sum: bool) -> None:
        self.infinite_sum = infinite_sum

    def _base(self, top: str) -> str:
        """What is subtracted in exponents, given a maximum."""
        size = f"tl.abs({top})" if self.infinite_sum else f"-{top}"
        return f"tl.where({size} == float('inf'), 0.0, {top})"

    def direct(self, value: str, name: tuple[str, ...]) -> list[str]:
        # The masked tile takes the value's name, so that exp(value - max) here and in the result
        # are one instruction.
        return [
            f"{value} = {value} if EVEN_R else tl.where(valid, {value}, float('-inf'))",
            f"{name[0]} = tl.max({value}, axis=1, keep_dims=True)",
            f"{name[0]} = {self._base(name[0])}",
            f"{name[1]}_weights = tl.exp({value} - {name[0]})",
            f"{name[1]} = tl.sum({name[1]}_weights, axis=1, keep_dims=True)",
        ]

    def keep(self, name: tuple[str, ...]) -> list[str]:
        return [f"{state}_own = {state}" for state in name]

    def reuse(self, name: tuple[str, ...]) -> str | None:
        # exp(x - m) = exp(x - own m) exp(own m - m), one exponential per element instead of two; a
        # part of -inf has weights and sum 0
        top, total = name
        factor = f"tl.where({total}_own == 0.0, 0.0, tl.exp({top}_own - {top}))"
        return f"{total}_weights * {factor}"

    def start(self, name: tuple[str, ...]) -> list[str]:
        return [
            f"{name[0]}_lanes = tl.full((BK, BR // RUN), float('-inf'), tl.float32)",
            f"{name[1]}_lanes = tl.zeros((BK, BR // RUN), tl.float32)",
            *start_lost(name[1:], "BR // RUN"),
        ]

    def update(self, value: str, name: tuple[str, ...]) -> list[str]:
        top, total = f"{name[0]}_lanes", f"{name[1]}_lanes"
        lost, runs = f"{name[1]}_lost", f"{name[0]}_runs"
        fix, part = f"{name[1]}_fix", f"{name[1]}_part"
        tile, base = f"{name[0]}_tile", f"{name[0]}_base"
        return [
            f"{tile} = {value} if EVEN_R else tl.where(valid, {value}, float('-inf'))",
            # one exponential of a run brings its lane to a new maximum
            f"{runs} = tl.reshape({tile}, (BK, BR // RUN, RUN))",
            f"{name[0]}_new = tl.maximum({top}, tl.max({runs}, axis=2))",
            f"{base} = {self._base(f'{name[0]}_new')}",
            f"{fix} = tl.exp({top} - {base})",
            f"{part} = tl.sum(tl.exp({runs} - {base}[:, :, None]), axis=2)",
            *when_compensated(
                [
                    f"{total} = {total} * {fix}",
                    # an infinite maximum is its own base or has the base 0: nothing is lost there
                    f"{lost} = tl.where({fix} <= 1.0, {lost} * {fix}, 0.0)",
                    add_lanes(name[1], part),
                ],
                [f"{total} = {total} * {fix} + {part}"],
            ),
            f"{top} = {name[0]}_new",
        ]

    def _merge(
        self, name: tuple[str, ...], tops: str, totals: str, over: str = BY_ROW
    ) -> list[str]:
        return [
            f"{name[0]} = tl.max({tops}{over})",
            f"{name[0]} = {self._base(name[0])}",
            f"{name[1]} = tl.sum({totals} * tl.exp({tops} - {name[0]}){over})",
        ]

    def finish(self, name: tuple[str, ...]) -> list[str]:
        return self._merge(name, f"{name[0]}_lanes", f"{name[1]}_lanes")

    def combine(self, name: tuple[str, ...], over: str) -> list[str]:
        tops, totals = f"{name[0]}_parts", f"{name[1]}_parts"
        lines = [
            f"{totals} = tl.where(part_valid, {totals}, 0.0)",
            # a sum of 0 means a part of -inf only, whose maximum was replaced by 0
            f"{tops} = tl.where({totals} == 0.0, float('-inf'), {tops})",
        ]
        if self.infinite_sum:  # likewise a part with +inf
            lines += [f"{tops} = tl.where({totals} == float('inf'), float('inf'), {tops})"]
        return lines + self._merge(name, tops, totals, over)


class _Moments(Reduction):
    """Mean and sum of squared deviations.

    Sources: Welford 1962 (lanes); Chan, Golub, LeVeque 1983, eq. 2.1 (merging).
    """

    states = ("mean", "m2")
    across_lanes = 3
    adds = True

    def direct(self, value: str, name: tuple[str, ...]) -> list[str]:
        elements = f"{value} if EVEN_R else tl.where(valid, {value}, 0.0)"
        return [
            f"{name[0]} = tl.sum({elements}, axis=1, keep_dims=True) / count",
            f"{name[1]}_tile = {value} - {name[0]}",
            f"{name[1]}_tile = {name[1]}_tile if EVEN_R else tl.where(valid, {name[1]}_tile, 0.0)",
            f"{name[1]} = tl.sum({name[1]}_tile * {name[1]}_tile, axis=1, keep_dims=True)",
        ]

    def start(self, name: tuple[str, ...]) -> list[str]:
        lanes = [f"{state}_lanes = tl.zeros((BK, BR), tl.float32)" for state in name]
        return lanes + start_lost(name)

    def update(self, value: str, name: tuple[str, ...]) -> list[str]:
        mean, m2 = f"{name[0]}_lanes", f"{name[1]}_lanes"
        return [
            f"{name[0]}_tile = {value} if EVEN_R else tl.where(valid, {value}, {mean})",
            f"{name[0]}_delta = {name[0]}_tile - {mean}",
            *when_compensated(
                [
                    add_lanes(name[0], f"{name[0]}_delta * (1.0 / step)"),
                    add_lanes(name[1], f"{name[0]}_delta * ({name[0]}_tile - {mean})"),
                ],
                [
                    f"{mean} += {name[0]}_delta * (1.0 / step)",
                    f"{m2} += {name[0]}_delta * ({name[0]}_tile - {mean})",
                ],
            ),
        ]

    def _merge(
        self, name: tuple[str, ...], kind: str, counts: str, total: str, over: str = BY_ROW
    ) -> list[str]:
        """States from those of lanes or parts, which count so many elements each."""
        means, m2s = f"{name[0]}_{kind}", f"{name[1]}_{kind}"
        return [
            f"{name[0]} = tl.sum({means} * {counts}{over}) / {total}",
            # once more from there: where the mean is large, the first sum has lost digits that the
            # differences keep
            f"{name[0]} += tl.sum(({means} - {name[0]}) * {counts}{over}) / {total}",
            f"{name[1]}_shift = {means} - {name[0]}",
            f"{name[1]} = tl.sum({m2s} + {counts} * {name[1]}_shift * {name[1]}_shift{over})",
        ]

    def finish(self, name: tuple[str, ...]) -> list[str]:
        return self._merge(name, "lanes", "lane_count", "count")

    def combine(self, name: tuple[str, ...], over: str) -> list[str]:
        parts = (f"{name[0]}_parts", f"{name[1]}_parts")
        clean = [f"{part} = tl.where(part_valid, {part}, 0.0)" for part in parts]
        return clean + self._merge(name, "parts", "part_count", "(R * 1.0)", over)


def _across(function: str) -> Across:
    return lambda tile, over: f"{function}({tile}{over})"


def _product(tile: str, over: str) -> str:
    return (
        f"tl.reduce({tile}, 1, multiply, keep_dims=True)"
        if over == BY_ROW
        else f"tl.reduce({tile}, None, multiply)"
    )


REDUCTIONS: dict[str, Reduction] = {
    "sum": _Sum(),
    "prod": _Fold("1.0", "{0} * {1}", _product, helpers=(MULTIPLY,)),
    "max": _Fold("float('-inf')", maximum("{0}", "{1}"), _across("tl.max"), keeps_nan=True),
    "min": _Fold("float('inf')", minimum("{0}", "{1}"), _across("tl.min"), keeps_nan=True),
    "argmax": _ArgMax(),
    "softmax": _SoftmaxStatistics(infinite_sum=False),
    "logsumexp": _SoftmaxStatistics(infinite_sum=True),
    "moments": _Moments(),
}
