"""What reductions, softmax and norms mean as Maps and Reduces (losses: losses.py).

Formulas are those of the torch documentation of each operator.
"""

from typing import TYPE_CHECKING

from kmem.codegen.losses import ELEMENT_LOSSES, ROW_LOSSES, SIMILARITIES, lower_loss
from kmem.codegen.pointwise import argument, variable, write_number
from kmem.problem.graph import Node, OpGraph, Ref

if TYPE_CHECKING:  # lowering.py calls this module; the name is needed for annotations alone
    from kmem.codegen.lowering import Lowering


def lower_reduction(space: "Lowering", node: Node) -> None:
    """Append the statements of a reduction or composite node; it must have passed
    `Lowering.form_of`.
    """
    source = space.read(node.args[0].name, "full")
    name = node.target.split(".")[1]
    if name in ("softmax", "log_softmax"):
        _softmax(space, node, source)
    elif name in ("layer_norm", "group_norm", "instance_norm", "batch_norm"):
        _centered_norm(space, node, source, name)
    elif name == "rms_norm":
        _rms_norm(space, node, source)
    elif node.target in (*ELEMENT_LOSSES, *ROW_LOSSES, *SIMILARITIES):
        lower_loss(space, node, source)
    else:
        _reduction(space, node, source, name)


def _reduction(space: "Lowering", node: Node, source: str, name: str) -> None:
    out = variable(node.name)
    if name in ("sum", "prod"):
        space.reduce((out,), name, source)
    elif name == "mean":
        space.reduce((f"{out}_sum",), "sum", source)
        space.map(out, f"tl.div_rn({out}_sum, {write_number(space.columns)})", f"{out}_sum")
    elif name in ("amax", "amin"):
        space.reduce((out,), name[1:], source)
    elif name in ("max", "min") and not isinstance(node.output, tuple):
        space.reduce((out,), name, source)
    elif name in ("max", "min", "argmax", "argmin"):
        _extremum(space, node, source, name)
    elif name in ("var", "std"):
        _variance(space, node, source, name)
    elif name == "logsumexp":
        top, total = space.reduce((f"{out}_max", f"{out}_sum"), "logsumexp", source)
        space.map(out, f"{top} + tl.log({total})", top, total)
    else:
        _vector_norm(space, node, source)


def _extremum(space: "Lowering", node: Node, source: str, name: str) -> None:
    """(values, indices), either alone; with indices, a minimum is the maximum of the negated row."""
    out, graph = variable(node.name), space.graph
    taken = [
        user
        for user in graph.users(node.name)
        if graph.users(user.name) or user.name in graph.outputs
    ]
    if isinstance(node.output, tuple) and taken and all(user.args[1] == 0 for user in taken):
        (value,) = space.reduce((f"{out}_value",), name, source)
        for user in taken:
            space.map(variable(user.name), value, value)
        return
    if name.endswith("min"):
        source = space.map(f"{out}_negated", f"-{source}", source)
    value, index = space.reduce((f"{out}_value", f"{out}_index"), "argmax", source)
    if not isinstance(node.output, tuple):
        space.map(out, index, index)
        return
    results = (f"-{value}" if name.endswith("min") else value, index)
    for user in space.graph.users(node.name):
        place = user.args[1]
        space.map(variable(user.name), results[place], (value, index)[place])


def _variance(space: "Lowering", node: Node, source: str, name: str) -> None:
    out = variable(node.name)
    if node.target.endswith("correction"):
        correction = node.kwargs.get("correction")
        correction = 1 if correction is None else correction
    else:
        place = 2 if node.target.endswith("dim") else 1
        correction = 1 if argument(node, place, "unbiased", True) else 0
    mean, m2 = space.reduce((f"{out}_mean", f"{out}_m2"), "moments", source)
    freedom = max(space.columns - correction, 0)
    text = f"tl.div_rn({m2}, {write_number(freedom)})"
    space.map(out, f"tl.sqrt_rn({text})" if name == "std" else text, mean, m2)


def read_norm(graph: OpGraph, node: Node) -> tuple[float, object, bool] | None:
    """Order, dimensions (None: all) and keepdim of a norm over elements, of any spelling; None for
    the norm of a matrix as a map.
    """
    if node.target == "aten.linalg_matrix_norm.str_ord":
        is_frobenius = argument(node, 1, "ord", "fro") == "fro"
        return (
            (2, argument(node, 2, "dim", (-2, -1)), bool(argument(node, 3, "keepdim", False)))
            if is_frobenius
            else None
        )
    order = argument(node, 1, "ord")
    dims = argument(node, 2, "dim")
    keep = bool(argument(node, 3, "keepdim", False))
    if node.target == "aten.linalg_norm.default" and order is not None:
        rank = len(graph.spec(node.args[0].name).shape)
        if len(dims or range(rank)) != 1:
            return None
    return (2 if order is None else order), dims, keep


def _vector_norm(space: "Lowering", node: Node, source: str) -> None:
    out, order = variable(node.name), read_norm(space.graph, node)[0]
    if order == 2:
        square = space.map(f"{out}_square", f"{source} * {source}", source)
        (total,) = space.reduce((f"{out}_sum",), "sum", square)
        space.map(out, f"tl.sqrt_rn({total})", total)
        return
    size = space.map(f"{out}_abs", f"tl.abs({source})", source)
    space.reduce((out,), "sum" if order == 1 else "max", size)


def _softmax(space: "Lowering", node: Node, source: str) -> None:
    out = variable(node.name)
    top, total = space.reduce((f"{out}_max", f"{out}_sum"), "softmax", source)
    if node.target.startswith("aten.log"):
        offset = space.map(f"{out}_log", f"tl.log({total})", total)
        space.map(out, f"({source} - {top}) - {offset}", source, top, offset)
    else:
        weight = space.map(f"{out}_weight", f"tl.exp({source} - {top})", source, top)
        # a sum of exponentials lies in [1, row length]
        inverse = space.map(f"{out}_inverse", f"tl.div_rn(1.0, {total})", total)
        space.map(out, f"{weight} * {inverse}", weight, inverse)


def _affine(
    space: "Lowering",
    out: str,
    text: str,
    reads: tuple[str, ...],
    weight: object,
    bias: object,
    strides,
) -> None:  # noqa: ANN001
    """out = text * weight + bias, each optional; `strides(spec)` lays them along the axes."""
    for kind, value in (("weight", weight), ("bias", bias)):
        if isinstance(value, Ref):
            name = f"{out}_{kind}"
            space.load(name, value.name, strides(space.graph.spec(value.name)))
            text = f"({text}) * {name}" if kind == "weight" else f"{text} + {name}"
            reads = (*reads, name)
    space.map(out, text, *reads)


def _centered_norm(space: "Lowering", node: Node, source: str, name: str) -> None:
    out = variable(node.name)
    if name in ("layer_norm", "group_norm"):
        weight = argument(node, 2, "weight")
        bias = argument(node, 3, "bias")
        eps = argument(node, 4, "eps", 1e-5)
    else:
        weight = argument(node, 1, "weight")
        bias = argument(node, 2, "bias")
        eps = argument(node, 7, "eps", 1e-5)
    mean, m2 = space.reduce((f"{out}_mean", f"{out}_m2"), "moments", source)
    variance = f"tl.div_rn({m2}, {write_number(space.columns)})"
    scale = space.map(
        f"{out}_scale", f"tl.div_rn(1.0, tl.sqrt_rn({variance} + {write_number(eps)}))", m2
    )

    def strides(spec):  # noqa: ANN001, ANN202 - a TensorSpec to strides per axis
        return space.strides(spec, "full") if name == "layer_norm" else space.channel_strides(spec)

    if name == "batch_norm":
        _update_running(space, node, mean, m2, strides)
    _affine(
        space, out, f"({source} - {mean}) * {scale}", (source, mean, scale), weight, bias, strides
    )


def _update_running(space: "Lowering", node: Node, mean: str, m2: str, strides) -> None:  # noqa: ANN001 - spec to strides per axis
    """Running statistics move towards the batch's by `momentum`, the variance unbiased.

    Source: torch.nn.BatchNorm2d.
    """
    momentum = argument(node, 6, "momentum", 0.1)
    unbiased = f"tl.div_rn({m2}, {write_number(max(space.columns - 1, 0))})"
    for place, fresh, read in ((3, mean, mean), (4, unbiased, m2)):
        buffer = argument(node, place, "running_mean" if place == 3 else "running_var")
        if isinstance(buffer, Ref):
            spec = space.graph.spec(buffer.name)
            old = f"{variable(node.name)}_running_{place}"
            space.load(old, buffer.name, strides(spec))
            new = space.map(
                f"{old}_new",
                f"{write_number(1 - momentum)} * {old} + {write_number(momentum)} * {fresh}",
                old,
                read,
            )
            space.change(new, buffer.name, strides(spec))


def _rms_norm(space: "Lowering", node: Node, source: str) -> None:
    """Source: torch.nn.functional.rms_norm; eps defaults to the machine epsilon of the input's type
    (torch.finfo).
    """
    out = variable(node.name)
    eps = argument(node, 3, "eps")
    if eps is None:
        eps = {"float32": 2.0**-23, "float16": 2.0**-23, "bfloat16": 2.0**-23}[
            space.graph.spec(node.args[0].name).dtype
        ]
    square = space.map(f"{out}_square", f"{source} * {source}", source)
    (total,) = space.reduce((f"{out}_sum",), "sum", square)
    mean = f"tl.div_rn({total}, {write_number(space.columns)})"
    scale = space.map(
        f"{out}_scale", f"tl.div_rn(1.0, tl.sqrt_rn({mean} + {write_number(eps)}))", total
    )
    _affine(
        space,
        out,
        f"{source} * {scale}",
        (source, scale),
        argument(node, 2, "weight"),
        None,
        lambda spec: space.strides(spec, "full"),
    )
