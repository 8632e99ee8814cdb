"""A model cut into pieces, and pieces as problem files with sizes that may vary."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from models_for_tests import model_named

from kmem.cli import cli
from kmem.devices import named_target
from kmem.plugins import build_plugin_manager, collect
from kmem.problem.sizing.search import MAX_SMALL_PARAMETERS
from kmem.problem.sizing.workload import derive_small_workload
from kmem.problem.source.load import build_inputs, build_model, execute_problem, load_problem
from kmem.problem.tracing.evaluate import evaluate_graph
from kmem.problem.tracing.trace import trace_problem
from kmem.records import Contract
from kmem.whole.accounting.account import account_for
from kmem.whole.accounting.measured import measure_cost
from kmem.whole.cutting.pieces import estimate_cost, find_pieces, find_stretches, holds
from kmem.whole.cutting.values import given_values
from kmem.whole.graphs.capture import build_real, capture
from kmem.whole.graphs.source import read_source

H200 = named_target("h200")


def run(*arguments: str) -> str:
    registry = collect(build_plugin_manager(), cli.commands)
    result = CliRunner().invoke(cli, arguments, obj=registry, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_repeated_blocks_are_one_piece_and_nothing_costly_is_left_out(tmp_path: Path) -> None:
    captured = capture(read_source(model_named("blocks", tmp_path)))
    cost = estimate_cost(captured, H200, Contract())
    groups = find_pieces(captured, cost, H200, Contract())
    account = account_for(captured, cost, groups, H200, Contract())
    calls = {group.module: group.calls for group in groups}
    assert calls["layers.*"] == 4
    assert sum(group.calls for group in groups) == 9  # four of each kind, and the head
    assert sum(line.share for line in account.pieces) == pytest.approx(1.0)
    assert sum(line.ms for line in account.modules) == pytest.approx(account.total_ms)


def test_counters_of_norms_in_training_part_no_piece(tmp_path: Path) -> None:
    place = tmp_path / "training.py"
    place.write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.one, self.two = (torch.nn.Conv2d(4, 4, 3) for _ in range(2))\n"
        "        self.norm, self.last = (torch.nn.BatchNorm2d(4) for _ in range(2))\n"
        "    def forward(self, x):\n"
        "        x = self.norm(self.one(x))\n"
        "        x += 1\n"
        "        return self.last(self.two(x))\n"
        "def get_inputs():\n"
        "    return [torch.randn(2, 4, 8, 8)]\n",
        encoding="utf-8",
    )
    captured = capture(read_source(str(place)))
    cost = estimate_cost(captured, H200, Contract())
    (group,) = find_pieces(captured, cost, H200, Contract())
    assert group.operators == ("conv2d", "batch_norm", "add", "conv2d", "batch_norm")


def test_pieces_one_after_another_compute_what_the_model_does(tmp_path: Path) -> None:
    source = read_source(model_named("blocks", tmp_path))
    captured = capture(source)
    graph = captured.segments[0].graph
    groups = find_pieces(captured, estimate_cost(captured, H200, Contract()), H200, Contract())
    built = build_real(source)
    with torch.no_grad():
        values = given_values(graph, built)
        state = {each.target: values[each.name] for each in graph.placeholders if each.target}
        places = [place.piece for group in groups for place in group.places]
        for piece in sorted(places, key=lambda piece: graph.place(piece.nodes[0])):
            held = iter(piece.state)
            given = {
                each.name: values[each.name] if each.kind == "input" else state[next(held)]
                for each in piece.graph.placeholders
            }
            values |= zip(piece.outputs, evaluate_graph(piece.graph, given), strict=True)
        torch.testing.assert_close(values[graph.outputs[0]], built.module(*built.args))


def test_extracted_pieces_shrink_with_their_weights(tmp_path: Path) -> None:
    """The same operators at the sizes of the model and at small ones, named and consistent."""
    model = model_named("blocks", tmp_path)
    listed = run("extract", model, str(tmp_path / "out"), "--target", "h200").split()
    table = json.loads((tmp_path / "out" / "pieces.json").read_text(encoding="utf-8"))
    assert {Path(place).stem for place in listed} == {row["name"] for row in table["pieces"]}
    attention = next(
        row for row in table["pieces"] if "scaled_dot_product_attention" in row["operators"]
    )
    problem = load_problem(tmp_path / "out" / f"{attention['name']}.py")
    assert "16*" not in problem.source.replace(" ", "")
    graph = trace_problem(execute_problem(problem))
    small = derive_small_workload(problem)
    shrunk = trace_problem(execute_problem(problem, small))
    assert [node.target for node in shrunk.nodes] == [node.target for node in graph.nodes]
    text = problem.source.replace("BATCH = 6\n", "BATCH = 3\n")
    sizes = [line for line in text.splitlines() if line.startswith("SIZE_")]
    assert any(line.endswith("= 8") for line in sizes)  # heads, which no input has
    wide = tmp_path / "wide.py"
    for line in sizes:  # 20 positions become 7, and weights follow where heads and width do
        text = text.replace(line, line.replace("= 20", "= 7").replace("= 8", "= 2"))
    wide.write_text(text, encoding="utf-8")
    module = execute_problem(load_problem(wide))
    model_, inputs = build_model(module, "cpu"), build_inputs(module, "cpu")
    assert tuple(model_(*inputs).shape[:2]) == (3, 7)
    assert sum(each.numel() for each in model_.parameters()) < MAX_SMALL_PARAMETERS


def test_a_stretch_is_the_model_as_memory_knows_it(tmp_path: Path) -> None:
    """All pieces lie in it, and its file has the graph of the model as a problem."""
    model = tmp_path / "wide.py"
    model.write_text(WIDE, encoding="utf-8")
    captured = capture(read_source(str(model)))
    cost = estimate_cost(captured, H200, Contract())
    groups = find_pieces(captured, cost, H200, Contract())
    (stretch,) = find_stretches(captured, cost, H200, Contract())
    assert len(groups) > 1 and all(holds(stretch, group) for group in groups)
    assert stretch.total_ms == pytest.approx(sum(group.total_ms for group in groups))
    graph = trace_problem(execute_problem(load_problem(model)))
    assert stretch.graph.hash == graph.hash
    assert "As one problem first: " in run("plan", str(model), "--target", "h200")


def test_what_stays_the_librarys_ends_a_stretch(tmp_path: Path) -> None:
    model = tmp_path / "counts.py"
    text = WIDE.replace(KEPT, f"{KEPT}\n        self.seen.add_(x)")
    made = "        self.register_buffer('seen', torch.zeros(64, 32))\n"
    text = text.replace("    def forward(self, y", f"{made}    def forward(self, y")
    model.write_text(text, encoding="utf-8")
    captured = capture(read_source(str(model)))
    cost = estimate_cost(captured, H200, Contract())
    one, two = find_stretches(captured, cost, H200, Contract())
    (written,) = [
        node.name for node in captured.segments[0].graph.nodes if node.target == "aten.add_.Tensor"
    ]
    for stretch in (one, two):
        assert written not in stretch.places[0].piece.nodes


KEPT = "x = torch.sigmoid(self.first(x))"
WIDE = """
import torch
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(32, 32)  # registered before what runs before it
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(5))
    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.last(x)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = (torch.nn.Sequential(Block(), Block()) for _ in range(2))
    def forward(self, y, x):  # the second is read first
        x = torch.sigmoid(self.first(x))
        return self.second(x + y)
def get_inputs():
    return [torch.randn(64, 32), torch.randn(64, 32)]
"""


@pytest.mark.parametrize(("kind", "first"), [("LSTM", True), ("GRU", False)])
def test_a_recurrent_piece_refuses_another_batch_than_its_state(
    kind: str, first: bool, tmp_path: Path
) -> None:
    """As its module would; the operator itself writes beyond the state, and aborts the process."""
    model = tmp_path / "recurrent.py"
    model.write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        f"        self.cell = torch.nn.{kind}(8, 16, batch_first={first})\n"
        "    def forward(self, x):\n"
        "        return torch.relu(self.cell(x)[0])\n"
        "def get_inputs():\n"
        "    return [torch.randn(3, 5, 8)]\n",
        encoding="utf-8",
    )
    listed = run("extract", str(model), str(tmp_path / "out"), "--target", "h200").split()
    module = execute_problem(load_problem(Path(listed[0])))
    piece, (x,) = build_model(module, "cpu"), build_inputs(module, "cpu")
    assert piece(x).shape == (3, 5, 16)
    axis = 0 if first else 1
    with pytest.raises(ValueError, match="another batch than the input"):
        piece(torch.cat([x, x], axis))
    longer = torch.cat([x, x], 1 - axis)
    assert piece(longer).shape[1 - axis] == 2 * x.shape[1 - axis]


def test_a_piece_draws_values_as_they_are_spread_in_the_model(tmp_path: Path) -> None:
    place = tmp_path / "spread.py"
    place.write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.linear = torch.nn.Linear(8, 8)\n"
        "        self.linear.weight.data.fill_(0.25)\n"
        "        self.register_buffer('mask', torch.ones(8, 8).tril())\n"
        "        self.register_buffer('turn', torch.polar(torch.ones(8), torch.arange(8.0)))\n"
        "    def forward(self, x):\n"
        "        return (self.linear(x) @ self.mask) * torch.view_as_real(self.turn).sum(-1)\n"
        "def get_inputs():\n"
        "    return [torch.rand(400, 8) * 3 + 5]\n",
        encoding="utf-8",
    )
    (written,) = run("extract", str(place), str(tmp_path / "out"), "--target", "h200").split()
    module = execute_problem(load_problem(written))
    model, (x,) = build_model(module, "cpu"), build_inputs(module, "cpu")
    assert (model.p0 == 0.25).all()
    assert torch.equal(model.p2, torch.ones(8, 8).tril())
    assert model.p3.dtype == torch.complex64 and model.p3.imag.std() > 0.1
    assert 5 <= x.min() < 5.2 < 7.8 < x.max() <= 8.01


def test_the_commands_tell_operators_pieces_and_a_picture(tmp_path: Path) -> None:
    model = model_named("blocks", tmp_path)
    picture = tmp_path / "map.svg"
    text = run("profile", model, "--tables", "--target", "h200", "--picture", str(picture))
    assert "scaled_dot_product_attention" in text and "layers.*" in text
    tiles = ElementTree.parse(picture).getroot().findall("{http://www.w3.org/2000/svg}g")
    assert len(tiles) >= 5
    plan = json.loads(run("plan", model, "--target", "h200", "--json"))
    saved = [piece["saved_ms"] for piece in plan["pieces"]]
    assert len(saved) == 3 and min(saved) > 0 and plan["estimated"]


def test_measured_times_are_of_the_operators_of_the_graph(tmp_path: Path) -> None:
    source = read_source(model_named("blocks", tmp_path))
    captured = capture(source)
    cost = measure_cost(source, captured, Contract().precision, "cpu")
    assert cost is not None and not cost.estimated
    assert {name for name, ms in cost.nodes[0].items() if ms > 0} >= {"linear", "gelu"}
    account = account_for(captured, cost, (), H200, Contract())
    assert account.wall_ms > 0 and account.launches and account.gaps_ms is not None
