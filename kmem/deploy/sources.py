"""Kernels as callers name them: results, packages, and their directories."""

from collections.abc import Sequence
from pathlib import Path

from kmem.deploy.bucketed import Bucketed
from kmem.deploy.entries import entries_of
from kmem.deploy.package import Package, find_package
from kmem.deploy.shipped.table import Entry
from kmem.errors import OutputError
from kmem.run.report.loading import load_run
from kmem.run.report.result import Result

Source = Result | Bucketed | Package | str | Path


def find_source(place: str | Path) -> Result | Package:
    """A finished run or an exported package.

    Args:
        place: the directory of a run or of a package, or the id of a run or its beginning.

    Raises OutputError: if there is nothing of the kind, or the run has not finished.
    """
    package = find_package(Path(place))
    return package if package is not None else load_run(place)


def entries_from(sources: Sequence[Source]) -> tuple[Entry, ...]:
    """The entries of several sources, in their order.

    Raises OutputError: if one is no package and no run, or has no kernel.
    """
    entries: list[Entry] = []
    for source in sources:
        found = find_source(source) if isinstance(source, str | Path) else source
        if isinstance(found, Bucketed):
            if found.package is None:
                raise OutputError(f"{found}: nothing to ship")
            found = found.package
        entries += found.entries if isinstance(found, Package) else entries_of([found])
    return tuple(entries)
