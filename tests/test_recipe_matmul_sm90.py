"""What the compiler makes of the matrix-product kernels at full size for sm_90: tensor-core
instructions, pipelined copies, no spills.
"""

import re

import pytest
from compile_sm90 import compile_jobs

pytestmark = pytest.mark.slow  # compiles for a GPU

_PROBLEM = """
import torch
class Model(torch.nn.Module):
    def forward(self, A, B):
        return {result}
def get_inputs():
    return [torch.rand({a}), torch.rand({b})]
"""
SQUARE = ("A @ B", "4096, 4096", "4096, 4096")
_GATHERED = "torch.embedding(A, (A[0] * 9).long())"
SPLIT = {
    "block_m": 128,
    "block_n": 128,
    "block_k": 64,
    "warps": 8,
    "stages": 3,
    "group": 8,
    "splits": 1,
}
WIDE = {**SPLIT, "block_n": 256}
#: name: (skill, problem, precision, settings)
CASES = {
    "split": ("split-fp16-matmul", ("torch.relu(A @ B) * 2 + A", *SQUARE[1:]), "match", SPLIT),
    "split odd triangle": (
        "split-fp16-matmul",
        ("torch.triu(A @ B)", "4095, 2949", "2949, 4095"),
        "match",
        SPLIT,
    ),
    "split places": (
        "split-fp16-matmul",
        ("(A @ B + B[0]).argmin(1)", *SQUARE[1:]),
        "match",
        SPLIT,
    ),
    "split in the loop": (
        "split-fp16-matmul",
        ("A @ B", "256, 524288", "524288, 256"),
        "match",
        {**SPLIT, "split": "in_loop", "splits": 33},
    ),
    "split, compensated": (
        "split-fp16-matmul",
        SQUARE,
        "match",
        {**SPLIT, "block_n": 64, "ACCURACY": 1},
    ),
    "bf16": ("tile-matmul", ("torch.relu(A @ B)", *SQUARE[1:]), "bf16", WIDE),
    "split gate": (
        "split-fp16-matmul",
        ("torch.sigmoid(A @ B) * (A @ B.T)", *SQUARE[1:]),
        "match",
        SPLIT,
    ),
    "gate": (
        "dual-gemm-gated-mlp",
        ("torch.sigmoid(A @ B) * (A @ B.T)", *SQUARE[1:]),
        "bf16",
        WIDE,
    ),
    "gate in place": (
        "dual-gemm-gated-mlp",
        ("(lambda C: torch.sigmoid(A @ B.T) * (A @ C.T))(B + 1)", *SQUARE[1:]),
        "bf16",
        WIDE,
    ),
    "shared": ("horizontal-fusion", ("(A @ B, A @ B.T + 1)", *SQUARE[1:]), "bf16", SPLIT),
    "gathered": (
        "gemm-prologue-fusion",
        (f"{_GATHERED} @ B", *SQUARE[1:]),
        "bf16",
        WIDE,
    ),
    "gathered gate": (
        "gemm-prologue-fusion",
        (f"(lambda z: torch.sigmoid(z @ B) * (z @ B.T))({_GATHERED})", *SQUARE[1:]),
        "bf16",
        WIDE,
    ),
    "gathered shares": (
        "gemm-prologue-fusion",
        (f"(lambda z: (z @ B, z @ B.T + 1))({_GATHERED})", *SQUARE[1:]),
        "bf16",
        SPLIT,
    ),
}
#: Exact products in chains, by what is known of their registers.
EXACT = {
    "exact": ("tile-matmul", SQUARE, "match", {**SPLIT, "block_k": 32}),
    "exact, compensated": (
        "tile-matmul",
        SQUARE,
        "match",
        {**SPLIT, "block_n": 64, "block_k": 32, "ACCURACY": 1},
    ),
}
MATVEC = (
    "matvec-rows-per-program",
    ("A @ B", "2048, 1048576", "1048576, 1"),
    "bf16",
    {"block_l": 8, "block_k": 2048, "splits": 8, "warps": 8},
)


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[dict]]:
    """Every case, compiled in one process without the interpreter."""
    cases = {**CASES, **EXACT, "matvec": MATVEC}
    jobs = [
        (skill, _PROBLEM.format(result=problem[0], a=problem[1], b=problem[2]), precision, settings)
        for skill, problem, precision, settings in cases.values()
    ]
    return dict(zip(cases, compile_jobs(jobs, "ptx", "ttgir"), strict=True))


def _main(kernels: list[dict]) -> dict:
    return next(
        kernel for kernel in kernels if "matmul" in kernel["name"] or "in_loop" in kernel["name"]
    )


@pytest.mark.parametrize(
    "case", ["split", "split odd triangle", "split places", "split in the loop"]
)
def test_mending_does_not_spill(compiled, case):
    (mend,) = [kernel for kernel in compiled[case] if "mend" in kernel["name"]]
    assert mend["stack"] == 0


@pytest.mark.parametrize("case", EXACT)
def test_exact_chains_stay_apart_from_their_total_without_spills(compiled, case):
    """`acc += tl.dot(a, b)` the compiler folds into one chain: then there is no addition left."""
    kernel = _main(compiled[case])
    assert kernel["stack"] == 0 and kernel["registers"] <= 255
    loop = kernel["ttgir"].split("scf.for", 1)[1].rsplit("scf.yield", 1)[0]
    assert any("arith.addf" in line and "tensor<128x" in line for line in loop.splitlines())


@pytest.mark.parametrize("case", CASES)
def test_main_loops_use_tensor_cores_and_pipelined_copies_without_spills(compiled, case):
    kernel = _main(compiled[case])
    assert kernel["hgmma"] > 0 and kernel["async_copies"] > 0
    assert kernel["stack"] == 0 and kernel["registers"] <= 255 and kernel["shared"] <= 232448


def test_splitting_in_the_loop_reduces_nothing_across_threads(compiled):
    """Scales found by every tile for itself cost a third of the loop's instructions and 11 of its
    13 barriers.
    """
    kernel = _main(compiled["split in the loop"])
    assert kernel["name"] == "kmem_split_in_loop"
    assert "shfl.sync" not in kernel["ptx"] and "redux.sync" not in kernel["ptx"]


@pytest.mark.parametrize("case", ["split", "matvec"])
def test_streaming_kernels_load_sixteen_bytes_at_a_time(compiled, case):
    streaming = [
        kernel
        for kernel in compiled[case]
        if "matmul" not in kernel["name"] and "mend" not in kernel["name"]
    ]
    assert streaming and all(kernel["wide_loads"] or kernel["async_copies"] for kernel in streaming)
    assert all(kernel["stack"] == 0 for kernel in streaming)


def test_a_gate_reads_both_weights_sixteen_bytes_at_a_time(compiled):
    kernel = _main(compiled["gate in place"])
    assert [each["name"] for each in compiled["gate in place"]] == [kernel["name"]]
    copies = re.findall(r"cp\.async\S*\.shared\.global [^;]*, (0x\w+), %\w+;", kernel["ptx"])
    assert copies and set(copies) == {"0x10"}, copies


@pytest.mark.parametrize("case", ["gate", "gathered gate", "shared", "gathered shares"])
def test_results_of_joined_products_are_stored_sixteen_bytes_at_a_time(compiled, case):
    """Two bytes at a time a gate of 128x256 took 255 registers and three times the instructions."""
    stores = re.findall(r"st\.global\S*", _main(compiled[case])["ptx"])
    assert stores and all(".v4" in store for store in stores), stores
