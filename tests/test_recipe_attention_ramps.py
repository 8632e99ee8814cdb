"""skills/flash-attention: biases of a slope for each head times places (ALiBi), never made."""

import math

import pytest
import torch
from all_pairs import all_pairs
from attention_sites import H200, RECIPE, TOLERANCES, ranked_first, run, settings_of, site_of
from compile_sm90 import compile_jobs

from kmem.records import Contract
from kmem.testing import check_recipe, emit_source, import_source, trace_source

SLOPES = "torch.tensor([0.5, 0.25, 0.125])"
WRITTEN = "torch.softmax(q @ k.transpose(-2, -1) * 0.25 + b, -1) @ v"
CALLED = "F.scaled_dot_product_attention(q, k, v, attn_mask=b.to(q.dtype))"


def problem(
    bias: str,
    call: str = WRITTEN,
    sizes: tuple[int, int] = (21, 45),
    dtype: str = "float32",
    *,
    slopes: str = SLOPES,
    width: int = 16,
) -> str:
    """Attention of three heads with a bias `b`, of places `i` of queries and `j` of keys."""
    shapes = [(2, 3, rows, width) for rows in (sizes[0], sizes[1], sizes[1])]
    inputs = ", ".join(f"torch.randn({shape}).to(torch.{dtype})" for shape in shapes)
    return (
        "import torch\nimport torch.nn.functional as F\nclass Model(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        f"        self.register_buffer('slopes', {slopes})\n        self.to(torch.{dtype})\n"
        "    def forward(self, q, k, v):\n"
        "        L, S = q.shape[-2], k.shape[-2]\n"
        "        i, j = torch.arange(L, device=q.device), torch.arange(S, device=q.device)\n"
        "        m = self.slopes[:, None, None]\n"
        f"        b = {bias}\n        return {call}\n"
        f"def get_inputs():\n    return [{inputs}]\n"
    )


CUT = 1, (-1, 1, 0), (1, -1, 0)
WHOLE = -(2**30)
#: A bias, the difference from which on its second line holds, and both lines
SPELLINGS = {
    "by distance": ("-(i[:, None] - j).abs() * m", CUT, 1.0),
    "slopes on the left": ("m * -torch.abs(j[None, :] - i[:, None])", (0, *CUT[1:]), 1.0),
    "negative behind": ("-(m * (i[:, None] - j).abs())", (1, (1, -1, 0), (-1, 1, 0)), -1.0),
    "in floats": ("(i[:, None] - j).abs().float().mul(-1).to(q.dtype)[None] * m", CUT, 1.0),
    "signed": ("(j - i[:, None]) * m", (WHOLE, (-1, 1, 0), (-1, 1, 0)), 1.0),
    "of the last query": (
        "(torch.arange(1 - S, 1).view(1, 1, S) * m)",
        (WHOLE, (0, 1, -44), (0, 1, -44)),
        1.0,
    ),
    "halved": ("((j - i[:, None]) * m * 0.5)[None]", (WHOLE, (-1, 1, 0), (-1, 1, 0)), 0.5),
    "expanded": ("(-(i[:, None] - j).abs() * m)[None].expand(2, -1, -1, -1)", CUT, 1.0),
    "in four axes": ("-(i[:, None] - j).abs()[None, None] * m[None]", CUT, 1.0),
    "made in the forward": ("-(i[:, None] - j).abs() * (self.slopes * 2).view(3, 1, 1)", CUT, 1.0),
}


@pytest.mark.slow(after=4)
@pytest.mark.parametrize(
    ("spelling", "call", "dtype"), all_pairs(list(SPELLINGS), [WRITTEN, CALLED], list(TOLERANCES))
)
def test_a_bias_of_slopes_and_places_is_never_made(spelling, call, dtype):
    bias, (cut, first, last), scale = SPELLINGS[spelling]
    if dtype != "float32" and spelling == "in floats":
        return  # places do not fit
    source = problem(bias, call, dtype=dtype)
    graph, site = site_of(source)
    found = site.detail.bias
    assert found.constants == (cut, *map(float, (*first, *last)), scale)
    assert found.steps == (0, 1) and site.detail.mask is None
    left = {
        node.target
        for node in graph.nodes
        if node.name not in site.nodes and graph.users(node.name)
    }
    assert left <= {"aten.unsqueeze.default", "aten.mul.Tensor", "aten.view.default"}
    # slopes are rounded in half precision, places and products are not
    check_recipe(RECIPE, source, H200, settings=settings_of(site), tolerance=TOLERANCES[dtype])


LATER = "torch.ones(L, S, dtype=torch.bool, device=q.device).triu(1)"
SCORES = "q @ k.transpose(-2, -1) * 0.25"


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("masked", "sizes", "dtype"),
    all_pairs(
        [
            f"({SCORES} + b).masked_fill({LATER}, float('-inf'))",
            f"({SCORES}).masked_fill({LATER}, float('-inf')) + b",
            f"{SCORES} + b + torch.full((L, S), float('-inf')).triu(1).to(q)",
        ],
        [(21, 45), (45, 21), (40, 40)],
        list(TOLERANCES),
    ),
)
def test_a_ramp_and_a_causal_mask_are_both_known(masked, sizes, dtype):
    call = f"torch.softmax({masked}, -1) @ v"
    source = problem(SPELLINGS["by distance"][0], call, sizes, dtype)
    _, site = site_of(source)
    assert site.detail.band.high == 0 and site.detail.bias.kind == "ramp"
    tolerance = TOLERANCES[dtype]
    check_recipe(RECIPE, source, H200, settings=settings_of(site), tolerance=tolerance)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize(
    "bias",
    [
        "(-(i[:, None] - j).abs() * m).masked_fill(ONES, float('-inf'))",
        "torch.where(~ONES, (j - i[:, None]) * m, float('-inf'))[None].mul(2.0)",
        "-(i[:, None] - j).abs() * m + torch.full((L, S), float('-inf')).triu(1).to(q)",
    ],
)
def test_a_mask_of_the_operator_may_be_a_ramp_and_a_band(bias, dtype):
    source = problem(bias.replace("ONES", LATER), CALLED, (40, 40), dtype)
    _, site = site_of(source)
    assert site.detail.band.high == 0 and site.detail.bias.kind == "ramp"
    tolerance = TOLERANCES[dtype]
    check_recipe(RECIPE, source, H200, settings=settings_of(site), tolerance=tolerance)


@pytest.mark.parametrize(
    ("bias", "call"),
    [
        (f"-((j - i[:, None]) * m).masked_fill({LATER}, float('-inf'))", CALLED),  # +inf
        (f"((j - i[:, None]) * m).masked_fill({LATER}, -9.0)", CALLED),
        (
            "-(i[:, None] - j).abs() * q[0, :, :1, :1] "
            "+ torch.full((L, S), float('-inf')).triu(1).to(q)",
            CALLED,
        ),
        (f"((j - i[:, None]) * m).masked_fill({LATER}, float('-inf'))", WRITTEN),
    ],
)
def test_a_ramp_with_another_mask_is_read_as_it_is(bias, call):
    _, site = site_of(problem(bias, call, (40, 40)))
    assert site.detail.bias is None and site.detail.mask.kind == "added"


def test_a_ramp_stands_before_a_mask_that_is_read():
    call = f"torch.softmax(({SCORES} + b).masked_fill(v[:, :1, None, :, 0] > 1.0, -9.0), -1) @ v"
    source = problem(SPELLINGS["by distance"][0], call)
    _, site = site_of(source)
    assert (site.detail.bias.kind, site.detail.mask.kind) == ("ramp", "hides")
    check_recipe(RECIPE, source, H200, settings=settings_of(site), tolerance=1e-6)


def test_a_ramp_stands_before_relu():
    source = problem(SPELLINGS["by distance"][0], f"F.relu({SCORES} + b) / 3 @ v")
    _, site = site_of(source)
    assert (site.detail.bias.kind, site.detail.activation) == ("ramp", "relu")
    check_recipe(RECIPE, source, H200, settings=settings_of(site), tolerance=1e-6)


@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("call", [WRITTEN, CALLED])
def test_slopes_that_are_not_finite_do_what_they_do_in_torch(call, special):
    slopes = SLOPES.replace("0.25", f"float('{special}')")
    source = problem(SPELLINGS["signed"][0], call, slopes=slopes)
    module = import_source(source)
    inputs = module.get_inputs()
    expected = module.Model()(*inputs)
    for found in run(source, inputs):
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_far_places_err_no_more_than_eager():
    """A bias of hundreds beside scores of ones."""
    source = problem("(j - i[:, None]) * m * 7.3", sizes=(40, 3000))
    module = import_source(source)
    torch.manual_seed(1)
    inputs = module.get_inputs()
    exact = module.Model().double()(*(value.double() for value in inputs))
    eager = float((module.Model()(*inputs).double() - exact).norm())
    graph, site = site_of(source)
    setting = {"form": "fused", "block_m": 64, "block_n": 128, "block_k": 64, "warps": 4}
    setting["stages"] = 2
    emitted = import_source(emit_source(source, graph, [(RECIPE, site, setting)]))
    with torch.no_grad():
        found = emitted.ModelNew()(*inputs)
    assert float((found.double() - exact).norm()) <= 2 * eager


@pytest.mark.parametrize(
    "bias",
    [
        "-(i[:, None] - j).abs() * m.view(3, 1, 1).sin().expand(3, L, 1)",  # of a query
        "(i[:, None] * j) * m",  # no line
        "-(i[:, None] - j).abs().clamp(max=9) * m",
        "-(i[:, None] - j).abs() / m",
        "((i[:, None] - j).abs() * m).transpose(1, 2)[:, :21, :].expand(3, 21, 21) "
        "@ torch.ones(21, 45)",
    ],
)
def test_other_biases_are_read_as_they_are(bias):
    _, graph = trace_source(problem(bias))
    for site in RECIPE.match(graph, Contract()):
        assert site.detail.bias is None and site.detail.mask.kind == "added"


def test_a_bias_that_something_else_reads_is_made_for_that_alone():
    call = f"({WRITTEN}, b * 2)"
    graph, site = site_of(problem(SPELLINGS["by distance"][0], call))
    made = graph.node("mul")
    assert site.detail.bias.kind == "ramp" and made.name not in site.nodes


COMPILED = {
    "bf16": (CALLED, "bfloat16", 1024),
    "fp32": (WRITTEN, "float32", 512),
    "causal": (
        f"torch.softmax(({SCORES} + b).masked_fill({LATER}, -torch.inf), -1) @ v",
        "float16",
        2048,
    ),
}


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[dict]]:
    """Each case at the setting that is ranked first, compiled for sm_90."""
    jobs = []
    for call, dtype, places in COMPILED.values():
        source = problem(SPELLINGS["by distance"][0], call, (places, places), dtype, width=64)
        source = source.replace("torch.randn((2, 3,", "torch.empty((4, 3,")
        jobs.append(ranked_first(source))
    return dict(zip(COMPILED, compile_jobs(jobs, "ptx"), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", COMPILED)
def test_kernels_do_not_spill(compiled, case):
    for kernel in compiled[case]:
        assert not kernel["stack"] and kernel["shared"] <= 232448, kernel["name"]
    (kernel,) = (each for each in compiled[case] if each["name"] == "kmem_attention")
    assert kernel["hgmma"] > 0
