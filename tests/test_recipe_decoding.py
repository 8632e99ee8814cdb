"""skills/split-kv-decoding: against torch in the interpreter, and compiled for sm_90."""

from pathlib import Path

import pytest
import torch
from compile_sm90 import compile_jobs

from kmem.devices import named_target
from kmem.records import Contract
from kmem.skills import load_recipe, load_skill
from kmem.testing import check_recipe, emit_source, import_source, trace_source

ROOT = Path(__file__).resolve().parent.parent
H200 = named_target("h200")
RECIPE = load_recipe(load_skill(ROOT / "skills" / "split-kv-decoding"))
CACHED = "F.scaled_dot_product_attention(q, torch.cat((k, m), -2), torch.cat((v, n), -2){more})"


def problem(shapes: list[tuple[int, ...]], call: str, dtype: str = "float32") -> str:
    names = "qkvmn"[: len(shapes)]
    inputs = ", ".join(f"torch.randn({shape}).to(torch.{dtype})" for shape in shapes)
    return (
        "import torch\nimport torch.nn.functional as F\nclass Model(torch.nn.Module):\n"
        f"    def forward(self, {', '.join(names)}):\n"
        f"        return {call}\ndef get_inputs():\n    return [{inputs}]\n"
    )


PLAIN = "F.scaled_dot_product_attention(q, k, v{more})"
GROUPED = ", enable_gqa=True"
CASES = {
    "one query": ([(2, 3, 1, 16), (2, 3, 150, 16), (2, 3, 150, 24)], PLAIN.format(more="")),
    "groups": (
        [(1, 6, 2, 16), (1, 2, 130, 16), (1, 2, 130, 16)],
        PLAIN.format(more=f"{GROUPED}, scale=0.3"),
    ),
    "three dimensions": ([(4, 3, 20), (4, 200, 20), (4, 200, 12)], PLAIN.format(more="")),
    "strided": (
        [(2, 1, 3, 16), (2, 140, 3, 16), (2, 140, 3, 16)],
        "F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))",
    ),
    "a cache": (
        [(2, 2, 1, 16), (2, 2, 131, 16), (2, 2, 131, 8), (2, 2, 1, 16), (2, 2, 1, 8)],
        CACHED.format(more=""),
    ),
    "a cache and groups": (
        [(1, 4, 3, 16), (1, 2, 160, 16), (1, 2, 160, 16), (1, 2, 40, 16), (1, 2, 40, 16)],
        CACHED.format(more=GROUPED),
    ),
}


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("case", CASES)
def test_stretches_add_up_to_what_torch_gives(case: str) -> None:
    source = problem(*CASES[case])
    _, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    is_cached = "cache" in case
    assert len(site.nodes) == (3 if is_cached else 1)
    space = RECIPE.space(site, H200).settings()
    chosen = space[:: max(1, len(space) // 4)]
    assert len({each["splits"] for each in chosen}) > 1
    check_recipe(RECIPE, source, H200, settings=chosen, tolerance=1e-6)


@pytest.mark.parametrize(("dtype", "rounding"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_halves_round_no_more_than_their_type(dtype: str, rounding: float) -> None:
    source = problem(*CASES["a cache"], dtype)
    _, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    setting = RECIPE.space(site, H200).settings()[-1]
    check_recipe(RECIPE, source, H200, settings=[setting], tolerance=rounding)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_an_infinite_value_stays_infinite(dtype: str) -> None:
    """The second half of p is zero or less there, whose product with it would be NaN."""
    source = problem(*CASES["one query"], dtype)
    module, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    setting = RECIPE.space(site, H200).settings()[-1]
    kernel = import_source(emit_source(source, graph, [(RECIPE, site, setting)]))
    q, k, v = module.get_inputs()
    v[1, 2, 149, 3] = float("inf")
    with torch.no_grad():
        expected, found = module.Model()(q, k, v), kernel.ModelNew()(q, k, v)
    assert torch.isposinf(expected[1, 2, 0, 3]) and torch.isposinf(found[1, 2, 0, 3])
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_a_query_that_is_the_concatenation_and_a_cache_that_is_not_dense() -> None:
    source = problem(
        [(1, 2, 3, 16), (1, 2, 4, 16)],
        "(lambda x: F.scaled_dot_product_attention(x, x, x))(torch.cat((q, k), -2))",
    )
    check_recipe(RECIPE, source, H200, settings=SETTING, tolerance=1e-6)
    turned = "torch.cat((k.transpose(-1, -2), m), -2), torch.cat((v, n), -2)"
    shapes = [(1, 2, 1, 16), (1, 2, 16, 40), (1, 2, 40, 8), (1, 2, 1, 16), (1, 2, 1, 8)]
    source = problem(shapes, f"F.scaled_dot_product_attention(q, {turned})")
    check_recipe(RECIPE, source, H200, settings=SETTING, tolerance=1e-6)


SETTING = [{"splits": 1, "block_n": 32, "warps": 4, "stages": 2}]


@pytest.mark.parametrize(
    "call",
    [
        PLAIN.format(more=", is_causal=True"),
        PLAIN.format(more=", attn_mask=q[..., :1] > 0"),
        "F.scaled_dot_product_attention(torch.cat([q] * 65, -2), k, v)",  # many queries
    ],
)
def test_what_the_kernels_do_not_cover_is_no_site(call: str) -> None:
    _, graph = trace_source(problem([(2, 2, 1, 16), (2, 2, 150, 16), (2, 2, 150, 16)], call))
    assert RECIPE.match(graph, Contract()) == []


@pytest.mark.parametrize(
    "call",
    [
        "(lambda c: F.scaled_dot_product_attention(q, c, torch.cat((v, n), -2)) + c.sum())"
        "(torch.cat((k, m), -2))",
        "F.scaled_dot_product_attention(q, torch.cat((k, m), -2), torch.cat((n, v), -2))",
    ],
)
def test_a_concatenation_that_others_read_or_in_another_order_is_made(call: str) -> None:
    shapes, _ = CASES["a cache"]
    _, graph = trace_source(problem(shapes, call))
    (site,) = RECIPE.match(graph, Contract())
    assert len(site.nodes) == 1 and len(site.inputs) == 3


def test_small_sizes_of_a_problem_have_the_same_site() -> None:
    shapes = [(1, 2, 1, 8), (1, 2, 3, 8), (1, 2, 3, 8), (1, 2, 1, 8), (1, 2, 1, 8)]
    check_recipe(RECIPE, problem(shapes, CACHED.format(more="")), H200, tolerance=1e-6)


@pytest.mark.slow
def test_kernels_stream_keys_without_spills_for_sm90() -> None:
    """The cache of a Llama-like step: 8 x 16 heads of 128, 4096 keys and a new one."""
    large = (8, 16, 4096, 128)
    new = (8, 16, 1, 128)
    source = problem([new, large, large, new, new], CACHED.format(more=""), "bfloat16")
    _, graph = trace_source(source.replace("randn", "empty"))
    (site,) = RECIPE.match(graph, Contract())
    ranked = sorted(
        RECIPE.space(site, H200).settings(), key=lambda each: RECIPE.cost_ms(site, each, H200)
    )
    assert ranked[0]["splits"] > 1  # 128 heads are one program for each multiprocessor
    jobs = [
        ("split-kv-decoding", source.replace("randn", "empty"), "match", setting)
        for setting in ranked[:3]
    ]
    for kernels in compile_jobs(jobs, "ptx"):
        assert {kernel["name"] for kernel in kernels} == {"kmem_decode_part", "kmem_decode_merge"}
        assert all(not kernel["stack"] and kernel["shared"] <= 232448 for kernel in kernels)
