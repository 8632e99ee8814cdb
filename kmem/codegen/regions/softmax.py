"""Softmax statistics of a row, and what a second value is expected to be under its softmax."""

from kmem.codegen.regions.reduction import BY_ROW, Reduction
from kmem.codegen.text.accumulate import add_lanes, start_lost, when_compensated


class SoftmaxStatistics(Reduction):
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


class Expectation(SoftmaxStatistics):
    """Softmax statistics of x, and the sum of exp(x - m) (x - y) for a second value y, in one pass.

    An element of -inf has no share, but for a y that is no number or infinite: then the sum is NaN,
    as that of p (log p - log q) is.
    """

    states = ("max", "sum", "gaps")
    across_lanes = 3

    def __init__(self) -> None:
        super().__init__(infinite_sum=False)

    def direct(self, value: str, name: tuple[str, ...]) -> list[str]:
        gaps, other = name[2:]
        weights = f"{name[1]}_weights"
        return [
            *super().direct(value, name[:2]),
            f"{gaps}_other = {other} if EVEN_R else tl.where(valid, {other}, 0.0)",
            f"{gaps}_share = {weights} * ({value} - {gaps}_other)",
            f"{gaps}_none = {gaps}_other * 0.0",
            f"{gaps}_share = tl.where({value} == float('-inf'), {gaps}_none, {gaps}_share)",
            f"{gaps} = tl.sum({gaps}_share, axis=1, keep_dims=True)",
        ]

    def start(self, name: tuple[str, ...]) -> list[str]:
        return [
            *super().start(name[:2]),
            f"{name[2]}_lanes = tl.zeros((BK, BR // RUN), tl.float32)",
            *start_lost(name[2:3], "BR // RUN"),
        ]

    def update(self, value: str, name: tuple[str, ...]) -> list[str]:
        gaps, other = name[2:]
        lanes, lost = f"{gaps}_lanes", f"{gaps}_lost"
        fix = f"{name[1]}_fix"
        runs, base = f"{name[0]}_runs", f"{name[0]}_base"
        return [
            *super().update(value, name[:2]),
            f"{gaps}_other = {other} if EVEN_R else tl.where(valid, {other}, 0.0)",
            f"{gaps}_other = tl.reshape({gaps}_other, (BK, BR // RUN, RUN))",
            f"{gaps}_share = tl.exp({runs} - {base}[:, :, None]) * ({runs} - {gaps}_other)",
            f"{gaps}_none = {gaps}_other * 0.0",
            f"{gaps}_share = tl.where({runs} == float('-inf'), {gaps}_none, {gaps}_share)",
            f"{gaps}_part = tl.sum({gaps}_share, axis=2)",
            *when_compensated(
                [
                    f"{lanes} = {lanes} * {fix}",
                    f"{lost} = tl.where({fix} <= 1.0, {lost} * {fix}, 0.0)",
                    add_lanes(gaps, f"{gaps}_part"),
                ],
                [f"{lanes} = {lanes} * {fix} + {gaps}_part"],
            ),
        ]

    def _merge_gaps(self, name: tuple[str, ...], kind: str, over: str) -> list[str]:
        """Before the maximum of lanes or parts is another's: each brought to that of all."""
        tops, gaps = f"{name[0]}_{kind}", f"{name[2]}_{kind}"
        return [f"{name[2]} = tl.sum({gaps} * tl.exp({tops} - {name[0]}){over})"]

    def finish(self, name: tuple[str, ...]) -> list[str]:
        return [*super().finish(name[:2]), *self._merge_gaps(name, "lanes", BY_ROW)]

    def combine(self, name: tuple[str, ...], over: str) -> list[str]:
        gaps = f"{name[2]}_parts"
        return [
            f"{gaps} = tl.where(part_valid, {gaps}, 0.0)",
            *super().combine(name[:2], over),
            *self._merge_gaps(name, "parts", over),
        ]

    def keep(self, name: tuple[str, ...]) -> list[str]:
        return []  # no element's share is asked of it

    def reuse(self, name: tuple[str, ...]) -> str | None:
        return None
