"""The operator graph of one traced forward: values in execution order, without torch objects.

Owned here: the shape of the graph, the lookups that recipes need, and its two identities. trace.py
makes a graph, bound.py costs it, recipes match it, and codegen/module/ writes it out again. What an
operator means stands in operators/.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from kmem.records import TensorSpec, content_hash

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of a value: the name of a placeholder or node."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant torch object, kept as the Python expression that makes it: "torch.float32"."""

    expression: str


#: The device of the forward's first input, which emitted code binds to this name.
DEVICE = Literal("_DEVICE")


#: An argument of a node. Nested tuples stand for lists.
Arg: TypeAlias = "Ref | Literal | int | float | bool | str | None | tuple[Arg, ...]"


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A value that the forward starts from.

    `kind` is input, parameter, buffer or constant; `target` is the name in the state_dict, or ""
    for inputs. `spec` is None for an input that is no tensor; then `value` is what the trace saw,
    and the guard demands it again. A constant has both: `value` is its number, or nested tuples of
    numbers.
    """

    name: str
    kind: str
    target: str
    spec: TensorSpec | None
    value: "int | float | bool | str | tuple[object, ...] | None" = None


@dataclass(frozen=True, slots=True)
class Node:
    """One call: `target` is "aten.relu.default" or "getitem".

    `output` is a tuple for operators with several results, and None for those without any.
    `module` is the path of the submodule whose forward made the call, as in the state_dict; "" for
    the module itself, and where it is not known. It is a name for people: no identity covers it.
    """

    name: str
    target: str
    args: tuple[Arg, ...]
    kwargs: Mapping[str, Arg]
    output: TensorSpec | tuple[TensorSpec, ...] | None
    module: str = field(default="", compare=False)
    _reads: tuple[str, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # asked for by everything that looks at a graph, and a network has a thousand nodes
        reads = (*_refs(self.args), *_refs(tuple(self.kwargs.values())))
        object.__setattr__(self, "_reads", reads)

    @property
    def spec(self) -> TensorSpec:
        """The only output. Raises TypeError if there are several or none."""
        if not isinstance(self.output, TensorSpec):
            raise TypeError(f"{self.name} = {self.target} has no single tensor output")
        return self.output

    @property
    def is_in_place(self) -> bool:
        """Whether the operator changes what it reads: aten.relu_.default, aten.__iand__.Scalar."""
        parts = self.target.split(".")
        if len(parts) > 1 and parts[1].startswith("__"):
            return parts[1].startswith("__i")
        return len(parts) > 1 and parts[1].endswith("_")

    def refs(self) -> tuple[str, ...]:
        """Names of the values that this node reads, in order, repeats included."""
        return self._reads

    def reading(self, renamed: Mapping[str, str]) -> "Node":
        """The node with other values in the places of those that it reads, by their names."""

        def swap(arg: Arg) -> Arg:
            if isinstance(arg, tuple):
                return tuple(swap(item) for item in arg)
            return Ref(renamed.get(arg.name, arg.name)) if isinstance(arg, Ref) else arg

        if not renamed.keys() & set(self._reads):
            return self
        kwargs = {key: swap(arg) for key, arg in self.kwargs.items()}
        return replace(self, args=tuple(map(swap, self.args)), kwargs=kwargs)


def _hide(node: Node) -> Node:
    return replace(node, target="hidden.node_.default" if node.is_in_place else "hidden.node")


def _refs(arg: Arg) -> Iterator[str]:
    if isinstance(arg, Ref):
        yield arg.name
    elif isinstance(arg, tuple):
        for item in arg:
            yield from _refs(item)


@dataclass(frozen=True, slots=True)
class _Wiring:
    """Where things are in a graph: found once, so that no lookup has to go through all nodes.

    It says what reads what, not what is computed: a graph that hides nodes has the same.
    """

    places: Mapping[str, int]  # of nodes, in execution order
    placeholders: Mapping[str, Placeholder]
    users: Mapping[str, tuple[int, ...]]  # the places of nodes that read a value
    ancestors: Mapping[str, int]  # of a node: one bit for the place of each node before it


@dataclass(frozen=True)
class OpGraph:
    """One forward.

    `returns_tuple` is False when the module returns a bare tensor. `mode_matters` says that train()
    and eval() trace differently. `opaque_reason` is set, and `nodes` is empty, if the module could
    not be traced; the module then runs as it is.
    """

    placeholders: tuple[Placeholder, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    returns_tuple: bool
    training: bool
    mode_matters: bool
    opaque_reason: str | None = None

    @cached_property
    def _wiring(self) -> _Wiring:
        users: dict[str, list[int]] = {}
        places: dict[str, int] = {}
        ancestors: dict[str, int] = {}
        for place, node in enumerate(self.nodes):
            before = 0
            for name in dict.fromkeys(node.refs()):
                users.setdefault(name, []).append(place)
                if name in places:
                    before |= ancestors[name] | 1 << places[name]
            places[node.name], ancestors[node.name] = place, before
        return _Wiring(
            places,
            {placeholder.name: placeholder for placeholder in self.placeholders},
            {name: tuple(readers) for name, readers in users.items()},
            ancestors,
        )

    @cached_property
    def _hidden(self) -> tuple[Node, ...]:
        return tuple(map(_hide, self.nodes))

    @cached_property
    def _found(self) -> dict[tuple[object, ...], object]:
        return {}

    def __getstate__(self) -> dict[str, object]:
        """Without what was found: that may be of recipes, which another process has not loaded.

        Hidden nodes are made there again, where they are wanted.
        """
        left_out = "_found", "_hidden", "_whole"
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def once(self, find: Callable[..., Found], *asked: object) -> Found:
        """What a function finds in this graph, worked out the first time that it is asked.

        Every recipe asks about every graph, and a network has a thousand nodes.

        Args:
            find: depends on the graph and on what is asked alone; nobody changes what it returns.
            asked: its further arguments, hashable.
        """
        key = find, *asked
        if key not in self._found:
            self._found[key] = find(self, *asked)
        return self._found[key]  # type: ignore[return-value]

    def found_by(self, finder: Callable[..., object]) -> dict[Any, Any]:
        """What a function has found in this graph so far, by what it was asked, for it to add to.

        For one that `once` cannot serve, for it finds several things at a time, or finds in a graph
        with other nodes hidden what holds here.
        """
        return self._found.setdefault(("by", finder), {})  # type: ignore[return-value]

    def node(self, name: str) -> Node | None:
        """The node that makes a value; None for placeholders."""
        place = self._wiring.places.get(name)
        return None if place is None else self.nodes[place]

    def placeholder(self, name: str) -> Placeholder | None:
        """The placeholder of a name; None for what a node makes."""
        return self._wiring.placeholders.get(name)

    def spec(self, name: str) -> TensorSpec:
        """Shape, dtype and strides of a value.

        Raises KeyError for an unknown name, TypeError for one that is no single tensor.
        """
        node = self.node(name)
        if node is not None:
            return node.spec
        placeholder = self.placeholder(name)
        if placeholder is None:
            raise KeyError(name)
        if placeholder.spec is None:
            raise TypeError(f"{name} is not a tensor")
        return placeholder.spec

    def users(self, name: str) -> tuple[Node, ...]:
        """Nodes that read a value, in execution order."""
        return tuple(self.nodes[place] for place in self._wiring.users.get(name, ()))

    def place(self, name: str) -> int:
        """Where a node stands in execution order."""
        return self._wiring.places[name]

    def depends_on(self, name: str, nodes: Iterable[str]) -> bool:
        """Whether a value is computed from the result of one of these nodes."""
        places = self._wiring.places
        mask = sum(1 << places[node] for node in set(nodes))
        return bool(self._wiring.ancestors.get(name, 0) & mask)

    def hiding(self, names: Collection[str]) -> "OpGraph":
        """The same values, with the operators of these nodes unknown: nothing can match them.

        In-place ones are still known to be in place.
        """
        nodes = tuple(
            hidden if node.name in names else node
            for node, hidden in zip(self.nodes, self._hidden, strict=True)
        )
        made = replace(self, nodes=nodes)
        # a large graph is hidden a thousand times
        vars(made).update(_wiring=self._wiring, _whole=self.whole)
        return made

    @property
    def whole(self) -> "OpGraph":
        """The graph with all its operators known; itself where none is hidden."""
        return vars(self).get("_whole", self)

    def has_one_user(self, name: str) -> bool:
        """Whether exactly one node reads the value and it is not an output.

        Only then may it be fused away.
        """
        return len(self.users(name)) == 1 and name not in self.outputs

    def only_result(self, node: Node) -> Node | None:
        """What makes the value that a node is run for: it, or what takes the first of several.

        None if another of several is read, or none is.
        """
        if not isinstance(node.output, tuple):
            return node
        read = [
            user
            for user in self.users(node.name)
            if self.users(user.name) or user.name in self.outputs
        ]
        return read[0] if len(read) == 1 and read[0].args[1] == 0 else None

    @cached_property
    def hash(self) -> str:
        """Identity of the computation at these sizes.

        It covers operators, wiring, shapes, strides, dtypes and constants; not names.
        """
        return content_hash(*self._canonical(sizes=True))

    @cached_property
    def structure_hash(self) -> str:
        """Identity without sizes: operators, wiring, ranks, dtypes.

        Integer arguments are left out, for many are sizes.
        """
        return content_hash(*self._canonical(sizes=False))

    def _canonical(self, *, sizes: bool) -> Iterator[str]:
        order: dict[str, str] = {}
        for index, value in enumerate((*self.placeholders, *self.nodes)):
            order[value.name] = f"%{index}"
        yield f"training={self.training if self.mode_matters else None}"
        if self.opaque_reason is not None:
            yield "opaque"
        for placeholder in self.placeholders:
            spec = _describe(placeholder.spec, sizes)
            yield f"{order[placeholder.name]} {placeholder.kind} {spec} {placeholder.value!r}"
        for node in self.nodes:
            arguments = [_render(arg, order, sizes) for arg in node.args]
            arguments += [
                f"{key}={_render(arg, order, sizes)}" for key, arg in sorted(node.kwargs.items())
            ]
            output = _describe(node.output, sizes)
            yield f"{order[node.name]} {node.target} {' '.join(arguments)} {output}"
        yield " ".join(order.get(name, name) for name in self.outputs)


def _describe(spec: TensorSpec | tuple[TensorSpec, ...] | None, sizes: bool) -> str:
    if spec is None:
        return "-"
    if isinstance(spec, tuple):
        return "(" + " ".join(_describe(item, sizes) for item in spec) + ")"
    return f"{spec.dtype}{spec.shape}{spec.stride}" if sizes else f"{spec.dtype}[{len(spec.shape)}]"


def _render(arg: Arg, order: Mapping[str, str], sizes: bool) -> str:
    if isinstance(arg, Ref):
        return order[arg.name]
    if isinstance(arg, tuple):
        if not sizes and all(isinstance(item, int) for item in arg):
            return "[*]"
        return "[" + " ".join(_render(item, order, sizes) for item in arg) + "]"
    if isinstance(arg, Literal):
        return arg.expression
    if isinstance(arg, int) and not isinstance(arg, bool) and not sizes:
        return "*"
    return repr(arg)


def live_nodes(
    nodes: Sequence[Node],
    outputs: Iterable[str],
    keeps: Callable[[Node], bool] = lambda node: False,
) -> list[Node]:
    """Nodes that outputs depend on, in their order.

    Args:
        keeps: whether a node stays that nobody reads.
    """
    wanted, live = set(outputs), []
    for node in reversed(nodes):
        if node.name in wanted or keeps(node):
            live.append(node)
            wanted.update(node.refs())
    return live[::-1]


def graph_sizes(graph: OpGraph) -> tuple[int, ...]:
    """Every size of every tensor placeholder, in order.

    Graphs of one structure have equally many, so that they can be compared.
    """
    return tuple(
        size
        for placeholder in graph.placeholders
        if placeholder.spec is not None
        for size in placeholder.spec.shape
    )
