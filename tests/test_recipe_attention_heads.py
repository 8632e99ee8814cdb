"""skills/flash-attention: heads that share keys and values, and results whose heads are merged."""

from pathlib import Path

import pytest
import torch
from all_pairs import all_pairs

from kmem.devices import named_target
from kmem.records import Contract
from kmem.skills import load_recipe, load_skill
from kmem.testing import check_recipe, emit_source, import_source, trace_source

ROOT = Path(__file__).resolve().parent.parent
H200 = named_target("h200")
RECIPE = load_recipe(load_skill(ROOT / "skills" / "flash-attention"))
GIVEN = "F.scaled_dot_product_attention"
WRITTEN = "torch.softmax(q @ {key}.transpose(2, 3) * 0.25, -1) @ {value}"
REPEATS = {
    "repeat_interleave": "{x}.repeat_interleave(3, 1)",
    "function": "torch.repeat_interleave({x}, 3, dim=-3)",
    "expand": "{x}[:, :, None].expand(2, 2, 3, 37, 16).reshape(2, 6, 37, 16)",
    "repeat": "{x}.unsqueeze(2).repeat(1, 1, 3, 1, 1).view(2, 6, 37, 16)",
}


def problem(expression: str, dtype: str = "float32", turned: bool = False) -> str:
    """Six heads of 40 queries and two of 37 keys, in this order or turned behind rows."""
    shapes = [(2, 6, 40, 16), (2, 2, 37, 16), (2, 2, 37, 16)]
    if turned:
        shapes = [(shape[0], shape[2], shape[1], shape[3]) for shape in shapes]
    inputs = ", ".join(f"torch.randn({shape}).to(torch.{dtype})" for shape in shapes)
    before = "q, k, v = (x.transpose(1, 2) for x in (q, k, v))" if turned else "pass"
    return (
        "import torch\nimport torch.nn.functional as F\nclass Model(torch.nn.Module):\n"
        f"    def forward(self, q, k, v):\n        {before}\n        return {expression}\n"
        f"def get_inputs():\n    return [{inputs}]\n"
    )


def one_of_each_form(site: object) -> list[dict]:
    space = [
        setting
        for setting in RECIPE.space(site, H200).settings()
        if setting["block_m"] == setting["block_n"] == 16
    ]
    return list({setting["form"]: setting for setting in space}.values())


def check(source: str, tolerance: float = 1e-6) -> object:
    _, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    check_recipe(RECIPE, source, H200, settings=one_of_each_form(site), tolerance=tolerance)
    return site


@pytest.mark.parametrize(
    ("options", "precision", "turned"),
    all_pairs(
        ["", ", is_causal=True"],
        [("float32", 1e-6), ("float16", 1e-3), ("bfloat16", 8e-3)],
        [False, True],
    ),
)
def test_grouped_queries_read_the_head_that_they_share(options, precision, turned):
    dtype, tolerance = precision
    source = problem(f"{GIVEN}(q, k, v, enable_gqa=True{options})", dtype, turned)
    site = check(source, tolerance)
    assert site.detail.shared == 3 and site.detail.key_heads == 4


@pytest.mark.slow(after=4)
@pytest.mark.parametrize("repeat", REPEATS)
@pytest.mark.parametrize("form", [f"{GIVEN}(q, {{key}}, {{value}}, is_causal=True)", WRITTEN])
def test_heads_that_are_repeated_are_read_once(form, repeat):
    key, value = (REPEATS[repeat].format(x=name) for name in "kv")
    source = problem(form.format(key=key, value=value))
    site = check(source)
    _, graph = trace_source(source)
    assert site.detail.shared == 3 and [operand.name for operand in site.inputs] == ["q", "k", "v"]
    assert {*site.nodes} == {node.name for node in graph.nodes}, "a copy is made all the same"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("k.repeat(1, 3, 1, 1)", "v.repeat(1, 3, 1, 1)"),  # in another order
        ("k.repeat_interleave(3, 1)", "v.repeat(1, 3, 1, 1)"),  # not both
    ],
)
def test_heads_in_another_order_are_read_as_they_are(key, value):
    site = check(problem(f"{GIVEN}(q, {key}, {value})"))
    assert site.detail.shared == 1 and site.detail.key_heads == 12


def test_repeated_heads_that_others_read_stay_and_are_not_read():
    source = problem("(lambda x, y: (F.scaled_dot_product_attention(q, x, y), x + 1))({}, {})")
    source = source.format(*(REPEATS["repeat_interleave"].format(x=name) for name in "kv"))
    _, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    assert site.detail.shared == 3 and site.inputs[1].name == "k"
    check_recipe(RECIPE, source, H200, settings=one_of_each_form(site), tolerance=1e-6)


@pytest.mark.parametrize("special", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_reaches_the_heads_that_share_it(special):
    key, value = (REPEATS["expand"].format(x=name) for name in "kv")
    hidden = "torch.ones(40, 37, dtype=torch.bool).triu(1)"
    scores = f"(q @ {key}.transpose(2, 3)).masked_fill({hidden}, float('-inf'))"
    for dtype in ("float32", "float16"):
        source = problem(f"torch.softmax({scores}, -1) @ {value}", dtype)
        _, graph = trace_source(source)
        (site,) = RECIPE.match(graph, Contract())
        torch.manual_seed(2)
        module = import_source(source)
        inputs = module.get_inputs()
        inputs[2][0, 1, 36, 5] = special
        expected = module.Model()(*inputs)
        assert expected[0, 3:, :, 5].isnan().any() and expected[0, :3].isfinite().all()
        for setting in one_of_each_form(site):
            emitted = import_source(emit_source(source, graph, [(RECIPE, site, setting)]))
            found = emitted.ModelNew()(*inputs)
            assert torch.equal(found.isnan(), expected.isnan())
            assert torch.equal(found.isinf(), expected.isinf())


MERGED = [
    ".transpose(1, 2).reshape(2, 40, 96)",
    ".transpose(1, 2).contiguous().view(2, 40, 96)",
    ".permute(0, 2, 1, 3).reshape(80, 96)",
]


@pytest.mark.parametrize("merge", MERGED)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_heads_are_merged_where_they_are_written(merge, dtype):
    source = problem(f"{GIVEN}(q, k, v, enable_gqa=True, is_causal=True){merge}", dtype)
    site = check(source, {"float32": 1e-6, "float16": 1e-3}[dtype])
    (made,) = site.outputs
    assert made.spec.is_contiguous and site.detail.steps[3] == (3840, 16, 96)


@pytest.mark.parametrize(
    "merge",
    [
        ".transpose(1, 2)",  # a view: nothing is copied
        ".transpose(2, 3).reshape(2, 6, 640)",  # single elements would lie apart
        ".reshape(2, 6, 640)",
    ],
)
def test_results_that_nothing_copies_keep_their_order(merge):
    site = check(problem(f"{GIVEN}(q, k, v, enable_gqa=True){merge}"))
    assert site.detail.steps[3] == (3840, 640, 16)


def test_attention_of_a_decoder_reads_and_writes_where_its_neighbours_do():
    source = (ROOT / "problems" / "models" / "llama.py").read_text()
    source = source.replace("BLOCKS = 4", "BLOCKS = 1")
    _, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    assert site.detail.shared == 4 and site.detail.steps[3] == (2048 * 4096, 128, 4096)
    (turned,) = graph.users(site.outputs[0].name)
    assert turned.spec.is_contiguous, "what follows copies"
