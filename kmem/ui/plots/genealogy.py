"""The tree of a run's kernels: which was made from which, drawn as lines of text are.

The tree is flat: one line for each kernel with the strokes in front of it, so that a long chain of
descent needs no depth of templates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kmem.records import Attempt

#: Strokes of deeper generations are cut off at the left.
_DEEPEST = 24


@dataclass(frozen=True, slots=True)
class Branch:
    """A kernel of the tree, with the strokes that join it to the one it was made from."""

    number: int
    strokes: str
    attempt: Attempt

    @property
    def kernel(self) -> str:
        return self.attempt.candidate.kernel.hash


@dataclass(frozen=True, slots=True)
class _Place:
    """A kernel that is to be drawn: the strokes before it, and those before its children."""

    number: int
    strokes: str
    below: str

    def child(self, number: int, *, last: bool) -> "_Place":
        """The place of a kernel made from this one; the last has no line below it."""
        if last:
            return _Place(number, f"{self.below}└─ ", f"{self.below}   ")
        return _Place(number, f"{self.below}├─ ", f"{self.below}│  ")


def choose_kin(attempts: Sequence[Attempt], most: int) -> Sequence[Attempt]:
    """Of many attempts the fastest, each with all that it was made from, in their order.

    Args:
        most: about how many; a line of descent is not cut.
    """
    if len(attempts) <= most:
        return attempts
    by_kernel = {attempt.candidate.kernel.hash: attempt for attempt in reversed(attempts)}
    ranked = sorted(
        by_kernel.values(),
        key=lambda attempt: (
            attempt.measurement.latency_ms is None,
            attempt.measurement.latency_ms or 0.0,
        ),
    )
    chosen: set[str] = set()
    for attempt in ranked:
        if len(chosen) >= most:
            break
        kernel: str | None = attempt.candidate.kernel.hash
        while kernel in by_kernel and kernel not in chosen:
            chosen.add(kernel)
            kernel = by_kernel[kernel].candidate.kernel.parent
    return [attempt for attempt in attempts if attempt.candidate.kernel.hash in chosen]


def grow_tree(attempts: Sequence[Attempt]) -> list[Branch]:
    """Every kernel once, under the one it was made from, in the order in which they were tried.

    A kernel whose parent was no attempt of this run is a root.
    """
    first: dict[str, int] = {}
    for number, attempt in enumerate(attempts, 1):
        first.setdefault(attempt.candidate.kernel.hash, number)
    children: dict[str | None, list[int]] = {}
    for kernel, number in first.items():
        parent = attempts[number - 1].candidate.kernel.parent
        known = parent if parent in first and parent != kernel else None
        children.setdefault(known, []).append(number)
    return _walk(attempts, children)


def _walk(
    attempts: Sequence[Attempt], children: Mapping[str | None, Sequence[int]]
) -> list[Branch]:
    branches: list[Branch] = []
    left = [_Place(number, "", "") for number in reversed(children.get(None, ()))]
    while left:
        place = left.pop()
        strokes = place.strokes[-3 * _DEEPEST :]
        branches.append(Branch(place.number, strokes, attempts[place.number - 1]))
        own = children.get(branches[-1].kernel, ())
        left += [place.child(child, last=child == own[-1]) for child in reversed(own)]
    return branches
