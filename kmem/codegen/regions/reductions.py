"""The kinds of row reductions: sums, extremes and their places, moments; softmax.py has the others.

NaN and ties follow torch: a NaN wins every max, min and argmax; the first of equals wins.
"""

from kmem.codegen.regions.reduction import BY_ROW, Across, Reduction
from kmem.codegen.regions.softmax import Expectation, SoftmaxStatistics
from kmem.codegen.text.accumulate import add_lanes, start_lost, when_compensated
from kmem.problem.operators.expressions import MULTIPLY, Helper, maximum, minimum


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
    "softmax": SoftmaxStatistics(infinite_sum=False),
    "logsumexp": SoftmaxStatistics(infinite_sum=True),
    "expectation": Expectation(),
    "moments": _Moments(),
}
