"""skills/separable-pooling: every variant against torch in the interpreter, and what it refuses."""

from pathlib import Path

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kmem.codegen.convolutions.windows import (
    WindowAxis,
    column_taps,
    gather_groups,
    lanes_in,
    row_starts,
)
from kmem.devices import named_target
from kmem.records import Contract
from kmem.skills import load_recipe, load_skill
from kmem.testing import check_recipe, emit_source, import_source, trace_source

ROOT = Path(__file__).resolve().parent.parent
RECIPE = load_recipe(load_skill(ROOT / "skills" / "separable-pooling"))
H200 = named_target("h200")


def problem(call: str, shape: tuple[int, ...], dtype: str = "float32", prepare: str = "") -> str:
    return (
        "import torch, torch.nn as nn\nimport torch.nn.functional as F\nclass Model(nn.Module):\n"
        "    def forward(self, x):\n"
        f"        return F.{call}\ndef get_inputs():\n"
        f"    x = torch.randn({shape}).to(torch.{dtype})\n"
        f"    {prepare or 'pass'}\n    return [x]\n"
    )


def site_of(source: str):
    _, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    return site


def variants(source: str, count: int) -> list[dict]:
    """Settings of different shifts, lanes and rows, evenly over the space."""
    space = RECIPE.space(site_of(source), H200).settings()
    return space[:: max(1, len(space) // count)][:count]


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(
    ("call", "shape"),
    [
        ("max_pool1d(x, 4, 1, 2, 3)", (2, 3, 40)),
        ("max_pool2d(x, 4, 1, 1)", (1, 2, 9, 16)),
        ("max_pool2d(x, (2, 3), (3, 2), (1, 0), (1, 2), ceil_mode=True)", (2, 2, 11, 13)),
        ("max_pool3d(x, 3, 2, 1, 3)", (1, 2, 11, 9, 16)),
        ("avg_pool1d(x, 8, 1, 4)", (2, 2, 37)),
        ("avg_pool2d(x, 11)", (1, 2, 23, 45)),
        ("avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)", (1, 3, 8, 10)),
        ("avg_pool2d(x, 3, 2, 1, ceil_mode=True)", (1, 3, 8, 10)),
        ("avg_pool2d(x, (3, 2), divisor_override=5)", (1, 3, 8, 10)),
        ("avg_pool3d(x, 3, 2, 1)", (1, 2, 6, 7, 16)),
        ("adaptive_avg_pool2d(x, (4, 3))", (1, 3, 8, 21)),
        ("adaptive_max_pool2d(x, (4, None))", (1, 3, 8, 11)),
        ("adaptive_avg_pool1d(x, 5)", (2, 3, 40)),
        ("adaptive_max_pool3d(x, 2) * 1", (1, 2, 4, 6, 8)),
    ],
)
def test_every_variant_agrees_with_torch(call: str, shape: tuple[int, ...]) -> None:
    source = problem(call, shape)
    check_recipe(RECIPE, source, H200, settings=variants(source, 2), tolerance=3e-7)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 4e-3), ("float16", 5e-4)])
@pytest.mark.parametrize("call", ["max_pool2d(x, 3, 2, 1)", "avg_pool2d(x, 3, 2, 1)"])
def test_half_precision_is_rounded_once(call: str, dtype: str, tolerance: float) -> None:
    source = problem(call, (2, 2, 9, 21), dtype)
    check_recipe(
        RECIPE,
        source,
        H200,
        settings=variants(source, 2),
        tolerance=tolerance if call.startswith("avg") else 0.0,
    )


@st.composite
def poolings(draw: st.DrawFn) -> tuple[str, tuple[int, ...]]:
    kind, rank = draw(st.sampled_from(["max", "avg"])), draw(st.sampled_from([1, 2, 3]))
    sizes = tuple(draw(st.integers(3, 14)) for _ in range(rank))
    kernel = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    stride = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    padding = tuple(draw(st.integers(0, size // 2)) for size in kernel)
    ceil = draw(st.booleans())
    dilation = tuple(draw(st.integers(1, 3)) for _ in range(rank)) if kind == "max" else (1,) * rank
    assume(
        all(
            size + 2 * pad >= step * (taps - 1) + 1
            for size, pad, step, taps in zip(sizes, padding, dilation, kernel, strict=True)
        )
    )
    last = f"{dilation}, {ceil}" if kind == "max" else f"{ceil}, {draw(st.booleans())}"
    return f"{kind}_pool{rank}d(x, {kernel}, {stride}, {padding}, {last})", (1, 2, *sizes)


@pytest.mark.slow
@settings(max_examples=6, derandomize=True)
@given(poolings(), st.integers(0, 10**6))
@example(("max_pool1d(x, (4,), (3,), (2,), (3,), True)", (1, 2, 14)), 5)
def test_any_window_agrees_with_torch_at_any_setting(
    pooling: tuple[str, tuple[int, ...]], pick: int
) -> None:
    source = problem(*pooling)
    space = RECIPE.space(site_of(source), H200).settings()
    check_recipe(RECIPE, source, H200, settings=[space[pick % len(space)]], tolerance=3e-7)


@pytest.mark.parametrize("shift", ["load", "gather"])
def test_nan_and_infinities_go_where_torch_puts_them(shift: str) -> None:
    prepare = "x[0, 0, 3, 4] = float('nan'); x[0, 1] = float('-inf'); x[1, 0, 0, 0] = float('inf')"
    source = problem("max_pool2d(x, 3, 2, 1)", (2, 2, 8, 12), prepare=prepare)
    module, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    setting = next(
        setting
        for setting in RECIPE.space(site, H200).settings()
        if setting["shift"] == shift and setting["lanes"] > 1
    )
    torch.manual_seed(0)
    (x,) = module.get_inputs()
    with torch.no_grad():
        found = import_source(emit_source(source, graph, [(RECIPE, site, setting)])).ModelNew()(x)
    assert torch.equal(found.nan_to_num(7.5), module.Model()(x).nan_to_num(7.5))
    assert found.isnan().sum() > 0


@pytest.mark.parametrize(
    "source",
    [
        problem("max_pool2d(x, 3, return_indices=True)", (1, 2, 8, 8)),
        problem("max_pool2d(x, 3)", (2, 8, 8)),
        problem("max_pool2d(x.transpose(2, 3), 3)", (1, 2, 8, 9)),
        problem("avg_pool1d(x, 1100)", (1, 2, 2200)),
        problem("max_pool2d(x, 3)", (1, 2, 8, 8), "float64"),
        problem("adaptive_avg_pool2d(x, 5)", (1, 2, 8, 8)),  # windows of several sizes
        problem("adaptive_avg_pool2d(x, 1)", (1, 2, 8, 8)),  # a reduction
        problem("adaptive_max_pool2d(x, 4, return_indices=True)", (1, 2, 8, 8)),
    ],
)
def test_what_the_kernels_do_not_cover_is_not_matched(source: str) -> None:
    _, graph = trace_source(source)
    assert RECIPE.match(graph, Contract()) == []


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("call", "shape"),
    [
        ("avg_pool1d(x, 40, 30, 7)", (2, 3, 100)),
        (
            "avg_pool3d(x, (9, 8, 3), 3, 1, ceil_mode=True, count_include_pad=False)",
            (1, 2, 12, 11, 8),
        ),
        ("max_pool1d(x, 33, 5, 3, 2)", (2, 3, 150)),
    ],
)
def test_windows_too_large_to_unroll_are_read_whole(call: str, shape: tuple[int, ...]) -> None:
    source = problem(call, shape)
    chosen = variants(source, 2)
    assert all(set(setting) == {"block", "warps"} for setting in chosen)
    check_recipe(RECIPE, source, H200, settings=chosen, tolerance=3e-7)


@pytest.mark.parametrize("call", ["avg_pool2d(x, 11)", "max_pool2d(x, 11)"])
def test_whole_windows_chosen_for_long_rows_serve_short_ones(call: str) -> None:
    long, short = (problem(call, shape) for shape in ((16, 64, 2048, 2048), (1, 2, 23, 45)))
    (setting,) = variants(long, 1)
    assert "shift" in variants(short, 1)[0] and "block" in setting
    module, graph = trace_source(short)
    text = emit_source(short, graph, [(RECIPE, site_of(short), setting)])
    x = torch.randn(1, 2, 23, 45)
    x[0, 0, 3, 4], x[0, 1, 12, 20] = float("nan"), float("-inf")
    torch.testing.assert_close(import_source(text).ModelNew()(x), module.Model()(x), equal_nan=True)


def test_one_text_serves_two_sizes() -> None:
    sites = [
        site_of(problem("max_pool3d(x, 3, 2, 1, 3)", shape))
        for shape in ((1, 2, 11, 9, 16), (16, 32, 128, 128, 128))
    ]
    setting = {
        "shift": "gather",
        "lanes": 4,
        "rows": 2,
        "depths": 1,
        "groups": 16,
        "strips": 2,
        "warps": 1,
    }
    assert RECIPE.emit(sites[0], setting).kernels == RECIPE.emit(sites[1], setting).kernels


def test_taps_name_lanes_of_groups() -> None:
    axis = WindowAxis(size=128, out=62, kernel=3, stride=2, padding=1, dilation=3)
    assert lanes_in(axis, 4) == 8
    assert [column_taps(axis, 4)[0, tap] for tap in range(3)] == [(-1, 7), (0, 2), (0, 5)]
    assert column_taps(axis, 4)[3, 2] == (1, 3)
    assert gather_groups(axis, 4) == 16
    assert lanes_in(WindowAxis(size=20, out=6, kernel=3, stride=3), 4) == 4
    assert row_starts(WindowAxis(kernel=3, stride=2), 2) == {
        0: [(0, 0)],
        1: [(0, 1)],
        2: [(0, 2), (1, 0)],
        3: [(1, 1)],
        4: [(1, 2)],
    }
