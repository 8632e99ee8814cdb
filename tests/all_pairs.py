"""Cases in which every two values meet, in place of every combination of all values.

Most faults show where two circumstances meet; a product of four axes repeats each pair dozens of
times. Source: Kuhn, Wallace and Gallo, "Software fault interactions and implications for software
testing", IEEE Transactions on Software Engineering 30(6), 2004.
"""

from collections.abc import Sequence
from itertools import combinations, product


def all_pairs(*axes: Sequence[object]) -> list[tuple[object, ...]]:
    """Combinations of one value of each axis, so that any two values of two axes meet in one.

    They are the same each time: of those that bring most new pairs, the first in the product.
    """
    places = [range(len(axis)) for axis in axes]
    unseen = {
        ((one, first), (other, second))
        for one, other in combinations(range(len(axes)), 2)
        for first in places[one]
        for second in places[other]
    }
    left, chosen = list(product(*places)), []
    while unseen:
        best = max(left, key=lambda case: len(unseen & _pairs_of(case)))
        unseen -= _pairs_of(best)
        left.remove(best)
        chosen.append(best)
    return [tuple(axis[place] for axis, place in zip(axes, case, strict=True)) for case in chosen]


def _pairs_of(case: Sequence[int]) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    return set(combinations(enumerate(case), 2))
