"""Teams: two memories share outcomes through a git repository.

Nothing conflicts, and no source code leaves where it must not.
"""

import hashlib
import json
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_memory_store import make_outcome

from kmem.cli.memory.memory import memory as memory_group
from kmem.errors import MemoryStoreError
from kmem.memory.store import Memory
from kmem.memory.team import sync
from kmem.memory.team.exchange import Exchanged, export_outcomes, import_outcomes, merge_memory
from kmem.memory.team.git import run_git
from kmem.memory.team.sync import Synced, sync_memory
from kmem.memory.verify import verify_memory
from kmem.records import Kernel, Outcome, SiteChoice

NOTHING = Exchanged(0, 0, 0)


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    path = tmp_path / "team.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(path)], check=True)
    return path


@pytest.fixture
def team(tmp_path: Path):
    with Memory(tmp_path / "ann" / "kmem.db") as ann, Memory(tmp_path / "bob" / "kmem.db") as bob:
        yield ann, bob


def measure(memory: Memory, latency_ms: float = 1.0, **changes) -> Outcome:
    """Record an outcome with its kernel, as a run of this memory would."""
    source = f"def secret_kernel(): return {latency_ms}"
    memory.runs.put_kernel(Kernel(source))
    outcome = make_outcome(
        latency_ms, source=source, origin=memory.contributors.own_name, **changes
    )
    memory.ledger.record(outcome)
    return outcome


def published(remote: Path) -> list[str]:
    done = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", sync.BRANCH],
        cwd=remote,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_two_memories_that_sync_know_the_same(team, remote: Path) -> None:
    ann, bob = team
    measure(ann, 1.0)
    measure(bob, 2.0)
    assert sync_memory(ann, str(remote)) == Synced(NOTHING, 0, 1)
    assert sync_memory(bob, str(remote)) == Synced(Exchanged(1, 0, 1), 1, 1)
    assert sync_memory(ann, str(remote)).merged == Exchanged(1, 0, 1)
    assert ann.ledger.outcomes() == bob.ledger.outcomes()
    assert ann.track_records.sums() == bob.track_records.sums()
    assert sorted(Path(name).parent.name for name in published(remote)) == sorted(
        [ann.contributors.own_name, bob.contributors.own_name]
    )
    assert verify_memory(ann) == verify_memory(bob) == []


def test_syncing_again_publishes_and_merges_nothing(team, remote: Path) -> None:
    ann, _ = team
    measure(ann)
    sync_memory(ann, str(remote))
    before = published(remote)
    # Its own segment is read once, like any other: nothing in it is new.
    assert sync_memory(ann, str(remote)) == Synced(NOTHING, 1, 0)
    assert sync_memory(ann, str(remote)) == Synced(NOTHING, 0, 0)
    assert published(remote) == before


def test_a_push_that_comes_second_goes_on_top(
    team, remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, bob = team
    measure(ann, 1.0)
    measure(bob, 2.0)
    write_segment = sync._write_segment

    def write_while_bob_pushes(*arguments) -> None:
        monkeypatch.setattr(sync, "_write_segment", write_segment)
        sync_memory(bob, str(remote))
        write_segment(*arguments)

    monkeypatch.setattr(sync, "_write_segment", write_while_bob_pushes)
    assert sync_memory(ann, str(remote)) == Synced(Exchanged(1, 0, 1), 1, 1)
    assert len(published(remote)) == 2
    sync_memory(bob, str(remote))
    assert ann.ledger.outcomes() == bob.ledger.outcomes()


def test_a_retraction_reaches_the_team_and_nothing_is_deleted(team, remote: Path) -> None:
    ann, bob = team
    wrong = measure(ann)
    sync_memory(ann, str(remote))
    sync_memory(bob, str(remote))
    assert bob.ledger.outcomes() == [wrong]
    ann.ledger.retract(wrong.hash, "clock was wrong", ann.contributors.own_name)
    sync_memory(ann, str(remote))
    assert sync_memory(bob, str(remote)).merged == Exchanged(0, 1, 0)
    assert bob.ledger.outcomes() == []
    assert bob.track_records.sums() == ann.track_records.sums() == []
    assert bob.ledger.known([wrong.hash]) == {wrong.hash}


def test_others_count_half_and_their_licence_comes_along(team, remote: Path) -> None:
    ann, bob = team
    measure(ann)
    sync_memory(ann, str(remote), licence="CC-BY-4.0")
    sync_memory(bob, str(remote))
    assert bob.contributors.licences() == {ann.contributors.own_name: "CC-BY-4.0"}
    assert bob.contributors.trust().weight(ann.contributors.own_name) == 0.5
    assert ann.contributors.trust().weight(ann.contributors.own_name) == 1.0
    with pytest.raises(MemoryStoreError, match="under CC-BY-4.0 already, not MIT"):
        sync_memory(ann, str(remote), licence="MIT")


SECRET = {
    "problem": "secret-problem",
    "choices": (SiteChoice("secret.layer", "softmax", "online-softmax", (("BLOCK", 1024),)),),
}


def test_what_is_redacted_holds_no_code_and_no_names_but_recipe_knobs_and_ratio(
    team, remote: Path, tmp_path: Path
) -> None:
    ann, bob = team
    original = measure(
        ann,
        graph="secret-graph",
        structure="secret-structure",
        sizes=(12345,),
        parent_hash="secret-parent",
        **SECRET,
    )
    sync_memory(ann, str(remote), redact=True)
    content = subprocess.run(
        ["git", "show", f"{sync.BRANCH}:{published(remote)[0]}"],
        cwd=remote,
        capture_output=True,
        text=True,
        check=True,
    )
    for text in ("secret", "12345", original.source_hash, original.graph_hash):
        assert text not in content.stdout
    sync_memory(bob, str(remote))
    (known,) = bob.ledger.outcomes()
    assert (known.skill, known.ratio, known.latency_ms, known.origin) == (
        original.skill,
        original.ratio,
        1.0,
        ann.contributors.own_name,
    )
    assert known.choices == (
        SiteChoice("softmax", "softmax", "online-softmax", (("BLOCK", 1024),)),
    )
    assert bob.track_records.sums() == ann.track_records.sums()
    assert sync_memory(ann, str(remote), redact=True).published == 0


@pytest.mark.parametrize("redacted_first", [True, False])
def test_an_outcome_and_its_redacted_copy_count_once_in_either_order(
    tmp_path: Path, redacted_first: bool
) -> None:
    with Memory(tmp_path / "a.db") as source, Memory(tmp_path / "b.db") as target:
        original = measure(source, **SECRET)
        export_outcomes(source, tmp_path / "redacted.jsonl", redact=True)
        export_outcomes(source, tmp_path / "whole.jsonl")
        for name in ("redacted", "whole") if redacted_first else ("whole", "redacted"):
            import_outcomes(target, tmp_path / f"{name}.jsonl")
        assert target.ledger.outcomes() == [original]
        assert target.track_records.sums() == source.track_records.sums()
        export_outcomes(target, tmp_path / f"all-{redacted_first}.jsonl")
        lines = [
            json.loads(text)
            for text in (tmp_path / f"all-{redacted_first}.jsonl").read_text().splitlines()
        ]
        assert [sorted(line) for line in lines if "retraction" in line] == [["hash", "retraction"]]
        # the copy knows what it is a copy of after a second export, too
        with Memory(tmp_path / "c.db") as third:
            import_outcomes(third, tmp_path / f"all-{redacted_first}.jsonl")
            assert third.ledger.outcomes() == [original]


def test_a_changed_segment_is_named_and_not_merged(team, remote: Path, tmp_path: Path) -> None:
    ann, bob = team
    measure(ann)
    sync_memory(ann, str(remote))
    clone = next((tmp_path / "ann" / "sync").iterdir())
    segment = clone / published(remote)[0]
    segment.write_text(segment.read_text().replace('"ratio": 2.0', '"ratio": 9.0'))
    run_git(clone, ["commit", "--quiet", "-am", "tamper"])
    run_git(clone, ["push", "--quiet", "origin", f"HEAD:refs/heads/{sync.BRANCH}"])
    measure(bob, 2.0)
    done = sync_memory(bob, str(remote))
    (reason,) = done.refused
    assert reason.startswith(f"Segment {ann.contributors.own_name}/") and "is damaged" in reason
    # nothing of it is merged, and nothing else is held up by it
    assert [outcome.latency_ms for outcome in bob.ledger.outcomes()] == [2.0]
    assert done.published == 1 and len(published(remote)) == 2


def test_a_line_that_is_refused_is_named_and_stops_no_other(
    team, remote: Path, tmp_path: Path
) -> None:
    ann, bob = team
    for latency_ms in (1.0, 2.0, 3.0):
        measure(ann, latency_ms)
    sync_memory(ann, str(remote))
    clone = next((tmp_path / "ann" / "sync").iterdir())
    segment = clone / published(remote)[0]
    lines = segment.read_text().splitlines()
    lines[-2] = lines[-2].replace('"problem": "p"', '"problem": "q"')  # its hash does not fit
    lines.insert(0, "no JSON at all")
    text = "".join(f"{line}\n" for line in lines)
    segment.unlink()
    digest = hashlib.sha256(text.encode()).hexdigest()
    segment.with_name(f"{digest}.jsonl").write_text(text)
    run_git(clone, ["add", "--all"])
    run_git(clone, ["commit", "--quiet", "-m", "a kmem that writes otherwise"])
    run_git(clone, ["push", "--quiet", "origin", f"HEAD:refs/heads/{sync.BRANCH}"])
    measure(bob, 4.0)
    done = sync_memory(bob, str(remote))
    assert (done.merged.outcomes, done.published, len(done.refused)) == (2, 1, 2)
    assert f"{digest}.jsonl:1 is no exported outcome" in done.refused[0]
    # it is told again, for a later kmem may read it
    assert len(sync_memory(bob, str(remote)).refused) == 2


@pytest.mark.slow
def test_twenty_members_who_sync_at_once_lose_nothing(remote: Path, tmp_path: Path) -> None:
    together = threading.Barrier(20)

    def take_part(number: int) -> None:
        with Memory(tmp_path / f"member-{number}" / "kmem.db") as memory:
            measure(memory, 1.0 + number)
            together.wait(60)
            sync_memory(memory, str(remote))

    with ThreadPoolExecutor(20) as members:
        list(members.map(take_part, range(20)))
    assert len(published(remote)) == 20
    with Memory(tmp_path / "late" / "kmem.db") as memory:
        assert sync_memory(memory, str(remote)).merged.outcomes == 20
        found = sorted(outcome.latency_ms for outcome in memory.ledger.outcomes())
    assert found == [1.0 + number for number in range(20)]


def test_a_remote_that_is_not_there_is_named_with_what_git_says(team, tmp_path: Path) -> None:
    with pytest.raises(
        MemoryStoreError, match="git fetch failed .*check the remote's address"
    ) as caught:
        sync_memory(team[0], str(tmp_path / "nowhere.git"))
    assert "\n" not in str(caught.value)
    with pytest.raises(MemoryStoreError, match="is no address"):
        sync_memory(team[0], "--upload-pack=evil")


def test_git_gets_no_secrets_and_nothing_of_the_repository_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hush")
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/agent")
    run_git(tmp_path, ["init", "--quiet"])
    seen = run_git(tmp_path, ["-c", "alias.show-environment=!env", "show-environment"])
    assert "hush" not in seen
    assert "/elsewhere" not in seen
    assert "SSH_AUTH_SOCK=/agent" in seen


def test_merging_a_database_reads_it_and_leaves_it_alone(team, tmp_path: Path) -> None:
    ann, bob = team
    measure(ann)
    files = [ann.path, Path(f"{ann.path}-wal")]  # the third, -shm, holds the locks of readers
    before = [path.read_bytes() for path in files]
    assert merge_memory(bob, ann.path) == Exchanged(1, 0, 1)
    assert merge_memory(bob, ann.path) == NOTHING
    assert bob.ledger.outcomes() == ann.ledger.outcomes()
    assert [path.read_bytes() for path in files] == before
    with pytest.raises(MemoryStoreError, match="No database at"):
        merge_memory(bob, tmp_path / "missing.db")


def test_the_commands_of_a_team(
    tmp_path: Path, remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str, *arguments: str):
        monkeypatch.setenv("KMEM_DB", str(tmp_path / name / "kmem.db"))
        return CliRunner().invoke(memory_group, list(arguments), catch_exceptions=False)

    with Memory(tmp_path / "ann" / "kmem.db") as ann:
        outcome, name = measure(ann), ann.contributors.own_name
    assert run("ann", "sync", str(remote), "--licence", "CC0-1.0").stderr == (
        f"Merged 0 outcomes and 0 retractions of 0 new segments; published 1 record as {name}\n"
    )
    assert "Merged 1 outcome and" in run("bob", "sync", str(remote)).stderr
    (line,) = [line for line in run("bob", "trust").stdout.splitlines() if name in line]
    assert line.startswith(f"{name}: trust 0.5, 1 outcome on {outcome.device}, the last 20")
    assert line.endswith(", licence CC0-1.0")
    assert f"{name}: trust 0.9, 1 outcome on" in run("bob", "trust", name, "0.9").stdout
    with pytest.raises(MemoryStoreError, match="Nobody here is called 'nobody'"):
        run("bob", "trust", "nobody", "0.5")
    assert "nobody" not in run("bob", "trust").stdout
    assert "Say how much" in run("bob", "trust", name).stderr
    assert run("bob", "rebuild").stdout == "1 sums derived again; nothing differed\n"
    assert (
        run("bob", "retract", outcome.hash[:10], "--reason", "clock was wrong").stdout
        == f"{outcome.hash}\n"
    )
    assert run("bob", "rebuild").stdout == "0 sums derived again; nothing differed\n"
    assert run("bob", "verify").stderr.endswith(": no faults\n")
    assert (
        run("eve", "merge", str(tmp_path / "bob" / "kmem.db")).stderr
        == "Added 1 outcomes, 1 retractions, 1 kernels\n"
    )
    with pytest.raises(MemoryStoreError, match="No outcome begins with 'abc'"):
        run("eve", "retract", "abc", "--reason", "x")
