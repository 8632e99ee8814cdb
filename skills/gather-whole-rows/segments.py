"""Sums and means of rows by where they go: index_add, scatter_add and scatter_reduce from zeros.

Covered: rows of floats added to zeros along the first dimension, one target for each row, and rows
that are picked for that alone (x[source]), which are read where they lie. Not covered: products and
extremes; what is added to other values; targets that differ within a row.
"""

from dataclasses import dataclass

from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.row import Fill
from kmem.problem.operators.table import lowering_of
from kmem.recipes import Operand, Site
from kmem.records import TensorSpec

_ADDED = ("aten.index_add.default", "aten.scatter_add.default", "aten.scatter_reduce.two")
_PICKED = {"aten.index.Tensor": 1, "aten.index_select.default": 2, "aten.embedding.default": 1}
_SHAPED = ("unsqueeze", "view", "reshape", "expand", "expand_as")
_INDICES = ("int32", "int64")


@dataclass(frozen=True, slots=True)
class Segments:
    """`entries` rows of a table, or picked from it by an index, added up to `count` rows."""

    table: TensorSpec
    count: int
    entries: int
    is_mean: bool
    is_picked: bool

    @property
    def width(self) -> int:
        """Columns of a row."""
        return self.table.shape[1]

    @property
    def longest(self) -> int:
        """Rows of a sum, on average."""
        return max(1, self.entries // self.count)


def find_segments(graph: OpGraph) -> list[Site]:
    """The sites of a graph, in its order."""
    found = (_read(graph, node) for node in graph.nodes)
    return [site for site in found if site is not None]


def _read(graph: OpGraph, node: Node) -> Site | None:
    target = node.target.replace("_.", ".")  # into zeros of its own, in place or not is the same
    if target not in _ADDED or len(node.args) < 4 or node.args[1] != 0:
        return None
    zeros = graph.node(node.args[0].name)
    if zeros is None or lowering_of(graph, zeros) != Fill(0.0) or not _is_for(graph, zeros):
        return None
    mode = "sum" if target != "aten.scatter_reduce.two" else node.args[4]
    is_mean = mode == "mean" and node.kwargs.get("include_self") is False
    if (mode != "sum" and not is_mean) or node.kwargs.get("alpha", 1) != 1:
        return None
    rows = node.args[3].name
    targets = _targets(graph, node.args[2].name, target != "aten.index_add.default")
    spec = graph.spec(rows)
    if targets is None or len(spec.shape) != 2 or graph.spec(targets).shape != spec.shape[:1]:
        return None
    nodes, inputs = [zeros, node], [rows, targets]
    picked = _picked(graph, rows)
    if picked is not None:
        nodes, inputs = [zeros, graph.node(rows), node], [picked[0], targets, picked[1]]
    table = graph.spec(inputs[0])
    segments = Segments(table, node.spec.shape[0], spec.shape[0], is_mean, picked is not None)
    return _site(graph, node, nodes, inputs, segments)


def _is_for(graph: OpGraph, node: Node) -> bool:
    """Whether a value has one reader, inside the graph."""
    return graph.has_one_user(node.name) and node.name not in graph.outputs


def _targets(graph: OpGraph, name: str, is_expanded: bool) -> str | None:
    """The targets of rows, one each, behind the views that repeat them along their rows."""
    if is_expanded:
        spec = graph.spec(name)
        if len(spec.shape) != 2 or spec.shape[1] > 1 and spec.stride[1] != 0:
            return None
        while len(graph.spec(name).shape) > 1:
            made = graph.node(name)
            if made is None or made.target.split(".")[1] not in _SHAPED:
                return None
            name = made.args[0].name
    return name if len(graph.spec(name).shape) == 1 else None


def _picked(graph: OpGraph, name: str) -> tuple[str, str] | None:
    """The table and the index that rows are picked by, if they are picked for this alone."""
    made = graph.node(name)
    if made is None or made.target not in _PICKED or not _is_for(graph, made):
        return None
    index = made.args[_PICKED[made.target]]
    if made.target == "aten.index.Tensor":
        index = index[0] if len(index) == 1 else None
    if made.target == "aten.index_select.default" and made.args[1] != 0:
        return None
    if not isinstance(index, Ref):
        return None
    spec = graph.spec(index.name)
    is_index = len(spec.shape) == 1 and spec.dtype in _INDICES and spec.is_contiguous
    is_table = len(graph.spec(made.args[0].name).shape) == 2
    return (made.args[0].name, index.name) if is_index and is_table else None


def _site(
    graph: OpGraph, node: Node, nodes: list[Node], inputs: list[str], segments: Segments
) -> Site | None:
    table, *indices = (graph.spec(each) for each in inputs)
    made = node.spec
    is_covered = (
        table.dtype == made.dtype
        and table.dtype in FLOATS
        and len(table.shape) == 2
        and table.stride[1] == 1
        and made.is_contiguous
        and made.shape[1:] == table.shape[1:]
        and all(each.is_contiguous and each.dtype in _INDICES for each in indices)
        and 0 < segments.entries < 2**31
        and made.numel > 0
    )
    if not is_covered:
        return None
    row_bytes = segments.width * made.bytes // made.numel
    picked = min(table.bytes, segments.entries * row_bytes)
    return Site(
        name=node.name,
        operator="embedding",
        nodes=tuple(each.name for each in sorted(nodes, key=lambda each: graph.place(each.name))),
        inputs=tuple(Operand(each, graph.spec(each)) for each in inputs),
        outputs=(Operand(node.name, made),),
        detail=segments,
        bytes=picked + made.bytes + sum(each.bytes for each in indices),
        flops=float(segments.entries * segments.width),
    )
