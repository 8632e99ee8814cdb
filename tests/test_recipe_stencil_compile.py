"""What the show-pieces of the stencil recipes compile to for an H200."""

import re

import pytest
from compile_sm90 import compile_jobs
from module_problems import recipe

from kmem.devices import named_target
from kmem.recipes import check_settings
from kmem.records import Contract
from kmem.testing import trace_source

pytestmark = pytest.mark.slow  # compiles for a GPU

#: name: (skill, call, shape, dtype, settings)
CASES = {
    "pooling": (
        "separable-pooling",
        "MaxPool3d(3, 2, 1, 3)",
        (16, 32, 128, 128, 128),
        "bfloat16",
        {
            "shift": "gather",
            "lanes": 4,
            "rows": 1,
            "depths": 1,
            "groups": 16,
            "strips": 2,
            "warps": 1,
        },
    ),
    "depthwise": (
        "depthwise-rolling-rows",
        "Conv2d(64, 64, 3, groups=64, bias=False, dtype=torch.bfloat16)",
        (16, 64, 512, 512),
        "bfloat16",
        {
            "shift": "load",
            "lanes": 8,
            "rows": 4,
            "depths": 1,
            "groups": 64,
            "strips": 1,
            "warps": 2,
        },
    ),
    "transposed": (
        "transposed-conv-phases",
        "ConvTranspose3d(32, 64, 3, 2, 1, dilation=2, bias=False, dtype=torch.bfloat16)",
        (16, 32, 16, 32, 32),
        "bfloat16",
        {
            "ACCURACY": 0,
            "precision": "exact",
            "band": 4,
            "rows": 2,
            "columns": 32,
            "block_co": 64,
            "block_k": 32,
            "copy_bytes": 16,
            "warps": 4,
            "stages": 2,
        },
    ),
}


@pytest.fixture(scope="module")
def compiled() -> dict[str, dict[str, int]]:
    """Resources and instruction counts of the last kernel of each case."""
    jobs = []
    for skill, call, shape, dtype, settings in CASES.values():
        source = problem(call, shape, dtype)
        _, graph = trace_source(source)
        (site,) = recipe(skill).match(graph, Contract())
        check_settings(recipe(skill).space(site, named_target("h200")), settings)
        jobs.append((skill, source, "match", settings))
    answers = compile_jobs(jobs, "ptx")
    return {case: count(kernels[-1]) for case, kernels in zip(CASES, answers, strict=True)}


def problem(call: str, shape: tuple[int, ...], dtype: str) -> str:
    return f"""
import torch, torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.op = nn.{call}

    def forward(self, x):
        return self.op(x)

def get_inputs():
    return [torch.empty({shape}, dtype=torch.{dtype})]
"""


def count(kernel: dict) -> dict[str, int]:
    ptx = kernel["ptx"]
    return {
        "registers": kernel["registers"],
        "local_bytes": kernel["local"] + kernel["stack"],
        "wide_loads": len(re.findall(r"ld\.global\S*v4", ptx)),
        "loads": len(re.findall(r"ld\.global", ptx)),
        "copies": len(re.findall(r"cp\.async\.c[ag]\.shared", ptx)),
        "shuffles": len(re.findall(r"shfl\.sync", ptx)),
        "barriers": len(re.findall(r"bar\.sync", ptx)),
        "wgmma": len(re.findall(r"wgmma\.mma_async", ptx)),
    }


def test_max_pooling_is_one_wide_load_per_row_and_shuffles(
    compiled: dict[str, dict[str, int]],
) -> None:
    found = compiled["pooling"]
    assert (found["loads"], found["wide_loads"], found["local_bytes"], found["barriers"]) == (
        9,
        9,
        0,
        0,
    )
    assert found["registers"] <= 80
    assert found["shuffles"] > 0


def test_depthwise_loads_every_row_in_wide_groups_without_spills(
    compiled: dict[str, dict[str, int]],
) -> None:
    found = compiled["depthwise"]
    # six input rows for four output rows, two groups of columns each
    assert found["wide_loads"] == 12
    assert found["loads"] == 12 + 9  # and nine weights
    assert found["local_bytes"] == 0
    assert found["registers"] <= 128


def test_transposed_convolution_feeds_wgmma_by_asynchronous_copies_without_spills(
    compiled: dict[str, dict[str, int]],
) -> None:
    found = compiled["transposed"]
    assert found["wgmma"] >= 4
    assert found["copies"] > 0
    assert found["loads"] == 0  # no operand passes through registers
    assert found["local_bytes"] == 0
