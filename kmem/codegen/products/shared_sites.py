"""Products of one operand that are written in one launch, with what follows each of them.

    q, k, v = self.q(x), self.k(x), self.v(x)

The columns of all weights lie one after the other, so that the operand is read, split or scaled
once, and few tiles of each product fill the device together. A tile applies to each column what
follows the product that it belongs to, and stores it into that product's result.

Covered: two to four products with biases and pointwise nodes; weights without batch axes; with
`opens`, an operand that is made for them alone, by pointwise functions of it or as rows of a table.
Not covered: products of one right-hand operand; packed weights.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from kmem.codegen.chains.epilogue import MAX_OPERANDS, Epilogue, grow_epilogue
from kmem.codegen.products.contraction import MAX_STRIDE, Product, ProductAxis, Tail, read_product
from kmem.codegen.products.joined import Columns, Joined, Share
from kmem.codegen.products.joined_text import Statements
from kmem.codegen.products.prologue import Opening, leave_closed, open_shared
from kmem.codegen.products.sites import name_operator, read_table, read_terms
from kmem.codegen.steady import kept_operands
from kmem.problem.graph import Node, OpGraph
from kmem.problem.operators.row import ProductTerms
from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.recipes import Operand, Site
from kmem.records import Contract, TensorSpec

#: More results would need a pointer and a store of the tile each.
_MOST = 4
#: Widths of tiles: of most, and of the widest; and of the narrowest.
_GRAINS, _LEAST_GRAIN = (128, 256), 16


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the products, and what follows it alone."""

    node: Node
    terms: ProductTerms
    members: tuple[Node, ...]

    @property
    def made(self) -> Node:
        return self.members[-1] if self.members else self.node

    @property
    def names(self) -> tuple[str, ...]:
        return (self.node.name, *(member.name for member in self.members))


def find_shares(
    graph: OpGraph, contract: Contract, taken: Sequence[Site] = (), *, opens: bool = False
) -> list[Site]:
    """Every group of products of one operand, as a site each.

    Args:
        taken: sites whose nodes may not join.
        opens: whether to find those alone whose operand is made while it is read.
    """
    claimed = {name for site in taken for name in site.nodes}
    groups: dict[tuple[str, str], list[tuple[Node, ProductTerms]]] = {}
    for node in graph.nodes:
        terms = read_terms(graph, node) if node.name not in claimed else None
        if terms is not None and terms.a != terms.b:
            groups.setdefault((terms.a, terms.equation), []).append((node, terms))
    sites = []
    for products in groups.values():
        if len(products) < 2:
            continue
        parts = _apart(graph, _grow(graph, products, claimed))[:_MOST]
        opening = _open(graph, parts, claimed) if opens else None
        if opens and opening is None:
            continue
        site = _site(graph, parts, contract, opening)
        if site is not None:
            claimed.update(site.nodes)
            sites.append(site)
    return sorted(sites, key=lambda site: min(map(graph.place, site.nodes)))


def _grow(
    graph: OpGraph, products: Sequence[tuple[Node, ProductTerms]], claimed: Collection[str]
) -> list[_Part]:
    """The products, each with what follows it and no other."""
    names = {node.name for node, _ in products}
    parts, taken = [], {*claimed}
    for node, terms in products:
        others = names - {node.name}
        shared = {each.name for each in graph.nodes if graph.depends_on(each.name, others)}
        parts.append(_Part(node, terms, grow_epilogue(graph, node, taken | shared)))
        taken.update(parts[-1].names)
    return parts


def _apart(graph: OpGraph, parts: Sequence[_Part]) -> list[_Part]:
    """Those of which none reads what another makes, by whatever way."""
    chosen: list[_Part] = []
    for part in parts:
        others = [name for each in chosen for name in each.names]
        waits = any(graph.depends_on(name, others) for name in part.names)
        if not waits and not any(graph.depends_on(name, part.names) for name in others):
            chosen.append(part)
    return chosen


def _open(graph: OpGraph, parts: Sequence[_Part], claimed: Collection[str]) -> Opening | None:
    """What all read in the place of their operand; None where that is more than one tensor."""
    own = {name for part in parts for name in part.names}
    nodes = [part.node for part in parts]
    opening = open_shared(graph, parts[0].terms.a, nodes, {*claimed, *own})
    return opening if opening is not None and not opening.chain.operands else None


def _site(
    graph: OpGraph, parts: Sequence[_Part], contract: Contract, opening: Opening | None
) -> Site | None:
    """The site of a group; None where there is one product alone, or it cannot be written."""
    products = [_read(graph, part, contract, opening) for part in parts]
    written = [(part, each) for part, each in zip(parts, products, strict=True) if each is not None]
    alike = [(part, each) for part, each in written if _rows(each) == _rows(written[0][1])]
    if len(alike) < 2 or opening is not None and len(alike) < len(parts):
        return None  # another product needs what these would make for themselves
    parts, products = [part for part, _ in alike], [product for _, product in alike]
    product = _join(graph, parts, products)
    product = None if product is None else read_table(graph, product)
    if product is None:
        return None
    opening = opening or leave_closed(graph, parts[0].terms.a)
    weights = dict.fromkeys(part.terms.b for part in parts)
    return Site(
        name=parts[0].node.name,
        operator=name_operator(parts[0].node, product),
        nodes=(*opening.nodes, *(name for part in parts for name in part.names)),
        inputs=kept_operands(
            graph, (opening.source, *weights, *product.epilogue.operands, *opening.beside)
        ),
        outputs=tuple(Operand(part.made.name, part.made.spec) for part in parts),
        detail=product,
        bytes=sum(product.operand_bytes) + sum(spec.bytes for spec in product.operand_specs),
        flops=product.flops,
    )


def _read(
    graph: OpGraph, part: _Part, contract: Contract, opening: Opening | None
) -> Product | None:
    """One of the products by itself, with the operands of what follows it."""
    terms = part.terms
    epilogue = _write(graph, [part], [0], [1])
    if epilogue is None:
        return None
    before = () if opening is None else (opening, leave_closed(graph, terms.b))
    tail = Tail("none", 0, epilogue, tuple(map(graph.spec, epilogue.operands)), before)
    specs = graph.spec(terms.a), graph.spec(terms.b)
    product = read_product(terms.equation, specs, part.made.spec, contract.precision, tail)
    if product is None or product.n.size == 1 or product.k.size > MAX_STRIDE:
        return None
    has_batches = any(axis.b for axis in (*product.batch, product.m)) or product.n.a
    return None if has_batches or product.n.out != 1 else product


def _rows(product: Product) -> tuple[object, ...]:
    """What products have in common that are of one operand: its axes, and the type."""
    axes = ((axis.size, axis.a) for axis in (*product.batch, product.m, product.k))
    return (*axes, product.dtype)


def _join(graph: OpGraph, parts: Sequence[_Part], products: Sequence[Product]) -> Product | None:
    """The products of all parts as one."""
    weights = [*dict.fromkeys(part.terms.b for part in parts)]
    counts = [product.n.size for product in products]
    columns = tuple(
        Columns(weights.index(part.terms.b), 0, product.n.size, product.k.b, product.n.b)
        for part, product in zip(parts, products, strict=True)
    )
    grain = _grain(counts)
    firsts = [*accumulate((ceil_div(count, grain) * grain for count in counts), initial=0)]
    shares = tuple(
        Share(first, product.n.size, product.out, _result_steps(product))
        for first, product in zip(firsts, products, strict=False)
    )
    joined = Joined(columns, in_turns=False, shares=shares, grain=grain)
    epilogue = _write(graph, parts, firsts, counts)
    if epilogue is None or len(epilogue.operands) > MAX_OPERANDS + len(parts):
        return None
    lead = products[0]
    step_k, step_n = joined.steps(lead.k.size)
    outer, inner = (_axis([each.batch[place] for each in products]) for place in (0, 1))
    numel = sum(product.out.numel for product in products)
    return replace(
        lead,
        m=_axis([each.m for each in products]),
        n=replace(_axis([each.n for each in products]), size=joined.count, b=step_n),
        k=replace(lead.k, b=step_k),
        batch=(outer, inner),
        out=TensorSpec((numel,), lead.dtype, (1,)),
        epilogue=epilogue,
        operand_specs=tuple(spec for product in products for spec in product.operand_specs),
        joined=joined,
    )


def _axis(axes: Sequence[ProductAxis]) -> ProductAxis:
    """An axis of all products, with the steps of all their operands."""
    return replace(axes[0], operands=tuple(step for axis in axes for step in axis.operands))


def _result_steps(product: Product) -> tuple[int, int, int]:
    outer, inner = product.batch
    return outer.out, inner.out, product.m.out


def _grain(counts: Sequence[int]) -> int:
    """Columns of which each result starts at a multiple, so that no tile belongs to two."""
    if all(count % _GRAINS[1] == 0 for count in counts):
        return _GRAINS[1]
    return max(_LEAST_GRAIN, min(_GRAINS[0], *map(next_power_of_two, counts)))


def _write(
    graph: OpGraph, parts: Sequence[_Part], firsts: Sequence[int], counts: Sequence[int]
) -> Epilogue | None:
    """The statements that make of each column what follows its product."""
    statements = Statements(graph)
    before_reads, results = [], []
    for place, (part, first, count) in enumerate(zip(parts, firsts, counts, strict=False)):
        own, source = f"columns{place}", f"acc{place}"
        inside = f"(columns >= {first}) & (columns < {first + count})"
        before_reads.append((own, f"tl.where({inside}, columns - {first}, {count})"))
        statements.add_bias(part.terms, "acc", source, (own, str(count)))
        variables = {part.node.name: source}
        statements.add_members(part.members, variables, f"y{place}_", (own, str(count)))
        results.append((variables[part.made.name], first + count))
    chosen = results[-1][0]
    for name, end in reversed(results[:-1]):
        chosen = f"tl.where((columns < {end})[None, :], {name}, {chosen})"
    statements.lines.append((f"shares{len(parts)}", chosen))
    return statements.finish((), before_reads)
