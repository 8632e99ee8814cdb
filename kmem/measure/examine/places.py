"""Whether outputs lie in memory of their own, laid out as the module's."""

from collections.abc import Mapping, Sequence

from kmem.measure.examine.examination import Refused
from kmem.measure.oracle.answers.answer import Answer
from kmem.measure.worker.overlap import overlaps_itself
from kmem.records import Status


def check_places(places: Mapping[str, list], wanted: Answer, *, same_layout: bool) -> None:
    """Hold the memory that outputs lie in to the reference's.

    Args:
        places: as worker/overlap.py describes them.
        same_layout: whether the inputs have the strides that the problem gives them; others may
            lead to other strides of outputs.

    Raises Refused.
    """
    for index, (strides, overlaps, right) in enumerate(
        zip(places["strides"], places["overlapping"], wanted.layouts, strict=True)
    ):
        if overlaps and not overlaps_itself(right.shape, right.stride()):
            raise Refused(
                Status.WRONG_CONTRACT,
                f"output {index} has elements that lie in one another's memory (strides "
                f"{tuple(strides)}); the module writes every element",
            )
        if same_layout and right.is_contiguous() and not _is_row_major(right.shape, strides):
            raise Refused(
                Status.WRONG_CONTRACT,
                f"output {index} has strides {tuple(strides)}, the module's are "
                f"{right.stride()}; return it contiguous",
            )
    for one, two in places["sharing"]:
        if not wanted.shares_outputs:
            raise Refused(
                Status.WRONG_CONTRACT, f"outputs {one} and {two} share memory; the module's do not"
            )
    if places["of_inputs"] and not wanted.aliases_inputs:
        raise Refused(
            Status.WRONG_CONTRACT,
            f"output {places['of_inputs'][0]} lies in the memory of an input, the module's does "
            f"not; return a copy",
        )


def _is_row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether strides fall from the first dimension to the last, with or without gaps."""
    steps = [step for size, step in zip(shape, strides, strict=True) if size > 1]
    return steps == sorted(steps, reverse=True)
