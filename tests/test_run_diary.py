"""The diary of a run: what it said, read by whoever looks at the run from outside."""

from pathlib import Path

from test_memory_store import RUN

from kmem.run.directory import RunDirectory
from kmem.run.state.diary import diary_length, noted, read_diary, write_entry
from kmem.run.state.progress import Event


def test_what_is_shown_is_noted_first_and_read_again(tmp_path: Path) -> None:
    shown: list[Event] = []
    event = Event("measure", "3 of 12:\nsoftmax", None, None, None, 3, 61.25, True)
    before = diary_length(tmp_path)
    noted(tmp_path, shown.append)(event)
    assert shown == [event]
    write_entry(tmp_path, "reflect", "x" * 9000)
    first, second = read_diary(tmp_path, 5)
    assert (first.stage, first.text, first.seconds_left) == ("measure", "3 of 12:\nsoftmax", 61.2)
    assert (second.text, second.seconds_left) == ("x" * 500, None)
    assert before == 0 < diary_length(tmp_path)
    assert read_diary(tmp_path, 1) == [second]


def test_damaged_and_unfinished_lines_are_left_out(tmp_path: Path) -> None:
    assert read_diary(tmp_path, 5) == []
    (tmp_path / "diary.jsonl").write_bytes(b"\xff\xfe\nnonsense\n{}\n")
    write_entry(tmp_path, "explore", "compiling")
    with open(tmp_path / "diary.jsonl", "a") as file:
        file.write('{"at": "2026')
    assert [entry.text for entry in read_diary(tmp_path, 5)] == ["compiling"]


def test_a_run_that_never_began_leaves_no_diary(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    with directory.work(RUN):
        write_entry(directory.root, "trace", "tracing")
    directory.abandon(RUN)
    assert list(tmp_path.iterdir()) == []
