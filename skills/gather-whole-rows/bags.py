"""Embedding bags in a graph: the operator itself, and an embedding whose rows are added up.

Covered: tables of floats with dense rows; sums and means; weights of entries; bags of one length or
by offsets; a padding index. Not covered: the largest of a bag; bags whose other results are read.
"""

from dataclasses import dataclass
from math import prod

from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.recipes import Operand, Site
from kmem.records import TensorSpec

_INDICES = ("int32", "int64")
_REDUCTIONS = {"aten.sum.dim_IntList": False, "aten.mean.dim": True}
_EMBEDDINGS = ("aten.embedding.default",)
_BAGS = ("aten.embedding_bag.padding_idx", "aten.embedding_bag.default")
#: Modes of torch.embedding_bag; the third takes the largest.
_SUM, _MEAN = 0, 1
#: Entries in a bag up to which sums of tiles are exact enough one after the other.
_LONGEST = 4096


@dataclass(frozen=True, slots=True)
class Bags:
    """So many bags over `entries` indices into a table of (rows, width).

    `length` is the entries of each bag, 0 where offsets say where bags begin; `has_ends` says that
    these end with where the last one ends. `padding` is an index that counts as none, or -1.
    """

    table: TensorSpec
    count: int
    entries: int
    length: int
    is_mean: bool
    is_weighted: bool = False
    has_ends: bool = False
    padding: int = -1

    @property
    def width(self) -> int:
        """Columns of a row."""
        return self.table.shape[1]

    @property
    def longest(self) -> int:
        """Entries of a bag, on average where they differ."""
        return self.length or max(1, self.entries // self.count)


def find_bags(graph: OpGraph) -> list[Site]:
    """The sites of a graph, in its order."""
    sites = []
    for node in graph.nodes:
        site = None
        if node.target in _EMBEDDINGS:
            site = _added_up(graph, node)
        elif node.target in _BAGS:
            site = _bag(graph, node)
        if site is not None:
            sites.append(site)
    return sites


def _added_up(graph: OpGraph, node: Node) -> Site | None:
    """The site of an embedding that is only read to be added up along its indices."""
    table, indices = (graph.spec(arg.name) for arg in node.args[:2])
    users = graph.users(node.name)
    if len(users) != 1 or node.name in graph.outputs:
        return None
    nodes, last = [node], users[0]
    weights = None
    if last.target == "aten.mul.Tensor":
        weights = _weights(graph, last, node, indices)
        users = graph.users(last.name)
        if weights is None or len(users) != 1 or last.name in graph.outputs:
            return None
        nodes.append(last)
        last = users[0]
    if last.target not in _REDUCTIONS or last.kwargs.get("dtype") is not None:
        return None
    along = last.args[1] if len(last.args) > 1 else None
    axis = len(indices.shape) - 1
    is_along = isinstance(along, tuple) and [dim % (axis + 2) for dim in along] == [axis]
    length = indices.shape[-1] if indices.shape else 0
    if not is_along or not 0 < length <= _LONGEST:
        return None
    bags = Bags(
        table,
        prod(indices.shape[:-1]),
        indices.numel,
        length,
        _REDUCTIONS[last.target],
        weights is not None,
    )
    inputs = [*(arg.name for arg in node.args[:2]), *([weights] if weights else [])]
    return _site(graph, node.name, [*nodes, last], inputs, last, bags)


def _weights(graph: OpGraph, product: Node, node: Node, indices: TensorSpec) -> str | None:
    """What a product multiplies each picked row with, if that is one number an entry."""
    others = [arg for arg in product.args if arg != Ref(node.name)]
    if len(others) != 1 or not isinstance(others[0], Ref):
        return None
    spec = graph.spec(others[0].name)
    is_one_each = spec.shape == (*indices.shape, 1) and spec.is_contiguous
    return others[0].name if is_one_each and spec.dtype in FLOATS else None


def _bag(graph: OpGraph, node: Node) -> Site | None:
    """The site of torch's own operator, of whose results only the bags are read."""
    names = ("scale", "mode", "sparse", "weights", "ends", "padding")
    given = dict(zip(names, (*node.args[3:], *(None,) * len(names)), strict=False)) | node.kwargs
    made = graph.only_result(node)
    if made is None or given["mode"] not in (_SUM, _MEAN):
        return None
    table, indices = (arg.name for arg in node.args[:2])
    offsets = node.args[2].name
    weights = given["weights"].name if isinstance(given["weights"], Ref) else None
    begins, count = graph.node(offsets), made.spec.shape[0]
    entries = graph.spec(indices).numel
    nodes, length = [node, *graph.users(node.name)], _length(begins, entries, count)
    if length and graph.has_one_user(offsets):
        nodes.append(begins)
    padding = given["padding"]
    bags = Bags(
        graph.spec(table),
        count,
        entries,
        length,
        given["mode"] == _MEAN,
        weights is not None,
        bool(given["ends"]),
        -1 if padding is None else int(padding) % graph.spec(table).shape[0],
    )
    inputs = [table, indices, *([] if length else [offsets]), *([weights] if weights else [])]
    return _site(graph, node.name, nodes, inputs, made, bags)


def _length(offsets: Node | None, entries: int, count: int) -> int:
    """How many entries each bag has where offsets are even steps; 0 if they may be any."""
    if offsets is None or offsets.target != "aten.arange.start_step":
        return 0
    *ends, step = offsets.args[:3]
    return step if ends == [0, entries] and count * step == entries else 0


def _site(
    graph: OpGraph, name: str, nodes: list[Node], inputs: list[str], made: Node, bags: Bags
) -> Site | None:
    table = graph.spec(inputs[0])
    indices, *others = (graph.spec(each) for each in inputs[1:])
    weight = others[-1] if bags.is_weighted else table
    is_covered = (
        table.dtype == made.spec.dtype == weight.dtype
        and table.dtype in FLOATS
        and len(table.shape) == 2
        and table.stride[1] == 1
        and all(each.is_contiguous for each in (indices, made.spec, *others))
        and indices.dtype in _INDICES
        and bags.count > 0
        and bags.entries > 0
        and bags.width > 0
    )
    if not is_covered:
        return None
    row_bytes = bags.width * made.spec.bytes // made.spec.numel
    picked = min(table.bytes, bags.entries * row_bytes)
    return Site(
        name=name,
        operator="embedding",
        nodes=tuple(node.name for node in sorted(nodes, key=lambda each: graph.place(each.name))),
        inputs=tuple(Operand(each, graph.spec(each)) for each in inputs),
        outputs=(Operand(made.name, made.spec),),
        detail=bags,
        bytes=picked + made.spec.bytes + indices.bytes + sum(each.bytes for each in others),
        flops=2.0 * bags.entries * bags.width,
    )
