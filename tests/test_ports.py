"""Anchors with something before, behind and reduced: the kernels that have ports, in one table.

A cell is a problem: what an anchor reads is made by a prologue, what it makes goes through an
epilogue and a reduction. The recipe's one site must cover all of it, and compute it.
"""

import re
from dataclasses import dataclass, field
from itertools import product

import pytest
import torch
from module_problems import problem, recipe

from kmem.codegen.products.places import ZERO, along, reshape_places
from kmem.devices import named_target
from kmem.problem.operators.row import Layout
from kmem.problem.operators.table import lowering_of
from kmem.records import Contract, Knob, Precision
from kmem.testing import check_recipe, emit_source, import_source, trace_source

H200 = named_target("h200")
TILE = {"block_m": 16, "block_n": 32, "block_k": 16, "warps": 4, "stages": 3, "group": 2}
MATVEC = {"block_l": 4, "block_k": 16, "splits": 2, "warps": 1}
VENDOR = {
    "algorithm": "guessed",
    "vector": 8,
    "stage": 256,
    "channels": 16,
    "finish": 256,
    "warps": 4,
}
STAGED = {
    "terms": 1,
    "block_p": 64,
    "block_co": 16,
    "block_k": 16,
    "copy_bytes": 8,
    "warps": 4,
    "stages": 2,
    "sums_along": "positions",
}
PHASES = {
    "precision": "exact",
    "band": 1,
    "rows": 4,
    "columns": 16,
    "block_co": 16,
    "block_k": 16,
    "copy_bytes": 8,
    "warps": 4,
    "stages": 2,
}

#: What is made of x, which y is like; what is made of z, the anchor's, which r is like.
PROLOGUES = {"": "x", "relu": "torch.relu(x) + 1", "gate": "torch.sigmoid(x) * y"}
EPILOGUES = {"": "z", "gelu": "F.gelu(z) * 0.5", "residual": "torch.tanh(z) + r"}
REDUCTIONS = {
    "": "z",
    "softmax": "torch.softmax(z, 1)",
    "pool": "F.max_pool2d(z, 2)",
    "logsumexp": "torch.tanh(torch.logsumexp(z, -1))",
    "max": "torch.amax(z, -1, keepdim=True) * 2",
    "sum": "z.sum(-1)",
    "argmin": "torch.argmin(z, -1)",
}


@dataclass(frozen=True)
class Anchor:
    """What a recipe writes, as an expression of x, and what its ports take."""

    skill: str
    call: str
    shape: str
    result: str
    setup: str = "pass"
    settings: dict[str, Knob] = field(default_factory=dict)
    prologues: tuple[str, ...] = ("",)
    epilogues: tuple[str, ...] = ("", "gelu", "residual")
    reductions: tuple[str, ...] = ("",)
    leaves: tuple[tuple[str, str], ...] = ()  # what it leaves a part of to others
    precision: Precision = Precision.MATCH
    tolerance: float = 1e-6
    drawn: str = "torch.randn({})"  # what x and y are


LINEAR = "self.l = nn.Linear(33, 20)"
CONV = "self.c = nn.Conv2d(5, 16, 3)"
INT8 = (
    "self.register_buffer('q', torch.randint(-127, 128, (20, 33), dtype=torch.int8)); "
    "self.register_buffer('s', torch.rand(20, 1))"
)
INT4 = (
    "q = torch.randint(-(2**31), 2**31, (20, 4)).int(); self.register_buffer('c', q); "
    "self.register_buffer('q', q.T.contiguous()); self.register_buffer('s', torch.rand(4, 20)); "
    "self.register_buffer('b', torch.randint(0, 256, (20, 16)).byte()); "
    "self.register_buffer('z', torch.randint(0, 16, (4, 20)).int()); "
    "self.register_buffer('g', torch.rand(20, 4)); "
    "self.register_buffer('h', torch.arange(0, 32, 4, dtype=torch.int32))"
)
OPENED = ("relu", "gate")
ANCHORS = {
    "reduced linear": Anchor(
        "reduce-after-gemm",
        "self.l(x)",
        "18, 33",
        "18, 75",
        "self.l = nn.Linear(33, 75)",
        {**TILE, "splits": 1},
        reductions=("sum", "max", "logsumexp", "argmin"),
    ),
    "opened linear": Anchor(
        "gemm-prologue-fusion",
        "self.l(x)",
        "18, 33",
        "18, 20",
        LINEAR,
        {**TILE, "splits": 2},
        prologues=OPENED,
    ),
    "opened second operand": Anchor(
        "gemm-prologue-fusion",
        "self.w @ x",
        "2, 33, 20",
        "2, 18, 20",
        "self.w = nn.Parameter(torch.randn(18, 33))",
        {**TILE, "splits": 1},
        prologues=OPENED,
    ),
    "int8 weights": Anchor(
        "gemm-prologue-fusion",
        "F.linear(x, self.q.to(x.dtype) * self.s)",
        "18, 33",
        "18, 20",
        INT8,
        {**TILE, "splits": 1},
    ),
    "staged convolution": Anchor(
        "staged-half-conv",
        "self.c(x)",
        "2, 5, 8, 10",
        "2, 16, 6, 8",
        CONV,
        STAGED,
        epilogues=("", "gelu"),
        reductions=("", "softmax", "pool"),
        tolerance=1e-5,
    ),
    "vendor convolution": Anchor(
        "vendor-half-conv",
        "self.c(x)",
        "2, 5, 8, 10",
        "2, 16, 6, 8",
        CONV,
        VENDOR,
        prologues=("", *OPENED),
        tolerance=1e-5,
    ),
    "transposed convolution": Anchor(
        "transposed-conv-phases",
        "self.c(x)",
        "2, 5, 3, 4",
        "2, 16, 7, 9",
        "self.c = nn.ConvTranspose2d(5, 16, 3, stride=2)",
        PHASES,
        reductions=("", "softmax"),
        leaves=(("residual", "softmax"),),
        tolerance=1e-5,
    ),
    "exact convolution": Anchor(
        "split-half-conv",
        "self.c(x)",
        "2, 5, 8, 10",
        "2, 16, 6, 8",
        CONV,
        {**STAGED, "terms": 3},
        reductions=("", "pool"),
        leaves=(("residual", "pool"),),
    ),
    "reduced batch in splits": Anchor(
        "reduce-after-gemm",
        "self.w @ x",
        "2, 33, 64",
        "2, 18, 64",
        "self.w = nn.Parameter(torch.randn(18, 33))",
        {**TILE, "splits": 2},
        reductions=("sum", "max", "logsumexp", "argmin"),
    ),
    "reduced to less than a part": Anchor(
        "reduce-after-gemm",
        "self.l(x)",
        "18, 33",
        "18, 3",
        "self.l = nn.Linear(33, 3)",
        {**TILE, "splits": 2},
        reductions=("max", "logsumexp"),
    ),
    "opened half precision": Anchor(
        "gemm-prologue-fusion",
        "self.l(x)",
        "18, 33",
        "18, 20",
        LINEAR,
        {**TILE, "splits": 1},
        prologues=OPENED,
        precision=Precision.BF16,
        tolerance=8e-3,
    ),
    "linear": Anchor("tile-matmul", "self.l(x)", "18, 33", "18, 20", LINEAR, {**TILE, "splits": 1}),
    "linear in splits": Anchor(
        "tile-matmul", "self.l(x)", "18, 33", "18, 20", LINEAR, {**TILE, "splits": 2}
    ),
    "split": Anchor(
        "split-fp16-matmul",
        "self.l(x)",
        "18, 33",
        "18, 75",
        "self.l = nn.Linear(33, 75)",
        {**TILE, "splits": 1},
        reductions=("", "sum", "max", "logsumexp"),
    ),
    "split in the loop": Anchor(
        "split-fp16-matmul",
        "self.l(x)",
        "18, 33",
        "18, 75",
        "self.l = nn.Linear(33, 75)",
        {**TILE, "splits": 2, "split": "in_loop"},
        reductions=("", "max", "logsumexp", "argmin"),
    ),
    "gated linears": Anchor(
        "dual-gemm-gated-mlp",
        "F.silu(self.l(x)) * self.m(x)",
        "18, 33",
        "18, 20",
        "self.l = nn.Linear(33, 20); self.m = nn.Linear(33, 20, bias=False)",
        {**TILE, "splits": 1},
    ),
    "gate of halves": Anchor(
        "dual-gemm-gated-mlp",
        "F.glu(self.l(x))",
        "18, 33",
        "18, 20",
        "self.l = nn.Linear(33, 40)",
        {**TILE, "splits": 2},
    ),
    "gate in half precision": Anchor(
        "dual-gemm-gated-mlp",
        "(lambda u, v: torch.tanh(u) * v)(*self.l(x).chunk(2, -1))",
        "18, 33",
        "18, 20",
        "self.l = nn.Linear(33, 40)",
        {**TILE, "splits": 1},
        precision=Precision.BF16,
        tolerance=8e-3,
    ),
    "split gate": Anchor(
        "split-fp16-matmul",
        "(lambda z: z[:, :20] * torch.sigmoid(z[:, 20:]))(x @ self.w)",
        "18, 33",
        "18, 20",
        "self.w = nn.Parameter(torch.randn(33, 40))",
        {**TILE, "splits": 1},
    ),
    "split gate in the loop": Anchor(
        "split-fp16-matmul",
        "F.gelu(self.l(x)) * self.m(x)",
        "18, 33",
        "18, 20",
        "self.l = nn.Linear(33, 20); self.m = nn.Linear(33, 20)",
        {**TILE, "splits": 2, "split": "in_loop"},
    ),
    "shared operand": Anchor(
        "horizontal-fusion",
        "(self.l(x), self.m(x) * 2, torch.relu(self.n(x)))",
        "18, 33",
        "18, 20",
        "self.l = nn.Linear(33, 20); self.m = nn.Linear(33, 40); self.n = nn.Linear(33, 5, False)",
        {**TILE, "splits": 1},
        epilogues=("",),
    ),
    "shared operand in splits": Anchor(
        "horizontal-fusion",
        "(x @ self.w, x @ self.v * 0.5)",
        "2, 18, 33",
        "18, 20",
        "self.w = nn.Parameter(torch.randn(33, 40)); self.v = nn.Parameter(torch.randn(33, 17))",
        {**TILE, "splits": 2, "block_n": 128},
        epilogues=("",),
    ),
    "split once": Anchor(
        "split-fp16-matmul",
        "(self.l(x), torch.tanh(self.m(x)) + self.m.bias)",
        "18, 33",
        "18, 20",
        "self.l = nn.Linear(33, 20); self.m = nn.Linear(33, 40)",
        {**TILE, "splits": 1},
        epilogues=("",),
    ),
    "rows of a table": Anchor(
        "gemm-prologue-fusion",
        "self.l(self.e(x) * 5.5 + self.p)",
        "3, 6",
        "3, 6, 20",
        "self.e = nn.Embedding(10, 33); self.p = nn.Parameter(torch.randn(6, 33)); " + LINEAR,
        {**TILE, "splits": 1},
        drawn="torch.randint(0, 10, ({}))",
    ),
    "picked rows": Anchor(
        "gemm-prologue-fusion",
        "torch.index_select(self.e, 0, x) @ self.w",
        "18,",
        "18, 20",
        "self.e = nn.Parameter(torch.randn(9, 33)); self.w = nn.Parameter(torch.randn(33, 20))",
        {**TILE, "splits": 2},
        drawn="torch.randint(0, 9, ({}))",
    ),
    "int4 in int32": Anchor(
        "gemm-prologue-fusion",
        "x @ (((self.q[:, None] >> self.h[None, :, None] & 15).view(4, 8, 20).to(x.dtype)"
        " - self.z[:, None]) * self.s[:, None].to(x.dtype)).reshape(32, 20)",
        "18, 32",
        "18, 20",
        INT4,
        {**TILE, "splits": 1},
    ),
    "int4 in uint8": Anchor(
        "gemm-prologue-fusion",
        "F.linear(x, (torch.stack((self.b & 15, self.b >> 4), -1).view(20, 32).to(x.dtype) - 8)"
        " * self.g.repeat_interleave(8, 1))",
        "18, 32",
        "18, 20",
        INT4,
        {**TILE, "splits": 2},
    ),
    "int4 times a vector": Anchor(
        "gemm-prologue-fusion",
        "F.linear(x, (torch.cat([self.b & 15, self.b >> 4], 1) - self.z.view(20, 4)"
        ".repeat_interleave(8, 1)) * self.g.repeat_interleave(8, 1))",
        "1, 32",
        "1, 20",
        INT4,
        {**TILE, "splits": 2},
    ),
    "int4 in half precision": Anchor(
        "gemm-prologue-fusion",
        "F.linear(x, (((self.c[:, :, None] >> torch.arange(0, 32, 4)) & 15).view(20, -1)"
        ".to(x.dtype) - 7.5) * self.g.repeat_interleave(8, 1))",
        "18, 32",
        "18, 20",
        INT4,
        {**TILE, "splits": 1},
        precision=Precision.BF16,
        tolerance=8e-3,
    ),
    "matrix-vector": Anchor(
        "matvec-rows-per-program", "self.l(x)", "2, 33", "2, 20", LINEAR, MATVEC
    ),
}


def _cells() -> dict[str, tuple[Anchor, str, str, str]]:
    """By name: of each anchor the fullest cell first, then of each the next."""
    ranked = []
    for place, (name, anchor) in enumerate(ANCHORS.items()):
        every = product(anchor.prologues, anchor.epilogues, anchor.reductions)
        cells = [cell for cell in every if cell[1:] not in anchor.leaves]
        for turn, cell in enumerate(reversed(cells)):
            ranked.append((turn, place, " ".join(filter(None, (name, *cell))), (anchor, *cell)))
    return {name: cell for *_, name, cell in sorted(ranked, key=lambda entry: entry[:2])}


CELLS = _cells()


@pytest.mark.slow(after=8)
@pytest.mark.parametrize("cell", CELLS)
def test_one_site_covers_what_its_ports_take(cell):
    anchor, before, after, reduced = CELLS[cell]
    made, followed = PROLOGUES[before], EPILOGUES[after]
    steps = f"(lambda x: {anchor.call})({made})"
    steps = f"(lambda z: {REDUCTIONS[reduced]})((lambda z: {followed})({steps}))"
    drawn = anchor.drawn.format(anchor.shape)
    inputs = ", ".join([drawn, drawn, f"torch.randn({anchor.result})"])
    source = problem(steps, inputs, anchor.setup, "x, y, r")
    own, contract = recipe(anchor.skill), Contract(anchor.precision)
    _, graph = trace_source(source, anchor.precision)
    (site,) = own.match(graph, contract)
    computing = {node.name for node in graph.nodes if lowering_of(graph, node) is not Layout.MARKER}
    assert computing <= {*site.nodes}
    check_recipe(
        own,
        source,
        H200,
        settings=[anchor.settings],
        contract=contract,
        tolerance=anchor.tolerance,
    )


@pytest.mark.parametrize(
    ("expression", "setup", "opened"),
    [
        ("self.l(torch.relu(x)) + y", "self.l = nn.Linear(33, 33)", {"relu"}),
        ("torch.relu(x).T @ torch.tanh(y)", "pass", {"tanh"}),  # a view lies between
        ("(lambda z: z @ y + z)(torch.relu(x))", "pass", set()),  # read again
        ("torch.addmm(*[torch.relu(x)] * 2, y)", "pass", set()),  # read twice
        ("x @ torch.sigmoid(self.w)", "self.w = nn.Parameter(torch.rand(33, 33))", set()),  # kept
        ("x.bfloat16() @ y.bfloat16()", "pass", {"to", "to_1"}),
        ("torch.softmax(x, 1) @ y", "pass", set()),
        ("F.embedding((x > 0.5).long(), y) @ y", "pass", {"embedding"}),
        ("(lambda z: z @ y + z)(F.embedding((x[0] > 0.5).long(), y))", "pass", set()),
        ("x @ F.embedding((x[0] > 0.5).long(), y)", "pass", set()),  # steps of the sum
    ],
)
def test_an_operand_is_made_while_it_is_read_if_nothing_else_reads_it(expression, setup, opened):
    source = problem(expression, "torch.rand(33, 33), torch.rand(33, 33)", setup, "x, y")
    _, graph = trace_source(source)
    before = {
        name
        for site in recipe("gemm-prologue-fusion").match(graph, Contract())
        for opening in site.detail.before
        for name in opening.nodes
    }
    assert before == opened


@pytest.mark.parametrize(
    ("skill", "reduction"),
    [
        ("reduce-after-gemm", "torch.logsumexp(z, 1)"),
        ("reduce-after-gemm", "torch.amax(z, 1)"),
        ("reduce-after-gemm", "torch.argmin(z, 1)"),
        ("split-fp16-matmul", "torch.logsumexp(z, 1)"),
        ("split-fp16-matmul", "z.sum(1)"),
        ("split-fp16-matmul", "torch.argmax(z, 1)"),
    ],
)
def test_parts_of_rows_keep_what_is_not_finite(skill, reduction):
    source = problem(
        f"(lambda z: {reduction})(x @ y)",
        "torch.rand(8, 32), torch.rand(32, 75)",
        parameters="x, y",
    )
    _, graph = trace_source(source)
    own = recipe(skill)
    (site,) = own.match(graph, Contract())
    settings = {**TILE, "splits": 1}
    module = import_source(emit_source(source, graph, [(own, site, settings)]))
    inf = float("inf")
    x, y = torch.zeros(8, 32), torch.rand(32, 75)
    x[:, 0] = torch.tensor([inf, -inf, float("nan"), 1e30, -1e30, 0.0, 3e38, 1.0])
    expected = eval(reduction, {"torch": torch, "z": x[:, :1] * y[:1]})
    torch.testing.assert_close(module.ModelNew()(x, y), expected, equal_nan=True)


@pytest.mark.parametrize(
    ("expression", "count"),
    [
        ("torch.amax(x @ y, 1)", 1),
        ("torch.amax(x @ y, 0)", 0),  # over rows
        ("torch.amax(x @ y[:, :5], 1)", 1),  # as a small workload may have it
        ("(lambda z: z - torch.amax(z, 1, keepdim=True))(x @ y)", 0),  # read again
        ("torch.argmax(x @ y, 1)", 1),
        ("(x[:, :1] - 2 * x @ y + y[0]).argmin(1)", 1),
        ("torch.argmax(x.half() @ y.half(), 1)", 0),  # equal values that fp32 tells apart
        ("torch.max(x @ y, 1)", 0),  # two results
        ("torch.amax((x @ y).T, 0)", 0),  # turned in between
        ("torch.amax(x @ y, 1) * x[:, 0]", 1),  # another operand behind it, left to others
    ],
)
def test_tiles_leave_parts_of_rows_where_one_value_of_each_is_wanted(expression, count):
    source = problem(expression, "torch.rand(33, 33), torch.rand(33, 33)", parameters="x, y")
    _, graph = trace_source(source)
    assert len(recipe("reduce-after-gemm").match(graph, Contract())) == count


@pytest.mark.parametrize(
    ("expression", "count"),
    [
        ("F.silu(self.l(x)) * self.m(x)", 1),
        ("torch.maximum(x @ y, x @ y.T) - 1", 1),
        ("self.n(x)[:, :16] * F.silu(self.n(y)[:, 16:])", 0),  # halves of two
        ("F.silu(self.l(x)) * self.m(y)", 0),  # of two operands
        ("(lambda u: F.silu(u) * self.m(x) @ u)(self.l(x))", 0),  # read again
        ("self.l(x) * self.m(self.l(x))", 0),  # one of the other
        ("F.glu(self.m(x)[:, :32], 0)", 0),  # of rows
        ("F.glu(self.n(x), 1) + y[:, :16]", 1),
        ("(lambda u, v: u * v)(*self.n(x).split([16, 16], 1))", 1),
        ("(lambda z: z[:, 16:] / z[:, :16].exp())(self.n(x))", 1),
        ("(lambda z: z[:, ::2] * z[:, 1::2])(self.n(x))", 0),
    ],
)
def test_two_products_of_one_operand_are_one_where_only_what_is_made_of_both_is_read(
    expression, count
):
    layers = "nn.Linear(33, 33), nn.Linear(33, 33), nn.Linear(33, 32)"
    inputs = "torch.rand(33, 33), torch.rand(33, 33)"
    source = problem(expression, inputs, f"self.l, self.m, self.n = {layers}", "x, y")
    _, graph = trace_source(source)
    assert len(recipe("dual-gemm-gated-mlp").match(graph, Contract())) == count


@pytest.mark.parametrize(
    ("expression", "shared"),
    [
        ("self.l(x), self.m(x), self.n(x)", [3]),
        ("self.l(x), self.m(x), self.n(y)", [2]),
        ("self.l(x), self.l(self.m(x))", [2]),
        ("self.l(self.m(x)), self.l(x) + self.m(x)", [3]),
        ("F.softmax(self.l(x), -1) @ self.m(x)", [2]),
        ("self.l(x), self.m(x).T", [2]),
        ("torch.relu(self.l(x)) * self.m(x)", [2]),
        ("self.l(x), self.m(x) + y @ self.l(x)", [3]),
        ("x @ x, x @ y", []),  # the operand itself, and one product is none to share with
        ("self.l(x), x @ y[0]", []),  # a vector
        ("self.l(x), self.m(y)", []),
        ("(lambda u: (u, self.m(u)))(self.l(x))", []),
    ],
)
def test_products_of_one_operand_are_one_launch_if_none_waits_for_another(expression, shared):
    layers = "nn.Linear(33, 33), nn.Linear(33, 33), nn.Linear(33, 32)"
    inputs = "torch.rand(33, 33), torch.rand(33, 33)"
    source = problem(expression, inputs, f"self.l, self.m, self.n = {layers}", "x, y")
    _, graph = trace_source(source)
    sites = recipe("horizontal-fusion").match(graph, Contract())
    assert [len(site.outputs) for site in sites] == shared


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    ("expression", "stays"),
    [
        ("F.silu(x @ y.T) * (x @ z.T)", True),
        ("F.silu(x @ y.T) * (x @ z.T) + r", True),
        ("F.silu(x @ y) * (x @ z)", False),  # of each, columns are beside each other
        ("torch.tanh(x @ y.T) / (1 + (x @ z.T).abs())", True),
        ("F.silu(x @ y.T) * (x @ z)", False),
        ("F.glu(x @ torch.cat([y, z], 1))", False),  # two halves of one
        ("F.silu(x @ self.l.weight.T) * (x @ z.T)", True),
        ("F.silu(x @ self.l.weight.T) * (x @ self.l.weight)", False),  # copied once
    ],
)
def test_weights_that_a_call_brings_along_are_read_where_they_lie(expression, stays, splits):
    inputs = "torch.randn(21, 48), torch.randn(48, 48), torch.randn(48, 48), torch.randn(21, 48)"
    source = problem(expression, inputs, "self.l = nn.Linear(48, 48, bias=False)", "x, y, z, r")
    _, graph = trace_source(source)
    own = recipe("dual-gemm-gated-mlp")
    (site,) = own.match(graph, Contract())
    emitted = emit_source(source, graph, [(own, site, {**TILE, "splits": splits})])
    assert ("kmem_join_columns" not in emitted) == stays == site.detail.joined.in_place
    module = import_source(emitted)
    inputs = import_source(source).get_inputs()
    torch.manual_seed(0)
    model = module.ModelNew()
    torch.manual_seed(0)
    with torch.no_grad():
        expected = import_source(source).Model()(*inputs)
        torch.testing.assert_close(model(*inputs), expected, rtol=1e-5, atol=1e-4)


def test_products_that_store_several_results_stand_beside_others_in_a_module():
    """As in a block of a language model: q, k and v, then gate and up, then what projects."""
    layers = "nn.Linear(33, 20), nn.Linear(33, 40), nn.Linear(33, 5), nn.Linear(20, 33)"
    setup = f"self.l, self.m, self.n, self.o = {layers}"
    setup += "; self.g, self.u = nn.Linear(33, 40), nn.Linear(33, 20)"
    body = "y = self.o(torch.relu(self.l(x) + self.m(x).sum() + self.n(x).sum()))"
    source = problem("(self.g(y), self.u(y) * 2)", "torch.randn(18, 33)", setup)
    source = source.replace("        return", f"        {body}\n        return")
    module, graph = trace_source(source)
    joined = recipe("horizontal-fusion").match(graph, Contract())
    assert [len(site.outputs) for site in joined] == [3, 2]
    taken = {name for site in joined for name in site.nodes}
    single = [
        site
        for site in recipe("tile-matmul").match(graph, Contract())
        if len(site.nodes) == 1 and not taken & set(site.nodes)
    ]
    chosen = [(recipe("horizontal-fusion"), site, {**TILE, "splits": 1}) for site in joined]
    chosen += [(recipe("tile-matmul"), single[0], {**TILE, "splits": 1})]
    text = emit_source(source, graph, chosen)
    names = set(re.findall(r"^def (kmem_(?:store_tile|tile_matmul)\w*)\(", text, re.MULTILINE))
    assert names == {
        f"kmem_{kind}{suffix}"
        for kind in ("store_tile", "tile_matmul")
        for suffix in ("", "_2", "_3")
    }
    model, candidate = module.Model(), import_source(text).ModelNew()
    candidate.load_state_dict(model.state_dict())
    x = module.get_inputs()[0]
    with torch.no_grad():
        torch.testing.assert_close(candidate(x), model(x), rtol=1e-4, atol=1e-4)


_NIBBLES = "torch.stack((self.b & 15, self.b >> 4), -1).view(20, 32)"


@pytest.mark.parametrize(
    "weight",
    [
        f"({_NIBBLES} - 8).to(x.dtype)",  # wraps in eight bits
        "torch.stack(((self.i << 4) >> 4, self.i >> 4), 1).to(x.dtype).view(20, 32)",  # signs
        "((self.c.T.reshape(1, 80) >> torch.arange(0, 32, 4).view(8, 1)) & 15)"
        ".permute(1, 0).reshape(20, 4, 8).transpose(1, 2).flatten(1).to(x.dtype)",
        f"({_NIBBLES}.to(x.dtype) - {_NIBBLES}.view(20, 4, 8)[:, :, :1]"
        ".expand(20, 4, 8).reshape(20, 32).to(x.dtype))",
        "torch.cat((self.b % 16, self.b // 16), 1).to(torch.int16).to(x.dtype) * self.g[:, :1]",
        # eight bits an element, scaled by groups
        "(self.q.to(x.dtype).view(20, 4, 8) * self.g[:, :, None]).view(20, 32)",
        "(self.q.view(20, 4, 8).to(x.dtype) - self.g[:, :, None]).flatten(1) * self.g[:, :1]",
    ],
)
def test_packed_weights_are_unpacked_as_eager_does(weight):
    setup = (
        f"{INT4}; self.register_buffer('i', self.b.view(torch.int8)); "
        "self.register_buffer('q', torch.randint(-99, 99, (20, 32), dtype=torch.int8))"
    )
    source = problem(f"F.linear(x, {weight})", "torch.randn(18, 32)", setup)
    own = recipe("gemm-prologue-fusion")
    _, graph = trace_source(source)
    (site,) = own.match(graph, Contract())
    assert site.detail.unpacks
    check_recipe(own, source, H200, settings=[{**TILE, "splits": 1}], tolerance=1e-6)


@pytest.mark.parametrize(
    "weight",
    [
        "(self.f & 15).to(x.dtype)",  # as many numbers as integers
        f"(lambda w: w * w.to(x.dtype).sum())({_NIBBLES}.to(x.dtype))",
        f"{_NIBBLES}.to(x.dtype).cumsum(1)",
        "torch.stack((self.b & 15, self.b >> 4), -1).view(torch.int16).to(x.dtype).view(20, -1)"
        ".repeat(1, 2)",
    ],
)
def test_what_is_not_packed_or_cannot_be_told_is_read_as_it_is(weight):
    setup = f"{INT4}; self.register_buffer('f', torch.randint(0, 99, (20, 32)).int())"
    source = problem(f"F.linear(x, {weight})", "torch.randn(18, 32)", setup)
    _, graph = trace_source(source)
    sites = recipe("gemm-prologue-fusion").match(graph, Contract())
    assert not any(site.detail.unpacks for site in sites)


@pytest.mark.parametrize(
    ("rows", "columns", "source"),
    [
        (4, 6, (24,)),
        (24, 1, (2, 3, 4)),
        (4, 6, (2, 2, 1, 3, 2)),
        (6, 4, (4, 6)),
        (6, 4, (3, 8)),
        (1, 1, ()),
    ],
)
def test_a_place_in_a_view_is_that_of_the_same_element(rows, columns, source):
    last = along("n", columns) if columns > 1 else ZERO
    places = reshape_places([along("k", rows), ZERO, last], (rows, 1, columns), source)
    numbers = torch.arange(rows * columns).view(source)
    for k, n in product(range(rows), range(columns)):
        place = tuple(eval(each.text, {"k": k, "n": n}) for each in places)
        assert numbers[place] == k * columns + n
