"""skills/gather-whole-rows: bags, and rows by where they go, interpreted and compiled for sm_90."""

import pytest
import torch
from compile_sm90 import compile_jobs
from module_problems import recipe

from kmem.devices import named_target
from kmem.problem.costs.bound import graph_bound
from kmem.records import Contract, Purity
from kmem.testing import check_recipe, emit_source, import_source, trace_source

H200 = named_target("h200")
RECIPE = recipe("gather-whole-rows")


def problem(forward: str, inputs: str, dtype: str = "float32", rows: int = 31, width: int = 21):
    """A module with a table `self.t`, whose forward returns an expression."""
    names = ["i", "a", "b"][: inputs.count(";") + 1]
    values = ", ".join(each.replace("DTYPE", f"torch.{dtype}") for each in inputs.split(";"))
    return (
        "import torch\nimport torch.nn.functional as F\nclass Model(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        f"        table = torch.randn({rows}, {width}, dtype=torch.{dtype})\n"
        "        self.t = torch.nn.Parameter(table)\n"
        f"    def forward(self, {', '.join(names)}):\n        return {forward}\n"
        f"def get_inputs():\n    return [{values}]\n"
    )


FIXED = "torch.randint(0, 31, (6, 9))"
FLAT = "torch.randint(0, 31, (40,)); torch.tensor([0, 5, 5, 18, 33])"
WEIGHTS = "torch.rand(6, 9, dtype=DTYPE)"
BAGS = {
    "mean": ("F.embedding(i, self.t).mean(1)", FIXED),
    "sum, kept": ("F.embedding(i, self.t).sum(-2, keepdim=True)", FIXED),
    "of more dimensions": ("F.embedding(i, self.t).sum(2)", "torch.randint(0, 31, (2, 3, 5))"),
    "of one dimension": ("F.embedding(i, self.t).mean(0)", "torch.randint(0, 31, (7,))"),
    "weighted": ("(F.embedding(i, self.t) * a.unsqueeze(-1)).sum(1)", f"{FIXED}; {WEIGHTS}"),
    "weights first": ("(a[..., None] * F.embedding(i, self.t)).mean(1)", f"{FIXED}; {WEIGHTS}"),
    "the operator": ("F.embedding_bag(i, self.t, mode='mean')", FIXED),
    "of 32 bits": ("F.embedding_bag(i.int(), self.t, mode='sum')", FIXED),
    "by offsets": ("F.embedding_bag(i, self.t, a, mode='mean')", FLAT),
    "with the last end": (
        "F.embedding_bag(i, self.t, a, mode='sum', include_last_offset=True)",
        "torch.randint(0, 31, (40,)); torch.tensor([0, 5, 5, 18, 40])",
    ),
    "with weights": (
        "F.embedding_bag(i, self.t, a, mode='sum', per_sample_weights=b)",
        f"{FLAT}; torch.rand(40, dtype=DTYPE)",
    ),
    "with padding": (
        "F.embedding_bag(i, self.t, a, mode='mean', padding_idx=3)",
        "torch.tensor([3, 1, 2, 3, 3, 4]); torch.tensor([0, 2, 3, 5])",
    ),
    "with padding from the end": (
        "F.embedding_bag(i, self.t, mode='mean', padding_idx=-1)",
        "torch.tensor([[30, 1, 2], [30, 30, 30]])",
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", BAGS)
def test_rows_are_added_up_where_they_are_picked(case: str, dtype: str) -> None:
    source = problem(*BAGS[case], dtype)
    _, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    settings = [
        {"rows": min(rows, 4), "block": 32, "warps": 1}
        for rows in dict.fromkeys(each["rows"] for each in RECIPE.space(site, H200).settings())
        if rows <= 4
    ]
    tolerance = {"float32": 1e-6, "bfloat16": 1e-2}[dtype]
    check_recipe(RECIPE, source, H200, settings=settings, tolerance=tolerance)


def test_what_is_not_finite_stays_in_its_bags() -> None:
    forward, inputs = BAGS["by offsets"]
    source = problem(forward, inputs)
    _, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    setting = RECIPE.space(site, H200).settings()[0]
    made = import_source(emit_source(source, graph, [(RECIPE, site, setting)])).ModelNew()
    eager = import_source(source).Model()
    index = torch.randint(0, 31, (40,))
    with torch.no_grad():
        for module in (made, eager):
            torch.manual_seed(0)
            module.t.copy_(torch.randn(31, 21))
            module.t[index[7], 2], module.t[index[20], 4] = torch.inf, torch.nan
        offsets = torch.tensor([0, 5, 5, 18, 33])
        torch.testing.assert_close(made(index, offsets), eager(index, offsets), equal_nan=True)


@pytest.mark.parametrize(
    ("forward", "inputs"),
    [
        ("F.embedding_bag(i, self.t, mode='max')", FIXED),
        ("F.embedding(i, self.t).sum(2)", FIXED),  # along the rows
        ("F.embedding(i, self.t)", FIXED),
        ("F.embedding(i, self.t).mean(1, dtype=torch.float64)", FIXED),
        ("(F.embedding(i, self.t) * a).sum(1)", f"{FIXED}; torch.rand(6, 9, 21)"),
        ("(lambda e: e.sum(1) + e[:, 0])(F.embedding(i, self.t))", FIXED),  # read otherwise, too
    ],
)
def test_what_is_no_bag_is_left(forward: str, inputs: str) -> None:
    _, graph = trace_source(problem(forward, inputs))
    assert RECIPE.match(graph, Contract()) == []


def scattered(forward: str, dtype: str = "float32") -> str:
    """Rows x go where `to` says, or those of x that `by` picks."""
    return (
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x, to, by):\n"
        f"        return {forward}\n"
        "def get_inputs():\n"
        f"    x = torch.randn(40, 21, dtype=torch.{dtype})\n"
        "    return [x, torch.randint(0, 13, (40,)), torch.randint(0, 40, (40,))]\n"
    )


ZEROS = "torch.zeros(15, 21, dtype=x.dtype, device=x.device)"
EACH = "to[:, None].expand(-1, 21)"
SEGMENTS = {
    "added": f"{ZEROS}.index_add(0, to, x)",
    "added in place": f"{ZEROS}.index_add_(0, to, x * 2)",
    "picked": f"{ZEROS}.index_add(0, to, x[by])",
    "selected": f"{ZEROS}.index_add_(0, to, x.index_select(0, by))",
    "scattered": f"{ZEROS}.scatter_add(0, {EACH}, x[by])",
    "reduced": f"torch.scatter_reduce({ZEROS}, 0, to.view(-1, 1).expand_as(x), x, reduce='sum')",
    "averaged": f"{ZEROS}.scatter_reduce(0, {EACH}, x[by], 'mean', include_self=False)",
    "then computed": f"torch.relu({ZEROS}.index_add(0, to, x[by]) + 1)",
    "of 32 bits": f"{ZEROS}.index_add(0, to.int(), x)",
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", SEGMENTS)
def test_rows_are_added_up_by_where_they_go(case: str, dtype: str) -> None:
    source = scattered(SEGMENTS[case], dtype)
    tolerance = {"float32": 1e-6, "float16": 2e-3}[dtype]
    settings = [{"rows": rows, "block": 32, "warps": 1} for rows in (1, 4)]
    _, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    space = RECIPE.space(site, H200)
    legal = [each for each in settings if space.allows(each)]
    assert legal
    check_recipe(RECIPE, source, H200, settings=legal, tolerance=tolerance)
    assert RECIPE.match(graph, Contract(purity=Purity.TRITON)) == [], "the library sorts"


@pytest.mark.parametrize(
    "forward",
    [
        "torch.ones(15, 21).index_add(0, to, x)",
        f"{ZEROS}.index_add(0, to, x, alpha=2)",
        f"{ZEROS}.scatter_reduce(0, {EACH}, x, 'mean')",  # which counts the zeros, too
        f"{ZEROS}.scatter_reduce(0, {EACH}, x, 'amax', include_self=False)",
        f"{ZEROS}.scatter_add(0, (to[:, None] + torch.arange(21)) % 13, x)",
        "torch.zeros(40, 13, dtype=x.dtype).scatter_add(1, to[:, None] % 13, x[:, :1])",
        "(lambda z: z.index_add(0, to, x) + z)(torch.zeros(15, 21))",
    ],
)
def test_what_is_no_sum_of_rows_from_zeros_is_left(forward: str) -> None:
    assert RECIPE.match(trace_source(scattered(forward))[1], Contract()) == []


def test_a_bag_is_bound_by_the_rows_that_it_names() -> None:
    flat = "torch.randint(0, 31, (40,)); torch.arange(0, 40, 10).clone()"
    _, graph = trace_source(
        problem("F.embedding_bag(i, self.t, a, mode='sum')", flat, rows=9999, width=64)
    )
    picked = 40 * 64 * 4
    assert graph_bound(graph, H200, Contract()).bytes == picked + 40 * 8 + 4 * 8 + 4 * 64 * 4


@pytest.mark.slow
def test_whole_rows_are_read_as_vectors_without_spills() -> None:
    jobs = []
    for forward, inputs, dtype in (
        ("F.embedding(i, self.t).mean(1)", "torch.randint(0, 9999, (4096, 64))", "float32"),
        (
            "F.embedding_bag(i, self.t, a, mode='sum')",
            "torch.randint(0, 9999, (262144,)); torch.arange(0, 262144, 64).clone()",
            "bfloat16",
        ),
    ):
        source = problem(forward, inputs, dtype, rows=9999, width=512)
        (site,) = RECIPE.match(trace_source(source)[1], Contract())
        settings = RECIPE.space(site, H200).settings()
        best = min(settings, key=lambda each: RECIPE.cost_ms(site, each, H200))
        jobs.append(("gather-whole-rows", source, "match", best))
    for (kernel,) in compile_jobs(jobs, "ptx"):
        assert kernel["stack"] == kernel["local"] == 0 and kernel["registers"] <= 128
        assert "ld.global.v4.b32" in kernel["ptx"].replace("{ ", "")
