"""`Memory`: the whole memory behind one object, an attribute for each of its nouns."""

from pathlib import Path
from types import TracebackType

from kmem.memory.devices import Devices
from kmem.memory.ledger.contributors import Contributors
from kmem.memory.ledger.listing import Listing
from kmem.memory.ledger.outcomes import Ledger
from kmem.memory.ledger.track_records import TrackRecords
from kmem.memory.ledger.winners import Winners
from kmem.memory.location import default_db_path
from kmem.memory.runs.conversations import Conversations
from kmem.memory.runs.entries import Entries
from kmem.memory.runs.faults import Faults
from kmem.memory.runs.runs import Runs
from kmem.memory.skills.embeddings import Embedder
from kmem.memory.skills.search import Skills
from kmem.memory.skills.standing import Standings
from kmem.memory.skills.vectors import Vectors
from kmem.memory.storage import Storage

__all__ = ["Memory", "default_db_path"]


class Memory:
    """Everything kmem remembers, in one SQLite file; frozen records go in and come out.

    Use it as a context manager. Opening creates the file, or migrates an older one; several
    processes may use the file at once.

        with Memory() as memory:
            memory.ledger.record(outcome)
            memory.track_records.of_skill("online-softmax")
    """

    def __init__(
        self,
        path: Path | str | None = None,
        embed: Embedder | None = None,
        *,
        lock_timeout_s: float = 30.0,
        to_read: bool = False,
    ) -> None:
        """Open a database.

        Args:
            path: of the file; by default `default_db_path()`.
            to_read: make no file, and take one that cannot be written as it is (`Storage`).
            embed: turns texts into vectors; by default the model that `embeddings.load_embedder`
                names, loaded when something must be embedded.

        Raises:
            MemoryStoreError: if the file or its directory cannot be used, or this kmem cannot read
                what is in the file.
        """
        self.path = Path(path).expanduser().absolute() if path is not None else default_db_path()
        self.storage = Storage(self.path, lock_timeout_s=lock_timeout_s, to_read=to_read)
        self.runs = Runs(self.storage)
        self.run_entries = Entries(self.storage)
        self.faults = Faults(self.storage)
        self.conversations = Conversations(self.storage)
        self.ledger = Ledger(self.storage)
        self.listing = Listing(self.storage)
        self.winners = Winners(self.storage)
        self.contributors = Contributors(self.storage)
        self.track_records = TrackRecords(self.storage, self.contributors)
        self.devices = Devices(self.storage)
        self.vectors = Vectors(self.storage, embed)
        self.skills = Skills(self.storage, self.vectors)
        self.standings = Standings(self.storage, self.ledger, self.contributors)

    @classmethod
    def to_read(cls, path: Path | str | None = None) -> "Memory":
        """The memory for a command that only reads.

        No file is made where there is none: that memory is empty. One that may not be written, on a
        share for instance, is read all the same. Raises MemoryStoreError as opening does.
        """
        return cls(path, to_read=True)

    def __enter__(self) -> "Memory":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the object cannot be used afterwards."""
        self.storage.close()
