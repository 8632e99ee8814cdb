"""How wrong an output is, and how wrong it may be: the accuracy contract.

Errors are against the float64 oracle. Pure functions of tensors, which take no more than some 400
MB beside the tensors themselves: the work is done in chunks.

Covered: floating, complex, integer and bool outputs of any shape, non-finite values.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from kmem.records import Precision

#: Rows shorter than this are compared on the scale of the whole tensor: a handful of elements may
#: cancel all together by chance.
SHORTEST_ROW = 8
#: Largest error within a row over eager's own: an extreme of many values varies more than the norm
#: of the values does.
ROW_SLACK = 4.0
#: How much more than eager a result may err. A handful of elements have but a few errors, and how
#: far one goes over another is chance: they are held as a row is.
_SLACK = 2.0
#: How many times that where eager has not one digit right: the right answer is nothing beside what
#: cancelled (the mean of a normalised group), and what both return is noise, whose size depends on
#: the order of the additions.
_OF_NOISE = 4.0
#: Share of the values that a row was computed from which counts as its magnitude: so what a floor
#: allows in a row, eight of it, is one floor of these values.
_OF_ORIGIN = 1 / 8
#: A result of less than so much of the values that it was computed from is nothing beside them: 16
#: roundings of float32, its floor. All of it is held to them, not to itself.
_NOTHING = 2.0**-20
#: How far another order of summation takes a result, over the floor of its type.
_OTHER_ORDER = 4.0
#: Elements taken at once: where all values are finite, which takes five passes, and where some are
#: not, which takes some forty.
_CHUNK, _FINE_CHUNK = 2**24, 2**22
#: Magnitudes up to this may consist of errors that are forgiven.
_TINY = 1e-30
#: KernelBench's element-wise tolerance, absolute and relative, by the type of the result; other
#: types must be equal. No condition of this judge: reported for comparison. Source: KernelBench
#: src/kernelbench/eval.py, get_tolerance_for_precision and torch.allclose.
KERNELBENCH_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}
#: A result whose right value is this near the largest finite number of its type may as well have
#: been rounded to infinity.
NEAR_OVERFLOW = 2.0**-8
#: One rounding, half the distance between neighbours: 2**-(mantissa bits + 1). Source: IEEE
#: 754-2019 table 3.5; bfloat16 has 7 bits.
ROUNDING = {
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float32: 2.0**-24,
    torch.float64: 2.0**-53,
}
#: Errors below the smallest normal number are forgiven, for hardware may flush denormals, and those
#: of up to a million times that: a flushed number may have been multiplied, as is the far end of a
#: softmax. Source: CUDA C++ Programming Guide, -ftz.
_SMALLEST_NORMAL = torch.finfo(torch.float32).tiny * 2.0**20


@dataclass(frozen=True, slots=True)
class Difference:
    """How far one output is from the oracle.

    `relative_error` is the relative Frobenius error, `row_error` the largest error over its row's
    magnitude. For integer and bool results both are the share of elements that equal neither
    eager's nor the oracle's. `fault` says that non-finite values do not stand where they must.
    `beyond_kernelbench`: whether KernelBench would refuse the output beside eager's. `is_handful`:
    whether there are fewer than `SHORTEST_ROW` elements.
    """

    relative_error: float
    row_error: float
    fault: str | None = None
    beyond_kernelbench: bool = field(default=False, compare=False)
    is_handful: bool = field(default=False, compare=False)


def error_floor(dtype: torch.dtype, precision: Precision) -> float:
    """The error allowed even where eager is luckier.

    1e-6 for fp32 results (16 roundings), 2**-10 for fp32 results under a TF32 contract (operands
    cut to 10 bits), 1e-13 for float64 (the oracle's own type), one rounding of the output type
    otherwise, none for integers.
    """
    dtype = dtype.to_real() if dtype.is_complex else dtype
    if not dtype.is_floating_point:
        return 0.0
    if dtype is torch.float64:
        return 1e-13
    if dtype is torch.float32:
        return 2.0**-10 if precision is Precision.TF32 else 1e-6
    return ROUNDING.get(dtype, 2.0**-4)


#: What `input_noise` forgives: some roundings of the inputs, but never more than so many times what
#: eager errs. Eager of a well-made module is better than its condition by no more than a few times.
NOISE_ROUNDINGS, NOISE_OVER_EAGER = 4.0, 32.0


def cap_noise(noise: Difference, eager: Difference) -> Difference:
    """What the condition of a module forgives, given what it costs eager.

    A single row may be lucky in eager; all rows together are not.
    """
    relative = min(NOISE_ROUNDINGS * noise.relative_error, NOISE_OVER_EAGER * eager.relative_error)
    return Difference(relative, noise.row_error)


def allowances(
    reference: Difference, floor: float, noise: Difference | None = None
) -> tuple[float, float]:
    """What an output and what its worst row may err; arguments as for `is_within`."""
    spare, row_spare = (noise.relative_error, noise.row_error) if noise else (0.0, 0.0)
    slack, row_slack = (
        _OF_NOISE if error >= 1 else 1.0
        for error in (reference.relative_error, reference.row_error)
    )
    if reference.is_handful:
        slack *= ROW_SLACK / _SLACK
    return (
        max(_SLACK * slack * reference.relative_error, floor, spare),
        max(ROW_SLACK * row_slack * reference.row_error, 8 * floor, ROW_SLACK * row_spare),
    )


def is_within(
    difference: Difference, reference: Difference, floor: float, noise: Difference | None = None
) -> bool:
    """The accuracy contract: at most twice eager's error, or the floor; of a row four times.

    Where eager itself errs by more than there is, `_OF_NOISE` times that.

    Args:
        difference: of the candidate's output.
        reference: of eager's output.
        noise: what one rounding of the inputs changes, if that much is allowed too.
    """
    if difference.fault is not None:
        return False
    allowed, row_allowed = allowances(reference, floor, noise)
    return difference.relative_error <= allowed and difference.row_error <= row_allowed


def error_over_allowance(
    difference: Difference, reference: Difference, floor: float, noise: Difference | None = None
) -> float:
    """By what factor an output misses the accuracy contract; arguments as for `is_within`.

    Infinite where no better arithmetic would help: misplaced non-finite values, wrong integers.
    """
    if difference.fault is not None:
        return math.inf
    errors = (difference.relative_error, difference.row_error)
    pairs = zip(errors, allowances(reference, floor, noise), strict=True)
    ratios = [found / allowed if allowed else math.inf for found, allowed in pairs if found]
    return max(ratios, default=0.0)


def is_rounding(output: torch.Tensor, other: torch.Tensor, floor: float) -> bool:
    """Whether two results are the same but for the order in which a vendor kernel adds.

    Args:
        floor: of their type, as `error_floor` gives it.
    """
    found = measure_error(output, other, other)
    return is_within(found, Difference(0.0, 0.0), _OTHER_ORDER * floor)


def measure_error(
    output: torch.Tensor,
    oracle: torch.Tensor,
    eager: torch.Tensor,
    origin: torch.Tensor | None = None,
) -> Difference:
    """Compare one output with the oracle; eager says which non-finite values are right.

    Arguments as in `ErrorTally.add`.
    """
    tally = ErrorTally()
    tally.add(output, oracle, eager, origin)
    return tally.difference()


class ErrorTally:
    """The error of one output, added up over slices along its first dimension, or of the whole.

    The sums stay on the device until `difference` asks for them: a large input has hundreds of
    slices, and fetching numbers of each would take longer than computing them.
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._peaks: dict[str, torch.Tensor] = {}
        self._elements, self._is_floating = 0, True

    def add(
        self,
        output: torch.Tensor,
        oracle: torch.Tensor,
        eager: torch.Tensor,
        origin: torch.Tensor | None = None,
    ) -> None:
        """Compare a slice.

        Args:
            output: any shape, on any device.
            oracle: of the same shape, float64 (complex128, or integers as they are), on the device
                where the comparison is to be made.
            eager: of the output's shape and dtype.
            origin: how large the values were that each element was computed from (origins.py), if
                that is to count as the magnitude of rows, and of all where nothing is left of them.
        """
        if output.is_complex():
            output = torch.view_as_real(output)
            oracle = torch.view_as_real(oracle)
            eager = torch.view_as_real(eager)
        self._elements += output.numel()
        self._is_floating = output.is_floating_point()
        by_row = output.dim() > 0 and output.shape[-1] >= SHORTEST_ROW
        parts = (output, oracle, eager, oracle if origin is None else origin)
        for part, right, ours, given in _chunks(_CHUNK, *parts):
            part, ours = part.to(right.device), ours.to(right.device)
            origins = None if origin is None else given
            tolerance = KERNELBENCH_TOLERANCE.get(part.dtype, 0.0)
            if not self._is_floating:
                self._sum("beyond_kernelbench", part != ours)
                self._sum("wrong", (part != right) & (part != ours))
                continue
            if not _largest(part - ours) <= tolerance:
                self._sum(
                    "beyond_kernelbench", ~torch.isclose(part, ours, rtol=tolerance, atol=tolerance)
                )
            if not self._add_finite(part, right.double(), origins, by_row=by_row):
                for *fine, source in _chunks(_FINE_CHUNK, part, right, ours, given):
                    self._add_any(
                        *(values.double() for values in fine),
                        None if origin is None else source,
                        largest=torch.finfo(part.dtype).max,
                        by_row=by_row,
                    )

    def _add_finite(
        self,
        part: torch.Tensor,
        right: torch.Tensor,
        origin: torch.Tensor | None,
        *,
        by_row: bool,
    ) -> bool:
        """What `_add_any` adds, for two slices that are finite everywhere and not tiny.

        Whatever eager is, it plays no part then. False, and nothing added, for other slices.
        """
        if not part.numel():
            return True
        # `error` has memory of its own, so that the same values are added in the same order
        # whatever layout they came in.
        error = torch.sub(
            part, right, out=torch.empty(right.shape, dtype=right.dtype, device=right.device)
        )
        by = {"dim": -1} if by_row else {}
        errors, scales = (
            torch.linalg.vector_norm(values, float("inf"), **by) for values in (error, right)
        )
        if not (torch.isfinite(errors) & torch.isfinite(scales)).all() or not scales.max() > _TINY:
            return False
        self._sum("squares", torch.linalg.vector_norm(error).square())
        self._sum("norm", torch.linalg.vector_norm(right).square())
        errors = (errors - _SMALLEST_NORMAL).clamp_min(0)
        if origin is not None:
            self._sum("origin", torch.linalg.vector_norm(origin).square())
            scales = torch.maximum(
                scales, _OF_ORIGIN * torch.linalg.vector_norm(origin, float("inf"), **by)
            )
        if by_row:
            self._peak("row", errors / scales.clamp_min(_SMALLEST_NORMAL))
        else:
            self._peak("error", errors)
            self._peak("scale", scales)
        return True

    def _add_any(
        self,
        part: torch.Tensor,
        right: torch.Tensor,
        ours: torch.Tensor,
        origin: torch.Tensor | None,
        *,
        largest: float,
        by_row: bool,
    ) -> None:
        counted = torch.isfinite(right) & torch.isfinite(part)
        same = (
            (part == ours)
            | (part == right)
            | (torch.isnan(part) & (torch.isnan(ours) | torch.isnan(right)))
        )
        expected_finite = torch.isfinite(right) & torch.isfinite(ours)
        # eager left the range, this candidate did not
        overflowed = torch.isfinite(right) & ~torch.isfinite(ours) & torch.isfinite(part)
        rounded_up = (
            torch.isinf(part)
            & (part.sign() == right.sign())
            & (right.abs() >= (1 - NEAR_OVERFLOW) * largest)
        )
        self._sum(
            "misplaced",
            ~same & ~overflowed & ~rounded_up & ~(expected_finite & torch.isfinite(part)),
        )
        zero = torch.zeros((), dtype=torch.float64, device=part.device)
        error = torch.where(counted, (part - right).abs() - _SMALLEST_NORMAL, zero).clamp_min(0)
        scale = torch.where(torch.isfinite(right), right.abs(), zero)
        self._sum("squares", error.square())
        self._sum("norm", scale.square())
        if origin is not None:
            self._sum("origin", origin.square())
            scale = torch.maximum(scale, _OF_ORIGIN * origin)
        if by_row:
            self._peak("row", error.amax(-1) / scale.amax(-1).clamp_min(_SMALLEST_NORMAL))
        else:
            self._peak("error", error)
            self._peak("scale", scale)

    def _sum(self, name: str, values: torch.Tensor) -> None:
        total = values.sum()
        if name in self._sums:
            total = self._sums[name].to(total.device) + total
        self._sums[name] = total

    def _peak(self, name: str, values: torch.Tensor) -> None:
        top = values.max()
        if name in self._peaks:
            top = torch.maximum(self._peaks[name].to(top.device), top)
        self._peaks[name] = top

    def difference(self) -> Difference:
        """The errors so far."""
        total = {name: value.item() for name, value in self._sums.items()}
        peak = {name: value.item() for name, value in self._peaks.items()}
        about = {
            "beyond_kernelbench": bool(total.get("beyond_kernelbench", 0)),
            "is_handful": self._elements < SHORTEST_ROW,
        }
        if not self._is_floating:
            share = total.get("wrong", 0) / max(self._elements, 1)
            return Difference(share, share, **about)
        norm = max(total.get("norm", 0.0) ** 0.5, _SMALLEST_NORMAL)
        origin = total.get("origin", 0.0) ** 0.5
        norm = origin if norm < _NOTHING * origin else norm
        relative = total.get("squares", 0.0) ** 0.5 / norm
        scale = max(peak.get("scale", 0.0), _SMALLEST_NORMAL)
        row = max(peak.get("row", 0.0), peak.get("error", 0.0) / scale)
        fault = None
        if misplaced := total.get("misplaced", 0):
            fault = f"{misplaced} elements are not finite where they should be, or the reverse"
        return Difference(relative, row, fault, **about)


def _largest(values: torch.Tensor) -> float:
    """The largest magnitude, NaN if there is one among them; 0 of none."""
    return torch.linalg.vector_norm(values, float("inf")).item() if values.numel() else 0.0


def _chunks(elements: int, *tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Equal ranges of rows of equal-shaped tensors, each of about so many elements."""
    shape = tensors[0].shape
    width = shape[-1] if shape else 1
    rows = [
        tensor.reshape(-1, width) if tensor.numel() else tensor.reshape(0, max(width, 1))
        for tensor in tensors
    ]
    step = max(1, elements // max(width, 1))
    for start in range(0, rows[0].shape[0], step):
        yield tuple(row[start : start + step] for row in rows)
