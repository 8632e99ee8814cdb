"""From a graph to its scans, with the flips, slices, paddings and pointwise chains around them.

`find_scans` walks down from each cumsum, cumprod, cummax or cummin over what only moves its
elements, then up through what only moves or maps its input. A `View` says which element of a graph
value belongs to an index of the scan; layout operators change the view, and where nothing more can
be looked through the value is loaded. A padding counts as part of the scan where it holds the
operator's identity: cat((zeros, x)) before or behind a cumsum is a cumsum over more positions.

Covered: flip, narrow, slice with step 1, cat with zeros or ones at the end where the scan starts,
pointwise chains, float inputs. Not covered: integer scans, cat in the middle, places of extremes,
graphs that change a tensor in place (looking through a copy would see the change).
"""

from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from kmem.codegen.regions.pointwise import element_inputs, write_pointwise
from kmem.codegen.regions.region import Map
from kmem.codegen.scans.scan import SCANNED, Scan, ScanLoad, ScanStore
from kmem.codegen.scans.views import IDENTITY, Paddings, Place, View, slice_of
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators import row
from kmem.problem.operators.expressions import variable, write_number
from kmem.problem.operators.row import Layout
from kmem.problem.operators.table import find_operator, lowering_of
from kmem.recipes import Operand
from kmem.records import TensorSpec

#: Operators that move elements without changing them.
_MOVES = (Layout.FLIP, Layout.NARROW, Layout.SLICE, Layout.CONCATENATE)
#: More inputs than this would hold too many tiles in registers.
_MAX_INPUTS = 6


@dataclass(frozen=True, slots=True)
class FoundScan:
    """A scan and the graph nodes that it replaces, in graph order; `anchor` names its operator."""

    anchor: str
    nodes: tuple[str, ...]
    scan: Scan


def find_scans(graph: OpGraph) -> list[FoundScan]:
    """Scans that can be written, in graph order, not overlapping."""
    if any(_changes_float(graph, node) for node in graph.nodes):
        return []
    found: list[FoundScan] = []
    taken: set[str] = set()
    for node in graph.nodes:
        result = _result_of(graph, node)
        if node.name in taken or result is None:
            continue
        dim = find_operator(node.target).call(graph, node)["dim"] % len(result.spec.shape)
        scan = _Match(graph, node, result, dim).find()
        if scan is not None and taken.isdisjoint(scan.nodes):
            found.append(scan)
            taken.update(scan.nodes)
    return found


def _changes_float(graph: OpGraph, node: Node) -> bool:
    return node.is_in_place and any(graph.spec(name).dtype in FLOATS for name in node.refs())


def _is_scan(graph: OpGraph, node: Node) -> bool:
    return isinstance(lowering_of(graph, node), row.Scan)


def _result_of(graph: OpGraph, node: Node) -> Node | None:
    """The node whose value a scan of floats makes: its own, or what takes the first of several.

    Returns: None for any other operator, and where more than the first is read.
    """
    source = node.args[0] if node.args else None
    if not _is_scan(graph, node) or not isinstance(source, Ref):
        return None
    result = graph.only_result(node)
    if result is None:
        return None
    has_types = graph.spec(source.name).dtype in FLOATS and result.spec.dtype in FLOATS
    is_written = has_types and len(result.spec.shape) > 0 and result.spec.numel > 0
    return result if is_written else None


@dataclass
class _Match:
    """One scan while it is found: its nodes, its inputs, and the statements before and after it."""

    graph: OpGraph
    operator: Node
    anchor: Node  # what makes the scan's value
    dim: int
    nodes: set[str] = field(default_factory=set)
    inputs: dict[str, Operand] = field(default_factory=dict)
    values: dict[tuple[str, View], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kind = lowering_of(self.graph, self.operator).kind
        self.rank = len(self.anchor.spec.shape)
        self.paddings = Paddings(self.graph, self.kind, self.dim, self.rank)

    def find(self) -> FoundScan | None:
        self.nodes |= {self.operator.name, self.anchor.name}
        if self.anchor is not self.operator:
            self.nodes |= {user.name for user in self.graph.users(self.operator.name)}
        place, last = self._walk_down()
        shape = list(last.spec.shape)
        view = View((1,) * self.rank, (0,) * self.rank, 0, place.length)
        before: list[ScanLoad | Map] = []
        entry = place.entry(view, self.dim, shape)
        source = self._read(self.operator.args[0].name, entry, before)
        source = self._pad(source, f"{variable(self.anchor.name)}_padded", entry, view, before)
        after: list[ScanLoad | Map] = []
        result, last = self._fuse_after(last, view, after)
        if not 0 < len(self.inputs) <= _MAX_INPUTS:
            return None
        self._absorb_unused()
        nodes = tuple(sorted(self.nodes, key=self.graph.place))
        scan = Scan(
            kind=self.kind,
            reverse=self.dim in place.flipped,
            length=place.length,
            kept=tuple(shape),
            before=tuple(before),
            source=source,
            after=tuple(after),
            result=result,
            store=ScanStore(last.spec.stride, 0, 0, last.spec.dtype),
            inputs=tuple(self.inputs.values()),
            output=Operand(last.name, last.spec),
            folds_layout=any(self._moves(name) for name in nodes),
        )
        return FoundScan(self.operator.name, nodes, _split_axes(scan, self.dim))

    def _moves(self, name: str) -> bool:
        return lowering_of(self.graph, self.graph.node(name)) in _MOVES

    # --- down from the scan

    def _walk_down(self) -> tuple[Place, Node]:
        """Over flips, slices and paddings of the result that nothing else reads.

        Returns: where the positions end up, and the last node.
        """
        place = Place(self.anchor.spec.shape[self.dim])
        node = self.anchor
        while self.graph.has_one_user(node.name):
            (user,) = self.graph.users(node.name)
            moved = self._move_result(place, node, user)
            if moved is None:
                break
            place, node = moved, user
            self.nodes.add(user.name)
        return place, node

    def _move_result(self, place: Place, node: Node, user: Node) -> Place | None:
        is_turned = self.dim in place.flipped
        if lowering_of(self.graph, user) is Layout.FLIP:
            dims = frozenset(dim % self.rank for dim in user.args[1])
            return replace(place, flipped=place.flipped ^ dims)
        bounds = slice_of(self.graph, user)
        if bounds is not None:
            size = node.spec.shape[bounds.dim]
            keeps_start = bounds.end == size if is_turned else bounds.start == 0
            keeps_some = bounds.dim == self.dim and keeps_start and bounds.length > 0
            return replace(place, length=bounds.length) if keeps_some else None
        padding = self.paddings.beside(user, node.name, at_end=is_turned)
        if padding is None:
            return None
        return replace(place, length=place.length + padding, padding=place.padding + padding)

    def _fuse_after(
        self, last: Node, view: View, statements: list[ScanLoad | Map]
    ) -> tuple[str, Node]:
        """Pointwise operators over the result, as long as nothing else reads it."""
        self.values[last.name, view] = SCANNED
        while self.graph.has_one_user(last.name):
            (user,) = self.graph.users(last.name)
            is_fit = isinstance(user.output, TensorSpec) and user.output.shape == last.spec.shape
            if not is_fit or write_pointwise(self.graph, user, variable) is None:
                break
            others = [ref for ref in element_inputs(self.graph, user) if ref != last.name]
            if any(ref in self.nodes or self._depends(ref) for ref in others):
                break
            made = self._compute(user, variable(user.name), view, statements)
            self.values[user.name, view] = made
            self.nodes.add(user.name)
            last = user
        return self.values[last.name, view], last

    def _depends(self, name: str) -> bool:
        """Whether a value is computed from one of the scan's."""
        return self.graph.depends_on(name, self.nodes)

    # --- up from the scan

    def _read(self, name: str, view: View, statements: list[ScanLoad | Map]) -> str:
        """The variable of a value under a view.

        Layout operators are looked through, what can be computed is computed, the rest is loaded.
        """
        key = (name, view)
        if key in self.values:
            return self.values[key]
        node = self.graph.node(name)
        made = None
        if node is not None and isinstance(node.output, TensorSpec):
            made = self._read_through(node, view, statements)
            if made is None and self._may_compute(node):
                made = self._compute(node, None, view, statements)
        self.values[key] = made or self._load(name, view, statements)
        return self.values[key]

    def _may_compute(self, node: Node) -> bool:
        """Whether a node is pointwise, read here alone, and within the scan's rank."""
        if len(node.spec.shape) > self.rank or not self.graph.has_one_user(node.name):
            return False
        return write_pointwise(self.graph, node, variable) is not None

    def _compute(
        self, node: Node, name: str | None, view: View, statements: list[ScanLoad | Map]
    ) -> str:
        """A pointwise node over what it reads, as a variable of this name, or of its own."""
        names = element_inputs(self.graph, node)
        reads = {ref: self._read(ref, view, statements) for ref in names}
        made = name or self._name(node.name)
        written = write_pointwise(self.graph, node, reads.__getitem__)
        read = tuple(dict.fromkeys(reads.values()))
        statements.append(Map(made, written.text, read, written.helpers))
        return made

    def _read_through(self, node: Node, view: View, statements: list[ScanLoad | Map]) -> str | None:
        rank = len(node.spec.shape)
        missing = self.rank - rank
        if lowering_of(self.graph, node) is Layout.FLIP:
            for dim in node.args[1]:
                view = view.flip(dim % rank + missing, node.spec.shape[dim])
            return self._read(node.args[0].name, view, statements)
        bounds = slice_of(self.graph, node)
        if bounds is not None:
            moved = view.move(bounds.dim + missing, bounds.start)
            return self._read(node.args[0].name, moved, statements)
        padded = self.paddings.range_of(node) if rank == self.rank else None
        if padded is None:
            return None
        name, bounds = padded
        inner = view.within(bounds)
        value = self._read(name, inner, statements)
        return self._pad(value, self._name(node.name), inner, view, statements)

    def _pad(
        self, value: str, name: str, inner: View, outer: View, statements: list[ScanLoad | Map]
    ) -> str:
        """The identity at positions where a value is not, if there are any."""
        tests = [f"(r >= {inner.low})"] if inner.low > outer.low else []
        tests += [f"(r < {inner.high})"] if inner.high < outer.high else []
        if not tests:
            return value
        identity = write_number(IDENTITY[self.kind])
        text = f"tl.where({' & '.join(tests)}, {value}, {identity})"
        statements.append(Map(name, text, (value,)))
        return name

    def _load(self, name: str, view: View, statements: list[ScanLoad | Map]) -> str:
        spec = self.graph.spec(name)
        operand = self.inputs.setdefault(name, Operand(name, spec))
        strides = [0] * (self.rank - len(spec.shape))
        strides += [
            stride if size != 1 else 0 for stride, size in zip(spec.stride, spec.shape, strict=True)
        ]
        load = ScanLoad(
            name=self._name(name),
            operand=list(self.inputs).index(operand.name),
            strides=tuple(sign * step for sign, step in zip(view.signs, strides, strict=True)),
            step=0,
            base=sum(offset * step for offset, step in zip(view.offsets, strides, strict=True)),
            low=view.low,
            high=view.high,
            dtype=spec.dtype,
        )
        statements.append(load)
        return load.name

    def _name(self, name: str) -> str:
        """A variable of its own for each view of a value."""
        seen = sum(key[0] == name for key in self.values)
        return variable(name) if not seen else f"{variable(name)}_{seen}"

    # --- the rest

    def _absorb_unused(self) -> None:
        """Take in nodes whose every reader is in the scan.

        These are what was looked through, and tensors that were read for their shape or fill alone.
        """
        kept = {*self.graph.outputs, *self.inputs, *self.nodes}
        waiting: list[int] = []  # places, negative: the last one comes first, after its readers

        def add_producers(node: Node) -> None:
            for name in node.refs():
                if self.graph.node(name) is not None and name not in kept:
                    heappush(waiting, -self.graph.place(name))

        for name in tuple(self.nodes):
            add_producers(self.graph.node(name))
        while waiting:
            node = self.graph.nodes[-heappop(waiting)]
            users = self.graph.users(node.name)
            if node.name not in self.nodes and all(user.name in self.nodes for user in users):
                self.nodes.add(node.name)
                add_producers(node)


def _split_axes(scan: Scan, dim: int) -> Scan:
    """The scan with its position apart from the kept axes.

    Axes of size 1 are dropped, neighbours merged, and the densest comes last.
    """
    items = (*scan.loads, scan.store)
    order = sorted(
        (place for place, size in enumerate(scan.kept) if place != dim and size > 1),
        key=lambda place: -abs(scan.store.strides[place]),
    )
    merged: list[tuple[int, int]] = []  # (dimension whose stride counts, size)
    for place in order:
        size = scan.kept[place]
        last = merged[-1][0] if merged else None
        if last is not None and all(
            item.strides[last] == item.strides[place] * size for item in items
        ):
            merged[-1] = (place, merged[-1][1] * size)
        else:
            merged.append((place, size))

    def narrow(item: ScanLoad | ScanStore) -> ScanLoad | ScanStore:
        strides = tuple(item.strides[place] for place, _ in merged)
        return replace(item, strides=strides, step=item.strides[dim])

    def narrow_all(statements: tuple[ScanLoad | Map, ...]) -> tuple[ScanLoad | Map, ...]:
        return tuple(narrow(item) if isinstance(item, ScanLoad) else item for item in statements)

    return replace(
        scan,
        kept=tuple(size for _, size in merged),
        before=narrow_all(scan.before),
        after=narrow_all(scan.after),
        store=narrow(scan.store),
    )
