"""Two products of one operand that are written as one, with what is made of both.

    F.silu(self.gate(x)) * self.up(x)           # two products
    F.glu(self.both(x))                         # two halves of one
    a, b = (x @ w).chunk(2, -1); a * torch.sigmoid(b)

The columns of both weights lie in turns, so that a tile holds the two results of a place side by
side: the function that it is handed parts them, and stores what is made of both. The results
themselves never leave the registers.

Covered: any pointwise function of both, with biases and other operands; weights without batch axes;
with `opens`, an operand that is made for the two alone, by pointwise nodes or as rows of a table.
Not covered: results that something else reads too; packed weights.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from kmem.codegen.chains.epilogue import Epilogue, grow_from
from kmem.codegen.products.contraction import MAX_STRIDE, Product, Tail, read_product
from kmem.codegen.products.joined import Columns, Joined
from kmem.codegen.products.joined_text import Statements
from kmem.codegen.products.prologue import Opening, leave_closed, open_shared
from kmem.codegen.products.sites import name_operator, read_table, read_terms
from kmem.codegen.steady import kept_operands
from kmem.problem.graph import Node, OpGraph
from kmem.problem.operators.row import Layout, Pointwise, ProductTerms
from kmem.problem.operators.table import find_operator, lowering_of
from kmem.recipes import Operand, Site
from kmem.records import Contract, TensorSpec

_SIDES = ("first", "second")
#: Where a tile's pairs of columns belong: written so that a compiler sees a run of them. Where it
#: did not, 128x256 was stored two bytes at a time (SASS for sm_90).
_FIRST = "tl.multiple_of(tl.min(columns, 0) // 2, columns.shape[0] // 2)"
_PAIRS = f"{_FIRST} + tl.arange(0, columns.shape[0] // 2)"
# N is a plain number in the interpreter, which takes no constexpr on its right
_IS_EVEN = "tl.constexpr(N) % (columns.shape[0] * 2) == 0"
_OUTSIDE = f"columns if {_IS_EVEN} else tl.where(columns < N // 2, columns, N)"
#: Where operands are read.
_PLACE = ("places", "N // 2")


@dataclass(frozen=True, slots=True)
class _Side:
    """One of two results: the node that hands it on, and the product of which it is all or half."""

    node: Node | None  # none where a gate reads the halves itself
    terms: ProductTerms
    half: int | None = None


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two results in the order of their columns; `nodes` make them, `gate` is a glu of both."""

    sides: tuple[_Side, _Side]
    nodes: tuple[Node, ...]
    gate: Node | None = None


def find_gates(graph: OpGraph, contract: Contract, *, opens: bool = False) -> list[Site]:
    """Every two products of one operand with what is made of both, as a site each.

    Args:
        opens: whether to find those alone whose operand is made while it is read.
    """
    sites: list[Site] = []
    taken: set[str] = set()
    for pair in (*_halved(graph), *_paired(graph)):
        if taken.isdisjoint(node.name for node in pair.nodes):
            site = _site(graph, pair, taken, contract, opens=opens)
            if site is not None:
                taken.update(site.nodes)
                sites.append(site)
    return join_sites(graph, (), sites)


def join_sites(graph: OpGraph, sites: Sequence[Site], joined: Sequence[Site]) -> list[Site]:
    """Sites in graph order, joined ones in the place of those that share nodes with them."""
    taken = {name for site in joined for name in site.nodes}
    apart = [site for site in sites if taken.isdisjoint(site.nodes)]
    return sorted((*apart, *joined), key=lambda site: min(map(graph.place, site.nodes)))


def _products(graph: OpGraph) -> list[tuple[Node, ProductTerms]]:
    found = ((node, read_terms(graph, node)) for node in graph.nodes)
    return [(node, terms) for node, terms in found if terms is not None]


def _paired(graph: OpGraph) -> Iterator[_Pair]:
    """Products of one operand that nothing else than what follows both need read."""
    for (node, terms), (other, others) in combinations(_products(graph), 2):
        is_alike = (terms.a, terms.equation) == (others.a, others.equation)
        if (
            is_alike
            and node.output == other.output
            and not graph.depends_on(other.name, [node.name])
        ):
            yield _Pair((_Side(node, terms), _Side(other, others)), (node, other))


def _halved(graph: OpGraph) -> Iterator[_Pair]:
    """Products of which the two halves of every row are read."""
    for node, terms in _products(graph):
        users = graph.users(node.name)
        if node.name in graph.outputs or not users or not node.spec.shape:
            continue
        if len(users) == 1 and _is_glu(users[0], node):
            sides = (_Side(None, terms, 0), _Side(None, terms, 1))
            yield _Pair(sides, (node, users[0]), users[0])
            continue
        takes = [each for user in users for each in _takes(graph, user)]
        halves = {_half_of(graph, node.spec, take): take for take in takes}
        if len(takes) == 2 and {*halves} == {0, 1}:
            between = {each.name: each for each in (*users, *takes)}.values()
            sides = tuple(_Side(halves[half], terms, half) for half in (0, 1))
            yield _Pair(sides, (node, *between))


def _is_glu(user: Node, product: Node) -> bool:
    dim = user.args[1] if len(user.args) > 1 else -1
    is_last = dim in (-1, len(product.spec.shape) - 1)
    return user.target == "aten.glu.default" and is_last and not user.kwargs


def _takes(graph: OpGraph, user: Node) -> Sequence[Node]:
    """Nodes that hand on what a view of a product shows."""
    return graph.users(user.name) if isinstance(user.output, tuple) else (user,)


def _half_of(graph: OpGraph, whole: TensorSpec, take: Node) -> int | None:
    """Which half of the rows of a product a node hands on."""
    if not isinstance(take.output, TensorSpec):
        return None
    rank, columns = len(whole.shape), whole.shape[-1]
    if take.spec.shape != (*whole.shape[:-1], columns // 2) or columns % 2:
        return None
    if lowering_of(graph, take) is Layout.TAKE:
        (source,) = take.refs()
        view = graph.node(source)
        is_split = view is not None and view.target.split(".")[1] in _SPLITS
        return take.args[1] if is_split and _dim_of(view) in (-1, rank - 1) else None
    if lowering_of(graph, take) not in (Layout.SLICE, Layout.NARROW):
        return None
    call = find_operator(take.target).call(graph, take)
    is_last = call["dim"] in (-1, rank - 1) and call["step"] in (None, 1)
    starts = {0: 0, None: 0, columns // 2: 1, columns // 2 - columns: 1}
    return starts.get(call["start"]) if is_last else None


_SPLITS = ("chunk", "split", "split_with_sizes")


def _dim_of(view: Node) -> object:
    return view.kwargs.get("dim", view.args[2] if len(view.args) > 2 else 0)


def _site(
    graph: OpGraph, pair: _Pair, taken: set[str], contract: Contract, *, opens: bool
) -> Site | None:
    """The site of two results; None if nothing is made of both alone, or it cannot be written."""
    if pair.gate is not None:
        members = grow_from(graph, (pair.gate,), taken)
        made = members[-1] if members else pair.gate
    else:
        starts = [side.node for side in pair.sides if side.node is not None]
        members = grow_from(graph, starts, taken)
        if not members:
            return None
        made = members[-1]
    epilogue = _write(graph, pair, members)
    if epilogue is None:
        return None
    terms = pair.sides[0].terms
    products = [node for node in pair.nodes if read_terms(graph, node) is not None]
    opening = open_shared(graph, terms.a, products, taken) if opens else None
    if opens and opening is None:
        return None
    specs = [_operand_spec(graph, pair, name, made.spec) for name in epilogue.operands]
    tail = Tail("none", 0, epilogue, tuple(specs), () if opening is None else (opening,))
    product = _join(graph, pair, made.spec, tail, contract)
    product = None if product is None else read_table(graph, product)
    if product is None:
        return None
    opening = opening or leave_closed(graph, terms.a)
    weights = dict.fromkeys(side.terms.b for side in pair.sides)
    lead = pair.nodes[0]
    return Site(
        name=lead.name,
        operator=name_operator(lead, product),
        nodes=(
            *opening.nodes,
            *dict.fromkeys(node.name for node in (*pair.nodes, *members)),
        ),
        inputs=kept_operands(
            graph, (opening.source, *weights, *epilogue.operands, *opening.beside)
        ),
        outputs=(Operand(made.name, made.spec),),
        detail=product,
        bytes=sum(product.operand_bytes) + sum(spec.bytes for spec in (*specs, *opening.specs)),
        flops=product.flops,
    )


def _operand_spec(graph: OpGraph, pair: _Pair, name: str, made: TensorSpec) -> TensorSpec:
    """What an operand is read as: half of a bias, where results are halves."""
    spec = graph.spec(name)
    is_bias = any(side.half is not None and side.terms.bias == name for side in pair.sides)
    is_halved = is_bias and spec.shape and spec.shape[-1] == 2 * made.shape[-1]
    if not is_halved:
        return spec
    return replace(spec, shape=(*spec.shape[:-1], made.shape[-1]))


def _join(
    graph: OpGraph, pair: _Pair, made: TensorSpec, tail: Tail, contract: Contract
) -> Product | None:
    """The two products in one form."""
    found: list[tuple[Product, Columns]] = []
    weights = [*dict.fromkeys(side.terms.b for side in pair.sides)]
    for side in pair.sides:
        terms, weight = side.terms, graph.spec(side.terms.b)
        left, right = terms.equation.split("->")[0].split(",")
        last = terms.equation[-1]
        if last not in right or last in left or terms.a == terms.b:
            return None
        first = 0
        if side.half is not None:
            place = right.index(last)
            shape = tuple(
                size // 2 if axis == place else size for axis, size in enumerate(weight.shape)
            )
            first = side.half * shape[place] * weight.stride[place]
            weight = replace(weight, shape=shape)
        specs = graph.spec(terms.a), weight
        opened = tuple((each, Opening(terms.b, weight)) for each in tail.before)
        own = replace(tail, before=opened[0] if opened else ())
        product = read_product(terms.equation, specs, made, contract.precision, own)
        if product is None or any(axis.b for axis in (*product.batch, product.m)):
            return None
        place = weights.index(terms.b)
        columns = Columns(place, first, product.n.size, product.k.b, product.n.b)
        found.append((product, columns))
    product = found[0][0]
    are_alike = len({_without_weights(each) for each, _ in found}) == 1
    if not are_alike or product.k.size > MAX_STRIDE:
        return None
    joined = Joined(tuple(columns for _, columns in found), in_turns=True)
    step_k, step_n = joined.steps(product.k.size)
    return replace(
        product,
        k=replace(product.k, b=step_k),
        n=replace(product.n, size=joined.count, b=step_n),
        joined=joined,
    )


def _without_weights(product: Product) -> Product:
    axes = {"k": replace(product.k, b=0), "n": replace(product.n, b=0)}
    return replace(product, before=product.before[:1], **axes)


def _write(graph: OpGraph, pair: _Pair, members: Sequence[Node]) -> Epilogue | None:
    """The statements that part a tile's two results and make of both what is stored."""
    statements = Statements(graph)
    shape = "(acc.shape[0], acc.shape[1] // 2, 2)"
    statements.lines += [
        ("pairs", f"tl.reshape(acc, {shape})"),
        (", ".join(_SIDES), "tl.split(pairs)"),
    ]
    variables: dict[str, str] = {}
    for side, name in zip(pair.sides, _SIDES, strict=True):
        bias = side.terms.bias
        is_behind = side.half == 1 and bias is not None and graph.spec(bias).shape[-1:] != (1,)
        place = ("places + N // 2", "N") if is_behind else _PLACE
        statements.add_bias(side.terms, name, name, place)
        if side.node is not None:
            variables[side.node.name] = name
    if pair.gate is not None:
        sigmoid = find_operator("aten.sigmoid.default").lowering
        assert isinstance(sigmoid, Pointwise)
        opened = sigmoid.write(_SIDES[1])
        statements.lines.append(("gated", f"{_SIDES[0]} * ({opened.text})"))
        statements.helpers += opened.helpers
        variables[pair.gate.name] = "gated"
    statements.add_members(members, variables, "y", _PLACE)
    places = (("columns", _PAIRS), ("columns", _OUTSIDE))
    return statements.finish(places, (("places", _PAIRS),))
