"""skills/flash-attention: what is added to scores for each head, wherever its keys lie."""

import math

import pytest
import torch
from all_pairs import all_pairs
from attention_sites import H200, RECIPE, TOLERANCES, ranked_first, run, settings_of, site_of
from compile_sm90 import compile_jobs

from kmem.records import Contract
from kmem.testing import check_recipe, import_source, trace_source


def problem(
    forward: str,
    *,
    heads: tuple[int, int] = (2, 3),
    sizes: tuple[int, int] = (21, 45),
    dtype: str = "float32",
    width: int = 16,
    held: str = "pass",
) -> str:
    """Attention of `q`, `k` and `v` as a forward has it, with what `held` registers."""
    batch, inner = heads
    queries, keys = sizes
    shapes = [(batch, inner, rows, width) for rows in (queries, keys, keys)]
    inputs = ", ".join(f"torch.randn({shape}).to(torch.{dtype})" for shape in shapes)
    return (
        "import torch\nimport torch.nn.functional as F\nclass Model(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        f"        B, H, L, S = {batch}, {inner}, {queries}, {keys}\n"
        f"        torch.manual_seed(3)\n        {held}\n        self.to(torch.{dtype})\n"
        "    def forward(self, q, k, v):\n"
        "        L, S = q.shape[-2], k.shape[-2]\n"
        f"        {forward}\n"
        f"def get_inputs():\n    return [{inputs}]\n"
    )


def check(source: str, dtype: str) -> object:
    """The site, whose kernels compute what the module does."""
    _, site = site_of(source)
    check_recipe(RECIPE, source, H200, settings=settings_of(site), tolerance=TOLERANCES[dtype])
    return site.detail


LOOKED_UP = (
    "self.bias = torch.nn.Embedding(8, H); "
    "self.register_buffer('at', (torch.arange(S)[None] - torch.arange(L)[:, None]).abs() % 8)"
)
STRIDED = {
    "looked up": ("self.bias(self.at).permute(2, 0, 1)[None]", LOOKED_UP, (1, 3, 21, 45)),
    "one for all heads": (
        "self.b.t()",
        "self.b = torch.nn.Parameter(torch.randn(S, L))",
        (1, 1, 21, 45),
    ),
    "of each sample": (
        "(q[..., 0].transpose(1, 2)[:, :, None] * k[:, :1, :, 0, None]).permute(0, 3, 1, 2)",
        "pass",
        (2, 3, 21, 45),
    ),
    "expanded": (
        "self.bias(self.at).permute(2, 0, 1).expand(q.shape[0], -1, -1, -1)",
        LOOKED_UP,
        (1, 3, 21, 45),
    ),
    "of keys alone": (
        "self.b[:, 0]",
        "self.b = torch.nn.Parameter(torch.randn(S, 2))",
        (1, 1, 1, 45),
    ),
}


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(
    ("bias", "call", "dtype"),
    all_pairs(
        list(STRIDED),
        [
            "torch.softmax(q @ k.transpose(-1, -2) + b, -1) @ v",
            "F.scaled_dot_product_attention(q, k, v, attn_mask=b)",
        ],
        list(TOLERANCES),
    ),
)
def test_a_bias_whose_keys_are_not_dense_is_laid_out_once(bias, call, dtype):
    made, held, sizes = STRIDED[bias]
    if bias == "of keys alone" and call.startswith("F"):
        made += "[None, None, None]"
    detail = check(problem(f"b = {made}\n        return {call}", dtype=dtype, held=held), dtype)
    assert detail.mask.lying.sizes == sizes


@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan])
def test_a_bias_that_is_not_finite_reaches_what_it_does_in_torch(special):
    bias = "q.transpose(-1, -2)"
    forward = f"return torch.softmax(q @ k.transpose(-1, -2) + {bias}, -1) @ v"
    source = problem(forward, sizes=(16, 16))
    module = import_source(source)
    torch.manual_seed(1)
    inputs = module.get_inputs()
    inputs[0][1, 2, 0, 5] = special
    expected = module.Model()(*inputs)
    for found in run(source, inputs):
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_a_strided_mask_of_truth_values_is_laid_out():
    forward = (
        "m = (q[..., 0].transpose(1, 2)[:, :, None] > k[:, :1, :, 0, None])"
        ".permute(0, 3, 1, 2)\n        return F.scaled_dot_product_attention(q, k, v, attn_mask=m)"
    )
    assert check(problem(forward), "float32").mask.kind == "admits"


NORMAL = "F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)"
SCALE = "self.scale = torch.nn.Parameter(torch.tensor([2.3, 5.1, -1.0])[:, None, None]); "
POSITIONS = "self.b = torch.nn.Parameter(torch.randn(H, L, S)); "
WINDOWS = "self.register_buffer('m', torch.where(torch.rand(2, L, S) > 0.7, -30.0, 0.0))"
FACTORS = {
    "of a head": ("s * torch.clamp(self.scale, max=0.6).exp()", SCALE, (0, 1)),
    "on the left": ("self.scale * s", SCALE, (0, 1)),
    "divides": ("s / self.scale", SCALE, (0, 1)),
    "one for all": ("s / self.t", "self.t = torch.nn.Parameter(torch.tensor(0.7))", (0, 0)),
    "of a sample": ("s * q[:, :1, :1, :1]", "pass", (3 * 21 * 16, 0)),
    "of both": ("s.float() * 0.5 / (1 + q[:, :, :1, :1] ** 2) * 2", "pass", (3, 1)),
}


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(("factor", "dtype"), all_pairs(list(FACTORS), list(TOLERANCES)))
def test_a_factor_of_a_head_scales_its_scores(factor, dtype):
    scaled, held, steps = FACTORS[factor]
    forward = (
        f"s = {NORMAL}\n        s = {scaled}\n        return torch.softmax(s, -1).type_as(v) @ v"
    )
    found = check(problem(forward, dtype=dtype, held=held), dtype).factor
    assert (found.steps, found.divides) == (steps, "/" in scaled)


@pytest.mark.parametrize("special", [0.0, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("operator", ["*", "/"])
def test_a_factor_that_is_zero_or_not_finite_does_what_it_does_in_torch(operator, special):
    forward = f"return torch.softmax(q @ k.transpose(-2, -1) {operator} self.scale, -1) @ v"
    source = problem(forward, held=SCALE)
    module = import_source(source.replace("5.1", f"float('{special}')"))
    torch.manual_seed(1)
    inputs = module.get_inputs()
    expected = module.Model()(*inputs)
    for found in run(source.replace("5.1", f"float('{special}')"), inputs):
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


LATER = "torch.ones(L, S, dtype=torch.bool).triu(1)"
PADDING = "((v[..., 0] > 1.0) & (torch.arange(S) > 0))[:, :1, None]"
SWIN = (
    "s = s.view(B // 2, 2, H, L, S) + self.m.unsqueeze(1).unsqueeze(0)\n"
    "        s = s.view(-1, H, L, S)"
)
#: What is done to scores; the kinds of bias and mask, sides of the band, and whether it is added
MASKED = {
    "bias and mask": (f"s = (s + self.b).masked_fill({PADDING}, -9.0)", "added", "hides", None),
    "bias and band": (f"s = (s + self.b).masked_fill({LATER}, -torch.inf)", "added", "", 0),
    "band and bias": (f"s = s.masked_fill({LATER}, -torch.inf) + self.b", "added", "", 0),
    "both added": (
        "s = s + self.b + torch.full((L, S), -torch.inf).triu(1).to(q)",
        "added",
        "",
        0,
    ),
    "a bias of inputs": (
        "s = s + q[..., :1] * k[..., 0].unsqueeze(2)\n"
        "        s = s + torch.full((L, S), -torch.inf).triu(1).to(q)",
        "added",
        "added",
        None,
    ),
    "all three": (
        f"s = (s + self.b).masked_fill({LATER}, -torch.inf).masked_fill({PADDING}, -torch.inf)",
        "added",
        "hides",
        0,
    ),
    "in place": (
        f"s += self.b\n        s.masked_fill_({PADDING}, -9.0)",
        "added",
        "hides",
        None,
    ),
    "band in place": (f"s = s.masked_fill_({LATER}, -torch.inf)", "", "", 0),
    "windows": (SWIN, "", "added", None),
    "bias and windows": (f"s = s + self.b\n        {SWIN}", "added", "added", None),
    "windows and bias": (f"{SWIN}\n        s = s + self.b", "added", "added", None),
    "windows hidden": (
        SWIN.replace("+ self.m.un", ".masked_fill(self.m.un").replace(
            "(0)", "(0) < 0, -torch.inf)"
        ),
        "",
        "hides",
        None,
    ),
}


def masked(case: str, dtype: str = "float32") -> str:
    heads = "B, H = q.shape[:2]\n        "
    forward = f"{heads}s = {NORMAL} * self.scale\n        {MASKED[case][0]}"
    forward += "\n        return torch.softmax(s.float(), -1).type_as(v) @ v"
    return problem(forward, heads=(4, 3), dtype=dtype, held=SCALE + POSITIONS + WINDOWS)


@pytest.mark.slow(after=4)
@pytest.mark.parametrize(("case", "dtype"), all_pairs(list(MASKED), list(TOLERANCES)))
def test_biases_and_masks_one_behind_the_other_are_one_attention(case, dtype):
    _, bias, mask, high = MASKED[case]
    detail = check(masked(case, dtype), dtype)
    assert (detail.bias.kind if detail.bias else "") == bias
    assert (detail.mask.kind if detail.mask else "") == mask
    assert detail.band.high == high
    assert (detail.mask.period if detail.mask else 0) == 2 * ("windows" in case)


@pytest.mark.parametrize(
    ("operand", "case", "special"),
    all_pairs(
        [0, 1, 2], ["a bias of inputs", "both added", "bias and windows"], [math.inf, math.nan]
    ),
)
def test_what_is_not_finite_reaches_what_it_does_behind_a_bias(operand, case, special):
    source = masked(case)
    module = import_source(source)
    torch.manual_seed(1)
    inputs = module.get_inputs()
    inputs[operand][3, 2, 20, 0] = special
    expected = module.Model()(*inputs)
    for found in run(source, inputs):
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(
    "forward",
    [
        # a bias that may be infinite where scores were hidden
        f"s.masked_fill({LATER}, -torch.inf) + q[..., :1] * k[..., 0].unsqueeze(2)",
        f"s.masked_fill({PADDING}, -9.0) + self.b",
        f"s.masked_fill({LATER}, -torch.inf).masked_fill({PADDING}, -9.0)",  # some are seen again
        f"s.masked_fill({PADDING}, -9.0).masked_fill({LATER}, -5.0)",
        "s * q[..., :1]",  # not the same for a head
        "(k * 1)[..., :1].transpose(2, 3).expand(4, 3, 21, 45).clone().add_(s)",
        "s.masked_fill_(s > 0.5, -9.0)",
        "s.add_(self.b) + 0 * s",
        "s * self.scale[:1, 0] * self.scale",
        "s.view(2, 2, 3, 21, 45).add(self.m[:, None, None].expand(2, 2, 1, 21, 45))"
        ".view(4, 3, 21, 45)",  # by images, not windows
    ],
)
def test_what_scores_go_through_otherwise_is_left_to_others(forward):
    forward = f"s = {NORMAL}\n        return torch.softmax({forward}, -1) @ v"
    source = problem(forward, heads=(4, 3), held=SCALE + POSITIONS + WINDOWS)
    assert RECIPE.match(trace_source(source)[1], Contract()) == []


COMPILED = {
    "looked up": (
        problem(
            "b = self.bias(self.at).permute(2, 0, 1)[None]\n"
            "        return torch.softmax(q @ k.transpose(-1, -2) + b, -1) @ v",
            heads=(16, 12),
            sizes=(512, 512),
            width=64,
            held=LOOKED_UP,
        ),
        ("kmem_attention_lay", "kmem_attention"),
    ),
    "windows": (
        problem(
            f"s = {NORMAL} * self.scale.exp() + self.b\n        B, H = q.shape[:2]\n"
            f"        {SWIN}\n        return torch.softmax(s, -1) @ v",
            heads=(1024, 3),
            sizes=(49, 49),
            width=32,
            held=SCALE + POSITIONS + WINDOWS,
        ),
        ("kmem_attention", "kmem_attention_mend"),
    ),
}


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[dict]]:
    """Each case at the setting that is ranked first, compiled for sm_90."""
    jobs = []
    for source, _ in COMPILED.values():
        source = source.replace("torch.randn((", "torch.empty((")
        jobs.append(ranked_first(source))
    return dict(zip(COMPILED, compile_jobs(jobs, "ptx"), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", COMPILED)
def test_kernels_do_not_spill(compiled, case):
    kernels = {each["name"]: each for each in compiled[case]}
    assert {*COMPILED[case][1]} <= {*kernels}
    for name, kernel in kernels.items():
        assert not kernel["stack"] and kernel["shared"] <= 232448, name
    assert kernels["kmem_attention"]["hgmma"] > 0
