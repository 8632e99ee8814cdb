"""Other sizes, layouts and scalars of the same inputs.

Whether the module accepts them is for the reference to say.
"""

from collections.abc import Callable, Iterator, Sequence

import torch

from kmem.measure.pool.arguments import Layout

#: Sizes beyond these many are not tried: each is a forward of the candidate.
_MOST_SIZES = 12
#: How names of sizes begin that stand in one place only, though others had the same. A module may
#: accept them and mean nothing by it, as `gather` does with a longer table; they count where they
#: make an output larger too.
ALONE = "only"
#: What becomes of a float among the arguments.
_OTHER_FACTOR = 0.71
#: Elements between two rows: more than one vector of any type, and no multiple of one.
_PADDING = 3


def other_sizes(values: Sequence[object]) -> Iterator[tuple[str, list[object]]]:
    """The same inputs at other sizes, by name, made one after the other. Non-tensors are kept.

    The first and the last dimension are made one shorter and one longer in every input, if all
    share its size. Then there is a single first element, and every size that occurs becomes the
    next prime, wherever it occurs and, where inputs of several shapes have it, in each place alone.
    """
    seen = {_shapes(values)}
    for name, places, size in _size_changes(values):
        resized = list(values)
        for index, dimension in places:
            resized[index] = _resize(values[index], dimension, size)
        if _shapes(resized) in seen:
            continue
        yield name, resized
        seen.add(_shapes(resized))
        if len(seen) > _MOST_SIZES:
            return


def _size_changes(
    values: Sequence[object],
) -> Iterator[tuple[str, list[tuple[int, int]], int]]:
    """Name, (input, dimension) of what changes together, and its new size."""
    tensors = {
        index: value
        for index, value in enumerate(values)
        if isinstance(value, torch.Tensor) and value.dim() > 0
    }
    for name, dimension in (("first dimension", 0), ("last dimension", -1)):
        sizes = {value.shape[dimension] for value in tensors.values()}
        if len(sizes) != 1 or 0 in sizes:
            continue
        size = sizes.pop()
        places = [(index, dimension) for index in tensors]
        for sign, other in (("- 1", size - 1), ("+ 1", size + 1)):
            if other > 0:
                yield f"{name} {sign}", places, other
    occurring: dict[int, list[tuple[int, int]]] = {}
    for index, value in tensors.items():
        for dimension, size in enumerate(value.shape):
            if size > 1:
                occurring.setdefault(size, []).append((index, dimension))
    for size, places in occurring.items():
        if places[0][1] == 0:  # a batch of one, in every input that has this batch
            batch = [(index, dimension) for index, dimension in places if dimension == 0]
            yield f"first {size} to 1", batch, 1
        yield f"every {size} to {next_prime(size)}", places, next_prime(size)
        are_alike = len({tensors[index].shape for index, _ in places}) == 1
        for index, dimension in () if are_alike else places:
            name = f"{ALONE} dimension {dimension} of input {index} to {next_prime(size)}"
            yield name, [(index, dimension)], next_prime(size)


def other_scalars(values: Sequence[object]) -> Iterator[tuple[str, list[object]]]:
    """The same tensors with other numbers beside them, by name, one number at a time."""
    for index, value in enumerate(values):
        if isinstance(value, bool):
            other: object = not value
        elif isinstance(value, int):
            other = value + 1
        elif isinstance(value, float):
            other = _OTHER_FACTOR * value if value else _OTHER_FACTOR
        else:
            continue
        yield f"argument {index} = {other}", [*values[:index], other, *values[index + 1 :]]


def _shapes(values: Sequence[object]) -> tuple[torch.Size, ...]:
    return tuple(value.shape for value in values if isinstance(value, torch.Tensor))


def next_prime(size: int) -> int:
    """The smallest prime above a size, which divides by nothing that a kernel may have assumed."""
    candidate = size + 1
    while any(candidate % divisor == 0 for divisor in range(2, int(candidate**0.5) + 1)):
        candidate += 1
    return candidate


def _resize(value: torch.Tensor, dimension: int, size: int) -> torch.Tensor:
    """A tensor cut or lengthened along one dimension, by repeating its first elements."""
    kept = value.narrow(dimension, 0, min(size, value.shape[dimension]))
    while size > kept.shape[dimension]:
        missing = min(size - kept.shape[dimension], value.shape[dimension])
        kept = torch.cat([kept, value.narrow(dimension, 0, missing)], dimension)
    return kept.contiguous()


def other_layouts(values: Sequence[object]) -> list[tuple[str, list[Layout | None]]]:
    """Other strides and offsets for the same values, by name; None for the usual ones.

    "transposed" reverses the order of strides, "leading dimensions swapped" that of the first two;
    "misaligned" starts one element into its storage, "padded rows" has gaps between rows and "every
    second" between elements. "expanded" repeats the first rows: it stands for other values.
    """
    dimensions = [value.dim() for value in values if isinstance(value, torch.Tensor)]
    most = max(dimensions, default=0)
    return [
        (name, [_layout_of(value, layout, least) for value in values])
        for name, (layout, least) in _LAYOUTS.items()
        if most >= least
    ]


def _layout_of(value: object, layout: Callable[[torch.Size], Layout], least: int) -> Layout | None:
    return layout(value.shape) if isinstance(value, torch.Tensor) and value.dim() >= least else None


def _steps(shape: Sequence[int]) -> tuple[int, ...]:
    """Contiguous strides."""
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))


def _padded(shape: torch.Size) -> Layout:
    return (*_steps((*shape[:-1], shape[-1] + _PADDING))[:-1], 1), 0


def _swapped(shape: torch.Size) -> Layout:
    steps = _steps((shape[1], shape[0], *shape[2:]))
    return (steps[1], steps[0], *steps[2:]), 0


#: By name: strides and offset for a shape, and the fewest dimensions for which they are others.
_LAYOUTS: dict[str, tuple[Callable[[torch.Size], Layout], int]] = {
    "misaligned": (lambda shape: (_steps(shape), 1), 1),
    "padded rows": (_padded, 2),
    "every second": (lambda shape: (tuple(2 * step for step in _steps(shape)), 0), 1),
    "expanded": (lambda shape: ((0, *_steps(shape)[1:]), 0), 2),
    "transposed": (lambda shape: (_steps(shape[::-1])[::-1], 0), 2),
    "leading dimensions swapped": (_swapped, 3),
}
