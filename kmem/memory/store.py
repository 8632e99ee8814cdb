"""`Memory`: the whole memory behind one object.

The methods live with their nouns; see the package's docstring for the map.
"""

from pathlib import Path
from types import TracebackType

from kmem.memory.devices import DeviceStorage
from kmem.memory.ledger.outcomes import LedgerStorage
from kmem.memory.ledger.recall import RecallStorage
from kmem.memory.ledger.track_records import EvidenceStorage
from kmem.memory.location import default_db_path
from kmem.memory.runs.conversations import CompletionStorage
from kmem.memory.runs.runs import RunStorage
from kmem.memory.skills.embeddings import Embedder
from kmem.memory.skills.search import SearchStorage

__all__ = ["Memory", "default_db_path"]


class Memory(
    RunStorage,
    CompletionStorage,
    LedgerStorage,
    EvidenceStorage,
    RecallStorage,
    DeviceStorage,
    SearchStorage,
):
    """Everything kmem remembers, in one SQLite file; frozen records go in and come out.

    Use it as a context manager. Opening creates the file, or migrates an older one; several
    processes may use it at once. `embed` turns texts into vectors; by default the model
    `embeddings.load_embedder` names, loaded when something must be embedded.
    """

    def __init__(
        self,
        path: Path | str | None = None,
        embed: Embedder | None = None,
        *,
        lock_timeout_s: float = 30.0,
    ) -> None:
        """Open `path` (default: `default_db_path()`).

        Raises:
            MemoryStoreError: if the file or its directory cannot be used, or a newer kmem wrote it.
        """
        super().__init__(
            Path(path).expanduser().absolute() if path is not None else default_db_path(),
            lock_timeout_s=lock_timeout_s,
        )
        if embed is not None:
            self._embed, self._embed_loaded = embed, True

    def __enter__(self) -> "Memory":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
