"""The convolution recipes' cost models against KernelBench level 1 measured on an H200, and how the
direct kernel's loads lie on sm_90.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from compile_sm90 import compile_jobs

from kmem.devices import named_target
from kmem.recipes import Settings, Site
from kmem.records import Contract
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
