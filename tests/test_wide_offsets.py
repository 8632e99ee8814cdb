"""Kernels for tensors past 2**31 elements: their offsets are 64 bits wide, or there is none."""

from collections.abc import Iterator

import pytest

from kmem.devices import named_target
from kmem.records import Contract
from kmem.skills import load_recipe, load_skill
from kmem.testing import trace_source
from tests.compile_sm90 import FIRST_STAGE, SKILLS, compile_jobs
from tests.wide_offsets import overflows

SOURCE = """
import torch
from torch import nn
from torch.nn import functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, {names}):
        return {forward}
def get_inputs():
    return [{inputs}]
"""
ROWS, IMAGES = "700001, 4096", "512, 64, 300, 301"
#: By skill: what the module holds, its forward, and the shapes of its inputs.
LARGE = {
    "row-norm": ("self.n = nn.LayerNorm(4096)", "self.n(x)", ROWS),
    "online-softmax": ("pass", "torch.softmax(x, 1)", ROWS),
    "split-reduction": ("pass", "torch.argmax(x, 1)", "1024, 4096, 700"),
    "fuse-pointwise-chain": ("pass", "F.gelu(x) * 2 + 1", ROWS),
    "tile-matmul": ("self.l = nn.Linear(4096, 4096)", "torch.relu(self.l(x)) + 1", ROWS),
    "split-fp16-matmul": ("self.l = nn.Linear(4096, 4096)", "self.l(x)", ROWS),
    "matvec-rows-per-program": ("self.l = nn.Linear(4096, 1)", "self.l(x)", ROWS),
    "blocked-row-scan": ("pass", "torch.cumsum(x, 1)", ROWS),
    "scan-without-flip-copies": ("pass", "torch.cumsum(x.flip(1), 1).flip(1)", ROWS),
    "separable-pooling": ("self.p = nn.MaxPool2d(3, 2)", "self.p(x)", IMAGES),
    "staged-half-conv": ("self.c = nn.Conv2d(64, 64, 3)", "torch.relu(self.c(x))", IMAGES),
    "split-half-conv": ("self.c = nn.Conv2d(64, 64, 3)", "torch.relu(self.c(x))", IMAGES),
    "implicit-gemm-conv": ("self.c = nn.Conv2d(64, 64, 3)", "self.c(x)", IMAGES),
    "depthwise-rolling-rows": (
        "self.c = nn.Conv2d(64, 64, 3, groups=64)",
        "self.c(x)",
        IMAGES,
    ),
    "transposed-conv-phases": ("self.c = nn.ConvTranspose2d(64, 64, 3)", "self.c(x)", IMAGES),
    "batch-norm-training-statistics": ("self.n = nn.BatchNorm2d(64)", "self.n(x)", IMAGES),
    "fuse-loss-with-mean": ("pass", "F.mse_loss(x, y)", ROWS, ROWS),
    "fused-cross-entropy": ("pass", "F.cross_entropy(x, y.long())", ROWS, "700001"),
    "row-similarity-one-pass": ("pass", "F.cosine_similarity(x, y, dim=1)", ROWS, ROWS),
    "diagonal-row-scaling": ("pass", "torch.diag(x) @ y", "700001", ROWS),
    "flash-attention": (
        "pass",
        "F.scaled_dot_product_attention(x, x, x)",
        "64, 64, 8192, 65",
    ),
}
#: Reduces all elements as one row, which no 32-bit place reaches: matches nothing at these sizes.
REFUSED = "fuse-loss-with-mean"


def site_of(skill: str, source: str) -> object | None:
    sites = load_recipe(load_skill(SKILLS / skill)).match(trace_source(source)[1], Contract())
    return sites[0] if sites else None


def source_of(skill: str) -> str:
    init, forward, *shapes = LARGE[skill]
    names = ["x", "y"][: len(shapes)]
    inputs = ", ".join(f"torch.randn({shape})" for shape in shapes)
    return SOURCE.format(init=init, names=", ".join(names), forward=forward, inputs=inputs)


def jobs() -> Iterator[tuple[str, str, str, dict]]:
    """A kernel of each skill that takes these sizes, at the setting that its own model prefers."""
    device = named_target("h200")
    for skill in LARGE:
        source, recipe = source_of(skill), load_recipe(load_skill(SKILLS / skill))
        site = site_of(skill, source)
        if site is not None:
            settings = recipe.space(site, device).settings()
            best = min(settings, key=lambda each: recipe.cost_ms(site, each, device))  # noqa: B023
            yield skill, source, "match", best


def test_what_no_32_bit_place_reaches_is_no_site() -> None:
    source = source_of(REFUSED)
    assert site_of(REFUSED, source) is None
    assert site_of(REFUSED, source.replace("700001", "70001")) is not None


@pytest.mark.slow(after=20)
def test_no_emitted_kernel_computes_an_offset_that_passes_its_32_bits() -> None:
    served = list(jobs())
    assert {skill for skill, *_ in served} == LARGE.keys() - {REFUSED}
    compiled = compile_jobs(served, *FIRST_STAGE, read_binaries=False)
    for (skill, *_), kernels in zip(served, compiled, strict=True):
        narrow = []
        for kernel in kernels:
            assert overflows(kernel["ttir"], kernel["grid"]) == [], (skill, kernel["name"])
            narrow += overflows(kernel["ttir"].replace("i64", "i32"), kernel["grid"])
        assert narrow, f"{skill}: with 32-bit offsets nothing would be found either"


NARROW = """
    %c64_i32 = arith.constant 64 : i32
    %place = tt.get_program_id x : i32
    %place_0 = arith.muli %place, %c64_i32 : i32
    %place_1 = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %place_2 = tt.splat %place_0 : i32 -> tensor<64xi32>
    %place_3 = arith.addi %place_2, %place_1 : tensor<64xi32>
"""


@pytest.mark.parametrize(("rows", "lines"), [(2**25, 0), (2**25 + 1, 2)])
def test_an_offset_overflows_from_the_element_on_that_32_bits_do_not_reach(
    rows: int, lines: int
) -> None:
    assert len(overflows(NARROW, [rows])) == lines
