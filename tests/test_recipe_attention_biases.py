"""skills/flash-attention: what is added to scores for each head, wherever its keys lie."""

import math
from pathlib import Path

import pytest
import torch
from all_pairs import all_pairs
from compile_sm90 import compile_jobs

from kmem.devices import named_target
from kmem.records import Contract
from kmem.skills import load_recipe, load_skill
from kmem.testing import check_recipe, emit_source, import_source, trace_source

ROOT = Path(__file__).resolve().parent.parent
H200 = named_target("h200")
RECIPE = load_recipe(load_skill(ROOT / "skills" / "flash-attention"))
TOLERANCES = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}


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


def site_of(source: str):
    _, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    return graph, site


def settings_of(site: object) -> list[dict]:
    """One setting of each form, with several blocks of queries and of keys."""
    space = RECIPE.space(site, H200).settings()
    found = {
        setting["form"]: setting
        for setting in space
        if setting["block_m"] == setting["block_n"] == 16
    }
    return list(found.values())


def check(source: str, dtype: str) -> object:
    """The site, whose kernels compute what the module does."""
    _, site = site_of(source)
    check_recipe(RECIPE, source, H200, settings=settings_of(site), tolerance=TOLERANCES[dtype])
    return site.detail


def run(source: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    graph, site = site_of(source)
    found = []
    for setting in settings_of(site):
        emitted = import_source(emit_source(source, graph, [(RECIPE, site, setting)]))
        with torch.no_grad():
            found.append(emitted.ModelNew()(*inputs))
    return found


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
    assert detail.lays_mask and detail.mask.lying.sizes == sizes


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
}


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[dict]]:
    """Each case at the setting that is ranked first, compiled for sm_90."""
    jobs = []
    for source, _ in COMPILED.values():
        source = source.replace("torch.randn((", "torch.empty((")
        _, site = site_of(source)
        settings = RECIPE.space(site, H200).settings()
        best = min(settings, key=lambda setting: RECIPE.cost_ms(site, setting, H200))
        jobs.append(("flash-attention", source, "match", best))
    return dict(zip(COMPILED, compile_jobs(jobs, "ptx"), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", COMPILED)
def test_kernels_do_not_spill(compiled, case):
    kernels = {each["name"]: each for each in compiled[case]}
    assert {*COMPILED[case][1]} <= {*kernels}
    for name, kernel in kernels.items():
        assert not kernel["stack"] and kernel["shared"] <= 232448, name
    assert kernels["kmem_attention"]["hgmma"] > 0
