"""skills/vendor-half-conv: convolutions in the library's half precision, with kernels around them,
against torch in the interpreter, and compiled for sm_90.
"""

from pathlib import Path

import pytest
import torch
from compile_sm90 import compile_jobs

from kmem.devices import named_target
from kmem.host import imitated_device
from kmem.host.imitated_device import ImitatedDevice
from kmem.measure.source_check import check_source
from kmem.records import Contract, Precision, Purity
from kmem.skills import load_recipe, load_skill
from kmem.testing import check_recipe, emit_source, import_source, trace_source

SKILLS = Path(__file__).resolve().parent.parent / "skills"
RECIPE = load_recipe(load_skill(SKILLS / "vendor-half-conv"))
H200 = named_target("h200")
TF32 = Contract(Precision.TF32)


def problem(
    call: str, shape: tuple[int, ...], *, before: str = "x", result: str = "y", dtype: str = ""
) -> str:
    dtype = dtype or "float32"
    channels = call.split(", ")[1].strip(")")
    return (
        "import torch, torch.nn as nn\nclass Model(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n"
        f"        self.op = nn.{call[:-1]}, dtype=torch.{dtype})\n"
        f"        self.scale = nn.Parameter(torch.randn({channels}, 1, 1).to(torch.{dtype}))\n"
        f"    def forward(self, x):\n        y = self.op({before})\n        return {result}\n"
        f"def get_inputs():\n    return [torch.randn({shape}).to(torch.{dtype})]\n"
    )


def only_site(source: str, contract: Contract):
    _, graph = trace_source(source, contract.precision)
    (site,) = RECIPE.match(graph, contract)
    return graph, site


@pytest.mark.parametrize(
    ("call", "shape", "around", "nodes"),
    [
        ("Conv1d(10, 20, 3, 3, dilation=4)", (2, 10, 40), {}, 1),
        ("Conv2d(9, 12, (3, 5), 2, (1, 2), 2)", (2, 9, 9, 11), {"result": "y.relu() * 0.5"}, 3),
        ("Conv2d(16, 24, 1, bias=False)", (1, 16, 5, 6), {}, 1),
        ("Conv2d(3, 4, 3, padding='same')", (3, 3, 5, 6), {"result": "y + self.scale"}, 2),
        ("Conv2d(3, 4, (2, 3), padding='same')", (2, 3, 5, 6), {}, 1),
        ("Conv1d(8, 4, 4, padding='same', dilation=3)", (2, 8, 20), {"result": "y.relu()"}, 2),
        ("Conv3d(8, 4, (3, 2, 3), bias=False)", (1, 8, 5, 4, 6), {}, 1),
        ("ConvTranspose1d(10, 20, 3, 2, output_padding=1, dilation=2)", (1, 10, 13), {}, 1),
        ("ConvTranspose2d(9, 6, (1, 5), 2, (0, 2))", (2, 9, 7, 6), {"result": "y.sigmoid()"}, 2),
        ("ConvTranspose3d(8, 4, (3, 2, 3), 2, 1, 1)", (1, 8, 3, 4, 2), {}, 1),
        ("Conv2d(8, 8, 3, groups=2)", (2, 8, 6, 7), {"before": "x.relu() + self.scale"}, 3),
        ("ConvTranspose2d(8, 12, 3, 2, groups=2)", (2, 8, 5, 4), {}, 1),
        (
            "Conv2d(8, 8, 3)",
            (2, 8, 6, 7),
            {"before": "(x + self.scale) * 2", "result": "nn.functional.mish(y) / (y.exp() + 1)"},
            7,
        ),
    ],
)
def test_every_window_agrees_with_torch(
    call: str, shape: tuple[int, ...], around: dict[str, str], nodes: int
) -> None:
    source = problem(call, shape, **around)
    _, site = only_site(source, TF32)
    assert len(site.nodes) == nodes
    settings = RECIPE.space(site, H200).settings()
    chosen = [settings[0], {**settings[-1], "ACCURACY": 1}]
    check_recipe(RECIPE, source, H200, settings=chosen, contract=TF32, tolerance=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 5e-3), ("float16", 1e-3)])
def test_half_precision_goes_as_it_is(dtype: str, tolerance: float) -> None:
    source = problem("Conv2d(16, 8, 3, groups=2)", (1, 16, 5, 6), dtype=dtype)
    _, site = only_site(source, Contract())
    settings = RECIPE.space(site, H200).settings()
    check_recipe(RECIPE, source, H200, settings=settings[:1], tolerance=tolerance)


def channels_last_problem() -> str:
    source = problem("Conv2d(6, 8, 3)", (2, 6, 5, 7), result="y.relu()")
    return source.replace(
        "torch.float32)]", "torch.float32).contiguous(memory_format=torch.channels_last)]"
    )


def test_channels_last_inputs_are_taken_and_returned_as_they_come() -> None:
    source = channels_last_problem()
    _, site = only_site(source, Contract())
    assert site.outputs[0].spec.stride == (120, 1, 40, 8)
    check_recipe(
        RECIPE, source, H200, settings=RECIPE.space(site, H200).settings()[:1], tolerance=1e-6
    )


def test_what_is_not_its_own_is_not_matched() -> None:
    grouped = problem("Conv2d(8, 8, 3, groups=2)", (1, 8, 5, 6))
    _, graph = trace_source(grouped)
    (site,) = RECIPE.match(graph, Contract())
    assert site.detail.base.is_eager_exact  # and it is ranked so
    depthwise = problem("Conv2d(8, 8, 3, groups=8)", (1, 8, 5, 6), dtype="bfloat16")
    _, graph = trace_source(depthwise)
    assert RECIPE.match(graph, Contract()) == []
    _, graph = trace_source(problem("Conv2d(8, 8, 3)", (1, 8, 5, 6)))
    assert RECIPE.match(graph, Contract(purity=Purity.TRITON)) == []


# --- as on a GPU: operands and result in fp16


def emitted(source: str) -> tuple[str, torch.nn.Module]:
    graph, site = only_site(source, Contract())
    setting = RECIPE.space(site, H200).settings()[0]
    text = emit_source(source, graph, [(RECIPE, site, setting)])
    torch.manual_seed(0)
    return text, import_source(text).ModelNew()


def run_as_on_gpu(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad(), ImitatedDevice("cpu"):
        return model(x)


def in_tf32(value: torch.Tensor) -> torch.Tensor:
    bits = value.detach().contiguous().view(torch.int32)
    return ((bits + 0x1000) & -8192).view(torch.float32).double()


MAGNITUDES = (1.0, 1e5, 1e-5, 1e-36, 30.0, 0.0)


def test_images_of_any_magnitude_err_no_more_than_twice_as_tf32_does() -> None:
    source = problem("Conv2d(32, 16, 3, bias=False)", (6, 32, 8, 40))
    _, model = emitted(source)
    x = torch.randn(6, 32, 8, 40) * torch.tensor(MAGNITUDES).view(6, 1, 1, 1)
    found = run_as_on_gpu(model, x).double()
    weight = model.op.weight.detach()
    right = torch.nn.functional.conv2d(x.double(), weight.double())
    rounded = torch.nn.functional.conv2d(in_tf32(x), in_tf32(weight))
    for image, scale in enumerate(MAGNITUDES):
        error = float((found[image] - right[image]).norm())
        eager = float((rounded[image] - right[image]).norm())
        assert error <= 2 * eager, scale
        assert scale == 0.0 or error > 0.5 * eager  # it is rounded at all


def test_no_finite_value_overflows() -> None:
    _, model = emitted(problem("Conv2d(32, 16, 3, bias=False)", (1, 32, 6, 6)))
    with torch.no_grad():
        model.op.weight.copy_(torch.full_like(model.op.weight, 0.123))
    x = torch.full((1, 32, 6, 6), 15.999)
    expected = torch.nn.functional.conv2d(x.double(), model.op.weight.double())
    torch.testing.assert_close(
        run_as_on_gpu(model, x).double(), expected, rtol=2e-3, atol=0.0, check_dtype=False
    )


def test_values_that_are_not_finite_reach_the_outputs_they_reach_in_torch() -> None:
    _, model = emitted(problem("Conv2d(8, 8, 3)", (2, 8, 7, 7), result="y.relu()"))
    with torch.no_grad():
        model.op.weight[:, 1] *= 1e-9  # zero in fp16, were it left to rounding
    x = torch.randn(2, 8, 7, 7)
    x[0, 1, 0, 0], x[0, 2, 3, 3], x[0, 3, 6, 6] = float("inf"), float("-inf"), float("nan")
    found = run_as_on_gpu(model, x)
    expected = torch.nn.functional.conv2d(x, model.op.weight, model.op.bias).relu()
    kinds = (torch.isnan, torch.isposinf)
    assert all(torch.equal(kind(found), kind(expected)) for kind in kinds)
    finite = expected.isfinite()
    torch.testing.assert_close(found[finite], expected[finite], rtol=2e-3, atol=2e-3)


def test_weights_are_staged_once_and_again_when_they_change() -> None:
    source = problem("Conv2d(8, 8, 3)", (1, 8, 6, 6))
    text, model = emitted(source)
    assert "_Launch(kmem_conv_nhwc_finish" in text  # through the compiled kernel's handle
    launcher = text[text.index("def _launch_conv") : text.index("def _stage(")]
    assert "kmem_nhwc_weights" not in launcher and "_nhwc_weights(" not in launcher
    assert check_source(text, problem_source=source) == []
    x = torch.randn(1, 8, 6, 6)
    before = run_as_on_gpu(model, x)
    with torch.no_grad():
        model.op.weight.mul_(2.0)
        model.op.bias.zero_()
        expected = model.op(x)
    assert not torch.equal(before, run_as_on_gpu(model, x))
    torch.testing.assert_close(run_as_on_gpu(model, x), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", ["vendor-half-conv", "channels-last-conv"])
def test_the_library_is_told_what_the_process_asks_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, source = (
        load_recipe(load_skill(SKILLS / name)),
        problem("Conv2d(8, 8, 3)", (1, 8, 6, 6)),
    )
    _, graph = trace_source(source)
    (site,) = recipe.match(graph, Contract())
    setting = recipe.space(site, H200).settings()[0]
    model = import_source(emit_source(source, graph, [(recipe, site, setting)])).ModelNew()
    plain = imitated_device._OTHERWISE[torch.cudnn_convolution]
    told = []

    def convolve(*given: object) -> torch.Tensor:
        told.append(given[7:])  # deterministic, and whether TF32 is allowed
        return plain(*given)

    monkeypatch.setitem(imitated_device._OTHERWISE, torch.cudnn_convolution, convolve)
    x = torch.randn(1, 8, 6, 6)
    run_as_on_gpu(model, x)
    with torch.backends.cudnn.flags(deterministic=True):
        run_as_on_gpu(model, x)
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # the older flag cannot be read then
    torch.use_deterministic_algorithms(mode=True)
    try:
        run_as_on_gpu(model, x)
    finally:
        torch.use_deterministic_algorithms(mode=False)
        torch.backends.cudnn.allow_tf32 = True
    assert told == [(False, True), (True, True), (True, False)]


def test_both_kernels_move_whole_vectors_without_spills_on_sm90() -> None:
    source = problem("Conv2d(64, 128, 3)", (8, 64, 128, 128), result="nn.functional.mish(y)")
    _, site = only_site(source, Contract())
    setting = RECIPE.space(site, H200).settings()[0]
    (kernels,) = compile_jobs([["vendor-half-conv", source, "match", setting]], "ptx")
    found = {kernel["name"].removeprefix("kmem_nhwc_")[:6]: kernel for kernel in kernels}
    assert set(found) == {"weight", "stage", "restag", "finish"}
    for name in ("stage", "restag", "finish"):
        assert found[name]["stack"] == 0 and found[name]["registers"] <= 128, name
        assert "ld.global.v4.b32" in found[name]["ptx"], name
        assert "st.global.v4.b32" in found[name]["ptx"], name
