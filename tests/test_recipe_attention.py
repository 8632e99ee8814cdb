"""skills/flash-attention: both forms against torch in the interpreter, and compiled for sm_90."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from all_pairs import all_pairs
from compile_sm90 import compile_jobs
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from kmem.devices import named_target
from kmem.measure.oracle.inputs.families import apply_family
from kmem.measure.oracle.inputs.traits import InputTraits
from kmem.records import Contract
from kmem.skills import load_recipe, load_skill
from kmem.testing import check_recipe, emit_source, import_source, poisoned_scratch, trace_source

ROOT = Path(__file__).resolve().parent.parent
H200 = named_target("h200")
RECIPE = load_recipe(load_skill(ROOT / "skills" / "flash-attention"))
#: How far a result is from its own rounding.
ROUNDED_TO = {"float32": 1e-6, "bfloat16": 2.0**-8, "float16": 2.0**-11}


def problem(shapes: list[tuple[int, ...]], dtype: str = "float32", call: str = "q, k, v") -> str:
    inputs = ", ".join(f"torch.randn({shape}).to(torch.{dtype})" for shape in shapes)
    return (
        "import torch\nimport torch.nn.functional as F\nclass Model(torch.nn.Module):\n"
        "    def forward(self, q, k, v):\n"
        f"        return F.scaled_dot_product_attention({call})\ndef get_inputs():\n"
        f"    return [{inputs}]\n"
    )


def variants(source: str, form: str, count: int) -> list[dict]:
    _, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    space = [setting for setting in RECIPE.space(site, H200).settings() if setting["form"] == form]
    return space[:: max(1, len(space) // count)][:count]


@pytest.mark.parametrize("rung", [0, 1])
@pytest.mark.parametrize("form", ["fused", "two_stages"])
def test_what_small_rows_of_v_add_to_keeps_its_digits(form: str, rung: int) -> None:
    """A query that attends to rows that are small beside others, or zero: as fp16 on the scale of
    the tile its probabilities would have few digits, or none.
    """
    shape = (1, 1, 40, 16)
    source = problem([shape] * 3)
    _, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    setting = RECIPE.space(site, H200).on_rung(variants(source, form, 1)[0], rung)
    module = import_source(emit_source(source, graph, [(RECIPE, site, setting)])).ModelNew()
    places = torch.arange(40) % 16
    q = 9.0 * F.one_hot(places, 16).float().view(shape)  # a score is 20 where they meet, else 0
    v = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    v[0, 0, places == 3] *= 1e-7
    v[0, 0, places == 5] = 0.0
    with torch.no_grad():
        found = module(q, q, v).double()
    right = F.scaled_dot_product_attention(q.double(), q.double(), v.double())
    error = (found - right).norm(dim=-1) / right.norm(dim=-1)
    assert error.max() < 1e-5, error.max()


@pytest.mark.parametrize("form", ["fused", "two_stages"])
def test_the_upper_rung_leaves_no_product_of_parts_out(form: str) -> None:
    """Two scores that differ by products of what rounding to fp16 leaves."""
    shape = (1, 1, 2, 16)
    source = problem([shape] * 3, call="q, k, v, scale=2.0**24")
    _, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    q, k, v = torch.zeros(3, *shape)
    q[..., :3] = torch.tensor([1 + 2.0**-12, 1.0, 1.0])
    k[0, 0, 0, :2] = torch.tensor([1 + 2.0**-12, -1.0])  # a score of 2**-11 + 2**-24
    k[0, 0, 1, :3] = torch.tensor([1 + 2.0**-11, -1.0, -(2.0**-12)])  # 2**-11 + 2**-23
    v[0, 0, 1] = 1.0
    found = []
    for rung in (0, 1):
        setting = RECIPE.space(site, H200).on_rung(variants(source, form, 1)[0], rung)
        module = import_source(emit_source(source, graph, [(RECIPE, site, setting)])).ModelNew()
        with torch.no_grad():
            found.append(module(q, k, v).mean().item())
    assert found == pytest.approx([0.5, math.e / (1 + math.e)], abs=1e-3)


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("form", ["fused", "two_stages"])
@pytest.mark.parametrize(
    ("shapes", "call"),
    [
        ([(1, 2, 20, 16), (1, 2, 37, 16), (1, 2, 37, 24)], "q, k, v"),
        ([(2, 40, 40)] * 3, "q, k, v, is_causal=True"),
        ([(33, 80), (20, 80), (20, 72)], "q, k, v, scale=0.3"),
        ([(1, 18, 2, 16)] * 3, "q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)"),
    ],
)
def test_both_forms_agree_with_torch(form: str, shapes: list[tuple[int, ...]], call: str) -> None:
    source = problem(shapes, call=call)
    _, graph = trace_source(source)
    # a copy in the graph or a strided site: either way the site reads what lies there
    if call.startswith("q.t"):
        assert len(RECIPE.match(graph, Contract())) == 1
    check_recipe(RECIPE, source, H200, settings=variants(source, form, 1), tolerance=1e-6)


WRITTEN_OUT = """
import torch
class Model(torch.nn.Module):
    def forward(self, q, k, v):
        {forward}
def get_inputs():
    return [torch.randn(1, 2, 20, 16), torch.randn(1, 2, 37, 16), torch.randn(1, 2, 37, 24)]
"""


@pytest.mark.parametrize(
    ("forward", "covered"),
    [
        ("return torch.softmax(q @ k.transpose(-2, -1) * 0.3 / 2, -1) @ v", 6),
        ("return torch.softmax((q * 0.3) @ k.permute(0, 1, 3, 2), dim=3) @ v", 5),
        (
            "s = q @ k.transpose(-2, -1) * 0.3\n"
            "        hidden = (q[..., :1] > 0.0) & (v[..., 0] > 0.0).unsqueeze(2)\n"
            "        return torch.softmax(s.masked_fill(hidden, -torch.inf), -1) @ v",
            6,
        ),
        (
            "s = q @ k.transpose(-2, -1)\n"
            "        hidden = torch.ones(20, 37, device=q.device, dtype=torch.bool).triu(1)\n"
            "        return torch.softmax(s.masked_fill(hidden, -torch.inf), -1) @ v",
            7,  # with what makes the mask
        ),
        (
            "s = q @ k.transpose(-2, -1)\n"
            "        return torch.softmax(s.masked_fill(s > 9.0, -1e9), -1) @ v",
            0,
        ),
        ("return torch.softmax(q @ k.transpose(-2, -1), 2) @ v", 0),  # over the queries
        ("p = torch.softmax(q @ k.transpose(-2, -1), -1)\n        return p @ v, p", 0),
        ("p = torch.softmax(k @ k.transpose(-2, -1), -1)\n        return p @ p", 0),
        ("return torch.softmax(q @ k.transpose(-2, -1) * -1.0, -1) @ v", 0),
        ("return torch.softmax((q @ k.transpose(-2, -1)).tril(), -1) @ v", 0),
    ],
)
def test_attention_that_is_written_out_is_found(forward: str, covered: int) -> None:
    source = WRITTEN_OUT.format(forward=forward)
    _, graph = trace_source(source)
    sites = RECIPE.match(graph, Contract())
    assert [len(site.nodes) for site in sites] == ([covered] if covered else [])
    if covered:
        for form in ("fused", "two_stages"):
            settings = variants(source, form, 1)
            check_recipe(RECIPE, source, H200, settings=settings, tolerance=1e-6)


@pytest.mark.parametrize("written_out", [False, True])
def test_a_query_that_finds_nothing_is_what_torch_makes_of_it(written_out: bool) -> None:
    call = "q, k, v, scale=1.0"
    source = problem([(1, 2, 17, 18)] * 3, call=call)
    if written_out:
        attention = f"F.scaled_dot_product_attention({call})"
        source = source.replace(attention, "torch.softmax(q @ k.transpose(-2, -1), -1) @ v")
    torch.manual_seed(3)
    q, k, v = (torch.rand(1, 2, 17, 18) for _ in range(3))
    q[0, 1, 5] = float("-inf")
    for found in run_both([q, k, v], source=source):
        assert found[0, 1, 5].isnan().all() if written_out else (found[0, 1, 5] == 0).all()
        assert found[0, 1, :5].isfinite().all() and found[0, 0].isfinite().all()


def test_wide_heads_take_two_stages() -> None:
    source = problem([(1, 20, 300)] * 3)
    assert variants(source, "fused", 1) == []
    check_recipe(RECIPE, source, H200, settings=variants(source, "two_stages", 1), tolerance=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 8e-3), ("float16", 1e-3)])
def test_half_precision_rounds_probabilities_once(dtype: str, tolerance: float) -> None:
    source = problem([(1, 2, 24, 16)] * 3, dtype)
    check_recipe(RECIPE, source, H200, settings=variants(source, "fused", 1), tolerance=tolerance)


def run_both(
    inputs: list[torch.Tensor], call: str = "q, k, v", source: str | None = None
) -> list[torch.Tensor]:
    """The emitted module's result in each form (half precision has one)."""
    dtype = str(inputs[0].dtype).removeprefix("torch.")
    source = source or problem([tuple(value.shape) for value in inputs], dtype, call)
    _, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    found = []
    for setting in (
        setting for form in ("fused", "two_stages") for setting in variants(source, form, 1)
    ):
        emitted = import_source(emit_source(source, graph, [(RECIPE, site, setting)]))
        with torch.no_grad():
            found.append(emitted.ModelNew()(*inputs))
    return found


@pytest.mark.parametrize(("scale", "values"), [(1e5, 1.0), (1e-38, 1e-38), (3.0, 1e5)])
def test_magnitudes_beyond_fp16_err_no_more_than_eager(scale: float, values: float) -> None:
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, 24, 32) for _ in range(3))
    q = q * scale
    k = k * scale
    v = v * values
    oracle = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    eager = float(
        (F.scaled_dot_product_attention(q, k, v).double() - oracle).norm() / oracle.norm()
    )
    for found in run_both([q, k, v]):
        assert float((found.double() - oracle).norm() / oracle.norm()) <= max(2 * eager, 1e-6)


@pytest.mark.parametrize("call", ["q, k, v", "q, k, v, is_causal=True"])
@pytest.mark.parametrize("smallest", [1e-18, 1e-37, 1e-41])
def test_a_query_of_one_key_is_given_its_row_as_it_is(smallest: float, call: str) -> None:
    """Each query finds one key; half of the values are nothing beside the largest of their row."""
    torch.manual_seed(7)
    q = 1e3 * torch.eye(40)[None].repeat(2, 1, 1)
    k = q.clone()
    v = torch.randn(2, 40, 40)
    v[1, :, ::2] *= smallest
    for found in run_both([q, k, v], call):
        assert torch.equal(found[1], v[1]) or smallest < 1e-38
        assert ((found[1] - v[1]).abs() <= 1e-38 + 1e-6 * v[1].abs()).all()
        assert torch.allclose(found[0], v[0], rtol=1e-6)


def test_a_row_of_values_may_be_infinite_throughout() -> None:
    torch.manual_seed(3)
    q, k, v = (torch.randn(1, 2, 17, 18) for _ in range(3))
    v[0, 1, 5] = float("-inf")
    for found in run_both([q, k, v]):
        assert found[0, 1].isneginf().all()
        assert found[0, 0].isfinite().all()


@pytest.fixture
def contracting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter subtracts from unrounded products, as a compiler does that contracts a * b -
    c to one fma.
    """
    multiply, subtract = InterpreterBuilder.create_fmul, InterpreterBuilder.create_fsub

    def create_fmul(
        builder: InterpreterBuilder, left: TensorHandle, right: TensorHandle
    ) -> TensorHandle:
        product = multiply(builder, left, right)
        if product.data.dtype == np.float32:
            product.attr["unrounded"] = left.data.astype(np.float64) * right.data
        return product

    def create_fsub(
        builder: InterpreterBuilder, left: TensorHandle, right: TensorHandle
    ) -> TensorHandle:
        if "unrounded" not in left.attr:
            return subtract(builder, left, right)
        return TensorHandle((left.attr["unrounded"] - right.data).astype(np.float32), left.dtype)

    monkeypatch.setattr(InterpreterBuilder, "create_fmul", create_fmul)
    monkeypatch.setattr(InterpreterBuilder, "create_fsub", create_fsub)


@pytest.mark.slow(after=3)
@pytest.mark.usefixtures("contracting")
@pytest.mark.parametrize(
    ("keys", "options", "dtype"),
    all_pairs([32, 37], [{}, {"is_causal": True}, {"scale": -2.0}], list(ROUNDED_TO)),
)
def test_large_scores_are_right_where_products_are_contracted(
    keys: int, options: dict[str, float | bool], dtype: str
) -> None:
    inputs = [torch.empty(2, rows, 32, dtype=getattr(torch, dtype)) for rows in (20, keys, keys)]
    apply_family("large", inputs, [InputTraits(fixed=False)] * 3, torch.Generator().manual_seed(4))
    oracle = F.scaled_dot_product_attention(*(value.double() for value in inputs), **options)
    for found in run_both(
        inputs, ", ".join(["q, k, v", *(f"{name}={value}" for name, value in options.items())])
    ):
        assert float((found.double() - oracle).norm() / oracle.norm()) <= ROUNDED_TO[dtype]


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("poison", "sizes", "options"),
    all_pairs(
        [-(2**30), 2**30], [(20, 37), (37, 20), (70, 70), (5, 130)], [{}, {"is_causal": True}]
    ),
)
def test_no_result_depends_on_what_scratch_memory_held(
    poison: int, sizes: tuple[int, int], options: dict[str, bool]
) -> None:
    """Of tiles that no row attends to nothing is written, so nothing may be read."""
    queries, keys = sizes
    torch.manual_seed(5)
    inputs = [torch.randn(2, rows, 32) for rows in (queries, keys, keys)]
    oracle = F.scaled_dot_product_attention(*(value.double() for value in inputs), **options)

    with poisoned_scratch(poison):
        results = run_both(
            inputs, ", ".join(["q, k, v", *(f"{name}={value}" for name, value in options.items())])
        )
    for found in results:
        assert float((found.double() - oracle).norm() / oracle.norm()) <= 1e-6


def test_rows_of_values_of_very_different_magnitude_keep_their_share() -> None:
    torch.manual_seed(2)
    q, k, v = (torch.randn(1, 24, 32) for _ in range(3))
    v[:, ::2] *= 1e4
    oracle = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    for found in run_both([q, k, v]):
        assert float((found.double() - oracle).norm() / oracle.norm()) < 1e-6


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("operand", [0, 1, 2])
@pytest.mark.parametrize("special", [float("inf"), float("-inf"), float("nan")])
def test_values_that_are_not_finite_reach_what_they_reach_in_torch(
    operand: int, special: float
) -> None:
    torch.manual_seed(3)
    inputs = [torch.rand(1, 20, 16) for _ in range(3)]
    inputs[operand][0, 3, 5] = special
    expected = F.scaled_dot_product_attention(*inputs)
    for found in run_both(inputs):
        assert torch.equal(found.isnan(), expected.isnan()) and torch.equal(
            found.isinf(), expected.isinf()
        )
        finite = expected.isfinite()
        assert torch.allclose(found[finite], expected[finite], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "source",
    [
        problem([(1, 2, 8, 16)] * 3, call="q, k, v, dropout_p=0.5"),
        problem([(1, 2, 8, 16), (1, 1, 8, 16), (1, 1, 8, 16)]),
        problem([(1, 2, 8, 300)] * 3, "bfloat16"),
    ],
    ids=["dropout", "broadcast", "wide half precision"],
)
def test_what_the_kernels_do_not_cover_is_not_matched(source: str) -> None:
    assert RECIPE.match(trace_source(source)[1], Contract()) == []


_COMMON = {"block_k": 64, "warps": 8, "stages": 3}
COMPILED = {
    "wide": (
        [(32, 32, 512, 1024)] * 3,
        "float32",
        {"form": "two_stages", "block_m": 128, "block_n": 128, **_COMMON},
    ),
    "fp32": (
        [(8, 16, 2048, 64)] * 3,
        "float32",
        {"form": "fused", "block_m": 128, "block_n": 64, **_COMMON},
    ),
    "bf16": (
        [(8, 16, 4096, 128)] * 3,
        "bfloat16",
        {"form": "fused", "block_m": 128, "block_n": 64, **_COMMON},
    ),
}


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[dict]]:
    """Every case, compiled for sm_90 in one process without the interpreter."""
    jobs = [
        ("flash-attention", problem(shapes, dtype).replace("randn", "empty"), "match", setting)
        for shapes, dtype, setting in COMPILED.values()
    ]
    return dict(zip(COMPILED, compile_jobs(jobs, "ptx"), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", COMPILED)
def test_kernels_use_tensor_cores_and_do_not_spill(
    compiled: dict[str, list[dict]], case: str
) -> None:
    assert [
        kernel["name"] for kernel in compiled[case] if kernel["stack"] or kernel["shared"] > 232448
    ] == []
    products = [
        kernel
        for kernel in compiled[case]
        if kernel["name"] in ("kmem_attention", "kmem_attention_scores", "kmem_attention_output")
    ]
    assert len(products) == (2 if case == "wide" else 1)
    assert all(kernel["hgmma"] > 0 and kernel["async_copies"] > 0 for kernel in products)


@pytest.mark.slow
@pytest.mark.parametrize("case", COMPILED)
def test_no_exponent_is_a_contracted_product(compiled: dict[str, list[dict]], case: str) -> None:
    exponentials = 0
    for kernel in compiled[case]:
        exponents = set(re.findall(r"\bex2\.approx\S*\s+%\w+, (%\w+)", kernel["ptx"]))
        exponentials += len(exponents)
        assert exponents.isdisjoint(re.findall(r"\bfma\.rn\.f32\s+(%\w+),", kernel["ptx"])), kernel[
            "name"
        ]
    assert exponentials > 0
