"""Changes as server-sent events: a page is told that there is something new and asks for it.

What is told is no more than "changed": the page then loads itself, so that a live page and a loaded
one can never differ. A page says which state it shows, for something may have changed between its
making and the first look of its listener.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeAlias

from kmem.errors import MemoryStoreError
from kmem.memory.store import Memory
from kmem.records import content_hash
from kmem.run.directory import is_worked_on
from kmem.run.state.diary import diary_length
from kmem.ui.addresses import run_address
from kmem.ui.reader import Reader, data_version

#: How often the database is looked at, in seconds. A look that finds nothing takes microseconds.
LOOK_EVERY_S = 0.4

State: TypeAlias = "Callable[[Memory], str]"


def state_of_all(memory: Memory) -> str:
    """A text that changes whenever anything in the database does."""
    return str(data_version(memory))


def state_of_run(memory: Memory, run_id: str) -> str:
    """A text that changes whenever a run keeps or says something, or its process begins or ends.

    Raises MemoryStoreError if there is no such run.
    """
    run = memory.runs.get(run_id)
    kept = memory.run_entries.revision(run.id)
    root = Path(run.out_dir)
    return content_hash(repr((kept, diary_length(root), is_worked_on(root))))[:16]


def listen_to_all(memory: Memory) -> str:
    """The address of the events for a page that shows the database as it is now."""
    return f"/live?seen={state_of_all(memory)}"


def listen_to_run(memory: Memory, run_id: str) -> str:
    """The address of the events for a page that shows a run as it is now."""
    return f"{run_address(run_id)}/live?seen={state_of_run(memory, run_id)}"


async def watch(reader: Reader, state: State, seen: str) -> AsyncIterator[dict[str, str]]:
    """An event whenever a state is another than before, until nobody listens.

    Args:
        seen: the state that the page shows.
    """
    while True:
        try:
            found = await reader.ask(state)
        except MemoryStoreError:  # the run is gone, or the file cannot be read now
            found = ""
        if found != seen:
            seen = found
            yield {"event": "changed", "data": "1"}
        await asyncio.sleep(LOOK_EVERY_S)
