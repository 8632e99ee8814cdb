"""Changes as server-sent events: a page is told that there is something new and asks for it.

What is told is no more than "changed": the page then loads itself, so that a live page and a loaded
one can never differ.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from kmem.errors import MemoryStoreError
from kmem.memory.store import Memory
from kmem.ui.reader import Reader

#: How often the database is looked at, in seconds. A look that finds nothing takes microseconds.
LOOK_EVERY_S = 0.4

Revision = Callable[[Memory], object]


async def watch(reader: Reader, revision: Revision) -> AsyncIterator[dict[str, str]]:
    """An event whenever a revision is another than before, until nobody listens."""
    known = await _ask(reader, revision)
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        found = await _ask(reader, revision)
        if found != known:
            known = found
            yield {"event": "changed", "data": "1"}


async def _ask(reader: Reader, revision: Revision) -> object:
    """The revision; None while the database cannot be read or the run is gone."""
    try:
        return await reader.ask(revision)
    except MemoryStoreError:
        return None
