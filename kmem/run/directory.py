"""The run directory: the winner, the report with its plot, and every attempt's files.

Files are written as things happen, each one whole.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from kmem.errors import OutputError
from kmem.records import Attempt, Experience, Kernel, Profile, Recalled
from kmem.serialize import from_json, to_json

_LOCK, _KILLS = "run.lock", "kills.txt"


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


class RunDirectory:
    """The directory of one run, or of several runs one after another."""

    # For the user:     best_kernel.py  top_kernels/{1,2,3}.py (fastest first)  report.md
    #                   convergence.png  result.json
    # What was tried:   attempts/NNN-<hash>/{kernel.py,kernel.small.py,attempt.json,log.txt}
    #                   profiles/  verdicts/  evidence/  conversations/
    # For resuming:     recalled-<run>.jsonl  experience-<run>.jsonl
    # While it is made: scratch/  run.lock (held by the process at work)  kills.txt

    def __init__(self, root: Path) -> None:
        """Make the directory. Raises OutputError if it cannot be written."""
        self.root = root
        try:
            for name in ("attempts", "profiles", "scratch"):
                (root / name).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root):
                pass
        except OSError as ex:
            raise OutputError(
                f"Cannot write the run directory {root}: {ex.strerror or ex}; choose another with "
                f"--out"
            ) from ex

    @contextmanager
    def work(self) -> Iterator[None]:
        """Hold the run while it is worked on.

        A process that was killed at this run left its mark in the lock file; the time at which that
        was seen is kept (`kills`).

        Raises OutputError: if another process works on the run.
        """
        with open(self.root / _LOCK, "a+", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OutputError(
                    f"Another process is at work on {self.root}; wait for it, or choose another "
                    f"directory with --out"
                ) from None
            lock.seek(0)
            if lock.read():
                kills = [*self.kills(), datetime.now(UTC).isoformat(timespec="seconds")]
                self.write_text(_KILLS, "".join(f"{line}\n" for line in kills))
            lock.truncate(0)
            lock.write("at work\n")
            lock.flush()
            try:
                yield
            finally:  # an exception is no kill: only a process ended from outside leaves its mark
                lock.truncate(0)

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
        place = self.root / _recalled_name(run_id)
        if not place.is_file():
            return None
        return [
            from_json(Recalled, line) for line in place.read_text(encoding="utf-8").splitlines()
        ]

    def write_recalled(self, run_id: str, recalled: Sequence[Recalled]) -> None:
        """Keep what a run recalled, so that the run resumes from the same."""
        self.write_text(_recalled_name(run_id), "".join(to_json(hit) + "\n" for hit in recalled))

    def read_experience(self, run_id: str) -> tuple[Experience, ...] | None:
        """What a run knew of other graphs' settings when it began.

        None if nothing was written yet, or the directory was emptied since.
        """
        place = self.root / _experience_name(run_id)
        if not place.is_file():
            return None
        return tuple(
            from_json(Experience, line) for line in place.read_text(encoding="utf-8").splitlines()
        )

    def write_experience(self, run_id: str, experience: Sequence[Experience]) -> None:
        """Keep what a run knew, so that the run resumes from the same."""
        self.write_text(
            _experience_name(run_id), "".join(to_json(entry) + "\n" for entry in experience)
        )

    def remove_best(self) -> None:
        """Take away the winner that an earlier run left here: it is not this run's answer."""
        self.best_kernel.unlink(missing_ok=True)
        small_constants_beside(self.best_kernel).unlink(missing_ok=True)

    def write_best(self, attempt: Attempt) -> Path:
        """Put the winner where the user looks for it."""
        return self._write_kernel("best_kernel.py", attempt.candidate.kernel)

    def write_top(self, kernels: Sequence[Kernel]) -> None:
        """Keep the fastest kernels, fastest first; those that an earlier run left here go."""
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
    return f"experience-{run_id}.jsonl"


def _recalled_name(run_id: str) -> str:
    return f"recalled-{run_id}.jsonl"  # several runs may go into one directory
