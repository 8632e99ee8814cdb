"""A graph with other nodes in place of some: what a rewrite works with.

The editor computes nothing: shapes, dtypes and strides of new nodes are those that torch gives fake
tensors. A value that is made anew keeps its name, so that whatever reads it, and every recipe's
site behind it, is named as before.

    editor = GraphEditor(graph, "mean")
    total = editor.call("aten.sum.dim_IntList", Ref("x"), (1,))
    return editor.replaced(total)  # "mean" is that sum now; what nothing reads is gone
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kmem.problem.graph import Arg, Literal, Node, OpGraph, Ref, live_nodes
from kmem.records import TensorSpec

CONTIGUOUS = Literal("torch.contiguous_format")
#: Between the name of the node that new ones stand in front of, and their numbers.
_NEW = "_r"


class CannotRewrite(Exception):
    """New nodes that torch refuses, or that make a value of another kind than the old one."""


class GraphEditor:
    """Writes nodes in front of one node of a graph, and puts the last in its place."""

    def __init__(self, graph: OpGraph, at: str) -> None:
        """Nothing is changed yet.

        Args:
            at: the node that new nodes stand in front of.
        """
        self.graph = graph
        self.at = at
        self._new: list[Node] = []
        self._after: list[Node] = []
        self._specs = {
            placeholder.name: placeholder.spec
            for placeholder in graph.placeholders
            if placeholder.spec is not None
        }
        self._specs |= {
            node.name: node.output for node in graph.nodes if isinstance(node.output, TensorSpec)
        }

    def spec(self, value: Ref) -> TensorSpec:
        """Shape, dtype and strides of a value, old or new."""
        return self._specs[value.name]

    def call(self, target: str, *args: Arg, **kwargs: Arg) -> Ref:
        """A new node, and the value that it makes.

        Raises CannotRewrite: if torch refuses the call, or its result is no single tensor.
        """
        node = self._inferred(Node(self._free_name(), target, args, kwargs, None))
        self._new.append(node)
        self._specs[node.name] = node.spec
        return Ref(node.name)

    def several(self, target: str, *args: Arg) -> tuple[Ref, ...]:
        """A new node, and the values that it makes.

        Raises CannotRewrite: if torch refuses the call, or its result is a single tensor.
        """
        node = Node(self._free_name(), target, args, {}, None)
        specs = _infer_any(node, self._specs)
        if isinstance(specs, TensorSpec):
            raise CannotRewrite(f"{target} makes one tensor")
        self._new.append(replace(node, output=specs))
        self._specs[node.name] = specs[0]  # the name is taken
        found = []
        for place, spec in enumerate(specs):
            taker = Node(self._free_name(), "getitem", (Ref(node.name), place), {}, spec)
            self._new.append(taker)
            self._specs[taker.name] = spec
            found.append(Ref(taker.name))
        return tuple(found)

    def after(self, target: str, *args: Arg) -> None:
        """A node behind the one that is replaced, for what it does to a value that it is given."""
        self._after.append(self._inferred(Node(self._free_name(), target, args, {}, None)))

    def shaped(self, value: Ref, shape: tuple[int, ...]) -> Ref:
        """A value in another shape of as many elements."""
        if self.spec(value).shape == shape:
            return value
        return self.call("aten.reshape.default", value, shape)

    def replaced(self, value: Ref) -> OpGraph:
        """The graph in which a value, a new one or another, stands for what the node `at` makes.

        Raises CannotRewrite: if that has another shape or dtype than the old value, or if what
            reads it does not take its strides.
        """
        return self.replaced_all({self.at: value})

    def replaced_all(self, values: Mapping[str, Ref]) -> OpGraph:
        """The graph in which new values stand for what several nodes make, `at` first among them.

        Raises CannotRewrite: as `replaced`.
        """
        names: dict[str, str] = {}
        for name, value in values.items():
            self._check_stands_for(name, value)
            if value.name in names or all(value.name != node.name for node in self._new):
                value = self.call("aten.clone.default", value)
            old = self.graph.spec(name)
            if name in self.graph.outputs and not _same_layout(old, self.spec(value)):
                value = self.call("aten.clone.default", value, memory_format=CONTIGUOUS)
            names[value.name] = name
        nodes = []
        for node in self.graph.nodes:
            if node.name == self.at:
                nodes += [_renamed(new, names) for new in self._new]
            if node.name not in values:
                nodes.append(node)
            elif node.name == self.at:
                nodes += self._after
        return self._inferred_anew(_without_dead(nodes, self.graph.outputs))

    def forgotten(self, value: Ref) -> OpGraph:
        """The graph in which every reader of the node `at` reads an older value instead.

        Raises CannotRewrite: if the values differ in shape or dtype.
        """
        if self.at in self.graph.outputs:
            return self.replaced(value)
        return self.forgotten_all({self.at: value})

    def forgotten_all(self, values: Mapping[str, Ref]) -> OpGraph:
        """The graph in which readers of several nodes read older values instead, none an output.

        Raises CannotRewrite: if a value differs in shape or dtype from what stands for it.
        """
        older: dict[str, str] = {}
        nodes = []
        for node in self.graph.nodes:
            node = node.reading(older)
            if node.name in values:
                value = values[node.name]
                self._check_stands_for(node.name, value)
                older[node.name] = older.get(value.name, value.name)
            nodes.append(node)
        return self._inferred_anew(_without_dead(nodes, self.graph.outputs))

    def _check_stands_for(self, name: str, value: Ref) -> None:
        old, new = self.graph.spec(name), self.spec(value)
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise CannotRewrite(f"{name} is {old}, what replaces it {new}")

    def _free_name(self) -> str:
        taken = {*self._specs, *(node.name for node in (*self.graph.nodes, *self._after))}
        number = 1
        while f"{self.at}{_NEW}{number}" in taken:
            number += 1
        return f"{self.at}{_NEW}{number}"

    def _inferred(self, node: Node) -> Node:
        return replace(node, output=_infer(node, self._specs))

    def _inferred_anew(self, nodes: list[Node]) -> OpGraph:
        """The graph of these nodes, with strides as torch makes them from the new values.

        A node that is left as it was, and reads what lies as it did, makes what it made.
        """
        specs = {
            placeholder.name: placeholder.spec
            for placeholder in self.graph.placeholders
            if placeholder.spec is not None
        }
        found: list[Node] = []
        several: dict[str, tuple[TensorSpec, ...]] = {}
        for node in nodes:
            if node.target == "getitem":
                source, place = node.args
                node = replace(node, output=several.get(source.name, ())[place])
            elif isinstance(node.output, TensorSpec) and not self._is_as_before(node, specs):
                node = replace(node, output=_infer(node, specs))
            elif isinstance(node.output, tuple):
                several[node.name] = node.output
            if isinstance(node.output, TensorSpec):
                specs[node.name] = node.output
            found.append(node)
        for name in self.graph.outputs:
            if not _same_layout(specs[name], self.graph.spec(name)):
                raise CannotRewrite(f"the output {name} would lie otherwise in memory")
        return replace(self.graph, nodes=tuple(found))

    def _is_as_before(self, node: Node, specs: Mapping[str, TensorSpec]) -> bool:
        before = self.graph.node(node.name)
        if before is node:  # the usual case, by far
            return all(specs.get(name) == self._specs.get(name) for name in node.refs())
        if before is None or (before.target, before.output) != (node.target, node.output):
            return False
        return _described(before, self._specs) == _described(node, specs)


def with_strides(graph: OpGraph, strides: Mapping[str, tuple[int, ...]]) -> OpGraph:
    """The graph in which the tensors of some nodes, by name, lie in memory with these strides."""
    nodes = (
        replace(node, output=replace(node.output, stride=strides[node.name]))
        if node.name in strides and isinstance(node.output, TensorSpec)
        else node
        for node in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))


def is_rewritten(name: str) -> bool:
    """Whether a node is an editor's, by its name; one that took another's place has its name."""
    return re.search(rf"{_NEW}\d+$", name) is not None


def _described(node: Node, specs: Mapping[str, TensorSpec]) -> tuple[object, ...]:
    """What a node's result depends on: its arguments, values as their shapes and strides."""

    def describe(arg: Arg) -> object:
        if isinstance(arg, tuple):
            return tuple(describe(item) for item in arg)
        return specs.get(arg.name) if isinstance(arg, Ref) else arg

    return describe(node.args), {key: describe(arg) for key, arg in node.kwargs.items()}


def _infer(node: Node, specs: dict[str, TensorSpec]) -> TensorSpec:
    found = _infer_any(node, specs)
    if not isinstance(found, TensorSpec):
        raise CannotRewrite(f"{node.target} makes several tensors")
    return found


def _infer_any(node: Node, specs: dict[str, TensorSpec]) -> TensorSpec | tuple[TensorSpec, ...]:
    from kmem.algebra.inferring import infer_output  # loads torch, which matching does not need

    try:
        return infer_output(node, specs)
    except Exception as ex:  # torch raises anything for arguments that do not fit
        raise CannotRewrite(f"{node.target}: {ex}") from ex


def _same_layout(one: TensorSpec, other: TensorSpec) -> bool:
    return all(
        size == 1 or a == b for size, a, b in zip(one.shape, one.stride, other.stride, strict=True)
    )


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    node = node.reading(names)
    name = names.get(node.name, node.name)
    return node if name == node.name else replace(node, name=name)


def _without_dead(nodes: Sequence[Node], outputs: Iterable[str]) -> list[Node]:
    """Nodes that an output or an in-place change depends on, in their order."""
    return live_nodes(nodes, outputs, changes_state)


#: Arguments of a norm that say that it updates running statistics: its place of `training`.
_UPDATES = {"aten.batch_norm.default": 5, "aten.instance_norm.default": 5}


def changes_state(node: Node) -> bool:
    """Whether a node changes a value that it reads."""
    place = _UPDATES.get(node.target)
    if place is not None:
        return bool(node.args[place]) and node.args[3] is not None
    return node.is_in_place


def is_of_parameters(graph: OpGraph, value: Arg) -> bool:
    """Whether a value is computed from parameters and buffers alone, and none of them changes.

    Such values are the module's own: what a caller hands in, whatever family it is of, is not in
    them.
    """
    if not isinstance(value, Ref):
        return False
    placeholder = graph.placeholder(value.name)
    if placeholder is not None:
        return placeholder.kind in ("parameter", "buffer") and not any(
            changes_state(user) for user in graph.users(value.name)
        )
    node = graph.node(value.name)
    return (
        node is not None
        and not changes_state(node)
        and any(True for _ in node.refs())
        and all(is_of_parameters(graph, Ref(name)) for name in node.refs())
    )
