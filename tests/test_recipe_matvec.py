"""skills/matvec-rows-per-program compiled for sm_90: what one step of its loop does."""

import re

import pytest
from compile_sm90 import SKILLS, compile_jobs

from kmem.devices import named_target
from kmem.recipes import Site
from kmem.records import Contract
from kmem.skills import load_recipe, load_skill
from kmem.testing import trace_source

NAME = "matvec-rows-per-program"


def problem(dtype: str) -> str:
    return (
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, matrix, vector):\n"
        "        return matrix @ vector\n"
        f"def get_inputs():\n"
        f"    return [torch.empty(shape, dtype=torch.{dtype}) for shape in ((2048, 65536), (65536, "
        f"1))]\n"
    )


@pytest.mark.slow
def test_a_step_reads_vectors_and_moves_nothing_between_threads() -> None:
    settings = {"block_l": 8, "splits": 4, "warps": 2}
    jobs = [
        [NAME, problem(dtype), "match", settings | {"block_k": block_k}]
        for dtype, block_k in (("bfloat16", 1024), ("float32", 512))
    ]
    for kernel, *_ in compile_jobs(jobs, "ttgir", "ptx"):
        (loop,) = re.findall(r"scf\.for.*?scf\.yield", kernel["ttgir"], re.DOTALL)
        assert "convert_layout" not in loop
        assert set(re.findall(r"ld\.global\S*\.(v\d\.b\d+)", kernel["ptx"])) == {"v4.b32"}
        assert kernel["stack"] == 0


@pytest.mark.parametrize(("dtype", "values"), [("bfloat16", 128), ("float32", 64)])
def test_a_thread_holds_as_many_bytes_in_every_dtype(dtype: str, values: int) -> None:
    recipe = load_recipe(load_skill(SKILLS / NAME))
    _, graph = trace_source(problem(dtype))
    (site,) = recipe.match(graph, Contract())
    space = recipe.space(site, named_target("h200")).settings()
    assert (
        max(setting["block_l"] * setting["block_k"] // (32 * setting["warps"]) for setting in space)
        == values
    )


def test_operands_keep_their_roles_at_small_sizes() -> None:
    """The rows of a classifier are the vectors at full size, where small sizes have as many."""
    recipe = load_recipe(load_skill(SKILLS / NAME))

    def linear(outputs: int) -> Site:
        source = (
            "import torch\nclass Model(torch.nn.Module):\n    def __init__(self):\n"
            f"        super().__init__()\n        self.op = torch.nn.Linear(512, {outputs})\n"
            "    def forward(self, x):\n        return self.op(x)\n"
            "def get_inputs():\n    return [torch.empty(2, 512)]\n"
        )
        (site,) = recipe.match(trace_source(source)[1], Contract())
        return site

    full, small = linear(1000), linear(2)
    (setting, *_) = recipe.space(full, named_target("h200")).settings()
    texts = [
        recipe.emit(full, setting).launcher,
        recipe.emit_like(small, setting, full).launcher,
    ]
    assert all("b, a, target" in text for text in texts)
    assert "a, b, target" in recipe.emit(small, setting).launcher
