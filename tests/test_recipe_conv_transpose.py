"""skills/transposed-conv-phases: phases and products against torch in the interpreter."""

import importlib
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kmem.codegen.convolutions.windows import (
    Taps,
    WindowAxis,
    has_empty_rows,
    lattice,
    phase_taps,
    taps_by_phase,
)
from kmem.devices import named_target
from kmem.records import Contract
from kmem.skills import load_recipe, load_skill
from kmem.testing import check_recipe, emit_source, import_source, poisoned_scratch, trace_source

RUN_ONCE = """
@triton.jit
def run_once(y, start, length):
    kmem_fill_run(y, (tl.program_id(0) + start).to(tl.int64), tl.program_id(0) + length, 2.5, 8, 2)
"""
ROOT = Path(__file__).resolve().parent.parent
RECIPE = load_recipe(load_skill(ROOT / "skills" / "transposed-conv-phases"))
FILL_RUN = importlib.import_module(".empty_rows", type(RECIPE).__module__).FILL_RUN
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


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(
    ("call", "shape"),
    [
        ("ConvTranspose1d(4, 8, 3, bias=False)", (2, 4, 9)),
        ("ConvTranspose1d(20, 3, 5, dilation=3)", (1, 20, 11)),
        ("ConvTranspose1d(3, 4, 3, 2, 1, dilation=2)", (1, 3, 13)),
        ("ConvTranspose2d(4, 8, (3, 5), (2, 3), (1, 2), groups=2, dilation=(2, 1))", (1, 4, 5, 6)),
        ("ConvTranspose2d(4, 18, 3, 5, 1, dilation=2, bias=False)", (1, 4, 4, 5)),
        ("ConvTranspose3d(3, 4, 3, 2, 1, dilation=2)", (1, 3, 3, 4, 3)),
        (
            "ConvTranspose3d(4, 4, (1, 3, 3), 2, (0, 1, 2), output_padding=1, groups=2)",
            (1, 4, 2, 3, 4),
        ),
    ],
)
def test_every_variant_agrees_with_torch(call: str, shape: tuple[int, ...]) -> None:
    source = problem(call, shape)
    check_recipe(RECIPE, source, H200, settings=variants(source, 2), tolerance=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 4e-3), ("float16", 5e-4)])
def test_half_precision_is_rounded_once(dtype: str, tolerance: float) -> None:
    source = problem("ConvTranspose2d(4, 4, 3, 2, 1)", (1, 4, 5, 6), dtype)
    check_recipe(RECIPE, source, H200, settings=variants(source, 2), tolerance=tolerance)


@st.composite
def transposed(draw: st.DrawFn) -> tuple[str, tuple[int, ...]]:
    rank, groups = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2]))
    sizes = tuple(draw(st.integers(3, 7)) for _ in range(rank))
    kernel, stride, dilation = (
        tuple(draw(st.integers(1, high)) for _ in range(rank)) for high in (4, 4, 3)
    )
    padding = tuple(draw(st.integers(0, 2)) for _ in range(rank))
    extra = tuple(
        draw(st.integers(0, max(step, spread) - 1))
        for step, spread in zip(stride, dilation, strict=True)
    )
    arguments = (
        f"2, 4, {kernel}, {stride}, {padding}, {extra}, {groups}, {draw(st.booleans())}, {dilation}"
    )
    return f"ConvTranspose{rank}d({arguments})", (2, 2, *sizes)


@pytest.mark.slow
@settings(max_examples=6, derandomize=True)
@given(transposed(), st.integers(0, 10**6))
def test_any_window_agrees_with_torch_at_any_setting(
    convolution: tuple[str, tuple[int, ...]], pick: int
) -> None:
    source = problem(*convolution)
    (site,) = sites_of(source)
    space = RECIPE.space(site, H200).settings()
    check_recipe(RECIPE, source, H200, settings=[space[pick % len(space)]], tolerance=1e-6)


def test_a_shared_divisor_of_stride_and_dilation_leaves_phases_without_taps() -> None:
    assert phase_taps(WindowAxis(size=32, out=65, kernel=3, stride=2, padding=1, dilation=2)) == [
        Taps(0),
        Taps(3, 0, 1, 1, 1),
    ]
    assert phase_taps(WindowAxis(size=64, out=127, kernel=3, stride=2, padding=1)) == [
        Taps(1, 1, 2, 0, 1),
        Taps(2, 0, 2, 1, 1),
    ]
    axes = [
        WindowAxis(size=size, out=2 * size + 1, kernel=3, stride=2, padding=1, dilation=2)
        for size in (16, 32, 32)
    ]
    # the phase without taps has one position more along each axis
    assert lattice(axes) == 16 * 32 * 32
    assert taps_by_phase(axes) == {27: 1, 0: 7}
    assert has_empty_rows(axes)
    # along the row they are interleaved with the others
    assert not has_empty_rows([WindowAxis(), WindowAxis(), axes[2]])


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(
    ("call", "shape", "fills"),
    [
        # planes, and rows of planes
        ("ConvTranspose3d(3, 4, 3, 2, 1, dilation=2)", (2, 3, 2, 3, 3), True),
        (
            "ConvTranspose3d(2, 3, (1, 3, 3), (3, 2, 2), 0, (2, 1, 0), dilation=(1, 2, 2))",
            (1, 2, 2, 2, 3),
            True,
        ),
        # planes alone
        (
            "ConvTranspose3d(2, 3, (3, 1, 1), (2, 1, 2), 1, dilation=(2, 1, 1))",
            (1, 2, 2, 3, 3),
            True,
        ),
        ("ConvTranspose2d(4, 6, 3, (2, 1), 1, 1, groups=2, dilation=2)", (1, 4, 3, 3), True),
        # rows with taps are 3 and 4 rows apart
        ("ConvTranspose2d(3, 5, 2, 7, 0, 6, dilation=3)", (1, 3, 2, 3), True),
        ("ConvTranspose2d(3, 4, 3, (1, 2), 1, dilation=2)", (1, 3, 4, 5), False),
        ("ConvTranspose2d(3, 4, 3, 2, 1)", (1, 3, 4, 5), False),
    ],
)
def test_rows_without_taps_are_filled_by_the_programs_that_multiply(
    call: str, shape: tuple[int, ...], fills: bool
) -> None:
    source = problem(call, shape)
    (site,) = sites_of(source)
    emission = RECIPE.emit(site, variants(source, 1)[0])
    assert emission.launcher.count("[(") == 3  # stage, pack, phases
    assert ("kmem_fill_run" in dict(emission.kernels)) == fills
    check_recipe(RECIPE, source, H200, settings=variants(source, 1), tolerance=1e-6)


@pytest.mark.parametrize(
    ("skipped", "length"),
    [(0, 8), (0, 19), (3, 2), (3, 5), (3, 6), (5, 3), (5, 40), (7, 1), (7, 2), (2, 0), (0, 0)],
)
def test_a_run_is_filled_and_nothing_beside_it(skipped: int, length: int) -> None:
    module = import_source(
        f"import torch\nimport triton\nimport triton.language as tl\n{FILL_RUN[1]}{RUN_ONCE}"
    )
    y = torch.full((64,), float("nan"))
    module.run_once[(1,)](y, 8 + skipped, length)
    expected = torch.full((64,), float("nan"))
    expected[8 + skipped : 8 + skipped + length] = 2.5
    assert torch.equal(y.nan_to_num(-1.0), expected.nan_to_num(-1.0))


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("call", "shape", "bands"),
    [
        # 4 of 9 rows have taps
        ("ConvTranspose3d(3, 4, 3, 2, 1, dilation=2)", (1, 3, 2, 4, 4), {1, 2, 4}),
        # 10 rows: the last band begins sooner
        ("ConvTranspose2d(3, 4, (5, 3), (1, 2), 1, dilation=(2, 1))", (1, 3, 4, 3), {1, 2, 4}),
        # both phases along height have two taps
        ("ConvTranspose2d(3, 4, (4, 3), (2, 1))", (1, 3, 3, 4), {1, 2, 4}),
        # a phase with one tap shares nothing
        ("ConvTranspose2d(3, 4, 3, 2, 1)", (1, 3, 4, 4), {1}),
        # two phases of 7 rows
        ("ConvTranspose2d(3, 4, (4, 3), (2, 1), 1)", (1, 3, 7, 4), {1, 2, 4}),
        # 4 rows of three taps, 3 of two
        ("ConvTranspose2d(3, 4, (5, 3), (2, 1), 2)", (1, 3, 4, 4), {1, 2}),
        ("ConvTranspose1d(3, 4, 3, 2, 1)", (1, 3, 8), {1}),
    ],
)
def test_rows_of_a_band_share_what_they_read(
    call: str, shape: tuple[int, ...], bands: set[int]
) -> None:
    source = problem(call, shape)
    (site,) = sites_of(source)
    space = RECIPE.space(site, H200).settings()
    assert {setting["band"] for setting in space} == bands
    chosen = [
        next(setting for setting in reversed(space) if setting["band"] == band) for band in bands
    ]
    check_recipe(RECIPE, source, H200, settings=chosen, tolerance=1e-6)


def test_a_band_found_at_one_size_is_right_at_another_that_has_fewer_rows() -> None:
    call = "ConvTranspose2d(3, 4, 3, 2, 1, dilation=2)"
    (large,) = sites_of(problem(call, (1, 3, 8, 4)))
    setting = next(
        setting for setting in RECIPE.space(large, H200).settings() if setting["band"] == 4
    )
    source = problem(call, (1, 3, 3, 5))
    _, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    # what the judge interprets at small sizes is what runs at full size
    assert RECIPE.emit(site, setting).kernels == RECIPE.emit(large, setting).kernels
    model = import_source(emit_source(source, graph, [(RECIPE, site, setting)])).ModelNew()
    x = torch.randn(1, 3, 3, 5)
    with poisoned_scratch(), torch.no_grad():
        torch.testing.assert_close(model(x), model.op(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("groups", "offered"), [(1, {"tf32", "exact"}), (2, {"exact"})])
def test_grouped_ones_are_never_rounded_to_tf32(groups: int, offered: set[str]) -> None:
    (site,) = sites_of(problem(f"ConvTranspose2d(4, 4, 3, groups={groups})", (1, 4, 5, 6)))
    assert {setting["precision"] for setting in RECIPE.space(site, H200).settings()} == offered


@pytest.mark.parametrize("precision", ["exact", "tf32"])
def test_values_that_are_not_finite_reach_the_outputs_they_reach_in_torch(precision: str) -> None:
    """An infinity in two parts must meet one part of the weight alone: parts may differ in sign."""
    source = problem("ConvTranspose2d(8, 6, (3, 5), (2, 3), (1, 2), dilation=(2, 1))", (1, 8, 9, 7))
    _, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    setting = next(
        setting
        for setting in RECIPE.space(site, H200).settings()
        if setting["precision"] == precision
    )
    model = import_source(emit_source(source, graph, [(RECIPE, site, setting)])).ModelNew()
    x = torch.randn(1, 8, 9, 7)
    x.view(-1)[torch.arange(0, x.numel(), 37)] = torch.tensor(
        [float("inf"), float("-inf"), float("nan")]
    ).repeat(5)[:14]
    with torch.no_grad():
        found, expected = model(x), model.op(x)
    assert torch.equal(found.isnan(), expected.isnan()) and torch.equal(
        found.isinf(), expected.isinf()
    )
    assert expected.isinf().any() and torch.equal(found[found.isinf()], expected[expected.isinf()])
    torch.testing.assert_close(
        found[expected.isfinite()], expected[expected.isfinite()], rtol=1e-4, atol=1e-5
    )


def test_structural_zeros_hold_exactly_the_bias() -> None:
    source = problem("ConvTranspose2d(3, 4, 3, 2, 1, dilation=2)", (1, 3, 4, 5))
    module, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    model = import_source(
        emit_source(source, graph, [(RECIPE, site, variants(source, 1)[0])])
    ).ModelNew()
    with torch.no_grad():
        found = model(*module.get_inputs())
    bias = model.op.bias.detach()[None, :, None, None]
    assert torch.equal(found[:, :, 0::2, :], bias.expand_as(found[:, :, 0::2, :]))
    assert torch.equal(found[:, :, :, 0::2], bias.expand_as(found[:, :, :, 0::2]))
    assert site.flags == ("algebraic",)


@pytest.mark.parametrize(
    ("call", "shape"),
    [("ConvTranspose1d(2, 2, 3, stride=9)", (1, 2, 5)), ("ConvTranspose2d(2, 2, 3)", (2, 5, 5))],
)
def test_what_the_kernel_does_not_cover_is_not_matched(call: str, shape: tuple[int, ...]) -> None:
    assert sites_of(problem(call, shape)) == []


CHAINED = """
import torch, torch.nn as nn, torch.nn.functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.op = nn.{call}
        self.bias = nn.Parameter(torch.randn({channels}, {ones}))
    def forward(self, x, other):
        y = self.op(x)
        return {chain}
def get_inputs():
    return [torch.randn({shape}), torch.randn({other})]
"""


@pytest.mark.slow(after=4)
@pytest.mark.parametrize(
    ("call", "shape", "other", "chain"),
    [  # by channel and by place; rows and columns that no tap reaches, filled and as tails
        ("ConvTranspose2d(4, 6, 3, 2)", (2, 4, 5, 6), (1,), "torch.tanh(y - self.bias) * other"),
        (
            "ConvTranspose2d(4, 6, 3, 2, 1, 1)",
            (2, 4, 5, 6),
            (2, 6, 10, 12),
            "F.mish(y) + other + y",
        ),
        (
            "ConvTranspose2d(4, 6, 2, 5, 1)",
            (1, 4, 3, 5),
            (1, 1, 1),
            "F.gelu(y + self.bias) + other",
        ),
        ("ConvTranspose3d(2, 4, 3, 2, 1, groups=2)", (2, 2, 3, 3, 4), (2, 4, 1, 1, 1), "y * other"),
        ("ConvTranspose3d(2, 4, 2, 3, bias=False)", (1, 2, 2, 3, 3), (1,), "(y + 1).clamp(0.5, 2)"),
        ("ConvTranspose1d(3, 4, 3)", (2, 3, 9), (2, 1, 11), "(y - other).relu() + self.bias"),
    ],
)
def test_what_follows_is_written_with_it(
    call: str, shape: tuple[int, ...], other: tuple[int, ...], chain: str
) -> None:
    rank = len(shape) - 2
    source = CHAINED.format(
        call=call,
        shape=shape,
        other=other,
        chain=chain,
        channels=6 if "6" in call else 4,
        ones=", ".join(["1"] * rank),
    )
    (site,) = sites_of(source)
    assert len(site.nodes) > 1
    check_recipe(RECIPE, source, H200, settings=variants(source, 1), tolerance=1e-6)


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(
    ("call", "shape", "chain", "nodes"),
    [  # all kinds of reductions over channels; phases without taps; one value left, or each scaled
        (
            "ConvTranspose2d(4, 6, 3, 2)",
            (2, 4, 5, 6),
            "(y * 2).softmax(1).sigmoid() * self.bias",
            5,
        ),
        ("ConvTranspose2d(4, 6, 3, 2, 1, 1)", (2, 4, 5, 6), "y.min(1, keepdim=True)[0].tanh()", 5),
        (
            "ConvTranspose2d(4, 6, (3, 2), (1, 3))",
            (1, 4, 3, 5),
            "(y.relu() - y.mean(1, True)) / 3",
            5,
        ),
        (
            "ConvTranspose3d(2, 4, 3, 2, 1)",
            (2, 2, 3, 3, 4),
            "y.logsumexp(1) + self.bias[0].sum()",
            3,
        ),
        ("ConvTranspose3d(3, 4, 3, bias=False)", (1, 3, 2, 3, 3), "y.std(1) + other", 3),
        ("ConvTranspose1d(3, 4, 3)", (2, 3, 9), "y.amax(1, True) - other", 3),
        ("ConvTranspose2d(4, 6, 3, 2, groups=2)", (2, 4, 5, 6), "y.amax(1)", 1),
    ],
)
def test_reductions_over_the_channels_of_a_tile_are_written_with_it(
    call: str, shape: tuple[int, ...], chain: str, nodes: int
) -> None:
    source = CHAINED.format(
        call=call,
        shape=shape,
        other=(1,),
        chain=chain,
        channels=6 if "6" in call else 4,
        ones=", ".join(["1"] * (len(shape) - 2)),
    )
    (site,) = sites_of(source)
    assert len(site.nodes) == nodes, site.nodes
    check_recipe(RECIPE, source, H200, settings=variants(source, 1), tolerance=1e-6)


def test_a_residual_stays_apart_where_rows_are_filled_with_one_value() -> None:
    source = CHAINED.format(
        call="ConvTranspose3d(2, 4, 2, 3)",
        shape=(1, 2, 2, 3, 3),
        other=(1, 4, 5, 8, 8),
        chain="y + other",
        channels=4,
        ones="1, 1, 1",
    )
    (site,) = sites_of(source)
    assert site.nodes == ("conv_transpose3d",)
