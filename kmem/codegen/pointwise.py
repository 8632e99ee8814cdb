"""Pointwise aten operators as Triton expressions: one table from target to text, in fp32.

`write_pointwise` binds a node's arguments and returns the expression; `HELPERS` are the jitted
functions such expressions may call (stable forms of what tl lacks); `compute_type` says in which
Triton type a loaded value computes. Siblings: region.py orders expressions, pointwise_kernel.py and
rowwise.py wrap them in kernels.

Covered: float32, float16, bfloat16 and bool tensors, Python scalars. Not covered: integer
arithmetic, float64, complex, random operators.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kmem.problem.graph import Literal, Node, OpGraph, Ref

FLOATS = ("float32", "float16", "bfloat16")

#: Jitted helpers by name. Each text stands alone and may be used by any kernel of a module
#: (stable_expm1 needs tl.exp alone: its argument is small or negative).
HELPERS: dict[str, str] = {
    # tl.exp multiplies by log2(e) first, which costs |x| roundings; here x = n ln 2 + r with ln 2
    # in two parts (ln2_hi has trailing zeros, so n * ln2_hi is exact), and 2^n in two factors so
    # that neither overflows. Source: Cody and Waite 1980, ch. 6; constants as in Cephes
    # single/expf.c.
    "stable_exp": """@triton.jit
def stable_exp(x):
    c = tl.minimum(tl.maximum(x, -110.0, propagate_nan=tl.PropagateNan.ALL), 100.0, propagate_nan=tl.PropagateNan.ALL)
    n = tl.floor(c * 1.4426950408889634 + 0.5)
    r = (c - n * 0.693359375) - n * -2.12194440e-4
    half = tl.floor(n * 0.5)
    return tl.exp(r) * tl.exp2(half) * tl.exp2(n - half)
""",
    # |x| < 0.625: odd polynomial; beyond: 1 - 2 / (exp(2|x|) + 1), which no longer cancels. Source:
    # Cephes single/tanhf.c (coefficients and split).
    "stable_tanh": """@triton.jit
def stable_tanh(x):
    z = x * x
    p = -5.70498872745e-3 * z + 2.06390887954e-2
    p = p * z - 5.37397155531e-2
    p = p * z + 1.33314422036e-1
    p = p * z - 3.33332819422e-1
    a = tl.abs(x)
    large = 1.0 - 2.0 / (tl.exp(2.0 * a) + 1.0)
    return tl.where(a < 0.625, p * z * x + x, tl.where(x < 0.0, -large, large))
""",
    # |x| < 0.5: Taylor series to x^8, truncation below 1e-8 relative; beyond, exp(x) - 1 loses at
    # most two bits. Source: Taylor's theorem.
    "stable_expm1": """@triton.jit
def stable_expm1(x):
    p = x * (1.0 / 40320.0) + (1.0 / 5040.0)
    p = p * x + (1.0 / 720.0)
    p = p * x + (1.0 / 120.0)
    p = p * x + (1.0 / 24.0)
    p = p * x + (1.0 / 6.0)
    p = p * x + 0.5
    return tl.where(tl.abs(x) < 0.5, p * x * x + x, tl.exp(x) - 1.0)
""",
    # log(u) * t / (u - 1) with u = 1 + t as rounded. Source: Goldberg, "What every computer
    # scientist should know ...", 1991, theorem 4.
    "stable_log1p": """@triton.jit
def stable_log1p(t):
    u = 1.0 + t
    d = u - 1.0
    return tl.where(d == 0.0, t, tl.log(u) * (t / tl.where(d == 0.0, 1.0, d)))
""",
}


def argument(node: Node, place: int, name: str, default: object = None) -> object:
    """A node's argument by position or keyword."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def variable(name: str) -> str:
    """The kernel variable that holds a graph value."""
    return f"v_{name}"


def write_number(value: float) -> str:
    """A Python number as a floating literal of Triton source."""
    number = float(value)
    return (
        f"float('{number}')"
        if number != number or number in (float("inf"), float("-inf"))
        else repr(number)
    )


def compute_type(dtype: str) -> str:
    """The Triton type a value of this torch dtype computes in."""
    return {"bool": "tl.int1", "int64": "tl.int64"}.get(dtype, "tl.float32")


@dataclass(frozen=True, slots=True)
class _Entry:
    """How one target is written: parameter names in schema order with defaults, and the writer of
    its expression.

    `flags` names parameters that take a bool tensor as it is (elsewhere a bool becomes 0.0 or 1.0).
    """

    parameters: tuple[str, ...]
    defaults: dict[str, object]
    write: Callable[..., str | None]
    flags: tuple[str, ...] = ()


def _maximum(x: str, y: str) -> str:
    return f"tl.maximum({x}, {y}, propagate_nan=tl.PropagateNan.ALL)"


def _minimum(x: str, y: str) -> str:
    return f"tl.minimum({x}, {y}, propagate_nan=tl.PropagateNan.ALL)"


def _clamp(x: str, low: str | None, high: str | None) -> str | None:
    text = x if low is None else _maximum(x, low)
    return text if high is None else _minimum(text, high)


def _divide(x: str, y: str, rounding_mode: object = None) -> str | None:
    return None if rounding_mode is not None else f"tl.div_rn({x}, {y})"


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
        "-0.5": f"tl.div_rn(1.0, tl.sqrt_rn({x}))",
        "-1.0": f"tl.div_rn(1.0, {x})",
        "-2.0": f"tl.div_rn(1.0, {x} * {x})",
    }
    return forms.get(exponent)


def _gelu(x: str, approximate: str) -> str:
    # Source: torch.nn.functional.gelu; 0.7071... = sqrt(1/2), 0.7978... = sqrt(2/pi).
    if approximate == "tanh":
        return (
            f"0.5 * {x} * (1.0 + stable_tanh(0.7978845608028654 * ({x} + 0.044715 * {x} * {x} * "
            f"{x})))"
        )
    return f"0.5 * {x} * (1.0 + tl.erf({x} * 0.7071067811865476))"


def _elu(x: str, alpha: str, scale: str, input_scale: str) -> str:
    return (
        f"tl.where({x} > 0.0, {x} * {scale}, stable_expm1({_times(x, input_scale)}) * ({alpha} * "
        f"{scale}))"
    )


def _mish(x: str) -> str:
    # x tanh(log(1 + e)) = x e (e + 2) / (e (e + 2) + 2) with e = exp(x); above 20 the quotient is 1
    # in fp32.
    e = f"stable_exp({_minimum(x, '20.0')})"
    return f"tl.where({x} > 20.0, {x}, {x} * tl.div_rn({e} * ({e} + 2.0), {e} * ({e} + 2.0) + 2.0))"


# Source of alpha and scale of selu: torch.nn.functional.selu.
_SELU = ("1.6732632423543772", "1.0507009873554805")

_TABLE: dict[str, _Entry] = {}


def _define(
    targets: str,
    parameters: str,
    write: Callable[..., str | None],
    flags: str = "",
    **defaults: object,
) -> None:
    for target in targets.split():
        _TABLE[f"aten.{target}"] = _Entry(
            tuple(parameters.split()), defaults, write, tuple(flags.split())
        )


_define("relu.default relu_.default", "x", lambda x: _maximum(x, "0.0"))
_define("relu6.default", "x", lambda x: _clamp(x, "0.0", "6.0"))
_define("neg.default", "x", lambda x: f"-({x})")
_define("abs.default", "x", lambda x: f"tl.abs({x})")
_define("exp.default", "x", lambda x: f"stable_exp({x})")
_define("exp2.default", "x", lambda x: f"tl.exp2({x})")
_define("expm1.default", "x", lambda x: f"stable_expm1({x})")
_define("log.default", "x", lambda x: f"tl.log({x})")
_define("log2.default", "x", lambda x: f"tl.log2({x})")
_define("log1p.default", "x", lambda x: f"stable_log1p({x})")
_define("sqrt.default", "x", lambda x: f"tl.sqrt_rn({x})")
_define("rsqrt.default", "x", lambda x: f"tl.div_rn(1.0, tl.sqrt_rn({x}))")
_define("reciprocal.default", "x", lambda x: f"tl.div_rn(1.0, {x})")
_define("square.default", "x", lambda x: f"{x} * {x}")
_define("sin.default", "x", lambda x: f"tl.sin({x})")
_define("cos.default", "x", lambda x: f"tl.cos({x})")
_define("erf.default", "x", lambda x: f"tl.erf({x})")
_define("floor.default", "x", lambda x: f"tl.floor({x})")
_define("ceil.default", "x", lambda x: f"tl.ceil({x})")
_define(
    "sign.default", "x", lambda x: f"tl.where({x} > 0.0, 1.0, tl.where({x} < 0.0, -1.0, 0.0 * {x}))"
)
_define("tanh.default", "x", lambda x: f"stable_tanh({x})")
_define("sigmoid.default", "x", lambda x: f"tl.div_rn(1.0, 1.0 + stable_exp(-({x})))")
_define("silu.default", "x", lambda x: f"tl.div_rn({x}, 1.0 + stable_exp(-({x})))")
_define("gelu.default", "x approximate", _gelu, approximate="none")
_define("mish.default", "x", _mish)
_define("hardtanh.default", "x low high", _clamp, low=-1.0, high=1.0)
_define("hardsigmoid.default", "x", lambda x: f"{_clamp(f'{x} + 3.0', '0.0', '6.0')} * {1 / 6}")
_define("hardswish.default", "x", lambda x: f"{x} * {_clamp(f'{x} + 3.0', '0.0', '6.0')} * {1 / 6}")
_define(
    "leaky_relu.default",
    "x slope",
    lambda x, slope: f"tl.where({x} > 0.0, {x}, {x} * {slope})",
    slope=0.01,
)
_define("elu.default", "x alpha scale input_scale", _elu, alpha=1.0, scale=1.0, input_scale=1.0)
_define("selu.default", "x", lambda x: _elu(x, *_SELU, "1.0"))
_define(
    "celu.default",
    "x alpha",
    lambda x, alpha: f"tl.where({x} > 0.0, {x}, stable_expm1(tl.div_rn({x}, {alpha})) * {alpha})",
    alpha=1.0,
)
_define(
    "softplus.default",
    "x beta threshold",
    lambda x, beta, threshold: (
        f"tl.where({_times(x, beta)} > {threshold}, {x}, "
        f"{_times(f'stable_log1p(stable_exp({_minimum(_times(x, beta), threshold)}))', write_number(1 / float(beta)))})"
    ),
    beta=1.0,
    threshold=20.0,
)
_define(
    "log_sigmoid.default",
    "x",
    lambda x: (
        f"tl.minimum({x}, 0.0, propagate_nan=tl.PropagateNan.ALL) - "
        f"stable_log1p(stable_exp(-tl.abs({x})))"
    ),
)
_define(
    "threshold.default",
    "x threshold value",
    lambda x, threshold, value: f"tl.where({x} <= {threshold}, {value}, {x})",
)
_define(
    "add.Tensor add_.Tensor add.Scalar",
    "x y alpha",
    lambda x, y, alpha: f"{x} + {_times(y, alpha)}",
    alpha=1,
)
_define(
    "sub.Tensor sub_.Tensor sub.Scalar",
    "x y alpha",
    lambda x, y, alpha: f"{x} - {_times(y, alpha)}",
    alpha=1,
)
_define(
    "rsub.Tensor rsub.Scalar", "x y alpha", lambda x, y, alpha: f"{y} - {_times(x, alpha)}", alpha=1
)
_define("mul.Tensor mul_.Tensor mul.Scalar", "x y", lambda x, y: f"{x} * {y}")
_define("div.Tensor div_.Tensor div.Scalar", "x y", _divide)
_define("maximum.default max.other", "x y", _maximum)
_define("minimum.default min.other", "x y", _minimum)
_define("pow.Tensor_Scalar", "x exponent", _power)
_define("clamp.default clamp.Tensor clip.default", "x low high", _clamp, low=None, high=None)
_define("clamp_min.default clamp_min.Tensor", "x low", lambda x, low: _clamp(x, low, None))
_define("clamp_max.default clamp_max.Tensor", "x high", lambda x, high: _clamp(x, None, high))
_define(
    "lerp.Scalar lerp.Tensor", "x y weight", lambda x, y, weight: f"{x} + {weight} * ({y} - {x})"
)
_define(
    "addcmul.default",
    "x a b value",
    lambda x, a, b, value: f"{x} + {_times(f'{a} * {b}', value)}",
    value=1,
)
_define(
    "where.self where.ScalarOther where.ScalarSelf where.Scalar",
    "condition x y",
    lambda condition, x, y: f"tl.where({condition}, {x}, {y})",
    "condition",
)
_define(
    "masked_fill.Scalar",
    "x mask value",
    lambda x, mask, value: f"tl.where({mask}, {value}, {x})",
    "mask",
)
for _name, _symbol in {
    "gt": ">",
    "ge": ">=",
    "lt": "<",
    "le": "<=",
    "eq": "==",
    "ne": "!=",
}.items():
    _define(
        f"{_name}.Scalar {_name}.Tensor", "x y", lambda x, y, symbol=_symbol: f"{x} {symbol} {y}"
    )
_define("logical_not.default bitwise_not.default", "x", lambda x: f"{x} == 0", "x")
_define("logical_and.default bitwise_and.Tensor", "x y", lambda x, y: f"{x} & {y}", "x y")
_define("logical_or.default bitwise_or.Tensor", "x y", lambda x, y: f"{x} | {y}", "x y")

#: Operators that hand their first input on unchanged, up to shape.
IDENTITIES = (
    "aten.alias.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.detach.default",
    "aten.detach_.default",
    "aten.expand.default",
    "aten.expand_as.default",
)
_CASTS = {
    "torch.float32": "tl.float32",
    "torch.float16": "tl.float16",
    "torch.bfloat16": "tl.bfloat16",
}


def write_pointwise(graph: OpGraph, node: Node, name_of: Callable[[str], str]) -> str | None:
    """The fp32 expression of a pointwise node, or None if it is not one that can be written exactly
    enough.

    Args:
        name_of: the variable that holds a graph value.
    """
    if not _has_known_types(graph, node):
        return None
    if node.target in IDENTITIES:
        return name_of(node.args[0].name) if isinstance(node.args[0], Ref) else None
    if node.target == "aten.dropout.default":
        training = node.args[2] if len(node.args) > 2 else node.kwargs.get("train")
        return name_of(node.args[0].name) if training is False else None
    if node.target in ("aten.to.dtype", "aten._to_copy.default"):
        return _write_cast(graph, node, name_of)
    entry = _TABLE.get(node.target)
    if entry is None:
        return None
    if node.target.split(".")[1].endswith("_") and not _may_forget_input(graph, node):
        return None
    bound = {
        **entry.defaults,
        **dict(zip(entry.parameters, node.args, strict=False)),
        **node.kwargs,
    }
    if set(bound) != set(entry.parameters):
        return None
    texts = {}
    for parameter, value in bound.items():
        texts[parameter] = _write_argument(graph, value, name_of, parameter in entry.flags)
        if texts[parameter] is _UNKNOWN:
            return None
    return entry.write(**texts)


_UNKNOWN = object()


def _write_argument(
    graph: OpGraph, value: object, name_of: Callable[[str], str], is_flag: bool
) -> object:
    if isinstance(value, Ref):
        is_bool = graph.spec(value.name).dtype == "bool"
        return (
            f"({name_of(value.name)}).to(tl.float32)"
            if is_bool and not is_flag
            else name_of(value.name)
        )
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return write_number(value)
    return _UNKNOWN


def _write_cast(graph: OpGraph, node: Node, name_of: Callable[[str], str]) -> str | None:
    """A cast as eager rounds it: through the narrow type and back to the type kernels compute in."""
    target = node.args[1] if len(node.args) > 1 else node.kwargs.get("dtype")
    if (
        not isinstance(target, Literal)
        or target.expression not in _CASTS
        or not isinstance(node.args[0], Ref)
    ):
        return None
    value = name_of(node.args[0].name)
    narrow = _CASTS[target.expression]
    return (
        f"({value}).to(tl.float32)"
        if narrow == "tl.float32"
        else f"({value}).to({narrow}).to(tl.float32)"
    )


def _has_known_types(graph: OpGraph, node: Node) -> bool:
    if (
        isinstance(node.output, tuple)
        or node.output is None
        or node.output.dtype not in (*FLOATS, "bool")
    ):
        return False
    for name in node.refs():
        producer = graph.node(name)
        if producer is not None and isinstance(producer.output, tuple):
            return False
        if graph.spec(name).dtype not in (*FLOATS, "bool"):
            return False
    return True


def _may_forget_input(graph: OpGraph, node: Node) -> bool:
    """Whether an in-place operator may be written out of place: it alone reads its input, a fresh
    result and no view or argument.
    """
    source = node.args[0]
    producer = graph.node(source.name) if isinstance(source, Ref) else None
    if producer is None or not graph.has_one_user(source.name):
        return False
    family = producer.target.split(".")[1]
    return producer.target in _TABLE or family.startswith(
        (
            "conv",
            "linear",
            "batch_norm",
            "group_norm",
            "layer_norm",
            "instance_norm",
            "max_pool",
            "avg_pool",
        )
    )
