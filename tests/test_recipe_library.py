"""skills/channels-last-conv: library calls as labelled candidates."""

from pathlib import Path

import pytest

from kmem.devices import named_target
from kmem.measure.source_check import check_source
from kmem.records import Contract, Purity
from kmem.skills import load_recipe, load_skill
from kmem.testing import check_recipe, emit_source, trace_source

RECIPE = load_recipe(
    load_skill(Path(__file__).resolve().parent.parent / "skills" / "channels-last-conv")
)
H200 = named_target("h200")


def problem(call: str, shape: tuple[int, ...], dtype: str = "float32") -> str:
    return (
        "import torch, torch.nn as nn\nclass Model(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n"
        f"        self.op = nn.{call[:-1]}, dtype=torch.{dtype})\n    def forward(self, x):\n"
        f"        return torch.relu(self.op(x))\n"
        f"def get_inputs():\n    return [torch.randn({shape}).to(torch.{dtype})]\n"
    )


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        ("Conv1d(6, 8, 3, 2, 1, 2)", (2, 6, 21)),
        ("Conv2d(6, 8, (3, 2), groups=2, bias=False)", (1, 6, 7, 8)),
        ("Conv2d(6, 8, 3, padding='same')", (1, 6, 7, 8)),
        ("Conv3d(3, 8, 3, padding=1)", (1, 3, 4, 5, 6)),
    ],
)
def test_every_setting_agrees_with_torch(call: str, shape: tuple[int, ...]) -> None:
    check_recipe(RECIPE, problem(call, shape), H200, tolerance=1e-6)


def test_a_library_candidate_is_labelled_and_passes_the_source_check() -> None:
    source = problem("Conv2d(6, 8, 3)", (1, 6, 7, 8))
    _, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    assert site.flags == ("library",) and site.nodes == ("conv2d",)
    for setting in RECIPE.space(site, H200).settings():
        assert (
            check_source(
                emit_source(source, graph, [(RECIPE, site, setting)]), problem_source=source
            )
            == []
        )


def test_what_eager_does_anyway_is_no_candidate() -> None:
    _, graph = trace_source(problem("Conv2d(6, 8, 3)", (1, 6, 7, 8)))
    (site,) = RECIPE.match(graph, Contract())
    assert {"layout": "contiguous", "algorithm": "guessed"} not in RECIPE.space(
        site, H200
    ).settings()


def test_pure_triton_leaves_no_room_for_it() -> None:
    _, graph = trace_source(problem("Conv2d(6, 8, 3)", (1, 6, 7, 8)))
    assert RECIPE.match(graph, Contract(purity=Purity.TRITON)) == []


def test_padding_that_differs_between_the_ends_is_not_matched() -> None:
    _, graph = trace_source(problem("Conv2d(6, 8, 2, padding='same')", (1, 6, 7, 8)))
    assert RECIPE.match(graph, Contract()) == []
