"""Reductions over dimensions: sums, extremes, variances and norms over elements, softmax too.

Formulas are those of the torch documentation of each operator.
"""

from collections.abc import Callable, Sequence

from kmem.problem.graph import Node
from kmem.problem.operators.arithmetic import (
    Work,
    output_elements,
    per_input,
    special_per_input,
)
from kmem.problem.operators.builder import RegionBuilder
from kmem.problem.operators.expressions import mean_of, variable, write_number
from kmem.problem.operators.row import (
    Call,
    Layout,
    Operator,
    Parameters,
    Reduced,
    Reduction,
    Summed,
    Traffic,
    has_loadable_results,
    parameters,
)
from kmem.records import TensorSpec

_ALL = parameters("x")
_DIMS = parameters("x", dim=None, keepdim=False)


def reduced(call: Call, dims: object, keep: object) -> Reduced:
    """Dimensions as torch takes them, None or none of them for all, in ascending order."""
    rank = len(call.spec("x").shape)
    if dims is None or dims == ():
        return tuple(range(rank)), bool(keep)
    listed = (dims,) if isinstance(dims, int) else dims
    return tuple(sorted(dim % rank for dim in listed)), bool(keep)


def _given_dims(call: Call) -> Reduced:
    return reduced(call, call["dim"], call["keepdim"])


def _unless_of_one(lowering: Reduction) -> Callable[[Call], Reduction | Layout]:
    """A lowering that knows that a row of one element is its own sum, mean, maximum.

    Where the result keeps the dimensions it is then what is reduced, handed on.
    """

    def choose(call: Call) -> Reduction | Layout:
        found = lowering.dims(call)
        shape = call.spec("x").shape
        is_of_one = found is not None and found[1] and all(shape[dim] == 1 for dim in found[0])
        if not is_of_one or isinstance(call.node.output, tuple) and not _leaves_values(call):
            return lowering
        return Layout.IDENTITY

    return choose


# --- sums, products and extremes


def _fold(kind: str, summed: Summed | None = None) -> Reduction:
    """One state that is the result."""

    def lower(build: RegionBuilder, call: Call) -> None:
        build.reduce((call.out,), kind, build.read(call.value("x")))

    return Reduction(_given_dims, lower, summed=summed)


def lower_mean(build: RegionBuilder, call: Call) -> None:
    (total,) = build.reduce((f"{call.out}_sum",), "sum", build.read(call.value("x")))
    build.map(call.out, mean_of(total, build.columns), total)


def _read_term(build: RegionBuilder, call: Call) -> str:
    return build.read(call.value("x"))


_SUM = _fold("sum", Summed(_read_term, lambda call: "total_0"))
_MEAN = Reduction(
    _given_dims,
    lower_mean,
    summed=Summed(_read_term, lambda call: mean_of("total_0", call.spec("x").numel)),
)


def _lower_logsumexp(build: RegionBuilder, call: Call) -> None:
    names = (f"{call.out}_max", f"{call.out}_sum")
    top, total = build.reduce(names, "logsumexp", build.read(call.value("x")))
    build.map(call.out, f"{top} + tl.log({total})", top, total)


def _counts_in_32_bits(build: RegionBuilder, call: Call) -> bool:
    return build.columns < 2**31


def _lower_index(build: RegionBuilder, call: Call, *, is_minimum: bool) -> None:
    """A minimum's place is the place of the negated row's maximum."""
    source = _turned(build, call, is_minimum)
    names = (f"{call.out}_value", f"{call.out}_index")
    _, index = build.reduce(names, "argmax", source)
    build.map(call.out, index, index)


def _turned(build: RegionBuilder, call: Call, is_minimum: bool) -> str:
    source = build.read(call.value("x"))
    return build.map(f"{call.out}_negated", f"-{source}", source) if is_minimum else source


def _taken(call: Call) -> list[Node]:
    """The results of a call with several that are read."""
    graph = call.graph
    users = graph.users(call.node.name)
    return [user for user in users if graph.users(user.name) or user.name in graph.outputs]


def _leaves_values(call: Call) -> bool:
    """Whether of values and places the values alone are read."""
    taken = _taken(call)
    return bool(taken) and all(user.args[1] == 0 for user in taken)


def lower_extremum(build: RegionBuilder, call: Call, *, is_minimum: bool) -> None:
    """(values, indices), either alone."""
    if _leaves_values(call):
        source, kind = build.read(call.value("x")), "min" if is_minimum else "max"
        (value,) = build.reduce((f"{call.out}_value",), kind, source)
        for user in _taken(call):
            build.map(variable(user.name), value, value)
        return
    source = _turned(build, call, is_minimum)
    value, index = build.reduce((f"{call.out}_value", f"{call.out}_index"), "argmax", source)
    results = (f"-{value}" if is_minimum else value, index)
    for user in call.graph.users(call.node.name):
        place = user.args[1]
        build.map(variable(user.name), results[place], (value, index)[place])


def _extremes(name: str) -> list[Operator]:
    """The four spellings of max or min, and its place."""
    is_minimum = name == "min"

    def lower_both(build: RegionBuilder, call: Call) -> None:
        lower_extremum(build, call, is_minimum=is_minimum)

    def lower_index(build: RegionBuilder, call: Call) -> None:
        _lower_index(build, call, is_minimum=is_minimum)

    index = Reduction(_given_dims, lower_index, _counts_in_32_bits)
    both = Reduction(_given_dims, lower_both)
    return [
        Operator(f"aten.a{name}.default", name, per_input, _DIMS, _unless_of_one(_fold(name))),
        Operator(f"aten.{name}.default", name, per_input, _ALL, _fold(name)),
        Operator(f"aten.{name}.dim", name, per_input, _DIMS, _unless_of_one(both)),
        Operator(f"aten.arg{name}.default", f"arg{name}", per_input, _DIMS, index),
    ]


# --- variances


def _variance(*, is_root: bool) -> Reduction:
    """Around the mean; a correction of 1, the default, makes it unbiased."""

    def lower(build: RegionBuilder, call: Call) -> None:
        if "unbiased" in call.arguments:
            correction = 1 if call["unbiased"] else 0
        else:
            correction = 1 if call["correction"] is None else call["correction"]
        names = (f"{call.out}_mean", f"{call.out}_m2")
        mean, m2 = build.reduce(names, "moments", build.read(call.value("x")))
        text = f"tl.div_rn({m2}, {write_number(max(build.columns - correction, 0))})"
        build.map(call.out, f"tl.sqrt_rn({text})" if is_root else text, mean, m2)

    return Reduction(_given_dims, lower)


def _variances(name: str) -> list[Operator]:
    """The three spellings of var or std."""
    overloads = {
        "default": parameters("x", unbiased=True),
        "dim": parameters("x", dim=None, unbiased=True, keepdim=False),
        "correction": parameters("x", dim=None, correction=None, keepdim=False),
    }
    lowering = _variance(is_root=name == "std")
    return [
        Operator(f"aten.{name}.{overload}", "variance", per_input, given, lowering)
        for overload, given in overloads.items()
    ]


# --- norms over elements


def _is_elementwise(call: Call) -> bool:
    """Whether a norm is one over elements, and not that of a matrix as a map."""
    if call.node.target == "aten.linalg_matrix_norm.str_ord":
        return call["ord"] == "fro"
    if call.node.target != "aten.linalg_norm.default" or call["ord"] is None:
        return True
    return len(call["dim"] or call.spec("x").shape) == 1


def norm_order(call: Call) -> float:
    """The exponent of a norm over elements: 2 unless another one is given."""
    return 2 if call["ord"] in (None, "fro") else call["ord"]


def _norm_dims(call: Call) -> Reduced | None:
    return _given_dims(call) if _is_elementwise(call) else None


def _has_known_order(build: RegionBuilder, call: Call) -> bool:
    return norm_order(call) in (1, 2, float("inf")) and not call["dtype"]


def _lower_norm(build: RegionBuilder, call: Call) -> None:
    source, order = build.read(call.value("x")), norm_order(call)
    if order == 2:
        square = build.map(f"{call.out}_square", f"{source} * {source}", source)
        (total,) = build.reduce((f"{call.out}_sum",), "sum", square)
        build.map(call.out, f"tl.sqrt_rn({total})", total)
        return
    size = build.map(f"{call.out}_abs", f"tl.abs({source})", source)
    build.reduce((call.out,), "sum" if order == 1 else "max", size)


def _norm(target: str, **optional: object) -> Operator:
    given = parameters("x", **{"ord": None, "dim": None, "keepdim": False, **optional})
    lowering = Reduction(_norm_dims, _lower_norm, _has_known_order)
    return Operator(f"aten.{target}", "vector_norm", per_input, given, lowering)


# --- distances of all pairs

#: Points up to which eager takes differences where it is left to it, and torch's compute modes.
#: Source: ATen's cdist_impl (aten/src/ATen/native/Distance.cpp); mode 0 is "use_mm_for_euclid_dist_
#: if_necessary", 1 "use_mm_for_euclid_dist", 2 "donot_use_mm_for_euclid_dist".
_FEW_POINTS = 25
_IF_MANY, _ALWAYS = 0, 1


def multiplies_points(call: Call) -> bool:
    """Whether eager computes distances of all pairs by a product: Euclidean ones of many points."""
    x, y = call.spec("x"), call.spec("y")
    if call["p"] != 2 or 0 in (x.numel, y.numel):
        return False
    mode = _IF_MANY if call["compute_mode"] is None else call["compute_mode"]
    are_many = max(x.shape[-2], y.shape[-2]) > _FEW_POINTS
    return mode == _ALWAYS or (mode == _IF_MANY and are_many)


def _pair_work(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    """A product where distances are Euclidean, else a difference and a sum for each number."""
    numbers = output_elements(node) * inputs[0].shape[-1]
    is_euclidean = len(node.args) < 3 or node.args[2] == 2
    return Work(product_fma=numbers) if is_euclidean else Work(simple=2 * numbers)


# --- softmax


def _one_dim(call: Call) -> Reduced:
    everything = range(len(call.spec("x").shape))
    return (everything[call["dim"]],) if everything else (), True


def _lower_softmax(build: RegionBuilder, call: Call) -> None:
    out, source = call.out, build.read(call.value("x"))
    top, total = build.reduce((f"{out}_max", f"{out}_sum"), "softmax", source)
    weight = build.map(f"{out}_weight", f"tl.exp({source} - {top})", source, top, share_of=top)
    # a sum of exponentials lies in [1, row length]
    inverse = build.map(f"{out}_inverse", f"tl.div_rn(1.0, {total})", total)
    build.map(out, f"{weight} * {inverse}", weight, inverse)


def _lower_log_softmax(build: RegionBuilder, call: Call) -> None:
    out, source = call.out, build.read(call.value("x"))
    top, total = build.reduce((f"{out}_max", f"{out}_sum"), "softmax", source)
    offset = build.map(f"{out}_log", f"tl.log({total})", total)
    build.map(out, f"({source} - {top}) - {offset}", source, top, offset)


def _softmax(target: str, name: str, lower) -> Operator:  # noqa: ANN001 - a Reduction's `lower`
    return Operator(
        f"aten.{target}",
        name,
        special_per_input,
        parameters("x", "dim", dtype=None),
        Reduction(_one_dim, lower, has_loadable_results, names_region=True),
        traffic=Traffic.TWICE,
    )


def _plain(
    targets: str,
    name: str,
    given: Parameters,
    lowering: Reduction | Callable[[Call], Reduction | Layout],
) -> list[Operator]:
    return [
        Operator(f"aten.{target}", name, per_input, given, lowering) for target in targets.split()
    ]


ROWS = (
    *_plain("sum.default", "sum", _ALL, _SUM),
    *_plain("sum.dim_IntList", "sum", _DIMS, _unless_of_one(_SUM)),
    *_plain("mean.default", "mean", _ALL, _MEAN),
    *_plain("mean.dim", "mean", _DIMS, _unless_of_one(_MEAN)),
    *_plain("prod.default", "prod", _ALL, _fold("prod")),
    *_plain("prod.dim_int", "prod", _DIMS, _fold("prod")),
    *_extremes("max"),
    *_extremes("min"),
    *_variances("var"),
    *_variances("std"),
    Operator(
        "aten.logsumexp.default",
        "logsumexp",
        special_per_input,
        _DIMS,
        _unless_of_one(Reduction(_given_dims, _lower_logsumexp)),
    ),
    _norm("linalg_vector_norm.default"),
    _norm("linalg_norm.default"),
    _norm("linalg_matrix_norm.str_ord", ord="fro", dim=(-2, -1)),
    _softmax("softmax.int", "softmax", _lower_softmax),
    _softmax("log_softmax.int", "log_softmax", _lower_log_softmax),
    Operator("aten.norm", "vector_norm", per_input),
    Operator(
        "aten.cdist.default",
        "vector_norm",
        _pair_work,
        parameters("x", "y", p=2.0, compute_mode=None),
    ),
    Operator("aten.var_mean", "variance", per_input),
    Operator("aten.any", "max", per_input),
    Operator("aten.all", "min", per_input),
)
