"""What of a forward is saved for its backward, and what the backward computes again.

A cut through the forward's operators: what lies behind it, toward the backward, is computed again
from what lies on it, which is saved. It is the cut for which memory moves the fewest bytes. Saving
costs a read and, of what would not lie in memory anyway, a write. Light operators are fused, so
that computing again costs nothing, but for what products and convolutions of the backward read,
which is written and read. What is heavy itself (products, convolutions, sorting) is never computed
again.

Source: the min-cut of torch._functorch.partitioners, with prices of its own.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import networkx
import torch
from torch.fx import Node as FxNode

from kmem.problem.tracing.calls import Untraceable

#: What names of operators have in them that are not run twice.
_HEAVY = (
    "mm",
    "bmm",
    "dot",
    "mv",
    "conv",
    "attention",
    "lstm",
    "gru",
    "rnn",
    "fft",
    "sort",
    "topk",
)
#: Ends of the network that is cut.
_START, _END = "start", "end"
#: How often memory moves what is put into it for one reader.
WRITTEN_AND_READ = 2


def is_heavy(node: FxNode) -> bool:
    """Whether a traced call is one whose operands lie in memory: a product, a convolution."""
    operator = node.target
    if not isinstance(operator, torch._ops.OpOverload):  # getitem, or no call
        return False
    name = operator._schema.name.removeprefix("aten::")
    return any(name.removeprefix("add").startswith(each) or f"_{each}" in name for each in _HEAVY)


def operands(nodes: Iterable[FxNode]) -> frozenset[FxNode]:
    """What heavy operators among traced nodes read, what they read a view of included."""
    found: set[FxNode] = set()
    todo = [each for node in nodes if is_heavy(node) for each in node.all_input_nodes]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.all_input_nodes[:1] if is_view(node) else ()
    return frozenset(found)


def choose_saved(
    needed: Iterable[FxNode],
    price_of: Callable[[FxNode], float | None],
    stored: Collection[FxNode],
) -> frozenset[FxNode]:
    """The values of a forward that are saved.

    Args:
        needed: what a backward reads.
        price_of: the bytes that memory moves for saving a value; None for one that cannot be.
        stored: what lies in memory for the backward even if it is computed again.

    Raises Untraceable: if a value can be neither saved nor computed again.
    """
    network = networkx.DiGraph()
    todo = list(needed)
    for node in todo:
        network.add_edge((node, "out"), _END)
    seen: set[FxNode] = set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        _add(network, (node, "in"), (node, "out"), price_of(node))
        _add(network, _START, (node, "in"), _price_again(node, node in stored))
        for source in node.all_input_nodes:
            network.add_edge((source, "out"), (node, "in"))
            todo.append(source)
    if not seen:
        return frozenset()
    try:
        after = networkx.minimum_cut(network, _START, _END)[1][1]
    except networkx.NetworkXUnbounded as ex:
        raise Untraceable("its backward needs a value that cannot be saved") from ex
    return frozenset(node for node in seen if (node, "out") in after and (node, "in") not in after)


def _add(network: Any, one: object, other: object, price: float | None) -> None:
    """An edge that is cut at a price, or never."""
    network.add_edge(one, other, **({} if price is None else {"capacity": price}))


def _price_again(node: FxNode, is_stored: bool) -> float | None:
    """The bytes that memory moves for computing a value again; None if it never is.

    One for what lies in no memory, so that of equal cuts the one is taken that computes least.
    """
    if node.op == "placeholder" or not _is_computed_again(node):
        return None
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or is_view(node):
        return 0.0
    return float(WRITTEN_AND_READ * value.nbytes) if is_stored else 1.0


def is_view(node: FxNode) -> bool:
    """Whether what a traced call makes lies in the memory of what it reads."""
    operator = node.target
    return isinstance(operator, torch._ops.OpOverload) and any(
        each.alias_info is not None for each in operator._schema.returns
    )


def _is_computed_again(node: FxNode) -> bool:
    """Whether a backward may run an operator once more: it is light, and draws nothing."""
    operator = node.target
    is_random = isinstance(operator, torch._ops.OpOverload) and (
        torch.Tag.nondeterministic_seeded in operator.tags
    )
    return not is_heavy(node) and not is_random


def behind(needed: Iterable[FxNode], saved: Collection[FxNode]) -> frozenset[FxNode]:
    """What is computed again from what is saved to have what is needed."""
    found: set[FxNode] = set()
    todo = list(needed)
    while todo:
        node = todo.pop()
        if node not in found and node not in saved:
            found.add(node)
            todo += node.all_input_nodes
    return frozenset(found)
