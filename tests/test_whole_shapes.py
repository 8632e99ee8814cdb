"""A model at several shapes: one table, which serves what was proved and passes on the rest."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_whole_composed import composed_of

import kmem
from kmem.errors import OutputError, ProblemError
from kmem.plugins import Registry
from kmem.run.setup.settings import RunSettings
from kmem.whole import at_shapes
from kmem.whole.at_shapes import AskedShapes, optimize_at_shapes, read_asked
from kmem.whole.graphs.capture import build_real
from kmem.whole.graphs.source import read_source
from kmem.whole.result import ModelResult
from kmem.whole.state import ModelSettings, ModelState, PieceState, PieceStatus

#: LENGTH is a size of the weights, too, and HEADS of nothing that is given.
MODEL = """
import torch
BATCH = 4
LENGTH = 16
HEADS = 2
SHAPE = (BATCH, LENGTH)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 8)
        self.bias = torch.nn.Parameter(torch.randn(LENGTH))
    def forward(self, x):
        return torch.tanh(self.layer(x + self.bias[: x.shape[-1]])) * BATCH
def get_inputs():
    return [torch.randn(SHAPE)]
"""
FACTORY = """
import torch
def make():
    return torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.GELU())
"""


def asked_of(text: str, shapes: str, out: Path, *inputs: str) -> AskedShapes:
    settings = ModelSettings(text, inputs, None, 6.0, RunSettings(out=out))
    return AskedShapes(settings, shapes)


def run_on(settings: ModelSettings, registry: object, watch: object, say: object) -> ModelResult:
    """Every piece replaced by what it was; nothing is proved of a batch of 3."""
    root = settings.piece.out
    assert root is not None and settings.minutes == 6.0 / 3
    kept = PieceState("p", "", (), 1, 1.0, 0.5, (), PieceStatus.KEPT, "r", 0.5)
    source = read_source(settings.model, settings.inputs)
    rows = build_real(source).args[0].shape[0]
    if rows == 2:
        raise ProblemError("No kernel could be proved in it")
    composed_of(settings.model, root, inputs=settings.inputs)
    pieces = (kept if rows != 3 else replace(kept, status=PieceStatus.DROPPED),)
    state = ModelState(settings, "M", "h200", True, 1.0, pieces, (), finished="every piece")
    return ModelResult(root, replace(state, proof=json.dumps({"passed": True, "how": "so"})))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr(at_shapes, "optimize_model", run_on)
    return Registry()


def test_a_table_serves_the_shapes_that_were_proved_and_no_others(
    runs: Registry, tmp_path: Path
) -> None:
    place = tmp_path / "net.py"
    place.write_text(MODEL, encoding="utf-8")
    out = tmp_path / "out"
    found = optimize_at_shapes(asked_of(str(place), "batch=2,3,8", out), runs, print, print)
    assert list(found.proved) == ["batch8"] and list(found.missing) == ["batch3", "batch2"]
    model = build_real(read_source(str(place))).module
    other = build_real(read_source(str(place))).module
    other.load_state_dict(model.state_dict())
    handle = kmem.apply(model, kmem.load(out))
    with torch.no_grad():
        for rows in (8, 3, 8, 4, 5):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(model(x), other(x))  # of the file's own BATCH
    model(torch.randn(8, 16)).sum().backward()
    assert model.bias.grad is not None
    told = {each.bucket: each for each in handle.status()}
    assert (told["batch8"].served, told["other calls"].passed_on) == (2, 4)
    assert "gradients are recorded" in told["other calls"].reason
    assert "No kernel could be proved" in str(handle) and "no kernel (every piece)" in str(handle)
    with torch.no_grad():
        model(torch.randn(5, 16))
    assert "passed on 5 (5x16 is in no row; there are 8x16)" in str(handle)
    with pytest.raises(ValueError, match="kernels already"):
        kmem.apply(model, kmem.load(out))
    handle.undo()
    assert "forward" not in vars(model)
    again = read_asked(out)
    assert again is not None and again.text == "batch=2,3,8"
    with pytest.raises(OutputError, match="at other shapes in another directory"):
        optimize_at_shapes(asked_of(str(place), "batch=9", out), runs, print, print)


def test_names_in_the_words_of_inputs_are_sizes(runs: Registry, tmp_path: Path) -> None:
    place = tmp_path / "net.py"
    place.write_text(FACTORY, encoding="utf-8")
    asked = asked_of(f"{place}:make", "rows=4..5,7", tmp_path / "out", "f32[Rows, 16]")
    found = optimize_at_shapes(asked, runs, print, print)
    inputs = [result.state.settings.inputs for _, result in found.results]
    assert inputs == [("f32[7, 16]",), ("f32[5, 16]",), ("f32[4, 16]",)]
    model = build_real(read_source(f"{place}:make", ["f32[1, 16]"])).module
    handle = kmem.apply(model, kmem.load(tmp_path / "out"))
    assert [each.bucket for each in handle.status()] == ["rows7", "rows5", "rows4"]


@pytest.mark.parametrize(
    ("model", "shapes", "inputs", "said"),
    [
        (MODEL, "heads=2,4", (), "The inputs have the same shapes at heads4 as at heads2"),
        (MODEL, "depth=2", (), "depth is no integer at the top.*batch, heads, length"),
        (MODEL, "rows=2", ("f32[batch, 16]",), "rows is no name in the brackets.*batch"),
        (MODEL, "b=2", ("f32[b, wide]",), "--shapes says nothing of wide"),
        (FACTORY, "rows=2", ("f32[4, 16]",), "No size of the inputs has a name"),
    ],
)
def test_what_is_no_size_of_the_inputs_is_refused(
    model: str, shapes: str, inputs: tuple[str, ...], said: str, runs: Registry, tmp_path: Path
) -> None:
    place = tmp_path / "net.py"
    place.write_text(model, encoding="utf-8")
    text = f"{place}:make" if model is FACTORY else str(place)
    with pytest.raises(ProblemError, match=re.compile(said)):
        optimize_at_shapes(asked_of(text, shapes, tmp_path / "out", *inputs), runs, print, print)
