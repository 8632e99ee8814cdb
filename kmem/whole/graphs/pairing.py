"""A sum of products of many values, as products of two: einsum of three operands and more.

From the left, or along the path that opt_einsum gave where it is installed, each product sums what
nothing later reads, as torch's own einsum does; where nothing is summed it is a pointwise product.
So every step is an operator that recipes know.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kmem.problem.graph import Arg, Node, OpGraph, Ref
from kmem.problem.tracing.calls import stand_in, tensor_spec
from kmem.problem.tracing.fake import quiet_fake_tensors

_EINSUM = "aten.einsum.default"


def in_pairs(graph: OpGraph) -> OpGraph:
    """The graph with such sums in steps; one whose result would lie otherwise in memory stays."""
    taken = {each.name for each in (*graph.nodes, *graph.placeholders)}
    nodes: list[Node] = []
    for node in graph.nodes:
        steps = _Steps(graph, node, taken).find() if _has_many(node) else None
        nodes += [node] if steps is None else steps
        taken.update(each.name for each in steps or ())
    return replace(graph, nodes=tuple(nodes))


def _has_many(node: Node) -> bool:
    if node.target != _EINSUM or len(node.args) != 2 or not node.kwargs.keys() <= {"path"}:
        return False
    equation, operands = node.args
    is_plain = isinstance(equation, str) and equation.replace(" ", "").count("->") == 1
    return is_plain and "." not in equation and isinstance(operands, tuple) and len(operands) > 2


@dataclass(frozen=True, slots=True)
class _Value:
    """A value under way: its name, one letter for each dimension, and a stand-in without data."""

    name: str
    labels: str
    fake: torch.Tensor


class _Steps:
    """The steps of one sum of products."""

    def __init__(self, graph: OpGraph, node: Node, taken: Collection[str]) -> None:
        self.graph, self.node = graph, node
        self.taken = taken
        self.nodes: list[Node] = []

    def find(self) -> list[Node] | None:
        """The nodes in its place, the last under its name; None where it stays as it is."""
        equation, operands = self.node.args
        terms, output = equation.replace(" ", "").split("->")
        words = terms.split(",")
        if any(len(set(word)) != len(word) for word in (*words, output)):
            return None  # a diagonal
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with mode, quiet_fake_tensors(), torch.no_grad():
            values = [
                _Value(each.name, word, stand_in(self.graph.spec(each.name)))
                for each, word in zip(operands, words, strict=True)
            ]
            path = [place for place in self.node.kwargs.get("path", ()) if isinstance(place, int)]
            while len(values) > 1:
                pair = path[:2] if path else [0, 1]
                one, other = (values[place] for place in pair)
                left = [value for place, value in enumerate(values) if place not in pair]
                later = "".join(value.labels for value in left)
                made = self._product(one, other, later + output, "" if left else output)
                # along a path what was made stands last, from the left first
                values = [*left, made] if path else [made, *left]
                path = path[2:]
            made = values[0]
            if made.labels != output:
                made = self._turned(made, output)
            same = tensor_spec(made.fake) == self.node.output
        if not same or not self.nodes:
            return None
        self.nodes[-1] = replace(self.nodes[-1], name=self.node.name)
        return self.nodes

    def _product(self, one: _Value, other: _Value, read: str, output: str) -> _Value:
        """The product of two, summed over what is not read later."""
        every = dict.fromkeys(one.labels + other.labels)
        kept = [label for label in every if label in read]
        if len(kept) == len(every):
            labels = one.labels + "".join(each for each in every if each not in one.labels)
            left, right = (self._spread(each, labels) for each in (one, other))
            fake = torch.mul(left.fake, right.fake)
            args: tuple[Arg, ...] = (Ref(left.name), Ref(right.name))
            return self._add("aten.mul.Tensor", args, labels, fake)
        if not output:
            shared = [label for label in kept if label in one.labels and label in other.labels]
            output = "".join([*shared, *(label for label in kept if label not in shared)])
        best: _Value | None = None
        for left, right in ((one, other), (other, one)):
            equation = f"{left.labels},{right.labels}->{output}"
            fake = torch.einsum(equation, left.fake, right.fake)
            args = (equation, (Ref(left.name), Ref(right.name)))
            if best is None or tensor_spec(fake) == self.node.output:
                self.nodes = self.nodes if best is None else self.nodes[:-1]
                best = self._add(_EINSUM, args, output, fake)
        assert best is not None
        return best

    def _spread(self, value: _Value, labels: str) -> _Value:
        """A value with its dimensions in another order, and ones for those that it lacks."""
        value = self._turned(value, "".join(each for each in labels if each in value.labels))
        for place, label in enumerate(labels):
            if label not in value.labels:
                fake = value.fake.unsqueeze(place)
                word = value.labels[:place] + label + value.labels[place:]
                value = self._add("aten.unsqueeze.default", (Ref(value.name), place), word, fake)
        return value

    def _turned(self, value: _Value, labels: str) -> _Value:
        if value.labels == labels:
            return value
        order = tuple(value.labels.index(label) for label in labels)
        args = (Ref(value.name), order)
        return self._add("aten.permute.default", args, labels, value.fake.permute(order))

    def _add(self, target: str, args: Sequence[Arg], labels: str, fake: torch.Tensor) -> _Value:
        number = len(self.nodes)
        name = f"{self.node.name}_part"
        while f"{name}{number}" in self.taken:
            name += "_"
        made = Node(f"{name}{number}", target, tuple(args), {}, tensor_spec(fake), self.node.module)
        self.nodes.append(made)
        return _Value(made.name, labels, fake)
