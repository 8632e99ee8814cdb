"""Landscapes recorded on workers go on where a lost one was, on the same card only."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_landscape import H200, SOFTMAX

from kmem.cli import cli
from kmem.engines.card import Card
from kmem.engines.executor import Crew, Joined, Wanted, Worker
from kmem.engines.local import LocalExecutor
from kmem.errors import ExecutorError
from kmem.learning.landscape import LandscapeDirectory, judged
from kmem.learning.recording.compile import compiled_point
from kmem.learning.recording.elsewhere import _Recording, record_elsewhere
from kmem.learning.recording.request import Asked
from kmem.learning.recording.schedule import Progress
from kmem.learning.recording.write import write_problem
from kmem.plugins import build_plugin_manager, collect
from kmem.profile.compile.report import CompileReport, CompileStatus
from kmem.records import Contract, Measurement, Problem, Status, Timing

SOURCE = SOFTMAX.replace("64, 4096", "8, 256").replace(
    "torch.softmax(x, dim=1)", "x * torch.sigmoid(x)"
)
SWISH = Problem("swish", "swish.py", SOURCE)
ASKED = Asked(H200, present=False, contract=Contract(), settings=2, seed=0, minutes=1.0, jobs=1)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "places" / "swish.json"
    place.parent.mkdir()
    yield place


def test_what_there_is_goes_along_to_the_same_card_and_to_no_other(
    tmp_path: Path, places: Path
) -> None:
    recording = _Recording(SWISH, (), tmp_path, ASKED, lambda text, failed: None)
    (tmp_path / "swish.jsonl").write_text("{}\n")
    card, other = Worker("a", "host", "GPU-1"), Worker("b", "host", "GPU-2")
    assert recording.job(card).inputs == {}  # nobody knows whose it is
    assert list(recording.job(card).inputs) == ["landscapes/swish.jsonl"]
    assert recording.job(other).inputs == {}
    assert recording.job(Worker("slurm", "", "slurm")).inputs == {}  # whichever card that is


@pytest.mark.slow
def test_a_recording_on_a_worker_goes_on_from_what_it_had_told(
    tmp_path: Path, places: Path
) -> None:
    written = write_problem(SWISH, (), ASKED, tmp_path, tmp_path / "scratch")
    directory = LandscapeDirectory(tmp_path)
    # one verdict was told, of a time that measuring again would not find
    report = CompileReport(written.kernels[1][0].hash, CompileStatus.OK, "", (), "ptx", 1.0, ())
    compiled = compiled_point(*written.kernels[1], report, None, ASKED)
    timing = Timing(123.0, 123.0, 123.0, 5)
    kept = judged(compiled, Measurement(Status.PASSED, timing, estimated=True))
    directory.append("swish", kept)
    places.write_text(json.dumps([]))
    told: list[Progress] = []
    with LocalExecutor().hire(Wanted(0, 1), lambda text: None) as crew:
        record_elsewhere(crew, [SWISH], tmp_path, ASKED, told.append)
    assert [(progress.done, progress.total) for progress in told] == [(1, 1)]
    assert told[0].text.startswith("swish: 3 of 3 passed in")
    whole = directory.find("swish")
    assert directory.is_finished("swish") and not (tmp_path / "swish.jsonl").exists()
    assert whole.settings[kept.choices] == kept
    assert whole.best.latency_ms < 1.0


@pytest.mark.slow
def test_a_card_that_is_another_records_nothing(tmp_path: Path) -> None:
    card = Card("there", "GPU-1", "NVIDIA H200").to_json()
    asked = replace(ASKED, card=card)
    with (
        LocalExecutor().hire(Wanted(0, 1), lambda text: None) as crew,
        pytest.raises(ExecutorError, match="No worker is fit"),
    ):
        record_elsewhere(crew, [SWISH], tmp_path, asked, lambda progress: None)
    assert not list(tmp_path.glob("swish.jsonl*"))


def test_gpus_of_this_machine_are_the_local_case_of_an_executor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "swish.py").write_text(SOURCE)
    found: list[tuple[str, list[str]]] = []

    def record(crew: Crew, problems: Sequence[Problem], root: Path, *rest: object) -> None:
        joined = [event.worker.id for event in crew.events(1.0) if isinstance(event, Joined)]
        found.append((problems[0].name, joined))

    monkeypatch.setattr("kmem.cli.actions.record.record_elsewhere", record)
    words = ["bench", str(tmp_path / "swish.py"), "--record", str(tmp_path / "out")]
    words += ["--target", "h200", "--gpus", "0", "--jobs", "2"]
    done = CliRunner().invoke(cli, words, obj=collect(build_plugin_manager()))
    assert done.exit_code == 0, done.output
    assert found == [("swish", ["cpu-0", "cpu-1"])]
