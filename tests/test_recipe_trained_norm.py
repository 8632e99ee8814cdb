"""A batch norm in training mode behind a convolution: its statistics are left by the tiles."""

from pathlib import Path

import pytest
import torch
from compile_sm90 import compile_jobs

from kmem.codegen.convolutions import norming
from kmem.codegen.convolutions.convolution import Convolution
from kmem.devices import named_target
from kmem.records import Contract
from kmem.skills import load_recipe, load_skill
from kmem.testing import check_recipe, emit_source, import_source, trace_source

SKILLS = Path(__file__).parent.parent / "skills"
H200 = named_target("h200")
NAMES = ("staged-half-conv", "split-half-conv", "implicit-gemm-conv")
RECIPES = {name: load_recipe(load_skill(SKILLS / name)) for name in NAMES}

#: A remainder in positions and channels, and several tiles of both.
SOURCE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 20, {conv})
        self.norm = nn.BatchNorm2d(20{norm})
        self.other = nn.Parameter(torch.randn(20, 1, 1))

    def forward(self, x):
        y = self.norm(self.conv(x))
        return {result}

def get_inputs():
    return [torch.randn(2, 16, 9, 17){shift}]
"""


def source(
    conv: str = "3, padding=1", norm: str = "", result: str = "torch.relu(y)", shift: str = ""
) -> str:
    return SOURCE.format(conv=conv, norm=norm, result=result, shift=shift)


def one_setting(name: str, text: str) -> dict:
    _, graph = trace_source(text)
    (site,) = RECIPES[name].match(graph, Contract())
    return RECIPES[name].space(site, H200).settings()[0]


CASES = {
    "relu": source(),
    "a residual": source(norm=", momentum=0.3", result="torch.relu(y + x[:, :1]) * self.other"),
    "a whole residual": source("1", result="y + torch.cat([x, x[:, :4]], 1)"),
    "nothing behind": source(norm=", affine=False", result="y"),
    "no running statistics": source(norm=", track_running_stats=False"),
    "no bias": source("3, padding=1, bias=False", norm=", eps=0.1"),
    "groups": source("3, stride=2, groups=2", result="y.sigmoid()"),
    "a large mean": source(shift=" + 1000.0"),
}


@pytest.mark.parametrize("case", ["relu", "a large mean"])
def test_moments_of_many_parts_are_put_together_in_turns(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norming, "_RESULTS", 4)  # of two images with three parts and more
    name = "split-half-conv"
    tolerance = 2e-3 if case == "a large mean" else 2e-6
    setting = {**one_setting(name, CASES[case]), "block_p": 64}
    check_recipe(RECIPES[name], CASES[case], H200, settings=[setting], tolerance=tolerance)


@pytest.mark.slow(after=4)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", CASES)
def test_a_trained_norm_goes_with_the_convolution(name: str, case: str) -> None:
    text = CASES[case]
    module, graph = trace_source(text)
    sites = RECIPES[name].match(graph, Contract())
    if case == "groups" and name != "split-half-conv":  # cuDNN is exact there
        assert not sites
        return
    (site,) = sites
    assert {"conv2d", "batch_norm"} < {*site.nodes} or case == "nothing behind"
    assert isinstance(site.detail, Convolution) and site.detail.norm is not None
    setting = one_setting(name, text)
    # a mean a thousand times the deviation costs three digits, in eager too
    tolerance = 2e-3 if case == "a large mean" else 2e-6
    check_recipe(RECIPES[name], text, H200, settings=[setting], tolerance=tolerance)
    made = import_source(emit_source(text, graph, [(RECIPES[name], site, setting)]))
    torch.manual_seed(0)
    model, new = module.Model(), made.ModelNew()
    new.load_state_dict(model.state_dict())
    for _ in range(2):
        (x,) = module.get_inputs()
        with torch.no_grad():
            model(x), new(x)
    for (key, one), other in zip(model.named_buffers(), new.buffers(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5, msg=key)


def test_a_mean_far_from_zero_costs_no_more_than_it_costs_eager() -> None:
    text = source("1, bias=False", norm=", affine=False", result="y", shift=" * 0.01 + 300.0")
    name = "split-half-conv"
    module, graph = trace_source(text)
    (site,) = RECIPES[name].match(graph, Contract())
    setting = one_setting(name, text)
    made = import_source(emit_source(text, graph, [(RECIPES[name], site, setting)]))
    torch.manual_seed(0)
    model, new = module.Model(), made.ModelNew()
    new.load_state_dict(model.state_dict())
    exact = module.Model().double()
    exact.load_state_dict(model.state_dict())
    (x,) = module.get_inputs()
    with torch.no_grad():
        right = exact(x.double())
        errors = [(found.double() - right).norm() / right.norm() for found in (model(x), new(x))]
    assert errors[1] <= 2 * errors[0]


def test_values_that_are_not_finite_reach_the_channels_they_reach_in_torch() -> None:
    text = source("1", result="y")
    name = "implicit-gemm-conv"
    module, graph = trace_source(text)
    (site,) = RECIPES[name].match(graph, Contract())
    made = import_source(emit_source(text, graph, [(RECIPES[name], site, one_setting(name, text))]))
    torch.manual_seed(0)
    model, new = module.Model(), made.ModelNew()
    with torch.no_grad():
        model.conv.weight[3] = 0.0
        model.conv.bias[3] = float("inf")
        new.load_state_dict(model.state_dict())
        (x,) = module.get_inputs()
        expected, found = model(x), new(x)
    assert torch.equal(expected.isnan(), found.isnan()) and expected[:, 3].isnan().all()
    torch.testing.assert_close(new.norm.running_mean, model.norm.running_mean)


LEFT = {
    "in eval mode": source().replace("self.other =", "self.eval()\n        self.other ="),
    "the convolution is read elsewhere": source(result="y").replace(
        "y = self.norm(self.conv(x))", "z = self.conv(x)\n        y = self.norm(z) + z"
    ),
    "a momentum that follows the count": source(norm=", momentum=None"),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_is_no_norm_over_what_was_just_made_is_left(case: str) -> None:
    _, graph = trace_source(LEFT[case])
    sites = RECIPES["staged-half-conv"].match(graph, Contract())
    assert all(site.detail.norm is None for site in sites)


COMPILED = {
    "staged, along channels": (
        "staged-half-conv",
        {"block_p": 128, "block_co": 64, "block_k": 64, "sums_along": "channels"},
    ),
    "staged, along positions": (
        "staged-half-conv",
        {"block_p": 128, "block_co": 128, "block_k": 64, "sums_along": "positions"},
    ),
    "three terms": (
        "split-half-conv",
        {"block_p": 128, "block_co": 64, "block_k": 32, "sums_along": "positions"},
    ),
    "direct": ("implicit-gemm-conv", {"block_p": 128, "block_co": 64, "block_k": 16}),
}


@pytest.mark.slow
def test_leaving_moments_spills_nothing_on_sm_90() -> None:
    text = source().replace("16, 9, 17", "64, 56, 56").replace("randn(2, 64", "empty(32, 64")
    text = text.replace("Conv2d(16, 20", "Conv2d(64, 128").replace(
        "BatchNorm2d(20", "BatchNorm2d(128"
    )
    jobs = []
    for skill, knobs in COMPILED.values():
        terms = 3 if skill == "split-half-conv" else 1
        staged = {"terms": terms, "copy_bytes": 16, "warps": 8, "stages": 3}
        more = staged if skill != "implicit-gemm-conv" else {}
        jobs.append((skill, text, "match", {**more, **knobs, "ACCURACY": 0}))
    for name, kernels in zip(COMPILED, compile_jobs(jobs), strict=True):
        assert {"kmem_settle_moments", "kmem_apply_moments"} < {each["name"] for each in kernels}
        told = [(each["name"], each["registers"], each["local"], each["stack"]) for each in kernels]
        assert all(each["local"] == each["stack"] == 0 for each in kernels), (name, told)
        print(name, told)
