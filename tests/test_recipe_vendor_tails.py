"""skills/vendor-half-conv: reductions over channels, poolings, norms and means behind convolutions,
against torch in the interpreter.
"""

import copy
from pathlib import Path

import pytest
import torch

from kmem.devices import named_target
from kmem.host.imitated_device import ImitatedDevice
from kmem.measure.oracle.correctness import measure_error
from kmem.measure.oracle.inputs.families import apply_family
from kmem.measure.oracle.inputs.traits import InputTraits
from kmem.records import Contract, Precision
from kmem.skills import load_recipe, load_skill
from kmem.testing import check_recipe, emit_source, import_source, trace_source

SKILLS = Path(__file__).resolve().parent.parent / "skills"
RECIPE = load_recipe(load_skill(SKILLS / "vendor-half-conv"))
H200 = named_target("h200")
TF32 = Contract(Precision.TF32)
PROBLEM = """
import torch, torch.nn as nn, torch.nn.functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.op = nn.{call}
        self.norm = nn.{norm}
        self.scale = nn.Parameter(torch.randn(12, 1, 1))
    def forward(self, x):
        y = self.op(x)
        return {result}
def get_inputs():
    return [torch.randn({shape})]
"""
CONV, SHAPE = "Conv2d(8, 12, 3)", (2, 8, 12, 13)
GROUPS, BATCH = "GroupNorm(3, 12)", "BatchNorm2d(12)"
CASES = {
    "a minimum over channels": (
        CONV, SHAPE, "torch.min(y * 2, dim=1, keepdim=True)[0]", "Identity()",
    ),
    "a sum of exponentials without its axis": (CONV, SHAPE, "torch.logsumexp(y, 1)", "Identity()"),
    "a softmax over channels": (CONV, SHAPE, "F.softmax(y, dim=1).sigmoid()", "Identity()"),
    "a pooling between activations": (
        "ConvTranspose2d(8, 12, 3, 2)", (2, 8, 5, 6), "F.mish(F.max_pool2d(F.hardswish(y), 2))",
        "Identity()",
    ),
    "windows in depth": (
        "Conv3d(8, 12, 3, padding=1)", (1, 8, 5, 6, 7), "F.avg_pool3d(y, 2)", "Identity()",
    ),
    "a sum of all that was pooled": (
        CONV, SHAPE, "torch.sum(F.avg_pool2d(y, 2).sigmoid(), dim=[1, 2, 3])", "Identity()",
    ),
    "a mean of what was pooled": (
        "ConvTranspose2d(8, 12, 3, 2, 1, 1)", (2, 8, 5, 6),
        "torch.mean(F.max_pool2d(y, 2), dim=(2, 3))", "Identity()",
    ),
    "a mean over positions": (CONV, SHAPE, "F.adaptive_avg_pool2d(F.gelu(y), 1)", "Identity()"),
    "a norm of groups": (CONV, SHAPE, "self.norm(F.gelu(y)) * self.scale", GROUPS),
    "a norm of instances": (CONV, SHAPE, "self.norm(y) / 2", "InstanceNorm2d(12)"),
    "a norm, and what it read": (CONV, SHAPE, "torch.tanh(self.norm(y)) + y", GROUPS),
    "a norm and a pooling of less": (
        CONV, SHAPE, "F.max_pool2d(self.norm(y) * self.scale, 4).clamp(0, 1)", GROUPS,
    ),
    "a norm of grouped channels": (
        "Conv2d(8, 12, 3, groups=2)", SHAPE, "self.norm(y.relu())", GROUPS,
    ),
    "phases of a place, and a norm": (
        "ConvTranspose2d(8, 12, 4, 2, 1, 1)", (2, 8, 5, 6), "self.norm(y) * self.scale", GROUPS,
    ),
    "phases in depth, and a pooling": (
        "ConvTranspose3d(8, 12, (3, 4, 6), (1, 2, 3), (1, 0, 2))", (1, 8, 2, 3, 4),
        "F.max_pool3d(y, 2)", "Identity()",
    ),
    "uneven phases, a pooling and a mean": (
        "ConvTranspose3d(8, 12, 3, 2, 1, 1)", (1, 8, 2, 3, 4),
        "F.max_pool3d(y, 2).mean((2, 3, 4))", "Identity()",
    ),
    "uneven phases and a norm": (
        "ConvTranspose2d(8, 12, 3, 2, 1, 1)", (2, 8, 5, 6), "self.norm(y) * self.scale", GROUPS,
    ),
    "a norm over rows": (
        "ConvTranspose3d(8, 12, 3, 2, 1, 1)", (1, 8, 2, 3, 4), "F.gelu(self.norm(y * 2))",
        "LayerNorm(8)",
    ),
    "a norm over rows, and a pooling": (
        "ConvTranspose3d(8, 12, 4, 2, 1)", (1, 8, 2, 3, 8),
        "F.gelu(F.avg_pool3d(self.norm(y), 2))", "LayerNorm(16)",
    ),
    "phases of a row": ("ConvTranspose1d(8, 12, 6, 2, 2, 1)", (2, 8, 9), "y * 2", "Identity()"),
    "a norm over images": (CONV, SHAPE, "self.norm(torch.tanh(y) * y) * 2", BATCH),
}  # fmt: skip


def problem(call: str, shape: tuple[int, ...], result: str, norm: str) -> str:
    return PROBLEM.format(call=call, shape=shape, result=result, norm=norm)


def cut(name: str):
    source = problem(*CASES[name])
    _, graph = trace_source(source, TF32.precision)
    (site,) = RECIPE.match(graph, TF32)
    return source, graph, site


@pytest.fixture
def one_part_takes_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    write = RECIPE.emit.__globals__["emit_vendor"].__globals__["write_statistics"]
    monkeypatch.setitem(write.__globals__, "_PROGRAMS", 3)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("one_part_takes_several_tiles")
def test_what_follows_is_written_with_the_convolution(name: str) -> None:
    source, graph, site = cut(name)
    left = {node.name for node in graph.nodes if node.target != "aten.add_.Tensor"}
    assert set(site.nodes) == left
    settings = {**RECIPE.space(site, H200).settings()[0], "finish": 4096, "channels": 64}
    check_recipe(
        RECIPE, source, H200, settings=[{**settings, "finish": 256}], contract=TF32, tolerance=2e-6
    )


@pytest.mark.usefixtures("one_part_takes_several_tiles")
def test_statistics_move_along_and_survive_what_is_not_finite() -> None:
    source, graph, site = cut("a norm over images")
    settings = {**RECIPE.space(site, H200).settings()[0], "finish": 256}
    module = import_source(emit_source(source, graph, [(RECIPE, site, settings)]))
    torch.manual_seed(0)
    model, reference = module.ModelNew(), module.Model()
    reference.load_state_dict(model.state_dict())
    x = torch.randn(SHAPE) + 4.0  # deviations smaller than the mean
    with torch.no_grad(), ImitatedDevice("cpu"):
        found = model(x)
    with torch.no_grad():
        expected = reference(x)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(
            getattr(model.norm, name), getattr(reference.norm, name), rtol=2e-3, atol=2e-3
        )
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    x[0, 0, 0, 0] = float("inf")
    with torch.no_grad(), ImitatedDevice("cpu"):
        assert not model(x).isfinite().any()  # every channel meets it


@pytest.mark.parametrize(
    "name",
    [
        "a mean of what was pooled",
        "a softmax over channels",
        "phases in depth, and a pooling",
        "a norm over rows, and a pooling",
    ],
)
def test_what_is_not_finite_spreads_as_far_as_in_torch(name: str) -> None:
    """On an H200 taps of zeros made NaN of all means behind phases of an infinite input."""
    source, graph, site = cut(name)
    settings = {**RECIPE.space(site, H200).settings()[0], "finish": 256}
    module = import_source(emit_source(source, graph, [(RECIPE, site, settings)]))
    torch.manual_seed(0)
    model, reference = module.ModelNew(), module.Model()
    reference.load_state_dict(model.state_dict())
    in_double = copy.deepcopy(reference).double()
    generator = torch.Generator().manual_seed(5)
    for family in ("infinite", "infinite rows"):
        x = torch.rand(CASES[name][1])
        apply_family(family, [x], [InputTraits(fixed=False)], generator)
        with torch.no_grad():
            right, eager = in_double(x.double()), reference(x)
            with ImitatedDevice("cpu"):
                found = model(x)
        assert right.isinf().any() or right.isnan().any()
        assert measure_error(found, right, eager).fault is None, family


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        ("ConvTranspose2d(8, 12, 4, 2, 1)", (2, 8, 5, 6)),
        # the first phase of each axis has a tap more: four convolutions
        ("ConvTranspose2d(8, 12, 3, 2, 1, 1)", (2, 8, 5, 6)),
        ("ConvTranspose3d(8, 12, (3, 2, 5), (2, 1, 3), (1, 0, 2))", (2, 8, 2, 5, 4)),
        ("ConvTranspose1d(8, 12, 7, 3, 1, 1)", (2, 8, 30)),
        # no strides: the taps turned
        ("ConvTranspose2d(8, 12, 3, 1, 1)", (2, 8, 5, 6)),
    ],
)
def test_phases_are_those_of_finite_and_other_values(call: str, shape: tuple[int, ...]) -> None:
    source = problem(call, shape, "y.relu()", "Identity()")
    _, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    space = RECIPE.space(site, H200)
    assert space.knobs["transposed"] == ("phases", "strided")
    setting = {**space.settings()[0], "finish": 512}
    assert "kmem_nhwc_phase_weights" in RECIPE.emit(site, setting).launcher
    module = import_source(emit_source(source, graph, [(RECIPE, site, setting)]))
    torch.manual_seed(0)
    model, reference = module.ModelNew(), module.Model()
    reference.load_state_dict(model.state_dict())
    x = torch.randn(shape)
    x[0, 1].view(-1)[0], x[1, 2].view(-1)[-1] = float("inf"), float("nan")
    with torch.no_grad():
        expected = reference(x)
        with ImitatedDevice("cpu"):
            found = model(x)
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3, equal_nan=True)


def test_what_alone_is_left_of_a_place_is_not_made_in_half_precision() -> None:
    """Rounding what the library makes was 3.2 times what a logsumexp may err on an H200."""
    for name, halves, rungs in (
        ("a sum of exponentials without its axis", False, (0, 1)),
        ("a softmax over channels", True, (0, 1, 2)),
    ):
        _, _, site = cut(name)
        space = RECIPE.space(site, H200)
        launcher = RECIPE.emit(site, space.settings()[0]).launcher
        assert ("torch.float16" in launcher, space.knobs["ACCURACY"]) == (halves, rungs)


def test_an_axis_whose_phases_lack_taps_has_no_convolution_of_them() -> None:
    lacking = problem("ConvTranspose2d(8, 12, 2, 3)", (2, 8, 5, 6), "y", "Identity()")
    _, graph = trace_source(lacking)
    (site,) = RECIPE.match(graph, Contract())
    assert RECIPE.space(site, H200).knobs["transposed"] == ("strided",)


def test_a_value_that_something_else_reads_is_not_taken() -> None:
    source = problem(CONV, SHAPE, "(self.norm(y).relu(), y)", GROUPS)
    _, graph = trace_source(source, TF32.precision)
    (site,) = RECIPE.match(graph, TF32)
    assert site.nodes == ("conv2d",)
    source = problem(CONV, SHAPE, "F.max_pool2d(y, 3)", "Identity()")  # 9 are no power of two
    _, graph = trace_source(source, TF32.precision)
    (site,) = RECIPE.match(graph, TF32)
    assert site.nodes == ("conv2d",)


# --- chains of convolutions

CHAIN = """
import torch, torch.nn as nn, torch.nn.functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(16, 20, 3, padding=1, bias=False)
        self.b = nn.ConvTranspose2d(20, 24, 3, 2, bias=False)
        self.c = nn.Conv2d(24, 8, 1)
        self.norm = nn.BatchNorm2d(20)
        self.scale = nn.Parameter(torch.randn(24, 1, 1))
    def forward(self, x):
        return {result}
def get_inputs():
    return [torch.rand(4, 16, 5, 4)]
"""


def chain(result: str):
    source = CHAIN.format(result=result)
    _, graph = trace_source(source)
    return source, graph, RECIPE.match(graph, Contract())


@pytest.mark.usefixtures("one_part_takes_several_tiles")
def test_convolutions_hand_on_norms_and_poolings_staged() -> None:
    first = "torch.relu(self.norm(self.a(x) * 2))"
    second = f"F.max_pool2d(torch.relu(self.b({first})) * self.scale, 2)"
    source, graph, (site,) = chain(f"torch.relu(self.c({second}))")
    assert len(site.nodes) == len(graph.nodes) - 1  # all but the count of batches
    setting = {**RECIPE.space(site, H200).settings()[0], "finish": 256}
    assert "kmem_nhwc_pass" in RECIPE.emit(site, setting).launcher
    check_recipe(RECIPE, source, H200, settings=[setting], tolerance=2e-6)


def test_a_chain_scales_every_image_anew() -> None:
    source, graph, (site,) = chain("self.b(torch.relu(self.a(x)))")
    setting = RECIPE.space(site, H200).settings()[0]
    module = import_source(emit_source(source, graph, [(RECIPE, site, setting)]))
    torch.manual_seed(0)
    model, reference = module.ModelNew(), module.Model().double()
    reference.load_state_dict(model.state_dict())
    magnitudes = torch.tensor([1.0, 1e6, 1e-7, 0.0]).view(4, 1, 1, 1)
    x = torch.randn(4, 16, 5, 4) * magnitudes
    with torch.no_grad(), ImitatedDevice("cpu"):
        found = model(x)
    with torch.no_grad():
        expected = reference(x.double())
    for image in range(4):
        error = (found[image] - expected[image]).norm()
        assert error <= 1.5e-3 * expected[image].norm(), image
    assert (found[0] - expected[0]).norm() > 1e-5 * expected[0].norm()  # it is rounded at all


def test_what_is_read_elsewhere_is_not_handed_on() -> None:
    _, _, sites = chain("(lambda y: self.b(y) + self.b(y * 2))(torch.relu(self.a(x)))")
    assert [site.name for site in sites] == ["conv2d", "conv_transpose2d", "conv_transpose2d_1"]
