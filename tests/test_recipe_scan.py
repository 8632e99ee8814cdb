"""Scan recipes in the interpreter: forms, dimensions, types and layouts against float64, under
every strategy.
"""

import pytest
import torch
from module_problems import recipe

from kmem.devices import named_target
from kmem.records import Contract, Precision
from kmem.testing import check_recipe, emit_source, import_source, trace_source

H200 = named_target("h200")
PLAIN, FOLDING = "blocked-row-scan", "scan-without-flip-copies"


def problem(body: str, inputs: str = "torch.randn(3, 37)", parameters: str = "x") -> str:
    return f"""
import torch
import torch.nn.functional as F

class Model(torch.nn.Module):
    def forward(self, {parameters}):
        return {body}

def get_inputs():
    return [{inputs}]
"""


SETTINGS = [
    {"STRATEGY": strategy, "BK": rows, "BR": columns, "SPLIT": split, "num_warps": 4}
    for strategy, rows, columns, split in (
        ("carry", 1, 8, 1),
        ("carry", 4, 64, 1),
        ("split", 2, 4, 3),
    )
]
ZEROS = "torch.zeros_like(x.select(1, 0).unsqueeze(1))"
FORMS = [
    (PLAIN, "torch.cumsum(x, dim=1)"),
    (PLAIN, "x.cumsum(0)"),
    (PLAIN, "torch.cumprod(x, dim=-1)"),
    (PLAIN, "torch.cumsum(x * 2 + 1, 1) / 3"),
    (PLAIN, "torch.cumsum(F.relu(x), 0) * x"),
    (FOLDING, "torch.cumsum(x.flip(1), dim=1).flip(1)"),
    (FOLDING, "torch.cumsum(x.flip(1), dim=1)"),
    (FOLDING, "torch.cumsum(x, dim=1).flip(1)"),
    (FOLDING, "torch.cumsum(x.flip(0), dim=0).flip(0) + x"),
    (FOLDING, "torch.cumsum(x.flip(0, 1), dim=1).flip(0)"),
    (FOLDING, "torch.cumprod(x.flip(1), 1).flip(1)"),
    (FOLDING, f"torch.cat(({ZEROS}, torch.cumsum(x.narrow(1, 0, x.size(1) - 1), dim=1)), dim=1)"),
    (FOLDING, f"torch.cumsum(torch.cat(({ZEROS}, x), dim=1)[:-1], dim=1)"),
    (FOLDING, f"torch.cumsum(torch.cat(({ZEROS}, x), dim=1)[:, :-1], dim=1)"),
    (FOLDING, f"torch.cat(({ZEROS}, torch.cumsum(x, dim=1)), dim=1)[:, :-1]"),
    (FOLDING, f"torch.cat((torch.cumsum(x.flip(1), dim=1).flip(1)[:, 1:], {ZEROS}), dim=1)"),
    (FOLDING, f"torch.cumsum(torch.cat((x, {ZEROS}), dim=1).flip(1), dim=1).flip(1)"),
    (FOLDING, "torch.cumprod(torch.cat((torch.ones_like(x[:, :1]), x), dim=1), dim=1)"),
    (FOLDING, "torch.cumsum(x[:, 3:-2], dim=1)"),
    (PLAIN, "torch.cummax(x, dim=1)[0]"),
    (PLAIN, "torch.cummin(x * 2, dim=0).values - x"),
    (FOLDING, "torch.cummax(x.flip(1), dim=1)[0].flip(1)"),
    (FOLDING, "torch.cummin(x[:, 3:], dim=1)[0]"),
]


@pytest.mark.slow(after=4)
@pytest.mark.parametrize(("skill", "body"), FORMS)
def test_a_scan_agrees_with_float64_under_every_strategy(skill: str, body: str) -> None:
    errors = check_recipe(recipe(skill), problem(body), H200, settings=SETTINGS, tolerance=1e-6)
    assert len(errors) == len(SETTINGS)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("dim", range(4))
def test_a_scan_runs_along_any_of_four_dimensions_of_odd_sizes(dim: int) -> None:
    check_recipe(
        recipe(PLAIN),
        problem(f"x.cumsum({dim})", "torch.randn(3, 5, 7, 9)"),
        H200,
        settings=SETTINGS[1:3],
        tolerance=1e-6,
    )


def test_a_masked_scan_reads_the_mask_once_and_writes_no_product() -> None:
    source = problem(
        "torch.cumsum(x * mask, dim=1)", "torch.randn(3, 37), torch.rand(3, 37) > 0.5", "x, mask"
    )
    check_recipe(recipe(PLAIN), source, H200, settings=SETTINGS, tolerance=1e-6)
    (site,) = recipe(PLAIN).match(trace_source(source)[1], Contract())
    assert site.nodes == ("mul", "cumsum")
    assert site.bytes == 3 * 37 * (4 + 1 + 4)


def test_the_zeros_of_an_exclusive_scan_are_never_made() -> None:
    source = problem(
        f"torch.cat(({ZEROS}, torch.cumsum(x.narrow(1, 0, x.size(1) - 1), dim=1)), dim=1)"
    )
    (site,) = recipe(FOLDING).match(trace_source(source)[1], Contract())
    assert set(site.nodes) == {"narrow", "cumsum", "select", "unsqueeze", "zeros_like", "cat"}


@pytest.mark.parametrize("body", ["torch.cummax(x, dim=1)[0]", "torch.cummin(x, dim=1)[0]"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_extremes_keep_nan_and_infinities_as_torch_does(body: str, setting: dict) -> None:
    source = problem(body, "torch.randn(6, 37)")
    _, graph = trace_source(source)
    (site,) = recipe(PLAIN).match(graph, Contract())
    emitted = import_source(emit_source(source, graph, [(recipe(PLAIN), site, setting)]))
    x = torch.randn(6, 37)
    x[1, 9], x[2, 0], x[3, 20], x[4] = torch.nan, torch.inf, -torch.inf, -torch.inf
    x[5, :30] = -0.0
    assert torch.equal(
        emitted.ModelNew()(x).nan_to_num(nan=7.5), import_source(source).Model()(x).nan_to_num(7.5)
    )


def test_places_of_extremes_are_the_librarys() -> None:
    for body in ("torch.cummax(x, dim=1)[1]", "sum(torch.cummax(x, dim=1))"):
        assert recipe(PLAIN).match(trace_source(problem(body))[1], Contract()) == []


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ("torch.cumsum(x, dim=1)", "torch.randint(0, 9, (3, 7))"),
        ("torch.cumsum(x > 0, dim=1)", "torch.randn(3, 7)"),
        ("torch.cumsum(x, dim=1).add_(1).cumsum(1)", "torch.randn(3, 7)"),
    ],
)
def test_integer_scans_and_graphs_that_change_tensors_in_place_are_left_alone(
    body: str, inputs: str
) -> None:
    graph = trace_source(problem(body, inputs))[1]
    assert not [site for name in (PLAIN, FOLDING) for site in recipe(name).match(graph, Contract())]


def test_a_padding_that_is_not_the_identity_is_not_folded() -> None:
    source = problem("torch.cumprod(torch.cat((torch.zeros_like(x[:, :1]), x), dim=1), dim=1)")
    (site,) = recipe(PLAIN).match(trace_source(source)[1], Contract())
    assert site.nodes == ("cumprod",)


def test_a_flip_that_others_read_stays_and_is_still_looked_through() -> None:
    source = problem("(torch.cumsum(y, 1), y)").replace(
        "return", "y = x.flip(1)\n        return", 1
    )
    check_recipe(recipe(PLAIN), source, H200, settings=SETTINGS[:1], tolerance=1e-6)


def test_strided_inputs_and_dense_ones_take_the_strides_of_their_own_trace() -> None:
    source = problem("torch.cumsum(x.transpose(0, 1), dim=0)", "torch.randn(9, 21)[:, ::2]")
    check_recipe(recipe(PLAIN), source, H200, settings=SETTINGS, tolerance=1e-6)


@pytest.mark.parametrize(
    "body", ["torch.cumsum(x, dim=1)", "torch.cumsum(x.flip(1), dim=1).flip(1)"]
)
def test_bfloat16_scans_accumulate_in_fp32(body: str) -> None:
    skill = FOLDING if "flip" in body else PLAIN
    contract = Contract(Precision.BF16)
    check_recipe(
        recipe(skill),
        problem(body, "torch.rand(2, 300)"),
        H200,
        settings=SETTINGS[:1],
        contract=contract,
        tolerance=4e-3,
    )


def test_infinities_and_nans_stay_where_eager_has_them() -> None:
    source = problem("torch.cumsum(x, dim=1)")
    chosen = recipe(PLAIN)
    _, graph = trace_source(source)
    (site,) = chosen.match(graph, Contract())
    x = torch.randn(3, 37)
    x[0, 20] = float("nan")
    x[1, 5] = float("inf")
    x[2, 3] = float("inf")
    x[2, 30] = -float("inf")
    for settings in SETTINGS:
        with torch.no_grad():
            found = import_source(
                emit_source(source, graph, [(chosen, site, settings)])
            ).ModelNew()(x)
        torch.testing.assert_close(found, x.cumsum(1), equal_nan=True)


@pytest.mark.parametrize(
    "shape", ["32768, 32768", "100000000,", "128, 4096, 4095", "4, 1000003", "3, 3", "1000000, 8"]
)
@pytest.mark.parametrize("dim", [0, -1])
def test_every_size_has_a_space_and_a_finite_cost(shape: str, dim: int) -> None:
    chosen = recipe(PLAIN)
    (site,) = chosen.match(
        trace_source(problem(f"x.cumsum({dim})", f"torch.empty({shape})"))[1], Contract()
    )
    settings = chosen.space(site, H200).settings()
    assert 0 < len(settings) <= 250
    assert all(0 < chosen.cost_ms(site, knobs, H200) < 1e4 for knobs in settings)
