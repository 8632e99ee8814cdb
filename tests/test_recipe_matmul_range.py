"""The split product on operands that fp16 parts cannot hold: it must be as right as fp32, by
mending where it has to and nowhere else.
"""

import ast
from pathlib import Path

import pytest
import torch

from kmem.measure.oracle.correctness import error_floor, is_within, measure_error
from kmem.records import Contract, Precision
from kmem.skills import load_recipe, load_skill
from kmem.testing import emit_source, import_source, trace_source

RECIPE = load_recipe(load_skill(Path(__file__).parent.parent / "skills" / "split-fp16-matmul"))
SETTINGS = {
    "block_m": 32,
    "block_n": 32,
    "block_k": 16,
    "warps": 4,
    "stages": 3,
    "group": 2,
    "splits": 1,
}
M = 40
K = 50
N = 36
INF, NAN = float("inf"), float("nan")
_PROBLEM = f"""
import torch
class Model(torch.nn.Module):
    def forward(self, A, B):
        return A @ B
def get_inputs():
    return [torch.randn({M}, {K}), torch.randn({K}, {N})]
"""


def _emit(splits: int = 1, split: str = "ahead") -> str:
    _, graph = trace_source(_PROBLEM)
    settings = {**SETTINGS, "splits": splits, "split": split}
    return emit_source(
        _PROBLEM, graph, [(RECIPE, site, settings) for site in RECIPE.match(graph, Contract())]
    )


def _without_mending(source: str) -> str:
    """The module without its launches of kernels that mend."""
    mending = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and ast.unparse(node).startswith("_matmul_mend_")
    ]
    assert mending
    dropped = {line for node in mending for line in range(node.lineno, node.end_lineno + 1)}
    lines = enumerate(source.splitlines(), start=1)
    return "\n".join(line for number, line in lines if number not in dropped)


@pytest.fixture(scope="module")
def multiply():
    return import_source(_emit()).ModelNew()


@pytest.fixture(scope="module")
def multiply_unmended():
    """The same without the launch that mends tiles."""
    return import_source(_without_mending(_emit())).ModelNew()


def _is_right(output: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> bool:
    """The judge's own measure: at most twice eager's error or the floor, scaled by each row's
    magnitude too.
    """
    eager, oracle = a @ b, a.double() @ b.double()
    difference = measure_error(output, oracle, eager)
    return is_within(
        difference, measure_error(eager, oracle, eager), error_floor(torch.float32, Precision.MATCH)
    )


def _one_hot_meets_small(columns: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = torch.zeros(M, K), torch.zeros(K, N)
    wide, hot = (b.T, a.T) if columns else (a, b)
    wide[:, 0] = 1e30
    wide[:, 7] = 1e-30
    hot[7] = 1.0
    return a, b


def _wide_and_sparse() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(M, K) * torch.randint(-60, 60, (M, K)).float().exp2(), torch.randn(K, N) * (
        torch.rand(K, N) < 0.1
    )


def _few_that_matter(columns: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """As gradients are where most positions hardly change the loss: small, and some next to 0."""
    a, b = torch.randn(M, K), torch.randn(K, N)
    wide = b.T if columns else a
    wide[:, 1:] *= 2.0**-11
    wide[:, 0] = 1.0
    wide[:, 7] = 1e-12
    return a, b


def _not_finite() -> tuple[torch.Tensor, torch.Tensor]:
    a, b = torch.randn(M, K), torch.randn(K, N)
    a[3, 5] = INF
    a[9, 1] = NAN
    b[5] = b[5] * 1e-30
    b[6, 2] = -INF
    return a, b


CASES = {
    "one-hot columns meet the small entries of rows": _one_hot_meets_small,
    "one-hot rows meet the small entries of columns": lambda: _one_hot_meets_small(columns=True),
    "wide and sparse": _wide_and_sparse,
    "not finite": _not_finite,
    "denormals": lambda: (torch.randn(M, K) * 1e-39, torch.randn(K, N) * 1e30),
}
HELD = {
    "large": lambda: (torch.rand(M, K) * 3e38, torch.rand(K, N) * 1e-38),
    "rows of any magnitude": lambda: (
        torch.randn(M, K) * torch.linspace(-60, 60, M).exp2()[:, None],
        torch.randn(K, N),
    ),
    "sparse": lambda: (
        torch.rand(M, K) * (torch.rand(M, K) < 0.05),
        torch.rand(K, N) * (torch.rand(K, N) < 0.05),
    ),
    "constants": lambda: (torch.full((M, K), 0.75), torch.full((K, N), 0.75)),
    "nearly zero entries in dense operands": lambda: (
        torch.relu(torch.randn(M, K)).index_fill(1, torch.tensor([0]), 1e-12),
        torch.randn(K, N),
    ),
    "few positions of rows matter": _few_that_matter,
    "few positions of columns matter": lambda: _few_that_matter(columns=True),
    "zeros": lambda: (torch.zeros(M, K), torch.randn(K, N)),
}


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("case", CASES)
def test_what_the_parts_cannot_hold_is_mended(case, multiply, multiply_unmended):
    torch.manual_seed(0)
    a, b = CASES[case]()
    with torch.no_grad():
        output, unmended = multiply(a, b), multiply_unmended(a, b)
    assert _is_right(output, a, b)
    assert not torch.equal(output, unmended)
    if case.startswith("one-hot") or case == "not finite":
        assert not _is_right(unmended, a, b)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("case", HELD)
def test_what_the_parts_hold_is_right_without_mending(case, multiply, multiply_unmended):
    torch.manual_seed(0)
    a, b = HELD[case]()
    with torch.no_grad():
        output = multiply(a, b)
        assert _is_right(output, a, b)
        # the same bits: no tile was computed anew
        assert torch.equal(output, multiply_unmended(a, b))


def test_parts_of_a_split_sum_are_mended_too():
    torch.manual_seed(0)
    model, (a, b) = import_source(_emit(splits=2)).ModelNew(), _wide_and_sparse()
    with torch.no_grad():
        assert _is_right(model(a, b), a, b)


@pytest.fixture(scope="module")
def in_loop():
    """Split while operands are read, with and without the launch that adds what was left out."""
    source = _emit(splits=2, split="in_loop")
    return import_source(source).ModelNew(), import_source(_without_mending(source)).ModelNew()


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("case", CASES)
def test_steps_that_the_parts_cannot_hold_are_added_in_fp32(case, in_loop):
    torch.manual_seed(0)
    a, b = CASES[case]()
    with torch.no_grad():
        output, unmended = (model(a, b) for model in in_loop)
    assert _is_right(output, a, b)
    assert not torch.equal(output, unmended)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("case", HELD)
def test_splitting_in_the_loop_is_right_for_easy_operands(case, in_loop):
    torch.manual_seed(0)
    a, b = HELD[case]()
    with torch.no_grad():
        assert _is_right(in_loop[0](a, b), a, b)


def test_scales_of_single_steps_need_no_mending_where_those_of_whole_lines_do(
    in_loop, multiply, multiply_unmended
):
    """Each step of K has its own magnitude, 2**40 apart: the parts of a step hold it."""
    torch.manual_seed(0)
    steps = torch.arange(K) // SETTINGS["block_k"]
    a = torch.randn(M, K) * (-20.0 * steps).exp2()
    b = torch.randn(K, N) * (20.0 * steps).exp2()[:, None]
    with torch.no_grad():
        mended, unmended = (model(a, b) for model in in_loop)
        assert _is_right(unmended, a, b) and torch.equal(mended, unmended)
        assert not torch.equal(multiply(a, b), multiply_unmended(a, b))


def test_a_nan_stays_in_its_line_without_mending(in_loop):
    torch.manual_seed(0)
    a, b = torch.randn(M, K), torch.randn(K, N)
    a[3, 5] = NAN
    with torch.no_grad():
        unmended = in_loop[1](a, b)
    assert torch.isnan(unmended[3]).all() and torch.isnan(unmended).sum() == N
