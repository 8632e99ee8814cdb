"""What losses mean as Maps, Reduces and a Total.

Formulas are those of the torch documentation of each operator.

`ELEMENT_LOSSES` reduce a term per element over everything. `ROW_LOSSES` reduce a row first: cross
entropy over classes, distances and similarities over features; a mean over rows then is a Total.
`loss_dims` and `is_supported_loss` say what matches, `lower_loss` writes it.

Covered: reductions "mean" and "sum", and "none" for ROW_LOSSES. Not covered: class and element
weights, distances other than Euclidean.
"""

from typing import TYPE_CHECKING

from kmem.codegen.pointwise import FLOATS, argument, variable, write_number
from kmem.codegen.region import Total
from kmem.problem.graph import Node, OpGraph, Ref

if TYPE_CHECKING:  # lowering.py calls this module; the name is needed for annotations alone
    from kmem.codegen.lowering import Lowering

#: target -> place of its `reduction` argument (0 none, 1 mean, 2 sum).
ELEMENT_LOSSES = {
    "aten.mse_loss.default": 2,
    "aten.l1_loss.default": 2,
    "aten.smooth_l1_loss.default": 2,
    "aten.huber_loss.default": 2,
    "aten.kl_div.default": 2,
    "aten.binary_cross_entropy.default": 3,
    "aten.binary_cross_entropy_with_logits.default": 4,
}
ROW_LOSSES = {"aten.cross_entropy_loss.default": 3, "aten.triplet_margin_loss.default": 7}
SIMILARITIES = ("aten.cosine_similarity.default",)
_NAN = ", propagate_nan=tl.PropagateNan.ALL)"


def loss_dims(graph: OpGraph, node: Node) -> tuple[int, ...] | None:
    """The dimensions a loss reduces before anything that goes over rows; None if it has no rows."""
    rank = len(graph.spec(node.args[0].name).shape)
    if node.target in ELEMENT_LOSSES:
        return tuple(range(rank))
    if rank < 2:
        return None
    if node.target == "aten.cross_entropy_loss.default":
        return (1,)
    if node.target == "aten.triplet_margin_loss.default":
        return (rank - 1,)
    return (argument(node, 2, "dim", 1) % rank,)


def reduces_rows(node: Node) -> bool:
    """Whether a loss ends in a sum over rows."""
    return (
        node.target in ROW_LOSSES and argument(node, ROW_LOSSES[node.target], "reduction", 1) != 0
    )


def is_supported_loss(graph: OpGraph, node: Node) -> bool:
    """Whether a loss's other inputs and its options are ones that can be written."""
    if node.target == "aten.cross_entropy_loss.default":
        return _is_supported_cross_entropy(graph, node)
    count = 3 if node.target.startswith("aten.triplet") else 2
    shape = graph.spec(node.args[0].name).shape
    for other in node.args[1:count]:
        if (
            not isinstance(other, Ref)
            or graph.spec(other.name).shape != shape
            or graph.spec(other.name).dtype not in FLOATS
        ):
            return False
    if node.target in SIMILARITIES:
        return True
    if node.target in ROW_LOSSES:
        return argument(node, 4, "p", 2.0) == 2 and not argument(node, 6, "swap", False)
    has_weight = "binary" in node.target and (
        argument(node, 2, "weight") is not None or node.kwargs.get("pos_weight") is not None
    )
    has_weight |= (
        node.target.endswith("with_logits.default") and argument(node, 3, "pos_weight") is not None
    )
    return not has_weight and argument(node, ELEMENT_LOSSES[node.target], "reduction", 1) in (1, 2)


def _is_supported_cross_entropy(graph: OpGraph, node: Node) -> bool:
    """Class indices, no class weights."""
    logits, labels = graph.spec(node.args[0].name), node.args[1]
    kept = (*logits.shape[:1], *logits.shape[2:])
    is_index = (
        isinstance(labels, Ref)
        and graph.spec(labels.name).dtype == "int64"
        and graph.spec(labels.name).shape == kept
    )
    return is_index and argument(node, 2, "weight") is None


def lower_loss(space: "Lowering", node: Node, source: str) -> None:
    """Append the statements of a loss that `is_supported_loss`; one that reduces rows sets
    `space.total`.
    """
    name = node.target.split(".")[1]
    if node.target in ELEMENT_LOSSES:
        _element_loss(space, node, source, name)
    elif name == "cross_entropy_loss":
        _cross_entropy(space, node, source)
    elif name == "triplet_margin_loss":
        _triplet_margin(space, node, source)
    else:
        _cosine_similarity(space, node, source)


def _element_loss(space: "Lowering", node: Node, source: str, name: str) -> None:
    out = variable(node.name)
    other = space.read(node.args[1].name, "full")
    if name in ("kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits"):
        term = space.map(f"{out}_term", _pair_term(node, source, other, name), source, other)
    else:
        gap = space.map(f"{out}_gap", f"{source} - {other}", source, other)
        term = space.map(f"{out}_term", _gap_term(node, gap, name), gap)
    (total,) = space.reduce((f"{out}_sum",), "sum", term)
    mean = argument(node, ELEMENT_LOSSES[node.target], "reduction", 1) == 1
    space.map(out, f"tl.div_rn({total}, {write_number(space.columns)})" if mean else total, total)


def _pair_term(node: Node, x: str, y: str, name: str) -> str:
    if name == "kl_div":  # x holds log-probabilities; y log y is 0 at 0
        if argument(node, 3, "log_target", False):
            return f"stable_exp({y}) * ({y} - {x})"
        return f"tl.where({y} == 0.0, 0.0, {y} * tl.log({y})) - {y} * {x}"
    if name == "binary_cross_entropy":  # torch clamps logarithms at -100
        near = f"tl.maximum(tl.log({x}), -100.0{_NAN}"
        far = f"tl.maximum(stable_log1p(-({x})), -100.0{_NAN}"
        return f"({y} - 1.0) * {far} - {y} * {near}"
    return (
        f"(1.0 - {y}) * {x} - (tl.minimum({x}, 0.0{_NAN} - stable_log1p(stable_exp(-tl.abs({x}))))"
    )


def _gap_term(node: Node, gap: str, name: str) -> str:
    size = f"tl.abs({gap})"
    if name == "mse_loss":
        return f"{gap} * {gap}"
    if name == "l1_loss":
        return size
    # Source: torch.nn.functional.smooth_l1_loss (beta) and huber_loss (delta = beta, times delta)
    bend = argument(node, 3, "delta" if name == "huber_loss" else "beta", 1.0)
    near, far = f"0.5 * {gap} * {gap}", f"{size} - {write_number(0.5 * bend)}"
    if name == "huber_loss":
        return f"tl.where({size} <= {write_number(bend)}, {near}, ({far}) * {write_number(bend)})"
    return (
        size
        if bend == 0
        else (
            f"tl.where({size} < {write_number(bend)}, tl.div_rn({near}, {write_number(bend)}), "
            f"{far})"
        )
    )


def _finish_rows(space: "Lowering", node: Node, row: str, count: str | None = None) -> None:
    """A row-level loss as the node's value: itself, its sum over rows, or its mean over the rows
    counted.
    """
    out, reduction = variable(node.name), argument(node, ROW_LOSSES[node.target], "reduction", 1)
    if reduction == 0:
        space.map(out, row, row)
    elif reduction == 2:
        space.total = Total((row,), "total_0", 0)
    elif count is None:
        rows = space.graph.spec(node.args[0].name).numel // space.columns
        space.total = Total((row,), f"tl.div_rn(total_0, {write_number(rows)})", 0)
    else:
        space.total = Total((row, count), "tl.div_rn(total_0, total_1)", 0)


def _cross_entropy(space: "Lowering", node: Node, source: str) -> None:
    """log(sum(exp(x))) minus the label's x, mixed with the mean over classes by label smoothing;
    ignored rows count nothing.
    """
    out = variable(node.name)
    label = space.read(node.args[1].name, "squeezed")
    top, total = space.reduce((f"{out}_max", f"{out}_sum"), "softmax", source)
    chosen = space.map(f"{out}_chosen", f"tl.where(r == {label}, {source}, 0.0)", source, label)
    (logit,) = space.reduce((f"{out}_logit",), "sum", chosen)
    text, reads = f"({top} - {logit}) + tl.log({total})", (top, total, logit)
    smoothing = argument(node, 5, "label_smoothing", 0.0)
    if smoothing:
        (everything,) = space.reduce((f"{out}_logits",), "sum", source)
        uniform = (
            f"({top} - tl.div_rn({everything}, {write_number(space.columns)})) + tl.log({total})"
        )
        text = f"{write_number(1 - smoothing)} * ({text}) + {write_number(smoothing)} * ({uniform})"
        reads = (*reads, everything)
    is_counted = f"{label} != {int(argument(node, 4, 'ignore_index', -100))}"
    row = space.map(f"{out}_row", f"tl.where({is_counted}, {text}, 0.0)", *reads, label)
    count = space.map(f"{out}_count", f"tl.where({is_counted}, 1.0, 0.0)", label)
    _finish_rows(space, node, row, count)


def _triplet_margin(space: "Lowering", node: Node, anchor: str) -> None:
    """max(margin + |a - p + eps| - |a - n + eps|, 0).

    Source: torch.nn.functional.triplet_margin_loss and pairwise_distance.
    """
    out, eps = variable(node.name), write_number(argument(node, 5, "eps", 1e-6))
    distances = []
    for place, side in ((1, "near"), (2, "far")):
        other = space.read(node.args[place].name, "full")
        gap = space.map(f"{out}_{side}_gap", f"{anchor} - {other} + {eps}", anchor, other)
        square = space.map(f"{out}_{side}_square", f"{gap} * {gap}", gap)
        distances += space.reduce((f"{out}_{side}",), "sum", square)
    near, far = distances
    margin = write_number(argument(node, 3, "margin", 1.0))
    row = space.map(
        f"{out}_row",
        f"tl.maximum({margin} + tl.sqrt_rn({near}) - tl.sqrt_rn({far}), 0.0{_NAN}",
        near,
        far,
    )
    _finish_rows(space, node, row)


def _cosine_similarity(space: "Lowering", node: Node, x: str) -> None:
    """x.y over the product of the norms, each at least eps.

    Source: torch.nn.functional.cosine_similarity.
    """
    out, eps = variable(node.name), write_number(argument(node, 3, "eps", 1e-8))
    y = space.read(node.args[1].name, "full")
    sums = []
    for name, left, right in (("dot", x, y), ("x", x, x), ("y", y, y)):
        product = space.map(f"{out}_{name}_product", f"{left} * {right}", left, right)
        sums += space.reduce((f"{out}_{name}",), "sum", product)
    dot, first, second = sums
    norms = [f"tl.maximum(tl.sqrt_rn({value}), {eps}{_NAN}" for value in (first, second)]
    space.map(out, f"tl.div_rn(tl.div_rn({dot}, {norms[0]}), {norms[1]})", dot, first, second)
