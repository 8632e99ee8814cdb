"""How heads lie: those that several heads of queries share, and rows in which heads are merged."""

from dataclasses import dataclass

from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.sizes import dense_strides
from kmem.records import TensorSpec

_REPEATS = "aten.repeat_interleave.self_int"
_VIEWS = ("aten.reshape.default", "aten.view.default")
_STRETCHES = ("aten.expand.default", "aten.repeat.default")
_INSERTS = "aten.unsqueeze.default"
_TURNS = ("aten.transpose.int", "aten.swapaxes.default", "aten.permute.default")
_COPIES = ("aten.contiguous.default", "aten.reshape.default")


@dataclass(frozen=True, slots=True)
class Shared:
    """Keys or values before each head was repeated `times`, one behind the other."""

    source: str
    times: int
    nodes: tuple[str, ...] = ()  # that nothing else reads


def read_shared(graph: OpGraph, name: str) -> Shared:
    """What a value repeats along its third axis from the last; itself once if it does not.

    Covered: `repeat_interleave`, and an inserted axis that is expanded or repeated and then viewed
    as part of the axis before it.
    """
    node = graph.node(name)
    chain = [] if node is None else _repetition(graph, node)
    if not chain:
        return Shared(name, 1)
    source = chain[-1].args[0].name
    shape, before = graph.spec(name).shape, graph.spec(source).shape
    is_head = len(shape) == len(before) >= 3 and shape[:-3] == before[:-3]
    if not is_head or shape[-2:] != before[-2:] or shape[-3] % before[-3]:
        return Shared(name, 1)
    alone = [each.name for each in chain if graph.has_one_user(each.name)]
    nodes = tuple(alone) if len(alone) == len(chain) else ()
    return Shared(source, shape[-3] // before[-3], nodes)


def _repetition(graph: OpGraph, node: Node) -> list[Node]:
    """The nodes that repeat heads, the last first."""
    rank = len(node.spec.shape)
    if node.target == _REPEATS and not node.kwargs and len(node.args) == 3:
        is_head = isinstance(node.args[2], int) and node.args[2] % rank == rank - 3
        return [node] if is_head and isinstance(node.args[1], int) else []
    if node.target not in _VIEWS:
        return []
    stretched = _source(graph, node)
    inserted = _source(graph, stretched) if stretched and stretched.target in _STRETCHES else None
    if stretched is None or inserted is None or inserted.target != _INSERTS:
        return []
    shape, before = stretched.spec.shape, inserted.spec.shape
    if len(shape) != rank + 1 or len(before) != rank + 1 or not isinstance(inserted.args[0], Ref):
        return []
    axis = rank - 2  # the inserted one, behind that of heads
    others = shape[:axis] + shape[axis + 1 :], before[:axis] + before[axis + 1 :]
    is_inserted = isinstance(inserted.args[1], int) and inserted.args[1] % (rank + 1) == axis
    merged = (*shape[: axis - 1], shape[axis - 1] * shape[axis], *shape[axis + 1 :])
    if not is_inserted or others[0] != others[1] or merged != node.spec.shape:
        return []
    return [node, stretched, inserted]


def _source(graph: OpGraph, node: Node) -> Node | None:
    source = node.args[0] if node.args else None
    found = graph.node(source.name) if isinstance(source, Ref) else None
    return found if found is not None and isinstance(found.output, TensorSpec) else None


@dataclass(frozen=True, slots=True)
class Merged:
    """A value that is copied so that heads lie within rows: the nodes, and what they make.

    `stride`: of the value before, where it lies as the copy does.
    """

    nodes: tuple[str, ...]
    made: str
    spec: TensorSpec
    stride: tuple[int, ...]


def read_merged(graph: OpGraph, node: Node) -> Merged | None:
    """The copy behind a value whose heads are turned behind its rows, if nothing else reads it."""
    turned = _only_reader(graph, node)
    if turned is None or turned.target not in _TURNS or turned.spec.is_contiguous:
        return None
    copied = _only_reader(graph, turned)
    if copied is None or copied.target not in _COPIES or copied.kwargs:
        return None
    order = _order(turned)
    if order[-1] != len(order) - 1 or not copied.spec.is_contiguous:
        return None  # rows stay whole: the kernel stores them as vectors
    dense = dict(zip(order, dense_strides(turned.spec.shape), strict=True))
    stride = tuple(dense[axis] for axis in range(len(order)))
    return Merged((turned.name, copied.name), copied.name, copied.spec, stride)


def _only_reader(graph: OpGraph, node: Node) -> Node | None:
    reader = graph.users(node.name)[0] if graph.has_one_user(node.name) else None
    return reader if reader is not None and isinstance(reader.output, TensorSpec) else None


def _order(turned: Node) -> tuple[int, ...]:
    """The axis of what is turned that each axis of the result is."""
    rank = len(turned.spec.shape)
    if turned.target == _TURNS[-1]:
        return tuple(axis % rank for axis in turned.args[1])
    order = list(range(rank))
    first, second = (axis % rank for axis in turned.args[1:3])
    order[first], order[second] = second, first
    return tuple(order)
