"""Share the ledger through a git repository.

Every contributor adds segments and nobody ever changes one, so nothing can conflict. A segment is a
file of export lines (lines.py) named by its content, segments/<contributor>/<SHA-256>.jsonl, on a
branch of its own.

Syncing fetches the branch, merges the segments not merged yet, and pushes one new segment with this
memory's own outcomes and retractions that none of its segments holds. Who pushes second fetches
again and adds the same file on top. A killed sync leaves nothing half done: the clone is reset to
the remote each time, and merging is idempotent.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kmem.errors import MemoryStoreError
from kmem.memory.ledger.contributors import UNNAMED_ORIGIN
from kmem.memory.store import Memory
from kmem.memory.team.exchange import Exchanged, import_outcomes
from kmem.memory.team.git import run_git
from kmem.memory.team.lines import licence_line, outcome_lines, retraction_lines
from kmem.records import content_hash

BRANCH = "kmem-memory"
#: Pushes tried while others push at the same time.
_PUSHES = 8
_TRACKED = f"refs/remotes/origin/{BRANCH}"


@dataclass(frozen=True, slots=True)
class Synced:
    """What a sync merged, and what it published."""

    merged: Exchanged
    segments: int  # merged
    published: int  # outcomes and retractions; 0 if there was nothing new


def sync_memory(
    memory: Memory,
    remote: str,
    *,
    sources: bool = True,
    redact: bool = False,
    licence: str | None = None,
) -> Synced:
    """Merge what others published at a git remote and publish what this memory measured itself.

    Args:
        remote: any address git takes; a directory for two memories on one machine. Its other
            branches are not touched.
        sources: as for `export_outcomes`. What was published before stays as it was published.
        redact: as for `export_outcomes`.
        licence: stated for this memory's own outcomes, now and from now on.

    Raises:
        MemoryStoreError: if git fails, a segment is damaged, or another licence was stated before.
    """
    if licence is not None:
        memory.contributors.set_licence(memory.contributors.own_name, licence)
    clone = _open_clone(memory, remote)
    merged, segments = Exchanged(0, 0, 0), 0
    for _ in range(_PUSHES):
        _fetch(clone)
        for path in sorted(clone.glob("segments/*/*.jsonl")):
            added = _merge_segment(memory, path, remote)
            if added is not None:
                merged, segments = merged + added, segments + 1
        lines = list(_unpublished(memory, clone, sources=sources, redact=redact))
        if not lines:
            return Synced(merged, segments, 0)
        _write_segment(memory, clone, lines)
        if _push(clone, f"{len(lines)} records of {memory.contributors.own_name}"):
            return Synced(merged, segments, len(lines))
    raise MemoryStoreError(
        f"Others pushed to {remote} each of {_PUSHES} times; run `kmem memory sync` again"
    )


def _open_clone(memory: Memory, remote: str) -> Path:
    """The private clone for a remote, beside the database."""
    address = str(Path(remote).resolve()) if Path(remote).is_dir() else remote
    if address.startswith("-"):
        raise MemoryStoreError(
            f"'{remote}' is no address of a git repository; give a URL or a directory"
        )
    clone = memory.path.parent / "sync" / content_hash(address)[:16]
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


def _push(clone: Path, message: str) -> bool:
    """Commit the segments and push them; False if somebody else pushed first."""
    run_git(clone, ["add", "--", "segments"])
    run_git(clone, ["commit", "--quiet", "-m", message])
    pushed = run_git(
        clone,
        ["push", "--quiet", "origin", f"HEAD:refs/heads/{BRANCH}"],
        allow=("[rejected]", "fetch first", "failed to lock"),
    )
    return pushed is not None


def _merge_segment(memory: Memory, path: Path, remote: str) -> Exchanged | None:
    """Merge a segment whose bytes are what its name says; None if that was done before."""
    name = f"{path.parent.name}/{path.stem}"
    if memory.storage.read("select 1 from segments where name = ?", [name]):
        return None
    if hashlib.sha256(path.read_bytes()).hexdigest() != path.stem:
        raise MemoryStoreError(
            f"Segment {name} of {remote} is damaged: its bytes have another hash; "
            "have its contributor restore it"
        )
    added = import_outcomes(memory, path)
    with memory.storage.write() as connection:
        connection.execute(
            "insert or ignore into segments (name, remote, merged_at) values (?, ?, ?)",
            [name, remote, datetime.now(UTC).isoformat(timespec="seconds")],
        )
    return added


def _unpublished(memory: Memory, clone: Path, *, sources: bool, redact: bool) -> Iterator[str]:
    """The lines of this memory's own records that its segments at the remote do not hold.

    A record that was published redacted is not published again.
    """
    own_name = memory.contributors.own_name
    published = set(_published_hashes(clone / "segments" / own_name))
    rows = memory.storage.read(
        """
        select hash, source_hash, record, null as redacts
        from outcomes
        where json_extract(record, '$.origin') in (?, ?)
          and hash not in (select redacted_hash from redactions)
        order by hash
        """,
        [own_name, UNNAMED_ORIGIN],
    )
    new = (row for row in rows if row["hash"] not in published)
    yield from outcome_lines(memory, new, sources=sources, redact=redact)
    yield from retraction_lines(
        retraction
        for retraction in memory.ledger.retractions()
        if retraction.origin == own_name and retraction.hash not in published
    )


def _published_hashes(directory: Path) -> Iterator[str]:
    """The hashes of all records in a contributor's segments; of redacted ones their originals'."""
    for path in directory.glob("*.jsonl"):
        with path.open(encoding="utf-8") as lines:
            for text in lines:
                data = json.loads(text)
                if "hash" in data:  # a licence line has none
                    yield data.get("redacts", data["hash"])


def _write_segment(memory: Memory, clone: Path, lines: list[str]) -> None:
    own_name = memory.contributors.own_name
    licence = memory.contributors.licences().get(own_name)
    header = [licence_line({own_name: licence})] if licence is not None else []
    data = "".join(f"{line}\n" for line in [*header, *lines]).encode()
    directory = clone / "segments" / own_name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{hashlib.sha256(data).hexdigest()}.jsonl").write_bytes(data)
