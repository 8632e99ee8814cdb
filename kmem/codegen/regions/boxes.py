"""Regions around values whose elements are put elsewhere: from nodes to statements, box by box.

Nothing is loaded or computed that a concatenation, padding or shuffle then only copies. Every
output is cut into boxes until each value in them comes from one part (stepping.py); boxes of the
same sizes that read the same elements are one region, which loads them once and stores several
parts. Others become regions beside it, whose programs are of the same launch.

Example: x * cos + cat((-right, left), -1) * sin, where left and right are the halves of x, becomes
one region over half of the elements. It loads both halves of x, cos and sin, and stores
left * cos + -right * sin and right * cos + left * sin, each in its half of the output.

Covered: pointwise operators, casts, views and copies as stepping.py knows them, numbers everywhere,
of floats and masks. Not covered: operators along channels (batch norm, PReLU), reductions.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kmem.codegen.regions.indices import (
    MOST_PARTS,
    Box,
    Index,
    NeedsCut,
    NotAffine,
    broadcast,
    whole_box,
)
from kmem.codegen.regions.pointwise import write_pointwise
from kmem.codegen.regions.region import Load, Map, Region, RegionAxis, Store, simplify_axes
from kmem.codegen.regions.stepping import moves_elements, puts_together, rearranges, step_back
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph
from kmem.problem.operators.expressions import variable, write_number
from kmem.problem.operators.table import find_operator, may_be_view
from kmem.recipes import Operand
from kmem.records import TensorSpec

#: Parts of outputs that one program stores: each holds its values in registers.
_MOST_STORES = 8
_DTYPES = (*FLOATS, "bool")


def may_be_in_box(graph: OpGraph, node: Node) -> bool:
    """Whether a node can be written in boxes, wherever it stands."""
    results = node.output if isinstance(node.output, tuple) else (node.output,)
    if any(spec is None or spec.dtype not in _DTYPES or spec.numel == 0 for spec in results):
        return False
    if puts_together(graph, node) and any(
        graph.spec(name).dtype not in _DTYPES for name in node.refs()
    ):
        return False
    return moves_elements(graph, node) or write_pointwise(graph, node, str) is not None


def lower_boxes(graph: OpGraph, chosen: Collection[str], outputs: Sequence[str]) -> Region | None:
    """The region of chosen nodes, each of which `may_be_in_box`.

    Returns: None if the outputs fall into too many boxes.
    """
    boxes: list[_OutputBox] = []
    for number, name in enumerate(outputs):
        found = _find_boxes(graph, chosen, name, number)
        boxes += found
        if not found or len(boxes) > MOST_PARTS:
            return None
    inputs: dict[str, Operand] = {}
    used: dict[str, int] = {}
    bodies = []
    for group in _group(boxes):
        body = _Body(graph, chosen, group[0].box.sizes, inputs, used)
        for each in group:
            body.store(outputs[each.output], each.output, each.box.index)
        bodies.append(body)
    operands = tuple(Operand(name, graph.spec(name)) for name in outputs)
    head, *beside = (
        simplify_axes(body.region(tuple(inputs.values()), operands)) for body in bodies
    )
    return replace(head, beside=tuple(beside))


@dataclass(frozen=True, slots=True)
class _OutputBox:
    """A box of an output, and what is loaded for it and stored."""

    output: int
    box: Box
    loads: frozenset[tuple[object, ...]]
    strides: tuple[int, ...]

    @property
    def kinships(self) -> Iterator[tuple[object, ...]]:
        """What two boxes of one region have in common: an element of an input, or interleaving."""
        yield from (("reads", *load) for load in self.loads)
        # its elements lie between those of other parts
        if min((stride for stride in self.strides if stride), default=1) > 1:
            yield "between", self.output, self.strides


def _find_boxes(
    graph: OpGraph, chosen: Collection[str], name: str, number: int
) -> list[_OutputBox]:
    """Boxes of an output in each of which every value comes from one part.

    Returns: Nothing if there are no such boxes, or too many.
    """
    waiting, found = [whole_box(graph.spec(name).shape)], []
    while waiting and len(waiting) + len(found) <= MOST_PARTS:
        box = waiting.pop(0)
        body = _Body(graph, chosen, box.sizes)
        try:
            body.store(name, number, box.index)
        except NeedsCut as ex:
            waiting = [*box.cut(ex.cut), *waiting]
        except NotAffine:
            return []
        else:
            narrow = box.without_single_axes()
            body = _Body(graph, chosen, narrow.sizes)
            body.store(name, number, narrow.index)
            found.append(_OutputBox(number, narrow, body.element_loads(), body.stores[0].strides))
    return [] if waiting else found


def _group(boxes: Sequence[_OutputBox]) -> list[list[_OutputBox]]:
    """Boxes that become one region each, in order of their first."""
    groups: list[list[_OutputBox]] = []
    for box in boxes:
        kin = {(box.box.sizes, kinship) for kinship in box.kinships}
        for group in groups:
            known = {(each.box.sizes, kinship) for each in group for kinship in each.kinships}
            if kin & known and len(group) < _MOST_STORES:
                group.append(box)
                break
        else:
            groups.append([box])
    return groups


@dataclass
class _Body:
    """Statements over one space while they are written.

    `used` counts how often values of a name have been made, in all regions of a launch.
    """

    graph: OpGraph
    chosen: Collection[str]
    sizes: tuple[int, ...]
    inputs: dict[str, Operand] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    statements: list[Load | Map] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    _known: dict[tuple[str, Index], str] = field(default_factory=dict)

    def store(self, name: str, output: int, index: Index) -> None:
        """Write the elements of an output at an index."""
        spec = self.graph.spec(name)
        value = self._value(name, index)
        strides, offset = _strides(spec, index, len(self.sizes))
        self.stores.append(Store(value, output, strides, spec.dtype, is_row=False, offset=offset))

    def element_loads(self) -> frozenset[tuple[object, ...]]:
        """What is loaded that has an element of its own at each place.

        Returns: (name, strides, offset) of each load.
        """
        names = list(self.inputs)
        return frozenset(
            (names[item.operand], item.strides, item.offset)
            for item in self.statements
            if isinstance(item, Load) and all(item.strides)
        )

    def region(self, inputs: tuple[Operand, ...], outputs: tuple[Operand, ...]) -> Region:
        axes = tuple(RegionAxis(size, axis, 1, False) for axis, size in enumerate(self.sizes))
        return Region(
            "pointwise", axes, tuple(self.statements), tuple(self.stores), inputs, outputs
        )

    def _value(self, name: str, index: Index) -> str:
        """The variable that holds the elements of a graph value at an index."""
        key = name, index
        if key not in self._known:
            self._known[key] = self._make(name, index)
        return self._known[key]

    def _make(self, name: str, index: Index) -> str:
        if name not in self.chosen:
            return self._load(name, index)
        node = self.graph.node(name)
        if not moves_elements(self.graph, node):
            return self._compute(node, index)
        found = step_back(self.graph, node, index, self.sizes)
        if isinstance(found, float):
            return self._map(name, f"tl.full([], {write_number(found)}, tl.float32)")
        source, place = found
        value = self._value(source, place)
        if self.graph.spec(source).dtype == "bool" and node.spec.dtype != "bool":
            # parts of several types come together as the widest
            return self._map(name, f"({value}).to(tl.float32)", value)
        return value

    def _compute(self, node: Node, index: Index) -> str:
        values = {
            name: self._value(name, broadcast(index, self.graph.spec(name).shape, self.sizes))
            for name in dict.fromkeys(node.refs())
        }
        written = write_pointwise(self.graph, node, values.__getitem__)
        assert written is not None, "nodes of a region can be written"
        reads = tuple(dict.fromkeys(values.values()))
        made = self._name(node.name)
        self.statements.append(Map(made, written.text, reads, written.helpers))
        return made

    def _map(self, name: str, text: str, *reads: str) -> str:
        made = self._name(name)
        self.statements.append(Map(made, text, reads))
        return made

    def _load(self, name: str, index: Index) -> str:
        spec = self.graph.spec(name)
        self.inputs.setdefault(name, Operand(name, spec))
        strides, offset = _strides(spec, index, len(self.sizes))
        made = self._name(name)
        operand = list(self.inputs).index(name)
        self.statements.append(Load(made, operand, strides, spec.dtype, offset))
        return made

    def _name(self, name: str) -> str:
        """A variable for a value, which has several where it is read at several indices."""
        made = variable(name)
        self.used[made] = number = self.used.get(made, 0) + 1
        return made if number == 1 else f"{made}_at{number}"


def _strides(spec: TensorSpec, index: Index, rank: int) -> tuple[tuple[int, ...], int]:
    """How far apart elements of a value lie along each axis, and where the first one lies."""
    strides = [0] * rank
    for place, stride in zip(index, spec.stride, strict=True):
        for axis, step in enumerate(place.steps):
            strides[axis] += step * stride
    offset = sum(place.offset * stride for place, stride in zip(index, spec.stride, strict=True))
    return tuple(strides), offset


def is_changed_between(graph: OpGraph, chosen: Collection[str]) -> bool:
    """Whether others change memory in place that chosen nodes read before and behind that.

    One launch stands for all of them, at the place of the last: a view would show it the change,
    and where a view was copied, eager's copy is older than the change.
    """
    nodes = [graph.node(name) for name in chosen]
    last = max(graph.place(node.name) for node in nodes)
    values = {*chosen, *(name for node in nodes for name in node.refs())}
    return any(
        graph.place(user.name) < last
        for name in values
        for user in _changes(graph, name)
        if user.name not in {*chosen, name} and not graph.depends_on(name, (user.name,))
    )


def changes_views(graph: OpGraph) -> bool:
    """Whether anything in a graph changes memory in place through a view, or of which one is."""
    return graph.whole.once(_changes_views)


def _changes_views(whole: OpGraph) -> bool:
    for name in (node.refs()[0] for node in whole.nodes if node.is_in_place):
        near = [*filter(None, [whole.node(name)]), *whole.users(name)]
        if any(not node.is_in_place and _shares(node) for node in near):
            return True
    return False


def _changes(graph: OpGraph, name: str) -> list[Node]:
    """Nodes that change the memory in place that a value is in, or is a view of."""
    root = name
    while (maker := graph.node(root)) is not None and _shares(maker):
        root = maker.refs()[0]
    found: list[Node] = []
    family, waiting = {root}, [root]
    while waiting:
        for user in graph.users(waiting.pop()):
            if _shares(user) and user.name not in family:
                family.add(user.name)
                waiting.append(user.name)
                found += [user] if user.is_in_place else []
    return found


def _shares(node: Node) -> bool:
    return bool(node.refs()) and (node.is_in_place or may_be_view(node.target))


def is_worth_boxes(graph: OpGraph, nodes: Sequence[Node]) -> bool:
    """Whether something is computed before or behind a value whose elements are copied."""
    return any(rearranges(graph, node) for node in nodes) and any(
        not moves_elements(graph, node) and not is_idle(node) for node in nodes
    )


def is_idle(node: Node) -> bool:
    """Whether a node that can be written does nothing, as a dropout outside training."""
    operator = find_operator(node.target)
    return operator is not None and operator.only_in_training
