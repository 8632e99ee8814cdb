"""`kmem.load`: a finished run, or an exported package."""

from pathlib import Path

from kmem.deploy.installed import installed_place
from kmem.deploy.package import Package
from kmem.deploy.sources import find_source
from kmem.run.result import Result


def load(place: str | Path) -> Result | Package:
    """A finished run or an exported package, either of which `kmem.apply` takes.

    Args:
        place: the directory of a run or of a package, the name of an installed package, or the id
            of a run or its beginning.

    Raises OutputError: if there is nothing of the kind, or the run has not finished.
    """
    installed = installed_place() / str(place)
    return find_source(installed if installed.is_dir() else place)
