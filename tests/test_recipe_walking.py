"""Programs of staged convolutions that keep the filter and walk over the tiles."""

import pytest
from compile_sm90 import compile_jobs
from test_recipe_convolution import H200, SPLIT, STAGED, problem

from kmem.codegen.convolutions.staged_operands import read_staged
from kmem.codegen.convolutions.walking_conv import programs_at_once
from kmem.recipes import Recipe
from kmem.records import Contract
from kmem.testing import check_recipe, trace_source


def walking(recipe: Recipe, source: str, programs: int) -> list[dict]:
    """One setting for each way of gathering taps and of laying the sums out, with so many
    programs.
    """
    _, graph = trace_source(source)
    sites = recipe.match(graph, Contract())
    found = {}
    for each in recipe.space(sites[0], H200).settings() if sites else ():
        if each.get("programs") and each.get("copies", "threads") == "threads":
            found.setdefault((each.get("gather"), each["sums_along"]), each)
    return [{**each, "programs": programs} for each in found.values()]


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("call", "shape", "result"),
    [  # strides, borders, dilations, ranks, a turned filter, a chain, a reduction, a norm, a bias
        ("Conv2d(3, 12, 3, 2, padding=1)", (3, 3, 17, 21), "y.relu() + self.scale"),
        ("Conv3d(3, 16, (3, 2, 3), 1, (1, 0, 1), (1, 2, 1))", (2, 3, 5, 8, 9), "y"),
        ("ConvTranspose2d(8, 6, (2, 3), padding=(1, 2))", (2, 8, 17, 16), "y"),
        ("Conv2d(8, 16, 3, bias=False)", (2, 8, 16, 17), "y.softmax(1)"),
        ("Conv1d(5, 64, 3, dilation=2)", (3, 5, 150), "y"),
    ],
)
def test_walking_programs_agree_with_torch(call: str, shape: tuple[int, ...], result: str) -> None:
    channels = int(call.split(",")[1])
    source = problem(call, shape, result=result, channels=channels)
    for recipe in (STAGED, SPLIT):
        chosen = walking(recipe, source, 2)
        along = {each["sums_along"] for each in chosen}
        assert along == ({"channels", "positions"} if ", 64," in call else {"channels"})
        check_recipe(recipe, source, H200, settings=chosen, tolerance=1e-6)


@pytest.mark.slow(after=2)
def test_a_norm_takes_its_statistics_from_tiles_of_walking_programs() -> None:
    source = problem("Conv2d(3, 8, 3)", (3, 3, 13, 14), result="self.norm(y)").replace(
        "super().__init__()", "super().__init__()\n        self.norm = nn.BatchNorm2d(8)"
    )
    check_recipe(SPLIT, source, H200, settings=walking(SPLIT, source, 2), tolerance=1e-5)


@pytest.mark.parametrize(
    "call",
    [
        "Conv2d(64, 128, 3)",  # many channels: a sum has many steps
        "Conv2d(8, 16, 3, groups=2)",
        "Conv2d(8, 16, 1)",  # no taps meet
    ],
)
def test_other_convolutions_are_offered_none(call: str) -> None:
    channels = int(call.split("(")[1].split(",")[0])
    _, graph = trace_source(problem(call, (1, channels, 18, 19)))
    for recipe in (STAGED, SPLIT):
        for site in recipe.match(graph, Contract()):
            space = recipe.space(site, H200)
            assert not any(
                each.get("programs") and each.get("copies", "threads") == "threads"
                for each in space.settings()
            )


def test_no_more_programs_walk_than_run_at_a_time_and_a_tile_has_all_channels() -> None:
    _, graph = trace_source(problem("Conv2d(8, 64, 3)", (16, 8, 130, 130)))
    (site,) = SPLIT.match(graph, Contract())
    offered = [each for each in SPLIT.space(site, H200).settings() if each["programs"]]
    assert {each["programs"] for each in offered} >= {H200.sm_count, 2 * H200.sm_count}
    for each in offered:
        assert each["block_co"] == 64
        knobs = read_staged(site.detail, each)
        if each.get("gather", "no") == "no":
            assert each["programs"] <= programs_at_once(site.detail, knobs, H200)


_SETTING = {"terms": 3, "block_co": 64, "block_k": 32, "copy_bytes": 16, "stages": 2}


@pytest.mark.slow
def test_the_next_image_is_loaded_while_a_tile_is_stored_and_nothing_spills() -> None:
    cases = [
        (tile, along, result)
        for tile in ((64, 4), (128, 8))
        for along in ("positions", "channels")
        for result in ("y", "F.gelu(y)")
    ]
    jobs = []
    for (block_p, warps), along, result in cases:
        source = problem("Conv2d(8, 64, 3)", (16, 8, 130, 130), result=result)
        source = "import torch.nn.functional as F\n" + source.replace("randn", "empty")
        setting = {**_SETTING, "block_p": block_p, "warps": warps, "sums_along": along}
        jobs.append(("split-half-conv", source, "match", {**setting, "programs": 132}))
    for case, kernels in zip(cases, compile_jobs(jobs, "ptx"), strict=True):
        main = kernels[-1]
        assert main["name"] == "kmem_walking_conv" and main["stack"] == 0, case
        assert main["async_copies"] > 0 and main["hgmma"] > 0, case
        assert main["registers"] <= 250 and main["shared"] <= 232448, case
        # copies begin before the loop and in it: those of the next tile
        first, *others = main["ptx"].split("cp.async.commit_group")
        assert others and "wgmma.mma_async" in "".join(others[:-1]), case
