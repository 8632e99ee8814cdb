"""A run speaks before its evaluator is there: opening one may have to wait for the GPU's memory."""

from pathlib import Path

from scripted_evaluator import ScriptedEvaluator, make_run, open_traced_session

from kmem.memory.store import Memory
from kmem.run.parts import open_parts
from kmem.run.progress import Announce, Event


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
