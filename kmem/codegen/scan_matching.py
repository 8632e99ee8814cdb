"""From a graph to its scans: cumsum and cumprod with the flips, slices, paddings and pointwise
chains around them.

`find_scans` walks down from each cumsum or cumprod over what only moves its elements, then up
through what only moves or maps its input. A `_View` says which element of a graph value belongs to
an index of the scan; layout operators change the view, and where nothing more can be looked through
the value is loaded. A padding counts as part of the scan where it holds the operator's identity:
cat((zeros, x)) before or behind a cumsum is a cumsum over more positions.

Covered: flip, narrow, slice with step 1, cat with zeros or ones at the end where the scan starts,
pointwise chains, float inputs. Not covered: integer scans, cat in the middle, graphs that change a
tensor in place (looking through a copy would see the change).
"""

from dataclasses import dataclass, field, replace

from kmem.codegen.pointwise import FLOATS, IDENTITIES, argument, variable, write_pointwise
from kmem.codegen.region import Map
from kmem.codegen.scan import SCANNED, Scan, ScanLoad, ScanStore
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.recipes import Operand
from kmem.records import TensorSpec

SCANS = {"aten.cumsum.default": "sum", "aten.cumprod.default": "prod"}
#: Constant tensors by the number that fills them.
_FILLS = {
    "aten.zeros_like.default": 0.0,
    "aten.zeros.default": 0.0,
    "aten.new_zeros.default": 0.0,
    "aten.ones_like.default": 1.0,
    "aten.ones.default": 1.0,
    "aten.new_ones.default": 1.0,
}
_IDENTITY = {"sum": 0.0, "prod": 1.0}
#: Operators that move elements without changing them.
_LAYOUTS = ("aten.flip.default", "aten.narrow.default", "aten.slice.Tensor", "aten.cat.default")
#: More inputs than this would hold too many tiles in registers.
_MAX_INPUTS = 6


@dataclass(frozen=True, slots=True)
class FoundScan:
    """A scan and the graph nodes it replaces, in graph order; `anchor` is the cumsum or cumprod."""

    anchor: str
    nodes: tuple[str, ...]
    scan: Scan


def find_scans(graph: OpGraph) -> list[FoundScan]:
    """Scans that can be written, in graph order, not overlapping."""
    if any(_changes_float(graph, node) for node in graph.nodes):
        return []
    found: list[FoundScan] = []
    for node in graph.nodes:
        if (
            node.target in SCANS
            and not any(node.name in other.nodes for other in found)
            and _is_float_scan(graph, node)
        ):
            scan = _Match(graph, node, node.args[1] % len(node.spec.shape)).find()
            if scan is not None and not any(set(scan.nodes) & set(other.nodes) for other in found):
                found.append(scan)
    return found


def _changes_float(graph: OpGraph, node: Node) -> bool:
    is_in_place = node.target.startswith("aten.") and node.target.split(".")[1].endswith("_")
    return is_in_place and any(graph.spec(name).dtype in FLOATS for name in node.refs())


def _is_float_scan(graph: OpGraph, node: Node) -> bool:
    source = node.args[0]
    has_types = (
        isinstance(source, Ref)
        and graph.spec(source.name).dtype in FLOATS
        and node.spec.dtype in FLOATS
    )
    return has_types and len(node.spec.shape) > 0 and node.spec.numel > 0


@dataclass(frozen=True, slots=True)
class _View:
    """Element of a value for index i of the scan's space: signs * i + offsets per dimension, for
    positions low..high of the scan.
    """

    signs: tuple[int, ...]
    offsets: tuple[int, ...]
    low: int
    high: int

    def move(self, dim: int, start: int) -> "_View":
        """The view of what a slice from `start` was taken of."""
        offsets = list(self.offsets)
        offsets[dim] += start
        return replace(self, offsets=tuple(offsets))

    def flip(self, dim: int, size: int) -> "_View":
        """The view of what was flipped along a dimension of this size."""
        signs, offsets = list(self.signs), list(self.offsets)
        signs[dim], offsets[dim] = -signs[dim], size - 1 - offsets[dim]
        return replace(self, signs=tuple(signs), offsets=tuple(offsets))


@dataclass(frozen=True, slots=True)
class _Place:
    """What layout operators did to the result: how many positions there are, how many identities
    stand first, which dimensions turned.
    """

    length: int
    padding: int = 0
    flipped: frozenset[int] = frozenset()


@dataclass
class _Match:
    """One scan while it is found: the nodes it takes in, its inputs, and the statements before and
    after.
    """

    graph: OpGraph
    anchor: Node
    dim: int
    nodes: set[str] = field(default_factory=set)
    inputs: dict[str, Operand] = field(default_factory=dict)
    values: dict[tuple[str, _View], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kind = SCANS[self.anchor.target]
        self.rank = len(self.anchor.spec.shape)

    def find(self) -> FoundScan | None:
        self.nodes.add(self.anchor.name)
        place, last = self._walk_down()
        shape = list(last.spec.shape)
        view = _View((1,) * self.rank, (0,) * self.rank, 0, place.length)
        before: list[ScanLoad | Map] = []
        entry = self._entry(place, view, shape)
        source = self._read(self.anchor.args[0].name, entry, before)
        source = self._pad(source, f"{variable(self.anchor.name)}_padded", entry, view, before)
        after: list[ScanLoad | Map] = []
        result, last = self._fuse_after(last, view, after)
        if not 0 < len(self.inputs) <= _MAX_INPUTS:
            return None
        self._absorb_unused()
        nodes = tuple(node.name for node in self.graph.nodes if node.name in self.nodes)
        folds_layout = any(self.graph.node(name).target in _LAYOUTS for name in nodes)
        spec = last.spec
        store = ScanStore(spec.stride, 0, 0, spec.dtype)
        reverse = self.dim in place.flipped
        scan = Scan(
            self.kind,
            reverse,
            place.length,
            tuple(shape),
            tuple(before),
            source,
            tuple(after),
            result,
            store,
            tuple(self.inputs.values()),
            Operand(last.name, spec),
            folds_layout,
        )
        return FoundScan(self.anchor.name, nodes, _split_axes(scan, self.dim))

    def _entry(self, place: _Place, view: _View, shape: list[int]) -> _View:
        """The scan's input as seen from a position of the result: without the padding, turned round
        where the result is flipped.
        """
        padding = min(place.padding, place.length)
        for dim in place.flipped - {self.dim}:
            view = view.flip(dim, shape[dim])
        if self.dim not in place.flipped:
            return replace(view.move(self.dim, -place.padding), low=padding)
        return replace(
            view.flip(self.dim, place.length - place.padding), high=place.length - padding
        )

    def _walk_down(self) -> tuple[_Place, Node]:
        """Over flips, slices and paddings of the result that nothing else reads; where its
        positions end up.
        """
        place = _Place(self.anchor.spec.shape[self.dim])
        node = self.anchor
        while self.graph.has_one_user(node.name):
            (user,) = self.graph.users(node.name)
            moved = self._move_result(place, node, user)
            if moved is None:
                break
            place, node = moved, user
            self.nodes.add(user.name)
        return place, node

    def _move_result(self, place: _Place, node: Node, user: Node) -> _Place | None:
        is_turned = self.dim in place.flipped
        if user.target == "aten.flip.default":
            dims = frozenset(dim % self.rank for dim in user.args[1])
            return replace(place, flipped=place.flipped ^ dims)
        bounds = _slice_of(user, node.spec)
        if bounds is not None:
            dim, start, end = bounds
            size = node.spec.shape[dim]
            keeps_start = end == size if is_turned else start == 0
            return (
                replace(place, length=end - start)
                if dim == self.dim and keeps_start and end > start
                else None
            )
        if user.target == "aten.cat.default":
            padding = self._padding(user, node.name, at_end=is_turned)
            return (
                None
                if padding is None
                else replace(place, length=place.length + padding, padding=place.padding + padding)
            )
        return None

    def _padding(self, cat: Node, name: str, *, at_end: bool) -> int | None:
        """How many identities a cat of two puts beside a value along the scan, at the end where the
        scan starts; None if it is not that.
        """
        parts = cat.args[0]
        refs = (
            isinstance(parts, tuple)
            and len(parts) == 2
            and all(isinstance(part, Ref) for part in parts)
        )
        if not refs or argument(cat, 1, "dim", 0) % self.rank != self.dim:
            return None
        value, constant = parts if at_end else parts[::-1]
        filler = self.graph.node(constant.name)
        if (
            value.name != name
            or filler is None
            or _FILLS.get(filler.target) != _IDENTITY[self.kind]
        ):
            return None
        return filler.spec.shape[self.dim] if len(filler.spec.shape) == self.rank else None

    def _read(self, name: str, view: _View, statements: list[ScanLoad | Map]) -> str:
        """The variable of a value under a view; layout operators are looked through, what can be
        computed is, the rest is loaded.
        """
        key = (name, view)
        if key in self.values:
            return self.values[key]
        node = self.graph.node(name)
        made = (
            self._read_through(node, view, statements)
            if node is not None and isinstance(node.output, TensorSpec)
            else None
        )
        if made is None and node is not None and self._may_compute(node):
            reads = {ref: self._read(ref, view, statements) for ref in _values_of(node)}
            made = self._name(name)
            statements.append(
                Map(
                    made,
                    write_pointwise(self.graph, node, lambda ref: reads[ref]),
                    tuple(dict.fromkeys(reads.values())),
                )
            )
        self.values[key] = made or self._load(name, view, statements)
        return self.values[key]

    def _may_compute(self, node: Node) -> bool:
        """Whether a node is pointwise, read here alone, and within the scan's rank."""
        if (
            not isinstance(node.output, TensorSpec)
            or len(node.spec.shape) > self.rank
            or not self.graph.has_one_user(node.name)
        ):
            return False
        return write_pointwise(self.graph, node, variable) is not None

    def _read_through(
        self, node: Node, view: _View, statements: list[ScanLoad | Map]
    ) -> str | None:
        rank = len(node.spec.shape)
        if node.target == "aten.flip.default":
            for dim in node.args[1]:
                view = view.flip(dim % rank + self.rank - rank, node.spec.shape[dim])
            return self._read(node.args[0].name, view, statements)
        source = node.args[0] if node.args and isinstance(node.args[0], Ref) else None
        bounds = _slice_of(node, self.graph.spec(source.name)) if source is not None else None
        if bounds is not None:
            return self._read(
                source.name, view.move(bounds[0] + self.rank - rank, bounds[1]), statements
            )
        return (
            self._read_padded(node, view, statements)
            if node.target == "aten.cat.default" and rank == self.rank
            else None
        )

    def _read_padded(self, node: Node, view: _View, statements: list[ScanLoad | Map]) -> str | None:
        """A value with identities beside it along the scan: the value where it is, the identity
        elsewhere.
        """
        sides = (
            (part.name, at_end)
            for part in node.args[0]
            if isinstance(part, Ref)
            for at_end in (False, True)
        )
        side = next(
            (
                (name, at_end)
                for name, at_end in sides
                if self._padding(node, name, at_end=at_end) is not None
            ),
            None,
        )
        if side is None:
            return None
        name, at_end = side
        start = 0 if at_end else self._padding(node, name, at_end=False)
        end, offset = start + self.graph.spec(name).shape[self.dim], view.offsets[self.dim]
        low, high = (
            (start - offset, end - offset)
            if view.signs[self.dim] > 0
            else (offset - end + 1, offset - start + 1)
        )
        inner = replace(
            view.move(self.dim, -start), low=max(view.low, low), high=min(view.high, high)
        )
        return self._pad(
            self._read(name, inner, statements), self._name(node.name), inner, view, statements
        )

    def _pad(
        self, value: str, name: str, inner: _View, outer: _View, statements: list[ScanLoad | Map]
    ) -> str:
        """The identity at positions where a value is not, if there are any."""
        tests = [f"(r >= {inner.low})"] * (inner.low > outer.low) + [f"(r < {inner.high})"] * (
            inner.high < outer.high
        )
        if not tests:
            return value
        statements.append(
            Map(name, f"tl.where({' & '.join(tests)}, {value}, {_IDENTITY[self.kind]})", (value,))
        )
        return name

    def _load(self, name: str, view: _View, statements: list[ScanLoad | Map]) -> str:
        spec = self.graph.spec(name)
        operand = self.inputs.setdefault(name, Operand(name, spec))
        missing = self.rank - len(spec.shape)
        strides = [0] * missing + [
            stride if size != 1 else 0 for stride, size in zip(spec.stride, spec.shape, strict=True)
        ]
        base = sum(offset * stride for offset, stride in zip(view.offsets, strides, strict=True))
        signed = tuple(sign * stride for sign, stride in zip(view.signs, strides, strict=True))
        made = self._name(name)
        statements.append(
            ScanLoad(
                made,
                list(self.inputs).index(operand.name),
                signed,
                0,
                base,
                view.low,
                view.high,
                spec.dtype,
            )
        )
        return made

    def _name(self, name: str) -> str:
        """A variable of its own for each view of a value."""
        seen = sum(key[0] == name for key in self.values)
        return variable(name) if not seen else f"{variable(name)}_{seen}"

    def _fuse_after(
        self, last: Node, view: _View, statements: list[ScanLoad | Map]
    ) -> tuple[str, Node]:
        """Pointwise operators over the result, as long as nothing else reads it."""
        self.values[last.name, view] = SCANNED
        while self.graph.has_one_user(last.name):
            (user,) = self.graph.users(last.name)
            is_fit = isinstance(user.output, TensorSpec) and user.output.shape == last.spec.shape
            others = [ref for ref in _values_of(user) if ref != last.name]
            if (
                not is_fit
                or user.target in SCANS
                or write_pointwise(self.graph, user, variable) is None
            ):
                break
            if any(self._depends(ref) for ref in others):
                break
            reads = {ref: self._read(ref, view, statements) for ref in _values_of(user)}
            statements.append(
                Map(
                    variable(user.name),
                    write_pointwise(self.graph, user, lambda ref, reads=reads: reads[ref]),
                    tuple(reads.values()),
                )
            )
            self.values[user.name, view] = variable(user.name)
            self.nodes.add(user.name)
            last = user
        return self.values[last.name, view], last

    def _depends(self, name: str) -> bool:
        """Whether a value is computed from one of the scan's."""
        if name in self.nodes:
            return True
        node = self.graph.node(name)
        return node is not None and any(self._depends(ref) for ref in node.refs())

    def _absorb_unused(self) -> None:
        """Nodes whose every reader is in the scan: what was looked through, and tensors that were
        read for their shape or fill alone.
        """
        changed = True
        while changed:
            changed = False
            for node in reversed(self.graph.nodes):
                users = self.graph.users(node.name)
                is_free = (
                    node.name not in self.nodes
                    and node.name not in self.graph.outputs
                    and node.name not in self.inputs
                )
                if is_free and users and all(user.name in self.nodes for user in users):
                    self.nodes.add(node.name)
                    changed = True


def _values_of(node: Node) -> list[str]:
    """Values a pointwise node reads for their elements (expand_as reads its second input for its
    shape alone).
    """
    names = list(dict.fromkeys(node.refs()))
    return names[:1] if node.target in IDENTITIES else names


def _slice_of(node: Node, source: TensorSpec) -> tuple[int, int, int] | None:
    """(dimension, start, end) of a narrow or a slice with step 1; None for anything else."""
    rank = len(source.shape)
    if node.target == "aten.narrow.default" and all(
        isinstance(value, int) for value in node.args[1:]
    ):
        dim = node.args[1] % rank
        start = node.args[2]
        length = node.args[3]
        start += source.shape[dim] if start < 0 else 0
        return dim, start, start + length
    if node.target != "aten.slice.Tensor" or argument(node, 4, "step", 1) != 1:
        return None
    dim = argument(node, 1, "dim", 0) % rank
    start, end = argument(node, 2, "start"), argument(node, 3, "end")
    start, end, _ = slice(start, end).indices(source.shape[dim])
    return dim, start, max(start, end)


def _split_axes(scan: Scan, dim: int) -> Scan:
    """The scan with its position apart from the kept axes: those of size 1 dropped, neighbours
    merged, the densest last.
    """
    items = (*scan.loads, scan.store)
    order = sorted(
        (d for d, size in enumerate(scan.kept) if d != dim and size > 1),
        key=lambda d: -abs(scan.store.strides[d]),
    )
    merged: list[tuple[int, int]] = []  # (dimension whose stride counts, size)
    for d in order:
        size = scan.kept[d]
        if merged and all(item.strides[merged[-1][0]] == item.strides[d] * size for item in items):
            merged[-1] = (d, merged[-1][1] * size)
        else:
            merged.append((d, size))

    def narrow(item):  # noqa: ANN001, ANN202 - a ScanLoad or ScanStore in and out
        return replace(
            item, strides=tuple(item.strides[d] for d, _ in merged), step=item.strides[dim]
        )

    def narrow_all(statements: tuple[ScanLoad | Map, ...]) -> tuple[ScanLoad | Map, ...]:
        return tuple(narrow(item) if isinstance(item, ScanLoad) else item for item in statements)

    kept = tuple(size for _, size in merged)
    return replace(
        scan,
        kept=kept,
        before=narrow_all(scan.before),
        after=narrow_all(scan.after),
        store=narrow(scan.store),
    )
