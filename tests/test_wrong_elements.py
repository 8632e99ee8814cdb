"""What the judge says of the elements of a refused output."""

import torch

from kmem.measure.oracle.answers.wrong_elements import wrong_elements


def test_the_first_wrong_elements_are_told_with_their_right_values() -> None:
    right = torch.arange(12, dtype=torch.float64).reshape(3, 4) + 1
    output = right.float()
    output[1, 2] = 0.0
    output[2, 0] = float("nan")
    assert wrong_elements(output, right, 1e-5) == (
        "2 of 12 elements (0.17) are wrong; the first: [1, 2] is 0, should be 7, [2, 0] is nan, "
        "should be 9"
    )


def test_infinities_in_their_places_and_rounding_are_not_wrong() -> None:
    right = torch.tensor([float("inf"), float("nan"), 1.0, 1e-9], dtype=torch.float64)
    assert wrong_elements(right.float() * (1 + 1e-6), right, 1e-5) == ""


def test_integers_are_compared_as_they_are() -> None:
    right = torch.tensor([[1, 2, 3]])
    assert wrong_elements(torch.tensor([[1, 5, 3]]), right, 0.0) == (
        "1 of 3 elements (0.33) are wrong; the first: [0, 1] is 5, should be 2"
    )
