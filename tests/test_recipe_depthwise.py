"""skills/depthwise-rolling-rows: every variant against torch in the interpreter, what it refuses,
and what it compiles to for an H200.
"""

from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kmem.devices import named_target
from kmem.records import Contract
from kmem.skills import load_recipe, load_skill
from kmem.testing import check_recipe, trace_source

ROOT = Path(__file__).resolve().parent.parent
RECIPE = load_recipe(load_skill(ROOT / "skills" / "depthwise-rolling-rows"))
H200 = named_target("h200")


def problem(call: str, shape: tuple[int, ...], dtype: str = "float32") -> str:
    return (
        "import torch, torch.nn as nn\nclass Model(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n"
        f"        self.op = nn.{call[:-1]}, dtype=torch.{dtype})\n    def forward(self, x):\n"
        f"        return self.op(x)\n"
        f"def get_inputs():\n    return [torch.randn({shape}).to(torch.{dtype})]\n"
    )


def sites_of(source: str):
    _, graph = trace_source(source)
    assert graph.opaque_reason is None, graph.opaque_reason
    return RECIPE.match(graph, Contract())


def variants(source: str, count: int) -> list[dict]:
    (site,) = sites_of(source)
    space = RECIPE.space(site, H200).settings()
    return space[:: max(1, len(space) // count)][:count]


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("call", "shape"),
    [
        ("Conv1d(3, 3, 5, groups=3)", (2, 3, 37)),
        ("Conv1d(3, 6, 4, groups=3, dilation=2, padding='same')", (1, 3, 21)),
        ("Conv2d(4, 4, 3, groups=4, bias=False)", (1, 4, 9, 16)),
        ("Conv2d(2, 6, (3, 7), groups=2, padding=(0, 3))", (1, 2, 7, 18)),
        ("Conv2d(3, 3, 3, groups=3, stride=2, padding=1)", (2, 3, 9, 15)),
        ("Conv2d(3, 3, (3, 1), groups=3, stride=(1, 3), dilation=(2, 1))", (1, 3, 9, 17)),
        ("Conv2d(3, 3, 3, groups=3, padding='same')", (1, 3, 6, 20)),
        ("Conv3d(2, 4, 3, groups=2, padding=1)", (1, 2, 3, 4, 8)),
    ],
)
def test_every_variant_agrees_with_torch(call: str, shape: tuple[int, ...]) -> None:
    source = problem(call, shape)
    check_recipe(RECIPE, source, H200, settings=variants(source, 2), tolerance=1e-6)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 4e-3), ("float16", 5e-4)])
def test_half_precision_is_rounded_once(dtype: str, tolerance: float) -> None:
    source = problem("Conv2d(3, 3, 3, groups=3, padding=1)", (1, 3, 7, 20), dtype)
    check_recipe(RECIPE, source, H200, settings=variants(source, 2), tolerance=tolerance)


@st.composite
def depthwise(draw: st.DrawFn) -> tuple[str, tuple[int, ...]]:
    rank = draw(st.sampled_from([1, 2]))
    channels, multiplier = draw(st.integers(2, 3)), draw(st.integers(1, 2))
    sizes = tuple(draw(st.integers(4, 18)) for _ in range(rank))
    kernel, stride, padding, dilation = (
        tuple(draw(st.integers(low, high)) for _ in range(rank))
        for low, high in ((1, 4), (1, 3), (0, 3), (1, 3))
    )
    assume(
        all(
            size + 2 * pad >= step * (taps - 1) + 1
            for size, pad, step, taps in zip(sizes, padding, dilation, kernel, strict=True)
        )
    )
    arguments = (
        f"{channels}, {channels * multiplier}, {kernel}, {stride}, {padding}, {dilation}, "
        f"groups={channels}, bias={draw(st.booleans())}"
    )
    return f"Conv{rank}d({arguments})", (1, channels, *sizes)


@settings(max_examples=5, derandomize=True)
@given(depthwise(), st.integers(0, 10**6))
def test_any_window_agrees_with_torch_at_any_setting(
    convolution: tuple[str, tuple[int, ...]], pick: int
) -> None:
    source = problem(*convolution)
    (site,) = sites_of(source)
    space = RECIPE.space(site, H200).settings()
    check_recipe(RECIPE, source, H200, settings=[space[pick % len(space)]], tolerance=1e-6)


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        ("Conv2d(4, 4, 3, groups=2)", (1, 4, 8, 8)),
        ("Conv2d(4, 8, 1)", (1, 4, 8, 8)),
        ("Conv2d(1, 4, 3)", (1, 1, 8, 8)),
        ("Conv2d(4, 4, 9, groups=4)", (1, 4, 12, 12)),
    ],
)
def test_other_convolutions_are_not_matched(call: str, shape: tuple[int, ...]) -> None:
    assert sites_of(problem(call, shape)) == []


def test_a_separable_pair_keeps_its_pointwise_convolution_as_a_call() -> None:
    source = problem(
        "Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.Conv2d(4, 8, 1))", (1, 4, 6, 6)
    ).replace(", dtype=torch.float32", "")
    (site,) = sites_of(source)
    assert site.operator == "depthwise_conv"
    check_recipe(RECIPE, source, H200, settings=variants(source, 1), tolerance=1e-6)
