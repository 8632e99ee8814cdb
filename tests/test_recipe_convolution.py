"""implicit-gemm-conv, staged-half-conv, split-half-conv: convolutions against torch in the
interpreter.
"""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kmem.codegen.chains import chain
from kmem.codegen.convolutions.convolution import find_convolutions
from kmem.codegen.regions.matching import FoundRegion, find_row_regions
from kmem.devices import named_target
from kmem.problem.graph import OpGraph
from kmem.records import Contract, Precision
from kmem.skills import load_recipe, load_skill
from kmem.testing import check_recipe, emit_source, import_source, trace_source

ROOT = Path(__file__).resolve().parent.parent
H200 = named_target("h200")
RECIPES = {
    name: load_recipe(load_skill(ROOT / "skills" / name))
    for name in ("implicit-gemm-conv", "staged-half-conv", "split-half-conv")
}
DIRECT, STAGED, SPLIT = RECIPES.values()
ROUNDING = ("implicit-gemm-conv", "staged-half-conv")


def problem(
    call: str, shape: tuple[int, ...], dtype: str = "float32", result: str = "y", channels: int = 8
) -> str:
    return (
        "import torch, torch.nn as nn\nclass Model(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n"
        f"        self.op = nn.{call[:-1]}, dtype=torch.{dtype})\n"
        f"        self.scale = nn.Parameter(torch.randn({channels}, 1, 1).to(torch.{dtype}))\n"
        f"    def forward(self, x):\n        y = self.op(x)\n        return {result}\n"
        f"def get_inputs():\n    return [torch.randn({shape}).to(torch.{dtype})]\n"
    )


def variants(recipe, source: str, count: int) -> list[dict]:
    _, graph = trace_source(source)
    (site,) = recipe.match(graph, Contract())
    space = recipe.space(site, H200).settings()
    return space[:: max(1, len(space) // count)][:count]


@pytest.mark.slow(after=4)
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(
    ("call", "shape"),
    [
        ("Conv1d(10, 20, 3, 3, dilation=4)", (1, 10, 40)),
        ("Conv2d(9, 8, (3, 5), 2, (1, 2), 2)", (2, 9, 9, 11)),
        ("Conv2d(16, 24, 1, bias=False)", (1, 16, 5, 6)),
        ("Conv2d(8, 4, (2, 4), padding='same')", (1, 8, 5, 6)),
        ("Conv3d(8, 4, (3, 2, 3), bias=False)", (1, 8, 5, 4, 6)),
        ("ConvTranspose1d(10, 20, 3, output_padding=1, dilation=2)", (1, 10, 13)),
        # cropped: a negative border
        ("ConvTranspose2d(9, 6, (1, 5), padding=(1, 2))", (2, 9, 7, 6)),
        ("ConvTranspose3d(8, 4, (3, 2, 3), bias=False)", (1, 8, 3, 4, 2)),
    ],
)
def test_every_variant_agrees_with_torch(name: str, call: str, shape: tuple[int, ...]) -> None:
    source = problem(call, shape)
    check_recipe(
        RECIPES[name], source, H200, settings=variants(RECIPES[name], source, 1), tolerance=1e-6
    )


@pytest.mark.parametrize("name", ROUNDING)
@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 5e-3), ("float16", 1e-3)])
def test_half_precision_is_rounded_once(name: str, dtype: str, tolerance: float) -> None:
    source = problem("Conv2d(16, 8, 3, groups=2)", (1, 16, 5, 6), dtype)
    check_recipe(
        RECIPES[name],
        source,
        H200,
        settings=variants(RECIPES[name], source, 1),
        tolerance=tolerance,
    )


@pytest.mark.parametrize("name", RECIPES)
def test_what_follows_a_convolution_is_written_with_it(name: str) -> None:
    source = problem("Conv2d(8, 8, 3)", (2, 8, 6, 7), result="torch.relu(y) * 0.5 + self.scale")
    _, graph = trace_source(source)
    (site,) = RECIPES[name].match(graph, Contract())
    assert site.nodes == ("conv2d", "relu", "mul", "add")
    check_recipe(
        RECIPES[name], source, H200, settings=variants(RECIPES[name], source, 1), tolerance=1e-6
    )


@pytest.mark.parametrize("name", ["staged-half-conv", "split-half-conv"])
def test_sums_along_positions_are_the_same(name: str) -> None:
    source = problem("Conv2d(8, 72, 3)", (1, 8, 6, 12), result="y.relu() + self.scale", channels=72)
    _, graph = trace_source(source)
    (site,) = RECIPES[name].match(graph, Contract())
    settings = RECIPES[name].space(site, H200).settings()
    turned = [each for each in settings if each["sums_along"] == "positions"]
    assert len(turned) < len(settings)  # narrow tiles have none
    check_recipe(RECIPES[name], source, H200, settings=turned[:1], tolerance=1e-6)


def test_an_operand_without_one_step_over_positions_is_left_to_another_kernel() -> None:
    source = problem("Conv2d(8, 8, 3)", (2, 8, 6, 7), result="y + self.scale[:5, 0, 0]")
    _, graph = trace_source(source)
    (site,) = find_convolutions(graph)
    assert site.nodes == ("conv2d",)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[str, tuple[int, ...]]:
    rank, groups = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2]))
    kernel, stride, dilation = (
        tuple(draw(st.integers(1, high)) for _ in range(rank)) for high in (4, 3, 2)
    )
    padding = tuple(draw(st.integers(0, 2)) for _ in range(rank))
    sizes = tuple(
        draw(st.integers((taps - 1) * step + 1, 9))
        for taps, step in zip(kernel, dilation, strict=True)
    )
    bias = draw(st.booleans())
    if draw(st.booleans()):
        padding = tuple(
            min(border, step * (taps - 1))
            for border, taps, step in zip(padding, kernel, dilation, strict=True)
        )
        return (
            f"ConvTranspose{rank}d(6, 4, {kernel}, 1, {padding}, 0, {groups}, {bias}, {dilation})",
            (2, 6, *sizes),
        )
    return f"Conv{rank}d(6, 4, {kernel}, {stride}, {padding}, {dilation}, {groups}, {bias})", (
        2,
        6,
        *sizes,
    )


@pytest.mark.slow
@settings(max_examples=5, derandomize=True)
@given(convolutions(), st.integers(0, 10**6))
def test_any_window_agrees_with_torch_at_any_setting(
    convolution: tuple[str, tuple[int, ...]], pick: int
) -> None:
    source = problem(*convolution)
    space = variants(SPLIT, source, 10**6)
    check_recipe(SPLIT, source, H200, settings=[space[pick % len(space)]], tolerance=1e-6)


def run_at(
    recipe, source: str, setting: dict, x: torch.Tensor, **replaced: str
) -> tuple[torch.Tensor, torch.nn.Module]:
    """The emitted module's result, with texts of the source replaced to leave the interpreter's own
    path.
    """
    _, graph = trace_source(source)
    (site,) = recipe.match(graph, Contract())
    text = emit_source(source, graph, [(recipe, site, setting)])
    for old, new in replaced.values():
        assert old in text
        text = text.replace(old, new)
    torch.manual_seed(0)
    model = import_source(text).ModelNew()
    with torch.no_grad():
        return model(x), model


def relative_error(found: torch.Tensor, model: torch.nn.Module, x: torch.Tensor) -> float:
    with torch.no_grad():
        expected = torch.nn.functional.conv2d(x.double(), model.op.weight.double())
    return float((found.double() - expected).norm() / expected.norm())


def tf32_error(model: torch.nn.Module, x: torch.Tensor) -> float:
    """What operands rounded to the nearest TF32 cost."""

    def rounded(value: torch.Tensor) -> torch.Tensor:
        return ((value.detach().contiguous().view(torch.int32) + 0x1000) & -8192).view(
            torch.float32
        )

    found = torch.nn.functional.conv2d(rounded(x).double(), rounded(model.op.weight).double())
    return relative_error(found, model, x)


@pytest.mark.parametrize("scale", [1.0, 1e5, 1e-5, 1e-36])
@pytest.mark.parametrize("name", ROUNDING)
def test_one_term_errs_as_tf32_does_at_any_magnitude(name: str, scale: float) -> None:
    source = problem("Conv2d(32, 16, 3, bias=False)", (1, 32, 8, 8))
    x = torch.rand(1, 32, 8, 8) * scale
    (setting,) = variants(RECIPES[name], source, 1)
    on_gpu = {
        "implicit-gemm-conv": {
            "weights": ("tf32 = not w.is_cpu", "tf32 = True"),
            "image": ("tf32 = not x.is_cpu", "tf32 = True"),
        },
        "staged-half-conv": {
            "weights": ("torch.float32 if w.is_cpu else torch.float16", "torch.float16"),
            "image": ("if x.is_cpu:\n        high =", "if False:\n        high ="),
        },
    }
    found, model = run_at(RECIPES[name], source, setting, x, **on_gpu[name])
    assert 1e-6 < relative_error(found, model, x) <= 1.3 * tf32_error(model, x)


def test_values_that_are_not_finite_reach_the_outputs_they_reach_in_torch() -> None:
    source = problem("Conv2d(8, 8, 3)", (1, 8, 7, 7))
    x = torch.randn(1, 8, 7, 7)
    x[0, 1, 0, 0] = float("inf")
    x[0, 3, 6, 6] = float("-inf")
    x[0, 5, 0, 6] = float("nan")
    for recipe in (STAGED, SPLIT):
        found, model = run_at(recipe, source, variants(recipe, source, 1)[0], x)
        with torch.no_grad():
            expected = model.op(x)
        assert torch.equal(found.isnan(), expected.isnan()) and torch.equal(
            found.isinf(), expected.isinf()
        )
        assert torch.equal(found[found.isinf()], expected[expected.isinf()])
        finite = expected.isfinite()
        assert float((found[finite] - expected[finite]).norm() / expected[finite].norm()) < 1e-6


@pytest.mark.parametrize(("dtype", "rounds"), [("float32", True), ("bfloat16", False)])
def test_what_rounds_as_tf32_does_is_kept_to_the_size_at_which_eager_does(
    dtype: str, rounds: bool
) -> None:
    """Half precision rounds its operands once at any size, as eager does."""
    source = problem("Conv2d(16, 8, 3)", (1, 16, 5, 6), dtype)
    _, graph = trace_source(source)
    kept = {}
    for name, recipe in {
        **RECIPES,
        "channels-last-conv": load_recipe(load_skill(ROOT / "skills" / "channels-last-conv")),
    }.items():
        for site in recipe.match(graph, Contract()):
            kept[name] = recipe.emit(site, recipe.space(site, H200).settings()[0]).own_size_only
    assert kept == {
        **dict.fromkeys((*ROUNDING, "channels-last-conv"), rounds),
        **({"split-half-conv": False} if rounds else {}),
    }


def test_grouped_fp32_is_never_rounded() -> None:
    source = problem("Conv2d(16, 8, 3, groups=2)", (1, 16, 5, 6))
    _, graph = trace_source(source)
    assert [len(recipe.match(graph, Contract())) for recipe in (DIRECT, STAGED, SPLIT)] == [0, 0, 1]


@pytest.mark.parametrize(
    ("call", "shape", "argument"),
    [
        ("Conv2d(8, 8, 3, groups=8)", (1, 8, 5, 6), "x"),
        ("Conv2d(8, 8, 3)", (1, 5, 6, 8), "x.permute(0, 3, 1, 2)"),
    ],
)
def test_depthwise_and_strided_ones_are_not_matched(
    call: str, shape: tuple[int, ...], argument: str
) -> None:
    _, graph = trace_source(problem(call, shape).replace("self.op(x)", f"self.op({argument})"))
    assert all(recipe.match(graph, Contract()) == [] for recipe in RECIPES.values())


def test_transposed_ones_with_a_stride_are_left_to_the_phases() -> None:
    _, graph = trace_source(problem("ConvTranspose2d(8, 8, 3, stride=(1, 2))", (1, 8, 5, 6)))
    assert all(recipe.match(graph, Contract()) == [] for recipe in RECIPES.values())


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(
    ("call", "result", "nodes"),
    [  # whole tiles and masked ones, with a bias and without; one value left, or each scaled
        ("Conv2d(4, 16, 3)", "(y * 2).softmax(1) * 3", 4),
        ("Conv2d(4, 24, 3, padding=1)", "y.min(1, keepdim=True)[0].tanh().tanh()", 6),
        ("Conv2d(4, 24, 3, bias=False)", "(y.relu() * self.scale - y.mean(1, True)) / 3", 6),
        ("Conv2d(4, 8, 1)", "y.logsumexp(1)", 2),
        ("ConvTranspose2d(4, 8, 3)", "(y * self.scale).std(1, keepdim=True)", 3),
        ("Conv2d(4, 8, 3, groups=2)", "y.amax(1)", 1),  # no tile holds both groups
        ("Conv2d(4, 8, 3)", "y.softmax(1) + y", 3),
        ("Conv2d(4, 8, 3)", "y.softmax(2)", 1),
    ],
)
def test_reductions_over_the_channels_of_a_tile_are_written_with_it(
    call: str, result: str, nodes: int
) -> None:
    channels = int(call.split(",")[1])
    source = problem(call, (2, 4, 7, 9), result=result, channels=channels)
    _, graph = trace_source(source)
    (site,) = SPLIT.match(graph, Contract())
    assert len(site.nodes) == nodes, site.nodes
    check_recipe(SPLIT, source, H200, settings=variants(SPLIT, source, 1), tolerance=1e-6)


def test_regions_are_grown_only_where_a_reduction_may_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A network has hundreds of convolutions: growing every region for each took a minute."""
    grown = []

    def grow(graph: OpGraph) -> list[FoundRegion]:
        grown.append(graph)
        return find_row_regions(graph)

    monkeypatch.setattr(chain, "find_row_regions", grow)
    both = "self.op(self.op(y.relu()).tanh()).sigmoid().softmax(1).relu()"
    _, graph = trace_source(problem("Conv2d(8, 8, 3)", (1, 8, 9, 9), result=both))
    first, second, third = SPLIT.match(graph, Contract())
    assert [len(site.nodes) for site in (first, second, third)] == [2, 2, 4]
    assert len(grown) == 1


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(
    ("call", "result", "nodes"),
    [  # rows and columns that no window reaches, a padded tile, groups, and what does not fit
        ("Conv2d(4, 16, 3)", "F.max_pool2d(y.tanh(), 2) * self.scale + 1", 5),
        ("Conv2d(4, 24, 3, groups=2)", "F.avg_pool2d(y * self.scale, (2, 4)).sigmoid()", 4),
        ("Conv2d(4, 8, 3, padding=1, bias=False)", "F.max_pool2d(y, 2)", 2),
        ("ConvTranspose2d(4, 8, 3)", "F.max_pool2d(F.mish(y), 4, 4)", 3),
        ("Conv2d(4, 8, 3)", "F.max_pool2d(y, 3)", 1),
        ("Conv2d(4, 8, 3)", "F.max_pool2d(y, 2, 1)", 1),
        ("Conv2d(4, 8, 3)", "F.avg_pool2d(y, 2, ceil_mode=True)", 1),
        ("Conv2d(4, 8, 3)", "F.max_pool2d(y, 2).sum() + y", 1),
    ],
)
def test_a_pooling_whose_windows_a_tile_holds_is_written_with_it(
    call: str, result: str, nodes: int
) -> None:
    channels = int(call.split(",")[1])
    source = problem(call, (2, 4, 13, 11), result=result, channels=channels)
    source = "import torch.nn.functional as F\n" + source
    _, graph = trace_source(source)
    (site,) = SPLIT.match(graph, Contract())
    assert len(site.nodes) == nodes, site.nodes
    check_recipe(SPLIT, source, H200, settings=variants(SPLIT, source, 1), tolerance=1e-6)


def test_a_pooled_tile_of_volumes_keeps_what_is_no_number() -> None:
    source = problem("Conv3d(2, 4, 2)", (1, 2, 5, 6, 7), result="torch.max_pool3d(y, 2) * 2")
    module, graph = trace_source(source)
    (site,) = SPLIT.match(graph, Contract())
    assert len(site.nodes) == 3
    (setting,) = variants(SPLIT, source, 1)
    check_recipe(SPLIT, source, H200, settings=[setting], tolerance=1e-6)
    emitted = import_source(emit_source(source, graph, [(SPLIT, site, setting)]))
    model, candidate = module.Model(), emitted.ModelNew()
    candidate.load_state_dict(model.state_dict())
    (x,) = module.get_inputs()
    x[0, 1, 2, 2, 2] = float("nan")
    with torch.no_grad():
        expected = model(x)
        assert torch.equal(candidate(x).isnan(), expected.isnan()) and expected.isnan().any()


@pytest.mark.parametrize("name", ["split-half-conv", "implicit-gemm-conv"])
@pytest.mark.parametrize(("channels", "rungs"), [(8, 2), (64, 3)])
def test_what_follows_is_exact_on_the_last_rung(name: str, channels: int, rungs: int) -> None:
    source = problem(
        f"Conv2d({channels}, 64, 3)", (2, channels, 32, 32), result="nn.functional.mish(y)"
    )
    (site,) = RECIPES[name].match(trace_source(source)[1], Contract())
    space = RECIPES[name].space(site, H200)
    found = space.knobs["ACCURACY"]
    is_split_alone = name == "split-half-conv"  # its first rung has three products
    assert found == tuple(range(2 if is_split_alone else rungs))
    texts = [written(name, site, rung) for rung in found]
    assert ["stable_exp" in text for text in texts] == [False] * (len(found) - 1) + [True]
    assert all("kmem_exp(" in text for text in texts[:-1])


@pytest.mark.parametrize(
    ("call", "is_exact"),
    [
        ("Conv2d(3, 32, 3, stride=2, padding=1)", True),  # level 3's MobileNetV2
        ("Conv2d(3, 24, 3, stride=2, padding=1)", True),  # its ShuffleNet
        ("Conv2d(3, 64, 7, stride=2, padding=3)", False),  # its ResNet18
        ("Conv2d(3, 8, 3)", False),
        ("Conv2d(16, 64, 3)", False),
    ],
)
def test_pictures_under_few_taps_begin_with_split_products(call: str, is_exact: bool) -> None:
    channels = int(call[len("Conv2d(") :].split(",")[0])
    _, graph = trace_source(problem(call, (2, channels, 32, 32)))
    (site,) = DIRECT.match(graph, Contract())
    assert site.detail.is_eager_exact == is_exact
    if is_exact:
        (tf32,) = DIRECT.match(graph, Contract(precision=Precision.TF32))
        assert not tf32.detail.is_eager_exact


def written(name: str, site, rung: int) -> str:
    """The kernels of some setting on a rung."""
    setting = RECIPES[name].space(site, H200).settings()[0] | {"ACCURACY": rung}
    return "".join(text for _, text in RECIPES[name].emit(site, setting).kernels)
