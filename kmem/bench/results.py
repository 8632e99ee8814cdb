"""What a bench keeps: results.jsonl, a row for each problem that ended, and the manifest.

A directory holds the results of one set of settings on one device with one set of versions: all
measured, or all estimated.
"""

import fcntl
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from io import BufferedRandom
from pathlib import Path
from types import TracebackType

from kmem.bench.problems import BenchProblem, problem_number
from kmem.bench.rows import Row, RowStatus
from kmem.errors import OutputError
from kmem.records import BASELINES, Strategy


@dataclass(frozen=True, slots=True)
class Settings:
    """What every problem of a bench is run with; see `kmem optimize`."""

    precision: str
    purity: str
    target: str | None
    memory: str
    rounds: int
    minutes: float
    baselines: str = ",".join(BASELINES)
    baseline_minutes: float | None = None  # None: as long as the run
    candidates: int = 12
    authors: tuple[str, ...] = ()  # the words of --author and of its models; none: recipes
    strategy: str = Strategy.BANDIT.value
    # the directory of the bench whose measurements the control best-of-n is given, if it is one
    control: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a directory of results is about.

    `measured` says that the device was there; `commands` lists each piece's command.
    """

    settings: Settings
    device: str
    device_name: str
    measured: bool
    versions: Mapping[str, str]
    started_at: str  # ISO 8601, UTC
    commands: tuple[str, ...]
    problems: tuple[BenchProblem, ...]
    usd: float | None = None  # what the language models of all problems may cost; None: no limit

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        data = json.loads(text)
        problems = tuple(BenchProblem(**problem) for problem in data.pop("problems"))
        return cls(
            settings=_settings(data.pop("settings")),
            commands=tuple(data.pop("commands")),
            problems=problems,
            **data,
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    def extend(self, piece: "Manifest", directory: Path) -> "Manifest":
        """This bench with one more piece of it, numbered problems first and by number.

        Raises:
            OutputError: if the piece differs in anything that its results depend on.
        """
        for what in ("settings", "device_name", "measured", "versions"):
            ours, theirs = getattr(self, what), getattr(piece, what)
            if ours != theirs:
                difference = f"{what.replace('_', ' ')} {ours}, now it would be {theirs}"
                raise OutputError(
                    f"The results in {directory} were made with {difference}; choose another "
                    "directory with --resume, or none"
                )
        problems = {problem.name: problem for problem in self.problems} | {
            problem.name: problem for problem in piece.problems
        }
        # others stay where they are
        in_order = sorted(problems.values(), key=lambda problem: problem_number(problem.name))
        usd = self.usd if piece.usd is None else piece.usd
        commands = self.commands + piece.commands
        return replace(self, commands=commands, problems=tuple(in_order), usd=usd)


def _settings(data: Mapping[str, object]) -> Settings:
    return Settings(**{**data, "authors": tuple(data["authors"])})


class BenchDirectory:
    """manifest.json, results.jsonl, utilisation.jsonl, results.md, results.png, logs/, runs/.

    One bench at a time: a context manager that holds a lock. A kill at any moment leaves whole
    lines, but perhaps for the last one, which the next bench removes.
    """

    def __init__(self, root: Path) -> None:
        """Make the directory.

        Raises:
            OutputError: if it cannot be made.
        """
        self.root = root
        self._file: BufferedRandom | None = None
        try:
            for name in ("logs", "runs"):
                (root / name).mkdir(parents=True, exist_ok=True)
        except OSError as ex:
            raise OutputError(
                f"Cannot write the bench directory {root}: {ex.strerror}; choose another with "
                "--resume"
            ) from ex

    def __enter__(self) -> "BenchDirectory":
        """Hold the directory for this bench.

        Raises:
            OutputError: if another bench is writing here, or it cannot be written.
        """
        try:
            # closed by __exit__
            self._file = open(self.root / "results.jsonl", "a+b")  # noqa: SIM115
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as ex:
            raise OutputError(
                f"Another kmem bench is writing to {self.root}; wait for it or choose another "
                "directory with --resume"
            ) from ex
        except OSError as ex:
            raise OutputError(
                f"Cannot write {self.root / 'results.jsonl'}: {ex.strerror}; choose another "
                "directory with --resume"
            ) from ex
        self._file.seek(0)
        self._file.truncate(self._file.read().rfind(b"\n") + 1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def write_manifest(self, manifest: Manifest) -> None:
        partial = self.root / "manifest.json.partial"
        partial.write_text(manifest.to_json(), encoding="utf-8")
        os.replace(partial, self.root / "manifest.json")

    def forget_failed(self, problems: Collection[str]) -> list[str]:
        """Take away the rows of problems (keys) that failed, so that they run again; which."""
        rows = read_rows(self.root)
        kept = [row for row in rows if not row.failed or row.key not in problems]
        partial = self.root / "results.jsonl.partial"
        partial.write_text("".join(map(_line, kept)), encoding="utf-8")
        # the locked file stays the one: what is in it is replaced
        self._file.seek(0)
        self._file.truncate()
        self._file.write(partial.read_bytes())
        self._file.flush()
        os.fsync(self._file.fileno())
        partial.unlink()
        return [row.key for row in rows if row not in kept]

    def append(self, row: Row) -> None:
        """Keep a row for good: it is on the disk when this returns."""
        self._file.write(_line(row).encode())
        self._file.flush()
        os.fsync(self._file.fileno())


def _line(row: Row) -> str:
    return json.dumps(asdict(row), default=lambda value: value.value) + "\n"


def read_manifest(root: Path) -> Manifest | None:
    """The manifest of a bench directory; None if there is none.

    Raises:
        OutputError: if it is no manifest.
    """
    path = root / "manifest.json"
    if not path.is_file():
        return None
    try:
        return Manifest.from_json(path.read_text(encoding="utf-8"))
    except (ValueError, TypeError, KeyError) as ex:
        raise OutputError(
            f"{path} is not a manifest of kmem bench ({ex}); choose another directory"
        ) from ex


def read_rows(root: Path) -> list[Row]:
    """Every row of a bench directory, in the order in which they were finished.

    Raises:
        OutputError: if a line is no row.
    """
    rows = []
    path = root / "results.jsonl"
    for number, line in enumerate(
        path.read_text(encoding="utf-8").splitlines() if path.is_file() else (), 1
    ):
        try:
            data = json.loads(line)
            rows.append(Row(**{**data, "status": RowStatus(data["status"])}))
        except (ValueError, TypeError, KeyError) as ex:
            raise OutputError(
                f"{path}, line {number} is not a row of kmem bench ({ex}); remove the line and "
                "run again"
            ) from ex
    return rows
