"""Large inputs are drawn where they will lie, with the numbers they would have anywhere else."""

import pytest
import torch

from kmem.measure.oracle.inputs.drawing import draw_into

CPU = torch.device("cpu")
ROWS, COLUMNS = 6, 6


def plain(make, seed: int) -> list[object]:
    torch.manual_seed(seed)
    return make()


def swapped() -> list[torch.Tensor]:
    second = torch.rand(ROWS, COLUMNS)
    return [torch.rand(ROWS, COLUMNS), second]


def transposed() -> list[torch.Tensor]:
    return [torch.rand(ROWS, COLUMNS).t(), torch.randn((ROWS, COLUMNS))]


def doubled() -> list[torch.Tensor]:
    return [torch.rand(ROWS, COLUMNS) * 2, torch.randn(ROWS, COLUMNS)]


def twice() -> list[torch.Tensor]:
    value = torch.randn(ROWS, COLUMNS)
    return [value, value]


@pytest.mark.parametrize("make", [swapped, transposed, doubled, twice])
def test_places_hold_what_a_plain_draw_gives(make) -> None:
    places = [torch.zeros(ROWS, COLUMNS), torch.zeros(ROWS, COLUMNS)]
    for place, value in zip(places, draw_into(places, make, seed=3, device=CPU), strict=True):
        place.copy_(value)
    for place, value in zip(places, plain(make, 3), strict=True):
        assert torch.equal(place, value)


def test_a_value_that_is_returned_as_drawn_lies_in_its_place_already() -> None:
    places = [torch.zeros(ROWS, COLUMNS), 5, torch.zeros(COLUMNS)]

    def make() -> list[object]:
        with torch.device("cpu"):
            return [torch.rand(ROWS, COLUMNS), 5, torch.randn([COLUMNS], dtype=torch.float32)]

    values = draw_into(places, make, seed=1, device=CPU)
    assert values[0] is places[0] and values[2] is places[2]


@pytest.mark.parametrize(
    "place",
    [
        torch.zeros(ROWS, COLUMNS, dtype=torch.bfloat16),
        torch.zeros(COLUMNS, ROWS + 1),
        torch.zeros(ROWS, 2 * COLUMNS)[:, ::2],
    ],
)
def test_a_place_of_another_kind_is_left_alone(place: torch.Tensor) -> None:
    draw_into([place], lambda: [torch.rand(ROWS, COLUMNS)], seed=1, device=CPU)
    assert not place.any()
