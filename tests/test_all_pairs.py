"""tests/all_pairs.py: every two values meet, in few cases."""

from itertools import combinations, product

import pytest
from all_pairs import all_pairs


@pytest.mark.parametrize("sizes", [(3,), (2, 3), (6, 5, 2), (3, 2, 2, 2), (2, 2, 2, 2, 2)])
def test_every_two_values_of_two_axes_meet(sizes: tuple[int, ...]) -> None:
    axes = [[f"{axis}{value}" for value in range(size)] for axis, size in enumerate(sizes)]
    cases = all_pairs(*axes)
    for one, other in combinations(range(len(axes)), 2):
        met = {(case[one], case[other]) for case in cases}
        assert met == set(product(axes[one], axes[other]))
    assert len(cases) == len(set(cases))


def test_few_cases_do() -> None:
    assert len(all_pairs(range(6), range(5), range(2))) == 30
    assert len(all_pairs(*[range(2)] * 10)) <= 14, "of 1,024"
