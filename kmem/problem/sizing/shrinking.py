"""Ways to make the numbers of a problem smaller, one after the other; workload.py tries them."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kmem.problem.source.substitution import Sizes
from kmem.records import Workload

#: Constants up to this size are left alone: they are dimensions, kernel sizes, axes, or small
#: already.
KEEP_BELOW = 4

#: Sizes tried, largest first.
_LADDER = sorted(
    {2, 3} | {step * 2**power for power in range(14) for step in (4, 5, 6, 7)}, reverse=True
)


@dataclass(frozen=True, slots=True)
class Style:
    """One way to make the numbers of constants about as large as a size.

    `shrink(value, size, index)` does so with the `index`-th number. With `small_batch`, batches get
    an eighth of the other sizes, for they repeat what one element shows. With `in_proportion` the
    size is that of the largest number, and the others keep their ratios to it.
    """

    name: str
    shrink: Callable[[int, int, int], int]
    small_batch: bool = False
    in_proportion: bool = False


def _odd_like(value: int, size: int) -> int:
    """An odd size stays odd."""
    return size | 1 if value % 2 else size


def _off_powers_of_two(value: int, size: int, index: int) -> int:
    """Sizes that exercise masks."""
    return _odd_like(value, size + (1, 3, 2)[index % 3] if size > 3 else size)


def _equal(value: int, size: int, index: int) -> int:
    """Equal sizes stay equal, for modules that rely on it."""
    return _odd_like(value, size + 1)


def _power_of_two(value: int, size: int, index: int) -> int:
    """Sizes for modules that divide."""
    return _odd_like(value, 2 ** (size.bit_length() - 1))


def _halved(value: int, size: int, index: int) -> int:
    """Halves of the full size, for modules that divide."""
    return value >> max(0, math.ceil(math.log2(value / size)))


#: Ways to shrink, best first.
STYLES = (
    Style("off powers of two", _off_powers_of_two, small_batch=True),
    Style("equal sizes", _equal),
    Style("powers of two", _power_of_two, small_batch=True),
    Style("halves", _halved),
    Style("in proportion", _power_of_two, in_proportion=True),  # for groups of several channels
)


def proposals(constants: Sizes, style: Style, by_value: bool) -> Iterator[Workload]:
    """Workloads of one style, largest sizes first, each once."""
    yield from dict.fromkeys(_propose(constants, style, size, by_value) for size in _LADDER)


def smallest_proposal(constants: Sizes, style: Style, by_value: bool) -> Workload:
    """The last of `proposals`."""
    return _propose(constants, style, _LADDER[-1], by_value)


def _propose(constants: Sizes, style: Style, size: int, by_value: bool) -> Workload:
    """Every number shrunk to about `size`, in one style.

    Args:
        by_value: numbers that are equal stay equal, as those of inputs and of a constructor must.
    """
    places: dict[int, int] = {}
    largest = max((max(_numbers(value)) for value in constants.values()), default=1)
    chosen: list[tuple[str, int | tuple[int, ...]]] = []
    for name, value in constants.items():
        numbers = []
        aim = max(2, size // 8) if style.small_batch and "batch" in name.lower() else size
        for number in _numbers(value):
            if style.in_proportion:
                aim = max(2, size * number // largest)
            index = places.setdefault(number if by_value else -len(places), len(places))
            if number > KEEP_BELOW:
                number = max(2, min(number, style.shrink(number, aim, index)))
            numbers.append(number)
        chosen.append((name, tuple(numbers) if isinstance(value, tuple) else numbers[0]))
    return Workload("small", tuple(chosen))


def _numbers(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,)
