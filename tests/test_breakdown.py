"""Where a module's own time goes: real models, part by part, and the treemap of them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from page_server import fill, finish, make_run

from kmem.devices import TARGETS
from kmem.memory.store import Memory
from kmem.problem.breakdown import MOST_PARTS, Breakdown, break_down
from kmem.problem.costs.bound import node_cost_ms
from kmem.problem.traced import TracedProblem, trace_at_full_size
from kmem.records import Contract, Problem
from kmem.run.directory import BREAKDOWN, RunDirectory
from kmem.run.state.breakdown import keep_breakdown, read_breakdown
from kmem.ui.pages.problems import show_problem
from kmem.ui.pages.run import show_run
from kmem.ui.plots.treemap import HEIGHT, WIDTH, draw_breakdown
from kmem.ui.rendering import render
from kmem.ui.requests import Export, Page, PageRequest

TRANSFORMER = """
import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention
class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
    def forward(self, x):
        rows, length, width = x.shape
        parts = self.qkv(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(parts[0], parts[1], parts[2])
        return self.out(mixed.transpose(1, 2).reshape(rows, length, width))
class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(gelu(self.up(self.norm2(x))))
class Model(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.Sequential(*[Block(512, 8) for _ in range(layers)])
    def forward(self, x):
        return self.layers(x)
def get_inputs():
    return [torch.randn(8, 512, 512)]
def get_init_inputs():
    return [LAYERS]
"""
CONVOLUTIONS = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
            nn.Conv2d(64, 128, 3, 1, 1), nn.BatchNorm2d(128), nn.ReLU(),
        )
        self.head = nn.Linear(128, 10)
    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))
def get_inputs():
    return [torch.randn(16, 3, 128, 128)]
"""


def trace(source: str) -> TracedProblem:
    problem = Problem("model", "/model.py", source)
    return trace_at_full_size(problem, Contract(), TARGETS["h200"])


@pytest.fixture(scope="module")
def block() -> TracedProblem:
    return trace(TRANSFORMER.replace("LAYERS", "1"))


def told(traced: TracedProblem) -> Breakdown:
    found = break_down(traced)
    assert found is not None
    total = sum(
        node_cost_ms(traced.graph, node, traced.device, traced.contract)
        for node in traced.graph.nodes
    )
    assert found.eager_ms == pytest.approx(total), "no time is lost"
    assert all(0 <= part.least_ms <= part.eager_ms for part in found.parts)
    return found


def test_a_transformer_block_is_told_by_its_submodules(block: TracedProblem) -> None:
    found = told(block)
    names = {(part.module, part.operator): part for part in found.parts}
    assert {
        ("layers.0.up", "linear"),
        ("layers.0.attention.qkv", "linear"),
        ("layers.0.attention", "scaled_dot_product_attention"),
        ("layers.0.norm2", "layer_norm"),
        ("layers.0", "gelu"),
    } <= set(names)
    assert names["layers.0", "add"].calls == 2
    assert found.parts[0].operator == "linear" and found.rest is None
    gelu = names["layers.0", "gelu"]
    moved = 2 * 8 * 512 * 2048 * 4
    assert gelu.least_ms == pytest.approx(moved / block.device.dram_bytes_per_s * 1e3)
    assert found.bound_ms < sum(part.least_ms for part in found.parts), "fused, less is moved"


def test_a_conv_net_is_told_layer_by_layer() -> None:
    found = told(trace(CONVOLUTIONS))
    names = [(part.module, part.operator) for part in found.parts]
    assert ("features.4", "conv2d") in names and ("features.0", "conv2d") in names
    assert ("features.3", "max_pool2d") in names and ("head", "linear") in names
    assert names.count(("features.1", "add_")) == 1, "training counts its batches"
    assert found.nodes == sum(part.calls for part in found.parts) == 11


@pytest.mark.slow
def test_repeated_blocks_of_a_model_of_hundreds_of_nodes_are_one_part() -> None:
    found = told(trace(TRANSFORMER.replace("LAYERS", "24")))
    assert found.nodes > 200
    assert len(found.parts) <= MOST_PARTS
    (up,) = [part for part in found.parts if part.module == "layers.*.up"]
    assert up.calls == 24
    shown = draw_breakdown(found).tiles
    assert sum(tile.width * tile.height for tile in shown) == pytest.approx(WIDTH * HEIGHT, 0.01)


def test_the_pages_of_a_run_and_of_its_problem_show_it(
    block: TracedProblem, tmp_path: Path
) -> None:
    run = make_run("20260101-map", tmp_path)
    keep_breakdown(RunDirectory(Path(run.out_dir)), block)
    found = read_breakdown(Path(run.out_dir))
    assert found == break_down(block)
    with Memory(tmp_path / "kmem.db") as memory:
        finish(memory, run, fill(memory, run))
        for show, names in (
            (show_run, {"run": run.id}),
            (show_problem, {"problem": run.problem.name}),
        ):
            page = show(memory, PageRequest("/", names))
            assert isinstance(page, Page)
            html = render(page)
            assert "linear in layers.0.up: " in html and "; attainable " in html
            assert "estimated for h200" in html
            export = show(memory, PageRequest("/", names, {"parts.format": "csv"}))
            assert isinstance(export, Export)
            assert re.search(r"^layers\.0\.up,linear,1,", export.text, re.MULTILINE)
        measured = render(show_run(memory, PageRequest("/", {"run": run.id})))
        assert "Eager as a whole takes 4 ms, measured on h200" in measured
        (Path(run.out_dir) / BREAKDOWN).write_text("{")
        without = render(show_run(memory, PageRequest("/", {"run": run.id})))
    assert "own time goes" not in without, "a damaged file is as none"


def test_what_could_not_be_traced_keeps_nothing(block: TracedProblem, tmp_path: Path) -> None:
    keep_breakdown(RunDirectory(tmp_path), replace(block, bound=None))
    assert read_breakdown(tmp_path) is None
