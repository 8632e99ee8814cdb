"""A run speaks before its evaluator is there: opening one may have to wait for the GPU's memory."""

from pathlib import Path

import pytest
from scripted_evaluator import ScriptedEvaluator, make_run, open_traced_session

from kmem.memory.store import Memory
from kmem.records import Timing
from kmem.run.report.report import host_line
from kmem.run.stages.parts import open_parts
from kmem.run.state.progress import Announce, Event


@pytest.mark.parametrize(
    ("back_to_back_ms", "graph_ms", "said"),
    [
        (0.8, 0.41, "This win holds only under CUDA graphs"),
        (0.8, None, "This win holds on the device alone"),
        (0.5, 0.41, None),
    ],
)
def test_the_report_says_when_the_host_takes_a_win_back(
    back_to_back_ms: float, graph_ms: float | None, said: str | None
) -> None:
    timing = Timing(
        0.4,
        0.4,
        0.4,
        30,
        reference="compile",
        reference_ms=0.6,
        ratio=1.5,
        host_us=733.4,
        first_call_s=1.44,
        back_to_back_ms=back_to_back_ms,
        reference_back_to_back_ms=0.61,
        graph_ms=graph_ms,
        reference_graph_ms=graph_ms and 0.574,
    )
    line = host_line(timing)
    assert line.startswith("first call: 1.4 s; host: 733 us a call; calls one after another take")
    assert "those of compile 0.61 ms" in line
    assert ("0.41 ms, compile captured alike 0.574 ms: 1.40x" in line) == (graph_ms is not None)
    assert (said or "") in line and ("This win" in line) == (said is not None)
    assert host_line(Timing(0.4, 0.4, 0.4, 30)) is None


def test_what_is_announced_while_the_evaluator_opens_reaches_the_display(tmp_path: Path) -> None:
    run = make_run(tmp_path, base_url="", minutes=2.0)
    said: list[Event] = []
    with Memory(tmp_path / "kmem.db") as memory:
        memory.runs.start(run)
        session = open_traced_session(memory)

        def open_evaluator(announce: Announce) -> ScriptedEvaluator:
            announce("measure", "waiting for memory on the GPU")
            return ScriptedEvaluator(session)

        with open_parts(run, session, memory, said.append, open_evaluator):
            pass
    assert [(event.text, event.seconds_left) for event in said] == [
        ("waiting for memory on the GPU", 120.0)
    ]
