"""A run on a model whose pieces are tried on workers: some at once, and still one run."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_optimize_away import kmem
from test_whole_composed import state_of

from kmem.away.home import Home
from kmem.engines.desk import Desk
from kmem.engines.executor import Wanted
from kmem.engines.local import LocalExecutor
from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect
from kmem.records import Budget, RunState
from kmem.run.directory import RunDirectory
from kmem.run.setup.settings import RunSettings
from kmem.whole.optimizing import _go_through_pieces, next_piece, optimize_model
from kmem.whole.state import ModelSettings, PieceState, PieceStatus, read_state
from kmem.whole.trying import PieceCrew, Trials


class Two(Trials):
    """Two pieces at once; the one that was begun last ends first."""

    at_once = 2

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self._begun: list[PieceState] = []

    def begin(self, piece: PieceState, told: RunSettings) -> PieceState:
        self.heard.append(("began", piece.name))
        self._begun.append(replace(piece, status=PieceStatus.RUNNING))
        return self._begun[-1]

    def ended(self) -> PieceState:
        piece = self._begun.pop()
        self.heard.append(("ended", piece.name))
        return replace(piece, status=PieceStatus.DROPPED, reason="slow")


def test_pieces_are_tried_at_once_and_each_once(tmp_path: Path) -> None:
    waiting = [PieceState(name, name, (), 2, 1.0, 0.01, ()) for name in ("p1", "p2", "p3")]
    state = replace(state_of(tmp_path), pieces=tuple(waiting))
    model = SimpleNamespace(say=lambda text: None, present=False, directory=RunDirectory(tmp_path))
    trials = Two()
    beginning = SimpleNamespace(settle=lambda state, wait: state)
    state = _go_through_pieces(model, state, lambda: 0.0, trials, beginning)
    assert trials.heard == [
        ("began", "p1"),
        ("began", "p2"),
        ("ended", "p2"),
        ("began", "p3"),
        ("ended", "p3"),
        ("ended", "p1"),
    ]
    assert state.finished == "every piece was tried"
    assert [piece.status for piece in state.pieces] == [PieceStatus.DROPPED] * 3
    assert read_state(tmp_path).pieces == state.pieces


class Scripted(Two):
    """What becomes of a piece is told before."""

    at_once = 1

    def __init__(self, became: dict[str, PieceStatus], *, eager_ms: float | None = None) -> None:
        super().__init__()
        self._became, self._eager_ms = became, eager_ms
        self.minutes: dict[str, float] = {}

    def begin(self, piece: PieceState, told: RunSettings) -> PieceState:
        self.minutes[piece.name] = told.budget.minutes
        return super().begin(piece, told)

    def ended(self) -> PieceState:
        piece = super().ended()
        piece = replace(piece, eager_ms=self._eager_ms or piece.eager_ms)
        return replace(piece, status=self._became.get(piece.name, piece.status), kernel_ms=1.0)


@pytest.mark.parametrize(
    ("became", "tried", "parts"),
    [
        ({"all": PieceStatus.KEPT}, ["all", "apart"], ["all", "apart"]),
        ({}, ["all", "p1", "p2", "apart"], ["p1", "p2", "apart"]),
    ],
)
def test_pieces_of_a_stretch_are_tried_if_it_is_not_kept(
    became: dict[str, PieceStatus], tried: list[str], parts: list[str], tmp_path: Path
) -> None:
    pieces = (
        PieceState("all", "", (), 1, 5.0, 0.01, (), holds=("p1", "p2")),
        PieceState("p1", "p1", (), 1, 2.0, 0.01, ()),
        PieceState("p2", "p2", (), 1, 1.9, 0.01, ()),
        PieceState("apart", "apart", (), 1, 0.5, 0.01, ()),
    )
    state = replace(state_of(tmp_path), pieces=pieces)
    model = SimpleNamespace(say=lambda text: None, present=False, directory=RunDirectory(tmp_path))
    trials = Scripted(became)
    beginning = SimpleNamespace(settle=lambda state, wait: state)
    state = _go_through_pieces(model, state, lambda: 0.0, trials, beginning)
    assert [name for what, name in trials.heard if what == "began"] == tried
    assert [piece.name for piece in state.parts] == parts
    assert trials.minutes["all"] == pytest.approx(0.6 * state.settings.minutes)


def test_a_stretchs_own_time_counts_if_it_is_kept_and_its_pieces_come_back(tmp_path: Path) -> None:
    pieces = (
        PieceState("all", "", (), 1, 5.0, 0.01, (), holds=("p1",)),
        PieceState("p1", "p1", (), 1, 4.0, 0.01, ()),
    )
    state = replace(state_of(tmp_path), pieces=pieces, total_ms=5.0)
    kept = replace(pieces[0], status=PieceStatus.KEPT, eager_ms=3.0)
    after = state.with_tried(kept)
    assert after.total_ms == 5.0  # the whole has not been asked yet
    held = after.without_held(kept)
    assert held.pieces[1].reason == "it is in all"
    again = held.with_dropped(kept, "wrong")
    assert [each.status for each in again.pieces] == [PieceStatus.DROPPED, PieceStatus.WAITING]
    assert next_piece(again, 3.0)[0].name == "p1" and again.pieces[1].reason == ""
    model = SimpleNamespace(say=lambda text: None, present=False, directory=RunDirectory(tmp_path))
    beginning = SimpleNamespace(settle=lambda state, wait: state)
    trials = Scripted({"all": PieceStatus.KEPT}, eager_ms=3.0)
    ended = _go_through_pieces(model, state, lambda: 0.0, trials, beginning)
    assert ended.total_ms == 3.0


def test_pieces_of_a_stretch_that_is_being_tried_wait(tmp_path: Path) -> None:
    pieces = (
        PieceState("all", "", (), 1, 5.0, 0.01, (), PieceStatus.RUNNING, holds=("p1",)),
        PieceState("p1", "p1", (), 1, 2.0, 0.01, ()),
        PieceState("apart", "apart", (), 1, 0.5, 0.01, ()),
    )
    state = replace(state_of(tmp_path), pieces=pieces)
    assert next_piece(state, 3.0, {"all"})[0].name == "apart"
    begun = {"p1": PieceStatus.RUNNING, "all": PieceStatus.WAITING}
    taken = tuple(replace(each, status=begun.get(each.name, each.status)) for each in pieces)
    assert next_piece(replace(state, pieces=taken), 3.0, {"p1"})[0].name == "apart"


def test_how_many_pieces_at_once_is_refused_where_they_run_one_after_another(
    tmp_path: Path,
) -> None:
    file = tmp_path / "two.py"
    file.write_text(MODEL, encoding="utf-8")
    done = kmem(str(file), "--pieces", "--gpus", "2")
    assert done.exit_code == 2 and "with --executor" in done.stderr


MODEL = """
import torch
class Soft(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(torch.relu(x) * 3, -1)
class Bent(torch.nn.Module):
    def forward(self, x):
        return torch.sigmoid(x) * 2 + x
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Soft(), Bent()
    def forward(self, x):
        return self.second(self.first(x))
def get_inputs():
    return [torch.randn(64, 64)]
"""


@pytest.mark.slow
def test_a_model_whose_pieces_run_on_workers_is_put_together_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMEM_DB", str(tmp_path / "kmem.db"))
    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")
    monkeypatch.setattr(
        "kmem.whole.cutting.cut.MOST_HEAVY", 1
    )  # so that small modules are two pieces
    monkeypatch.setattr("kmem.whole.cutting.cut._HEAVY_NAMES", ("softmax", "sigmoid"))
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    file, out, said = tmp_path / "two.py", tmp_path / "out", []
    file.write_text(MODEL, encoding="utf-8")
    Memory().close()
    budget = Budget(rounds=0, candidates_per_round=1, baselines=("eager",))
    told = RunSettings(budget, target="h200", out=out)
    settings = ModelSettings(str(file), (), None, 5.0, told, least_gain=0.0)
    home = Home(tmp_path / "copies")
    crew = LocalExecutor().hire(Wanted(gpus=0, cpus=2), said.append)
    with Desk(crew, said.append, home.close) as desk:
        result = optimize_model(
            settings,
            collect(build_plugin_manager()),
            _unused,
            said.append,
            PieceCrew(desk, home, gpu=False, at_once=2),
        )
    assert result.is_proved and len(result.state.kept) == 2, said
    with Memory() as memory:
        runs = {entry.run.out_dir: entry for entry in memory.run_entries.all()}
    places = {str(out / "runs" / piece.name): piece for piece in result.state.pieces}
    assert set(runs) == set(places)
    for place, piece in places.items():
        assert runs[place].state is RunState.FINISHED and runs[place].run.id == piece.run


def _unused(run: object) -> Callable[[object], None]:
    raise AssertionError("no piece runs in this process")
