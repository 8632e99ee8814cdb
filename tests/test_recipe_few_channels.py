"""Few channels: taps staged beside them, and taps that share a step of the direct kernel."""

import pytest
import torch
from compile_sm90 import compile_jobs
from test_recipe_convolution import DIRECT, H200, SPLIT, STAGED, problem, run_at

from kmem.codegen.convolutions.convolution import find_convolutions
from kmem.codegen.convolutions.gathered_taps import gather_choices, gather_taps
from kmem.codegen.convolutions.staged_operands import contraction, staged_channels, staged_sizes
from kmem.recipes import Recipe
from kmem.records import Contract
from kmem.testing import check_recipe, trace_source

#: Strides, borders, dilations, groups, ranks, a turned filter.
WINDOWS = [
    ("Conv2d(3, 8, 3, padding=1)", (2, 3, 7, 9)),
    ("Conv2d(3, 20, (5, 3), (2, 3), (1, 2), (1, 2))", (2, 3, 11, 13)),
    ("Conv3d(3, 8, (3, 2, 3), padding=(1, 0, 1))", (1, 3, 5, 4, 6)),
    ("ConvTranspose2d(5, 6, (2, 3), padding=(1, 2))", (2, 5, 7, 6)),
    ("Conv1d(6, 8, 4, 2, groups=2)", (2, 6, 21)),
    ("Conv2d(9, 8, (1, 3), padding=(0, 1))", (1, 9, 5, 6)),
]


def settings_of(recipe: Recipe, source: str, **wanted: str) -> list[dict]:
    """The first and the last legal setting with these values; none if there is no site."""
    _, graph = trace_source(source)
    sites = recipe.match(graph, Contract())
    every = recipe.space(sites[0], H200).settings() if sites else []
    found = [each for each in every if wanted.items() <= each.items()]
    return [found[0], found[-1]] if found else []


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(("call", "shape"), WINDOWS)
def test_gathered_taps_agree_with_torch(call: str, shape: tuple[int, ...]) -> None:
    source = problem(call, shape, result="y.relu() * 2")
    _, graph = trace_source(source)
    (site,) = find_convolutions(graph)
    choices = gather_choices(site.detail)
    assert choices[0] == "no" and "window" in choices
    for recipe in (STAGED, SPLIT):
        for gather in choices[1:]:
            chosen = settings_of(recipe, source, gather=gather)
            assert chosen or (recipe is STAGED and "groups=2" in call)
            if chosen:
                check_recipe(recipe, source, H200, settings=chosen, tolerance=1e-6)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(("call", "shape"), [case for case in WINDOWS if "groups" not in case[0]])
def test_packed_taps_agree_with_torch(call: str, shape: tuple[int, ...]) -> None:
    source = problem(call, shape, result="y.relu() * 2")
    chosen = settings_of(DIRECT, source, taps="packed")
    check_recipe(DIRECT, source, H200, settings=chosen, tolerance=1e-6)


@pytest.mark.parametrize("recipe", [STAGED, DIRECT], ids=["gathered", "packed"])
def test_half_precision_of_few_channels_is_rounded_once(recipe: Recipe) -> None:
    source = problem("Conv2d(6, 8, 3, groups=2)", (1, 6, 5, 6), "float16")
    wanted = {"gather": "window"} if recipe is STAGED else {"taps": "packed"}
    chosen = settings_of(recipe, source, **wanted)
    check_recipe(recipe, source, H200, settings=chosen[:1], tolerance=1e-3)


@pytest.mark.parametrize(
    ("recipe", "wanted"),
    [(STAGED, {"gather": "row"}), (SPLIT, {"gather": "window"}), (DIRECT, {"taps": "packed"})],
    ids=["row", "window", "packed"],
)
def test_values_that_are_not_finite_reach_what_they_reach_in_torch(
    recipe: Recipe, wanted: dict[str, str]
) -> None:
    source = problem("Conv2d(3, 8, 3, padding=1)", (1, 3, 7, 7))
    x = torch.randn(1, 3, 7, 7)
    x[0, 1, 0, 0] = float("inf")
    x[0, 2, 6, 3] = float("nan")
    (setting, _) = settings_of(recipe, source, **wanted)
    found, model = run_at(recipe, source, setting, x)
    with torch.no_grad():
        expected = model.op(x)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isinf(), expected.isinf())


def test_a_pooling_and_a_reduction_behind_gathered_taps_are_written_with_them() -> None:
    for result in ("torch.max_pool2d(y, 2)", "y.softmax(1)"):
        source = problem("Conv2d(3, 8, 3)", (1, 3, 9, 11), result=result)
        chosen = settings_of(SPLIT, source, gather="row")[:1]
        check_recipe(SPLIT, source, H200, settings=chosen, tolerance=1e-6)


def test_gathering_fills_the_steps_and_grows_what_is_staged() -> None:
    _, graph = trace_source(problem("Conv2d(3, 64, 7, 2, 3)", (1, 3, 32, 32)))
    (site,) = find_convolutions(graph)
    found = {}
    for gather in ("no", "row", "window"):
        detail = gather_taps(site.detail, gather)
        staged = staged_sizes(detail)
        elements = staged[1] * staged[2] * staged_channels(detail)
        found[gather] = (contraction(detail, 16), elements)
        assert detail.positions == site.detail.positions
    assert found["no"] == (208, 37 * 37 * 4)  # 147 products of use
    assert found["row"] == (176, 37 * 16 * 24)
    assert found["window"] == (160, 16 * 16 * 152)


def test_many_channels_and_single_taps_offer_no_such_knob() -> None:
    for call, channels in (("Conv2d(32, 8, 3)", 32), ("Conv2d(3, 8, 1)", 3)):
        _, graph = trace_source(problem(call, (1, channels, 5, 6)))
        for recipe in (STAGED, SPLIT, DIRECT):
            for site in recipe.match(graph, Contract()):
                assert not {"gather", "taps"} & set(recipe.space(site, H200).knobs)


@pytest.mark.parametrize(
    "call", ["Conv3d(3, 128, 3)", "Conv2d(8, 128, 3)", "Conv2d(2, 256, 3)", "Conv1d(7, 16, 2)"]
)
def test_settings_without_the_knob_are_settings_still_and_none_is_empty(call: str) -> None:
    rank = int(call[4])
    channels = int(call.split("(")[1].split(",")[0])
    _, graph = trace_source(problem(call, (1, channels, *(9,) * rank)))
    for recipe, knob, unnamed in ((STAGED, "gather", "no"), (DIRECT, "taps", "apart")):
        (site,) = recipe.match(graph, Contract())
        space = recipe.space(site, H200)
        assert space.settings()
        old = next((each for each in space.settings() if each[knob] == unnamed), None)
        if old is not None:
            known = {name: value for name, value in old.items() if name != knob}
            assert space.completed(known) == old and space.allows(space.completed(known))


#: (skill, call, shape, dtype, settings): 50, 54 and the first layer of a network.
_STAGED = {"terms": 1, "copy_bytes": 16, "warps": 8, "stages": 3, "sums_along": "positions"}
COMPILED = {
    "row": (
        "staged-half-conv",
        "Conv2d(3, 96, 11, 4, 2)",
        (256, 3, 224, 224),
        {**_STAGED, "block_p": 128, "block_co": 128, "block_k": 64, "gather": "row"},
    ),
    "window": (
        "staged-half-conv",
        "Conv2d(3, 64, 3, padding=1)",
        (64, 3, 224, 224),
        {**_STAGED, "block_p": 128, "block_co": 64, "block_k": 32, "warps": 4, "gather": "window"},
    ),
    "three terms": (
        "split-half-conv",
        "Conv3d(3, 64, 3, bias=False)",
        (16, 3, 64, 64, 64),
        {
            **_STAGED,
            "terms": 3,
            "block_p": 128,
            "block_co": 64,
            "block_k": 32,
            "warps": 4,
            "sums_along": "channels",
            "gather": "row",
        },
    ),
    "packed": (
        "implicit-gemm-conv",
        "Conv2d(3, 64, 3, padding=1)",
        (64, 3, 224, 224),
        {"block_p": 128, "block_co": 64, "block_k": 16, "taps": "packed"},
    ),
    "packed, eager exact": (
        "implicit-gemm-conv",
        "Conv3d(3, 64, 3, bias=False)",
        (16, 3, 64, 64, 64),
        {"block_p": 128, "block_co": 32, "block_k": 32, "taps": "packed"},
    ),
}


@pytest.mark.slow
def test_kernels_of_few_channels_do_not_spill() -> None:
    jobs = [
        (skill, problem(call, shape).replace("randn", "empty"), "match", setting)
        for skill, call, shape, setting in COMPILED.values()
    ]
    for case, kernels in zip(COMPILED, compile_jobs(jobs), strict=True):
        assert [kernel["name"] for kernel in kernels if kernel["stack"]] == [], case
        names = {kernel["name"] for kernel in kernels}
        assert ("kmem_stage_taps" in names) == ("packed" not in case)
        assert kernels[-1]["hgmma"] > 0 or case == "packed, eager exact"
