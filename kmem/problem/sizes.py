"""Arithmetic on sizes that more than one room does."""

from collections.abc import Sequence


def next_power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`; 1 for 0."""
    return 1 << max(number - 1, 0).bit_length()


def ceil_div(value: int, divisor: int) -> int:
    """How many pieces of a length cover a value."""
    return -(-value // divisor)


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Of a contiguous tensor, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def single_step(steps: Sequence[int], sizes: Sequence[int]) -> int | None:
    """The step over several axes as over one; None if there is none."""
    step = expected = steps[-1] if steps else 0
    for size, own in zip(reversed(sizes), reversed(steps), strict=True):
        if size > 1 and own != expected:
            return None
        expected *= size
    return step


def per_axis(value: object, rank: int, default: object = None) -> tuple[int, ...]:
    """An ATen int list as one integer per axis.

    One element counts for all axes, an empty list for `default`.
    """
    if value is None or value == ():
        value = default
    values = value if isinstance(value, tuple) else (value,)
    return tuple(int(item) for item in (values * rank if len(values) == 1 else values))


def same_padding(kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    """What torch's padding="same" puts before each axis.

    That is half of dilation * (kernel - 1), the odd one at the end.
    """
    return tuple(step * (taps - 1) // 2 for taps, step in zip(kernel, dilation, strict=True))
