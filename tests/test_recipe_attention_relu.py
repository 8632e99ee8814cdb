"""skills/flash-attention: relu in the place of softmax, in which what a mask hides is 0."""

import math

import pytest
import torch
from all_pairs import all_pairs
from attention_sites import H200, RECIPE, TOLERANCES, ranked_first, run, settings_of, site_of
from compile_sm90 import compile_jobs

from kmem.records import Contract
from kmem.testing import check_recipe, import_source, trace_source

SIZES = [(21, 45), (45, 21), (40, 40)]
HELD = (
    "self.register_buffer('m', torch.ones(L, S).tril()); "
    "self.b = torch.nn.Parameter(torch.randn(2, L, S)); "
    "self.t = torch.nn.Parameter(torch.rand(2, 1, 1))"
)


def problem(
    masked: str, sizes: tuple[int, int] = (21, 45), dtype: str = "float32", width: int = 16
) -> str:
    """Attention of relu, whose scores `s` an expression masks."""
    shapes = [(2, 2, rows, width) for rows in (sizes[0], sizes[1], sizes[1])]
    inputs = ", ".join(f"torch.randn({shape}).to(torch.{dtype})" for shape in shapes)
    return (
        "import torch\nimport torch.nn.functional as F\nclass Model(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        f"        L, S = {sizes}\n        torch.manual_seed(3)\n        {HELD}\n"
        f"        self.to(torch.{dtype})\n"
        "    def forward(self, q, k, v):\n"
        "        L, S = q.shape[-2], k.shape[-2]\n"
        "        s = (q @ k.transpose(-2, -1)) * 0.125\n"
        f"        return {masked} @ v\n"
        f"def get_inputs():\n    return [{inputs}]\n"
    )


CAUSAL = "torch.tril(torch.ones(L, S)) == 0"
#: An expression; the upper side of the band, the kind of mask, and what relu is multiplied by
MASKED = {
    "causal": (f"F.relu(s.masked_fill({CAUSAL}, float('-inf')))", 0, "", 1.0),
    "filled with 0": (f"F.relu(s.masked_fill({CAUSAL}, 0.0))", 0, "", 1.0),
    "filled with less": (f"torch.relu(s.masked_fill({CAUSAL}, -1e9)) / 8", 0, "", 0.125),
    "filled with more": (f"F.relu(s.masked_fill({CAUSAL}, 0.5))", None, "hides", 1.0),
    "in place": (f"F.relu(s.masked_fill_({CAUSAL}, 0.0), inplace=True)", 0, "", 1.0),
    "nothing": ("F.relu(s).mul(2.0)", None, "", 2.0),
    "buffer": ("F.relu(s.masked_fill(self.m[:L, :S] == 0, float('-inf')))", None, "hides", 1.0),
    "added": ("F.relu(s + torch.full((L, S), -torch.inf).triu(1).to(q))", None, "added", 1.0),
    "bias": ("F.relu(s + self.b) / 3", None, "added", 1 / 3),
    "all": (f"F.relu((s * self.t + self.b).masked_fill({CAUSAL}, -1e4)) / 3", 0, "", 1 / 3),
}


@pytest.mark.slow(after=4)
@pytest.mark.parametrize(
    ("case", "sizes", "dtype"), all_pairs(list(MASKED), SIZES, list(TOLERANCES))
)
def test_relu_stands_for_softmax(case, sizes, dtype):
    masked, high, mask, gain = MASKED[case]
    source = problem(masked, sizes, dtype)
    _, site = site_of(source)
    detail = site.detail
    assert (detail.activation, detail.gain, detail.band.high) == ("relu", gain, high)
    assert (detail.mask.kind if detail.mask else "") == mask
    assert {setting["form"] for setting in RECIPE.space(site, H200).settings()} == {"fused"}
    tolerance = TOLERANCES[dtype]
    check_recipe(RECIPE, source, H200, settings=settings_of(site), tolerance=tolerance)


@pytest.mark.parametrize(
    ("case", "operand", "special", "dtype"),
    all_pairs(
        ["causal", "buffer", "added", "nothing", "bias"],
        [0, 1, 2],
        [math.inf, -math.inf, math.nan],
        ["float32", "float16"],
    ),
)
def test_what_is_not_finite_reaches_what_it_does_in_torch(case, operand, special, dtype):
    source = problem(MASKED[case][0], (40, 40), dtype)
    module = import_source(source)
    torch.manual_seed(1)
    inputs = module.get_inputs()
    inputs[operand][1, 1, 37, 5] = special
    expected = module.Model()(*inputs)
    (found,) = run(source, inputs)
    assert torch.equal(found.isnan(), expected.isnan())
    near = 1e-5 if dtype == "float32" else 0.01
    assert torch.allclose(found, expected, rtol=near, atol=near, equal_nan=True)


@pytest.mark.parametrize(
    ("scores", "values"), [(1e-20, 1.0), (1e15, 1e-15), (1e15, 1e18), (1e-15, 1e-20)]
)
def test_weights_of_any_size_err_no_more_than_eager(scores, values):
    """Rows of weights have no common scale, and rows of values differ by six orders."""
    source = problem(MASKED["causal"][0], (40, 40))
    module = import_source(source)
    torch.manual_seed(1)
    q, k, v = module.get_inputs()
    q = q * scores * torch.logspace(-3, 3, 40)[:, None]
    v = v * values * torch.logspace(3, -3, 40)[:, None]
    model = module.Model()
    exact = model(q.double(), k.double(), v.double())
    # what sums round: a score, and with it a row, may be little of it by cancellation
    scale = model(*(each.double().abs() for each in (q, k, v))).norm(dim=-1)
    eager = (model(q, k, v).double() - exact).norm(dim=-1) / scale
    found = (run(source, [q, k, v])[0].double() - exact).norm(dim=-1) / scale
    assert exact.norm() > 0 and (found <= 2 * eager + 2e-7).all()


def test_a_weight_beyond_all_others_is_alone_with_its_row():
    """Where each query finds one key, it is given that key's row of values."""
    source = problem("F.relu(s) * 8", (32, 32), width=32)
    eye = torch.eye(32).expand(2, 2, 32, 32).contiguous()
    v = torch.randn(2, 2, 32, 32) * torch.logspace(-30, 30, 32)[:, None]
    assert torch.allclose(run(source, [eye, eye.clone(), v])[0], v, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize(
    "masked",
    [
        "F.relu(s) * -2.0",
        "F.gelu(s)",
        "(torch.softmax(s, -1) * 2.0)",
        "F.relu(s.masked_fill(self.m == 0, float('inf')))",
    ],
)
def test_other_functions_are_left_to_others(masked):
    assert RECIPE.match(trace_source(problem(masked))[1], Contract()) == []


def test_wide_heads_are_left_to_others():
    source = problem("F.relu(s)", (16, 16), width=300)
    assert RECIPE.match(trace_source(source)[1], Contract()) == []


COMPILED = {
    "fp32": (MASKED["causal"][0], "float32", (8, 12, 512)),
    "buffer": (MASKED["buffer"][0], "float32", (16, 12, 1024)),
    "half": (MASKED["causal"][0], "float16", (8, 12, 2048)),
}


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[dict]]:
    """Each case at the setting that is ranked first, compiled for sm_90."""
    jobs = []
    for masked, dtype, (batch, heads, places) in COMPILED.values():
        source = problem(masked, (places, places), dtype, 64).replace(
            "torch.randn((", "torch.empty(("
        )
        source = source.replace("empty((2, 2,", f"empty(({batch}, {heads},")
        jobs.append(ranked_first(source))
    return dict(zip(COMPILED, compile_jobs(jobs, "ptx"), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", COMPILED)
def test_kernels_have_no_exponential_and_do_not_spill(compiled, case):
    for kernel in compiled[case]:
        assert not kernel["stack"] and kernel["shared"] <= 232448, kernel["name"]
    (kernel,) = (each for each in compiled[case] if each["name"] == "kmem_attention")
    assert kernel["hgmma"] > 0 and "ex2.approx" not in kernel["ptx"]
