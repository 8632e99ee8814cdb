"""Staged operands that the hardware copies as boxes, and programs that walk over the tiles."""

import math

import pytest
from compile_sm90 import compile_jobs
from test_recipe_convolution import H200, SPLIT, STAGED, problem

from kmem.codegen.convolutions.boxed_conv import box_programs, box_tiles
from kmem.codegen.convolutions.staged_operands import read_staged
from kmem.devices import named_target
from kmem.measure.source_check import check_source
from kmem.recipes import Recipe
from kmem.records import Contract
from kmem.testing import check_recipe, emit_source, trace_source


def boxed(recipe: Recipe, source: str, programs: int) -> list[dict]:
    """The first and the last setting with boxes and so many programs; none if there is no site."""
    _, graph = trace_source(source)
    sites = recipe.match(graph, Contract())
    every = recipe.space(sites[0], H200).settings() if sites else []
    found = [each for each in every if each.get("copies") == "boxes" and each["programs"] == 0]
    return [{**each, "programs": programs} for each in (found[:1] + found[-1:])]


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("call", "shape", "result"),
    [  # borders, dilations, ranks, groups, a turned filter, a reduction over channels
        ("Conv2d(16, 24, 3, padding=1)", (2, 16, 7, 9), "y.relu() + self.scale"),
        ("Conv3d(16, 8, (3, 2, 3), 1, (1, 0, 1), (1, 2, 1))", (2, 16, 5, 4, 6), "y"),
        ("ConvTranspose2d(32, 6, (2, 3), padding=(1, 2))", (2, 32, 7, 6), "y"),
        ("Conv2d(32, 8, 3, groups=2)", (2, 32, 9, 8), "y"),
        ("Conv2d(16, 16, 3)", (2, 16, 6, 7), "y.softmax(1)"),
        ("Conv1d(48, 8, 3)", (2, 48, 140), "y"),
    ],
)
def test_boxes_agree_with_torch(call: str, shape: tuple[int, ...], result: str) -> None:
    channels = int(call.split(",")[1])
    source = problem(call, shape, result=result, channels=channels)
    for recipe in (STAGED, SPLIT):
        chosen = [each for programs in (0, 2) for each in boxed(recipe, source, programs)]
        assert chosen or (recipe is STAGED and "groups" in call)
        if chosen:
            check_recipe(recipe, source, H200, settings=chosen, tolerance=1e-6)


def test_what_threads_copy_stays_before_what_is_not_measured() -> None:
    _, graph = trace_source(problem("Conv2d(64, 128, 3)", (16, 64, 66, 66)))
    (site,) = STAGED.match(graph, Contract())
    space = STAGED.space(site, H200)
    assert space.knobs["copies"] == ("threads", "boxes")
    assert space.knobs["programs"] == (0, H200.sm_count, 2 * H200.sm_count)
    best = min(space.settings(), key=lambda each: STAGED.cost_ms(site, each, H200))
    assert (best["copies"], best["programs"]) == ("threads", 0)
    alike = {**best, "copies": "boxes"}
    assert alike in space.neighbours(best), "a search tries it from there"
    assert STAGED.cost_ms(site, alike, H200) > STAGED.cost_ms(site, best, H200)
    known = {name: value for name, value in best.items() if name not in ("copies", "programs")}
    assert space.completed(known) == best


@pytest.mark.parametrize(
    ("call", "channels", "result"),
    [
        ("Conv2d(16, 8, 3, 2)", 16, "y"),  # a stride
        ("Conv2d(24, 8, 3)", 24, "y"),  # no step lies within a tap
        ("Conv2d(16, 8, 3)", 16, "torch.max_pool2d(y, 2)"),  # windows
    ],
)
def test_where_a_tap_of_a_tile_is_no_box_none_is_offered(
    call: str, channels: int, result: str
) -> None:
    _, graph = trace_source(problem(call, (1, channels, 10, 11), result=result))
    (site,) = STAGED.match(graph, Contract())
    assert "copies" not in STAGED.space(site, H200).knobs


def test_cards_without_such_copies_are_offered_none() -> None:
    _, graph = trace_source(problem("Conv2d(16, 8, 3)", (1, 16, 10, 11)))
    (site,) = STAGED.match(graph, Contract())
    assert "copies" not in STAGED.space(site, named_target("a100")).knobs


def test_tiles_reach_from_the_first_output_to_the_last_and_programs_share_them() -> None:
    _, graph = trace_source(problem("Conv2d(64, 130, 3, padding=1)", (3, 64, 56, 56)))
    (site,) = STAGED.match(graph, Contract())
    setting = {"terms": 1, "block_p": 128, "block_co": 128, "block_k": 64, "copy_bytes": 16}
    setting |= {"warps": 8, "stages": 3, "copies": "boxes"}
    counts = {}
    for programs in (0, 132, 264):
        knobs = read_staged(site.detail, {**setting, "programs": programs})
        tiles = box_tiles(site.detail, knobs)
        counts[programs] = box_programs(site.detail, knobs)
    assert tiles == 3 * 2 * math.ceil((55 * 58 + 56) / 128)
    assert counts == {0: tiles, 132: 132, 264: tiles}


def test_a_module_with_boxes_passes_the_source_check_and_sets_an_allocator() -> None:
    source = problem("Conv2d(32, 64, 3)", (2, 32, 30, 30))
    _, graph = trace_source(source)
    (site,) = STAGED.match(graph, Contract())
    setting = boxed(STAGED, source, 132)[0]
    text = emit_source(source, graph, [(STAGED, site, setting)])
    assert "triton.set_allocator(" in text and "boxed_conv" in text
    assert check_source(text, problem_source=source) == []


_SETTING = {"terms": 1, "block_p": 128, "block_co": 128, "block_k": 64, "copy_bytes": 16}
_SETTING |= {"warps": 8, "stages": 3, "copies": "boxes"}


@pytest.mark.slow
def test_boxes_are_copied_by_the_hardware_and_nothing_spills() -> None:
    cases = [
        (along, programs, result)
        for along in ("positions", "channels")
        for programs, result in ((0, "y"), (132, "y"), (132, "F.mish(F.mish(y))"))
    ]
    jobs = []
    for along, programs, result in cases:
        source = problem("Conv2d(64, 128, 3)", (8, 64, 128, 128), result=result)
        source = "import torch.nn.functional as F\n" + source.replace("randn", "empty")
        setting = {**_SETTING, "sums_along": along, "programs": programs}
        jobs.append(("staged-half-conv", source, "match", setting))
    for case, kernels in zip(cases, compile_jobs(jobs, "ptx"), strict=True):
        main = kernels[-1]
        assert main["name"] == "kmem_boxed_conv" and main["stack"] == 0, case
        assert "cp.async.bulk.tensor.2d" in main["ptx"] and main["hgmma"] > 0
        assert main["async_copies"] == 0, "threads copy nothing"
