"""An exported package, written and found again.

    DIR/           a card (README), a project file, benchmark.py, tests/
    DIR/<name>/    the shipped code, table.json, kernels/, evidence/

A package needs torch and Triton, not kmem. It is written beside its place and renamed, so that a
kill leaves the old directory or the new one.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from kmem.deploy.card import render_card, render_hub_card
from kmem.deploy.entries import Draft, Wide, draft_entries
from kmem.deploy.shipped.table import FORMAT, Entry, PackageError, read_table
from kmem.errors import OutputError
from kmem.run.report.result import Result

_SHIPPED = Path(__file__).with_name("shipped")
_BESIDE = Path(__file__).with_name("beside")
_TABLE = "table.json"
#: Where `kernels` looks for what needs no compiler, on CUDA.
_VARIANT = "build/torch-cuda"

_INIT = '''"""Triton kernels for PyTorch modules, written and verified by kmem: see README.md."""

from pathlib import Path

from torch import nn

from . import patch
from .hub_layers import make_layers
from .ops import operator
from .patch import Handle, Standing
from .supports import supports
from .table import Entry, read_table

__all__ = ["ENTRIES", "Entry", "Handle", "Standing", "apply", "operator", "supports"]

#: Which kernel serves which inputs on which device.
ENTRIES = read_table(Path(__file__).with_name("table.json"))


def apply(model: nn.Module) -> Handle:
    """Bind the kernels to those modules of a model that compute the same.

    Returns what was done: `print` it, and call its `undo()`.
    """
    return patch.apply(model, ENTRIES)
'''
_HUB_INIT = '''

class layers:
    """Layers for `kernelize`, one for each entry."""


for _name, _layer in make_layers(ENTRIES).items():
    setattr(layers, _name, _layer)
'''
_PROJECT = """\
[build-system]
requires = ["setuptools>=64"]
build-backend = "setuptools.build_meta"

[project]
name = "{project}"
version = "0.1.0"
description = "Triton kernels for PyTorch modules, written and verified by kmem"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["torch>={torch}", "triton>={triton}; platform_system == 'Linux'"]

[tool.setuptools]
packages = ["{name}", "{name}.kernels"]

[tool.setuptools.package-data]
{name} = ["table.json", "evidence/*.json"]
"""


@dataclass(frozen=True, slots=True)
class Package:
    """An exported package: its directory, its name, and the entries of its table."""

    directory: Path
    name: str
    entries: tuple[Entry, ...]

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(entry.name for entry in self.entries)}"


def find_package(directory: Path) -> Package | None:
    """The package in a directory; None if there is none.

    Raises OutputError: if there is one and its table is damaged.
    """
    found = (directory.glob(f"{place}/{_TABLE}") for place in ("*", "build/*"))
    tables = [each for places in found for each in sorted(places)] if directory.is_dir() else []
    if not tables or not (tables[0].parent / "patch.py").is_file():
        return None
    try:
        return Package(directory, tables[0].parent.name, read_table(tables[0]))
    except PackageError as ex:
        raise OutputError(str(ex)) from ex


def export_package(
    results: Sequence[Result],
    directory: Path,
    name: str | None = None,
    *,
    force: bool = False,
    between: Mapping[str, Sequence[Wide]] | None = None,
) -> Package:
    """Write the winners of runs as one package.

    Args:
        results: one for each kernel.
        directory: where the package goes; there must be nothing, or with `force` another export.
        name: of the Python package; default: the directory's.
        between: what rows say of the sizes around their own, by the id of the run.

    Raises OutputError: if a winner cannot be shipped, the name is none, or the directory is in use.
    """
    name = name or re.sub(r"\W+", "_", directory.name).lower()
    if not name.isidentifier() or not re.search(r"[a-z]", name):
        raise OutputError(f"{name!r} is no name of a Python package; give one by --name")
    refuse_foreign(directory, force=force)
    drafts = draft_entries(results)
    files = _scripts(name)
    for draft in drafts:
        for wide in (between or {}).get(draft.data["run"], ()):
            files[f"{name}/{_add_between(draft, wide)}"] = wide.kernel
    files |= _inside(name, drafts)
    files[f"{name}/__init__.py"] = _INIT
    files["README.md"] = render_card(name, [draft.data for draft in drafts])
    replace_directory(directory, files)
    return Package(directory, name, read_table(directory / name / _TABLE))


def _add_between(draft: Draft, wide: Wide) -> str:
    """Add sizes around an entry's own to its row; the place of their kernel, as the row has it."""
    digest = hashlib.sha256(wide.kernel.encode()).hexdigest()
    place = f"kernels/{draft.data['name']}_{wide.data['size'].lower()}_{digest[:12]}.py"
    draft.data["between"].append({**wide.data, "kernel": place, "kernel_sha256": digest})
    return place


def export_hub_kernel(
    results: Sequence[Result], directory: Path, name: str | None = None, *, force: bool = False
) -> Package:
    """Write the winners of runs as a kernel repository of Hugging Face's `kernels`.

    Source: huggingface.co/docs/kernels/v0.17.0/kernel-requirements.

    Args:
        results: one for each kernel.
        directory: where the repository goes, as for `export_package`.
        name: of the kernel: lower case, digits and dashes; default: the directory's.

    Raises OutputError: as `export_package` does.
    """
    name = name or re.sub(r"[\W_]+", "-", directory.name).lower()
    if not re.fullmatch(r"[a-z][a-z0-9-]*[a-z0-9]", name):
        raise OutputError(
            f"{name!r} is no name of a kernel: lower case, digits and dashes; give one by --name"
        )
    refuse_foreign(directory, force=force)
    drafts = draft_entries(results)
    files = _inside(_VARIANT, drafts)
    mark = hashlib.sha256("".join(map(files.get, sorted(files))).encode()).hexdigest()[:12]
    about = {
        "name": name,
        "id": f"_{name.replace('-', '_')}_cuda_{mark}",
        "version": 1,
        "license": "apache-2.0",
        "python-depends": [],
        "backend": {"type": "cuda"},
    }
    files[f"{_VARIANT}/__init__.py"] = _INIT + _HUB_INIT
    files[f"{_VARIANT}/metadata.json"] = json.dumps(about, indent=1) + "\n"
    files["README.md"] = render_hub_card(name, [draft.data for draft in drafts])
    replace_directory(directory, files)
    return Package(directory, name, read_table(directory / _VARIANT / _TABLE))


def refuse_foreign(directory: Path, *, force: bool, marks: Sequence[str] = ()) -> None:
    """Raise OutputError if a directory holds something that no export may replace.

    Args:
        force: whether another export may be.
        marks: names that such an export has, other than a package.
    """
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    is_export = find_package(directory) is not None
    if marks and directory.is_dir():
        is_export = {each.name for each in directory.iterdir()} >= set(marks)
    if force and is_export:
        return
    remedy = (
        "--force replaces it, with whatever was changed in it"
        if is_export
        else "choose another with --to"
    )
    raise OutputError(f"{directory} is not empty; {remedy}")


def _inside(name: str, drafts: Sequence[Draft]) -> dict[str, str]:
    """The table with its files, and the code that every package holds, imported relatively."""
    table = {"format": FORMAT, "entries": [draft.data for draft in drafts]}
    files = {
        f"{name}/{_TABLE}": json.dumps(table, indent=1) + "\n",
        f"{name}/kernels/__init__.py": '"""Kernels as their runs left them."""\n',
    }
    for draft in drafts:
        files[f"{name}/{draft.data['kernel']}"] = draft.kernel
        files[f"{name}/{draft.data['evidence']}"] = draft.evidence
    for place in sorted(_SHIPPED.glob("*.py")):
        if place.name != "__init__.py":
            text = place.read_text(encoding="utf-8")
            files[f"{name}/{place.name}"] = text.replace("from kmem.deploy.shipped.", "from .")
    return files


def _scripts(name: str) -> dict[str, str]:
    """Tests, benchmark and project file, with the package's own name."""
    text = {
        place.name: place.read_text(encoding="utf-8")
        .replace("from kmem.deploy.shipped.", f"from {name}.")
        .replace("from kmem.deploy.shipped ", f"from {name} ")
        .replace("from kmem.deploy.beside.reference ", f"from {name}.reference ")
        for place in _BESIDE.glob("*.py")
    }
    versions = {each: _major_minor(each) for each in ("torch", "triton")}
    return {
        "tests/test_package.py": text["check.py"],
        "benchmark.py": text["benchmark.py"],
        f"{name}/reference.py": text["reference.py"],
        "conftest.py": '"""The package beside this file is found without being installed."""\n',
        "pyproject.toml": _PROJECT.format(name=name, project=name.replace("_", "-"), **versions),
    }


def _major_minor(distribution: str) -> str:
    return ".".join(metadata.version(distribution).split("+")[0].split(".")[:2])


def replace_directory(directory: Path, files: dict[str, str]) -> None:
    """Write files beside a directory and rename; raises OutputError if that cannot be done."""
    place = directory.resolve()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as scratch:
            new, old = Path(scratch) / "new", Path(scratch) / "old"
            for relative, text in files.items():
                (new / relative).parent.mkdir(parents=True, exist_ok=True)
                (new / relative).write_text(text, encoding="utf-8")
            if place.exists():
                os.replace(place, old)
            os.replace(new, place)
            shutil.rmtree(old, ignore_errors=True)
    except OSError as ex:
        raise OutputError(
            f"Cannot write {directory}: {ex.strerror or ex}; free space or choose another with --to"
        ) from ex
