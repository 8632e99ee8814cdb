"""Losses with a term per element: the terms themselves, or their sum or mean over everything.

Formulas are those of ATen's operators. With reduction "none" a loss is pointwise, and part of a
chain or of what reduces it; its sum or mean reduces everything as one row.

Covered: weights of elements and of positive classes where the operator has them. Not covered:
operands that are no float tensors; in sums and means, operands of another shape than the first one.
"""

from collections.abc import Callable, Sequence
from math import pi
from typing import TypeAlias

from kmem.problem.dtypes import FLOATS
from kmem.problem.operators.arithmetic import Arithmetic, per_input, special_per_input
from kmem.problem.operators.builder import RegionBuilder
from kmem.problem.operators.expressions import (
    STABLE_EXP,
    STABLE_LOG1P,
    Expression,
    as_expression,
    maximum,
    minimum,
    using,
    variable,
    write_number,
)
from kmem.problem.operators.row import (
    Call,
    Grain,
    Operator,
    Parameters,
    Pointwise,
    Reduced,
    Reduction,
    Summed,
    parameters,
)

#: Values of torch's `reduction` argument. Source: at::Reduction.
NONE = 0
MEAN = 1
SUM = 2

#: A loss of one element: gets the call and one text for each of its tensors, in the order of its
#: parameters. A weight that is not given is None.
Term: TypeAlias = Callable[..., str | Expression]
#: Names of parameters that are tensors: those that must be given, and those that may be left out.
_OPERANDS = ("x", "other", "y")
_WEIGHTS = ("weight", "pos_weight")


def matches(call: Call, *others: str) -> bool:
    """Whether other inputs are float tensors of the first one's shape."""
    for role in others:
        if call.value(role) is None:
            return False
        spec = call.spec(role)
        if spec.shape != call.spec("x").shape or spec.dtype not in FLOATS:
            return False
    return True


# --- terms


def _kl_div(call: Call, x: str, y: str) -> str | Expression:
    """x holds log-probabilities; y log y is 0 at 0."""
    if call["log_target"]:
        return using(f"stable_exp({y}) * ({y} - {x})", STABLE_EXP)
    return f"tl.where({y} == 0.0, 0.0, {y} * tl.log({y})) - {y} * {x}"


def _cross_entropy_of_two(call: Call, x: str, y: str, weight: str | None) -> Expression:
    """torch clamps logarithms at -100."""
    near = maximum(f"tl.log({x})", "-100.0")
    far = maximum(f"stable_log1p(-({x}))", "-100.0")
    return _weighted(using(f"({y} - 1.0) * {far} - {y} * {near}", STABLE_LOG1P), weight)


def _cross_entropy_of_logits(
    call: Call, x: str, y: str, weight: str | None, pos_weight: str | None
) -> Expression:
    log_sigmoid = f"({minimum(x, '0.0')} - stable_log1p(stable_exp(-tl.abs({x}))))"
    if pos_weight is not None:
        log_sigmoid += f" * (({pos_weight} - 1.0) * {y} + 1.0)"
    text = f"(1.0 - {y}) * {x} - {log_sigmoid}"
    return _weighted(using(text, STABLE_EXP, STABLE_LOG1P), weight)


def _weighted(term: Expression, weight: str | None) -> Expression:
    return term if weight is None else using(f"({term.text}) * {weight}", *term.helpers)


def _soft_margin(call: Call, x: str, y: str) -> Expression:
    """log(1 + exp(-y x)), which is infinite where the exponential is."""
    exponential = f"stable_exp(-({x}) * {y})"
    log = f"stable_log1p({exponential})"
    text = f"tl.where({exponential} == float('inf'), float('inf'), {log})"
    return using(text, STABLE_EXP, STABLE_LOG1P)


def _hinge_embedding(call: Call, x: str, y: str) -> str:
    apart = maximum(f"{write_number(call['margin'])} - {x}", "0.0")
    return f"tl.where({y} != 1.0, {apart}, 0.0) + tl.where({y} != -1.0, {x}, 0.0)"


def _margin_ranking(call: Call, x: str, other: str, y: str) -> str:
    return maximum(f"-({y}) * ({x} - {other}) + {write_number(call['margin'])}", "0.0")


def _poisson_nll(call: Call, x: str, y: str) -> Expression:
    """With `full`, Stirling's approximation of log(y!) where y is above 1."""
    if call["log_input"]:
        term = using(f"stable_exp({x}) - {y} * {x}", STABLE_EXP)
    else:
        term = Expression(f"{x} - {y} * tl.log({x} + {write_number(call['eps'])})")
    if not call["full"]:
        return term
    stirling = f"{y} * tl.log({y}) - {y} + 0.5 * tl.log({write_number(2 * pi)} * {y})"
    return using(f"{term.text} + tl.where({y} <= 1.0, 0.0, {stirling})", *term.helpers)


def _square(call: Call, gap: str) -> str:
    return f"{gap} * {gap}"


def _size(call: Call, gap: str) -> str:
    return f"tl.abs({gap})"


def _smooth_l1(call: Call, gap: str) -> str:
    beta, size = call["beta"], f"tl.abs({gap})"
    if beta == 0:
        return size
    near = f"tl.div_rn(0.5 * {gap} * {gap}, {write_number(beta)})"
    far = f"{size} - {write_number(0.5 * beta)}"
    return f"tl.where({size} < {write_number(beta)}, {near}, {far})"


def _huber(call: Call, gap: str) -> str:
    delta, size = call["delta"], f"tl.abs({gap})"
    near = f"0.5 * {gap} * {gap}"
    far = f"({size} - {write_number(0.5 * delta)}) * {write_number(delta)}"
    return f"tl.where({size} <= {write_number(delta)}, {near}, {far})"


def _divergence_of_rows(build: RegionBuilder, call: Call) -> str | None:
    """The divergence of the softmax of a row from another's, which one pass over both rows tells.

    sum p (log p - log q) = sum p (y - x) - (log sum exp y - log sum exp x) for the rows x and y
    whose softmaxes q and p are. The statistics of x are those of its log-softmax.
    """
    graph, names = call.graph, (call.value("x"), call.value("y"))
    nodes = [graph.node(name) for name in names if name is not None and build.makes(name)]
    targets = ["aten.log_softmax.int", "aten.softmax.int"]
    if call["log_target"] or [node and node.target for node in nodes] != targets:
        return None
    source, target = (build.read(node.args[0].name) for node in nodes if node is not None)
    states = tuple(f"{call.out}_{name}" for name in ("max", "sum", "gaps"))
    top, *others = build.reduce(states, "expectation", target, source)
    total, gaps = others
    theirs = tuple(f"{variable(names[0])}_{name}" for name in ("max", "sum"))
    # of rows that are nearly equal, differences and quotients keep digits that logarithms lose
    logs = f"({top} - {theirs[0]}) + tl.log(tl.div_rn({total}, {theirs[1]}))"
    text = f"tl.div_rn({gaps}, {total}) - ({logs})"
    return build.map(f"{call.out}_row", text, top, total, gaps, *theirs)


# --- losses


def _everything(call: Call) -> Reduced:
    return tuple(range(len(call.spec("x").shape))), False


def _fits_weights(call: Call) -> bool:
    """Whether weights, where there are any, are float tensors that broadcast to the elements."""
    shape = call.spec("x").shape
    for role in _WEIGHTS:
        if call.arguments.get(role) is None:
            continue
        if call.value(role) is None or call.spec(role).dtype not in FLOATS:
            return False
        given = call.spec(role).shape
        full = shape[len(shape) - len(given) :]
        if len(given) > len(shape) or any(
            size not in (1, wanted) for size, wanted in zip(given, full, strict=True)
        ):
            return False
    return True


def _element_loss(
    name: str,
    term: Term,
    given: Parameters,
    arithmetic: Arithmetic = per_input,
    *,
    of_gap: bool = False,
    checks_values: bool = False,
    row: Callable[[RegionBuilder, Call], str | None] | None = None,
) -> Operator:
    """A loss whose terms are written by `term`.

    Args:
        of_gap: whether the term gets the difference of the two tensors, once.
        row: as `Summed` has it.
    """
    tensors = [role for role in given if role in (*_OPERANDS, *_WEIGHTS)]
    others = [role for role in tensors[1:] if role in _OPERANDS]

    def write(call: Call, *texts: str | None) -> str | Expression:
        by_role = dict(zip(given, texts, strict=True))
        operands = [by_role[role] for role in tensors]
        return term(call, f"({operands[0]} - {operands[1]})") if of_gap else term(call, *operands)

    def supports(build: RegionBuilder, call: Call) -> bool:
        is_known = call["reduction"] in (MEAN, SUM)
        return is_known and matches(call, *others) and _fits_weights(call)

    def write_term(build: RegionBuilder, call: Call) -> str:
        names = [call.value(role) for role in tensors]
        operands = [None if name is None else build.read(name) for name in names]
        read = [operand for operand in operands if operand is not None]
        if of_gap:
            operands = read = [build.map(f"{call.out}_gap", f"{read[0]} - {read[1]}", *read)]
        return build.map(f"{call.out}_term", as_expression(term(call, *operands)), *read)

    def lower(build: RegionBuilder, call: Call) -> None:
        (total,) = build.reduce((f"{call.out}_sum",), "sum", write_term(build, call))
        build.map(call.out, _result(call, total), total)

    reduction = Reduction(
        _everything,
        lower,
        supports,
        names_region=True,
        grain=Grain.ELEMENTS,
        summed=Summed(write_term, lambda call: _result(call, "total_0"), row),
    )

    def choose(call: Call) -> Pointwise | Reduction:
        if call["reduction"] != NONE:
            return reduction
        return Pointwise(lambda *texts: write(call, *texts))

    target = f"aten.{name}.default"
    return Operator(target, "loss", arithmetic, given, choose, checks_values=checks_values)


def _result(call: Call, total: str) -> str:
    """The sum or the mean of all terms."""
    mean = f"tl.div_rn({total}, {write_number(call.spec('x').numel)})"
    return mean if call["reduction"] == MEAN else total


_OF_TWO = parameters("x", "y", reduction=MEAN)
ROWS: Sequence[Operator] = (
    _element_loss("mse_loss", _square, _OF_TWO, of_gap=True),
    _element_loss("l1_loss", _size, _OF_TWO, of_gap=True),
    _element_loss(
        "smooth_l1_loss", _smooth_l1, parameters("x", "y", reduction=MEAN, beta=1.0), of_gap=True
    ),
    _element_loss(
        "huber_loss", _huber, parameters("x", "y", reduction=MEAN, delta=1.0), of_gap=True
    ),
    _element_loss(
        "kl_div",
        _kl_div,
        parameters("x", "y", reduction=MEAN, log_target=False),
        special_per_input,
        row=_divergence_of_rows,
    ),
    _element_loss(
        "binary_cross_entropy",
        _cross_entropy_of_two,
        parameters("x", "y", weight=None, reduction=MEAN),
        special_per_input,
        checks_values=True,
    ),
    _element_loss(
        "binary_cross_entropy_with_logits",
        _cross_entropy_of_logits,
        parameters("x", "y", weight=None, pos_weight=None, reduction=MEAN),
    ),
    _element_loss("soft_margin_loss", _soft_margin, _OF_TWO, special_per_input),
    _element_loss(
        "hinge_embedding_loss",
        _hinge_embedding,
        parameters("x", "y", margin=1.0, reduction=MEAN),
    ),
    _element_loss(
        "margin_ranking_loss",
        _margin_ranking,
        parameters("x", "other", "y", margin=0.0, reduction=MEAN),
    ),
    _element_loss(
        "poisson_nll_loss",
        _poisson_nll,
        parameters("x", "y", "log_input", "full", "eps", "reduction"),
        special_per_input,
    ),
)
