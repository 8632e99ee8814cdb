"""The products of a graph as sites.

Owned here: what a product takes in, which is a triu or tril, what is pointwise after it
(chains/epilogue.py) and before it (prologue.py). Which einsum an operator is stands in its row
(kmem/problem/operators/products.py), and contraction.py brings it into one form.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product as all_pairs

from kmem.codegen.chains.epilogue import Bias, Triangle, grow_epilogue, write_epilogue
from kmem.codegen.products.contraction import MAX_STRIDE, Product, Tail, read_product
from kmem.codegen.products.prologue import Opening, gather_rows, grow_opening, leave_closed
from kmem.codegen.products.unpacking import grow_unpacked
from kmem.codegen.steady import kept_operands
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators import row
from kmem.problem.operators.row import Layout, ProductTerms
from kmem.problem.operators.table import find_operator, lowering_of
from kmem.recipes import Operand, Site
from kmem.records import Contract, Precision, TensorSpec


def find_products(graph: OpGraph, contract: Contract, *, opens: bool = False) -> list[Site]:
    """Every product of the graph as a site whose detail is a `Product`.

    A site takes in the triu or tril and the pointwise nodes that follow the product.

    Args:
        opens: whether to find those alone of which an operand is made by pointwise nodes, and to
            take these in too.
    """
    return [*graph.once(_find_products, contract.precision, opens)]


def _find_products(graph: OpGraph, precision: Precision, opens: bool) -> list[Site]:  # noqa: FBT001
    sites: list[Site] = []
    taken: set[str] = set()
    for node in graph.nodes:
        terms = read_terms(graph, node) if node.name not in taken else None
        if terms is None:
            continue
        start = _triangle(graph, node) or node
        # What follows may have strides that keep axes from merging: then the product goes without
        # it.
        followers = (grow_epilogue(graph, start, taken), ())
        for members, before in all_pairs(followers, _openings(graph, node, terms, taken, opens)):
            site = _site(graph, node, terms, members, before, precision)
            if site is not None:
                taken.update(site.nodes)
                sites.append(site)
                break
    return sites


def _openings(
    graph: OpGraph, node: Node, terms: ProductTerms, taken: set[str], opens: bool
) -> list[tuple[Opening, ...]]:
    """Both openings together, then one alone; none where a product is to be left closed."""
    if not opens:
        return [()]
    named = (terms.a, terms.b)
    closed = tuple(leave_closed(graph, name) for name in named)
    # what is read in two ways has to be there
    names = [*node.refs()]
    opened = tuple(
        grow_opening(graph, name, {node.name}, taken) if names.count(name) == 1 else own
        for name, own in zip(named, closed, strict=True)
    )
    unpacked = None
    if names.count(terms.b) == 1:
        unpacked = grow_unpacked(
            graph, terms.b, _letters(terms), node, taken, narrow=not opened[1].nodes
        )
    opened = (opened[0], unpacked or opened[1])
    if names.count(terms.a) == 1:
        opened = (gather_rows(graph, opened[0], {node.name}, taken), opened[1])
    ways = [opened, (opened[0], closed[1]), (closed[0], opened[1])]
    return [way for way in dict.fromkeys(ways) if any(opening.nodes for opening in way)]


def _letters(terms: ProductTerms) -> str:
    """The dimensions of b: "k" along the sum, "n" along the columns, "?" for others."""
    inputs, result = terms.equation.split("->")
    left, right = inputs.split(",")
    kinds = {(True, False): "k", (False, True): "n"}
    return "".join(kinds.get((letter in left, letter in result), "?") for letter in right)


def read_terms(graph: OpGraph, node: Node) -> ProductTerms | None:
    """What a node multiplies and adds; None if it is no product."""
    operator = find_operator(node.target)
    if operator is None or not isinstance(node.output, TensorSpec):
        return None
    call = operator.call(graph, node)
    lowering = operator.lowering_of(call)
    return lowering.read(call) if isinstance(lowering, row.Product) else None


def _site(
    graph: OpGraph,
    node: Node,
    terms: ProductTerms,
    members: Sequence[Node],
    before: tuple[Opening, ...],
    precision: Precision,
) -> Site | None:
    """The site of a product with these nodes after it; None if they cannot be written together."""
    triangle = _triangle(graph, node)
    last = members[-1] if members else triangle or node
    bias = None if terms.bias is None else Bias(terms.bias, terms.alpha, terms.beta)
    kept = _kept(graph, triangle)
    kept_triangle = None if triangle is None else Triangle(triangle.name, *kept)
    epilogue = write_epilogue(graph, node, bias, kept_triangle, members)
    if epilogue is None:
        return None
    operands = tuple(graph.spec(name) for name in epilogue.operands)
    tail = Tail(*kept, epilogue, operands, before)
    specs = (graph.spec(terms.a), graph.spec(terms.b))
    product = read_product(terms.equation, specs, last.spec, precision, tail)
    product = None if product is None else read_table(graph, _read_packed(product))
    if product is None:
        return None
    between = (triangle,) if triangle is not None else ()
    sources = tuple(opening.source for opening in before) or (terms.a, terms.b)
    beside = [name for each in before for name in (*each.chain.operands, *each.pointers)]
    beside += [opening.rows for opening in before if opening.rows]
    specs = (*operands, *(spec for opening in before for spec in opening.specs))
    opened = [name for opening in before for name in opening.nodes]
    return Site(
        name=node.name,
        operator=name_operator(node, product),
        nodes=(*opened, *(each.name for each in (node, *between, *members))),
        inputs=kept_operands(graph, (*sources, *epilogue.operands, *beside)),
        outputs=(Operand(last.name, last.spec),),
        detail=product,
        bytes=sum(product.operand_bytes) + sum(spec.bytes for spec in specs),
        flops=product.flops * (0.5 if triangle else 1.0),
        flags=("algebraic",) if triangle else (),
    )


def _read_packed(product: Product) -> Product:
    """A product whose b is made of other memory alone: whatever b points to is read nowhere."""
    if not product.unpacks:
        return product
    return replace(product, n=replace(product.n, b=0), k=replace(product.k, b=0))


def read_table(graph: OpGraph, product: Product) -> Product | None:
    """A product whose rows come through an index, with the steps of the table and the index.

    Returns: None if the index does not hold a row of the product at each place.
    """
    opening = product.before[0] if product.before else None
    if opening is None or not opening.rows:
        return product
    table, width = graph.spec(opening.source), product.k.size
    steps = tuple(axis.a for axis in (*product.batch, product.m))
    is_by_row = width == table.shape[1] and product.k.a == 1
    if not is_by_row or any(step % width for step in steps) or max(table.stride) > MAX_STRIDE:
        return None
    row_step, step = table.stride
    opened = replace(opening, row_steps=tuple(each // width for each in steps))
    return replace(
        product,
        m=replace(product.m, a=row_step),
        k=replace(product.k, a=step),
        before=(opened, *product.before[1:]),
    )


def _triangle(graph: OpGraph, node: Node) -> Node | None:
    """The triu or tril that is the only reader of a product."""
    if not graph.has_one_user(node.name):
        return None
    (user,) = graph.users(node.name)
    is_triangle = lowering_of(graph, user) in (Layout.UPPER, Layout.LOWER)
    return user if is_triangle and user.args[0] == Ref(node.name) else None


def _kept(graph: OpGraph, triangle: Node | None) -> tuple[str, int]:
    """Which triangle is kept and its diagonal."""
    if triangle is None:
        return "none", 0
    operator = find_operator(triangle.target)
    diagonal = operator.call(graph, triangle)["diagonal"]
    return "upper" if operator.lowering is Layout.UPPER else "lower", diagonal


def name_operator(node: Node, product: Product) -> str:
    """The vocabulary's name: what the sizes make of a product goes before its spelling."""
    if product.triangle != "none":
        return "triangular_matmul"
    if min(product.m.size, product.n.size) == 1:
        return "matvec"
    if find_operator(node.target).name == "linear":
        return "linear"
    return "batched_matmul" if product.batches > 1 else "matmul"
