"""Loops over time in a graph: one piece where steps share weights and go on from one another."""

from pathlib import Path

import pytest
from chunked_scans import FADING, product, steps

from kmem.devices import named_target
from kmem.problem.graph import OpGraph
from kmem.records import Contract
from kmem.skills import load_recipe, load_skill
from kmem.testing import trace_source
from kmem.whole.cutting.loops import find_loops
from kmem.whole.cutting.pieces import estimate_cost, find_pieces
from kmem.whole.graphs.capture import capture
from kmem.whole.graphs.source import read_source

H200 = named_target("h200")
SCANS = Path(__file__).resolve().parent.parent / "skills" / "chunked-linear-recurrence"
MODEL = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.step = torch.nn.Linear(16, 8)
        self.cell = torch.nn.GRUCell(8, 8)
        self.out = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(9)))
    def forward(self, x):
        x = torch.exp(x)
        h, found = x.new_zeros(4, 8), []
        {loop}
        return self.out(torch.stack(found))
def get_inputs():
    return [torch.randn(12, 4, 8)]
"""
STEPS = "for t in range({}):\n            {}\n            found.append(h)"
JOINED = "h = torch.relu(self.step(torch.cat((x[t], h), 1)))"


def graph_of(loop: str) -> OpGraph:
    return trace_source(MODEL.format(loop=loop))[1]


@pytest.mark.parametrize(
    ("loop", "inside"),
    [
        (STEPS.format(12, JOINED), 12 * 4 + 1),  # with the stack
        (STEPS.format(9, "h = self.cell(x[t], h)"), 9 * 2 + 1),
        (STEPS.format(4, JOINED), 0),  # few
        (STEPS.format(12, "h = torch.relu(self.step(torch.cat((x[t], x[0]), 1)))"), 0),  # apart
        (STEPS.format(12, "h = torch.relu(h * x[t])"), 0),  # nothing is multiplied by weights
    ],
)
def test_a_loop_is_steps_that_share_weights_and_go_on(loop: str, inside: int) -> None:
    graph = graph_of(loop)
    found = [graph.nodes[each.start : each.end] for each in find_loops(graph)]
    assert [len(nodes) for nodes in found] == ([inside] if inside else [])
    if inside:
        assert found[0][-1].target == "aten.stack.default"


def test_a_loop_is_a_piece_of_its_own(tmp_path: Path) -> None:
    place = tmp_path / "net.py"
    place.write_text(MODEL.format(loop=STEPS.format(12, JOINED)), encoding="utf-8")
    captured = capture(read_source(str(place)))
    cost = estimate_cost(captured, H200, Contract())
    groups = find_pieces(captured, cost, H200, Contract())
    (loop,) = [group for group in groups if "stack" in group.operators]
    assert loop.operators.count("linear") == 12 and loop.calls == 1
    assert sum(group.operators.count("linear") * group.calls for group in groups) == 12 + 9


@pytest.mark.parametrize(
    ("source", "last"),
    [
        (product((1, 3, 16, 2, 4, 8)), "add"),
        (product((1, 3, 16, 2, 4, 8), "states[:, -1]"), "einsum"),
        (steps((1, 9, 16, 2, 4, 8), a=FADING), "add"),
    ],
)
def test_a_chunked_scan_is_a_piece_of_its_own(tmp_path: Path, source: str, last: str) -> None:
    """Between what is made of its inputs and what is made of it."""
    place = tmp_path / "net.py"
    source = source.replace("def forward(self, x, a, b, c", "def scan(self, x, a, b, c")
    heads = "self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(14))"
    after = "for layer in self.layers[7:]:\n            y = layer(y)\n        return y"
    source = source.replace(
        "class Model(torch.nn.Module):",
        "class Model(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {heads}\n    def forward(self, x, a, b, c):\n"
        "        for layer in self.layers[:7]:\n            x = layer(x)\n"
        f"        y = self.scan(x, a, b, c)\n        {after if last == 'add' else 'return y'}",
    )
    place.write_text(source, encoding="utf-8")
    captured = capture(read_source(str(place)))
    groups = find_pieces(captured, estimate_cost(captured, H200, Contract()), H200, Contract())
    (scan,) = [group for group in groups if "cumsum" in group.operators]
    assert "linear" not in scan.operators and scan.calls == 1
    assert last in [node.target.split(".")[1] for node in scan.graph.nodes][-4:]
    assert len(load_recipe(load_skill(SCANS)).match(scan.graph, Contract())) == 1
