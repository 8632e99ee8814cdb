"""The run directory: the winner, the report with its plot, and every attempt's files.

Files are written as things happen, each one whole.
"""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TypeVar

from kmem.codegen.module.assemble import with_evidence
from kmem.errors import OutputError
from kmem.records import (
    Attempt,
    Baseline,
    Descent,
    Experience,
    Kernel,
    Profile,
    Recalled,
    Run,
    RunState,
)
from kmem.serialize import from_data, to_data, to_json

Record = TypeVar("Record")

_LOCK, _KILLS = "run.lock", "kills.txt"
_OWNER = "run.json"
#: Where the module's own time goes: written and read by state/breakdown.py.
BREAKDOWN = "breakdown.json"
#: What a run said and when: written and read by state/diary.py.
DIARY = "diary.jsonl"
#: What a run writes for its user: a directory with one of these and no owner is somebody's.
_RESULTS = ("best_kernel.py", "report.md", "result.json", "top_kernels", "attempts")


def default_run_directory(name: str) -> Path:
    """Where a run, or the replay of one, goes by default: in KMEM_OUT, or in runs/ here."""
    return Path(os.environ.get("KMEM_OUT") or "runs") / name


def small_constants_beside(kernel: Path) -> Path:
    """Where the constants of a kernel file for the small workload are kept."""
    return kernel.with_suffix(".small.py")


def is_worked_on(root: Path) -> bool:
    """Whether a process holds the run in this directory right now."""
    try:
        with open(root / _LOCK, encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such directory any more, or none of ours
        return False
    return False


def seen_state(state: RunState, root: Path) -> str:
    """The state that memory has of a run, held against its directory.

    "killed" is a run that ended without a word; one that is taken up again is running while its
    module is still being traced.
    """
    if state is RunState.FINISHED:
        return state.value
    if is_worked_on(root):
        return RunState.RUNNING.value
    return "killed" if state is RunState.RUNNING else state.value


def remove_run_directory(root: Path, run: Run) -> bool:
    """Remove the directory of a run with all that is in it; False if it is not this run's."""
    if owner_of(root) != run.id:
        return False
    shutil.rmtree(root, ignore_errors=True)
    return True


def owner_of(root: Path) -> str | None:
    """The id of the run whose directory this is; None if it is nobody's."""
    try:
        data = json.loads((root / _OWNER).read_text(encoding="utf-8"))
        return str(data["id"])
    except (OSError, ValueError, KeyError, TypeError):  # none, or another program's
        return None


class RunDirectory:
    """The directory of one run."""

    # For the user:     best_kernel.py  top_kernels/{1,2,3}.py (fastest first)  report.md
    #                   convergence.png  result.json
    # What was tried:   attempts/NNN-<hash>/{kernel.py,kernel.small.py,attempt.json,log.txt}
    #                   profiles/  verdicts/  evidence/  conversations/  kills.txt  diary.jsonl
    #                   breakdown.json
    # For resuming:     run.json (whose directory this is)  recalled-<run>.json
    #                   experience-<run>.json  descents-<run>.json  rungs-<run>.jsonl
    #                   background-<run>-*.json
    # While it is made: scratch/  run.lock (held by the process at work)

    def __init__(self, root: Path) -> None:
        """Make the directory. Raises OutputError if it cannot be written."""
        self.root = root
        self._made = [place for place in (root, *root.parents) if not place.exists()]
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root):
                pass
        except OSError as ex:
            raise OutputError(
                f"Cannot write the run directory {root}: {ex.strerror or ex}; choose another with "
                f"--out"
            ) from ex

    @contextmanager
    def work(self, run: Run) -> Iterator[None]:
        """Hold the directory while the run is worked on; it belongs to this run from then on.

        A process that was killed at this run left the lock file; the time at which that was seen is
        kept (`kills`).

        Raises OutputError: if another process works on the run, or the directory holds the files of
            another run.
        """
        self._refuse_others(run)
        with self._lock() as lock:
            self._refuse_others(run)  # who held the lock until now may have made it its own
            lock.seek(0)
            if lock.read() and owner_of(self.root) == run.id:
                kills = [*self.kills(), datetime.now(UTC).isoformat(timespec="seconds")]
                self.write_text(_KILLS, "".join(f"{line}\n" for line in kills))
            lock.truncate(0)
            lock.write("at work\n")
            lock.flush()
            self.write_text(_OWNER, to_json(run))
            try:
                yield
            finally:  # an exception is no kill: only a process ended from outside leaves its mark
                shutil.rmtree(self.scratch, ignore_errors=True)
                (self.root / _LOCK).unlink(missing_ok=True)

    def own(self, run: Run) -> None:
        """Mark the directory as that of a run that another machine works on."""
        self.write_text(_OWNER, to_json(run))

    @contextmanager
    def _lock(self) -> Iterator[IO[str]]:
        place = self.root / _LOCK
        while True:
            with open(place, "a+", encoding="utf-8") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise OutputError(
                        f"Another process is at work on {self.root}; wait for it, or choose "
                        f"another directory with --out"
                    ) from None
                # who ended between opening and locking has taken this file away
                if place.exists() and os.path.samestat(os.stat(place), os.fstat(lock.fileno())):
                    yield lock
                    return

    def _refuse_others(self, run: Run) -> None:
        """Refuse a directory whose files this run would overwrite."""
        owner = owner_of(self.root)
        found = [name for name in _RESULTS if (self.root / name).exists()]
        if owner == run.id or not found:  # a run that was killed before its first result has none
            return
        what = f"holds run {owner}" if owner is not None else f"has a {found[0]} already"
        raise OutputError(
            f"Directory {self.root} {what}, which would be overwritten; choose another with --out"
        )

    def abandon(self, run: Run) -> None:
        """Take away what a run that never began has left: its mark and the directories it made."""
        if owner_of(self.root) == run.id:
            (self.root / _OWNER).unlink()
            for name in (DIARY, BREAKDOWN):
                (self.root / name).unlink(missing_ok=True)
        with suppress(OSError):  # not empty: somebody else's files
            for place in self._made:
                place.rmdir()

    def kills(self) -> list[str]:
        """When this run was taken up again after its process had been killed; ISO 8601."""
        place = self.root / _KILLS
        return place.read_text(encoding="utf-8").splitlines() if place.exists() else []

    @property
    def scratch(self) -> Path:
        """For the judge's working files."""
        return self.root / "scratch"

    @property
    def best_kernel(self) -> Path:
        return self.root / "best_kernel.py"

    def write_text(self, relative: str, text: str) -> Path:
        """Write a file whole: a kill leaves the old one or the new one.

        Raises OutputError if it cannot be written.
        """
        place = self.root / relative
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            partial = place.with_name(place.name + ".partial")
            partial.write_text(text, encoding="utf-8")
            os.replace(partial, place)
        except OSError as ex:
            raise OutputError(
                f"Cannot write {place}: {ex.strerror or ex}; free space or choose another "
                f"directory with --out"
            ) from ex
        return place

    def write_attempt(self, number: int, attempt: Attempt) -> None:
        """Keep an attempt's kernel, record and log."""
        folder = f"attempts/{number:03d}-{attempt.candidate.kernel.hash[:12]}"
        self._write_kernel(f"{folder}/kernel.py", attempt.candidate.kernel)
        self.write_text(f"{folder}/attempt.json", to_json(attempt))
        if attempt.measurement.log:
            self.write_text(f"{folder}/log.txt", attempt.measurement.log)

    def write_verdict(self, attempt: Attempt) -> None:
        """Keep the judge's final verdict on a kernel."""
        self.write_text(
            f"verdicts/{attempt.candidate.kernel.hash[:12]}.json", to_json(attempt.measurement)
        )

    def write_profile(self, attempt: Attempt, profile: Profile) -> None:
        """Keep a kernel's profile."""
        self.write_text(f"profiles/{attempt.candidate.kernel.hash[:12]}.json", to_json(profile))

    def read_recalled(self, run_id: str) -> list[Recalled] | None:
        """What a run recalled when it began.

        None if nothing was written yet, or the directory was emptied since.
        """
        return self._read_list(_recalled_name(run_id), Recalled)

    def write_recalled(self, run_id: str, recalled: Sequence[Recalled]) -> None:
        """Keep what a run recalled, so that the run resumes from the same."""
        self._write_list(_recalled_name(run_id), recalled)

    def read_experience(self, run_id: str) -> tuple[Experience, ...] | None:
        """What a run knew of other graphs' settings when it began.

        None if nothing was written yet, or the directory was emptied since.
        """
        found = self._read_list(_experience_name(run_id), Experience)
        return None if found is None else tuple(found)

    def write_experience(self, run_id: str, experience: Sequence[Experience]) -> None:
        """Keep what a run knew, so that the run resumes from the same."""
        self._write_list(_experience_name(run_id), experience)

    def read_descents(self, run_id: str) -> tuple[Descent, ...] | None:
        """How earlier searches came down, as the run knew when it began; None if not written."""
        found = self._read_list(f"descents-{run_id}.json", Descent)
        return None if found is None else tuple(found)

    def write_descents(self, run_id: str, descents: Sequence[Descent]) -> None:
        """Keep what a run knew of earlier searches, so that it resumes from the same."""
        self._write_list(f"descents-{run_id}.json", descents)

    def _read_list(self, name: str, record: type[Record]) -> list[Record] | None:
        place = self.root / name
        if not place.is_file():
            return None
        return [from_data(record, data) for data in json.loads(place.read_text(encoding="utf-8"))]

    def _write_list(self, name: str, records: Sequence[object]) -> None:
        self.write_text(name, json.dumps([to_data(record) for record in records]) + "\n")

    def remove_best(self) -> None:
        """Take away a provisional winner: it is not this run's answer."""
        self.best_kernel.unlink(missing_ok=True)
        small_constants_beside(self.best_kernel).unlink(missing_ok=True)

    def write_best(self, attempt: Attempt, run_id: str) -> Path:
        """Put the winner where the user looks for it, with its evidence in the docstring."""
        kernel, timing = attempt.candidate.kernel, attempt.measurement.timing
        said = f"Run {run_id}"
        if timing is not None:
            kind = "estimated" if attempt.measurement.estimated else "measured"
            said += f": {timing.latency_ms:.4g} ms ({kind})"
            if timing.ratio is not None:
                said += f", {timing.ratio:.3g} times as fast as {timing.reference}"
        said += f"; evidence/{kernel.hash}.json holds what the judge saw."
        source = with_evidence(kernel.source, said)
        return self._write_kernel("best_kernel.py", replace(kernel, source=source))

    def write_provisional(self, attempt: Attempt, baseline: Baseline | None) -> Path:
        """Put the best kernel so far in the winner's place, marked as not verified yet.

        A run that ends before its verdict, be it by a kill, leaves it there.

        Args:
            baseline: the fastest, if it is known.
        """
        measurement = attempt.measurement
        kind = "estimated" if measurement.estimated else "measured"
        time = f"{measurement.latency_ms:.4g} ms ({kind})"
        if baseline is not None and baseline.timing is not None:
            time += f", {baseline.name} {baseline.timing.latency_ms:.4g} ms"
        head = (
            f"# PROVISIONAL, NOT VERIFIED: the best kernel so far of an unfinished run, {time}.\n"
            f"# It passed the screening on this run's inputs, not the final verdict; the command\n"
            f"# `kmem runs resume` finishes the run, `kmem verify` judges this file.\n"
        )
        return self.write_text("best_kernel.py", head + attempt.candidate.kernel.source)

    def write_top(self, kernels: Sequence[Kernel]) -> None:
        """Keep the fastest kernels, fastest first; those of an earlier sitting go."""
        for place in self.top_kernels():
            place.unlink()
            small_constants_beside(place).unlink(missing_ok=True)
        for number, kernel in enumerate(kernels, 1):
            self._write_kernel(f"top_kernels/{number}.py", kernel)

    def top_kernels(self) -> list[Path]:
        """The files of the fastest kernels, fastest first."""
        return sorted((self.root / "top_kernels").glob("[0-9].py"))

    def _write_kernel(self, name: str, kernel: Kernel) -> Path:
        """Keep a kernel, and beside it what `kmem verify` needs where there is no GPU."""
        place = self.write_text(name, kernel.source)
        if kernel.small_constants:
            self.write_text(small_constants_beside(Path(name)).as_posix(), kernel.small_constants)
        return place


def _experience_name(run_id: str) -> str:
    return f"experience-{run_id}.json"


def _recalled_name(run_id: str) -> str:
    return f"recalled-{run_id}.json"
