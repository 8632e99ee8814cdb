"""Losses and similarities with a term per row, and its sum or mean.

Formulas are those of the torch documentation of each operator. Cross entropy reduces over classes,
distances and similarities over features; a sum or mean over their rows then is a total. Losses with
a term per element are element_losses.py's.

Covered: reductions "mean", "sum" and "none". Not covered: class weights, distances other than
Euclidean.
"""

from kmem.problem.operators.arithmetic import per_input, special_per_input
from kmem.problem.operators.builder import Form, RegionBuilder
from kmem.problem.operators.element_losses import MEAN, NONE, SUM, matches
from kmem.problem.operators.expressions import maximum, write_number
from kmem.problem.operators.row import (
    Call,
    Grain,
    Operator,
    Reduced,
    Reduction,
    parameters,
)

# --- a term per row


def _over_classes(call: Call) -> Reduced | None:
    return ((1,), False) if len(call.spec("x").shape) >= 2 else None


def _over_features(call: Call) -> Reduced | None:
    rank = len(call.spec("x").shape)
    return ((rank - 1,), False) if rank >= 2 else None


def _over_given_dim(call: Call) -> Reduced | None:
    rank = len(call.spec("x").shape)
    return ((call["dim"] % rank,), False) if rank >= 2 else None


def _sums_rows(call: Call) -> bool:
    return call["reduction"] != NONE


def _finish_rows(build: RegionBuilder, call: Call, row: str, count: str | None = None) -> None:
    """A row's term as the result: itself, its sum over rows, or its mean over the rows counted."""
    if call["reduction"] == NONE:
        build.map(call.out, row, row)
    elif call["reduction"] == SUM:
        build.add_total((row,), "total_0")
    elif count is None:
        rows = call.spec("x").numel // build.columns
        build.add_total((row,), f"tl.div_rn(total_0, {write_number(rows)})")
    else:
        build.add_total((row, count), "tl.div_rn(total_0, total_1)")


def _has_class_indices(build: RegionBuilder, call: Call) -> bool:
    """Class indices, no class weights."""
    if call.value("y") is None or call["weight"] is not None:
        return False
    logits, labels = call.spec("x"), call.spec("y")
    return labels.dtype == "int64" and labels.shape == (*logits.shape[:1], *logits.shape[2:])


def _lower_cross_entropy(build: RegionBuilder, call: Call) -> None:
    """log(sum(exp(x))) minus the label's x; ignored rows count nothing.

    Label smoothing mixes in the mean over classes.
    """
    out, source = call.out, build.read(call.value("x"))
    label = build.read(call.value("y"), Form.SQUEEZED)
    top, total = build.reduce((f"{out}_max", f"{out}_sum"), "softmax", source)
    # rows are shorter than 2**31: compared as 32 bits, at a third of the instructions
    narrow = f"tl.minimum(tl.maximum({label}, -1), 2147483647).to(tl.int32)"
    place = build.map(f"{out}_place", narrow, label)
    chosen = build.map(f"{out}_chosen", f"tl.where(r == {place}, {source}, 0.0)", source, place)
    (logit,) = build.reduce((f"{out}_logit",), "sum", chosen)
    text, reads = f"({top} - {logit}) + tl.log({total})", (top, total, logit)
    smoothing = call["label_smoothing"]
    if smoothing:
        (everything,) = build.reduce((f"{out}_logits",), "sum", source)
        mean = f"tl.div_rn({everything}, {write_number(build.columns)})"
        uniform = f"({top} - {mean}) + tl.log({total})"
        text = f"{write_number(1 - smoothing)} * ({text}) + {write_number(smoothing)} * ({uniform})"
        reads = (*reads, everything)
    is_counted = f"{label} != {int(call['ignore_index'])}"
    row = build.map(f"{out}_row", f"tl.where({is_counted}, {text}, 0.0)", *reads, label)
    count = build.map(f"{out}_count", f"tl.where({is_counted}, 1.0, 0.0)", label)
    _finish_rows(build, call, row, count)


def _has_euclidean_distances(build: RegionBuilder, call: Call) -> bool:
    return matches(call, "near", "far") and call["p"] == 2 and not call["swap"]


def _lower_triplet_margin(build: RegionBuilder, call: Call) -> None:
    """max(margin + |a - p + eps| - |a - n + eps|, 0).

    Source: torch.nn.functional.triplet_margin_loss and pairwise_distance.
    """
    out, eps = call.out, write_number(call["eps"])
    anchor = build.read(call.value("x"))
    distances = []
    for side in ("near", "far"):
        other = build.read(call.value(side))
        gap = build.map(f"{out}_{side}_gap", f"{anchor} - {other} + {eps}", anchor, other)
        square = build.map(f"{out}_{side}_square", f"{gap} * {gap}", gap)
        distances += build.reduce((f"{out}_{side}",), "sum", square)
    near, far = distances
    margin = write_number(call["margin"])
    gain = f"{margin} + tl.sqrt_rn({near}) - tl.sqrt_rn({far})"
    _finish_rows(build, call, build.map(f"{out}_row", maximum(gain, "0.0"), near, far))


def _has_like_vectors(build: RegionBuilder, call: Call) -> bool:
    return matches(call, "y")


def _lower_cosine_similarity(build: RegionBuilder, call: Call) -> None:
    """x.y over the product of the norms, each at least eps.

    Source: torch.nn.functional.cosine_similarity.
    """
    out, eps = call.out, write_number(call["eps"])
    x, y = build.read(call.value("x")), build.read(call.value("y"))

    def sum_products(name: str, left: str, right: str) -> str:
        product = build.map(f"{out}_{name}_product", f"{left} * {right}", left, right)
        return build.reduce((f"{out}_{name}",), "sum", product)[0]

    dot = sum_products("dot", x, y)
    squares = sum_products("x", x, x), sum_products("y", y, y)
    norms = [maximum(f"tl.sqrt_rn({square})", eps) for square in squares]
    text = f"tl.div_rn(tl.div_rn({dot}, {norms[0]}), {norms[1]})"
    build.map(out, text, dot, *squares)


_CROSS_ENTROPY = Reduction(
    _over_classes,
    _lower_cross_entropy,
    _has_class_indices,
    names_region=True,
    grain=Grain.CLASSES,
    leaves_total=_sums_rows,
)
_TRIPLET_MARGIN = Reduction(
    _over_features,
    _lower_triplet_margin,
    _has_euclidean_distances,
    names_region=True,
    grain=Grain.FEATURES,
    leaves_total=_sums_rows,
)
_COSINE_SIMILARITY = Reduction(
    _over_given_dim,
    _lower_cosine_similarity,
    _has_like_vectors,
    names_region=True,
    grain=Grain.FEATURES,
)

ROWS = (
    Operator(
        "aten.cross_entropy_loss.default",
        "loss",
        special_per_input,
        parameters("x", "y", weight=None, reduction=MEAN, ignore_index=-100, label_smoothing=0.0),
        _CROSS_ENTROPY,
        checks_values=True,
    ),
    Operator(
        "aten.triplet_margin_loss.default",
        "loss",
        per_input,
        parameters("x", "near", "far", margin=1.0, p=2.0, eps=1e-6, swap=False, reduction=MEAN),
        _TRIPLET_MARGIN,
    ),
    Operator(
        "aten.cosine_similarity.default",
        "loss",
        per_input,
        parameters("x", "y", dim=1, eps=1e-8),
        _COSINE_SIMILARITY,
    ),
    Operator("aten.nll_loss", "loss", special_per_input, checks_values=True),
)
