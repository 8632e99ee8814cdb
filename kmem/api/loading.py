"""`kmem.load`: a finished run, or an exported package."""

from pathlib import Path

from kmem.deploy.installed import installed_place
from kmem.deploy.package import Package
from kmem.deploy.sources import find_source
from kmem.run.report.result import Result
from kmem.whole.composing.binding import Composed, read_composed
from kmem.whole.composing.bucket_table import ComposedTable, read_table
from kmem.whole.result import ModelResult, read_result


def load(place: str | Path) -> Result | Package | ModelResult | Composed | ComposedTable:
    """A finished run, also on a whole model, or an exported package; `kmem.apply` takes each.

    Args:
        place: the directory of a run or of a package, the name of an installed package, or the id
            of a run or its beginning.

    Raises OutputError: if there is nothing of the kind, or the run has not finished.
    """
    where = Path(place)
    found = read_result(where) or read_composed(where) or read_table(where)
    if found is not None:
        return found
    installed = installed_place() / str(place)
    return find_source(installed if installed.is_dir() else place)
