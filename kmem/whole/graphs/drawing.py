"""Random numbers in a forward: which operators draw them, and whether they can be drawn again.

A node that draws is no part of a piece: the composed graph calls it as the model does, in the same
order, so that both draw the same numbers from the same seed. The answer in float64 is computed with
the very numbers that were drawn. That is possible where they depend on nothing but sizes, as those
of `rand`, `randn` and dropout do.
"""

from collections.abc import Iterable, Mapping

import torch

from kmem.problem.graph import Node, OpGraph

DROPOUT = "aten.dropout.default"
#: Operators that are marked as random for one of their arguments: its place and name.
_DRAWN_BY: Mapping[str, tuple[tuple[int, str], ...]] = {
    DROPOUT: ((1, "p"), (2, "train")),
    "aten.alpha_dropout.default": ((1, "p"), (2, "train")),
    "aten.feature_dropout.default": ((1, "p"), (2, "train")),
    "aten.feature_alpha_dropout.default": ((1, "p"), (2, "train")),
    "aten.native_dropout.default": ((1, "p"), (2, "train")),
    "aten.scaled_dot_product_attention.default": ((4, "dropout_p"),),
    "aten.rrelu.default": ((3, "training"),),
    **{
        f"aten.{name}.input": ((5, "dropout"), (6, "train"))
        for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    },
}
#: Random operators that read a tensor for its shape alone.
_OF_SHAPES = (
    "rand_like",
    "randn_like",
    "randint_like",
    "bernoulli.p",
    "uniform.",
    "normal.float",
    "normal_functional",
    "exponential.",
    "random.",
)


def is_random(node: Node) -> bool:
    """Whether a node draws from torch's generators."""
    parts = node.target.removeprefix("aten.").split(".")
    operator = getattr(getattr(torch.ops.aten, parts[0], None), parts[-1], None)
    if torch.Tag.nondeterministic_seeded not in getattr(operator, "tags", ()):
        return False
    return all(_argument(node, *each) for each in _DRAWN_BY.get(node.target, ()))


def _argument(node: Node, place: int, name: str) -> object:
    """Falsy where it is left out: nothing is dropped by default."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name)


def undrawable(graphs: Iterable[OpGraph]) -> str:
    """The random operators whose numbers depend on values or on how they are stored; or ""."""
    found = {
        node.target.split(".")[1]
        for graph in graphs
        for node in graph.nodes
        if is_random(node) and not (node.target == DROPOUT or _is_of_shapes(node))
    }
    return ", ".join(sorted(found))


def _is_of_shapes(node: Node) -> bool:
    reads = any(True for _ in node.refs())
    return not reads or node.target.removeprefix("aten.").startswith(_OF_SHAPES)


def numbers_of(node: Node, values: Mapping[str, object], made: object) -> object:
    """What is to be kept of a node that has drawn: its result, or what dropout let through.

    Args:
        values: by name; what the node has read among them.
    """
    if node.target != DROPOUT:
        return made
    given = _given(node, values)
    # of a zero nobody can tell, and it does not matter
    return (made != 0) | (given == 0)


def drawn_again(node: Node, values: Mapping[str, object], numbers: object) -> object:
    """What a node makes of other values with the numbers of another time (see `numbers_of`)."""
    if node.target != DROPOUT:
        is_wide = isinstance(numbers, torch.Tensor) and numbers.is_floating_point()
        return numbers.double() if is_wide else numbers
    return _given(node, values) / (1 - float(node.args[1])) * numbers


def _given(node: Node, values: Mapping[str, object]) -> torch.Tensor:
    return values[node.refs()[0]]
