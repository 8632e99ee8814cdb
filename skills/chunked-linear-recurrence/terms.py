"""Sums of products in a graph, whatever operators spell them, and views of one value.

`einsum`, `mul` and views between them are read as factors with a label for each dimension: two
spellings of one sum have the same factors.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from kmem.problem.graph import Node, OpGraph, Ref

_EINSUM, _MUL = "aten.einsum.default", "aten.mul.Tensor"
_VIEWS = {
    "aten.unsqueeze.default",
    "aten.permute.default",
    "aten.transpose.int",
    "aten.select.int",
    "aten.slice.Tensor",
}
_SPREAD = ("aten.unsqueeze.default", "aten.permute.default", "aten.transpose.int")


@dataclass(frozen=True, slots=True)
class View:
    """Dimensions of one value in another order, with ones between them and some places fixed.

    `dims`: for each dimension of the view that of the value, None for one of size one that was put
    in. `fixed`: by dimension of the value the only place that is seen.
    """

    base: str
    dims: tuple[int | None, ...]
    fixed: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Factor:
    """A value with a label for each of its dimensions; None where its size of one is spread."""

    name: str
    labels: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum of products: a label for each dimension of the result, and the factors."""

    labels: tuple[int, ...]
    factors: tuple[Factor, ...]


def read_view(graph: OpGraph, name: str) -> View:
    """What a value is a view of; of itself if of nothing else."""
    node = graph.node(name)
    own = View(name, tuple(range(len(graph.spec(name).shape))))
    if node is None or node.target not in _VIEWS or not isinstance(node.args[0], Ref):
        return own
    seen = read_view(graph, node.args[0].name)
    dims = list(seen.dims)
    rank = len(dims)
    if node.target == "aten.unsqueeze.default":
        dims.insert(node.args[1] % (rank + 1), None)
        return View(seen.base, tuple(dims), seen.fixed)
    if node.target in _SPREAD:
        return View(seen.base, tuple(dims[each] for each in _order(node, rank)), seen.fixed)
    dim = node.args[1] % rank
    size = graph.spec(node.args[0].name).shape[dim]
    if node.target == "aten.slice.Tensor":
        start = node.args[2] if len(node.args) > 2 and node.args[2] is not None else 0
        length = node.spec.shape[dim]
        if length not in (1, size):
            return own
        if length == size:
            return seen
        place, left = max(start + size if start < 0 else start, 0), [None]
    else:
        place, left = node.args[2] % size, []
    fixed = dict(seen.fixed) if dims[dim] is None else {**seen.fixed, dims[dim]: place}
    return View(seen.base, (*dims[:dim], *left, *dims[dim + 1 :]), fixed)


def _order(node: Node, rank: int) -> list[int]:
    """The dimensions of what a node turns, in the order of its result."""
    if node.target == "aten.permute.default":
        return [each % rank for each in node.args[1]]
    order = list(range(rank))
    one, other = (each % rank for each in node.args[1:3])
    order[one], order[other] = other, one
    return order


def read_sum(graph: OpGraph, name: str) -> Sum:
    """The sum of products that a value is; one factor if it is none.

    What is read elsewhere too is a factor as it is: it is there in memory anyway.
    """
    numbers = count(len(graph.spec(name).shape))
    labels = tuple(range(len(graph.spec(name).shape)))
    return Sum(labels, tuple(_factors(graph, name, labels, numbers, is_root=True)))


def _factors(
    graph: OpGraph,
    name: str,
    labels: Sequence[int | None],
    numbers: Iterator[int],
    *,
    is_root: bool = False,
) -> Iterator[Factor]:
    node = graph.node(name)
    parts = None
    if node is not None and (is_root or graph.has_one_user(name) or node.target in _SPREAD):
        parts = _operands(graph, node, labels, numbers)
    if parts is None:
        yield Factor(name, tuple(labels))
        return
    for operand, own in parts:
        yield from _factors(graph, operand, own, numbers)


def _operands(
    graph: OpGraph, node: Node, labels: Sequence[int | None], numbers: Iterator[int]
) -> list[tuple[str, Sequence[int | None]]] | None:
    """The operands of a product with their labels; None for what is no product."""
    if node.target == _EINSUM:
        return _of_einsum(node, labels, numbers)
    if node.target == _MUL and all(isinstance(each, Ref) for each in node.args):
        return [_spread(graph, each.name, node.spec.shape, labels) for each in node.args]
    if node.target not in _SPREAD or not isinstance(node.args[0], Ref):
        return None
    rank = len(graph.spec(node.args[0].name).shape)
    if node.target == "aten.unsqueeze.default":
        place = node.args[1] % (rank + 1)
        return [(node.args[0].name, [*labels[:place], *labels[place + 1 :]])]
    own: list[int | None] = [None] * rank
    for label, dim in zip(labels, _order(node, rank), strict=True):
        own[dim] = label
    return [(node.args[0].name, own)]


def _of_einsum(
    node: Node, labels: Sequence[int | None], numbers: Iterator[int]
) -> list[tuple[str, Sequence[int | None]]] | None:
    equation, operands = node.args[:2]
    # a path says in which order the library goes about it: opt_einsum, where it is installed
    is_plain = len(node.args) == 2 and node.kwargs.keys() <= {"path"}
    if not is_plain or "." in equation or equation.count("->") != 1:
        return None
    terms, output = equation.replace(" ", "").split("->")
    words = terms.split(",")
    if any(len(set(word)) != len(word) for word in (*words, output)):
        return None  # a diagonal
    known = dict(zip(output, labels, strict=True))
    for letter in dict.fromkeys("".join(words)):
        if letter not in known:
            known[letter] = next(numbers)
    return [
        (each.name, [known[letter] for letter in word])
        for each, word in zip(operands, words, strict=True)
    ]


def _spread(
    graph: OpGraph, name: str, shape: Sequence[int], labels: Sequence[int | None]
) -> tuple[str, Sequence[int | None]]:
    """An operand of a pointwise product, and which labels its dimensions have."""
    own = graph.spec(name).shape
    missing = len(shape) - len(own)
    kept = zip(own, shape[missing:], labels[missing:], strict=True)
    return name, [label if size == full else None for size, full, label in kept]
