"""What can go wrong with a file: damage, foreign files, locks, a full disk, `kill -9`."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from sqlite_utils import Database

from kmem.errors import MemoryStoreError
from kmem.memory.stats import memory_stats
from kmem.memory.store import Memory
from kmem.memory.verify import verify_memory
from kmem.records import Kernel

WRITER = textwrap.dedent(
    """
    import sys
    from kmem.memory.store import Memory
    from kmem.records import Kernel
    path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with Memory(path) as memory:
        for index in range(count):
            kernel = Kernel(f"{name} {index}")
            memory.runs.put_kernel(kernel)
            print(kernel.hash, flush=True)
    """
)


def _writer(path: Path, name: str, count: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_what_was_committed_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "kmem.db"
    writer = _writer(path, "kernel", 100_000)
    committed = [writer.stdout.readline().strip() for _ in range(200)]
    os.kill(writer.pid, signal.SIGKILL)
    committed += writer.stdout.read().split("\n")[:-1]
    writer.wait()
    with Memory(path) as memory:
        assert all(memory.runs.kernel(kernel_hash) is not None for kernel_hash in committed)
        assert verify_memory(memory) == []
        assert len(committed) <= memory_stats(memory).kernels <= len(committed) + 1


def test_processes_that_open_and_write_at_once_all_succeed(tmp_path: Path) -> None:
    path = tmp_path / "kmem.db"
    writers = [_writer(path, f"writer {index}", 100) for index in range(3)]
    hashes = [
        kernel_hash
        for writer in writers
        for kernel_hash in writer.communicate(timeout=60)[0].split()
    ]
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    with Memory(path) as memory:
        assert memory_stats(memory).kernels == len(set(hashes)) == 300


def test_a_transaction_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with Memory(tmp_path / "kmem.db") as memory:
        with pytest.raises(KeyError), memory.storage.write():
            memory.runs.put_kernel(Kernel("half done"))
            raise KeyError
        assert memory_stats(memory).kernels == 0


def _refused(path: Path) -> str:
    with pytest.raises(MemoryStoreError) as caught:
        Memory(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert "KMEM_DB" in message
    return message


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "kmem.db"
    path.write_text("these are my notes, and long enough to have a header's length; " * 20)
    before = path.read_bytes()
    assert "is not a database" in _refused(path)
    assert path.read_bytes() == before


def test_a_directory_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be opened" in _refused(tmp_path)


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table visits (url text)")
    connection.close()
    assert "belongs to another program" in _refused(path)
    assert Database(path).table_names() == ["visits"]


def test_a_newer_database_is_refused_by_name_of_what_is_newer(tmp_path: Path) -> None:
    path = tmp_path / "kmem.db"
    with Memory(path) as memory:
        memory.storage.db.execute(
            "insert into _sqlite_migrations (migration_set, name, applied_at) values ('kmem', "
            "'m999_add_telepathy', '2030-01-01')"
        )
    message = _refused(path)
    assert "newer kmem (m999_add_telepathy)" in message
    assert "upgrade kmem" in message


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MemoryStoreError, match="cannot be made .*KMEM_DB"):
        Memory(tmp_path / "file" / "kmem.db")


def test_a_damaged_page_is_named_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "kmem.db"
    with Memory(path) as memory:
        for index in range(50):
            memory.runs.put_kernel(Kernel(f"kernel {index} " + "x" * 4000))
    data = bytearray(path.read_bytes())
    page = 4096
    for start in range(page * 4, len(data), page):
        data[start : start + 200] = b"\xff" * 200
    path.write_bytes(data)
    with (
        pytest.raises(MemoryStoreError, match=f"{path} is damaged; `kmem db recover` saves"),
        Memory(path) as memory,
    ):
        memory.storage.read("select sum(length(source)) from kernels")


FILLER = textwrap.dedent(
    """
    import subprocess, sys
    from pathlib import Path
    from kmem.errors import MemoryStoreError
    from kmem.memory.stats import memory_stats
    from kmem.memory.store import Memory
    from kmem.memory.verify import verify_memory
    from kmem.records import Kernel
    mounted = Path(sys.argv[1])
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mounted)], check=True)
    committed = []
    with Memory(mounted / "kmem.db") as memory:
        try:
            for index in range(1000):
                kernel = Kernel(f"{index} " + "x" * 20_000)
                memory.runs.put_kernel(kernel)
                committed.append(kernel.hash)
        except MemoryStoreError as ex:
            print(ex)
        assert 10 < len(committed) < 1000
        assert all(memory.runs.kernel(kernel_hash) is not None for kernel_hash in committed)
    # space is freed: the remedy works
    subprocess.run(["mount", "-o", "remount,size=8m", str(mounted)], check=True)
    with Memory(mounted / "kmem.db") as memory:
        assert memory_stats(memory).kernels == len(committed) and verify_memory(memory) == []
        assert memory.runs.put_kernel(Kernel("y" * 20_000))
    """
)


def test_a_disk_that_is_really_full_loses_nothing_that_was_committed(tmp_path: Path) -> None:
    """On a file system of 2 MiB, mounted in a namespace of its own."""
    if subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)],
        capture_output=True,
        check=False,
    ).returncode:
        pytest.skip("this machine allows no mounts in a user namespace")
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", FILLER, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"Database .*kmem.db cannot grow: the disk is full; "
        r"free some space or choose another with KMEM_DB .*\n",
        done.stdout,
    )


LEDGER_WRITER = textwrap.dedent(
    """
    import sys
    from dataclasses import replace
    sys.path.insert(0, sys.argv[2])
    from test_memory_store import make_outcome
    from kmem.memory.store import Memory
    with Memory(sys.argv[1]) as memory:
        for index in range(100_000):
            outcome = make_outcome(1.0, parent_ms=2.0, created_at=f"{index}")
            memory.ledger.record(outcome)
            print(outcome.hash, flush=True)
    """
)


def test_killing_a_writer_of_outcomes_leaves_sums_that_fit_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "kmem.db"
    writer = subprocess.Popen(
        [sys.executable, "-c", LEDGER_WRITER, str(path), str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        text=True,
    )
    committed = [writer.stdout.readline().strip() for _ in range(50)]
    os.kill(writer.pid, signal.SIGKILL)
    committed += writer.stdout.read().split("\n")[:-1]
    writer.wait()
    with Memory(path) as memory:
        assert memory.ledger.known(committed) == set(committed)
        assert memory.track_records.sums()[0].tried == memory_stats(memory).outcomes
        assert memory.track_records.rebuild().differing == 0
        assert verify_memory(memory) == []


def test_a_full_disk_loses_only_what_was_being_written(tmp_path: Path) -> None:
    with Memory(tmp_path / "kmem.db") as memory:
        memory.runs.put_kernel(Kernel("kept"))
        pages = memory.storage.read("pragma page_count")[0]["page_count"]
        # SQLite then reports the same SQLITE_FULL as a full disk
        memory.storage.db.execute(f"pragma max_page_count = {pages:d}")
        with pytest.raises(MemoryStoreError, match="disk is full; free some space"):
            memory.runs.put_kernel(Kernel("x" * 100_000))
        assert memory.runs.kernel(Kernel("kept").hash) == Kernel("kept")
        assert memory.runs.kernel(Kernel("x" * 100_000).hash) is None


def test_a_file_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with Memory(tmp_path / "kmem.db") as memory:
        # the same SQLITE_READONLY as a read-only file, which root could write
        memory.storage.db.execute("pragma query_only = on")
        with pytest.raises(
            MemoryStoreError,
            match="is read-only; make it and its directory writable or choose another with KMEM_DB",
        ):
            memory.runs.put_kernel(Kernel("k"))


def test_a_lock_is_waited_for_and_then_named(tmp_path: Path) -> None:
    path = tmp_path / "kmem.db"
    with (
        Memory(path) as holder,
        Memory(path, lock_timeout_s=0.05) as waiter,
        holder.storage.write(),
    ):
        assert waiter.runs.kernel("readers never wait") is None
        with pytest.raises(MemoryStoreError, match="is locked by another program"):
            waiter.runs.put_kernel(Kernel("k"))


def test_a_mistake_in_our_own_sql_keeps_its_traceback(tmp_path: Path) -> None:
    with (
        Memory(tmp_path / "kmem.db") as memory,
        pytest.raises(sqlite3.OperationalError, match="no such table"),
    ):
        memory.storage.read("select 1 from a_table_nobody_made")
