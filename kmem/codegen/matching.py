"""Which nodes of a graph form one region: growth from an anchor over pointwise neighbours and
further reductions of the same rows.

`find_row_regions` grows from reductions, softmax and norms; `find_pointwise_regions` from pointwise
nodes alone. Growth keeps the node set convex: a node joins only if nothing it reads from outside
depends on the region.
"""

from dataclasses import dataclass

from kmem.codegen.channelwise import is_channelwise
from kmem.codegen.composites import read_norm
from kmem.codegen.lowering import COMPOSITES, PLAIN_REDUCTIONS, Lowering, is_reduction, reduced_dims
from kmem.codegen.pointwise import FLOATS, IDENTITIES, argument, write_pointwise
from kmem.codegen.region import Reduce, Region, simplify_axes
from kmem.problem.graph import Node, OpGraph, Ref

#: More inputs than this would hold too many pointers and tiles in registers.
MAX_INPUTS = 12
#: Nodes that a trace leaves behind without a value anyone reads.
_MARKERS = ("aten._assert_tensor_metadata.default",)


@dataclass(frozen=True, slots=True)
class FoundRegion:
    """A region and the graph nodes it replaces, in graph order; `anchor` names it."""

    anchor: str
    nodes: tuple[str, ...]
    region: Region


def find_row_regions(graph: OpGraph) -> list[FoundRegion]:
    """Regions around reductions and norms, in graph order, not overlapping."""
    growth = _Growth(graph)
    for node in graph.nodes:
        if is_reduction(node):
            space = _space_of(graph, node)
            if space is not None:
                growth.grow(node, space)
    return growth.in_order()


def find_pointwise_regions(graph: OpGraph) -> list[FoundRegion]:
    """Maximal regions of pointwise nodes over one shape, in graph order, not overlapping; shape
    changes alone are not one.
    """
    growth = _Growth(graph)
    anchors = [node for node in graph.nodes if is_channelwise(node) or _is_pointwise(graph, node)]
    # so that what is broadcast joins what it is broadcast to
    for node in sorted(anchors, key=lambda node: -node.spec.numel):
        growth.grow(node, _Space(node.spec.shape))
    return growth.in_order()


def _is_pointwise(graph: OpGraph, node: Node) -> bool:
    return node.target not in IDENTITIES and write_pointwise(graph, node, str) is not None


@dataclass(frozen=True, slots=True)
class _Space:
    """An iteration space before anything is lowered into it."""

    shape: tuple[int, ...]
    dims: tuple[int, ...] = ()
    groups: int = 0


def _space_of(graph: OpGraph, node: Node) -> _Space | None:
    found = reduced_dims(graph, node)
    if found is None:
        return None
    groups = argument(node, 1, "num_groups") if node.target == "aten.group_norm.default" else 0
    return _Space(graph.spec(node.args[0].name).shape, found[0], groups)


class _Growth:
    """Regions found so far in one graph, with the graph's users and ancestors looked up once."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.found: list[FoundRegion] = []
        self.taken: set[str] = set()
        self.nodes = {node.name: node for node in graph.nodes}
        self.users: dict[str, list[Node]] = {}
        self.ancestors: dict[str, set[str]] = {}
        self._order = {node.name: place for place, node in enumerate(graph.nodes)}
        for node in graph.nodes:
            mine: set[str] = set()
            for name in dict.fromkeys(node.refs()):
                self.users.setdefault(name, []).append(node)
                mine |= self.ancestors.get(name, set()) | ({name} if name in self.nodes else set())
            self.ancestors[node.name] = mine

    def grow(self, anchor: Node, space: _Space) -> None:
        """Add the largest region around an anchor that no region holds yet; if it cannot be lowered
        whole, the anchor's own.
        """
        alone = self._unit(anchor)
        if alone & self.taken:
            return
        chosen = set(alone)
        changed = True
        while changed:
            changed = False
            for node in self._neighbours(chosen):
                if node.name not in chosen and self._fits(node, space, chosen):
                    chosen |= self._unit(node)
                    changed = True
        region = self._lower(anchor, space, chosen) or self._lower(anchor, space, alone)
        if region is not None:
            self.found.append(region)
            self.taken.update(region.nodes)

    def in_order(self) -> list[FoundRegion]:
        return sorted(self.found, key=lambda region: self._order[region.anchor])

    def _unit(self, node: Node) -> set[str]:
        """A node with what must go where it goes: the operator a getitem reads, all getitems of an
        operator, and markers.
        """
        if node.target == "getitem":
            node = self.nodes[node.args[0].name]
        unit = {node.name}
        if isinstance(node.output, tuple):
            unit |= {
                user.name for user in self.users.get(node.name, ()) if user.target == "getitem"
            }
        return unit | {
            user.name
            for name in unit
            for user in self.users.get(name, ())
            if user.target in _MARKERS
        }

    def _neighbours(self, chosen: set[str]) -> list[Node]:
        near: set[str] = set()
        for name in chosen:
            near.update(self.nodes[name].refs())
            near.update(user.name for user in self.users.get(name, ()))
        return [
            node
            for node in self.graph.nodes
            if node.name in near - chosen and node.target not in _MARKERS
        ]

    def _fits(self, node: Node, space: _Space, chosen: set[str]) -> bool:
        """Whether a neighbour may join: the set stays convex and can be lowered, and no producer is
        fused that others read as well.
        """
        members = self._unit(node)
        joined = chosen | members
        outside = {
            name for member in joined for name in self.nodes[member].refs() if name not in joined
        }
        if len(outside) > MAX_INPUTS or any(
            self.ancestors.get(name, set()) & joined for name in outside
        ):
            return False
        is_consumer = any(
            name in chosen for member in members for name in self.nodes[member].refs()
        )
        users = {user.name for name in members for user in self.users.get(name, ())}
        if not is_consumer and (users - joined or members & set(self.graph.outputs)):
            return False
        return not members & self.taken and self._lower(node, space, joined) is not None

    def _lower(self, anchor: Node, space: _Space, chosen: set[str]) -> FoundRegion | None:
        lowering = Lowering(self.graph, space.shape, space.dims, space.groups)
        nodes = sorted(
            (self.nodes[name] for name in chosen), key=lambda node: self._order[node.name]
        )
        if not all(node.target in _MARKERS or lowering.add(node) for node in nodes):
            return None
        outputs = tuple(
            node.name
            for node in nodes
            if not isinstance(node.output, tuple)
            and node.output is not None
            and (
                node.name in self.graph.outputs
                or any(user.name not in chosen for user in self.users.get(node.name, ()))
            )
        )
        region = lowering.finish(_operator(self.graph, nodes, lowering), outputs)
        if region is None:
            return None
        return FoundRegion(anchor.name, tuple(node.name for node in nodes), simplify_axes(region))


def _operator(graph: OpGraph, nodes: list[Node], lowering: Lowering) -> str:
    """The vocabulary's name for what a region computes, read off its first reduction and whether
    the row's elements are divided by it.
    """
    for node in nodes:
        if node.target in COMPOSITES and is_reduction(node):
            return COMPOSITES[node.target]
    first = next((node for node in nodes if node.target in PLAIN_REDUCTIONS), None)
    if first is None:
        return "pointwise"
    operator = PLAIN_REDUCTIONS[first.target]
    divided = {
        name
        for node in nodes
        if node.target == "aten.div.Tensor" and node.spec.shape == lowering.shape
        for name in node.refs()
    }
    scales = any(item.read for item in lowering.statements if isinstance(item, Reduce)) and bool(
        divided
    )
    if not scales:
        return operator
    if operator == "vector_norm":
        order, _, _ = read_norm(graph, first)
        return (
            "l1_norm"
            if order == 1
            else ("frobenius_norm" if len(lowering.dims) == len(lowering.shape) else "l2_norm")
        )
    source = graph.node(first.args[0].name) if isinstance(first.args[0], Ref) else None
    if operator in ("mean", "sum") and source is not None:
        if source.target == "aten.abs.default":
            return "l1_norm"
        if source.target in ("aten.pow.Tensor_Scalar", "aten.square.default", "aten.mul.Tensor"):
            return "rms_norm" if operator == "mean" else "l2_norm"
    return operator


def is_supported_dtype(region: Region) -> bool:
    """Whether every operand of a region has a type the kernels load and store."""
    return all(operand.spec.dtype in (*FLOATS, "bool", "int64") for operand in region.inputs)
