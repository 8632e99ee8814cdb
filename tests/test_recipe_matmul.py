"""The matrix-product recipes in the interpreter: every spelling, odd sizes, transposed and batched
operands, epilogues.
"""

from pathlib import Path

import pytest
import torch

from kmem.devices import named_target
from kmem.records import Contract, Precision
from kmem.skills import load_recipe, load_skill
from kmem.testing import check_recipe, emit_source, import_source, trace_source

SKILLS = Path(__file__).parent.parent / "skills"
H200 = named_target("h200")

_PROBLEM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, A, B):
        return {result}

def get_inputs():
    return [torch.randn({a}), torch.randn({b})]
"""

#: (expression, shape of A, shape of B, module the constructor makes)
SPELLINGS = {
    "square": ("torch.matmul(A, B)", "40, 40", "40, 40", "pass"),
    "odd": ("torch.mm(A, B)", "37, 51", "51, 29", "pass"),
    "batched": ("torch.bmm(A, B)", "3, 20, 33", "3, 33, 18", "pass"),
    "broadcast batch": ("torch.matmul(A, B)", "2, 1, 17, 33", "3, 33, 18", "pass"),
    "3D times matrix": ("torch.matmul(A, B)", "3, 20, 33", "33, 18", "pass"),
    "4D einsum": ("torch.einsum('bijl,lk->bijk', A, B)", "2, 3, 18, 33", "33, 20", "pass"),
    "transposed A": ("torch.matmul(A.T, B)", "33, 20", "33, 18", "pass"),
    "transposed B": ("torch.matmul(A, B.T)", "20, 33", "18, 33", "pass"),
    "transposed both": ("torch.matmul(A.T, B.T)", "33, 20", "18, 33", "pass"),
    "attention scores": (
        "torch.matmul(A, B.transpose(-1, -2))",
        "2, 2, 17, 33",
        "2, 2, 19, 33",
        "pass",
    ),
    "matrix times stack, axes that do not merge": (
        "torch.matmul(A.transpose(0, 1), B)",
        "20, 3, 33",
        "33, 18",
        "pass",
    ),
    "upper triangle": ("torch.triu(torch.matmul(A, B))", "50, 50", "50, 50", "pass"),
    "lower triangle": ("torch.tril(torch.matmul(A, B), -3)", "50, 50", "50, 50", "pass"),
    "batched triangle": ("torch.tril(torch.matmul(A, B))", "2, 40, 20", "20, 40", "pass"),
    "linear": ("self.l(A) * 2 + B", "3, 18, 33", "20", "self.l = nn.Linear(33, 20)"),
    "addmm": ("torch.addmm(A[0, :18], A, B)", "20, 33", "33, 18", "pass"),
    "addmm of weighted terms": (
        "torch.addmm(A[0, :18], A, B, beta=0.5, alpha=-2)",
        "20, 33",
        "33, 18",
        "pass",
    ),
    "addmm that reads no bias": (
        "torch.addmm(A[0, :18] / 0, A, B, beta=0)",
        "20, 33",
        "33, 18",
        "pass",
    ),
    "baddbmm": ("torch.baddbmm(B[:, :1], A, B, alpha=0.3)", "2, 20, 33", "2, 33, 18", "pass"),
    "strided slice": ("A[:, ::2] @ B", "20, 66", "33, 18", "pass"),
}


def _recipe(name):
    return load_recipe(load_skill(SKILLS / name))


def _source(result, a, b, init="pass"):
    return _PROBLEM.format(result=result, a=a, b=b, init=init)


def _sites(recipe, source, precision=Precision.MATCH):
    return recipe.match(trace_source(source, precision)[1], Contract(precision))


MATVEC = {"block_l": 4, "block_k": 32, "splits": 1, "warps": 1}
SPLIT = {
    "block_m": 32,
    "block_n": 32,
    "block_k": 16,
    "warps": 4,
    "stages": 3,
    "group": 2,
    "splits": 1,
}
TILE = {
    "block_m": 16,
    "block_n": 32,
    "block_k": 16,
    "warps": 4,
    "stages": 3,
    "group": 2,
    "splits": 1,
}


def _run(recipe, source, settings, inputs):
    _, graph = trace_source(source)
    text = emit_source(
        source, graph, [(recipe, site, settings) for site in recipe.match(graph, Contract())]
    )
    return import_source(text).ModelNew()(*inputs)


def _check(recipe, source, settings, **options):
    """check_recipe with settings smaller than the space's own, so that small problems have several
    tiles.
    """
    return check_recipe(recipe, source, H200, settings=settings, **options)


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_split_products_are_as_good_as_fp32(spelling):
    splits = 2 if spelling in ("odd", "batched", "upper triangle", "linear") else 1
    _check(
        _recipe("split-fp16-matmul"),
        _source(*SPELLINGS[spelling]),
        [{**SPLIT, "splits": splits}],
        tolerance=1e-6,
    )


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    "spelling",
    ["odd", "broadcast batch", "transposed both", "upper triangle", "linear", "strided slice"],
)
def test_products_split_in_the_loop_are_as_good_as_fp32(spelling):
    settings = [{**SPLIT, "split": "in_loop", "splits": splits} for splits in (2, 3)]
    _check(_recipe("split-fp16-matmul"), _source(*SPELLINGS[spelling]), settings, tolerance=1e-6)


@pytest.mark.parametrize(
    ("a", "b"), [("2, 200", "200, 3"), ("8, 5, 7, 13", "13, 15"), ("40, 2", "2, 40")]
)
def test_split_products_match_at_any_size_above_one_for_a_small_workload_must_match_too(a, b):
    source = _source("torch.matmul(A, B)", a, b)
    assert len(_sites(_recipe("split-fp16-matmul"), source)) == 1
    _check(
        _recipe("split-fp16-matmul"),
        source,
        [{**SPLIT, "block_m": 64, "splits": 2}],
        tolerance=1e-6,
    )


def test_splitting_in_the_loop_is_tried_where_the_operands_are_long_against_the_output():
    recipe = _recipe("split-fp16-matmul")
    offered = {
        name: {
            settings.get("split", "ahead")
            for site in _sites(recipe, _source("A @ B", a, b))
            for settings in recipe.space(site, H200).settings()
        }
        for name, a, b in (("long", "256, 8192", "8192, 256"), ("square", "512, 512", "512, 512"))
    }
    assert offered == {"long": {"ahead", "in_loop"}, "square": {"ahead"}}


@pytest.mark.slow(after=4)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_tiles_multiply_exactly_in_fp32(spelling):
    _check(
        _recipe("tile-matmul"),
        _source(*SPELLINGS[spelling]),
        [{**TILE, "splits": 2}],
        tolerance=1e-6,
    )


def test_one_program_makes_a_tile_where_k_is_not_split():
    _check(_recipe("tile-matmul"), _source(*SPELLINGS["odd"]), [TILE], tolerance=1e-6)


#: (expression, A, B, constructor, nodes of the site after the product)
EPILOGUES = {
    "swish and scale": (
        "(lambda y: y * torch.sigmoid(y) * 2.0)(self.l(A)) + B",
        "18, 33",
        "20",
        "self.l = nn.Linear(33, 20)",
        4,
    ),
    "gelu and residual": (
        "F.gelu(self.l(A)) + B",
        "3, 18, 33",
        "3, 18, 20",
        "self.l = nn.Linear(33, 20)",
        2,
    ),
    "row and column operands": (
        "torch.relu(torch.tril(A @ B) + A[:, :1]) * B[0]",
        "40, 40",
        "40, 40",
        "pass",
        4,
    ),
    "residual whose axes do not merge": (
        "torch.tanh(torch.matmul(A.transpose(0, 1), B)) + A.transpose(0, 1)",
        "9, 3, 33",
        "33, 33",
        "pass",
        2,
    ),
    "a sum that ends it": (
        "torch.relu(torch.bmm(A, B)).sum(-1)",
        "2, 20, 33",
        "2, 33, 18",
        "pass",
        1,
    ),
    "read twice": ("(lambda y: torch.relu(y) + y.sum(0))(A @ B)", "20, 33", "33, 18", "pass", 0),
}


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("case", EPILOGUES)
def test_what_is_pointwise_after_a_product_is_written_with_it(case):
    result, a, b, init, count = EPILOGUES[case]
    source = _source(result.replace("F.", "torch.nn.functional."), a, b, init)
    recipe = _recipe("tile-matmul")
    assert [len(site.nodes) - 1 for site in _sites(recipe, source)] == [count]
    _check(recipe, source, [TILE, {**TILE, "splits": 2}], tolerance=1e-6)


@pytest.mark.parametrize(
    ("skill", "settings"),
    [("split-fp16-matmul", SPLIT), ("matvec-rows-per-program", {**MATVEC, "splits": 2})],
)
def test_every_product_takes_an_epilogue(skill, settings):
    _check(
        _recipe(skill),
        _source("torch.sigmoid(self.l(A)) * B", "16, 70", "20", "self.l = nn.Linear(70, 20)"),
        [settings],
        tolerance=1e-6,
    )


def test_two_products_do_not_share_what_follows_them():
    recipe = _recipe("tile-matmul")
    source = _source("torch.tanh(A @ B) + A @ B", "20, 33", "33, 18")
    assert [len(site.nodes) for site in _sites(recipe, source)] == [3, 1]
    _check(recipe, source, [TILE], tolerance=1e-6, expect_sites=2)


def test_equal_chains_have_one_text_whatever_their_names_and_sizes():
    recipe, texts = _recipe("tile-matmul"), []
    for result, a, b in (
        ("torch.relu(A @ B) * 2", "20, 33", "33, 18"),
        ("torch.relu(torch.mm(A.T, B)) * 2", "64, 64", "64, 64"),
    ):
        (site,) = _sites(recipe, _source(result, a, b))
        texts.append(recipe.emit(site, TILE).kernels)
    assert texts[0] == texts[1]


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(
    ("result", "a", "b", "init", "operator"),
    [
        ("torch.matmul(A, B)", "13, 301", "301, 1", "pass", "matvec"),
        ("A @ B", "13, 301", "301", "pass", "matvec"),
        ("A.T @ B", "301, 70", "301", "pass", "matvec"),
        ("torch.mv(A, B)", "13, 301", "301", "pass", "matvec"),
        ("torch.addmv(A[:, 0], A, B, beta=3)", "13, 301", "301", "pass", "matvec"),
        ("torch.dot(A, B)", "301", "301", "pass", "matvec"),
        ("A @ B", "301", "301", "pass", "matvec"),
        ("A @ B", "301", "301, 13", "pass", "matvec"),
        ("A @ B", "70, 301", "301, 5", "pass", "matmul"),
        ("torch.bmm(A, B)", "2, 3, 64", "2, 64, 20", "pass", "batched_matmul"),
        ("self.l(A) + B", "3, 100", "40", "self.l = nn.Linear(100, 40)", "linear"),
    ],
)
def test_thin_products_are_matrix_vector_products(result, a, b, init, operator):
    recipe, source = _recipe("matvec-rows-per-program"), _source(result, a, b, init)
    assert [site.operator for site in _sites(recipe, source)] == [operator]
    _check(recipe, source, [{**MATVEC, "block_l": 16, "block_k": 8, "splits": 3}], tolerance=1e-6)


@pytest.mark.parametrize("skill", ["tile-matmul", "matvec-rows-per-program"])
def test_bf16_products_err_by_the_rounding_of_the_result(skill):
    settings = TILE if skill == "tile-matmul" else MATVEC
    source = _source("self.l(A) + B", "5, 65", "20", "self.l = nn.Linear(65, 20)")
    _check(_recipe(skill), source, [settings], contract=Contract(Precision.BF16), tolerance=4e-3)


def test_the_split_does_not_touch_half_precision():
    assert not _sites(
        _recipe("split-fp16-matmul"), _source("A @ B", "32, 32", "32, 32"), Precision.BF16
    )


def test_under_tf32_the_split_keeps_eleven_bits():
    source = _source("A @ B", "40, 70", "70, 40")
    errors = _check(
        _recipe("split-fp16-matmul"),
        source,
        [SPLIT],
        contract=Contract(Precision.TF32),
        tolerance=4e-4,
    )
    assert all(error > 1e-5 for error in errors.values())  # one product, not three


@pytest.mark.parametrize(
    ("result", "a", "b"),
    [
        ("torch.diag(A) @ B", "37", "37, 53"),
        ("B @ torch.diag(A)", "37", "53, 37"),
        ("torch.diag_embed(A) @ B.T", "37", "53, 37"),
    ],
)
def test_a_diagonal_scales_lines(result, a, b):
    recipe, source = _recipe("diagonal-row-scaling"), _source(result, a, b)
    assert _sites(recipe, source)[0].flags == ("algebraic",)
    _check(
        recipe,
        source,
        [{"block_r": 1, "block_c": 64, "warps": 4}, {"block_r": 4, "block_c": 16, "warps": 4}],
        tolerance=1e-7,
    )


@pytest.mark.parametrize("result", ["torch.diag(A) @ B", "B @ torch.diag(A)"])
def test_a_diagonal_spreads_what_is_not_finite_as_the_dense_product_does(result):
    inf, nan = float("inf"), float("nan")
    vector, matrix = torch.rand(21), torch.rand(21, 21)
    vector[3], vector[8] = 0.0, inf
    matrix[3, 4] = inf
    matrix[5, 6] = nan
    matrix[2, 9] = inf
    matrix[7, 9] = -inf
    matrix[8, 11] = -inf
    recipe, source = _recipe("diagonal-row-scaling"), _source(result, "21", "21, 21")
    output = _run(recipe, source, {"block_r": 4, "block_c": 16, "warps": 4}, [vector, matrix])
    expected = (
        torch.diag(vector) @ matrix if result.startswith("torch") else matrix @ torch.diag(vector)
    )
    assert torch.equal(torch.nan_to_num(output, nan=7e7), torch.nan_to_num(expected, nan=7e7))


def test_a_diagonal_that_is_read_elsewhere_is_kept():
    source = _source("torch.diag(A) @ B + torch.diag(A)", "16", "16, 16").replace(
        "return torch.diag(A) @ B + torch.diag(A)", "D = torch.diag(A)\n        return D @ B + D"
    )
    recipe = _recipe("diagonal-row-scaling")
    assert [len(site.nodes) for site in _sites(recipe, source)] == [1]
    _check(recipe, source, [{"block_r": 1, "block_c": 16, "warps": 4}], tolerance=1e-6)


def test_einsum_orders_are_read_from_the_equation():
    _check(
        _recipe("tile-matmul"),
        _source("torch.einsum('ij,jk->ki', A, B)", "17, 33", "33, 20"),
        [TILE],
        tolerance=1e-6,
    )


@pytest.mark.parametrize(
    ("result", "a", "b"),
    [
        ("torch.einsum('ii,jk->ik', A, B)", "17, 17", "33, 20"),  # a diagonal
        # letters summed in one operand alone
        ("torch.einsum('ij,kl->il', A, B)", "17, 33", "33, 20"),
        ("torch.matmul(A.double(), B.double())", "17, 33", "33, 20"),
        # K in two axes that do not merge
        ("torch.einsum('ijab,abk->ijk', A.transpose(2, 3), B)", "3, 17, 4, 5", "5, 4, 20"),
    ],
)
def test_what_is_no_plain_product_is_not_matched(result, a, b):
    for skill in ("split-fp16-matmul", "tile-matmul", "matvec-rows-per-program"):
        assert not _sites(_recipe(skill), _source(result, a, b))


@pytest.mark.parametrize(
    "skill", ["split-fp16-matmul", "tile-matmul", "matvec-rows-per-program", "diagonal-row-scaling"]
)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("40, 40", "40, 40"),
        ("4096, 4096", "4096, 4096"),
        ("256, 524288", "524288, 256"),
        ("32768, 64", "64, 32768"),
        ("2, 3", "3, 5"),
    ],
)
def test_every_matched_site_has_settings_with_a_cost(skill, a, b):
    recipe = _recipe(skill)
    for site in _sites(recipe, _source("A @ B", a, b)):
        settings = recipe.space(site, H200).settings()
        assert settings and all(recipe.cost_ms(site, setting, H200) > 0 for setting in settings)


def test_settings_of_the_space_itself_are_correct():
    recipe, source = _recipe("split-fp16-matmul"), _source("A @ B", "70, 90", "90, 66")
    space = recipe.space(_sites(recipe, source)[0], H200).settings()
    _check(recipe, source, space[:: max(1, len(space) // 2)], tolerance=1e-6)
