"""Rows that are given another shape: what stands on either side of a view is one region."""

import pytest
from module_problems import recipe

from kmem.codegen.regions.matching import find_row_regions
from kmem.codegen.regions.space import RowSpace
from kmem.devices import named_target
from kmem.problem.graph import OpGraph
from kmem.records import Contract, TensorSpec
from kmem.testing import check_recipe, trace_source

H200 = named_target("h200")
SOFTMAX, NORM = recipe("online-softmax"), recipe("row-norm")


def problem(body: str, shape: tuple[int, ...] = (2, 6, 4, 5, 6)) -> str:
    """A module with parameters of every way to broadcast to images."""
    c, *image = shape[1:]
    return (
        "import torch\nimport torch.nn.functional as F\nclass Model(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        f"        ones = (1,) * {len(image)}\n"
        f"        self.channel = torch.nn.Parameter(torch.randn(1, {c}, *ones))\n"
        f"        self.whole = torch.nn.Parameter(torch.randn(1, *{shape[1:]}))\n"
        f"        self.place = torch.nn.Parameter(torch.randn{tuple(image)})\n"
        f"        self.line = torch.nn.Parameter(torch.randn({image[-1]}))\n"
        f"        self.turned = torch.nn.Parameter(torch.randn{tuple(reversed(image))})\n"
        "    def forward(self, x):\n"
        "        b, c = x.shape[:2]\n        image = x.shape[2:]\n"
        f"        {body}\n"
        f"def get_inputs():\n    return [torch.randn{shape}]\n"
    )


ROWS = "torch.softmax(x.reshape(b, c, -1), 2)"
WHOLE = {
    "scaled by channel": f"return {ROWS}.view(b, c, *image) * self.channel",
    "and by place": f"return ({ROWS}.view(x.shape) * self.channel + self.whole).relu()",
    "by a place of every image": f"return {ROWS}.view(x.shape) * self.place",
    "before and behind": "y = torch.softmax((x * self.channel - self.place).view(b, c, -1), 2)\n"
    "        return y.view(x.shape) * self.whole + x",
    "there and back": f"return ({ROWS}.view(x.shape) * self.channel).view(b, c, -1) + 1.0",
    "another shape": f"return {ROWS}.view(b * c, *image).sigmoid()",
    "a mask of the image": f"return {ROWS}.view(x.shape).masked_fill(self.place > 0, 0.0)",
}
PART = {
    "by a line, of which a row has many": f"return {ROWS}.view(x.shape) * self.line",
    "by what lies otherwise": f"return {ROWS}.view(x.shape) * self.turned.permute(2, 1, 0)",
    "nothing but a view": f"return {ROWS}.view(x.shape)",
    "turned": f"return {ROWS}.view(x.shape).transpose(2, 3) * 2.0",
}


def regions_of(source: str) -> tuple[OpGraph, list]:
    _, graph = trace_source(source)
    return graph, find_row_regions(graph)


@pytest.mark.parametrize("case", WHOLE)
def test_what_stands_behind_a_view_of_rows_is_written_with_them(case: str) -> None:
    source = problem(WHOLE[case])
    graph, (region,) = regions_of(source)
    left = {node.name for node in graph.nodes} - {*region.nodes}
    assert all("view" in name or name.startswith(("gt", "reshape")) for name in left)
    (site,) = SOFTMAX.match(graph, Contract())
    chosen = SOFTMAX.space(site, H200).settings()
    check_recipe(SOFTMAX, source, H200, settings=chosen[:: max(1, len(chosen) // 3)][:3])


def test_a_kernel_is_the_same_at_every_size() -> None:
    """So that one at small sizes proves the one that ships."""
    twice = WHOLE["before and behind"].replace("y.view(x.shape)", "y.view(x.shape) * self.channel")
    written = []
    for shape in ((2, 6, 4, 5, 6), (3, 5, 2, 3, 4)):
        _, graph = trace_source(problem(twice, shape))
        (site,) = SOFTMAX.match(graph, Contract())
        setting = {**SOFTMAX.space(site, H200).settings()[0], "BK": 1, "BR": 128}
        written.append(SOFTMAX.emit(site, setting).kernels)
    assert written[0] == written[1]


@pytest.mark.parametrize("case", PART)
def test_what_has_no_single_step_along_a_row_stays_outside(case: str) -> None:
    _, (region,) = regions_of(problem(PART[case]))
    assert region.nodes[-1] == "softmax"


def test_a_norm_that_is_written_out_over_flat_images_takes_its_scale() -> None:
    body = (
        "y = x.view(b, -1)\n"
        "        y = (y - y.mean(1, keepdim=True)) * torch.rsqrt(y.var(1, keepdim=True) + 1e-5)\n"
        "        return y.view(x.shape) * self.whole + 1.0"
    )
    source = problem(body)
    graph, (region,) = regions_of(source)
    assert {"mul_1", "add_1"} < {*region.nodes}
    (site,) = NORM.match(graph, Contract())
    chosen = NORM.space(site, H200).settings()
    check_recipe(NORM, source, H200, settings=chosen[:: max(1, len(chosen) // 3)][:3])


def test_an_operand_is_unfolded_where_it_steps_as_along_one_dimension() -> None:
    space = RowSpace((4, 6, 20), (2,))

    def unfolded(
        shape: tuple[int, ...], stride: tuple[int, ...], folded: tuple[int, ...]
    ) -> object:
        found = space.unfolded(TensorSpec(shape, "float32", stride), folded)
        return None if found is None else found.stride

    assert unfolded((4, 6, 4, 5), (120, 20, 5, 1), (4, 6, 4, 5)) == (120, 20, 1)
    assert unfolded((1, 6, 1, 1), (6, 1, 1, 1), (4, 6, 4, 5)) == (0, 1, 0)
    assert unfolded((6, 4, 5), (20, 5, 1), (4, 6, 4, 5)) == (0, 20, 1)
    assert unfolded((24, 20), (20, 1), (24, 20)) == (120, 20, 1)  # a dimension is parted
    assert unfolded((2, 2, 120), (240, 120, 1), (2, 2, 120)) == (120, 20, 1)
    assert unfolded((24, 1), (1, 1), (24, 20)) == (6, 1, 0)
    assert unfolded((5,), (1,), (4, 6, 4, 5)) is None  # again and again in a row
    assert unfolded((4, 1), (1, 1), (4, 6, 4, 5)) is None
    assert unfolded((4, 6, 4, 5), (120, 20, 1, 4), (4, 6, 4, 5)) is None  # turned
    assert unfolded((16, 30), (30, 1), (16, 30)) == (120, 20, 1)  # cut across, but dense
    assert unfolded((16, 1), (1, 1), (16, 30)) is None
    assert unfolded((2, 6, 20), (120, 20, 1), (4, 6, 20)) is None  # no broadcast
    assert unfolded((), (), (4, 6, 4, 5)) == (0, 0, 0)
