"""Long sums of every recipe against float64: within the judge's floor on the lowest rung, where one
long chain is not, and nearer on the rungs above.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kmem.codegen.text.accumulate import PROMOTE_ELEMENTS
from kmem.codegen.text.parts import DOT_IN_PARTS
from kmem.devices import named_target
from kmem.measure.oracle.correctness import Difference, error_floor, measure_error
from kmem.recipes import ACCURACY, Emission, Recipe, Settings, Site
from kmem.records import Contract, Precision
from kmem.skills import load_recipe, load_skill
from kmem.testing import check_recipe, emit_source, import_source, trace_source

SKILLS = Path(__file__).parent.parent / "skills"
H200 = named_target("h200")
FLOOR = error_floor(torch.float32, Precision.MATCH)
NAN = float("nan")
_PRODUCT = """
import torch
class Model(torch.nn.Module):
    def forward(self, A, B):
        return A @ B
def get_inputs():
    return [torch.randn({m}, {k}), torch.randn({k}, {n})]
"""
TILE = {
    "block_m": 16,
    "block_n": 16,
    "block_k": 32,
    "warps": 4,
    "stages": 3,
    "group": 2,
    "splits": 1,
}


def recipe_of(skill: str) -> Recipe:
    return load_recipe(load_skill(SKILLS / skill))


class Altered:
    """A recipe with something in what it writes replaced."""

    def __init__(self, recipe: Recipe, pattern: str, to: str) -> None:
        self._recipe, self._pattern, self._to = recipe, pattern, to

    def __getattr__(self, name: str) -> object:
        return getattr(self._recipe, name)

    def emit(self, site: Site, settings: Settings) -> Emission:
        emission = self._recipe.emit(site, settings)
        texts = [text for _, text in emission.kernels] + [emission.launcher]
        altered = [re.sub(self._pattern, self._to, text) for text in texts]
        assert altered != texts
        names = [name for name, _ in emission.kernels]
        kernels = tuple(zip(names, altered[:-1], strict=True))
        return replace(emission, kernels=kernels, launcher=altered[-1])


def emit(
    skill: str,
    source: str,
    settings: Settings,
    contract: Contract | None = None,
    *,
    change: tuple[str, str] | None = None,
) -> tuple[Site, str]:
    """The site, and a module that writes it; with `change` with this in its texts replaced."""
    contract, recipe = contract or Contract(), recipe_of(skill)
    _, graph = trace_source(source, contract.precision)
    (site,) = recipe.match(graph, contract)
    author = Altered(recipe, *change) if change else recipe
    return site, emit_source(source, graph, [(author, site, settings)])


def written(skill: str, source: str, settings: Settings, contract: Contract | None = None) -> str:
    """What the recipe itself writes: the kernels, and the launcher that calls them."""
    contract, recipe = contract or Contract(), recipe_of(skill)
    _, graph = trace_source(source, contract.precision)
    (site,) = recipe.match(graph, contract)
    emission = recipe.emit(site, settings)
    return "\n".join([*(text for _, text in emission.kernels), emission.launcher])


def run(text: str, expected: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Difference:
    """The error of an emitted module's answer against float64."""
    with torch.no_grad():
        answer = import_source(text).ModelNew()(*inputs)
    right = expected(*(value.double() for value in inputs))
    assert answer.dtype is torch.float32
    return measure_error(answer, right, right.float())


def product_error(
    skill: str,
    settings: Settings,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    chain: tuple[str, str] | None = None,
) -> float:
    """The error of a product; with `chain` of the same with this in its texts replaced."""
    source = _PRODUCT.format(m=a.shape[0], k=a.shape[1], n=b.shape[1])
    _, text = emit(skill, source, settings, change=chain)
    found = run(text, torch.matmul, a, b)
    assert found.fault is None
    return found.relative_error


def operands(m: int, k: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("rows", ["constant with a NaN", "one entry each", "scales far apart"])
def test_mended_rows_of_a_split_product_sum_in_short_chains(rows):
    """Some chains of 128 products and a remainder; the mend path was one chain of them all."""
    k = (4096 if rows == "constant with a NaN" else 2048) + 24
    a, b = operands(16, k, 16)
    if rows == "constant with a NaN":  # all roundings of a chain of equal terms go one way
        a, b = torch.full_like(a, 0.37), torch.full_like(b, 0.53)
        a[3, 5] = NAN
        old = product_error(
            "split-fp16-matmul", TILE, a, b, chain=(r"\bCHAIN=\d+", "CHAIN=1073741824")
        )
        assert old > FLOOR
    elif rows == "one entry each":
        a = torch.zeros_like(a).scatter_(1, torch.arange(16)[:, None] * 130, 1e-30)
        a[:, -1] = 1e5
    else:
        a *= torch.exp2(torch.linspace(-60.0, 60.0, k))
    assert product_error("split-fp16-matmul", TILE, a, b) < FLOOR / 2


def test_exact_products_sum_in_chains_of_several_steps():
    """Equal terms: 513 steps of 16, or 65 chains of 8 of them."""
    settings = {**TILE, "block_k": 16}
    a, b = torch.full((16, 8192 + 24), 0.37), torch.full((8192 + 24, 16), 0.53)
    one_chain = product_error("tile-matmul", settings, a, b, chain=(r"PROMOTE=\d+", "PROMOTE=0"))
    in_chains = product_error("tile-matmul", settings, a, b)
    assert one_chain > 2 * FLOOR and in_chains < one_chain / 2


def test_exact_products_promote_every_chain_of_128():
    """What the interpreter cannot tell apart: numpy's product of a step is no chain, a GPU's is."""
    long = _PRODUCT.format(m=16, k=8192, n=16)
    short = _PRODUCT.format(m=16, k=PROMOTE_ELEMENTS, n=16)
    assert "PROMOTE=4," in written("tile-matmul", long, TILE)
    assert "PROMOTE=0," in written("tile-matmul", short, TILE)
    half = Contract(Precision.BF16)
    assert "PROMOTE=0," in written("tile-matmul", long, TILE, half)
    assert "PROMOTE=4," in written("tile-matmul", long, {**TILE, ACCURACY: 1}, half)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("skill", "settings"),
    [
        ("tile-matmul", TILE),
        ("split-fp16-matmul", TILE),
        ("split-fp16-matmul", {**TILE, "split": "in_loop", "splits": 2}),
    ],
    ids=["exact", "split ahead", "split in the loop"],
)
def test_the_rungs_of_products_err_less(skill, settings):
    """Terms of one sign, which numpy's product of a step adds up nearly without error."""
    a, b = (value.abs() for value in operands(16, 2000, 16))
    errors = [product_error(skill, {**settings, ACCURACY: rung}, a, b) for rung in (0, 1)]
    assert errors[1] < 0.7 * errors[0]


def test_the_ladder_of_a_product_keeps_the_setting_where_registers_allow():
    recipe = recipe_of("split-fp16-matmul")
    site, _ = emit("split-fp16-matmul", _PRODUCT.format(m=4096, k=8192, n=4096), TILE)
    large = {**TILE, "block_m": 128, "block_n": 128, "block_k": 64, "warps": 8, "group": 8}
    climbed = recipe.more_accurate(site, large, H200)  # remembered without a rung
    assert climbed is not None and climbed[ACCURACY] == 1
    assert sum(climbed.get(name) != value for name, value in large.items()) == 1
    top = recipe.more_accurate(site, climbed, H200)
    assert top == {**climbed, ACCURACY: 2} and recipe.more_accurate(site, top, H200) is None


@pytest.mark.parametrize("rung", [1, 2])
def test_a_tf32_product_gains_two_terms_before_anything_else(rung):
    source = _PRODUCT.format(m=20, k=300, n=20)
    settings = [{**TILE, ACCURACY: rung}]
    contract = Contract(Precision.TF32)
    check_recipe(
        recipe_of("split-fp16-matmul"),
        source,
        H200,
        settings=settings,
        contract=contract,
        tolerance=1e-6,
    )
    assert "TERMS=3" in written("split-fp16-matmul", source, settings[0], contract)
    assert "TERMS=1" in written("split-fp16-matmul", source, TILE, contract)


_ROW = """
import torch
import torch.nn as nn
import torch.nn.functional as F
class Model(nn.Module):
    def forward(self, x):
        return {result}
def get_inputs():
    return [torch.rand({shape})]
"""
#: A loop of 500 steps of 4 elements and a remainder, with lanes along the rows.
LOOP = {"STRATEGY": "loop", "BK": 16, "BR": 4, "SPLIT": 1, "num_warps": 1}
DOWN = (2003, 16)
#: The skill that writes a result, and the result.
ROWS = {
    "sum": ("split-reduction", "torch.sum(x, dim=0)"),
    "softmax": ("online-softmax", "torch.softmax(x, dim=0)"),
    "norm": ("row-norm", "F.layer_norm(x.t(), (2003,))"),
}


def row_error(skill: str, result: str, settings: Settings, x: torch.Tensor, *subs: str) -> float:
    source = _ROW.format(result=result, shape=", ".join(map(str, x.shape)))
    _, text = emit(skill, source, settings, change=subs or None)

    def expected(x: torch.Tensor) -> torch.Tensor:
        return eval(result, {"torch": torch, "x": x, "F": torch.nn.functional})

    found = run(text, expected, x)
    assert found.fault is None
    return found.relative_error


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("row", ROWS)
def test_long_loops_over_a_row_keep_what_their_sums_lose(row):
    """Two values alone, so that roundings go one way, and apart, so that a norm can tell them."""
    skill, result = ROWS[row]
    x = torch.full(DOWN, 0.37)
    x[::7] = -0.41
    error = row_error(skill, result, LOOP, x)
    plain = row_error(skill, result, LOOP, x, "COMPENSATED = True", "COMPENSATED = False")
    assert error < FLOOR / 2 and error < plain / 2


def test_short_loops_over_a_row_are_compensated_on_the_next_rung_alone():
    source = _ROW.format(result="torch.sum(x, dim=0)", shape="400, 16")
    texts = [written("split-reduction", source, {**LOOP, ACCURACY: rung}) for rung in (0, 1)]
    assert "COMPENSATED = False" in texts[0] and "COMPENSATED = True" in texts[1]
    recipe = recipe_of("split-reduction")
    long = _ROW.format(result="torch.sum(x, dim=0)", shape="4096, 4096")
    site, _ = emit("split-reduction", long, LOOP)
    held = recipe.space(site, H200).settings()[0]
    climbed = recipe.more_accurate(site, held, H200)
    assert climbed[ACCURACY] == 1 and climbed["STRATEGY"] != "registers"


def test_an_infinity_stays_one_in_compensated_sums():
    x = torch.ones(DOWN)
    x[5, 3], x[6, 4], x[-1, 4] = float("inf"), float("inf"), -float("inf")
    _, text = emit("split-reduction", _ROW.format(result="x.sum(0)", shape="2003, 16"), LOOP)
    answer = import_source(text).ModelNew()(x)
    assert answer[3] == float("inf") and answer[4].isnan() and answer[:3].eq(2003).all()


def test_a_scan_carries_what_it_loses_from_tile_to_tile():
    source = _ROW.format(result="torch.cumsum(x, dim=1)", shape="2, 4003")
    settings = {"STRATEGY": "carry", "BK": 2, "BR": 4, "SPLIT": 1, "num_warps": 1}
    _, text = emit("blocked-row-scan", source, settings)
    x = torch.full((2, 4003), 0.37)
    found = run(text, lambda x: torch.cumsum(x, 1), x)
    assert found.relative_error < FLOOR / 10
    cut = text.replace("carry, lost = kmem_add_compensated(", "carry, _ = kmem_add_compensated(")
    assert run(cut, lambda x: torch.cumsum(x, 1), x).relative_error > FLOOR


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("vectors", [1, 2])
def test_matrix_vector_products_keep_what_long_sums_lose(vectors):
    settings = {"block_l": 16, "block_k": 8, "splits": 1, "warps": 1}
    a, b = torch.full((16, 8192 + 24), 0.37), torch.full((8192 + 24, vectors), 0.53)
    skill, uncompensated = "matvec-rows-per-program", ("COMPENSATED=True", "COMPENSATED=False")
    assert product_error(skill, settings, a, b) < FLOOR / 4
    assert product_error(skill, settings, a, b, chain=uncompensated) > FLOOR


_CONVOLUTION = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.c = {layer}
    def forward(self, x):
        return self.c(x)
def get_inputs():
    return [torch.randn({shape})]
"""
IMAGE = _CONVOLUTION.format(layer="nn.Conv2d(40, 16, 3)", shape="1, 40, 8, 8")
STAGED = {
    "terms": 1,
    "block_p": 64,
    "block_co": 16,
    "block_k": 32,
    "copy_bytes": 16,
    "warps": 4,
    "stages": 2,
}


def test_a_convolution_of_one_part_gains_the_second_then_compensation():
    """360 products: two chains of 128 and a remainder."""
    recipe = recipe_of("staged-half-conv")
    for rung in (0, 1, 2):  # on the CPU one part is exact, for eager's convolution is
        settings = [{**STAGED, ACCURACY: rung}]
        check_recipe(recipe, IMAGE, H200, settings=settings, tolerance=FLOOR / 2)
    texts = [written("staged-half-conv", IMAGE, {**STAGED, ACCURACY: rung}) for rung in (0, 1, 2)]
    assert ["TERMS=3" in text for text in texts] == [False, True, True]
    assert ["COMPENSATED=True" in text for text in texts] == [False, False, True]
    exact = written("split-half-conv", IMAGE, {**STAGED, "terms": 3, ACCURACY: 1})
    assert "COMPENSATED=True" in exact


def test_a_direct_convolution_gains_two_products_and_short_sums():
    settings = {"block_p": 128, "block_co": 16, "block_k": 16}
    above = {**settings, ACCURACY: 1}
    text = written("implicit-gemm-conv", IMAGE, above)
    assert "SPLIT=True" in text and "PROMOTE=1," in text and "ROUND=False" in text
    assert "SPLIT=False" in written("implicit-gemm-conv", IMAGE, settings)
    check_recipe(recipe_of("implicit-gemm-conv"), IMAGE, H200, settings=[above], tolerance=FLOOR)


@pytest.mark.parametrize(
    ("skill", "layer", "told"),
    [
        ("staged-half-conv", "nn.Conv2d(64, 64, 3)", {}),
        ("split-half-conv", "nn.Conv2d(64, 64, 3)", {}),
        ("implicit-gemm-conv", "nn.Conv2d(64, 64, 3)", {}),
        ("channels-last-conv", "nn.Conv2d(64, 64, 3)", {}),
        (
            "transposed-conv-phases",
            "nn.ConvTranspose2d(64, 64, 3, stride=2)",
            {"precision": "exact"},
        ),
    ],
)
def test_the_first_choice_of_every_convolution_can_be_repaired(skill, layer, told):
    """The rung above the setting that is predicted fastest is legal, and no longer rounds."""
    recipe = recipe_of(skill)
    source = _CONVOLUTION.format(layer=layer, shape="16, 64, 64, 64")
    (site,) = recipe.match(trace_source(source)[1], Contract())
    space = recipe.space(site, H200)
    first = min(space.settings(), key=lambda setting: recipe.cost_ms(site, setting, H200))
    above = recipe.more_accurate(site, first, H200)
    assert above is not None and space.allows(above) and above[ACCURACY] == 1
    assert told.items() <= above.items()
    assert recipe.cost_ms(site, above, H200) >= recipe.cost_ms(site, first, H200)
    assert not recipe.emit(site, above).own_size_only


_PARTS = """
import torch
import triton
import triton.language as tl
{kernels}

@triton.jit
def cut(x, high, low, N: tl.constexpr):
    at = tl.arange(0, N)
    top, rest = kmem_cut_tf32(tl.load(x + at))
    tl.store(high + at, top)
    tl.store(low + at, rest)


@triton.jit
def multiply(a, b, out, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, kmem_dot_in_parts(tl.load(a + at), tl.load(b + at)))
"""
_IN_PARTS = import_source(_PARTS.format(kernels=DOT_IN_PARTS[1]))


def drop_bits(value: torch.Tensor) -> torch.Tensor:
    """What a tensor core takes of fp32 for TF32: all but the low 13 bits."""
    return (value.view(torch.int32) & -8192).view(torch.float32)


@pytest.mark.parametrize("power", [127, 20, 0, -100, -126, -130, -134])
def test_two_parts_of_tf32_hold_denormals_as_they_hold_other_numbers(power):
    x = torch.linspace(0.5, 1.0, 1024).double().mul(2.0**power).float()
    high, low = torch.empty_like(x), torch.empty_like(x)
    _IN_PARTS.cut[(1,)](x, high, low, N=1024)
    assert torch.equal(high, drop_bits(high)) and low.isfinite().all()
    held = drop_bits(high).double() + drop_bits(low).double() / 1024
    error = (held - x.double()).abs()
    # 21 bits, or what fp32 itself keeps of so small a number times eight
    assert bool((error <= torch.clamp(x.double() * 2.0**-20, min=2.0**-146)).all())


def test_a_product_in_parts_is_that_of_fp32_and_keeps_infinities():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 16, 16, generator=generator)
    a[3, 5], b[7, 2], b[9, 4] = float("inf"), 0.5, NAN  # what is left of one half is zero
    out = torch.empty(16, 16)
    _IN_PARTS.multiply[(1,)](a, b, out, N=16)
    expected = a.double() @ b.double()
    finite = expected.isfinite()
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out[~finite].nan_to_num(7.0), expected[~finite].float().nan_to_num(7.0))
    assert finite.sum() > 200 and (out - expected)[finite].abs().max() < 1e-5


@pytest.mark.gpu
def test_a_product_in_parts_keeps_denormals_on_tensor_cores():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 16, 16, generator=generator)
    a *= 2.0**-129  # as the judge's family of denormals
    out = torch.empty(16, 16, device="cuda")
    _IN_PARTS.multiply[(1,)](a.cuda(), b.cuda(), out, N=16)
    expected = a.double() @ b.double()
    error = (out.cpu().double() - expected).norm() / expected.norm()
    assert error < 1e-4, "what TF32 cuts off a denormal is 1e-2 of it"
