"""Reductions over all positions of an image behind a convolution: its tiles leave parts."""

import pytest
import torch
from compile_sm90 import compile_jobs
from module_problems import recipe
from test_recipe_convolution import DIRECT, H200, RECIPES, SPLIT, STAGED, problem

from kmem.codegen.convolutions.convolution import Convolution
from kmem.recipes import Recipe
from kmem.records import Contract
from kmem.testing import check_recipe, emit_source, import_source, trace_source

#: What is made of y, and what it is reduced by; positions that are no multiple of a tile or part.
REDUCED = {
    "a mean with a chain on both sides": "torch.relu(y + self.scale).mean((2, 3)) * 3.0 - 1.0",
    "a pooling to one": "nn.functional.adaptive_avg_pool2d(y.sigmoid(), 1)",
    "a pooling that is flattened": "nn.functional.adaptive_avg_pool2d(y, 1).flatten(1)",
    "a sum that keeps its axes": "y.sum((2, 3), keepdim=True)",
    "a maximum": "torch.amax(y * 2.0, (2, 3))",
    "a logsumexp": "torch.logsumexp(y, (2, 3))",
    "an image seen as lines": "y.relu().flatten(2).view(2, 64, -1).mean(-1)",
    "a place": "y.flatten(2).argmax(-1)",
    "a product": "y.sigmoid().flatten(2).prod(-1)",
    "a mean that others scale": "y.mean((2, 3)) * self.scale.view(-1)",
}


def offered(recipe: Recipe, source: str) -> tuple[Convolution, list[dict]]:
    """The site's convolution, and settings: one for each tile and way of walking and of laying sums
    out.
    """
    _, graph = trace_source(source)
    (site,) = recipe.match(graph, Contract())
    found: dict[tuple, dict] = {}
    for each in recipe.space(site, H200).settings():
        way = bool(each.get("programs")), each.get("sums_along"), each.get("taps"), each["block_p"]
        found.setdefault(way, each)
    return site.detail, [
        {**each, "programs": 2} if each.get("programs") else each for each in found.values()
    ]


@pytest.mark.slow(after=4)
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("reduced", REDUCED)
def test_an_image_that_is_reduced_is_never_written(name: str, reduced: str) -> None:
    source = problem("Conv2d(8, 64, 3)", (2, 8, 9, 16), result=REDUCED[reduced], channels=64)
    detail, chosen = offered(RECIPES[name], source)
    chosen = chosen if reduced == "a maximum" else chosen[:: max(1, len(chosen) // 3)][:3]
    assert detail.finish is not None and detail.finish.columns == 7 * 14
    assert all(axis == 1 for axis in detail.out.shape[2:]) and detail.out.numel == 128
    check_recipe(RECIPES[name], source, H200, settings=chosen, tolerance=2e-6)


@pytest.mark.parametrize(
    ("call", "shape", "result"),
    [
        ("Conv1d(8, 12, 3)", (2, 8, 40), "y.mean(2)"),
        ("Conv3d(8, 12, 2)", (2, 8, 3, 5, 6), "y.mean((2, 3, 4)).relu()"),
        ("ConvTranspose2d(8, 12, 3)", (2, 8, 5, 6), "y.mean((2, 3))"),
        ("Conv2d(16, 32, 3, 2, groups=2)", (2, 16, 13, 12), "y.mean((2, 3))"),
        ("Conv2d(8, 12, 1)", (2, 8, 2, 2), "y.mean((2, 3))"),
    ],
)
def test_ranks_groups_and_few_positions(call: str, shape: tuple[int, ...], result: str) -> None:
    source = problem(call, shape, result=result, channels=12)
    detail, chosen = offered(SPLIT, source)
    assert detail.finish is not None
    check_recipe(SPLIT, source, H200, settings=chosen, tolerance=2e-6)


@pytest.mark.parametrize("keepdim", [True, False])
def test_eager_is_expected_to_be_as_exact_whatever_becomes_of_the_image(keepdim: bool) -> None:
    source = problem("Conv2d(8, 64, 3)", (2, 8, 9, 16), result=f"y.mean((2, 3), keepdim={keepdim})")
    for each in RECIPES.values():
        detail, _ = offered(each, source)
        assert detail.finish is not None and detail.is_eager_exact


@pytest.mark.parametrize(
    "result",
    [
        "F.linear(x, self.w).unflatten(0, (2, 3)).flatten(0, 1).relu().sum(1)",
        "F.linear(x, self.w).view(6, 1, 40).view(6, 40).logsumexp(1)",
        "F.linear(x, self.w).view(2, 3, 40).argmax(2)",
        "F.linear(x, self.w).sum(1) * self.w[:6, 0]",
    ],
)
def test_rows_of_products_are_seen_through_views_and_leave_what_follows(result: str) -> None:
    source = (
        "import torch\nimport torch.nn.functional as F\nclass Model(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.w = torch.nn.Parameter(torch.randn(40, 24))\n"
        f"    def forward(self, x):\n        return {result}\n"
        "def get_inputs():\n    return [torch.randn(6, 24)]\n"
    )
    reduce = recipe("reduce-after-gemm")
    _, graph = trace_source(source)
    (site,) = reduce.match(graph, Contract())
    assert site.detail.finish is not None
    check_recipe(reduce, source, H200, settings=reduce.space(site, H200).settings()[:1])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype: str) -> None:
    source = problem("Conv2d(16, 8, 3)", (2, 16, 9, 10), dtype, "y.relu().mean((2, 3))")
    for each in (STAGED, DIRECT):
        detail, chosen = offered(each, source)
        assert detail.finish is not None
        tolerance = 8e-3 if dtype == "bfloat16" else 1e-3
        check_recipe(each, source, H200, settings=chosen[:1], tolerance=tolerance)


@pytest.mark.parametrize(
    "result",
    [
        "y - y.mean((2, 3), keepdim=True)",  # the image is read again
        "y.mean((2, 3)), y",  # and is a result
        "y.mean(2)",  # lines are left
        "y.var((2, 3))",  # moments
    ],
)
def test_other_reductions_are_left_to_their_own_kernels(result: str) -> None:
    _, graph = trace_source(problem("Conv2d(8, 8, 3)", (2, 8, 9, 10), result=result))
    for each in RECIPES.values():
        assert all(site.detail.finish is None for site in each.match(graph, Contract()))


def test_values_that_are_not_finite_reach_the_means_they_reach_in_torch() -> None:
    source = problem("Conv2d(8, 64, 3)", (3, 8, 9, 16), result="y.mean((2, 3))", channels=64)
    _, chosen = offered(SPLIT, source)
    module, graph = trace_source(source)
    (site,) = SPLIT.match(graph, Contract())
    torch.manual_seed(2)
    (x,) = module.get_inputs()
    x[0, 3, 4, 5], x[1, 0, 8, 15] = float("inf"), float("nan")
    model = module.Model()
    expected = model(x)
    for setting in chosen:
        emitted = import_source(emit_source(source, graph, [(SPLIT, site, setting)]))
        candidate = emitted.ModelNew()
        candidate.load_state_dict(model.state_dict())
        with torch.no_grad():  # else the reference operators would run
            found = candidate(x)
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.slow
def test_tiles_that_leave_parts_spill_nothing_and_write_no_image() -> None:
    source = problem("Conv2d(8, 64, 3)", (16, 8, 130, 130), result="y.relu().mean((2, 3))")
    source = source.replace("randn", "empty")
    setting = {"terms": 3, "block_co": 64, "block_k": 16, "copy_bytes": 16, "stages": 3}
    jobs = []
    for along in ("positions", "channels"):
        for block_p, programs in ((64, 264), (64, 0), (128, 132)):
            warps = 8 if block_p == 128 else 4
            given = {**setting, "block_p": block_p, "warps": warps, "programs": programs}
            jobs.append(("split-half-conv", source, "match", {**given, "sums_along": along}))
    for job, kernels in zip(jobs, compile_jobs(jobs), strict=True):
        *_, main, last = kernels
        assert main["name"] in ("kmem_walking_conv", "kmem_staged_conv"), job[3]
        assert last["name"] == "kmem_finish_rows" and main["hgmma"] > 0, job[3]
        assert main["stack"] == last["stack"] == 0, job[3]
