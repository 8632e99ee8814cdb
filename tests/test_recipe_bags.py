"""skills/gather-whole-rows: embedding bags, in the interpreter and as compiled for sm_90."""

import pytest
import torch
from compile_sm90 import compile_jobs
from module_problems import recipe

from kmem.devices import named_target
from kmem.records import Contract
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
