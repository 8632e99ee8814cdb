"""A project's own modules, importable by its problem files and by nobody else.

A problem may import what lies beside it and at the root of its project. These directories are not
put on `sys.path`, where a module named queue would be found in place of the standard library's, and
one named cuda by whichever package tries that import. They are asked last, and only for
code that is neither the standard library's nor an installed package's.

Used in every process that imports a problem or an emitted module (the judge's worker runs from a
copy of this file; standard library only). Not covered: modules of the same names as installed
packages, which stay the packages.
"""

import ast
import os
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType

#: What marks the root of a project.
_ROOT_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
#: Where a root may keep its packages.
_SOURCE_DIRECTORY = "src"
#: Names of sysconfig for the directories of installed code.
_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")


def project_directories(file: str | Path) -> tuple[str, ...]:
    """Where a problem file's own modules may lie; a process that is confined must read there.

    The file's directory, the root of its project if that is marked, and src/ in it. Nothing for a
    file that does not exist (a problem that was sent as text).
    """
    place = Path(file).absolute()
    if not place.is_file():
        return ()
    found = [place.parent]
    for directory in place.parents:
        if any((directory / mark).exists() for mark in _ROOT_MARKS):
            found += [directory, directory / _SOURCE_DIRECTORY]
            break
    return tuple(dict.fromkeys(str(path) for path in found if path.is_dir()))


def imported_directories(source: str, file: str | Path) -> tuple[str, ...]:
    """The directories of `project_directories`, if the text imports anything that lies in them.

    A process that runs candidates is let read there, and a problem that stands alone needs nothing.

    Args:
        source: of a problem that can be parsed.
        file: where it lies.
    """
    names = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(source))
        for name in _imported_names(node)
    }
    directories = project_directories(file)
    places = [Path(directory, name) for directory in directories for name in names]
    found = any(place.is_dir() or place.with_suffix(".py").is_file() for place in places)
    return directories if found else ()


def _imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module]
    return []


class _ProjectFinder:
    """Finds modules in the directories of the project that is at work, for its code alone."""

    def __init__(self) -> None:
        self.directories: tuple[str, ...] = ()
        self.found: set[str] = set()
        self._installed = _installed_directories()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What importlib asks of a finder; `path` is given for what lies inside a package."""
        if path is not None or not self.directories or self._asks_installed_code():
            return None
        spec = PathFinder.find_spec(name, self.directories)
        if spec is not None and spec.origin is not None:  # else a mere directory of that name
            self.found.add(name)
            return spec
        return None

    def _asks_installed_code(self) -> bool:
        """Whether the import stands in the standard library or in an installed package."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and _is_importlib(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return True
        file = frame.f_code.co_filename
        return file.startswith(("<frozen", *self._installed))


def _installed_directories() -> tuple[str, ...]:
    """Where the standard library and installed packages lie, as files there name themselves."""
    places = [Path(sysconfig.get_path(kind)) for kind in _INSTALLED]
    return tuple({f"{path}{os.sep}" for place in places for path in (place, place.resolve())})


def _is_importlib(file: str) -> bool:
    return file.startswith("<frozen importlib") or file.endswith("importlib/__init__.py")


_finder = _ProjectFinder()


def use_project(directories: Sequence[str]) -> None:
    """Let code import modules from these directories, and from no other project's any more.

    Modules of the project before are forgotten, for two projects may have modules of one name.
    """
    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)
    if tuple(directories) == _finder.directories:
        return
    for name in [name for name in list(sys.modules) if name.partition(".")[0] in _finder.found]:
        del sys.modules[name]
    _finder.found.clear()
    _finder.directories = tuple(directories)
