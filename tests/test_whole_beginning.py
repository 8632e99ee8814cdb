"""A model is held to itself and timed beside its first pieces, and the rest in the end."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from test_lease import is_taken
from test_whole_composed import state_of

from kmem.errors import ExecutorError, ProblemError
from kmem.host.lease import GpuLease
from kmem.run.directory import RunDirectory
from kmem.whole import beginning as beginning_module
from kmem.whole import holding, process, turns
from kmem.whole.beginning import Beginning
from kmem.whole.optimizing import _left_minutes, _minutes_for
from kmem.whole.process import Tell, ask
from kmem.whole.proving import proof as proving
from kmem.whole.proving.clock import LATE
from kmem.whole.proving.proof import Proof, Question
from kmem.whole.state import ModelState, PieceState, PieceStatus

ASKED = Question("m.py", (), None, "match", "composed", 0, time=True)
OWN = Proof(True, "kernels on the GPU", error=1e-6, eager_ms=4.0, baselines_ms={"eager_graph": 3.0})
WAY = Proof(True, "kernels on the GPU", eager_ms=4.1, baselines_ms={"compile": 2.0})
LAST = replace(WAY, eager_ms=4.2, baselines_ms={"max_autotune": 1.5}, rest="compiled")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    """What the GPU was asked; it answers at once."""
    heard: list[Question] = []

    def prove(question: Question, *, gpu: bool, timeout_s: float, on_begun: object = None) -> Proof:
        heard.append(question)
        ways = (*question.baselines, *question.against)
        if "max_autotune" in ways:
            return LAST
        return WAY if ways else OWN

    for module in (beginning_module, holding):
        monkeypatch.setattr(module, "prove", prove)
        monkeypatch.setattr(module, "question_about", lambda *about: ASKED)
    return heard


def model_in(directory: Path) -> SimpleNamespace:
    return SimpleNamespace(
        say=lambda text: None, present=True, root=directory, directory=RunDirectory(directory)
    )


def dropped(state: ModelState) -> ModelState:
    pieces = (replace(piece, status=PieceStatus.DROPPED) for piece in state.pieces)
    return replace(state, pieces=tuple(pieces))


def test_what_is_known_of_a_model_comes_beside_its_pieces(
    asked: list[Question], tmp_path: Path
) -> None:
    state = state_of(tmp_path)
    with Beginning(model_in(tmp_path), state, 5.0) as begun:
        first = begun.settle(state, wait=True)
        state = begun.wait(first)
    assert Proof(**json.loads(first.beginning)).error == OWN.error
    found = Proof(**json.loads(state.beginning))
    assert (found.eager_ms, found.best) == (4.0, ("compile", "eager_graph"))
    assert [(each.draws, each.baselines) for each in asked] == [(1, ()), (0, ("compile",))]
    with Beginning(model_in(tmp_path), state, 5.0) as begun:  # taken up again: nothing is asked
        assert begun.wait(state) == state
    assert len(asked) == 2


def test_a_compiled_way_is_not_lost_by_a_run_that_was_killed_before_it_was_timed(
    asked: list[Question], tmp_path: Path
) -> None:
    state = replace(state_of(tmp_path), beginning=json.dumps(asdict(OWN)))
    with Beginning(model_in(tmp_path), state, 5.0) as begun:
        state = begun.wait(state)
    assert Proof(**json.loads(state.beginning)).baselines_ms["compile"] == 2.0
    assert [each.baselines for each in asked] == [("compile",)]


def test_a_compiled_way_that_failed_is_missing_with_the_reason(
    asked: list[Question], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def prove(question: Question, **how: object) -> Proof:
        return Proof(False, "", "it took too long") if question.baselines else OWN

    monkeypatch.setattr(beginning_module, "prove", prove)
    state = state_of(tmp_path)
    with Beginning(model_in(tmp_path), state, 5.0) as begun:
        state = begun.wait(state)
    assert Proof(**json.loads(state.beginning)).missing == {"compile": "it took too long"}


def test_the_model_itself_has_no_kernels_where_a_run_is_taken_up_again(
    asked: list[Question], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    composed: list[int] = []

    def question_about(model: object, state: ModelState, place: str) -> Question:
        composed.append(len(state.kept))
        return ASKED

    monkeypatch.setattr(beginning_module, "question_about", question_about)
    state = state_of(tmp_path)
    assert state.kept
    Beginning(model_in(tmp_path), state, 5.0)
    assert composed == [0]


def test_a_model_is_not_refused_for_a_process_that_ended_beside_a_piece(
    asked: list[Question], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers = iter([Proof(False, "", "CUDA out of memory"), WAY, OWN])
    monkeypatch.setattr(beginning_module, "prove", lambda *asked, **how: next(answers))
    state = state_of(tmp_path)
    with Beginning(model_in(tmp_path), state, 5.0) as begun:
        state = begun.wait(state)
    assert Proof(**json.loads(state.beginning)).error == OWN.error


def test_a_model_in_which_no_kernel_can_be_proved_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(beginning_module, "question_about", lambda *about: ASKED)
    monkeypatch.setattr(
        beginning_module, "prove", lambda *asked, **how: Proof(False, "", "it draws")
    )
    state = state_of(tmp_path)
    with (
        pytest.raises(ProblemError, match=r"No kernel could be proved in M: it draws"),
        Beginning(model_in(tmp_path), state, 0.0) as begun,
    ):
        begun.settle(state, wait=True)


def test_a_model_that_was_not_held_to_itself_in_time_is_told_to_take_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def late(*asked: object, **how: object) -> Proof:
        time.sleep(1.1)
        return Proof(False, "", "it has not ended")

    monkeypatch.setattr(beginning_module, "question_about", lambda *about: ASKED)
    monkeypatch.setattr(beginning_module, "prove", late)
    state = state_of(tmp_path)
    state = replace(state, settings=replace(state.settings, within=1 / 60))
    with (
        pytest.raises(ProblemError, match="give it more time, or the GPU while nobody else has it"),
        Beginning(model_in(tmp_path), state, 0.0) as begun,
    ):
        begun.settle(state, wait=True)


@pytest.mark.parametrize(
    ("change", "left", "against", "baselines"),
    [
        (lambda state: state, None, ("compile", "eager_graph", "max_autotune"), ()),
        (dropped, None, (), ("max_autotune",)),  # it runs as it is, and that is timed
        (dropped, 30.0, None, None),  # no time for that
    ],
)
def test_what_is_chosen_by_timing_is_timed_in_the_end(
    change: Callable[[ModelState], ModelState],
    left: float | None,
    against: tuple[str, ...] | None,
    baselines: tuple[str, ...] | None,
    asked: list[Question],
    tmp_path: Path,
) -> None:
    known = holding.with_baselines(OWN, WAY)
    state = replace(change(state_of(tmp_path)), beginning=json.dumps(asdict(known)))
    if left is not None:
        state = replace(state, settings=replace(state.settings, within=left / 60))
    manifest = RunDirectory(tmp_path).write_text("composed/composed.json", '{"rest": "eager"}')
    ended = holding.prove_whole(model_in(tmp_path), state)
    assert (json.loads(manifest.read_text())["rest"] == "compiled") == bool(ended.proof)
    assert [(each.against, each.baselines) for each in asked] == (
        [] if against is None else [(against, baselines)]
    )
    told = Proof(**json.loads(ended.proof or ended.beginning))
    assert ("max_autotune" in told.baselines_ms) == bool(asked)
    assert told.baselines_ms["compile"] == 2.0


def test_pieces_share_the_minutes_by_what_they_may_save(tmp_path: Path) -> None:
    state = state_of(tmp_path)
    pieces = tuple(
        PieceState(name, name, (), calls, 1.0, 0.01, ())
        for name, calls in (("large", 6), ("small", 3), ("least", 1))
    )
    state = replace(state, pieces=pieces)
    most = state.settings.piece.budget.minutes
    given = [_minutes_for(state, piece, 2.5) for piece in pieces]
    assert given == pytest.approx([1.5, 0.75, 0.7])  # of little enough for one kernel
    assert _minutes_for(state, pieces[0], 1000.0) == most
    assert _minutes_for(state, pieces[0], 0.5) == 0.5


def test_what_must_end_in_time_leaves_some_to_hold_a_piece_to_the_whole(tmp_path: Path) -> None:
    state = replace(state_of(tmp_path), proof_s=20.0, began_s=0.0)
    settings = replace(state.settings, within=10.0, minutes=30.0)
    state = replace(state, settings=settings, beginning=json.dumps(asdict(OWN)))
    estimated = replace(state, beginning=json.dumps(asdict(replace(OWN, eager_ms=None))))
    assert _left_minutes(state, 60.0) == pytest.approx((540 - 60 - 50) / 60)
    assert _left_minutes(estimated, 60.0) == pytest.approx((540 - 60) / 60)


def test_a_question_ends_with_who_asked() -> None:
    with pytest.raises(ExecutorError, match="ended with"):
        ask(
            "kmem.whole.proving.proof",
            {},
            gpu=False,
            timeout_s=60.0,
            on_begun=lambda process: threading.Timer(0.1, process.kill).start(),
        )


#: A module that answers as `answer` does, prints beside that, and takes its time.
ANSWERS = """
import json, subprocess, sys, time
asked = json.loads(sys.argv[1])
for number in range(asked["tells"]):
    print(f'\\nkmem answers {{"number": {number}}}', flush=True)
print("a model prints\\n17", flush=True)
if asked["child"]:  # keeps the pipes open
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
time.sleep(asked["sleeps"])
"""


@pytest.mark.parametrize(
    ("tells", "sleeps", "child", "found"),
    [
        (2, 600, False, {"number": 1}),
        (2, 0, False, {"number": 1}),
        (0, 600, False, "has not ended within 2 s"),
        (0, 0, False, "ended with 0"),
        (2, 600, True, "has not ended within 2 s"),
    ],
)
def test_the_last_answer_counts_that_was_told_in_time(
    tells: int,
    sleeps: float,
    child: bool,
    found: dict[str, int] | str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "answers_then_sleeps.py").write_text(ANSWERS, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(process, "_PIPES_S", 0.5)
    asked = {"tells": tells, "sleeps": sleeps, "child": child}
    told = nullcontext() if isinstance(found, dict) else pytest.raises(ExecutorError, match=found)
    with told:
        timeout_s = 2.0 if sleeps else 60.0
        assert ask("answers_then_sleeps", asked, gpu=False, timeout_s=timeout_s) == found


def test_what_ran_out_of_memory_is_answered_once_more_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rooms: list[bool] = []

    def find(asked: dict[str, object], tell: Tell) -> dict[str, object]:
        tell({"told": len(rooms)})
        if not rooms:
            raise torch.OutOfMemoryError("no room")
        return asked

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(process, "make_room", lambda: rooms.append(True))
    monkeypatch.setattr(sys, "argv", ["find", '{"asked": 1}'])
    process.answer(find)
    said = capsys.readouterr().out.split("\n")
    assert [line for line in said if line] == [
        'kmem answers {"told": 0}',
        'kmem answers {"told": 1}',
        'kmem answers {"asked": 1}',
    ]
    assert rooms == [True]


def test_what_a_process_compiles_lies_with_kernels_and_then_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMEM_DB", str(tmp_path / "kmem.db"))
    for name, value in process._caches().items():
        monkeypatch.setenv(name, value)
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "cache" / "triton")  # of the judge
    process.leave_caches_of_kernels()
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        assert os.environ[name].startswith(str(tmp_path / "cache" / "whole"))


def test_a_way_that_was_not_timed_before_the_time_was_over_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = Proof(True, "kernels on the GPU", eager_ms=2.0, baselines_ms={"compile": 1.0})
    monkeypatch.setattr(proving, "ask", lambda *asked, **how: asdict(known))
    against = ("eager", "compile_graph", "max_autotune")
    asked = Question("m.py", (), None, "match", "d", 1, True, against=against)
    assert proving.prove(asked, gpu=True).missing == {"max_autotune": LATE}
    assert proving.prove(replace(asked, time=False), gpu=False).missing == {}


def test_inductor_tunes_in_turns_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.runtime import benchmarking

    opened = GpuLease(tmp_path, "card", lambda text: None)
    seen: list[bool] = []
    tool = SimpleNamespace(benchmark=lambda: seen.append(is_taken(tmp_path)))
    monkeypatch.setattr(benchmarking, "benchmarker", tool)
    monkeypatch.setattr(turns, "_open", lambda: opened)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with turns.tuning_in_turn():
        assert not is_taken(tmp_path)
        tool.benchmark()
    assert seen == [True] and not is_taken(tmp_path)


def test_modules_of_the_worker_leave_a_model_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {name: ModuleType(name) for name in ("tuning", "clocks")}
    for name, module in own.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "results", raising=False)
    path = [*sys.path]
    assert turns.of_the_worker("tuning").tuning_in_turn
    assert {name: sys.modules[name] for name in own} == own
    assert "results" not in sys.modules and sys.path == path
