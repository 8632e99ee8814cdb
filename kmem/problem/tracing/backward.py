"""Operators of autograd's backward taken apart into plain ones, which recipes know.

A backward that is a problem calls what autograd calls (`aten.native_layer_norm_backward`), so that
the library's own time is what kernels are held to. Its graph has products, sums and reductions in
the places of these calls (derivatives.py): no recipe has to know a derivative, and every recipe
finds what it knows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from kmem.problem.graph import Node, OpGraph, live_nodes
from kmem.problem.tracing.calls import read_call, stand_in, target_name, tensor_spec
from kmem.problem.tracing.derivatives import APART
from kmem.problem.tracing.evaluate import arguments_of
from kmem.problem.tracing.flattening import VIEWS, flattened
from kmem.records import TensorSpec

#: A number as a tensor, and choices by which of the two are numbers.
_NUMBER = "aten.scalar_tensor.default"
_CHOICES: Mapping[tuple[bool, ...], str] = {
    (False, False): "aten.where.self",
    (True, False): "aten.where.ScalarSelf",
    (False, True): "aten.where.ScalarOther",
    (True, True): "aten.where.Scalar",
}


def take_apart(graph: OpGraph) -> OpGraph:
    """The graph with plain operators in the places of autograd's, as far as they are known.

    A result keeps its shape, and its strides: an operator for which that fails stays.
    """
    if not any(node.target in APART for node in graph.nodes):
        return graph
    parts = _Parts(graph)
    nodes = _with_numbers([made for node in graph.nodes for made in parts.of(node)])
    nodes, renamed = _with_few_views(nodes, parts.specs)
    outputs = tuple(parts.renamed.get(name, name) for name in graph.outputs)
    outputs = tuple(renamed.get(name, name) for name in outputs)
    graph = flattened(replace(graph, nodes=tuple(nodes), outputs=outputs))
    live = live_nodes(graph.nodes, graph.outputs, lambda node: node.is_in_place)
    return replace(graph, nodes=tuple(live))


def _with_numbers(nodes: Sequence[Node]) -> list[Node]:
    """Nodes in which choices are made between values and numbers, not tensors of one number."""
    numbers = {node.name: node.args[0] for node in nodes if node.target == _NUMBER}
    found = []
    for node in nodes:
        if node.target == "aten.where.self":
            args = [numbers.get(arg.name, arg) for arg in node.args]
            is_number = tuple(one is not other for one, other in zip(args, node.args, strict=True))
            node = replace(node, target=_CHOICES[is_number[1:]], args=tuple(args))
        found.append(node)
    return found


def _with_few_views(
    nodes: Sequence[Node], specs: Mapping[str, TensorSpec]
) -> tuple[list[Node], dict[str, str]]:
    """Nodes without views that make what is there already, and by whose name it is."""
    renamed: dict[str, str] = {}
    if any(node.is_in_place for node in nodes):
        return list(nodes), renamed
    found: list[Node] = []
    seen: dict[tuple[str, TensorSpec], str] = {}
    viewed: dict[str, str] = {}  # by names of views, what they view
    for node in nodes:
        node = node.reading(renamed)
        if node.target in VIEWS:
            source = node.refs()[0]
            base = viewed.setdefault(node.name, viewed.get(source, source))
            same = seen.setdefault((base, node.spec), node.name)
            if specs[base] == node.spec:
                same = base
            if same != node.name:
                renamed[node.name] = same
                continue
        found.append(node)
    return found, renamed


class _Parts:
    """The nodes of a graph one after another, some of them taken apart."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.specs = {each.name: each.spec for each in graph.placeholders if each.spec is not None}
        self.renamed: dict[str, str] = {}  # values by the names that those are known by now
        self.several: dict[str, tuple[str | None, ...]] = {}  # results of what was taken apart

    def of(self, node: Node) -> Iterator[Node]:
        """What stands in the place of a node."""
        if node.target == "getitem" and node.refs()[0] in self.several:
            made = self.several[node.refs()[0]][node.args[1]]
            if made is not None:  # nobody reads a result that is left out
                self.renamed[node.name] = made
            return
        node = node.reading(self.renamed)
        found = self._apart(node) if self._may_be_parted(node) else None
        for each in [node] if found is None else found:
            if isinstance(each.output, TensorSpec):
                self.specs[each.name] = each.output
            yield each

    def _may_be_parted(self, node: Node) -> bool:
        users = self.graph.users(node.name)
        is_read_alone = isinstance(node.output, TensorSpec) or (
            node.name not in self.graph.outputs and all(user.target == "getitem" for user in users)
        )
        return node.target in APART and is_read_alone and set(node.refs()) <= self.specs.keys()

    def _apart(self, node: Node) -> list[Node] | None:
        """Plain nodes that make what a node makes; None where they would make it otherwise."""
        names = tuple(dict.fromkeys(node.refs()))

        def compute(*tensors: torch.Tensor) -> object:
            values = dict(zip(names, tensors, strict=True))
            args, named = arguments_of(node, values, device=torch.device("cpu"))
            return APART[node.target](*args, **named)

        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            given = [stand_in(self.specs[name]) for name in names]
            traced = make_fx(compute, tracing_mode="real")(*given).graph
        traced.eliminate_dead_code()
        known: dict[str, str] = {}
        starts = (each for each in traced.nodes if each.op == "placeholder")
        known.update({each.name: name for each, name in zip(starts, names, strict=True)})
        nodes = []
        for each in traced.nodes:
            if each.op == "call_function":
                made = read_call(each, target_name(each.target), known)
                nodes.append(replace(made, name=f"{node.name}_{each.name}", module=node.module))
                known[each.name] = nodes[-1].name
        end = next(each for each in traced.nodes if each.op == "output").args[0]
        ends = end if isinstance(end, tuple | list) else (end,)
        wanted = node.output if isinstance(node.output, tuple) else (node.output,)
        results: list[str | None] = []
        for each, spec in zip(ends, wanted, strict=True):
            if each is not None and not _lies_alike(tensor_spec(each.meta["val"]), spec):
                return None
            results.append(None if each is None else known[each.name])
        if isinstance(node.output, TensorSpec):
            if results[0] is None:
                return None
            self.renamed[node.name] = results[0]
        else:
            self.several[node.name] = tuple(results)
        return nodes


def _lies_alike(one: TensorSpec, other: TensorSpec | None) -> bool:
    """Whether two tensors have the same shape and strides where there is more than one element."""
    if other is None or one.shape != other.shape:
        return False
    return all(
        size == 1 or step == wanted
        for size, step, wanted in zip(one.shape, one.stride, other.stride, strict=True)
    )
