"""What the show-pieces of the stencil recipes compile to for an H200; one process compiles all, for
importing torch costs the most.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
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
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [
        sys.executable,
        str(ROOT / "tests" / "stencil_compilation.py"),
        json.dumps(list(CASES.values())),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(CASES, map(json.loads, done.stdout.splitlines()), strict=True))


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
