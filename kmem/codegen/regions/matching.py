"""Which nodes of a graph form one region: growth from an anchor over its neighbours.

`find_row_regions` grows from reductions, softmax and norms; `find_pointwise_regions` from pointwise
nodes alone. Growth keeps the node set convex: a node joins only if nothing that it reads from
outside depends on the region.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import prod

from kmem.codegen.regions.boxes import (
    changes_views,
    is_changed_between,
    is_idle,
    is_worth_boxes,
    lower_boxes,
    may_be_in_box,
)
from kmem.codegen.regions.called import operator_of
from kmem.codegen.regions.company import find_company, starts_of_company
from kmem.codegen.regions.lowering import Lowering
from kmem.codegen.regions.pointwise import is_identity, write_pointwise
from kmem.codegen.regions.region import Region, simplify_axes
from kmem.codegen.regions.space import RowSpace, space_of
from kmem.codegen.regions.stepping import rearranges
from kmem.problem.dtypes import LOADABLE
from kmem.problem.graph import Node, OpGraph
from kmem.problem.homes import find_homes
from kmem.problem.operators.row import Channelwise, Layout
from kmem.problem.operators.table import find_operator, lowering_of

#: More inputs than this would hold too many pointers and tiles in registers.
MAX_INPUTS = 12
#: Nodes of a region over several shapes: with each that joins, all are lowered again.
_MOST_NODES = 64


@dataclass(frozen=True, slots=True)
class FoundRegion:
    """A region and the graph nodes that it replaces, in graph order; `anchor` names it."""

    anchor: str
    nodes: tuple[str, ...]
    region: Region


def find_row_regions(graph: OpGraph, *, takes_totals: bool = False) -> list[FoundRegion]:
    """Regions around reductions and norms, in graph order, not overlapping.

    Args:
        takes_totals: whether a sum or mean of one value of each row belongs to the rows' region.
    """
    return [*graph.once(_grow_rows, takes_totals)]


def _grow_rows(graph: OpGraph, takes_totals: bool) -> list[FoundRegion]:
    growth = _Growth(graph, takes_totals=takes_totals)
    for node in graph.nodes:
        space = space_of(graph, node)
        if space is not None:
            growth.grow(node, space)
    return growth.in_order()


def may_reduce(graph: OpGraph, name: str, columns: int) -> bool:
    """Whether a value is reduced by rows of so many columns before an anchor reads what it becomes.

    Where it is not, no region that all its readers are part of does so: that is told at once, while
    `find_row_regions` grows every region of the graph.
    """
    return (columns, graph.spec(name).numel) in _reduced_later(graph, name)


def _reduced_later(graph: OpGraph, name: str) -> set[tuple[int, int]]:
    """Columns and elements of all that is reduced by rows where a value is read, or later.

    Only operators that regions know lead on.
    """
    known: dict[str, set[tuple[int, int]]] = graph.found_by(_reduced_later)
    waiting = [name]
    while waiting:  # a recurrence is deeper than Python's stack
        reading = [
            each for each in graph.users(waiting[-1]) if lowering_of(graph, each) is not None
        ]
        unknown = [each.name for each in reading if each.name not in known]
        if unknown:
            waiting += unknown
            continue
        spaces = [space for each in reading if (space := space_of(graph, each)) is not None]
        own = {(space.columns, prod(space.shape)) for space in spaces}
        known[waiting.pop()] = own.union(*(known[each.name] for each in reading))
    return known[name]


def find_pointwise_regions(graph: OpGraph) -> list[FoundRegion]:
    """Maximal regions of pointwise nodes over one shape, in graph order, not overlapping.

    Around what puts elements elsewhere they may be over several (boxes.py). Shape changes alone are
    no region.
    """
    return [*graph.once(_grow_pointwise)]


def find_part_regions(graph: OpGraph) -> list[FoundRegion]:
    """Those of `find_pointwise_regions` around concatenations, paddings and shuffles."""
    return [*graph.once(_grow_parts)]


def _grow_parts(graph: OpGraph) -> list[FoundRegion]:
    growth = _BoxGrowth(graph)
    for node in graph.nodes:
        if rearranges(graph, node):
            growth.grow(node, RowSpace(node.spec.shape))
    return growth.found


def _grow_pointwise(graph: OpGraph) -> list[FoundRegion]:
    growth = _Growth(graph, find_part_regions(graph))
    anchors = [node for node in graph.nodes if _is_pointwise(graph, node)]
    # so that what is broadcast joins what it is broadcast to
    for node in sorted(anchors, key=lambda node: -node.spec.numel):
        growth.grow(node, RowSpace(node.spec.shape))
    return growth.in_order()


def _is_pointwise(graph: OpGraph, node: Node) -> bool:
    if isinstance(lowering_of(graph, node), Channelwise):
        return True
    return not is_identity(graph, node) and write_pointwise(graph, node, str) is not None


def _is_marker(graph: OpGraph, node: Node) -> bool:
    """Whether a trace left the node behind without a value that anyone reads."""
    return lowering_of(graph, node) is Layout.MARKER


class _Growth:
    """Regions found so far in one graph."""

    def __init__(
        self, graph: OpGraph, found: Iterable[FoundRegion] = (), *, takes_totals: bool = False
    ) -> None:
        self.graph = graph
        self.takes_totals = takes_totals
        self.found: list[FoundRegion] = [*found]
        self.taken: set[str] = {name for region in self.found for name in region.nodes}

    def grow(self, anchor: Node, space: RowSpace) -> None:
        """Add the largest region around an anchor that no region holds yet.

        If that cannot be lowered whole, the anchor's own nodes are tried.
        """
        alone = self._unit(anchor)
        if not alone & self.taken:
            chosen = self._without_folding_last(self._grown(alone, space), space)
            self._add(self._lower(anchor, space, chosen) or self._lower(anchor, space, alone))

    def _grown(self, alone: set[str], space: RowSpace) -> set[str]:
        """Nodes with all of their neighbours that fit, and of the neighbours' neighbours."""
        chosen = set(alone)
        changed = True
        while changed:
            # before what reads their results: that would lie between these and the region
            company = self._company(space, chosen)
            chosen |= company
            changed = bool(company)
            for node in [] if company else self._neighbours(chosen):
                if node.name not in chosen and self._fits(node, space, chosen):
                    chosen |= self._unit(node)
                    changed = True
        return chosen

    def _without_folding_last(self, chosen: set[str], space: RowSpace) -> set[str]:
        """The region without reshapes of its rows that nothing in it reads: views cost nothing."""
        return {
            name
            for name in chosen
            if lowering_of(self.graph, node := self.graph.node(name)) is not Layout.RESHAPE
            or self.graph.spec(node.refs()[0]).shape != space.shape
            or any(user.name in chosen for user in self.graph.users(name))
        }

    def _company(self, space: RowSpace, chosen: set[str]) -> set[str]:
        """Nodes that can join only together, for several reductions read the same elements."""
        for first in starts_of_company(self.graph, space, chosen):
            company = find_company(self.graph, first, space, chosen, self._unit)
            if company and self._can_take(company, self.graph.node(first), space, chosen):
                return company
        return set()

    def _add(self, region: FoundRegion | None) -> None:
        if region is not None:
            self.found.append(region)
            self.taken.update(region.nodes)

    def in_order(self) -> list[FoundRegion]:
        """The regions by their anchors' places."""
        return sorted(self.found, key=lambda region: self.graph.place(region.anchor))

    def _unit(self, node: Node) -> set[str]:
        """A node with what must go where it goes.

        That is the operator whose result a getitem takes, all getitems of an operator, and markers.
        """
        if lowering_of(self.graph, node) is Layout.TAKE:
            node = self.graph.node(node.args[0].name)
        unit = {node.name}
        if isinstance(node.output, tuple):
            users = self.graph.users(node.name)
            unit |= {user.name for user in users if lowering_of(self.graph, user) is Layout.TAKE}
        return unit | {
            user.name
            for name in unit
            for user in self.graph.users(name)
            if _is_marker(self.graph, user)
        }

    def _neighbours(self, chosen: set[str]) -> list[Node]:
        near: set[str] = set()
        for name in chosen:
            near.update(self.graph.node(name).refs())
            near.update(user.name for user in self.graph.users(name))
        nodes = filter(None, (self.graph.node(name) for name in near - chosen))
        return self._in_graph_order(node for node in nodes if not _is_marker(self.graph, node))

    def _in_graph_order(self, nodes: Iterable[Node]) -> list[Node]:
        return sorted(nodes, key=lambda node: self.graph.place(node.name))

    def _fits(self, node: Node, space: RowSpace, chosen: set[str]) -> bool:
        """Whether a neighbour may join.

        It may if the set stays convex and can be lowered, and no producer is fused that others read
        as well.
        """
        members = self._unit(node)
        joined = chosen | members
        is_consumer = any(
            name in chosen for member in members for name in self.graph.node(member).refs()
        )
        users = {user.name for name in members for user in self.graph.users(name)}
        if not is_consumer and (users - joined or members & set(self.graph.outputs)):
            return False
        if not self.takes_totals and space_of(self.graph, node) not in (None, space):
            return False
        return self._can_take(members, node, space, chosen)

    def _can_take(self, members: set[str], node: Node, space: RowSpace, chosen: set[str]) -> bool:
        """Whether the set stays convex with these members, `node` being one, and can be lowered."""
        joined = chosen | members
        read = {name for member in joined for name in self.graph.node(member).refs()}
        outside = read - joined
        if len(outside) > MAX_INPUTS or any(
            self.graph.depends_on(name, joined) for name in outside
        ):
            return False
        return not members & self.taken and self._lower(node, space, joined) is not None

    def _lower(self, anchor: Node, space: RowSpace, chosen: set[str]) -> FoundRegion | None:
        """The region of chosen nodes, if they can be lowered.

        It is known from one graph to the next that hides other nodes, but neither these nor what
        they read: a network's are hidden hundreds of times.
        """
        whole = self.graph.whole
        read = {name for member in chosen for name in self.graph.node(member).refs()}
        near = chosen | read
        hidden = frozenset(name for name in near if self.graph.node(name) is not whole.node(name))
        known = whole.found_by(type(self)._lower_anew)
        asked = anchor.name, space, frozenset(chosen), hidden
        if asked not in known:
            known[asked] = self._lower_anew(anchor, space, chosen)
        return known[asked]

    def _lower_anew(self, anchor: Node, space: RowSpace, chosen: set[str]) -> FoundRegion | None:
        if changes_views(self.graph) and is_changed_between(self.graph, chosen):
            return None
        lowering = Lowering(self.graph, space)
        nodes = self._in_graph_order(self.graph.node(name) for name in chosen)
        if not all(_is_marker(self.graph, node) or lowering.add(node) for node in nodes):
            return None
        outputs = tuple(node.name for node in nodes if self._is_output(node, chosen))
        region = lowering.finish(operator_of(self.graph, nodes, lowering), outputs)
        if region is None:
            return None
        return FoundRegion(anchor.name, tuple(node.name for node in nodes), simplify_axes(region))

    def _is_output(self, node: Node, chosen: Collection[str]) -> bool:
        """Whether a node's result is read outside the region."""
        if isinstance(node.output, tuple) or node.output is None:
            return False
        users = self.graph.users(node.name)
        return node.name in self.graph.outputs or any(user.name not in chosen for user in users)


class _BoxGrowth(_Growth):
    """Regions around values whose elements are put elsewhere, found so far in one graph."""

    def grow(self, anchor: Node, space: RowSpace) -> None:
        """Add the largest region around what puts elements elsewhere, if it saves a copy."""
        alone = self._unit(anchor)
        if alone & self.taken or not self._can_write(alone):
            return
        chosen = self._without_outer_views(self._grown(alone, space))
        nodes = [self.graph.node(name) for name in chosen]
        if (
            is_worth_boxes(self.graph, nodes)
            and not is_changed_between(self.graph, chosen)
            and not self._copies_what_lies_there(chosen)
        ):
            self._add(self._lower(anchor, space, chosen))

    def _fits(self, node: Node, space: RowSpace, chosen: set[str]) -> bool:
        members = self._unit(node)
        return (
            len(chosen) < _MOST_NODES
            and self._can_write(members)
            and super()._fits(node, space, chosen)
        )

    def _can_write(self, members: Collection[str]) -> bool:
        nodes = [self.graph.node(name) for name in members]
        return all(
            _is_marker(self.graph, node) or may_be_in_box(self.graph, node) for node in nodes
        )

    def _lower_anew(self, anchor: Node, space: RowSpace, chosen: set[str]) -> FoundRegion | None:
        nodes = self._in_graph_order(self.graph.node(name) for name in chosen)
        outputs = [node.name for node in nodes if self._is_output(node, chosen)]
        region = lower_boxes(self.graph, chosen, outputs)
        if region is None:
            return None
        return FoundRegion(anchor.name, tuple(node.name for node in nodes), region)

    def _without_outer_views(self, chosen: set[str]) -> set[str]:
        """The region without views of its results, and without those of what it alone reads so.

        They cost nothing where they are, and others may want to take them. One whose elements lie
        as before, and that the forward returns, costs the host a call, and stays.
        """
        kept = set(chosen)
        changed = True
        while changed:
            changed = False
            for node in self._in_graph_order(self.graph.node(name) for name in kept):
                unit = self._unit(node)
                if node.name in kept and (self._is_last(unit, kept) or self._is_first(node, kept)):
                    kept -= unit
                    changed = True
        return kept

    def _is_last(self, unit: set[str], chosen: set[str]) -> bool:
        """Whether a unit hands views of the region's results to others alone."""
        nodes = [self.graph.node(name) for name in unit]
        users = {user.name for name in unit for user in self.graph.users(name)} - unit
        is_view = all(self._is_view(node) for node in nodes)
        return is_view and not users & chosen and not all(map(self._is_returned, nodes))

    def _is_returned(self, node: Node) -> bool:
        """Whether a node gives what it alone reads its last shape."""
        is_reshape = lowering_of(self.graph, node) is Layout.RESHAPE
        is_only = is_reshape and self.graph.has_one_user(node.refs()[0])
        return is_only and node.spec.is_contiguous and not self.graph.users(node.name)

    def _is_first(self, node: Node, chosen: set[str]) -> bool:
        """Whether a node is one view of something that the region does not read otherwise."""
        if isinstance(node.output, tuple) or not self._is_view(node):
            return False
        source = node.refs()[0]
        readers = {user.name for user in self.graph.users(source)}
        return source not in chosen and readers & chosen == {node.name}

    def _is_view(self, node: Node) -> bool:
        operator = find_operator(node.target)
        if operator is None or not operator.is_view or node.is_in_place:
            return False
        return not operator.may_copy or self.graph.spec(node.refs()[0]).is_contiguous

    def _copies_what_lies_there(self, chosen: set[str]) -> bool:
        """Whether others write a part where it is wanted, so that nothing has to read it."""
        homes = self.graph.whole.once(find_homes)
        return any(
            home.cat in chosen and (name not in chosen or is_idle(self.graph.node(name)))
            for name, home in homes.items()
        )


def is_supported_dtype(region: Region) -> bool:
    """Whether every operand of a region has a type that kernels load and store."""
    return all(operand.spec.dtype in LOADABLE for operand in region.inputs)
