"""What an anchor's tiles leave of rows that are reduced next, however many tiles a row has.

    torch.logsumexp(self.linear(x), 1)      # of each tile, only the states of its rows are written

What an anchor makes, if its rows are reduced next, to one value each, need not be written: each
tile stores the states of the reduction over every `window` of its columns, and one more kernel
finishes the rows (finishing.py). The tiles do so in the function that they are handed (ports.py),
so that no kernel of an anchor knows of it.

Covered: sums, products, maxima, minima, softmax statistics over the last dimension, the place of
the largest or smallest value in fp32, and what follows these row by row. Not covered: places in
half precision, where eager takes the first of the values that rounding makes equal and fp32 sums
tell apart; moments; and what is read again behind the reduction.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.codegen.chains.epilogue import Epilogue
from kmem.codegen.chains.finishing import Finish, read_states
from kmem.codegen.regions.matching import FoundRegion, find_row_regions, may_reduce
from kmem.codegen.regions.reduction import BY_ROW
from kmem.codegen.regions.reductions import REDUCTIONS
from kmem.codegen.regions.region import Load, Map, Reduce, Region
from kmem.problem.graph import OpGraph
from kmem.problem.operators.expressions import Helper, order_helpers
from kmem.problem.operators.table import find_operator
from kmem.recipes import Operand, Site
from kmem.records import TensorSpec

_KINDS = ("sum", "prod", "max", "min", "argmax", "softmax", "logsumexp")
#: A row has as many parts at most: a program of the last kernel holds the states of a whole one. It
#: may have few columns, for a small workload must match wherever the full one does. A place is left
#: as an fp32 number, which holds whole ones up to 2**24.
_FEWEST_COLUMNS, _MOST_PARTS = 2, 2**13


@dataclass(frozen=True, slots=True)
class Partial:
    """Rows that an anchor's tiles reduce: the nodes that do so now, what they leave, how tiles
    leave parts of it (`epilogue`), and how these are finished.
    """

    nodes: tuple[str, ...]
    output: Operand
    epilogue: Epilogue
    finish: Finish


def find_partial(
    graph: OpGraph, site: Site, columns: int, before: Epilogue, window: int
) -> Partial | None:
    """What reads a site's only result and leaves one value of each of its rows; None if nothing
    does.

    Args:
        columns: of a row.
        before: what follows the anchor until then.
        window: columns that leave one part.
    """
    (made,) = site.outputs
    views = _views_of(graph, made)
    read = views[-1] if views else made.name
    if not may_reduce(graph, read, columns):
        return None
    found = _find_region(graph, {*site.nodes}, read)
    if found is None or columns > window * _MOST_PARTS:
        return None
    if not _covers_rows(found.region, graph.spec(read), columns):
        return None
    region = found.region
    (output,) = region.outputs
    helpers = [each for item in region.statements for each in _helpers_of(item)]
    finish = Finish(
        _write_finish(region),
        order_helpers(helpers),
        len(_reduction_of(region).names),
        region.rows,
        columns,
        window,
        _wants_rounding(region, before),
    )
    epilogue = _write_partial(region, before, window)
    return Partial((*views, *found.nodes), output, epilogue, finish)


def _find_region(graph: OpGraph, hidden: set[str], read: str) -> FoundRegion | None:
    """The rows that read a result and nothing else, as far as they do: what follows them may be
    another's.
    """
    for each in find_row_regions(graph.hiding(hidden)):
        if _is_alone(graph, read, each):
            return each
        if read not in {operand.name for operand in each.region.inputs}:
            continue
        own = {read}
        for name in each.nodes:
            if {*graph.node(name).refs()} <= own:
                own.add(name)
        others = {name for name in each.nodes if name not in own}
        if others and len(own) > 1:
            return _find_region(graph, hidden | others, read)
    return None


def _views_of(graph: OpGraph, made: Operand) -> tuple[str, ...]:
    """The views through which alone a result is read, one of another, that leave it as it lies."""
    views: list[str] = []
    name = made.name
    while made.spec.is_contiguous and len(users := graph.users(name)) == 1:
        (view,) = users
        operator = find_operator(view.target)
        is_view = operator is not None and operator.is_view and not view.is_in_place
        if not is_view or isinstance(view.output, tuple) or name in graph.outputs:
            break
        if not view.spec.is_contiguous or view.spec.numel != made.spec.numel:
            break
        name = view.name
        views.append(name)
    return tuple(views)


def _is_alone(graph: OpGraph, made: str, found: FoundRegion) -> bool:
    """Whether a region reads a result and nothing else, and it alone reads it."""
    users = {user.name for user in graph.users(made)}
    inputs = [operand.name for operand in found.region.inputs]
    return inputs == [made] and made not in graph.outputs and users <= {*found.nodes}


def _covers_rows(region: Region, made: TensorSpec, columns: int) -> bool:
    """Whether a region leaves one value of each row of a result, in the order of the rows."""
    along, reductions = region.reduced, [*filter(_is_reduction, region.statements)]
    is_one = len(region.stores) == len(region.outputs) == len(along) == len(reductions) == 1
    if not is_one or region.total is not None or reductions[0].kind not in _KINDS:
        return False
    store, output = region.stores[0], region.outputs[0]
    is_value = store.is_row and not store.in_place and output.spec.is_contiguous
    if len(region.loads) != 1 or not is_value:
        return False
    load = region.loads[0]
    are_rows = load.strides[along[0]] == 1 and made.is_contiguous
    is_whole = region.columns == columns and region.rows * columns == made.numel
    in_order = all(load.strides[axis] == store.strides[axis] * columns for axis in region.kept)
    fits = columns >= _FEWEST_COLUMNS and _has_type(region, made)
    return are_rows and is_whole and in_order and fits


def _has_type(region: Region, made: TensorSpec) -> bool:
    """Whether rows' values have an anchor's type, or are places in an fp32 one."""
    dtype = region.outputs[0].spec.dtype
    if _reduction_of(region).kind == "argmax":
        return made.dtype == "float32" and dtype in ("int64", made.dtype)
    return dtype == made.dtype


def _is_reduction(item: Load | Map | Reduce) -> bool:
    return isinstance(item, Reduce)


def _reduction_of(region: Region) -> Reduce:
    (found,) = (item for item in region.statements if isinstance(item, Reduce))
    return found


def _places_of(reduction: Reduce) -> list[str]:
    """The states of a reduction that are places in a row."""
    kind = REDUCTIONS[reduction.kind]
    named = zip(reduction.names, kind.states, strict=True)
    return [name for name, state in named if state in kind.index_states]


def _helpers_of(item: Load | Map | Reduce) -> Sequence[Helper]:
    if isinstance(item, Load):
        return ()
    return item.helpers if isinstance(item, Map) else REDUCTIONS[item.kind].helpers


def _wants_rounding(region: Region, before: Epilogue) -> bool:
    reduction = _reduction_of(region)
    is_computed = bool(before.statements) or bool(region.kinds_of_computed)
    return is_computed and REDUCTIONS[reduction.kind].wants_rounded_values


def _write_partial(region: Region, before: Epilogue, window: int) -> Epilogue:
    """What follows an anchor, then the states of every so many columns in the place of these."""
    levels, reduction = region.levels(), _reduction_of(region)
    value = before.statements[-1][0] if before.statements else "acc"
    windows = f"(acc.shape[0] * acc.shape[1] // {window}, {window})"
    parts = f"(acc.shape[0], acc.shape[1] // {window})"
    reach = "tl.broadcast_to((columns < N)[None, :], acc.shape)"
    statements = [
        *before.statements,
        ("windows", f"tl.reshape({value}, {windows})"),
        ("valid", f"tl.reshape({reach}, {windows})"),
        ("EVEN_R", f"N % {window} == 0"),
    ]
    if REDUCTIONS[reduction.kind].index_states:
        places = "tl.broadcast_to(columns[None, :], acc.shape)"
        statements.append(("r", f"tl.reshape({places}, {windows})"))
    helpers: list[Helper] = []
    for item in region.statements:
        if isinstance(item, Load):
            statements.append((item.name, "windows"))
        elif isinstance(item, Map) and levels[item.name]:
            statements.append((item.name, item.text))
            helpers += item.helpers
        elif isinstance(item, Reduce):
            kind = REDUCTIONS[item.kind]
            lines = (line.split(" = ", 1) for line in kind.direct(item.read, item.names))
            statements += [(name, text) for name, text in lines]
            statements += [(name, f"{name}.to(tl.float32)") for name in _places_of(item)]
            helpers += kind.helpers
    places = [
        ("columns", f"tl.reshape(columns, (columns.shape[0] // {window}, {window}))"),
        ("columns", f"tl.min(columns, axis=1) // {window}"),
        ("is_part", f"columns < (N + {window - 1}) // {window}"),
    ]
    states = [f"tl.reshape({name}, {parts})" for name in reduction.names]
    if len(states) == 1:
        places.append(("columns", "tl.where(is_part, columns, N)"))
        statements.append(("states", states[0]))
    else:  # side by side
        pairs = f"(columns.shape[0] * {len(states)},)"
        places += [
            ("columns", "tl.where(is_part, columns * 2, N)"),
            ("columns", f"tl.reshape(tl.join(columns, columns + 1), {pairs})"),
        ]
        statements += [
            ("states", f"tl.join({states[0]}, {states[1]})"),
            ("states", f"tl.reshape(states, (acc.shape[0], acc.shape[1] // {window} * 2))"),
        ]
    known = dict([*before.helpers, *order_helpers(helpers)])
    return Epilogue(tuple(statements), before.operands, tuple(known.items()), tuple(places))


def _write_finish(region: Region) -> tuple[str, ...]:
    """The function that combines a row's states, and what follows for each row."""
    levels, reduction = region.levels(), _reduction_of(region)
    lines = read_states(reduction.names)
    lines += [f"{name}_parts = {name}_parts.to(tl.int32)" for name in _places_of(reduction)]
    lines += REDUCTIONS[reduction.kind].combine(reduction.names, BY_ROW)
    for item in region.statements:
        if isinstance(item, Map) and not levels[item.name]:
            lines.append(f"{item.name} = {item.text}")
    return (*lines, f"return {region.stores[0].value}")
