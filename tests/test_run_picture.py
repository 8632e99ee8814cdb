"""The picture of a run in the terminal, and that a file gets none."""

import io
import re
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console
from test_run_directory import RUN, attempt, result

from kmem.cli.display import live
from kmem.cli.display import run as display_run
from kmem.cli.display.picture import draw_bar, draw_steps, show_picture
from kmem.cli.display.run import RunDisplay
from kmem.run.state.progress import Event


def drawn(*, terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, color_system=None, width=80)
    attempts = [attempt(1, 3.0), attempt(2, None), attempt(3, 1.0)]
    show_picture(console, result(attempts[2]), attempts)
    return out.getvalue()


def test_bound_best_and_baselines_are_bars_of_one_scale() -> None:
    lines = [line.split() for line in drawn(terminal=True).splitlines()]
    assert [line[:2] for line in lines] == [
        ["bound", "0.8"],
        ["best", "1"],
        ["eager", "3"],
        ["compile", "2"],
        ["over", "2"],
    ]
    assert [len(line[-1]) for line in lines[:4]] == [11, 14, 40, 27]
    assert lines[4][-1] == "█▁"


def test_a_file_gets_no_picture() -> None:
    assert drawn(terminal=False) == ""


@pytest.mark.parametrize(("share", "bar"), [(0.0, "▏"), (0.5 / 40, "▌"), (2 / 40, "██")])
def test_a_bar_is_drawn_to_an_eighth(share: float, bar: str) -> None:
    assert draw_bar(share) == bar


def test_many_steps_fit_the_width_and_end_with_the_last() -> None:
    steps = draw_steps([float(100 - number) for number in range(100)])
    assert (len(steps), steps[0], steps[-1]) == (40, "█", "▁")
    assert draw_steps([2.0, 2.0]) == "▁▁"


def test_a_log_repeats_where_a_run_stands_only_when_that_has_changed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = Event("measure", "judging", None, 2.0, None, 1, 90.0, True)
    with RunDisplay(RUN) as show:
        for event in (first, first, replace(first, best_ms=1.0), replace(first, best_ms=1.0)):
            show(event)
    lines = [line for line in capsys.readouterr().err.splitlines() if "judging" in line]
    assert ["baseline 2 ms est." in line for line in lines] == [True, False, True, False]
    assert all(re.search(r"\d s\]$", line) for line in lines), "which `kmem bench` reads"


def test_a_log_is_told_that_long_work_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SILENCE_S", 0.05)
    err = ""

    def read_until(text: str) -> None:
        nonlocal err
        ends = time.monotonic() + 20
        while text not in err:
            assert time.monotonic() < ends, err
            time.sleep(0.01)
            err += capsys.readouterr().err

    with RunDisplay(RUN) as show:
        read_until("trace       still, for 0 s: tracing")
        show(Event("measure", "verifying", None, 2.0, None, 1, 90.0, True))
        read_until("measure     still, for 0 s: verifying  [90 s left, at ")
    time.sleep(0.2)
    told = len(capsys.readouterr().err)
    time.sleep(0.2)
    assert not capsys.readouterr().err, f"it has ended, after {told} characters"


def test_a_panel_counts_on_while_a_stage_works_and_past_the_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(display_run, "time", SimpleNamespace(monotonic=lambda: now[0]))
    display = RunDisplay(RUN)
    now[0] = 104.0
    assert "for h200  [for 4 s]" in shown(display)
    display.update(Event("measure", "verifying", 1.0, 2.0, None, 1, 20.0, True))
    now[0] = 119.0
    assert "measure     verifying  [for 15 s]" in shown(display)
    assert shown(display).endswith("1 measured, 5 s left")
    now[0] = 164.0
    assert "measure     verifying  [for 60 s]" in shown(display)
    assert " s left" not in shown(display)
    over = "over its minutes by 40 s, for what is begun and for the final verification"
    assert shown(display).endswith(over)


def shown(display: RunDisplay) -> str:
    return str(display.render().renderable)
