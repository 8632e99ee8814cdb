"""Products that share an operand which is made while it is read: gates, and several results."""

import pytest
from module_problems import problem, recipe

from kmem.devices import named_target
from kmem.records import Contract, Precision
from kmem.testing import check_recipe, trace_source

H200 = named_target("h200")
TILE = {
    "block_m": 16,
    "block_n": 32,
    "block_k": 16,
    "warps": 4,
    "stages": 3,
    "group": 2,
    "splits": 1,
}
INPUTS = "torch.randint(0, 37, (21,)), torch.randn(21, 300), torch.rand(21, 300)"
LAYERS = """self.table = nn.Embedding(37, 300)
        self.a = nn.Linear(300, 48)
        self.b = nn.Linear(300, 48)
        self.c = nn.Linear(300, 24)"""


def written(steps: str) -> str:
    return problem(steps, INPUTS, LAYERS, "i, x, y")


def of(operand: str, made: str) -> str:
    return f"(lambda z: {made})({operand})"


GATE = "F.silu(self.a(z)) * self.b(z)"
RESULTS = "(self.a(z), F.relu(self.b(z)), self.c(z))"
#: What is multiplied, what is made of it, and the nodes before the products that need not run.
OPENED = {
    "gathered gate": ("self.table(i)", GATE, {"embedding"}),
    "gathered halves": ("self.table(i)", "F.glu(self.a(z))", {"embedding"}),
    "gathered results": ("self.table(i)", RESULTS, {"embedding"}),
    "gate of a made operand": ("torch.relu(x) * y", GATE, {"relu", "mul"}),
    "gate of rows that are scaled": (
        "F.gelu(self.table(i)) * y",
        GATE,
        {"embedding", "gelu", "mul"},
    ),
    "results of a made operand": ("torch.tanh(x)", RESULTS, {"tanh"}),
}


@pytest.mark.parametrize("rung", [0, 1])
@pytest.mark.parametrize("case", OPENED)
def test_products_make_the_operand_that_they_share_while_they_read_it(case: str, rung: int) -> None:
    operand, made, nodes = OPENED[case]
    source, own = written(of(operand, made)), recipe("gemm-prologue-fusion")
    _, graph = trace_source(source)
    (site,) = own.match(graph, Contract())
    assert {*site.detail.before[0].nodes} == nodes and site.detail.joined is not None
    check_recipe(own, source, H200, settings=[{**TILE, "ACCURACY": rung}], tolerance=2e-6)


@pytest.mark.parametrize("case", ["gathered gate", "gathered results", "results of a made operand"])
def test_half_precision_is_widened_once(case: str) -> None:
    operand, made, _ = OPENED[case]
    contract = Contract(Precision.BF16)
    check_recipe(
        recipe("gemm-prologue-fusion"),
        written(of(operand, made)),
        H200,
        settings=[TILE, {**TILE, "splits": 2}],
        contract=contract,
        tolerance=1e-2,
    )


@pytest.mark.parametrize(
    ("operand", "made"),
    [
        ("x", GATE),  # nothing is made
        ("torch.relu(x)", f"{GATE} + z[:, :1]"),  # read again
        ("torch.softmax(x, 1)", GATE),  # no element by itself
        ("x * y", RESULTS),  # results have no place for steps of a second tensor
        ("self.table(i)", "(self.a(z), self.b(z), z)"),  # returned
    ],
)
def test_what_cannot_be_made_by_the_products_is_left_to_run(operand: str, made: str) -> None:
    _, graph = trace_source(written(of(operand, made)))
    sites = recipe("gemm-prologue-fusion").match(graph, Contract())
    assert [site for site in sites if site.detail.joined is not None] == []
