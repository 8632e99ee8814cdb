"""Which problems a bench is about: files, directories of problems, and KernelBench checkouts.

A file of a KernelBench level is `<id>_<name>.py`, and the levels are KernelBench/level1 and so on
below the checkout. Source: github.com/ScalingIntelligence/KernelBench, LocalKernelBenchDataset.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from kmem.errors import ProblemError
from kmem.records import content_hash

_LEVEL = re.compile(r"level(\d+)")
_NUMBERED = re.compile(r"(\d+)_")


@dataclass(frozen=True, slots=True)
class BenchProblem:
    """A problem file.

    Name and content identify it, so that pieces of one bench may be run where the file lies
    elsewhere.
    """

    name: str
    path: str
    source_hash: str

    @property
    def key(self) -> str:
        """Names its row, its run directory and its log."""
        return problem_key(self.name, self.source_hash)


def problem_key(name: str, source_hash: str) -> str:
    """Short and unique within a bench; a changed file is another problem."""
    return f"{name}-{source_hash[:8]}"


def find_problems(
    paths: Sequence[Path], level: int | None = None, only: Sequence[str] = ()
) -> list[BenchProblem]:
    """Every problem under the paths, each once, numbered ones in the order of their numbers.

    Args:
        paths: problem files, directories that hold a problem.py each or problem files, or
            KernelBench checkouts.
        level: only this level of KernelBench checkouts; None: all of them.
        only: shell patterns; a problem is kept if its name matches one. None given: all are kept.

    Raises:
        ProblemError: if a path or a level is not there, nothing is left, or two problems of
            different content have one name.
    """
    found: dict[str, BenchProblem] = {}
    for path in paths:
        for file in _problem_files(path, level):
            problem = _read_problem(file)
            if not only or any(fnmatchcase(problem.name, pattern) for pattern in only):
                same_name = found.setdefault(problem.name, problem)
                if same_name.source_hash != problem.source_hash:
                    raise ProblemError(
                        f"Two problems are called {problem.name}: {same_name.path} and "
                        f"{problem.path}; bench them apart"
                    )
    if not found:
        places = ", ".join(map(str, paths))
        matching = f" whose name matches {' or '.join(only)}" if only else ""
        raise ProblemError(
            f"No problems in {places}{matching}; give problem files or directories of them, such "
            "as KernelBench/level1"
        )
    return list(found.values())


def _problem_files(path: Path, level: int | None) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ProblemError(f"No problem file or directory at {path}; give the path of one")
    levels = _levels(path)
    if level is None:
        return [
            file for folder in (levels.values() if levels else [path]) for file in _files_of(folder)
        ]
    if level in levels:
        return _files_of(levels[level])
    existing = ", ".join(map(str, sorted(levels))) or "none"
    raise ProblemError(
        f"{path} has no level {level} (levels there: {existing}); choose another with --level or "
        "leave it out"
    )


def _levels(path: Path) -> dict[int, Path]:
    """Level directories by number.

    They are those of a checkout, of the KernelBench directory in it, or the path itself if it is
    one.
    """
    candidates = [path]
    if not _LEVEL.fullmatch(path.resolve().name):
        candidates = [*path.iterdir(), *(path / "KernelBench").glob("*")]
    matches = [
        (_LEVEL.fullmatch(folder.resolve().name), folder)
        for folder in candidates
        if folder.is_dir()
    ]
    return dict(sorted((int(match[1]), folder) for match, folder in matches if match))


def _files_of(folder: Path) -> list[Path]:
    if (folder / "problem.py").is_file():
        return [folder / "problem.py"]
    files = [
        *folder.glob("*/problem.py"),
        *(file for file in folder.glob("*.py") if _may_be_problem(file)),
    ]
    return sorted(files, key=_order)


def problem_number(name: str) -> float:
    """Of `<id>_<name>`; infinite for names without one."""
    number = _NUMBERED.match(name)
    return int(number[1]) if number else float("inf")


def _order(file: Path) -> tuple[float, str]:
    return problem_number(file.name), _name(file)


def _name(file: Path) -> str:
    return file.resolve().parent.name if file.name == "problem.py" else file.stem


def _may_be_problem(file: Path) -> bool:
    """False for helpers beside problems.

    A numbered or an unreadable file stays, so that its fault becomes a row.
    """
    if _NUMBERED.match(file.name):
        return True
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return True
    return any(
        isinstance(statement, ast.ClassDef) and statement.name == "Model" for statement in tree.body
    )


def _read_problem(file: Path) -> BenchProblem:
    try:
        source = file.read_text(encoding="utf-8", errors="replace")
    except OSError as ex:
        raise ProblemError(
            f"Cannot read {file}: {ex.strerror}; make it readable or leave it out with --only"
        ) from ex
    return BenchProblem(_name(file), str(file.absolute()), content_hash(source))


def choose_problems(
    found: Sequence[BenchProblem], first: int | None, sample: int | None
) -> list[BenchProblem]:
    """The first so many problems, or so many drawn from them, in their order.

    The draw is the same each time, and a larger one holds a smaller: a bench grows by a larger
    sample.
    """
    chosen = list(found)[:first]
    if sample is None or sample >= len(chosen):
        return chosen
    drawn = sorted(chosen, key=lambda problem: content_hash("sample", problem.key))[:sample]
    return [problem for problem in chosen if problem in drawn]
