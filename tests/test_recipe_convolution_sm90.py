"""Convolutions compiled for sm_90: tensor cores, copies in flight, and no spills."""

import pytest
from compile_sm90 import compile_jobs
from test_recipe_convolution import problem

#: name: (skill, call, shape, settings): KernelBench level 1, problems 67, 55 and 60.
COMPILED = {
    "direct": (
        "implicit-gemm-conv",
        "Conv1d(64, 128, 3)",
        (32, 64, 131072),
        {"block_p": 128, "block_co": 128, "block_k": 16},
    ),
    "one term": (
        "staged-half-conv",
        "Conv2d(64, 128, 3)",
        (8, 64, 512, 1024),
        {
            "terms": 1,
            "block_p": 256,
            "block_co": 128,
            "block_k": 64,
            "copy_bytes": 16,
            "warps": 8,
            "stages": 3,
        },
    ),
    "sums along positions": (
        "staged-half-conv",
        "Conv2d(64, 128, 3)",
        (8, 64, 256, 256),
        {
            "terms": 1,
            "block_p": 128,
            "block_co": 128,
            "block_k": 64,
            "copy_bytes": 8,
            "warps": 8,
            "stages": 3,
            "sums_along": "positions",
        },
    ),
    "three terms": (
        "split-half-conv",
        "Conv3d(3, 64, (3, 5, 7))",
        (16, 3, 64, 64, 64),
        {
            "terms": 3,
            "block_p": 256,
            "block_co": 64,
            "block_k": 32,
            "copy_bytes": 8,
            "warps": 8,
            "stages": 3,
        },
    ),
}


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[dict]]:
    """Every case, compiled for sm_90 in one process without the interpreter."""
    jobs = [
        (skill, problem(call, shape).replace("randn", "empty"), "match", setting)
        for skill, call, shape, setting in COMPILED.values()
    ]
    return dict(zip(COMPILED, compile_jobs(jobs), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", COMPILED)
def test_kernels_use_tensor_cores_and_do_not_spill(
    compiled: dict[str, list[dict]], case: str
) -> None:
    assert [kernel["name"] for kernel in compiled[case] if kernel["stack"]] == []
    main = compiled[case][-1]
    assert "conv" in main["name"] and main["hgmma"] > 0 and main["shared"] <= 232448
    assert main["registers"] <= 128 or case != "sums along positions"  # two programs share an SM
    # the direct kernel loads ahead in registers, see direct.py
    assert (main["async_copies"] > 0) == (case != "direct")
