"""Pointwise operators: one Triton expression per element, in fp32.

Covered: float32, float16, bfloat16 and bool tensors, Python scalars. Not covered: integer
arithmetic, float64, complex, random operators.
"""

from collections.abc import Callable, Sequence

from kmem.problem.graph import Node
from kmem.problem.operators.arithmetic import (
    Arithmetic,
    Work,
    no_work,
    output_elements,
    per_result,
    special_per_result,
)
from kmem.problem.operators.expressions import (
    STABLE_EXP,
    STABLE_EXPM1,
    STABLE_LOG1P,
    STABLE_TANH,
    Expression,
    inverse_root,
    maximum,
    minimum,
    using,
    write_number,
)
from kmem.problem.operators.row import (
    Call,
    Operator,
    Parameters,
    Pointwise,
    parameters,
)
from kmem.records import TensorSpec

_X = parameters("x")
_XY = parameters("x", "y")


def _rows(
    targets: str,
    given: Parameters,
    write: Callable[..., str | Expression | None],
    arithmetic: Arithmetic = per_result,
    **facts: object,
) -> list[Operator]:
    """One row for each of several overloads that are written alike.

    Args:
        facts: further fields of `Pointwise`.
    """
    lowering = Pointwise(write, **facts)
    return [
        Operator(f"aten.{target}", "pointwise", arithmetic, given, lowering)
        for target in targets.split()
    ]


def _special(
    targets: str, given: Parameters, write: Callable[..., str | Expression | None]
) -> list[Operator]:
    return _rows(targets, given, write, special_per_result)


def _counted(names: str, arithmetic: Arithmetic) -> list[Operator]:
    """Rows of operators that are counted and cannot be written."""
    return [Operator(f"aten.{name}", "pointwise", arithmetic) for name in names.split()]


def _clamp(x: str, low: str | None, high: str | None) -> str:
    text = x if low is None else maximum(x, low)
    return text if high is None else minimum(text, high)


def _product(x: str, y: str) -> str:
    return f"{x} * {y}"


def _quotient(x: str, y: str) -> str:
    return f"tl.div_rn({x}, {y})"


def _times(x: str, factor: str) -> str:
    return x if factor == "1.0" else f"{x} * {factor}"


def _power(x: str, exponent: str) -> str | None:
    """x to a constant; None for exponents that eager computes with pow()."""
    forms = {
        "2.0": f"{x} * {x}",
        "3.0": f"{x} * {x} * {x}",
        "4.0": f"({x} * {x}) * ({x} * {x})",
        "1.0": x,
        "0.5": f"tl.sqrt_rn({x})",
        "-0.5": inverse_root(x),
        "-1.0": f"tl.div_rn(1.0, {x})",
        "-2.0": f"tl.div_rn(1.0, {x} * {x})",
    }
    return forms.get(exponent)


def _power_work(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    """A whole exponent takes multiplications alone."""
    exponent = node.args[1] if len(node.args) > 1 else None
    is_whole = isinstance(exponent, int | float) and float(exponent).is_integer()
    made = output_elements(node)
    return Work(simple=made, special=0 if is_whole else made)


def _sign(x: str) -> str:
    return f"tl.where({x} > 0.0, 1.0, tl.where({x} < 0.0, -1.0, 0.0 * {x}))"


def _sigmoid(x: str) -> Expression:
    return using(f"tl.div_rn(1.0, 1.0 + stable_exp(-({x})))", STABLE_EXP)


def _silu(x: str) -> Expression:
    return using(f"tl.div_rn({x}, 1.0 + stable_exp(-({x})))", STABLE_EXP)


def _gelu(x: str, approximate: str) -> str | Expression:
    # Source: torch.nn.functional.gelu; 0.7071... = sqrt(1/2), 1.5957... = 2 sqrt(2/pi).
    if approximate == "tanh":
        # (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), which does not cancel
        twice = f"1.5957691216057308 * ({x} + 0.044715 * {x} * {x} * {x})"
        return using(f"tl.div_rn({x}, 1.0 + stable_exp(-({twice})))", STABLE_EXP)
    return f"0.5 * {x} * (1.0 + tl.erf({x} * 0.7071067811865476))"


def _elu(x: str, alpha: str, scale: str, input_scale: str) -> Expression:
    below = f"stable_expm1({_times(x, input_scale)}) * ({alpha} * {scale})"
    return using(f"tl.where({x} > 0.0, {x} * {scale}, {below})", STABLE_EXPM1)


def _selu(x: str) -> Expression:
    # Source of alpha and scale: torch.nn.functional.selu.
    return _elu(x, "1.6732632423543772", "1.0507009873554805", "1.0")


def _celu(x: str, alpha: str) -> Expression:
    below = f"stable_expm1(tl.div_rn({x}, {alpha})) * {alpha}"
    return using(f"tl.where({x} > 0.0, {x}, {below})", STABLE_EXPM1)


def _mish(x: str) -> Expression:
    # x tanh(log(1 + e)) = x e (e + 2) / (e (e + 2) + 2) with e = exp(x); above 20 the quotient is 1
    # in fp32.
    e = f"stable_exp({minimum(x, '20.0')})"
    quotient = f"tl.div_rn({e} * ({e} + 2.0), {e} * ({e} + 2.0) + 2.0)"
    return using(f"tl.where({x} > 20.0, {x}, {x} * {quotient})", STABLE_EXP)


def _softplus(x: str, beta: str, threshold: str) -> Expression:
    scaled = _times(x, beta)
    logarithm = f"stable_log1p(stable_exp({minimum(scaled, threshold)}))"
    below = _times(logarithm, write_number(1 / float(beta)))
    return using(f"tl.where({scaled} > {threshold}, {x}, {below})", STABLE_EXP, STABLE_LOG1P)


def _log_sigmoid(x: str) -> Expression:
    text = f"{minimum(x, '0.0')} - stable_log1p(stable_exp(-tl.abs({x})))"
    return using(text, STABLE_EXP, STABLE_LOG1P)


def _hard_sigmoid(x: str) -> str:
    return f"{_clamp(f'{x} + 3.0', '0.0', '6.0')} * {1 / 6}"


def _hard_swish(x: str) -> str:
    return f"{x} * {_hard_sigmoid(x)}"


def _compare(symbol: str) -> Callable[[str, str], str]:
    return lambda x, y: f"{x} {symbol} {y}"


_UNCHANGED = Pointwise(lambda x, p, train: x)


def _chosen_dropout(call: Call) -> Pointwise | None:
    """In eval mode, or where it drops nothing, it hands its input on; else it is random."""
    return _UNCHANGED if call["train"] is False or call["p"] == 0 else None


_FUNCTIONS = (
    *_rows("neg.default", _X, lambda x: f"-({x})"),
    *_rows("abs.default", _X, lambda x: f"tl.abs({x})", norm_order=1),
    *_rows("sign.default", _X, _sign),
    *_rows("square.default", _X, lambda x: f"{x} * {x}", norm_order=2),
    *_rows("reciprocal.default", _X, lambda x: f"tl.div_rn(1.0, {x})"),
    *_rows("floor.default", _X, lambda x: f"tl.floor({x})"),
    *_rows("ceil.default", _X, lambda x: f"tl.ceil({x})"),
    *_special("exp.default", _X, lambda x: using(f"stable_exp({x})", STABLE_EXP)),
    *_special("exp2.default", _X, lambda x: f"tl.exp2({x})"),
    *_special("expm1.default", _X, lambda x: using(f"stable_expm1({x})", STABLE_EXPM1)),
    *_special("log.default", _X, lambda x: f"tl.log({x})"),
    *_special("log2.default", _X, lambda x: f"tl.log2({x})"),
    *_special("log1p.default", _X, lambda x: using(f"stable_log1p({x})", STABLE_LOG1P)),
    *_special("sqrt.default", _X, lambda x: f"tl.sqrt_rn({x})"),
    *_special("rsqrt.default", _X, inverse_root),
    *_special("sin.default", _X, lambda x: f"tl.sin({x})"),
    *_special("cos.default", _X, lambda x: f"tl.cos({x})"),
    *_special("erf.default", _X, lambda x: f"tl.erf({x})"),
    *_special("tanh.default tanh_.default", _X, lambda x: using(f"stable_tanh({x})", STABLE_TANH)),
    *_rows("pow.Tensor_Scalar", parameters("x", "exponent"), _power, _power_work, norm_order=2),
    Operator("aten.pow", "pointwise", _power_work),
    *_counted("remainder round floor_divide true_divide multiply subtract", per_result),
    *_counted("atan log10 logit sinh tan", special_per_result),
)

_ACTIVATIONS = (
    *_rows("relu.default relu_.default", _X, lambda x: maximum(x, "0.0")),
    *_rows("relu6.default relu6_.default", _X, lambda x: _clamp(x, "0.0", "6.0")),
    *_rows(
        "leaky_relu.default leaky_relu_.default",
        parameters("x", slope=0.01),
        lambda x, slope: f"tl.where({x} > 0.0, {x}, {x} * {slope})",
    ),
    *_rows("hardtanh.default hardtanh_.default", parameters("x", low=-1.0, high=1.0), _clamp),
    *_rows("hardsigmoid.default hardsigmoid_.default", _X, _hard_sigmoid),
    *_rows("hardswish.default hardswish_.default", _X, _hard_swish),
    *_rows(
        "threshold.default threshold_.default",
        parameters("x", "threshold", "value"),
        lambda x, threshold, value: f"tl.where({x} <= {threshold}, {value}, {x})",
    ),
    *_special("sigmoid.default sigmoid_.default", _X, _sigmoid),
    *_special("silu.default silu_.default", _X, _silu),
    *_special("gelu.default gelu_.default", parameters("x", approximate="none"), _gelu),
    *_special("mish.default mish_.default", _X, _mish),
    *_special(
        "elu.default elu_.default", parameters("x", alpha=1.0, scale=1.0, input_scale=1.0), _elu
    ),
    *_special("selu.default selu_.default", _X, _selu),
    *_special("celu.default celu_.default", parameters("x", alpha=1.0), _celu),
    *_special("softplus.default", parameters("x", beta=1.0, threshold=20.0), _softplus),
    *_special("log_sigmoid.default", _X, _log_sigmoid),
    *_counted("hardshrink softshrink", per_result),
    Operator(
        "aten.dropout.default",
        "pointwise",
        no_work,
        parameters("x", "p", "train"),
        _chosen_dropout,
        only_in_training=True,
    ),
    Operator("aten.native_dropout.default", "pointwise", no_work, parameters("x", "p", "train")),
)

_ARITHMETIC = (
    *_rows(
        "add.Tensor add_.Tensor add.Scalar",
        parameters("x", "y", alpha=1),
        lambda x, y, alpha: f"{x} + {_times(y, alpha)}",
    ),
    *_rows(
        "sub.Tensor sub_.Tensor sub.Scalar subtract.Tensor subtract.Scalar",
        parameters("x", "y", alpha=1),
        lambda x, y, alpha: f"{x} - {_times(y, alpha)}",
    ),
    *_rows(
        "rsub.Tensor rsub.Scalar",
        parameters("x", "y", alpha=1),
        lambda x, y, alpha: f"{y} - {_times(x, alpha)}",
    ),
    *_rows("mul.Tensor multiply.Tensor", _XY, _product, norm_order=2),
    *_rows("mul_.Tensor mul.Scalar multiply.Scalar", _XY, _product),
    *_rows("div.Tensor divide.Tensor true_divide.Tensor", _XY, _quotient, is_quotient=True),
    *_rows("div_.Tensor div.Scalar divide.Scalar true_divide.Scalar", _XY, _quotient),
    *_rows("maximum.default max.other", _XY, maximum),
    *_rows("minimum.default min.other", _XY, minimum),
    *_rows(
        "clamp.default clamp_.default clamp.Tensor clip.default",
        parameters("x", low=None, high=None),
        _clamp,
    ),
    *_rows(
        "clamp_min.default clamp_min.Tensor",
        parameters("x", "low"),
        lambda x, low: _clamp(x, low, None),
    ),
    *_rows(
        "clamp_max.default clamp_max.Tensor",
        parameters("x", "high"),
        lambda x, high: _clamp(x, None, high),
    ),
    *_rows(
        "lerp.Scalar lerp.Tensor",
        parameters("x", "y", "weight"),
        lambda x, y, weight: f"{x} + {weight} * ({y} - {x})",
    ),
    *_rows(
        "addcmul.default",
        parameters("x", "a", "b", value=1),
        lambda x, a, b, value: f"{x} + {_times(f'{a} * {b}', value)}",
    ),
    *_counted("addcdiv", per_result),
)

_CHOICES = (
    *_rows(
        "where.self where.ScalarOther where.ScalarSelf where.Scalar",
        parameters("condition", "x", "y"),
        lambda condition, x, y: f"tl.where({condition}, {x}, {y})",
        flags=("condition",),
    ),
    *_rows(
        "masked_fill.Scalar",
        parameters("x", "mask", "value"),
        lambda x, mask, value: f"tl.where({mask}, {value}, {x})",
        flags=("mask",),
    ),
    *_rows("gt.Scalar gt.Tensor", _XY, _compare(">")),
    *_rows("ge.Scalar ge.Tensor", _XY, _compare(">=")),
    *_rows("lt.Scalar lt.Tensor", _XY, _compare("<")),
    *_rows("le.Scalar le.Tensor", _XY, _compare("<=")),
    *_rows("eq.Scalar eq.Tensor", _XY, _compare("==")),
    *_rows("ne.Scalar ne.Tensor", _XY, _compare("!=")),
    *_rows("logical_not.default bitwise_not.default", _X, lambda x: f"{x} == 0", flags=("x",)),
    *_rows(
        "logical_and.default bitwise_and.Tensor", _XY, lambda x, y: f"{x} & {y}", flags=("x", "y")
    ),
    *_rows(
        "logical_or.default bitwise_or.Tensor", _XY, lambda x, y: f"{x} | {y}", flags=("x", "y")
    ),
)

ROWS = (*_FUNCTIONS, *_ACTIVATIONS, *_ARITHMETIC, *_CHOICES)
