"""`kmem.load`: a finished run, or an exported package."""

from pathlib import Path

from kmem.deploy.package import Package, find_package
from kmem.run.loading import load_run
from kmem.run.result import Result


def load(place: str | Path) -> Result | Package:
    """A finished run or an exported package, either of which `kmem.apply` takes.

    Args:
        place: the directory of a run or of a package, or the id of a run or its beginning.

    Raises OutputError: if there is nothing of the kind, or the run has not finished.
    """
    package = find_package(Path(place))
    return package if package is not None else load_run(place)
