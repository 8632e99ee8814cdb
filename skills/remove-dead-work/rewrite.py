"""Operators go whose result is their input, or what the next operator takes out again."""

from collections.abc import Callable, Iterator, Sequence

from kmem.algebra.editing import CannotRewrite, GraphEditor
from kmem.algebra.linear import LinearMap, ProductMap, read_linear
from kmem.problem.graph import Node, OpGraph, Ref
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
_NEUTRAL = {"aten.mul.Tensor": 1, "aten.div.Tensor": 1, "aten.sub.Tensor": 0}
_IDEMPOTENT = ("aten.relu.default", "aten.abs.default", "aten.relu6.default")

#: What takes a place away: an operator of the vocabulary, the graph after it, why, the flags.
Change = tuple[str, Callable[[], OpGraph], str, tuple[str, ...]]


class RemoveDeadWork(Rewrite):
    """f(x) = x, and norms of x + b where b is the same for all that they centre."""

    def rewritings(self, graph: OpGraph, contract: Contract) -> Sequence[Rewriting]:
        """Every operator that changes nothing, and every bias that the next norm takes out."""
        found = []
        for node in graph.nodes:
            for word, make, reason, flags in _changes(graph, node):
                try:
                    found.append(Rewriting(node.name, word, make(), reason, flags))
                except CannotRewrite:
                    continue
                break
        return found


def _changes(graph: OpGraph, node: Node) -> Iterator[Change]:
    if not isinstance(node.output, TensorSpec) or not node.args:
        return
    source = node.args[0]
    if not isinstance(source, Ref) or _is_several(graph, source):
        return
    if (word := _unchanged(graph, node, source)) is not None:

        def drop() -> OpGraph:
            return GraphEditor(graph, node.name).forgotten(source)

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


def _is_several(graph: OpGraph, source: Ref) -> bool:
    node = graph.node(source.name)
    return node is not None and not isinstance(node.output, TensorSpec)


def _unchanged(graph: OpGraph, node: Node, source: Ref) -> str | None:
    """The word for an operator whose result is its first operand; None for any other."""
    before = graph.spec(source.name)
    if node.target == "aten.dropout.default":
        is_off = not node.args[2] or node.args[1] == 0
        return "pointwise" if is_off else None
    if node.target in _OF_ONE and not node.kwargs and before == node.spec:
        dims = node.args[1] if len(node.args) > 1 else None
        listed = (dims,) if isinstance(dims, int) else dims
        if isinstance(listed, tuple) and listed and all(before.shape[dim] == 1 for dim in listed):
            return _OF_ONE[node.target]
    if node.target in _NEUTRAL and not node.kwargs and before == node.spec:
        operand = node.args[1]
        is_number = isinstance(operand, int | float) and not isinstance(operand, bool)
        return "pointwise" if is_number and operand == _NEUTRAL[node.target] else None
    maker = graph.node(source.name)
    if node.target in _IDEMPOTENT and maker is not None and maker.target == node.target:
        return "pointwise"
    return None


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
