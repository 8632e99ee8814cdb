"""Row-wise recipes in the interpreter: every strategy against float64, over dims, types, layouts
and extreme values.
"""

from dataclasses import replace

import pytest
import torch
from module_problems import problem, recipe

from kmem.codegen.regions import reductions
from kmem.codegen.rows.access import line_classes, run_elements, vector_lanes
from kmem.codegen.rows.space import fit_settings, sharing_places
from kmem.devices import named_target
from kmem.recipes import Recipe, Site
from kmem.records import Contract, Precision
from kmem.testing import check_recipe, emit_source, import_source, trace_source

H200 = named_target("h200")
STRATEGIES = ("registers", "loop", "split", "shared", "pipelined")


def setting(strategy: str, rows: int = 1, columns: int = 8, split: int = 3) -> dict:
    return {"STRATEGY": strategy, "BK": rows, "BR": columns, "SPLIT": split, "num_warps": 4}


NORMS = [
    ("row-norm", "x / torch.norm(x, p='fro')", "pass", "torch.randn(3, 5, 7)"),
    ("row-norm", "x / torch.norm(x, p=2, dim=1, keepdim=True)", "pass", "torch.randn(3, 29)"),
    ("row-norm", "x / torch.mean(torch.abs(x), dim=1, keepdim=True)", "pass", "torch.randn(3, 29)"),
    (
        "row-norm",
        "x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + 1e-5)",
        "pass",
        "torch.randn(2, 5, 3, 5)",
    ),
    ("row-norm", "F.normalize(F.relu(x), dim=1) * 2", "pass", "torch.randn(4, 19)"),
    ("row-norm", "self.norm(x)", "self.norm = nn.LayerNorm((5, 7))", "torch.randn(3, 5, 7) + 3"),
    ("row-norm", "self.norm(x)", "self.norm = nn.GroupNorm(2, 6)", "torch.randn(2, 6, 3, 3)"),
    (
        "row-norm",
        "self.norm(x)",
        "self.norm = nn.InstanceNorm2d(3, affine=True)",
        "torch.randn(2, 3, 4, 5)",
    ),
    ("row-norm", "F.rms_norm(x, (13,))", "pass", "torch.randn(5, 13)"),
    (
        "row-norm",
        "(x - x.mean(1).unsqueeze(1)) / torch.sqrt(x.var(1, keepdim=True) + 1e-3)",
        "pass",
        "torch.randn(3, 17)",
    ),
    ("online-softmax", "torch.softmax(x, 1)", "pass", "torch.randn(3, 37)"),
    ("online-softmax", "torch.log_softmax(F.relu(x), 1) * 0.5", "pass", "torch.randn(2, 11, 6)"),
    ("online-softmax", "torch.softmax(x.transpose(0, 1), 1)", "pass", "torch.randn(21, 4)"),
]


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(("skill", "expression", "setup", "inputs"), NORMS)
def test_a_norm_agrees_with_float64_under_every_strategy(
    skill: str, expression: str, setup: str, inputs: str
) -> None:
    settings = [setting(strategy, rows=2) for strategy in STRATEGIES]
    errors = check_recipe(
        recipe(skill), problem(expression, inputs, setup), H200, settings=settings, tolerance=1e-6
    )
    assert len(errors) == len(STRATEGIES)


REDUCTIONS = [
    "torch.sum(x, dim=1, keepdim=True)",
    "x.mean(dim=(0, 2))",
    "x.amax((1, 2))",
    "x.amin(0)",
    "torch.max(x, dim=1)[0]",
    "torch.min(x, dim=2)[1]",
    "torch.argmax(x, dim=1)",
    "torch.argmin(x)",
    "torch.prod(x, dim=2)",
    "torch.var(x, dim=(1, 2))",
    "torch.std(x, dim=0, correction=0)",
    "torch.logsumexp(x, dim=2)",
    "torch.norm(x, p=1, dim=1)",
    "x.norm()",
    "torch.mean(torch.clamp(1 - x * x, min=0))",
    "torch.logsumexp(x, dim=1) * 2 + 1",
]


@pytest.mark.slow(after=6)
@pytest.mark.parametrize("expression", REDUCTIONS)
def test_a_reduction_agrees_with_float64_under_every_strategy(expression: str) -> None:
    settings = [setting(strategy, rows=2, columns=4) for strategy in ("registers", "loop", "split")]
    errors = check_recipe(
        recipe("split-reduction"),
        problem(expression, "torch.randn(3, 7, 5)"),
        H200,
        settings=settings,
        tolerance=1e-6,
    )
    assert len(errors) == len(settings)


REDUCED_AGAIN = [
    (
        "online-softmax",
        "torch.max(F.silu(torch.softmax(x, 1) - self.a.view(1, -1, 1)), 1)[0]",
        "self.a = nn.Parameter(torch.randn(19))",
        "torch.randn(3, 19, 6)",
    ),
    ("online-softmax", "torch.argmax(torch.softmax(x, 1) * x, 1)", "pass", "torch.randn(5, 21)"),
    ("online-softmax", "(F.log_softmax(x, 1) * x).sum(1)", "pass", "torch.randn(4, 23)"),
    ("row-norm", "F.gelu(self.n(x)).sum(-1)", "self.n = nn.LayerNorm(21)", "torch.randn(5, 21)"),
    (
        "row-norm",
        "torch.logsumexp(F.layer_norm(x, (21,)), -1, keepdim=True)",
        "pass",
        "torch.randn(5, 21) * 3 + 40",
    ),
    (
        "row-norm",
        "torch.tanh(self.n(x)).amin((2, 3))",
        "self.n = nn.InstanceNorm2d(6)",
        "torch.randn(2, 6, 4, 3)",
    ),
    # three reductions, each of what the one before left
    (
        "row-norm",
        "(torch.softmax(F.rms_norm(x, (21,)), -1) ** 2).sum(-1)",
        "pass",
        "torch.randn(5, 21)",
    ),
]


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(("skill", "expression", "setup", "inputs"), REDUCED_AGAIN)
def test_a_reduction_of_a_norm_or_softmax_of_the_same_row_is_part_of_its_kernel(
    skill: str, expression: str, setup: str, inputs: str
) -> None:
    settings = [setting(strategy, rows=2, columns=4) for strategy in ("registers", "loop", "split")]
    source = problem(expression, inputs, setup)
    _, graph = trace_source(source)
    (site,) = recipe(skill).match(graph, Contract())
    assert {node.name for node in graph.nodes} - set(site.nodes) <= {"view"}
    errors = check_recipe(recipe(skill), source, H200, settings=settings, tolerance=1e-6)
    assert len(errors) == len(settings)


def run(name: str, source: str, knobs: dict, x: torch.Tensor) -> torch.Tensor:
    chosen = recipe(name)
    _, graph = trace_source(source)
    (site,) = chosen.match(graph, Contract())
    module = import_source(emit_source(source, graph, [(chosen, site, knobs)]))
    with torch.no_grad():
        return module.ModelNew()(x)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_softmax_takes_minus_infinity_large_values_and_nan_as_eager_does(strategy: str) -> None:
    x = torch.randn(6, 37)
    x[0, :20] = -float("inf")
    x[1] = -float("inf")
    x[2] *= 1e4
    x[3, 5] = float("nan")
    x[4] += 3e38
    x[5, 3] = float("inf")
    found = run(
        "online-softmax", problem("torch.softmax(x, 1)", "torch.randn(6, 37)"), setting(strategy), x
    )
    torch.testing.assert_close(found, torch.softmax(x, 1), equal_nan=True, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("strategy", ["registers", "loop", "split"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_arg_reductions_take_the_first_of_equals_and_of_nans(name: str, strategy: str) -> None:
    x = torch.randint(0, 3, (7, 37)).float()
    x[1, 20] = x[1, 30] = float("nan")
    x[2] = float("inf")
    x[3] = -float("inf")
    found = run(
        "split-reduction",
        problem(f"torch.{name}(x, dim=1)", "torch.randn(7, 37)"),
        setting(strategy),
        x,
    )
    assert torch.equal(found, getattr(torch, name)(x, dim=1))


@pytest.mark.parametrize("strategy", ["registers", "loop", "split"])
def test_logsumexp_of_infinities_is_infinite_and_of_nan_is_nan(strategy: str) -> None:
    x = torch.randn(6, 37)
    x[0, 3] = x[1, 20] = float("inf")
    x[1, 30] = float("nan")
    x[2] = -float("inf")
    x[3, :30] = -float("inf")
    x[4] += 3e38
    found = run(
        "split-reduction",
        problem("torch.logsumexp(x, 1)", "torch.randn(6, 37)"),
        setting(strategy),
        x,
    )
    torch.testing.assert_close(found, torch.logsumexp(x, 1), equal_nan=True)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rows_divide_as_in_eager_by_zero_and_by_tiny_huge_and_infinite_norms(strategy: str) -> None:
    x = torch.randn(8, 37)
    x[0] = 0.0
    x[1] *= 1e-38
    x[2] *= 1e37
    x[3, 5] = float("inf")
    x[4, 7] = float("nan")
    x[5] *= 1e-20
    x[6] *= 1e20
    source = problem("x / torch.norm(x, p=1, dim=1, keepdim=True)", "torch.randn(8, 37)")
    found = run("row-norm", source, setting(strategy), x)
    torch.testing.assert_close(
        found, x / x.norm(p=1, dim=1, keepdim=True), equal_nan=True, rtol=1e-6, atol=0.0
    )


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("width", [8, 6])
def test_a_group_norm_whose_tiles_lie_within_a_channel_or_cross_channels_takes_each_weight(
    width: int,
) -> None:
    constructor = (
        "self.norm = nn.GroupNorm(2, 6); nn.init.normal_(self.norm.weight); "
        "nn.init.normal_(self.norm.bias)"
    )
    settings = [setting(strategy, rows=2, columns=8) for strategy in STRATEGIES]
    errors = check_recipe(
        recipe("row-norm"),
        problem("self.norm(x)", f"torch.randn(2, 6, 2, {width})", constructor),
        H200,
        settings=settings,
        tolerance=1e-6,
    )
    assert len(errors) == len(STRATEGIES)


@pytest.mark.parametrize("name", ["amax", "amin"])
@pytest.mark.parametrize("strategy", ["registers", "loop", "split"])
def test_a_maximum_keeps_nan(name: str, strategy: str) -> None:
    x = torch.randn(4, 37)
    x[2, 30] = float("nan")
    found = run(
        "split-reduction", problem(f"x.{name}(1)", "torch.randn(4, 37)"), setting(strategy), x
    )
    torch.testing.assert_close(found, getattr(x, name)(1), equal_nan=True, rtol=0, atol=0)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_variance_does_not_cancel_when_the_mean_is_large(strategy: str) -> None:
    source = problem("self.norm(x)", "torch.randn(32, 64)", "self.norm = nn.LayerNorm(64)")
    torch.manual_seed(0)
    x = torch.randn(32, 64) + 1000.0  # rows enough that how each mean rounds averages out
    found = run("row-norm", source, setting(strategy, columns=32), x)
    oracle = torch.nn.functional.layer_norm(x.double(), (64,))
    eager = torch.nn.functional.layer_norm(x, (64,))
    assert (found - oracle).norm() <= 2 * (eager - oracle).norm() + 1e-6 * oracle.norm()


@pytest.mark.parametrize(
    ("name", "expression"),
    [
        ("online-softmax", "torch.softmax(x, 1)"),
        ("row-norm", "F.rms_norm(x, (24,))"),
        ("split-reduction", "x.sum(1)"),
    ],
)
def test_bfloat16_rows_round_once(name: str, expression: str) -> None:
    contract = Contract(Precision.BF16)
    check_recipe(
        recipe(name),
        problem(expression, "torch.randn(5, 24)"),
        H200,
        settings=[setting("loop")],
        contract=contract,
        tolerance=4e-3,
    )


@pytest.mark.parametrize("shape", ["4096, 393216", "16384, 128", "8, 64, 512, 512", "3, 3"])
@pytest.mark.parametrize("name", ["row-norm", "split-reduction", "online-softmax"])
def test_every_size_has_a_space_and_a_finite_cost(name: str, shape: str) -> None:
    expression = {
        "row-norm": "F.normalize(x, dim=1)",
        "split-reduction": "x.sum(1)",
        "online-softmax": "torch.softmax(x, 1)",
    }[name]
    chosen = recipe(name)
    _, graph = trace_source(problem(expression, f"torch.empty({shape})"))
    (site,) = chosen.match(graph, Contract())
    settings = chosen.space(site, H200).settings()
    assert 0 < len(settings) <= 250
    assert all(0 < chosen.cost_ms(site, knobs, H200) < 1e3 for knobs in settings)


def match_one(name: str, source: str) -> tuple[Recipe, Site]:
    chosen = recipe(name)
    (site,) = chosen.match(trace_source(source)[1], Contract())
    return chosen, site


@pytest.mark.parametrize(
    ("name", "expression", "setup", "shape", "strategies"),
    [
        ("online-softmax", "torch.softmax(x, 1)", "pass", "4096, 393216", {"shared"}),
        ("online-softmax", "torch.softmax(x, 1)", "pass", "65536, 8192", {"registers"}),
        (
            "row-norm",
            "self.norm(x)",
            "self.norm = nn.LayerNorm((64, 256, 256))",
            "16, 64, 256, 256",
            {"split"},
        ),
        (
            "row-norm",
            "self.norm(x)",
            "self.norm = nn.GroupNorm(8, 64)",
            "112, 64, 512, 512",
            {"shared", "pipelined"},
        ),
        (
            "row-norm",
            "self.norm(x)",
            "self.norm = nn.InstanceNorm2d(64)",
            "112, 64, 512, 512",
            {"shared"},
        ),
        (
            "row-norm",
            "x / torch.mean(torch.abs(x), dim=1, keepdim=True)",
            "pass",
            "32768, 65535",
            {"shared"},
        ),
        (
            "row-norm",
            "x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + 1e-5)",
            "pass",
            "112, 64, 512, 512",
            {"registers"},
        ),
        (
            "split-reduction",
            "torch.mean(torch.clamp(1 - x * x, min=0))",
            "pass",
            "32768, 32768",
            {"split"},
        ),
    ],
)
def test_the_strategy_measured_fastest_on_an_h200_is_predicted_best(
    name: str, expression: str, setup: str, shape: str, strategies: set[str]
) -> None:
    chosen, site = match_one(name, problem(expression, f"torch.empty({shape})", setup))
    best = min(
        chosen.space(site, H200).settings(), key=lambda knobs: chosen.cost_ms(site, knobs, H200)
    )
    assert best["STRATEGY"] in strategies


def test_one_program_for_a_whole_tensor_is_predicted_as_slow_as_it_was() -> None:
    chosen, site = match_one(
        "split-reduction",
        problem("torch.mean(torch.clamp(1 - x * x, min=0))", "torch.empty(32768, 32768)"),
    )
    alone = {"STRATEGY": "loop", "BK": 1, "BR": 4096, "SPLIT": 1, "num_warps": 8}
    assert 110 < chosen.cost_ms(site, alone, H200) < 450  # measured: 223 ms
    assert alone not in chosen.space(site, H200).settings()


@pytest.mark.parametrize(
    ("name", "expression", "shape", "strategy", "tile", "warps"),
    [
        # 2.002 ms as a prototype
        ("split-reduction", "x.sum(1)", "128, 4096, 4095", "classes", (128, 32, 4), 32),
        ("split-reduction", "x.sum(1)", "128, 4096, 4095", "classes", (128, 32, 4), 8),  # 2.009
        ("split-reduction", "x.sum(1)", "128, 4096, 4095", "classes", (256, 16, 4), 8),  # 2.016
        # 3.44 ms
        ("online-softmax", "torch.softmax(x, 1)", "4096, 393216", "shared", (1, 8192, 1), 4),
        # 3.99 ms
        ("row-norm", "F.instance_norm(x)", "112, 64, 512, 512", "shared", (1, 8192, 1), 4),
        (
            "row-norm",
            "x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + 1e-5)",
            "112, 64, 512, 512",
            "registers",
            (128, 4, 1),
            8,
        ),  # 3.67 ms
    ],
)
def test_the_setting_measured_fastest_on_an_h200_is_among_the_first_six(
    name: str, expression: str, shape: str, strategy: str, tile: tuple[int, int, int], warps: int
) -> None:
    device = replace(H200, measured=True, dram_bytes_per_s=4.25e12, read_bytes_per_s=4.37e12)
    chosen, site = match_one(name, problem(expression, f"torch.empty({shape})"))
    space = chosen.space(site, device)
    ranked = sorted(space.settings(), key=lambda knobs: chosen.cost_ms(site, knobs, device))
    assert space.completed(setting(strategy, *tile) | {"num_warps": warps}) in ranked[:6]


@pytest.mark.parametrize(
    ("strategy", "tile", "warps", "ms"),
    [
        ("split", (128, 32, 2), 32, 2.069),
        ("classes", (128, 32, 4), 32, 2.002),  # as a prototype, like the next two
        ("classes", (128, 32, 4), 8, 2.009),
        ("classes", (256, 16, 4), 8, 2.016),
    ],
)
def test_sums_over_columns_are_predicted_as_measured(
    strategy: str, tile: tuple[int, int, int], warps: int, ms: float
) -> None:
    chosen, site = match_one(
        "split-reduction",
        problem("torch.sum(x, dim=1, keepdim=True)", "torch.empty(128, 4096, 4095)"),
    )
    # 8.6 GB take 1.966 ms
    measured = replace(H200, measured=True, dram_bytes_per_s=4.25e12, read_bytes_per_s=4.37e12)
    knobs = setting(strategy, *tile) | {"num_warps": warps}
    assert chosen.cost_ms(site, knobs, measured) == pytest.approx(ms, rel=0.02)


def test_arithmetic_counts_where_memory_does_not_hide_it_and_ranks_as_before() -> None:
    """A gelu of every element that is read and not written takes longer than reading; of one that
    is a norm's own, memory hides it.
    """
    shape = "torch.empty(8192, 65536)"
    costs = []
    for of in ("x", "F.gelu(x)"):
        chosen, site = match_one("split-reduction", problem(f"{of}.mean(dim=1)", shape))
        settings = chosen.space(site, H200).settings()
        ranked = sorted(settings, key=lambda knobs: chosen.cost_ms(site, knobs, H200))
        costs.append([chosen.cost_ms(site, knobs, H200) for knobs in ranked])
    read, computed = (each[0] for each in costs)
    assert 1.3 * read < computed < 2 * read
    assert len(set(costs[1][:20])) > 10, "where arithmetic is the limit the rest still ranks"
    chosen, site = match_one("online-softmax", problem("torch.softmax(x, dim=1)", shape))
    best = min(chosen.cost_ms(site, knobs, H200) for knobs in chosen.space(site, H200).settings())
    assert best < 2.5 * read, "a softmax reads and writes, and its exponentials are hidden"


def test_two_launches_of_programs_that_wait_for_each_other_fit_the_device() -> None:
    chosen, site = match_one(
        "online-softmax", problem("torch.softmax(x, 1)", "torch.empty(4096, 393216)")
    )
    for device in (H200, replace(H200, sm_count=40)):
        shared = [
            knobs
            for knobs in chosen.space(site, device).settings()
            if knobs["STRATEGY"] == "shared"
        ]
        assert shared
        for knobs in shared:
            assert 2 * fit_settings(site.detail, knobs)[
                "SPLIT"
            ] <= device.sm_count * sharing_places(int(knobs["num_warps"]))
    launcher = chosen.emit(site, setting("shared", columns=8192)).launcher
    assert (
        "places = device.multi_processor_count * max(1, 256 // (4 * device.warp_size)) if "
        "device else 2 * SPLIT"
    ) in launcher
    assert "wait = not p0.is_cpu and 2 * SPLIT <= places" in launcher


@pytest.mark.parametrize(("warps", "places"), [(1, 8), (2, 4), (4, 2), (8, 1), (16, 1), (32, 1)])
def test_programs_that_wait_count_on_the_places_that_255_registers_a_thread_leave(
    warps: int, places: int
) -> None:
    assert sharing_places(warps) == places
    assert places == 1 or places * warps * 32 * 256 <= H200.registers_per_sm


ROTATED = [
    (
        "row-norm",
        "x / torch.mean(torch.abs(x), dim=1, keepdim=True)",
        "pass",
        "torch.randn(5, 51)",
        4,
    ),
    (
        "row-norm",
        "x / torch.mean(torch.abs(x), dim=1, keepdim=True)",
        "pass",
        "torch.randn(5, 38)",
        4,
    ),
    (
        "row-norm",
        "self.norm(x)",
        "self.norm = nn.LayerNorm(35); nn.init.normal_(self.norm.weight)",
        "torch.randn(2, 2, 35) + 3",
        4,
    ),
    # its output lies otherwise
    (
        "row-norm",
        "x / torch.norm(x, p=2, dim=-1, keepdim=True)",
        "pass",
        "torch.randn(5, 129)[:, :128]",
        1,
    ),
    # every row starts at 16 bytes
    ("row-norm", "x / torch.norm(x, p=2, dim=1, keepdim=True)", "pass", "torch.randn(3, 128)", 1),
    ("online-softmax", "torch.softmax(x, 1)", "pass", "torch.randn(4, 35)", 4),
    ("online-softmax", "torch.log_softmax(F.relu(x), 1) * 0.5", "pass", "torch.randn(4, 53)", 4),
    ("split-reduction", "torch.var(x, dim=1)", "pass", "torch.randn(4, 35)", 4),
    ("split-reduction", "torch.amax(x, dim=1)", "pass", "torch.randn(3, 129)[:, :128]", 4),
    # slots are not in the order of elements
    ("split-reduction", "torch.argmax(x, dim=1)", "pass", "torch.randn(5, 67)", 1),
]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("name", "expression", "setup", "inputs", "lanes"), ROTATED)
def test_rows_that_start_beside_16_bytes_agree_with_float64(
    name: str, expression: str, setup: str, inputs: str, lanes: int
) -> None:
    source = problem(expression, inputs, setup)
    chosen, site = match_one(name, source)
    assert vector_lanes(site.detail) == lanes
    # 1: as any other row
    strategies = (
        STRATEGIES[:1] if lanes == 1 else STRATEGIES if chosen.element_output else STRATEGIES[:3]
    )
    settings = [setting(strategy, columns=16) for strategy in strategies]
    assert len(check_recipe(chosen, source, H200, settings=settings, tolerance=1e-6)) == len(
        settings
    )


@pytest.mark.slow
def test_bfloat16_rows_that_start_beside_16_bytes_round_once() -> None:
    source = problem("F.rms_norm(x, (69,))", "torch.randn(5, 69)")
    contract = Contract(Precision.BF16)
    settings = [setting(strategy, columns=16) for strategy in STRATEGIES]
    assert len(
        check_recipe(
            recipe("row-norm"), source, H200, settings=settings, contract=contract, tolerance=4e-3
        )
    ) == len(STRATEGIES)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("columns", [640, 645])  # the second start beside 16 bytes
@pytest.mark.parametrize(
    ("name", "expression", "inputs"),
    [
        ("online-softmax", "torch.softmax(x, 1)", "torch.randn(3, COLUMNS) * 30"),
        ("online-softmax", "torch.softmax(x, 1)", "torch.randn(2, COLUMNS, 3)"),
        ("split-reduction", "torch.logsumexp(x, 1)", "torch.randn(3, COLUMNS) * 30"),
        (
            "fused-cross-entropy",
            "F.cross_entropy(x, y)",
            "torch.randn(5, COLUMNS) * 30, torch.tensor([0, 3, COLUMNS - 1, -100, 600])",
        ),
    ],
)
def test_a_thread_reduces_its_neighbours_of_a_softmax_by_itself(
    name: str, expression: str, inputs: str, columns: int
) -> None:
    parameters = "x, y" if "(x, y" in expression else "x"
    source = problem(expression, inputs.replace("COLUMNS", str(columns)), parameters=parameters)
    chosen, site = match_one(name, source)
    strategies = ("loop", "split", "pipelined") if chosen.element_output else ("loop", "split")
    settings = [
        {**setting(strategy, columns=128), "num_warps": 1, "ACCURACY": accuracy}
        for strategy in strategies
        for accuracy in (0, 1)
    ]
    # 128 elements of a tile over 32 threads, where they lie side by side
    assert run_elements(site.detail, 128, 1) == (1 if "COLUMNS, 3" in inputs else 4)
    assert len(check_recipe(chosen, source, H200, settings=settings, tolerance=1e-6)) == len(
        settings
    )


LINED = [
    ("row-norm", "self.norm(x)", "self.norm = nn.GroupNorm(2, 6)", "torch.randn(2, 6, 3, 5) + 3"),
    (
        "row-norm",
        "self.norm(F.hardswish(x))",
        "self.norm = nn.GroupNorm(1, 4)",
        "torch.randn(3, 4, 21)",
    ),
    # three axes of a row that do not merge
    ("split-reduction", "x[:, :2, :, :13].var((1, 2, 3))", "pass", "torch.randn(2, 3, 2, 14) + 5"),
    ("split-reduction", "torch.sum(x * x[:, :, :1], dim=(0, 2))", "pass", "torch.randn(4, 3, 13)"),
    ("split-reduction", "x[:, :, :13].amax((0, 2))", "pass", "torch.randn(3, 4, 14)"),
    ("row-norm", "x - x.mean((0, 2), keepdim=True)", "pass", "torch.randn(4, 3, 29)"),
]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("name", "expression", "setup", "inputs"), LINED)
def test_parts_that_keep_within_a_line_agree_with_float64(
    name: str, expression: str, setup: str, inputs: str
) -> None:
    drawn = "[nn.init.normal_(weight) for weight in self.parameters()]"
    source = problem(expression, inputs, f"{setup}; {drawn}")
    chosen, site = match_one(name, source)
    strategies = ("split", "shared", "pipelined") if chosen.element_output else ("split",)
    settings = [
        setting(strategy, columns=columns, split=split)
        for strategy in strategies
        for columns, split in ((8, 5), (8, 13), (16, 5))
    ]
    fitted = [fit_settings(site.detail, each) for each in settings]
    assert any(each["LINED"] for each in fitted)
    for each in fitted:
        lines = site.detail.columns // site.detail.axes[site.detail.reduced[-1]].size
        assert not each["LINED"] or each["SPLIT"] % lines == 0
    errors = check_recipe(chosen, source, H200, settings=settings, tolerance=1e-6)
    assert len(errors) == len(settings)


CLASSED = [
    ("torch.sum(x, dim=1)", "torch.randn(2, 14, 33)", 4),
    ("torch.mean(x, dim=1)", "torch.randn(3, 8, 34)", 2),
    # batches start beside 16 bytes as well
    ("torch.max(x, dim=1)[0]", "torch.randn(4, 13, 35)", 4),
    ("torch.min(x, dim=0)[1]", "torch.randn(16, 65)", 4),
    ("torch.argmax(x, dim=1)", "torch.randn(2, 14, 33)", 4),
    ("torch.prod(x, dim=1)", "torch.randn(4, 5, 17)", 4),
    # with BR 2 and 8 parts, three have no elements
    ("torch.var(x, dim=1)", "torch.randn(4, 9, 33) + 5", 4),
    ("torch.logsumexp(x, dim=1)", "torch.randn(4, 9, 33)", 4),
    ("torch.sum(F.relu(x) * x[0, :, :1] * x[0, 0], dim=1) * 2", "torch.randn(4, 9, 33)", 4),
    ("torch.sum(x, dim=1)", "torch.randn(2, 14, 36)", 1),  # every line starts at 16 bytes
    # the last vector would end beyond the tensor
    ("torch.sum(x, dim=1)", "torch.randn(3, 5, 33)", 1),
    ("torch.sum(x[:, :, ::2], dim=1)", "torch.randn(2, 14, 66)", 1),
    ("torch.sum(x, dim=(0, 2))", "torch.randn(4, 9, 33)", 1),
]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("expression", "inputs", "classes"), CLASSED)
def test_lines_that_start_beside_16_bytes_are_reduced_by_class_as_in_float64(
    expression: str, inputs: str, classes: int
) -> None:
    source = problem(expression, inputs)
    chosen, site = match_one("split-reduction", source)
    assert line_classes(site.detail) == classes
    parts = ((2, 8), (4, 4), (4, 3))[: 3 if classes > 1 else 1]  # one class: as "split"
    settings = [setting("classes", 16, columns, split) for columns, split in parts]
    assert len(check_recipe(chosen, source, H200, settings=settings, tolerance=1e-6)) == len(
        settings
    )
    assert ("CLASSES" in chosen.emit(site, settings[0]).launcher) is (classes > 1)


@pytest.mark.slow
@pytest.mark.parametrize("expression", ["torch.sum(x, dim=1)", "torch.argmin(x, dim=1)"])
def test_bfloat16_lines_are_reduced_in_eight_classes(expression: str) -> None:
    source, contract = problem(expression, "torch.randn(8, 9, 33)"), Contract(Precision.BF16)
    settings = [setting("classes", 16, 2, split) for split in (8, 16)]
    chosen = recipe("split-reduction")
    (site,) = chosen.match(trace_source(source, Precision.BF16)[1], contract)
    assert line_classes(site.detail) == 8
    assert len(
        check_recipe(chosen, source, H200, settings=settings, contract=contract, tolerance=4e-3)
    ) == len(settings)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("split", [4, 8])
@pytest.mark.parametrize("name", ["argmax", "argmin", "amax", "amin"])
def test_classes_keep_the_first_of_equals_and_each_nan_in_its_row(name: str, split: int) -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 3, (4, 19, 33)).float()
    # beside other lines, in one vector with them
    x[0, 7, 0] = x[0, 6, 0] = x[0, 13, 32] = x[3, 18, 32] = float("nan")
    x[1, :, 5] = float("inf")
    x[1, :, 6] = -float("inf")
    x[1, :9, 7] = float("inf")
    x[1, 3:, 8] = -float("inf")
    knobs = setting("classes", 16, 2, split)
    found = run(
        "split-reduction", problem(f"torch.{name}(x, dim=1)", "torch.randn(4, 19, 33)"), knobs, x
    )
    torch.testing.assert_close(
        found, getattr(torch, name)(x, dim=1), equal_nan=True, rtol=0, atol=0
    )


def test_classes_are_offered_where_lines_start_beside_16_bytes_and_leave_results_to_no_race() -> (
    None
):
    for shape, is_offered in (
        ("128, 4096, 4095", True),
        ("128, 4096, 4094", True),
        ("128, 4096, 4096", False),
        ("64, 65535", False),
    ):
        chosen, site = match_one("split-reduction", problem("x.sum(1)", f"torch.empty({shape})"))
        offered = [
            knobs for knobs in chosen.space(site, H200).settings() if knobs["STRATEGY"] == "classes"
        ]
        assert bool(offered) is is_offered
        for knobs in offered:
            assert (
                fit_settings(site.detail, knobs)["SPLIT"] == knobs["SPLIT"]
                and knobs["SPLIT"] % line_classes(site.detail) == 0
            )
            assert all("atomic" not in text for _, text in chosen.emit(site, knobs).kernels)


@pytest.mark.parametrize("kind", reductions.REDUCTIONS)
def test_costs_count_as_many_reductions_across_lanes_as_are_written(kind: str) -> None:
    reduction = reductions.REDUCTIONS[kind]
    written = "".join(reduction.finish(reduction.states))
    assert written.count("keep_dims=True") == reduction.across_lanes


def test_a_row_that_has_no_lines_at_another_size_is_cut_as_any_other() -> None:
    setup = "self.norm = nn.GroupNorm(2, 6)"
    _, full = match_one("row-norm", problem("self.norm(x)", "torch.randn(2, 6, 1, 12)", setup))
    single = setup.replace("2, 6", "6, 6")
    _, small = match_one("row-norm", problem("self.norm(x)", "torch.randn(2, 6, 1, 12)", single))
    assert fit_settings(full.detail, setting("split"))["LINED"]
    assert len(small.detail.reduced) == 1
    for strategy in ("split", "shared", "pipelined"):
        assert not fit_settings(small.detail, setting(strategy), is_lined=True)["LINED"]
