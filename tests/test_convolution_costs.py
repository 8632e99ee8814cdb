"""The convolution recipes' cost models against KernelBench level 1 measured on an H200, and how the
direct kernel's loads lie on sm_90.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from compile_sm90 import compile_jobs

from kmem.devices import named_target
from kmem.recipes import Settings, Site
from kmem.records import Contract, Precision
from kmem.skills import load_recipe, load_skill
from kmem.testing import trace_source

ROOT = Path(__file__).resolve().parent.parent
NAMED = named_target("h200")
#: As calibrated on the machine of the measurements.
H200 = replace(
    NAMED,
    dram_bytes_per_s=4.27e12,
    peak_flops_per_s={
        **NAMED.peak_flops_per_s,
        "fp32": 51e12,
        "tf32": 423e12,
        "bf16": 808e12,
        "fp16": 781e12,
    },
    measured=True,
)
NAMES = (
    "implicit-gemm-conv",
    "staged-half-conv",
    "split-half-conv",
    "transposed-conv-phases",
    "channels-last-conv",
    "vendor-half-conv",
)
RECIPES = {name: load_recipe(load_skill(ROOT / "skills" / name)) for name in NAMES}

#: KernelBench level 1 problem: (module, input shape).
PROBLEMS = {
    "50": ("Conv2d(3, 96, 11, 4, 2)", (256, 3, 224, 224)),
    "54": ("Conv3d(3, 64, 3, bias=False)", (16, 3, 64, 64, 64)),
    "57": ("ConvTranspose2d(64, 64, 3, bias=False)", (8, 64, 1024, 1024)),
    "58": ("ConvTranspose3d(32, 16, (3, 5, 7), bias=False)", (16, 32, 16, 32, 64)),
    "64": ("ConvTranspose1d(128, 128, 3, bias=False)", (64, 128, 65536)),
    "86": ("Conv2d(64, 128, 1, bias=False)", (16, 64, 512, 512)),
    # those of tests of the vendor's kernels
    "2D": ("Conv2d(64, 128, 3)", (128, 64, 128, 128)),
    "2D even": ("Conv2d(256, 256, 3, padding=1)", (64, 256, 28, 28)),
    "2D 1x1": ("Conv2d(64, 128, 1)", (16, 64, 512, 512)),
    "2D few": ("Conv2d(3, 96, 11, 4, 2)", (256, 3, 224, 224)),
    "3D": ("Conv3d(32, 64, 3, padding=1)", (16, 32, 32, 64, 64)),
    "2D transposed": ("ConvTranspose2d(64, 64, 3, 2, 1, 1)", (128, 64, 128, 128)),
    "3D transposed": ("ConvTranspose3d(32, 64, 3, 2, 1, 1)", (32, 32, 16, 32, 32)),
    "2D transposed, 5 taps": ("ConvTranspose2d(64, 64, 5, 2, 2, 1)", (32, 64, 64, 64)),
    "2D turned": ("ConvTranspose2d(64, 64, 3)", (128, 64, 256, 256)),
    "3D turned": ("ConvTranspose3d(64, 128, 3, bias=False)", (16, 64, 32, 32, 32)),
    "1D": ("Conv1d(64, 128, 3)", (16, 64, 131072)),
}


def staged(
    terms: int,
    block_p: int,
    block_co: int,
    block_k: int,
    stages: int,
    warps: int,
    copy_bytes: int = 8,
) -> Settings:
    return {
        "terms": terms,
        "block_p": block_p,
        "block_co": block_co,
        "block_k": block_k,
        "stages": stages,
        "warps": warps,
        "copy_bytes": copy_bytes,
    }


def phases(
    rows: int, columns: int, block_co: int, block_k: int, stages: int, warps: int
) -> Settings:
    return {
        "band": 1,
        "rows": rows,
        "columns": columns,
        "block_co": block_co,
        "block_k": block_k,
        "stages": stages,
        "warps": warps,
        "precision": "tf32",
        "copy_bytes": 8,
    }


def layout(name: str) -> Settings:
    return {"layout": name, "algorithm": "measured"}


def vendor(
    finish: int = 4096,
    warps: int = 4,
    channels: int = 64,
    rung: int = 0,
    transposed: str = "strided",
) -> Settings:
    return {
        "algorithm": "measured",
        "vector": 8,
        "stage": 4096,
        "channels": channels,
        "finish": finish,
        "warps": warps,
        "order": "forward",
        "hint": "keep",
        "transposed": transposed,
        "ACCURACY": rung,
    }


#: (problem, recipe, settings, median ms) on one NVIDIA H200 with torch 2.11 and Triton 3.6,
#: 2026-11-21. 86 is its product over channels alone: less 2.53 ms for the depthwise convolution
#: before it, eager's time of problem 82. Not here, as the kernels have changed since:
#: implicit-gemm-conv, which loaded along channels (5.0 to 48 ms; 86 in 1.37), and problem 77, which
#: filled no empty rows (0.529; 0.336 in bf16).
MEASURED = [
    ("50", "staged-half-conv", staged(1, 256, 128, 32, 3, 8), 0.553),
    ("50", "staged-half-conv", staged(1, 256, 128, 64, 3, 8), 0.558),
    ("50", "split-half-conv", staged(3, 128, 128, 64, 3, 8), 1.106),
    ("50", "split-half-conv", staged(3, 128, 128, 64, 2, 8), 1.163),
    ("50", "split-half-conv", staged(3, 128, 128, 32, 3, 8), 1.177),
    ("50", "channels-last-conv", layout("contiguous"), 2.101),
    ("50", "channels-last-conv", layout("channels_last"), 2.148),
    ("54", "split-half-conv", staged(3, 256, 64, 32, 3, 8), 1.206),
    ("54", "split-half-conv", staged(3, 256, 64, 32, 2, 8), 1.239),
    ("54", "channels-last-conv", layout("contiguous"), 1.371),
    ("57", "split-half-conv", staged(3, 256, 64, 32, 4, 8), 8.663),
    ("58", "staged-half-conv", staged(1, 256, 16, 32, 3, 4), 0.828),
    ("58", "staged-half-conv", staged(1, 256, 16, 32, 4, 4), 0.831),
    ("58", "transposed-conv-phases", phases(16, 8, 16, 32, 2, 4), 1.634),
    ("58", "transposed-conv-phases", phases(32, 8, 16, 32, 2, 8), 1.645),
    ("58", "split-half-conv", staged(3, 256, 16, 32, 3, 4), 1.781),
    ("58", "transposed-conv-phases", phases(32, 8, 16, 16, 2, 4), 2.107),
    ("64", "staged-half-conv", staged(1, 256, 128, 64, 3, 8), 3.795),
    ("64", "staged-half-conv", staged(1, 256, 128, 32, 4, 8), 4.030),
    ("64", "staged-half-conv", staged(1, 256, 64, 32, 3, 4), 4.413),
    ("64", "transposed-conv-phases", phases(1, 64, 128, 32, 2, 4), 4.502),
    ("64", "split-half-conv", staged(3, 128, 128, 64, 3, 8), 7.045),
    ("64", "split-half-conv", staged(3, 128, 128, 32, 4, 8), 7.722),
    ("64", "split-half-conv", staged(3, 256, 64, 32, 4, 8), 8.886),
    ("86", "staged-half-conv", staged(1, 256, 128, 64, 2, 8, 16), 1.49),
    ("86", "split-half-conv", staged(3, 128, 128, 64, 2, 8, 16), 1.89),
    ("86", "channels-last-conv", layout("channels_last"), 7.06),
    # as above with torch 2.11 on 2026-11-23, a relu behind
    ("2D", "vendor-half-conv", vendor(), 1.135),
    ("2D", "vendor-half-conv", vendor(8192, 8), 1.07),
    ("2D", "vendor-half-conv", vendor(8192, 8, 128), 1.113),
    ("2D", "vendor-half-conv", vendor(channels=128), 1.258),
    ("2D", "vendor-half-conv", vendor(rung=1), 1.688),
    ("2D", "vendor-half-conv", vendor(rung=2), 8.805),
    ("2D", "staged-half-conv", staged(1, 128, 128, 64, 3, 8, 16), 0.999),
    ("2D", "staged-half-conv", staged(1, 128, 128, 64, 3, 8), 1.341),
    ("2D", "split-half-conv", staged(3, 64, 128, 64, 2, 4), 3.138),
    ("2D even", "vendor-half-conv", vendor(), 0.1345),
    ("2D 1x1", "vendor-half-conv", vendor(), 1.721),
    ("2D few", "vendor-half-conv", vendor(), 1.238),
    ("3D", "vendor-half-conv", vendor(), 0.811),
    ("2D transposed", "vendor-half-conv", vendor(), 1.633),
    ("2D transposed", "vendor-half-conv", vendor(rung=1), 2.513),
    ("3D transposed", "vendor-half-conv", vendor(), 0.746),
    ("2D transposed", "vendor-half-conv", vendor(transposed="phases"), 1.600),
    ("3D transposed", "vendor-half-conv", vendor(transposed="phases"), 0.878),
    ("2D transposed, 5 taps", "vendor-half-conv", vendor(), 0.150),
    ("2D transposed, 5 taps", "vendor-half-conv", vendor(transposed="phases"), 0.280),
    # the library's kernel alone was timed; around it stand staging and finishing at their bounds
    ("2D turned", "vendor-half-conv", vendor(), 2.93),
    ("3D turned", "vendor-half-conv", vendor(), 0.545),
    ("1D", "vendor-half-conv", vendor(), 1.026),
]


def source_of(call: str, shape: tuple[int, ...]) -> str:
    return (
        "import torch, torch.nn as nn\nclass Model(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n"
        f"        self.op = nn.{call}\n    def forward(self, x):\n        return self.op(x)\n"
        f"def get_inputs():\n    return [torch.empty({shape})]\n"
    )


@pytest.fixture(scope="module")
def sites() -> dict[tuple[str, str], Site]:
    """(problem, recipe) -> its site; tracing at full size allocates nothing that is written."""
    found = {}
    for problem, given in PROBLEMS.items():
        _, graph = trace_source(source_of(*given))
        found.update(
            {
                (problem, name): site
                for name, recipe in RECIPES.items()
                for site in recipe.match(graph, Contract())
            }
        )
    return found


def predicted(
    sites: dict[tuple[str, str], Site], problem: str, name: str, settings: Settings
) -> float:
    return RECIPES[name].cost_ms(sites[problem, name], settings, H200)


@pytest.mark.parametrize(("problem", "name", "settings", "measured_ms"), MEASURED)
def test_a_prediction_is_within_a_factor_of_what_was_measured(
    sites, problem: str, name: str, settings: Settings, measured_ms: float
) -> None:
    assert 0.69 < predicted(sites, problem, name, settings) / measured_ms < 1.3


def test_the_quickest_of_what_was_measured_around_the_librarys_kernel_is_predicted_so(
    sites,
) -> None:
    here = [row for row in MEASURED if row[:2] == ("2D", "vendor-half-conv")]
    forecasts = [predicted(sites, problem, name, settings) for problem, name, settings, _ in here]
    assert forecasts.index(min(forecasts)) == 1
    aligned = RECIPES["vendor-half-conv"].space(sites["3D", "vendor-half-conv"], H200).settings()
    best = min(aligned, key=lambda each: predicted(sites, "3D", "vendor-half-conv", each))
    assert (best["finish"], best["warps"], best["channels"]) == (4096, 4, 64)


@pytest.mark.parametrize("problem", ["2D transposed", "3D transposed", "2D transposed, 5 taps"])
def test_several_calls_that_gain_nothing_are_not_put_before_one(sites, problem: str) -> None:
    """They gained 2% of level 2's problem 2, and cost 18 and 87% of the others."""
    ways = [
        predicted(sites, problem, "vendor-half-conv", vendor(transposed=way))
        for way in ("strided", "phases")
    ]
    assert ways[0] < ways[1]


def test_one_call_of_quarter_the_taps_is_put_before_a_strided_one() -> None:
    _, graph = trace_source(source_of("ConvTranspose3d(32, 64, 4, 2, 1)", (32, 32, 16, 32, 32)))
    recipe = RECIPES["vendor-half-conv"]
    (site,) = recipe.match(graph, Contract())
    settings = recipe.space(site, H200).settings()
    assert (
        min(settings, key=lambda each: recipe.cost_ms(site, each, H200))["transposed"] == "phases"
    )


#: (layers behind a convolution, their norm, input) of level 2's problems, and ms on an H200.
BEHIND = {
    "16": ("F.hardtanh(F.mish(y) + 0.5, -1, 1) * 2", "Identity()", 1.64),
    "19": ("self.norm(F.gelu(y))", "GroupNorm(8, 64)", 4.055),
    "10": ("torch.mean(F.hardtanh(F.max_pool2d(y, 2, 2)), dim=(2, 3))", "Identity()", 2.549),
    "61": ("self.norm(F.relu(y))", "GroupNorm(8, 128)", 0.617),
    "3": ("F.gelu(F.avg_pool3d(self.norm(y + 1.0), 2))", "LayerNorm(64)", 1.17),
}
BEFORE = {"16": "2D transposed", "19": "2D turned", "10": "2D turned", "61": "3D turned"}


def source_behind(call: str, shape: tuple[int, ...], result: str, norm: str = "Identity()") -> str:
    return (
        "import torch, torch.nn as nn, torch.nn.functional as F\nclass Model(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        f"        self.op = nn.{call}\n        self.norm = nn.{norm}\n"
        f"    def forward(self, x):\n        y = self.op(x)\n        return {result}\n"
        f"def get_inputs():\n    return [torch.empty({shape})]\n"
    )


def test_a_long_chain_is_left_to_the_kernel_whose_memory_hides_it() -> None:
    """Level 2's 4: 2.3 ms where the library's result is finished, 3.1 behind products of our own,
    which take 2.0 with a relu.
    """
    source = source_behind("Conv2d(64, 128, 3)", (64, 64, 256, 256), "F.mish(F.mish(y))")
    _, graph = trace_source(source)
    best = {}
    for name in ("vendor-half-conv", "staged-half-conv"):
        (site,) = RECIPES[name].match(graph, Contract())
        settings = RECIPES[name].space(site, H200).settings()
        best[name] = min(RECIPES[name].cost_ms(site, each, H200) for each in settings)
    assert 0.9 < best["vendor-half-conv"] / 2.299 < 1.1
    assert 0.85 < best["staged-half-conv"] / 3.103 < 1.15


@pytest.mark.parametrize("name", BEHIND)
def test_what_follows_is_predicted_by_its_instructions(name: str) -> None:
    """No more than was measured before gelu, poolings and norms over rows took fewer of them."""
    result, norm, measured_ms = BEHIND[name]
    call, shape = PROBLEMS[BEFORE.get(name, "3D transposed")]
    _, graph = trace_source(source_behind(call, shape, result, norm))
    recipe = RECIPES["vendor-half-conv"]
    (site,) = recipe.match(graph, Contract())
    best = min(recipe.cost_ms(site, each, H200) for each in recipe.space(site, H200).settings())
    assert 0.5 < best / measured_ms < 1.1


@pytest.mark.parametrize(
    "given", [PROBLEMS["54"], ("Conv3d(3, 16, 4)", (1024, 3, 16, 32, 32))], ids=["54", "27"]
)
def test_recipes_that_round_go_behind_exact_ones_where_eager_is_expected_to_be_exact(
    given: tuple[str, tuple[int, ...]],
) -> None:
    """Level 1's 54 and its like: kernels that round were refused."""
    _, graph = trace_source(source_of(*given))

    def best(name: str, contract: Contract) -> float:
        recipe = RECIPES[name]
        (site,) = recipe.match(graph, contract)
        return min(recipe.cost_ms(site, each, H200) for each in recipe.space(site, H200).settings())

    for name in ("staged-half-conv", "vendor-half-conv"):
        assert best(name, Contract()) > best("split-half-conv", Contract())
        assert best(name, Contract(Precision.TF32)) < best(name, Contract()) / 2
    recipe = RECIPES["staged-half-conv"]
    (site,) = recipe.match(graph, Contract(Precision.TF32))
    space = recipe.space(site, H200)
    rungs = [{**space.settings()[0], "ACCURACY": rung} for rung in space.knobs["ACCURACY"]]
    costs = [recipe.cost_ms(site, each, H200) for each in rungs]
    assert len(costs) > 1 and costs == sorted(costs)
    # exact as eager is, and measured so: 10.3 ms where three products take 3.8
    assert best("channels-last-conv", Contract()) > best("split-half-conv", Contract())


@pytest.mark.parametrize("problem", PROBLEMS)
def test_recipes_are_predicted_in_the_order_of_their_best_measured_times(
    sites, problem: str
) -> None:
    best: dict[str, tuple[float, float]] = {}
    for case, name, settings, measured_ms in MEASURED:
        if case == problem and (name not in best or measured_ms < best[name][0]):
            best[name] = (measured_ms, predicted(sites, problem, name, settings))
    in_order = [forecast for _, forecast in sorted(best.values())]
    assert in_order == sorted(in_order)


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        ("50", ["staged-half-conv", "split-half-conv", "channels-last-conv"]),
        ("54", ["split-half-conv", "channels-last-conv"]),
        ("58", ["staged-half-conv", "transposed-conv-phases", "split-half-conv"]),
        ("64", ["staged-half-conv", "transposed-conv-phases", "split-half-conv"]),
        ("86", ["staged-half-conv", "split-half-conv"]),
    ],
)
def test_the_measured_order_is_that_of_the_settings_each_model_would_take(
    sites, problem: str, names: list[str]
) -> None:
    firsts = []
    for name in names:
        site = sites[problem, name]
        firsts.append(
            min(
                RECIPES[name].cost_ms(site, settings, H200)
                for settings in RECIPES[name].space(site, H200).settings()
            )
        )
    assert firsts == sorted(firsts)


def test_settings_recorded_before_a_knob_was_offered_are_settings_still(sites) -> None:
    lines = (ROOT / "db" / "evidence" / "h200-2026-11-22-level1.jsonl").read_text().splitlines()
    outcomes = [json.loads(line).get("outcome") or {} for line in lines if "half-conv" in line]
    choices = [
        choice
        for outcome in outcomes
        if outcome.get("problem", "").startswith("50_")
        for choice in outcome["choices"]
        if choice["recipe"] in ("staged-half-conv", "split-half-conv")
    ]
    assert any("sums_along" not in dict(choice["knobs"]) for choice in choices)
    for choice in choices:
        space = RECIPES[choice["recipe"]].space(sites["50", choice["recipe"]], H200)
        completed = space.completed(dict(choice["knobs"]))
        assert space.allows(completed) and completed["sums_along"] == "channels"


def test_the_direct_kernel_is_not_put_before_what_was_measured_faster_by_far(sites) -> None:
    site = sites["58", "implicit-gemm-conv"]
    direct = min(
        RECIPES["implicit-gemm-conv"].cost_ms(site, settings, H200)
        for settings in RECIPES["implicit-gemm-conv"].space(site, H200).settings()
    )
    assert direct > 2 * predicted(sites, "58", "staged-half-conv", staged(1, 256, 16, 32, 3, 4))


@pytest.mark.slow
def test_lanes_of_the_direct_kernel_lie_along_positions() -> None:
    """With lanes along channels each load of a warp touches a line for every one of them.

    Triton 3.6 decides by the stated run length.
    """
    job = [
        "implicit-gemm-conv",
        source_of(*PROBLEMS["57"]),
        "match",
        {"block_p": 128, "block_co": 64, "block_k": 16},
    ]
    ((_, direct),) = compile_jobs([job], "ttgir")
    assert direct["name"] == "kmem_direct_conv"
    loads = [
        line
        for line in direct["ttgir"].splitlines()
        if "tt.load" in line and "tensor<16x128x!tt.ptr<f32>" in line
    ]
    layouts = {line.split("!tt.ptr<f32>, ")[1].split(">")[0] for line in loads}
    (layout_name,) = layouts
    (definition,) = [
        line for line in direct["ttgir"].splitlines() if line.startswith(f"{layout_name} = ")
    ]
    assert len(loads) == 2 and "sizePerThread = [1, 1], threadsPerWarp = [1, 32]" in definition


EXACT = {
    "27": ("Conv3d(3, 16, 4)", (1024, 3, 16, 32, 32)),
    "67": ("Conv2d(8, 64, 3)", (128, 8, 256, 256)),
}
ROUNDING = ("staged-half-conv", "implicit-gemm-conv", "channels-last-conv", "vendor-half-conv")


@pytest.mark.parametrize("problem", EXACT)
@pytest.mark.parametrize("name", ROUNDING)
def test_ladders_begin_where_eager_is_met(problem: str, name: str) -> None:
    """Level 2's 27 and 67 spent their first candidates on rounded operands, at 140 and 200 times
    what eager's error allows.
    """
    _, graph = trace_source(source_of(*EXACT[problem]))
    recipe = RECIPES[name]
    for contract, rounds in ((Contract(), False), (Contract(Precision.TF32), True)):
        for site in recipe.match(graph, contract):
            (setting, *_) = recipe.space(site, H200).settings()
            assert recipe.emit(site, setting).own_size_only is rounds


@pytest.mark.parametrize("problem", ["2D transposed", "3D transposed", "58", "64"])
def test_wide_copies_are_tried_first(sites, problem: str) -> None:
    """Level 2's 36 took 0.251 ms with copies of 16 bytes, 0.313 with 8, which all its seeds had."""
    recipe, site = RECIPES["transposed-conv-phases"], sites[problem, "transposed-conv-phases"]
    space = recipe.space(site, H200)
    best = min(space.settings(), key=lambda each: recipe.cost_ms(site, each, H200))
    assert best["copy_bytes"] == space.knobs["copy_bytes"][0] == 16
