"""Short depthwise convolutions along channels-last sequences, as sums of shifted slices."""

from collections.abc import Sequence
from typing import NamedTuple

from kmem.algebra.editing import CannotRewrite, GraphEditor
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.row import Call, Layout
from kmem.problem.operators.table import find_operator, lowering_of
from kmem.problem.sizes import per_axis, same_padding
from kmem.records import Contract
from kmem.rewrites import Rewrite, Rewriting

_TARGETS = ("aten.conv1d.default", "aten.conv1d.padding")
#: More reads of an element than this leave the L1 cache; models have three or four.
_MOST_TAPS = 8


class ShortFilterAsShifts(Rewrite):
    """conv1d(x, w, groups=channels) is the sum of x, shifted by each tap, times that tap.

    That is the operator's definition; zeros of the padding are multiplied there, too.
    """

    def rewritings(self, graph: OpGraph, contract: Contract) -> Sequence[Rewriting]:
        """All such convolutions of a graph at once: every block of a model has one."""
        written, made = graph, []
        for node in graph.nodes:
            if _is_short_filter(graph, node):
                try:
                    written = _as_shifts(written, node.name)
                except CannotRewrite:  # an output has to lie as the convolution's result does
                    continue
                made.append(node.name)
        if not made:
            return []
        reason = f"{len(made)} short filters along channels-last sequences are shifted sums"
        return [Rewriting(made[0], "depthwise_conv", written, reason, flags=())]


def _is_short_filter(graph: OpGraph, node: Node) -> bool:
    """Whether a node filters each channel of a sequence by few taps, channels lying innermost."""
    if node.target not in _TARGETS:
        return False
    given = find_operator(node.target).call(graph, node)
    x, weight = graph.spec(_sequence(graph, given).name), given.spec("weight")
    channels = x.shape[1] if len(x.shape) == 3 else 0
    return (
        channels > 1
        and given["groups"] == channels == weight.shape[0]
        and weight.shape[2] <= _MOST_TAPS
        and per_axis(given["stride"], 1, 1) == (1,)
        and x.stride[1] == 1
        and x.dtype in FLOATS
        and weight.dtype == x.dtype == node.spec.dtype
        and node.spec.numel > 0
    )


def _as_shifts(graph: OpGraph, name: str) -> OpGraph:
    """The graph in which a filter is a sum over a padded sequence, turned where it was."""
    editor = GraphEditor(graph, name)
    node = graph.node(name)
    given = find_operator(node.target).call(graph, node)
    taps = given.spec("weight").shape[2]
    (dilation,) = per_axis(given["dilation"], 1, 1)
    length, reach = node.spec.shape[2], dilation * (taps - 1)
    source = _sequence(graph, given)
    before = source.before + _padding(given["padding"], taps, dilation)
    behind = length + reach - graph.spec(source.name).shape[2] - before

    sequence = _turned(editor, Ref(source.name))
    padded = sequence
    if before or behind:
        padded = editor.call("aten.constant_pad_nd.default", sequence, (0, 0, before, behind), 0.0)
    weight = editor.call("aten.select.int", Ref(given.value("weight")), 1, 0)
    total = None
    for tap in range(taps):
        start = tap * dilation
        shifted = editor.call("aten.slice.Tensor", padded, 1, start, start + length)
        factor = editor.call("aten.select.int", weight, 1, tap)
        term = editor.call("aten.mul.Tensor", shifted, factor)
        total = term if total is None else editor.call("aten.add.Tensor", total, term)
    if given.value("bias") is not None:
        total = editor.call("aten.add.Tensor", total, Ref(given.value("bias")))
    return editor.replaced(editor.call("aten.transpose.int", total, 1, 2))


class _Sequence(NamedTuple):
    """A value that is filtered, and how many zeros the forward itself puts in front of it."""

    name: str
    before: int = 0


def _sequence(graph: OpGraph, given: Call) -> _Sequence:
    name = given.value("input")
    node = graph.node(name)
    if node is None or lowering_of(graph, node) is not Layout.PAD:
        return _Sequence(name)
    padding = find_operator(node.target).call(graph, node)
    if len(padding["pad"]) != 2 or padding["value"]:
        return _Sequence(name)
    return _Sequence(padding.value("x"), padding["pad"][0])


def _padding(padding: object, taps: int, dilation: int) -> int:
    """How many zeros stand in front."""
    if isinstance(padding, str):
        return same_padding((taps,), (dilation,))[0] if padding == "same" else 0
    return per_axis(padding, 1)[0]


def _turned(editor: GraphEditor, value: Ref) -> Ref:
    """A sequence with its channels last; what was turned for the convolution is as it was."""
    made = editor.graph.node(value.name)
    is_turn = made is not None and made.target == "aten.transpose.int"
    if is_turn and {dim % 3 for dim in made.args[1:3]} == {1, 2}:
        return made.args[0]
    return editor.call("aten.transpose.int", value, 1, 2)


REWRITE = ShortFilterAsShifts()
