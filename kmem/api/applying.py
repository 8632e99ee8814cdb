"""`kmem.apply`: kernels into the modules of a model, with undo."""

from torch import nn

from kmem.deploy.bucketed import Bucketed
from kmem.deploy.package import Package
from kmem.deploy.shipped.patch import Handle
from kmem.deploy.shipped.patch import apply as bind
from kmem.deploy.sources import entries_from
from kmem.run.report.result import Result
from kmem.whole.composing.binding import Composed, ModelHandle
from kmem.whole.composing.binding import bind as bind_composed
from kmem.whole.composing.bucket_table import ComposedTable, bind_table
from kmem.whole.result import ModelResult


def apply(
    model: nn.Module,
    *sources: Result | Bucketed | Package | ModelResult | Composed | ComposedTable,
) -> Handle | ModelHandle:
    """Bind kernels to those modules of a model that compute what the kernels were made for.

    Only `forward` of single instances is replaced. Calls that a kernel does not support (other
    shapes, gradients recorded, autocast, another device) run the module's own code.

        handle = kmem.apply(model, result)
        print(handle)           # what is active, what is not, and why
        handle.undo()           # every module has the very forward that it had

    Args:
        model: on its device and in the mode in which it will run.
        sources: results of `kmem.optimize`, and runs and packages from `kmem.load`; or one run on a
            whole model, what it composed, or a table of what it composed at several shapes, alone.

    Raises OutputError: if a result has no kernel. ValueError: if the model has kernels already, or
        is not the one that was composed.
    """
    whole = [each for each in sources if isinstance(each, ModelResult | Composed | ComposedTable)]
    if whole and len(sources) > 1:
        raise ValueError("A composed model is applied alone: it replaces the whole forward")
    if whole:
        found = whole[0]
        if isinstance(found, ComposedTable):
            return bind_table(model, found)
        return found.apply(model) if isinstance(found, ModelResult) else bind_composed(model, found)
    return bind(model, entries_from(sources))
