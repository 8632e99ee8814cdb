"""What nothing reads goes, what gives back its input, and what the next operator takes out."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from kmem.algebra.editing import CannotRewrite, GraphEditor
from kmem.algebra.linear import LinearMap, ProductMap, read_linear
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.table import find_operator
from kmem.records import Contract, TensorSpec
from kmem.rewrites import ALGEBRAIC, Rewrite, Rewriting

#: Reductions that give back the only element that they reduce: a dim, or several, then keepdim.
_OF_ONE = {
    "aten.mean.dim": "mean",
    "aten.sum.dim_IntList": "sum",
    "aten.amax.default": "max",
    "aten.amin.default": "min",
    "aten.logsumexp.default": "logsumexp",
}
#: Constants and masks that the table of operators has no row for.
_MAKERS = (
    "aten.ones.default",
    "aten.zeros.default",
    "aten.full.default",
    "aten.zeros_like.default",
    "aten.ones_like.default",
    "aten.arange.default",
    "aten.tril.default",
    "aten.triu.default",
)
_NEUTRAL = {"aten.mul.Tensor": 1, "aten.div.Tensor": 1, "aten.sub.Tensor": 0}
_IDEMPOTENT = ("aten.relu.default", "aten.abs.default", "aten.relu6.default")

#: What takes a place away: an operator of the vocabulary, the graph after it, why, the flags.
Change = tuple[str, Callable[[], OpGraph], str, tuple[str, ...]]


class RemoveDeadWork(Rewrite):
    """What nothing reads, f(x) = x, and norms of x + b where b is the same for all they centre."""

    def rewritings(self, graph: OpGraph, contract: Contract) -> Sequence[Rewriting]:
        """Every reduction of one element, and every bias that the next norm takes out.

        What nothing reads goes all at once, and so does what changes nothing at any sizes: one by
        one, a network's dozens of dropouts would be looked at again behind each that went.
        """
        found = [*_without_unread(graph), *_without_unchanged(graph)]
        for node in graph.nodes:
            for word, make, reason, flags in _changes(graph, node):
                try:
                    found.append(Rewriting(node.name, word, make(), reason, flags))
                except CannotRewrite:
                    continue
                break
        return found


def _changes(graph: OpGraph, node: Node) -> Iterator[Change]:
    source = _operand(graph, node)
    if source is None:
        return
    if (word := _of_one(graph, node, source)) is not None:

        def drop() -> OpGraph:
            editor = GraphEditor(graph, node.name)
            if editor.spec(source).shape == node.spec.shape:
                return editor.forgotten(source)
            return editor.replaced(editor.shaped(source, node.spec.shape))

        yield word, drop, f"{node.name} changes nothing", ()
    linear = read_linear(graph, source.name) if _centres(node) else None
    if linear is not None and linear.bias is not None and graph.has_one_user(source.name):
        if len(linear.node.spec.shape) > 2 and isinstance(linear, ProductMap):
            return  # its outputs are no channels

        def unbias() -> OpGraph:
            return _without_bias(graph, node, linear)

        word = "batch_norm" if "batch" in node.target else "instance_norm"
        reason = f"{node.name} takes out again the bias that {linear.node.name} adds"
        yield word, unbias, reason, (ALGEBRAIC,)


def _without_unread(graph: OpGraph) -> list[Rewriting]:
    """The graph without nodes that nothing reads, if there is one that computes."""
    ends = [node.name for node in graph.nodes if _must_stay(node)]
    front, read = [*graph.outputs, *ends], set()
    while front:
        name = front.pop()
        node = graph.node(name)
        if node is not None and name not in read:
            read.add(name)
            front += node.refs()
    unread = [(node, find_operator(node.target)) for node in graph.nodes if node.name not in read]
    words = [(node, found.name) for node, found in unread if found and not found.is_view]
    if not words:
        return []
    last, word = words[-1]
    kept = tuple(node for node in graph.nodes if node.name in read)
    reason = f"nothing reads {last.name}"
    return [Rewriting(last.name, word, replace(graph, nodes=kept), reason, ())]


def _must_stay(node: Node) -> bool:
    """Whether a node does something beside its result: changes a value, draws, raises."""
    is_known = find_operator(node.target) is not None or node.target in _MAKERS
    is_read = node.target == "getitem" or is_known
    return node.is_in_place or not is_read or "dropout" in node.target


def _operand(graph: OpGraph, node: Node) -> Ref | None:
    """The first operand of a node; None unless that and the result are single tensors."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Ref) or not isinstance(node.output, TensorSpec):
        return None
    maker = graph.node(source.name)
    return source if maker is None or isinstance(maker.output, TensorSpec) else None


def _of_one(graph: OpGraph, node: Node, source: Ref) -> str | None:
    """The word for a reduction of a single element, which is that element, else None."""
    before = graph.spec(source.name)
    if node.target not in _OF_ONE or node.kwargs or before.dtype != node.spec.dtype:
        return None
    dims = node.args[1] if len(node.args) > 1 else None
    listed = (dims,) if isinstance(dims, int) else dims
    if isinstance(listed, tuple) and listed and all(before.shape[dim] == 1 for dim in listed):
        return _OF_ONE[node.target]
    return None


def _without_unchanged(graph: OpGraph) -> list[Rewriting]:
    """The graph without operators whose results have their first operands' elements, if any."""
    unchanged = [node for node in graph.nodes if _is_unchanged(graph, node)]
    inner = {node.name: node.args[0] for node in unchanged if node.name not in graph.outputs}
    left = graph
    if inner:
        # one of them may be needed, where what reads it takes no other strides: then each alone
        with suppress(CannotRewrite):
            left = GraphEditor(graph, next(iter(inner))).forgotten_all(inner)
    gone = [name for name in inner if left.node(name) is None]
    for node in unchanged:
        now = left.node(node.name)
        if now is None:
            continue
        try:
            left = GraphEditor(left, now.name).forgotten(now.args[0])
        except CannotRewrite:
            continue
        gone.append(now.name)
    if not gone:
        return []
    first = f"{gone[0]} changes nothing"
    reason = first if len(gone) == 1 else f"{first}, nor do {len(gone) - 1} others"
    return [Rewriting(gone[0], "pointwise", left, reason, ())]


def _is_unchanged(graph: OpGraph, node: Node) -> bool:
    """Whether a result has the elements of the first operand, at these sizes and all others."""
    source = _operand(graph, node)
    if source is None:
        return False
    if node.target == "aten.dropout.default":
        return not node.args[2] or node.args[1] == 0
    if node.target in _NEUTRAL and not node.kwargs and graph.spec(source.name) == node.spec:
        operand = node.args[1]
        is_number = isinstance(operand, int | float) and not isinstance(operand, bool)
        return is_number and operand == _NEUTRAL[node.target]
    maker = graph.node(source.name)
    return node.target in _IDEMPOTENT and maker is not None and maker.target == node.target


# --- biases that a norm takes out


def _centres(node: Node) -> bool:
    """Whether a norm subtracts the mean of each channel of what it is given."""
    if node.target not in ("aten.batch_norm.default", "aten.instance_norm.default"):
        return False
    return bool(node.args[5]) and isinstance(node.args[6], float)


def _without_bias(graph: OpGraph, norm: Node, linear: LinearMap) -> OpGraph:
    """The norm of the map without its bias, which still counts in the running mean."""
    editor = GraphEditor(graph, norm.name)
    value = linear.of(editor, linear.source, linear.weight, None)
    running_mean = norm.args[3]
    if running_mean is not None:
        share = editor.call("aten.mul.Tensor", linear.bias, norm.args[6])
        editor.after("aten.add_.Tensor", running_mean, share)
    return editor.replaced(editor.call(norm.target, value, *norm.args[1:]))


REWRITE = RemoveDeadWork()
