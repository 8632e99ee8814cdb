"""Activations that a model writes out, as the operators that they are."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from kmem.algebra.editing import CannotRewrite, GraphEditor, changes_state
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Arg, Node, OpGraph, Ref
from kmem.records import Contract
from kmem.rewrites import Rewrite, Rewriting

#: Coefficients by the powers of x and of the curve beside it.
Polynomial = dict[tuple[int, int], float]
#: Relative: ten digits. A constant of fewer makes another function in float64, and of fewer than
#: seven by more than fp32 rounds.
_NEAR = 1e-10
_MOST_DEGREE = 3
_PRODUCTS = ("aten.mul.", "aten.multiply.")
_QUOTIENTS = ("aten.div.", "aten.divide.", "aten.true_divide.")
_SUMS, _DIFFERENCES = ("aten.add.",), ("aten.sub.", "aten.subtract.")
#: Sources: torch.nn.functional.gelu; Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
_OF_ERF: Polynomial = {(1, 0): math.sqrt(0.5)}
_OF_TANH: Polynomial = {
    (1, 0): math.sqrt(2 / math.pi),
    (3, 0): 0.044715 * math.sqrt(2 / math.pi),
}
_HALF: Polynomial = {(1, 1): 0.5}
_ITSELF: Polynomial = {(1, 1): 1.0}
_SOFTPLUS = (1, 20)  # beta and threshold. Source: torch.nn.functional.softplus
_CURVES = ("aten.erf.", "aten.tanh.")


class SpelledOutActivations(Rewrite):
    """x / 2 (1 + erf(x / sqrt 2)) is gelu, with tanh its approximation; x tanh(softplus(x)) mish.

    These are the operators' definitions, with their constants to ten digits.
    """

    def rewritings(self, graph: OpGraph, contract: Contract) -> Sequence[Rewriting]:
        """All activations of a graph at once: every block of a model has one."""
        written, made = graph, []
        has_curves = any(node.target.startswith(_CURVES) for node in graph.nodes)
        for node in graph.nodes if has_curves else ():
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
        curve = None if curved is None else _made_by(graph, curved, *_CURVES)
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
    if _is_written_between(graph, node, x):
        return None
    reading = _Polynomials(graph, x, outer)
    beside, within = reading.of(Ref(node.name)), curve.args[0]
    if is_shifted and _is(beside, _HALF):
        if curve.target.startswith("aten.erf.") and _is(reading.of(within), _OF_ERF):
            return _Activation("aten.gelu.default", x, {})
        if curve.target.startswith("aten.tanh.") and _is(reading.of(within), _OF_TANH):
            return _Activation("aten.gelu.default", x, {"approximate": "tanh"})
    is_mish = not is_shifted and curve.target.startswith("aten.tanh.") and _is(beside, _ITSELF)
    if is_mish and _is_softplus(graph, within, x):
        return _Activation("aten.mish.default", x, {})
    return None


def _is_written_between(graph: OpGraph, node: Node, x: str) -> bool:
    """Whether anything is changed in place from where x is first read for a product until that."""
    waiting, seen = [*node.refs()], {node.name}
    while waiting:
        name = waiting.pop()
        if name == x or name in seen or graph.node(name) is None:
            continue
        seen.add(name)
        waiting += graph.node(name).refs()
    first, last = min(map(graph.place, seen)), graph.place(node.name)
    return any(changes_state(each) for each in graph.nodes[first:last])


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


def _factors(graph: OpGraph, value: Ref) -> list[Ref]:
    """The values that are multiplied into one, products among them and what these are made of."""
    found: dict[Ref, None] = {}
    waiting = [value]
    while waiting:
        node = _made_by(graph, waiting.pop(), *_PRODUCTS)
        factors = () if node is None else node.args
        fresh = [each for each in factors if isinstance(each, Ref) and each not in found]
        found |= dict.fromkeys(fresh)
        waiting += fresh
    return [*found]


def _sources(graph: OpGraph, node: Node) -> list[str]:
    """What may be the activation's argument: the factors, and what they are a part of."""
    names: list[str] = []
    for factor in _factors(graph, Ref(node.name)):
        names.append(factor.name)
        scaled = _made_by(graph, factor, *_QUOTIENTS)
        if scaled is not None and isinstance(scaled.args[0], Ref):
            names.append(scaled.args[0].name)
    return [*dict.fromkeys(names)]


class _Polynomials:
    """Values as polynomials of x and of a curve that stands beside it, each read once."""

    def __init__(self, graph: OpGraph, x: str, curve: Ref) -> None:
        self.graph = graph
        self.known: dict[Ref, Polynomial | None] = {Ref(x): {(1, 0): 1.0}, curve: {(0, 1): 1.0}}

    def of(self, value: Arg) -> Polynomial | None:
        """A value as a polynomial; None if it is none, or of a high degree."""
        if isinstance(value, int | float):
            return {(0, 0): float(value)}
        if not isinstance(value, Ref):
            return None
        if value not in self.known:
            self.known[value] = self._read(value)
        return self.known[value]

    def _read(self, value: Ref) -> Polynomial | None:
        kinds = (*_PRODUCTS, *_QUOTIENTS, *_SUMS, *_DIFFERENCES, "aten.pow.Tensor_Scalar")
        node = _made_by(self.graph, value, *kinds)
        if node is None or node.kwargs or len(node.args) != 2:
            return None
        first, second = map(self.of, node.args)
        if first is None or second is None:
            return None
        if node.target.startswith(_PRODUCTS):
            return _product(first, second)
        if node.target.startswith((*_SUMS, *_DIFFERENCES)):
            sign = 1.0 if node.target.startswith(_SUMS) else -1.0
            powers = {*first, *second}
            return {each: first.get(each, 0.0) + sign * second.get(each, 0.0) for each in powers}
        number = second.get((0, 0), 0.0)
        if set(second) != {(0, 0)}:
            return None
        if node.target.startswith(_QUOTIENTS):
            return _product(first, {(0, 0): 1 / number}) if number else None
        is_whole = number in range(1, _MOST_DEGREE + 1)
        return _power(first, int(number)) if is_whole else None


def _product(first: Polynomial, second: Polynomial) -> Polynomial | None:
    found: Polynomial = {}
    for (one, curved), left in first.items():
        for (other, bent), right in second.items():
            powers = one + other, curved + bent
            found[powers] = found.get(powers, 0.0) + left * right
    return found if max(map(sum, found)) <= _MOST_DEGREE else None


def _power(base: Polynomial, exponent: int) -> Polynomial | None:
    found: Polynomial | None = {(0, 0): 1.0}
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
