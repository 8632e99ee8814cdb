"""Rows of a product reduced where its tiles are stored, however many tiles a row has.

    torch.logsumexp(self.linear(x), 1)      # of each tile, only the states of its rows are written

A product whose columns are reduced next, to one value a row, need not be written: each tile stores
the states of the reduction over every 16 of its columns, 16 or 8 times fewer numbers, and one more
kernel finishes the rows (finishing.py). The tiles do so in the function that they are handed
(chains/ports.py), so that no kernel of a product knows of it.

Covered: sums, products, maxima, minima, softmax statistics over the last dimension, the place of
the largest or smallest value in fp32, and what follows these row by row. Not covered: places in
half precision, where eager takes the first of the values that rounding makes equal and fp32 sums
tell apart; moments; and what is read again behind the reduction:
a softmax or norm behind a product is a kernel of rows, which keeps a row in the registers of one
program, or of several that share it, and reads it once. With states it would read no less: of a
column in fp32, 4 bytes are written by the product, 4 read and 4 written by the rows' kernel, and
two states of every 16 columns add half a byte written and half a byte read (by arithmetic alone).
"""

from collections.abc import Sequence
from dataclasses import replace

from kmem.codegen.chains.epilogue import Epilogue
from kmem.codegen.products.contraction import Product
from kmem.codegen.products.finishing import WINDOW, Finish, read_states
from kmem.codegen.products.sites import find_products
from kmem.codegen.regions.matching import FoundRegion, find_row_regions, may_reduce
from kmem.codegen.regions.reduction import BY_ROW
from kmem.codegen.regions.reductions import REDUCTIONS
from kmem.codegen.regions.region import Load, Map, Reduce, Region
from kmem.problem.graph import OpGraph
from kmem.problem.operators.expressions import Helper, order_helpers
from kmem.recipes import Site
from kmem.records import Contract, TensorSpec

_KINDS = ("sum", "prod", "max", "min", "argmax", "softmax", "logsumexp")
#: A row has as many columns at most: a program of the last kernel holds the states of a whole one.
#: It may have few, for a small workload must match wherever the full one does. A place is left as
#: an fp32 number, which holds whole ones up to 2**24.
_FEWEST_COLUMNS, _MOST_COLUMNS = 2, 2**17


def find_reduced(graph: OpGraph, contract: Contract) -> list[Site]:
    """The products of which one value for each row is wanted."""
    return reduce_sites(graph, find_products(graph, contract))


def reduce_sites(graph: OpGraph, sites: Sequence[Site]) -> list[Site]:
    """The sites of products whose rows are reduced next, with the reductions."""
    found = []
    for site in sites:
        others = {name for other in sites if other is not site for name in other.nodes}
        reduced = _reduce(graph, site)
        if reduced is not None and others.isdisjoint(reduced.nodes):
            found.append(reduced)
    return found


def _reduce(graph: OpGraph, site: Site) -> Site | None:
    product: Product = site.detail
    (made,) = site.outputs
    if not may_reduce(graph, made.name, product.n.size):
        return None
    regions = find_row_regions(graph.hiding({*site.nodes}))
    found = next((each for each in regions if _is_alone(graph, made.name, each)), None)
    if found is None or product.triangle != "none" or product.n.out != 1:
        return None
    region, steps = found.region, _row_steps(product)
    if steps is None or not _covers_rows(region, made.spec, product.n.size):
        return None
    (output,) = region.outputs
    columns = product.n.size
    helpers = [each for item in region.statements for each in _helpers_of(item)]
    finish = Finish(
        _write_finish(region),
        order_helpers(helpers),
        len(_reduction_of(region).names),
        region.rows,
        columns,
        _wants_rounding(region, product),
    )
    detail = replace(
        product,
        m=replace(product.m, out=steps[2] * finish.row_elements),
        batch=tuple(
            replace(axis, out=step * finish.row_elements)
            for axis, step in zip(product.batch, steps[:2], strict=True)
        ),
        out=output.spec,
        epilogue=_write_partial(region, product.epilogue),
        finish=finish,
    )
    return replace(
        site,
        nodes=(*site.nodes, *found.nodes),
        outputs=(output,),
        detail=detail,
        bytes=site.bytes - made.spec.bytes + output.spec.bytes,
    )


def _is_alone(graph: OpGraph, made: str, found: FoundRegion) -> bool:
    """Whether a region reads a product and nothing else, and it alone reads it."""
    users = {user.name for user in graph.users(made)}
    inputs = [operand.name for operand in found.region.inputs]
    return inputs == [made] and made not in graph.outputs and users <= {*found.nodes}


def _row_steps(product: Product) -> list[int] | None:
    """Rows in memory between neighbours along both batch axes and m; None if rows have gaps."""
    steps = [axis.out for axis in (*product.batch, product.m)]
    whole = all(step % product.n.size == 0 for step in steps)
    return [step // product.n.size for step in steps] if whole else None


def _covers_rows(region: Region, made: TensorSpec, columns: int) -> bool:
    """Whether a region leaves one value of each row of a product, in the order of the rows."""
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
    fits = _FEWEST_COLUMNS <= columns <= _MOST_COLUMNS and _has_type(region, made)
    return are_rows and is_whole and in_order and fits


def _has_type(region: Region, made: TensorSpec) -> bool:
    """Whether rows' values have a product's type, or are places in an fp32 one."""
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


def _wants_rounding(region: Region, product: Product) -> bool:
    reduction = _reduction_of(region)
    is_computed = bool(product.epilogue.statements) or bool(region.kinds_of_computed)
    return is_computed and REDUCTIONS[reduction.kind].wants_rounded_values


def _write_partial(region: Region, before: Epilogue) -> Epilogue:
    """What follows a product, then the states of every WINDOW columns in the place of these."""
    levels, reduction = region.levels(), _reduction_of(region)
    value = before.statements[-1][0] if before.statements else "acc"
    windows = f"(acc.shape[0] * acc.shape[1] // {WINDOW}, {WINDOW})"
    parts = f"(acc.shape[0], acc.shape[1] // {WINDOW})"
    reach = "tl.broadcast_to((columns < N)[None, :], acc.shape)"
    statements = [
        *before.statements,
        ("windows", f"tl.reshape({value}, {windows})"),
        ("valid", f"tl.reshape({reach}, {windows})"),
        ("EVEN_R", f"N % {WINDOW} == 0"),
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
        ("columns", f"tl.reshape(columns, (columns.shape[0] // {WINDOW}, {WINDOW}))"),
        ("columns", f"tl.min(columns, axis=1) // {WINDOW}"),
        ("is_part", f"columns < (N + {WINDOW - 1}) // {WINDOW}"),
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
            ("states", f"tl.reshape(states, (acc.shape[0], acc.shape[1] // {WINDOW} * 2))"),
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
