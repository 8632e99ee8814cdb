"""A workbench speaks before its laboratory is there: opening one may have to wait for the GPU's memory."""

from pathlib import Path

from scripted_laboratory import ScriptedLaboratory, make_run, open_traced_session

from kmem.laboratory import Announce
from kmem.memory.store import Memory
from kmem.workbench import Event, Workbench


def test_what_is_announced_while_the_laboratory_opens_reaches_the_display(tmp_path: Path) -> None:
    run = make_run(tmp_path, base_url="", minutes=2.0)
    said: list[Event] = []
    with Memory(tmp_path / "kmem.db") as memory:
        memory.start_run(run)
        session = open_traced_session(memory)

        def open_laboratory(announce: Announce) -> ScriptedLaboratory:
            announce("measure", "waiting for memory on the GPU")
            return ScriptedLaboratory(session)

        with Workbench(run, session, memory, said.append, open_laboratory):
            pass
    assert [(event.text, event.seconds_left) for event in said] == [("waiting for memory on the GPU", 120.0)]
