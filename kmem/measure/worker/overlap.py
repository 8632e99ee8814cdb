"""Where the outputs of one forward lie: in memory of their own, or in one another's.

Runs inside the worker, from a copy of this file, and is imported before any candidate, so that the
methods of torch that it uses are those of torch. Used on the judge's side too.
"""

from collections.abc import Sequence

import torch

_shape, _strides = torch.Tensor.shape.__get__, torch.Tensor.stride
_offset, _storage = torch.Tensor.storage_offset, torch.Tensor.untyped_storage
_element_bytes = torch.Tensor.element_size
#: Beyond these many elements two outputs that lie in one another's range are not compared place by
#: place.
_PLACES = 2**24


def overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements may lie in the same place; windows that do not nest count as such."""
    if 0 in shape:
        return False
    reach = 0
    for step, size in sorted(zip(strides, shape, strict=True)):
        if size == 1:
            continue
        if step <= reach:
            return True
        reach += (size - 1) * step
    return False


def describe_places(
    leaves: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> dict[str, object]:
    """The strides of outputs, and which of them share memory.

    Returns:
        `strides` and `overlapping` for each output, `sharing` as pairs of outputs that share an
        element, `of_inputs` as the outputs that lie in the memory of an input.
    """
    ranges = [_range(leaf) for leaf in leaves]
    given = {_storage(value).data_ptr() for value in inputs if value.numel()}
    sharing = [
        [one, two]
        for two in range(len(leaves))
        for one in range(two)
        if ranges[one][0] < ranges[two][1]
        and ranges[two][0] < ranges[one][1]
        and _share_an_element(leaves[one], leaves[two])
    ]
    return {
        "strides": [list(_strides(leaf)) for leaf in leaves],
        "overlapping": [overlaps_itself(_shape(leaf), _strides(leaf)) for leaf in leaves],
        "sharing": sharing,
        "of_inputs": [
            index
            for index, leaf in enumerate(leaves)
            if leaf.numel() and _storage(leaf).data_ptr() in given
        ],
    }


def _range(leaf: torch.Tensor) -> tuple[int, int]:
    """First and last byte + 1; an empty range for no elements."""
    if not leaf.numel():
        return 0, 0
    start = leaf.data_ptr()
    steps = zip(_shape(leaf), _strides(leaf), strict=True)
    span = 1 + sum((size - 1) * step for size, step in steps)
    return start, start + span * _element_bytes(leaf)


def _share_an_element(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two outputs whose ranges meet have a place in common; interleaved ones have not."""
    if one.data_ptr() == two.data_ptr():
        return True
    if one.numel() + two.numel() > _PLACES or _element_bytes(one) != _element_bytes(two):
        return False
    return bool(torch.isin(_places(one), _places(two)).any())


def _places(leaf: torch.Tensor) -> torch.Tensor:
    """The address of every element."""
    places = torch.full((1,), leaf.data_ptr())
    for size, step in zip(_shape(leaf), _strides(leaf), strict=True):
        moved = torch.arange(size) * step * _element_bytes(leaf)
        places = (places.unsqueeze(-1) + moved).reshape(-1)
    return places
