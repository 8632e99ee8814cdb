"""Share the ledger through a git repository.

Every contributor adds segments and nobody ever changes one, so nothing can conflict. A segment is a
file of export lines (lines.py) named by its content, segments/<contributor>/<SHA-256>.jsonl, on a
branch of its own.

Syncing fetches the branch, merges the segments not merged yet, and pushes one new segment with this
memory's own outcomes and retractions that none of its segments holds. Who pushes second fetches
again and adds the same file on top. A killed sync leaves nothing half done: the clone is reset to
the remote each time, and merging is idempotent. A segment or a line that cannot be taken is named
and left out, each time again until it is mended; it stops nothing else.
"""

import hashlib
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kmem.errors import MemoryStoreError
from kmem.memory.store import Memory
from kmem.memory.team.exchange import Exchanged, merge_what_is_whole
from kmem.memory.team.git import run_git
from kmem.memory.team.lines import (
    header_lines,
    outcome_lines,
    outgoing_settlements,
    retraction_lines,
    settlement_lines,
)
from kmem.memory.team.names import find_name
from kmem.records import content_hash
from kmem.serialize import from_json, to_json

BRANCH = "kmem-memory"
#: Pushes tried while others push at the same time: one of all who push at once gets through, so
#: that the last of twenty members needs about twenty, and pauses of chance part them.
_PUSHES = 80
_PAUSE_S = 0.25
#: What git says of a push that came second, or met another in the same moment.
_OVERTAKEN = (
    "[rejected]",
    "fetch first",
    "failed to lock",
    "cannot lock ref",
    "failed to update ref",
    "incorrect old value provided",
    "reference already exists",
)
_TRACKED = f"refs/remotes/origin/{BRANCH}"


@dataclass(frozen=True, slots=True)
class Synced:
    """What a sync merged, and what it published."""

    merged: Exchanged
    segments: int  # merged
    published: int  # outcomes and retractions; 0 if there was nothing new
    contributed: int = 0  # what else was put beside them
    refused: tuple[str, ...] = ()  # why segments and lines were left out


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """How a memory is synced; it remembers the last."""

    remote: str
    sources: bool = True
    redact: bool = False
    imported: bool = False


def remembered_settings(memory: Memory) -> SyncSettings | None:
    """How this memory was synced last; None if it never was."""
    rows = memory.storage.read("select record from sync_settings")
    return from_json(SyncSettings, rows[0]["record"]) if rows else None


def _remember(memory: Memory, settings: SyncSettings) -> None:
    with memory.storage.write() as connection:
        connection.execute(
            "insert or replace into sync_settings (id, record) values (1, ?)", [to_json(settings)]
        )


def contribute_nothing(clone: Path) -> int:
    """For a sync of outcomes alone."""
    return 0


def sync_memory(
    memory: Memory,
    remote: str,
    *,
    sources: bool = True,
    redact: bool = False,
    licence: str | None = None,
    imported: bool = False,
    contribute: Callable[[Path], int] = contribute_nothing,
) -> Synced:
    """Merge what others published at a git remote and publish what this memory measured itself.

    Args:
        remote: any address git takes; a directory for two memories on one machine. Its other
            branches are not touched.
        sources: as for `export_outcomes`. What was published before stays as it was published.
        redact: as for `export_outcomes`.
        licence: stated for this memory's own outcomes, now and from now on.
        imported: also publish what others measured and nobody has published there.
        contribute: puts further files into the clone before it is pushed, and says how many are
            new; called again after each fetch.

    Raises:
        MemoryStoreError: if git fails, or another licence was stated before.
    """
    if licence is not None:
        memory.contributors.set_licence(memory.contributors.own_name, licence)
    name = find_name(memory, redact=redact)
    clone = _open_clone(memory, remote)
    merged, segments = Exchanged(0, 0, 0), 0
    refused: dict[str, None] = {}  # each once, though a push that comes second reads them again
    for times in range(_PUSHES):
        if times:
            time.sleep(random.uniform(0, _PAUSE_S))
        _fetch(clone)
        for path in sorted(clone.glob("segments/*/*.jsonl")):
            added, reasons = _merge_segment(memory, path, remote)
            refused |= dict.fromkeys(reasons)
            if added is not None:
                merged, segments = merged + added, segments + 1
        _remember(memory, SyncSettings(_address(remote), sources, redact, imported))
        lines = list(_unpublished(memory, clone, sources=sources, redact=redact, imported=imported))
        contributed = contribute(clone)
        if not lines and not contributed:
            return Synced(merged, segments, 0, refused=tuple(refused))
        if lines:
            _write_segment(memory, clone, lines, name)
        own_name = memory.contributors.own_name
        message = f"{len(lines)} records, {contributed} skills of {name or own_name}"
        if _push(clone, message, name or "kmem"):
            return Synced(merged, segments, len(lines), contributed, tuple(refused))
    raise MemoryStoreError(
        f"Others pushed to {remote} each of {_PUSHES} times; run `kmem memory sync` again"
    )


def clone_path(memory: Memory, remote: str) -> Path:
    """Where the private clone for a remote lies, beside the database."""
    return memory.path.parent / "sync" / content_hash(_address(remote))[:16]


def _address(remote: str) -> str:
    return str(Path(remote).resolve()) if Path(remote).is_dir() else remote


def _open_clone(memory: Memory, remote: str) -> Path:
    address, clone = _address(remote), clone_path(memory, remote)
    if address.startswith("-"):
        raise MemoryStoreError(
            f"'{remote}' is no address of a git repository; give a URL or a directory"
        )
    if not (clone / ".git").is_dir():
        clone.mkdir(parents=True, exist_ok=True)
        run_git(clone, ["init", "--quiet", f"--initial-branch={BRANCH}"])
    run_git(clone, ["config", "remote.origin.url", address])
    return clone


def _fetch(clone: Path) -> None:
    """Make the clone's files those of the remote's branch; none if there is no such branch yet."""
    found = run_git(
        clone,
        ["fetch", "--quiet", "--no-tags", "origin", f"+refs/heads/{BRANCH}:{_TRACKED}"],
        allow=("couldn't find remote ref",),
    )
    if found is None:
        run_git(clone, ["update-ref", "-d", f"refs/heads/{BRANCH}"])
        run_git(clone, ["read-tree", "--empty"])
    else:
        run_git(clone, ["reset", "--quiet", "--hard", _TRACKED])
    run_git(clone, ["clean", "--quiet", "-ffdx"])


def _push(clone: Path, message: str, author: str) -> bool:
    """Commit what is new and push it; False if somebody else pushed first."""
    run_git(clone, ["add", "--all"])
    run_git(clone, ["commit", "--quiet", f"--author={author} <kmem@localhost>", "-m", message])
    pushed = run_git(
        clone,
        ["push", "--quiet", "origin", f"HEAD:refs/heads/{BRANCH}"],
        allow=_OVERTAKEN,
    )
    return pushed is not None


def _merge_segment(
    memory: Memory, path: Path, remote: str
) -> tuple[Exchanged | None, tuple[str, ...]]:
    """Merge a segment whose bytes are what its name says, and say what of it was left out.

    Nothing (None) is merged of one that was merged whole before, or is damaged.
    """
    name = f"{path.parent.name}/{path.stem}"
    if memory.storage.read("select 1 from segments where name = ?", [name]):
        return None, ()
    if hashlib.sha256(path.read_bytes()).hexdigest() != path.stem:
        reason = (
            f"Segment {name} of {remote} is damaged: its bytes have another hash; "
            "have its contributor restore it"
        )
        return None, (reason,)
    added, refused = merge_what_is_whole(memory, path)
    if refused:  # a later kmem may read these lines
        return added, tuple(refused)
    with memory.storage.write() as connection:
        connection.execute(
            "insert or ignore into segments (name, remote, merged_at) values (?, ?, ?)",
            [name, remote, datetime.now(UTC).isoformat(timespec="seconds")],
        )
    return added, ()


def _unpublished(
    memory: Memory, clone: Path, *, sources: bool, redact: bool, imported: bool
) -> Iterator[str]:
    """The lines of this memory's own records that its segments at the remote do not hold.

    A record that was published redacted is not published again. With `imported` also those of
    others that no segment holds.
    """
    own_name = memory.contributors.own_name
    holders = [own_name] if not imported else ["*"]
    published = {
        known
        for holder in holders
        for place in (clone / "segments").glob(holder)
        for known in _published_hashes(place)
    }
    rows = memory.storage.read(
        """
        select o.hash, o.source_hash, o.record, r.original_hash as redacts
        from outcomes o
        left join redactions r on r.redacted_hash = o.hash
        where (o.writer = ? and r.redacted_hash is null) or ?
        order by o.hash
        """,
        [own_name, imported],
    )
    new = (row for row in rows if not published & {row["hash"], row["redacts"]})
    yield from outcome_lines(memory, new, sources=sources, redact=redact)
    writer = None if imported else own_name
    yield from settlement_lines(
        settlement
        for settlement in outgoing_settlements(memory, redact=redact, writer=writer)
        if settlement.hash not in published
    )
    yield from retraction_lines(
        retraction
        for retraction in memory.ledger.retractions(writer)
        if retraction.hash not in published
    )


def _published_hashes(directory: Path) -> Iterator[str]:
    """The hashes of all records in a contributor's segments; of redacted ones their originals'."""
    for path in directory.glob("*.jsonl"):
        with path.open(encoding="utf-8") as lines:
            for text in lines:
                try:
                    data = json.loads(text)
                except ValueError:  # damaged: what it held is not there
                    continue
                if "hash" in data:  # a licence line has none
                    yield data.get("redacts", data["hash"])


def _write_segment(memory: Memory, clone: Path, lines: list[str], name: str | None) -> None:
    """Write the lines as a segment, with the licences and names of all whose records they are."""
    own_name = memory.contributors.own_name
    origins = {own_name, *(json.loads(line).get("outcome", {}).get("origin") for line in lines)}
    licences = memory.contributors.licences()
    names = memory.contributors.names() | ({own_name: name} if name is not None else {})
    header = header_lines(
        {origin: licence for origin, licence in licences.items() if origin in origins},
        {origin: called for origin, called in names.items() if origin in origins},
    )
    data = "".join(f"{line}\n" for line in [*header, *lines]).encode()
    directory = clone / "segments" / own_name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{hashlib.sha256(data).hexdigest()}.jsonl").write_bytes(data)
