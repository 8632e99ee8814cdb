"""Operators whose parameters lie along dimension 1, norms of every spelling, empty tensors: against
float64, in the interpreter.
"""

from pathlib import Path

import pytest
import torch

from kmem.devices import named_target
from kmem.explore.recipes.cover import find_options
from kmem.records import Contract, Precision
from kmem.skills import load_recipe, load_skill
from kmem.testing import check_recipe, emit_source, import_source, trace_source

SKILLS = Path(__file__).parents[1] / "skills"
H200 = named_target("h200")
POINTWISE = {"BLOCK": 64, "num_warps": 4, "HINT": "keep"}
ROWWISE = [
    {"STRATEGY": strategy, "BK": 2, "BR": 8, "SPLIT": 3, "num_warps": 4}
    for strategy in ("registers", "loop", "split")
]
_PROBLEM = """
import torch
import torch.nn.functional as F
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        return {result}

def get_inputs():
    return [{x}]
"""


def source_of(result: str, x: str, init: str = "pass") -> str:
    return _PROBLEM.format(init=init, result=result, x=x)


def recipe(name: str):  # noqa: ANN201
    return load_recipe(load_skill(SKILLS / name))


def norm(kind: str, features: int, options: str = "") -> str:
    """A batch norm in eval mode whose statistics and parameters are not those of a new one."""
    moved = "self.n.running_mean.normal_(); self.n.running_var.uniform_(0.5, 2)"
    return f"torch.manual_seed(1); self.n = nn.{kind}({features}{options}).eval(); {moved}"


CHANNELWISE = {
    "batch norm": ("self.n(x)", "torch.randn(3, 6, 5, 7)", norm("BatchNorm2d", 6)),
    "batch norm, learnt": (
        "self.n(x)",
        "torch.randn(3, 6, 5)",
        norm("BatchNorm1d", 6) + "; nn.init.normal_(self.n.weight); nn.init.normal_(self.n.bias)",
    ),
    "batch norm in a chain": (
        "F.relu(self.n(x)) * 2 - x",
        "torch.randn(2, 3, 4, 5, 6)",
        norm("BatchNorm3d", 3, ", affine=False"),
    ),
    "batch norm of columns": ("self.n(x)", "torch.randn(37, 6)", norm("BatchNorm1d", 6)),
    "batch norm of a transposed tensor": (
        "self.n(x)",
        "torch.randn(6, 3, 5).transpose(0, 1)",
        norm("BatchNorm1d", 6),
    ),
    "prelu": (
        "self.p(x) + 1",
        "torch.randn(3, 4, 5)",
        "self.p = nn.PReLU(4); nn.init.normal_(self.p.weight)",
    ),
    "prelu of one slope": ("self.p(x)", "torch.randn(3, 4, 5)", "self.p = nn.PReLU()"),
    "prelu of a vector": ("self.p(x)", "torch.randn(37)", "self.p = nn.PReLU()"),
    "prelu of strided slopes": (
        "F.prelu(x, self.w[::2])",
        "torch.randn(3, 4, 5)",
        "self.w = nn.Parameter(torch.rand(8))",
    ),
}


@pytest.mark.parametrize("case", CHANNELWISE)
def test_parameters_of_channels_are_read_where_they_lie(case: str) -> None:
    result, x, init = CHANNELWISE[case]
    check_recipe(
        recipe("fuse-pointwise-chain"),
        source_of(result, x, init),
        H200,
        settings=[POINTWISE],
        tolerance=1e-6,
    )


@pytest.mark.parametrize("case", ["batch norm", "prelu"])
def test_they_round_once_in_bfloat16(case: str) -> None:
    result, x, init = CHANNELWISE[case]
    contract = Contract(Precision.BF16)
    check_recipe(
        recipe("fuse-pointwise-chain"),
        source_of(result, x, init),
        H200,
        settings=[POINTWISE],
        contract=contract,
        tolerance=4e-3,
    )


@pytest.mark.parametrize(
    ("skill", "result"),
    [
        ("online-softmax", "F.softmax(self.n(x), -1)"),
        ("split-reduction", "self.p(self.n(x)).sum(-1)"),
    ],
)
def test_they_are_written_with_the_rows_they_lead_to(skill: str, result: str) -> None:
    source = source_of(
        result, "torch.randn(5, 6, 9)", norm("BatchNorm1d", 6) + "; self.p = nn.PReLU(6)"
    )
    _, graph = trace_source(source)
    (site,) = recipe(skill).match(graph, Contract())
    assert "batch_norm" in site.nodes
    assert len(check_recipe(recipe(skill), source, H200, settings=ROWWISE, tolerance=1e-6)) == len(
        ROWWISE
    )


def test_prelu_keeps_nan_and_infinities_as_eager_does() -> None:
    x = torch.tensor([float("nan"), float("-inf"), float("inf"), -0.0, 2.0])
    source = source_of("self.p(x)", "torch.randn(5)", "self.p = nn.PReLU()")
    chosen = recipe("fuse-pointwise-chain")
    _, graph = trace_source(source)
    (site,) = chosen.match(graph, Contract())
    with torch.no_grad():
        found = import_source(emit_source(source, graph, [(chosen, site, POINTWISE)])).ModelNew()(x)
    torch.testing.assert_close(found, torch.nn.PReLU()(x).detach(), rtol=0, atol=0, equal_nan=True)


NORMS = {
    "of everything": ("row-norm", "x / torch.linalg.norm(x)", "torch.randn(4, 13)"),
    "of rows": ("row-norm", "x / torch.linalg.norm(x, dim=1, keepdim=True)", "torch.randn(4, 13)"),
    "of rows, order 1": (
        "row-norm",
        "x / torch.linalg.norm(x, 1, dim=1, keepdim=True)",
        "torch.randn(4, 13)",
    ),
    "of two dimensions": (
        "split-reduction",
        "torch.linalg.norm(x, dim=(0, 2))",
        "torch.randn(4, 13, 3)",
    ),
    "largest of a vector": (
        "split-reduction",
        "torch.linalg.norm(x, float('inf'))",
        "torch.randn(45)",
    ),
    "Frobenius": ("split-reduction", "torch.linalg.matrix_norm(x)", "torch.randn(3, 4, 5)"),
    "Frobenius of leading dimensions": (
        "split-reduction",
        "torch.linalg.matrix_norm(x, dim=(0, 1), keepdim=True)",
        "torch.randn(3, 4, 5)",
    ),
}


@pytest.mark.parametrize("case", NORMS)
def test_a_norm_is_found_however_it_is_spelt(case: str) -> None:
    skill, result, x = NORMS[case]
    assert len(
        check_recipe(recipe(skill), source_of(result, x), H200, settings=ROWWISE, tolerance=1e-6)
    ) == len(ROWWISE)


@pytest.mark.parametrize(
    "result",
    [
        "torch.linalg.norm(x, 2)",
        "torch.linalg.norm(x, float('inf'))",
        "torch.linalg.matrix_norm(x, 'nuc')",
    ],
)
def test_the_norm_of_a_matrix_as_a_map_is_left_to_the_library(result: str) -> None:
    _, graph = trace_source(source_of(result, "torch.randn(4, 5)"))
    assert recipe("split-reduction").match(graph, Contract()) == []


@pytest.mark.parametrize(
    ("result", "x"), [("x.sum(1)", "torch.randn(3, 0)"), ("F.softmax(x, 1)", "torch.randn(0, 8)")]
)
def test_nothing_is_written_for_an_empty_tensor(result: str, x: str) -> None:
    _, graph = trace_source(source_of(result, x))
    recipes = {name: recipe(name) for name in ("split-reduction", "online-softmax")}
    assert find_options({"full": graph}, recipes, Contract(), H200) == []
