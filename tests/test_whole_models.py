"""The models that ship: each is captured, accounted for and cut, at sizes that take a second."""

from pathlib import Path

import pytest

from kmem.devices import named_target
from kmem.problem.graph import OpGraph
from kmem.problem.sizing.shapes import problem_at
from kmem.problem.source.load import execute_problem, load_problem
from kmem.problem.source.substitution import Sizes
from kmem.problem.tracing.trace import trace_problem
from kmem.records import Contract
from kmem.whole.accounting.account import account_for
from kmem.whole.cutting.extract import piece_text
from kmem.whole.cutting.pieces import estimate_cost, find_pieces
from kmem.whole.graphs.capture import capture
from kmem.whole.graphs.source import read_source

DIRECTORY = Path(__file__).parents[1] / "problems" / "models"
H200 = named_target("h200")
#: By model: sizes in place of its own, and how often its most frequent piece runs.
MODELS: dict[str, tuple[Sizes, int]] = {
    "llama": ({"LENGTH": 16, "WIDTH": 64, "HEADS": 8, "GROUPS": 2, "HIDDEN": 96}, 4),
    "decode": ({"BATCH": 2, "CACHED": 8, "WIDTH": 32, "HEADS": 4, "HIDDEN": 48}, 4),
    "vit": ({"BATCH": 2, "IMAGE": 32, "WIDTH": 48, "HEADS": 4, "BLOCKS": 4}, 3),
    "convnext": ({"BATCH": 2, "IMAGE": 64, "WIDTH": 16}, 9),
    "unet": ({"BATCH": 2, "IMAGE": 32, "WIDTH": 8, "GROUPS": 4}, 1),
    "mamba": ({"LENGTH": 16, "WIDTH": 32, "HEADS": 4, "STATE": 8, "CHUNK": 8, "BLOCKS": 2}, 2),
    "moe": ({"LENGTH": 16, "WIDTH": 64, "HIDDEN": 32, "EXPERTS": 3}, 1),
    "lstm": ({"BATCH": 2, "LENGTH": 8, "WORDS": 60, "WIDTH": 16, "HIDDEN": 8}, 1),
    "crossing": ({"BATCH": 2, "LENGTH": 8, "STATES": 12, "WIDTH": 32, "HEADS": 4}, 4),
}


def test_every_model_that_ships_is_among_them() -> None:
    assert {place.stem for place in DIRECTORY.glob("*.py")} == set(MODELS) and len(MODELS) >= 8


@pytest.mark.slow(after=4)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_ships_is_captured_and_cut(name: str, tmp_path: Path) -> None:
    sizes, most_calls = MODELS[name]
    problem = load_problem(DIRECTORY / f"{name}.py")
    place = tmp_path / f"{name}.py"
    place.write_text(problem_at(problem, tuple(sizes.items())), encoding="utf-8")
    captured = capture(read_source(str(place)))
    cost = estimate_cost(captured, H200, Contract())
    groups = find_pieces(captured, cost, H200, Contract())
    account = account_for(captured, cost, groups, H200, Contract())
    assert sum(line.share for line in account.pieces) == pytest.approx(1.0, abs=0.02)
    assert max(group.calls for group in groups) == most_calls
    assert bool(captured.left) == (name == "moe")
    # the file of the piece that matters most is the problem that its graph says
    written = tmp_path / "piece.py"
    written.write_text(piece_text(captured, groups[0], {}), encoding="utf-8")
    traced = trace_problem(execute_problem(load_problem(written)), both_modes=False)
    assert targets(traced) == targets(groups[0].graph)


def targets(graph: OpGraph) -> list[str]:
    """Operators in order, but for what export adds to them: results that nobody reads, checks."""
    return [
        node.target
        for node in graph.nodes
        if node.target != "getitem" and "_assert_" not in node.target
    ]
