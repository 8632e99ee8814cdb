"""How long each GPU of a bench was in use, from the holds of its lease."""

import json
from pathlib import Path

import pytest

from kmem.bench.utilisation import (
    FILE,
    Hold,
    describe_utilisation,
    measure_utilisation,
    read_holds,
)
from kmem.cli.actions.bench import _keep_use
from kmem.host.lease import HOLDS_VARIABLE, GpuLease


def test_time_that_several_hold_counts_once_and_gaps_do_not() -> None:
    holds = [
        Hold(0.0, 40.0, False, "screening"),
        Hold(10.0, 20.0, True, "timing"),
        Hold(30.0, 60.0, False, "screening"),
        Hold(80.0, 100.0, True, "timing"),
    ]
    (found,) = measure_utilisation({"GPU-1": holds, "GPU-2": []})
    assert (found.span_s, found.held_s, found.alone_s) == (100.0, 80.0, 30.0)
    assert found.held_for_s == {"screening": 70.0, "timing": 30.0}
    assert (found.times, found.longest_s) == (
        {"screening": 2, "timing": 2},
        {"screening": 40.0, "timing": 20.0},
    )
    assert describe_utilisation([found]) == (
        "GPU-1: in use 80% of 1.7 min between its first and last measurement, timing alone 30%; "
        "of its holders' time screening 70%, timing 30%"
    )


def test_each_piece_of_a_bench_keeps_a_line_and_tells_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = [Hold(0.0, 85.0, True, "racing"), Hold(95.0, 100.0, False, "screening")]
    holds = {"GPU-1": held, "GPU-2": []}
    for piece in (holds, {}):
        _keep_use(tmp_path, 100.0, piece)
    first, second = map(json.loads, (tmp_path / FILE).read_text().splitlines())
    assert [(each["gpu"], each["share"]) for each in first["gpus"]] == [("GPU-1", 0.9)]
    assert second["gpus"] == [] and first["wall_s"] >= 100
    assert capsys.readouterr().err.startswith("GPU-1: in use 90% of 1.7 min")


def test_a_lease_writes_its_holds_down_under_the_word_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for word in (None, "night"):
        if word:
            monkeypatch.setenv(HOLDS_VARIABLE, word)
        with (
            GpuLease(tmp_path, "GPU-1", lambda text: None) as lease,
            lease.hold(exclusive=False, purpose="verifying: its own values"),
        ):
            lease.turn_to("verifying: families")
            with (
                lease.hold(exclusive=True, purpose="timing"),
                lease.hold(exclusive=False, purpose="looking"),
            ):
                pass
    with next(tmp_path.glob("*.holds")).open("a") as file:
        file.write("17.0 18.0 1 tim")  # torn by a kill
    found = read_holds(tmp_path, "night")
    assert list(found) == ["GPU-1"]
    assert [(hold.alone, hold.purpose) for hold in found["GPU-1"]] == [
        (False, "verifying: its own values"),
        (False, "verifying: families"),
        (True, "timing"),
        (False, "verifying: families"),
    ]
    ends = [hold.end for hold in found["GPU-1"]]
    assert ends == sorted(ends)
    assert read_holds(tmp_path, "night", since=ends[-1] + 1) == {"GPU-1": []}
    assert read_holds(tmp_path, "other") == {}
