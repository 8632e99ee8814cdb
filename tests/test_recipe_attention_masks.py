"""skills/flash-attention: masks that a forward makes of constants, skipped by blocks of keys."""

import math
import re
import sys
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
SCORES = "s = q @ k.transpose(-2, -1) * 0.3"
PLACES = "i, j = torch.arange(L, device=q.device), torch.arange(S, device=q.device)"
LATER = "torch.ones(L, S, dtype=torch.bool, device=q.device).triu(1)"
LEAST = "float('-inf')"


def problem(
    masked: str,
    queries: int = 40,
    keys: int = 40,
    dtype: str = "float32",
    before: str = "pass",
    width: int = 16,
) -> str:
    """Attention written out, whose scores `s` a line masks."""
    shapes = f"(1, 2, {queries}, {width})", f"(1, 2, {keys}, {width})"
    inputs = ", ".join(f"torch.randn({shapes[place > 0]}).to(torch.{dtype})" for place in range(3))
    return (
        "import torch\nimport torch.nn.functional as F\nclass Model(torch.nn.Module):\n"
        "    def forward(self, q, k, v):\n"
        "        L, S = q.shape[-2], k.shape[-2]\n"
        f"        {SCORES}\n        {before}\n        s = {masked}\n"
        "        return torch.softmax(s, -1) @ v\n"
        f"def get_inputs():\n    return [{inputs}]\n"
    )


def site_of(source: str):
    _, graph = trace_source(source)
    return graph, RECIPE.match(graph, Contract())[0]


def settings_of(site: object, *forms: str) -> list[dict]:
    """One setting of each form, with several blocks of queries and of keys."""
    space = RECIPE.space(site, H200).settings()
    return [
        next(
            setting
            for setting in space
            if setting["form"] == form and setting["block_m"] == setting["block_n"] == 16
        )
        for form in forms
        if any(setting["form"] == form for setting in space)
    ]


def run(source: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    graph, site = site_of(source)
    found = []
    for setting in settings_of(site, "fused", "two_stages"):
        emitted = import_source(emit_source(source, graph, [(RECIPE, site, setting)]))
        with torch.no_grad():
            found.append(emitted.ModelNew()(*inputs))
    return found


CAUSAL = (None, 0)
SPELLINGS = {
    "ones triu": (f"s.masked_fill({LATER}, {LEAST})", "pass", CAUSAL),
    "ones tril == 0": (f"s.masked_fill(torch.ones(L, S).tril() == 0, {LEAST})", "pass", CAUSAL),
    "tril to bool, not": (
        f"s.masked_fill(~torch.ones(L, S).tril().bool(), {LEAST})",
        "pass",
        CAUSAL,
    ),
    "logical_not": (
        f"s.masked_fill(torch.logical_not(m), {LEAST})",
        "m = torch.tril(torch.ones((L, S), dtype=torch.bool)).view(1, 1, L, S)",
        CAUSAL,
    ),
    "new_ones": (f"s.masked_fill(q.new_ones(L, S).triu(1) == 1, {LEAST})", "pass", CAUSAL),
    "ones_like": (f"s.masked_fill(torch.ones_like(m).triu(1), {LEAST})", f"m = {LATER}", CAUSAL),
    "full added": (f"s + torch.full((L, S), {LEAST}, dtype=q.dtype).triu(1)", "pass", CAUSAL),
    "added, other side": (f"torch.triu(torch.full((L, S), {LEAST}), 1).to(q) + s", "pass", CAUSAL),
    "zeros filled": (f"s + torch.zeros(L, S).masked_fill({LATER}, {LEAST})", "pass", CAUSAL),
    "where of numbers": (
        f"s + torch.where(i[:, None] >= j, 0.0, {LEAST})[None, None]",
        PLACES,
        CAUSAL,
    ),
    "transformer": (
        "s + m",
        "m = (torch.triu(torch.ones(S, L)) == 1).transpose(0, 1).float(); "
        f"m = m.masked_fill(m == 0, {LEAST}).masked_fill(m == 1, 0.0)",
        CAUSAL,
    ),
    "arange": (f"s.masked_fill(i[:, None] < j[None, :], {LEAST})", PLACES, CAUSAL),
    "arange views": (f"s.masked_fill(j.view(1, -1) > i.view(-1, 1), {LEAST})", PLACES, CAUSAL),
    "arange difference": (f"s.masked_fill(i[:, None] - j < 0, {LEAST})", PLACES, CAUSAL),
    "expanded": (
        f"s.masked_fill({LATER}[None, None].expand(1, 2, L, S), {LEAST})",
        "pass",
        CAUSAL,
    ),
    "where": (f"torch.where(~{LATER}, s, {LEAST})", "pass", CAUSAL),
    "where turned": (f"torch.where({LATER}, {LEAST}, s)", "pass", CAUSAL),
    "where of a tensor": (f"torch.where(~{LATER}, s, torch.tensor({LEAST}))", "pass", CAUSAL),
    "cut out": (
        f"s.masked_fill(m[:, :, :L, :S] == 0, {LEAST})",
        "m = torch.ones(64, 64).tril().view(1, 1, 64, 64)",
        CAUSAL,
    ),
    "cut out lower": (
        f"s.masked_fill(m[3 : L + 3, :S] == 0, {LEAST})",
        "m = torch.ones(64, 64).tril()",
        (None, 3),
    ),
    "shifted": (f"s.masked_fill(torch.ones(L, S).triu(5).bool(), {LEAST})", "pass", (None, 4)),
    "shifted down": (
        f"s.masked_fill(torch.ones(L, S).triu(-4).bool(), {LEAST})",
        "pass",
        (None, -5),
    ),
    "anticausal": (f"s.masked_fill(torch.ones(L, S).tril(-1).bool(), {LEAST})", "pass", (0, None)),
    "window": (
        f"s.masked_fill((i[:, None] < j) | (i[:, None] - j >= 7), {LEAST})",
        PLACES,
        (-6, 0),
    ),
    "band": (f"s.masked_fill((i[:, None] - j).abs() > 3, {LEAST})", PLACES, (-3, 3)),
    "triu and tril": (
        f"s.masked_fill(torch.ones(L, S).triu(-20).tril(2) == 0, {LEAST})",
        "pass",
        (-20, 2),
    ),
    "nothing hidden": (f"s.masked_fill(torch.zeros(L, S).bool(), {LEAST})", "pass", (None, None)),
}


@pytest.mark.slow(after=6)
@pytest.mark.parametrize(("queries", "keys"), [(40, 40), (21, 45), (45, 21)])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_mask_of_constants_is_known_by_its_band(spelling, queries, keys):
    masked, before, (low, high) = SPELLINGS[spelling]
    source = problem(masked, queries, keys, before=before)
    graph, site = site_of(source)
    band = site.detail.band
    assert site.detail.mask is None and len(site.inputs) == 3
    low = None if low is not None and low <= 1 - queries else low
    assert (band.low, band.high) == (low, high)
    assert band.pairs(queries, keys) == visible_pairs(source)
    kept = {"new_ones": 1, "ones_like": 1 + 2}.get(spelling, 0)
    assert len(graph.nodes) - len(site.nodes) <= kept + 1, "the mask is made all the same"


def visible_pairs(source: str) -> int:
    """What torch lets through of a mask, counted."""
    module = import_source(source.replace("torch.softmax(s, -1) @ v", "s"))
    return int((~module.Model()(*module.get_inputs())[0, 0].isinf()).sum())


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(
    ("spelling", "sizes", "dtype"),
    all_pairs(
        ["ones triu", "full added", "shifted", "window", "anticausal", "triu and tril"],
        [(40, 40), (21, 45), (45, 21), (48, 32)],
        ["float32", "float16", "bfloat16"],
    ),
)
def test_skipped_blocks_leave_what_torch_computes(spelling, sizes, dtype):
    queries, keys = sizes
    masked, before, _ = SPELLINGS[spelling]
    source = problem(masked, queries, keys, dtype, before)
    _, site = site_of(source)
    tolerance = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    if keys < queries and spelling in ("window", "anticausal", "triu and tril"):
        return  # rows that see nothing are below
    settings = settings_of(site, "fused", "two_stages")
    check_recipe(RECIPE, source, H200, settings=settings, tolerance=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("spelling", "queries", "keys"),
    [("shifted down", 40, 40), ("window", 60, 21), ("anticausal", 60, 21)],
)
def test_rows_that_see_nothing_are_nan_as_in_torch(spelling, queries, keys, dtype):
    masked, before, _ = SPELLINGS[spelling]
    source = problem(masked, queries, keys, dtype, before)
    torch.manual_seed(1)
    module = import_source(source)
    inputs = module.get_inputs()
    expected = module.Model()(*inputs)
    assert 0 < expected.isnan().sum() < expected.numel()
    for found in run(source, inputs):
        assert torch.equal(found.isnan(), expected.isnan())
        torch.testing.assert_close(found, expected, rtol=4e-3, atol=4e-3, equal_nan=True)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("spelling", "operand", "special", "dtype"),
    all_pairs(
        ["ones triu", "full added", "window"],
        [1, 2],
        [float("nan"), float("inf")],
        ["float32", "float16"],
    ),
)
def test_what_is_hidden_and_not_finite_reaches_what_it_does_in_torch(
    spelling, operand, special, dtype
):
    """Hidden values are multiplied by 0, and to hidden scores of NaN -inf is added."""
    masked, before, _ = SPELLINGS[spelling]
    source = problem(masked, 40, 40, dtype, before)
    torch.manual_seed(1)
    module = import_source(source)
    inputs = module.get_inputs()
    inputs[operand][0, 1, 37, 5] = special
    expected = module.Model()(*inputs)
    assert expected[0, 1].isnan().any() or (spelling, operand) == ("window", 1)
    for found in run(source, inputs):
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.isinf(), expected.isinf())


GIVEN = "F.scaled_dot_product_attention(q, k, v, {call})"


@pytest.mark.parametrize(
    ("call", "band"),
    [
        ("is_causal=True", (None, 0)),
        ("attn_mask=torch.ones(L, S, dtype=torch.bool).tril()", (None, 0)),
        ("attn_mask=torch.full((L, S), float('-inf'), dtype=q.dtype).triu(1)", (None, 0)),
        ("attn_mask=(i[:, None] - j).abs() <= 4", (-4, 4)),
    ],
)
def test_the_operator_skips_what_its_mask_hides_and_does_not_read_it(call, band):
    source = problem("s", 40, 45, before=PLACES).replace(
        "torch.softmax(s, -1) @ v", GIVEN.format(call=call)
    )
    source = source.replace(SCORES, "s = q")
    _, site = site_of(source)
    assert (site.detail.band.low, site.detail.band.high) == band
    check_recipe(
        RECIPE, source, H200, settings=settings_of(site, "fused", "two_stages"), tolerance=1e-6
    )


@pytest.mark.parametrize(
    ("masked", "before"),
    [
        (f"s.masked_fill(self.m, {LEAST})", "pass"),  # a buffer may change
        (f"s.masked_fill(m, {LEAST})", f"m = {LATER}; m.logical_not_()"),
        (f"s.masked_fill(m, {LEAST})", f"n = {LATER}; m = n.view(1, 1, L, S); n.logical_not_()"),
        (f"s.masked_fill((j > 3).expand(L, S), {LEAST})", PLACES),  # by column alone
        (f"s.masked_fill((i[:, None] - j).abs() == 3, {LEAST})", PLACES),  # no band
        (f"s.masked_fill(i[:, None] > 2 * j, {LEAST})", PLACES),
        (f"s.masked_fill(torch.ones(L, S).bool(), {LEAST})", "pass"),  # all is hidden
        (f"s.masked_fill(q[0, 0, :, :1] > j, {LEAST})", PLACES),
    ],
)
def test_other_masks_are_read_as_they_are(masked, before):
    source = problem(masked, before=before)
    source = source.replace(
        "    def forward",
        "    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('m', torch.ones(40, 40).bool().triu(1))\n    def forward",
        1,
    )
    _, site = site_of(source)
    assert site.detail.mask is not None and site.detail.band.edges == 0
    assert len(site.inputs) == 4


#: As it is for heads enough.
SKIPS = property(
    lambda self: self.is_bounded and self.mask.kind != "added" and self.mask.fill == -math.inf
)
READ = {
    "finite, filled": (f"s.masked_fill({LATER}, -1e9)", "pass", "hides", -1e9),
    "finite, nothing seen": ("s.masked_fill(torch.ones(L, S).bool(), -5.0)", "pass", "hides", -5.0),
    "finite, added": ("s + torch.full((L, S), -1e4).triu(1)", "pass", "added", -math.inf),
    "a bias": ("s + torch.full((L, S), 0.5).triu(1)", "pass", "added", -math.inf),
    "a bias and -inf": (
        f"s + torch.ones(L, S).masked_fill({LATER}, {LEAST})",
        "pass",
        "added",
        -math.inf,
    ),
    "a bias on the left": ("q[:, :1, :, :1] * k[0, 0, :, 0] + s", "pass", "added", -math.inf),
    "where": (
        "torch.where(q[..., :1] > k[:, :1, :, 0].unsqueeze(2), s, -3.0)",
        "pass",
        "shows",
        -3.0,
    ),
    "where turned": (
        "torch.where(q[..., :1] > k[..., 0].unsqueeze(2), -3.0, s)",
        "pass",
        "hides",
        -3.0,
    ),
    "cast": (
        f"s.float().masked_fill(q[..., :1] > k[0, 0, :, 0], {LEAST})",
        "pass",
        "hides",
        -math.inf,
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spelling", READ)
def test_masks_that_are_no_bands_are_read(spelling, dtype):
    masked, before, kind, fill = READ[spelling]
    source = problem(masked, 21, 45, dtype, before)
    if dtype != "float32":
        source = source.replace("s, -1)", "s, -1, dtype=torch.float32).to(q.dtype)")
    _, site = site_of(source)
    assert (site.detail.mask.kind, site.detail.mask.fill) == (kind, fill)
    module = import_source(source)
    inputs = module.get_inputs()
    expected = module.Model()(*[each.float() for each in inputs]).double()  # not rounded inside
    for found in run(source, inputs):
        near = {"rtol": 1e-5, "atol": 1e-5} if dtype == "float32" else {"rtol": 0.02, "atol": 0.02}
        assert torch.allclose(found.double(), expected, **near, equal_nan=True)


@pytest.mark.parametrize(
    "after",
    [
        "F.dropout(torch.softmax(s, -1), 0.0) @ v",
        "F.dropout(torch.softmax(s, -1), 0.5, False) @ v",
        "F.dropout(torch.softmax(s.float(), -1).type_as(q), 0.0) @ v",
        "torch.softmax(s, -1, torch.float32).to(v.dtype) @ v",
    ],
)
def test_what_does_nothing_to_probabilities_is_passed(after):
    source = problem(f"s.masked_fill({LATER}, {LEAST})", 40, 40, "float16")
    source = source.replace("torch.softmax(s, -1) @ v", after)
    _, site = site_of(source)
    assert site.detail.band.high == 0
    module = import_source(source)
    inputs = module.get_inputs()
    expected = module.Model()(*inputs).float()
    assert torch.allclose(run(source, inputs)[0].float(), expected, rtol=0.01, atol=0.01)


@pytest.mark.parametrize(
    ("after", "masked"),
    [
        ("F.dropout(torch.softmax(s, -1), 0.5) @ v", "s"),
        ("torch.softmax(s, -1, torch.float64).float() @ v", "s"),
        ("torch.softmax(s, -1).half().float() @ v", "s"),
        ("torch.softmax(s, -1) @ v", f"torch.where({LATER}, s, {LEAST}) + s"),
        ("torch.softmax(s, -1) @ v", f"s.masked_fill({LATER}, float('inf'))"),
        ("torch.softmax(s, -1) @ v", "s + q[..., :1]"),  # one bias for all keys
    ],
)
def test_what_changes_scores_otherwise_is_left_to_others(after, masked):
    source = problem(masked).replace("torch.softmax(s, -1) @ v", after)
    assert RECIPE.match(trace_source(source)[1], Contract()) == []


HELD = {
    "causal": "torch.ones(40, 40).tril()",
    "window": "torch.ones(40, 40).triu(-6).tril(2)",
    "padding": "(torch.arange(40) < 19).float().expand(40, 40).contiguous()",
    "blocks": "torch.block_diag(torch.ones(9, 20), torch.ones(31, 20))",
    "scattered": "(torch.arange(1600) % 7 > 2).view(40, 40).float()",
    "nothing seen": "torch.arange(40).gt(17).float()[:, None].expand(40, 40).contiguous()",
}


def held_in_a_buffer(mask: str, masked: str, dtype: str) -> str:
    return problem(masked, 40, 40, dtype).replace(
        "    def forward",
        "    def __init__(self):\n        super().__init__()\n"
        f"        self.register_buffer('m', {mask})\n"
        f"        self.register_buffer('b', self.m.log().to(torch.{dtype}))\n"
        "        self.eval()\n    def forward",
        1,
    )


@pytest.mark.parametrize(
    ("mask", "masked", "dtype"),
    all_pairs(
        list(HELD),
        [
            f"s.masked_fill(self.m[:L, :S] == 0, {LEAST})",
            "s.masked_fill(self.m == 0, -30.0)",
            "torch.where(self.m[None] > 0, s, -torch.inf)",
            "s.masked_fill(~self.m.bool(), -torch.inf)",
            "s + self.b[None, None]",
        ],
        ["float32", "float16"],
    ),
)
def test_a_mask_of_a_buffer_is_looked_at_once(mask, masked, dtype, monkeypatch):
    monkeypatch.setattr(sys.modules[type(RECIPE).__module__].Attention, "skips", SKIPS)
    source = held_in_a_buffer(HELD[mask], masked, dtype)
    _, site = site_of(source)
    assert site.detail.is_bounded and len(site.inputs) == 4
    module = import_source(source)
    inputs = module.get_inputs()
    near = 1e-5 if dtype == "float32" else 0.01
    expected = module.Model()(*inputs).float()
    for found in run(source, inputs):
        assert torch.allclose(found.float(), expected, rtol=near, atol=near, equal_nan=True)


@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_a_buffer_hides_and_is_not_finite_is_read(dtype, special, monkeypatch):
    monkeypatch.setattr(sys.modules[type(RECIPE).__module__].Attention, "skips", SKIPS)
    source = held_in_a_buffer(HELD["causal"], f"s.masked_fill(self.m == 0, {LEAST})", dtype)
    module = import_source(source)
    inputs = module.get_inputs()
    inputs[2][0, 1, 37, 3] = special
    expected = module.Model()(*inputs).float()
    for found in run(source, inputs):
        assert torch.equal(found.isnan(), expected.isnan())
        finite = expected.isfinite()
        assert torch.allclose(found.float()[finite], expected[finite], rtol=0.01, atol=0.01)


def test_a_mask_that_a_call_brings_along_is_not_looked_at_before():
    source = problem("s.masked_fill(q[0, 0, :, :1] > k[0, 0, :, 0], -9.0)")
    _, site = site_of(source)
    assert not site.detail.is_bounded and not site.detail.skips


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        ("(q[0, 0, :, :1] > k[0, 0, :, 0]) | (j == 3)", "admits"),
        ("(k[:, :1, :, 0] > 0.0).unsqueeze(2)", "admits"),  # padding
        ("(q[..., :1] * k[..., 0].unsqueeze(2))", "added"),
        ("(q[..., :1] > 0) & (k[..., 0] > 0).unsqueeze(2)", "admits"),  # some see nothing
    ],
)
def test_the_operator_reads_a_mask_that_is_no_band(mask, kind, dtype):
    call = f"F.scaled_dot_product_attention(q, k, v, attn_mask={mask}, scale=0.3)"
    source = problem("s", 21, 45, dtype).replace("torch.softmax(s, -1) @ v", call)
    source = source.replace(SCORES, PLACES).replace("s = s", "pass")
    _, site = site_of(source)
    assert site.detail.mask.kind == kind
    module = import_source(source)
    inputs = module.get_inputs()
    expected = module.Model()(*inputs).float()
    near = 1e-5 if dtype == "float32" else 0.01
    for found in run(source, inputs):
        assert torch.allclose(found.float(), expected, rtol=near, atol=near, equal_nan=True)


def test_half_the_work_costs_about_half_the_time():
    times = []
    for masked in ("s", f"s.masked_fill({LATER}, {LEAST})"):
        source = problem(masked, 4096, 4096, "float16", width=64).replace("(1, 2,", "(1, 32,")
        _, site = site_of(source.replace("randn", "empty"))
        settings = RECIPE.space(site, H200).settings()
        times.append(min(RECIPE.cost_ms(site, setting, H200) for setting in settings))
    assert 0.5 < times[1] / times[0] < 0.6


WIDTHS = (64, 128)
RANKED_FIRST = 3  # settings


@pytest.fixture(scope="module")
def compiled() -> dict[int, list[list[dict]]]:
    """Causal attention at the settings that are ranked first, compiled for sm_90."""
    jobs = []
    for width in WIDTHS:
        source = problem(f"s.masked_fill({LATER}, {LEAST})", 4096, 4096, "float16", width=width)
        source = source.replace("randn", "empty").replace("(1, 2,", "(1, 32,")
        _, site = site_of(source)
        settings = RECIPE.space(site, H200).settings()
        settings.sort(key=lambda setting: RECIPE.cost_ms(site, setting, H200))
        jobs += [("flash-attention", source, "match", each) for each in settings[:RANKED_FIRST]]
    made = compile_jobs(jobs, "ptx")
    return {
        width: made[place * RANKED_FIRST :][:RANKED_FIRST] for place, width in enumerate(WIDTHS)
    }


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_causal_kernels_use_tensor_cores_and_do_not_spill(compiled, width):
    for flag, kernel in compiled[width]:
        assert flag["name"] == "kmem_attention_flag" and not flag["stack"]
        assert not kernel["stack"] and kernel["shared"] <= 232448
        assert kernel["hgmma"] > 0 and kernel["async_copies"] > 0
        exponents = set(re.findall(r"\bex2\.approx\S*\s+%\w+, (%\w+)", kernel["ptx"]))
        contracted = set(re.findall(r"\bfma\.rn\.f32\s+(%\w+),", kernel["ptx"]))
        assert exponents and exponents.isdisjoint(contracted)
