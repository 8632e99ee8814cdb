"""Activations that a model writes out, as the operators that they are."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kmem.algebra.editing import CannotRewrite, GraphEditor
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Arg, Node, OpGraph, Ref
from kmem.records import Contract
from kmem.rewrites import Rewrite, Rewriting

#: Coefficients by power of x.
Polynomial = dict[int, float]
#: Relative: ten digits. A constant of fewer makes another function in float64, and of fewer than
#: seven by more than fp32 rounds.
_NEAR = 1e-10
_MOST_DEGREE = 3
_PRODUCTS = ("aten.mul.", "aten.multiply.")
_QUOTIENTS = ("aten.div.", "aten.divide.", "aten.true_divide.")
_SUMS, _DIFFERENCES = ("aten.add.",), ("aten.sub.", "aten.subtract.")
#: Sources: torch.nn.functional.gelu; Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
_OF_ERF: Polynomial = {1: math.sqrt(0.5)}
_OF_TANH: Polynomial = {1: math.sqrt(2 / math.pi), 3: 0.044715 * math.sqrt(2 / math.pi)}
_SOFTPLUS = (1, 20)  # beta and threshold. Source: torch.nn.functional.softplus
_HALF: Polynomial = {1: 0.5}
_ITSELF: Polynomial = {1: 1.0}


class SpelledOutActivations(Rewrite):
    """x / 2 (1 + erf(x / sqrt 2)) is gelu, with tanh its approximation; x tanh(softplus(x)) mish.

    These are the operators' definitions, with their constants to ten digits.
    """

    def rewritings(self, graph: OpGraph, contract: Contract) -> Sequence[Rewriting]:
        """All activations of a graph at once: every block of a model has one."""
        written, made = graph, []
        for node in graph.nodes:
            found = _activation_of(graph, node)
            if found is None:
                continue
            try:
                editor = GraphEditor(written, node.name)
                called = editor.call(found.target, Ref(found.x), **found.options)
                written = editor.replaced(called)
            except CannotRewrite:
                continue
            made.append(node.name)
        if not made:
            return []
        reason = f"{len(made)} activations are written out that are operators"
        return [Rewriting(made[0], "pointwise", written, reason, flags=())]


class _Activation(NamedTuple):
    target: str
    x: str
    options: dict[str, Arg]


def _activation_of(graph: OpGraph, node: Node) -> _Activation | None:
    """The activation that a product is; None if it is none."""
    if not node.target.startswith(_PRODUCTS) or node.spec.dtype not in FLOATS:
        return None
    for outer in _factors(graph, Ref(node.name)):
        inner = _made_by(graph, outer, *_SUMS)
        curved = outer if inner is None else _beside_one(inner)
        curve = None if curved is None else _made_by(graph, curved, "aten.erf.", "aten.tanh.")
        if curve is None or not isinstance(curve.args[0], Ref):
            continue
        for x in _sources(graph, node):
            found = _read(graph, node, x, outer, curve, is_shifted=inner is not None)
            if found is not None:
                return found
    return None


def _read(
    graph: OpGraph, node: Node, x: str, outer: Ref, curve: Node, *, is_shifted: bool
) -> _Activation | None:
    """The activation of x, if a product is that: what stands beside a curve, and in it."""
    if graph.spec(x) != node.spec:
        return None
    beside = _polynomial(graph, Ref(node.name), x, left_out=outer)
    (within,) = curve.args[:1]
    if is_shifted and _is(beside, _HALF):
        if curve.target.startswith("aten.erf.") and _is(_polynomial(graph, within, x), _OF_ERF):
            return _Activation("aten.gelu.default", x, {})
        if curve.target.startswith("aten.tanh.") and _is(_polynomial(graph, within, x), _OF_TANH):
            return _Activation("aten.gelu.default", x, {"approximate": "tanh"})
    is_mish = not is_shifted and curve.target.startswith("aten.tanh.") and _is(beside, _ITSELF)
    if is_mish and _is_softplus(graph, within, x):
        return _Activation("aten.mish.default", x, {})
    return None


def _is_softplus(graph: OpGraph, value: Arg, x: str) -> bool:
    """Whether a value is log(1 + exp(x)), by one operator or several."""
    node = _made_by(graph, value, "aten.softplus.", "aten.log1p.", "aten.log.")
    if node is None or node.kwargs:
        return False
    if node.target.startswith("aten.softplus."):
        rest = node.args[1:]
        return node.args[0] == Ref(x) and (*rest, *_SOFTPLUS[len(rest) :]) == _SOFTPLUS
    (within,) = node.args
    if node.target.startswith("aten.log."):
        added = _made_by(graph, within, *_SUMS)
        within = None if added is None else _beside_one(added)
    grown = _made_by(graph, within, "aten.exp.")
    return grown is not None and grown.args[0] == Ref(x)


# --- what products and sums are made of


def _made_by(graph: OpGraph, value: Arg, *targets: str) -> Node | None:
    """The node of a value, if it is a call of one of these that leaves its arguments alone."""
    node = graph.node(value.name) if isinstance(value, Ref) else None
    if node is None or node.is_in_place or not node.target.startswith(targets):
        return None
    return node


def _beside_one(node: Node) -> Ref | None:
    """What 1 is added to."""
    if node.kwargs or len(node.args) != 2:
        return None
    first, second = node.args
    if isinstance(first, Ref) and second == 1 and not isinstance(second, Ref):
        return first
    return second if isinstance(second, Ref) and first == 1 else None


def _factors(graph: OpGraph, value: Ref) -> Iterator[Ref]:
    """The values that are multiplied into one, products among them and what these are made of."""
    node = _made_by(graph, value, *_PRODUCTS)
    for each in () if node is None else node.args:
        if isinstance(each, Ref):
            yield each
            yield from _factors(graph, each)


def _sources(graph: OpGraph, node: Node) -> list[str]:
    """What may be the activation's argument: the factors, and what they are a part of."""
    names: list[str] = []
    for factor in _factors(graph, Ref(node.name)):
        names.append(factor.name)
        scaled = _made_by(graph, factor, *_QUOTIENTS)
        if scaled is not None and isinstance(scaled.args[0], Ref):
            names.append(scaled.args[0].name)
    return [*dict.fromkeys(names)]


def _polynomial(
    graph: OpGraph, value: Arg, x: str, left_out: Ref | None = None
) -> Polynomial | None:
    """A value as a polynomial of x; None if it is none, or of a high degree.

    Args:
        left_out: a factor that counts as 1.
    """
    if isinstance(value, int | float):
        return {0: float(value)}
    if value == left_out:
        return {0: 1.0}
    if value == Ref(x):
        return {1: 1.0}
    node = _made_by(
        graph, value, *_PRODUCTS, *_QUOTIENTS, *_SUMS, *_DIFFERENCES, "aten.pow.Tensor_Scalar"
    )
    if node is None or node.kwargs or len(node.args) != 2:
        return None
    first = _polynomial(graph, node.args[0], x, left_out)
    second = _polynomial(graph, node.args[1], x, left_out)
    if first is None or second is None:
        return None
    if node.target.startswith(_PRODUCTS):
        return _product(first, second)
    if node.target.startswith((*_SUMS, *_DIFFERENCES)):
        sign = 1.0 if node.target.startswith(_SUMS) else -1.0
        powers = {*first, *second}
        return {each: first.get(each, 0.0) + sign * second.get(each, 0.0) for each in powers}
    number = second.get(0, 0.0)
    if set(second) != {0}:
        return None
    if node.target.startswith(_QUOTIENTS):
        return _product(first, {0: 1 / number}) if number else None
    is_whole = number in range(1, _MOST_DEGREE + 1)
    return _power(first, int(number)) if is_whole else None


def _product(first: Polynomial, second: Polynomial) -> Polynomial | None:
    found: Polynomial = {}
    for one, left in first.items():
        for other, right in second.items():
            found[one + other] = found.get(one + other, 0.0) + left * right
    return found if max(found) <= _MOST_DEGREE else None


def _power(base: Polynomial, exponent: int) -> Polynomial | None:
    found: Polynomial | None = {0: 1.0}
    for _ in range(exponent):
        found = None if found is None else _product(found, base)
    return found


def _is(found: Polynomial | None, wanted: Polynomial) -> bool:
    """Whether a polynomial is another, but for the digits that people leave out."""
    if found is None:
        return False
    powers = {*found, *wanted}
    return all(
        abs(found.get(each, 0.0) - wanted.get(each, 0.0)) <= _NEAR * abs(wanted.get(each, 0.0))
        for each in powers
    )


REWRITE = SpelledOutActivations()
