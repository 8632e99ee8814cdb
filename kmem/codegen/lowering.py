"""From aten nodes to the statements of a region: what each reduction and composite norm means in
Maps and Reduces.

`Lowering` holds one iteration space (full shape, reduced dimensions, axes) and appends statements
node by node; matching.py decides which nodes. A value's *form* says how its shape sits in the
space: "full" (aligned to the full shape from the right, reduced dimensions perhaps 1), "squeezed"
(the kept shape, as a reduction with keepdim=False leaves it) or "total" (one number, summed over
rows after everything else).
"""

from dataclasses import dataclass, field, replace

from kmem.codegen.channelwise import is_channelwise, is_supported_channelwise, lower_channelwise
from kmem.codegen.composites import lower_reduction, read_norm
from kmem.codegen.losses import (
    ELEMENT_LOSSES,
    ROW_LOSSES,
    SIMILARITIES,
    is_supported_loss,
    loss_dims,
    reduces_rows,
)
from kmem.codegen.pointwise import FLOATS, IDENTITIES, argument, variable, write_pointwise
from kmem.codegen.region import (
    Axis,
    Load,
    Map,
    Reduce,
    Region,
    Store,
    Total,
    axis_strides,
    value_levels,
)
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.recipes import Operand
from kmem.records import TensorSpec

#: Reductions with signature (x, dims, keepdim, ...): target -> operator.
PLAIN_REDUCTIONS = {
    "aten.sum.default": "sum",
    "aten.sum.dim_IntList": "sum",
    "aten.mean.default": "mean",
    "aten.mean.dim": "mean",
    "aten.amax.default": "max",
    "aten.amin.default": "min",
    "aten.max.default": "max",
    "aten.min.default": "min",
    "aten.prod.default": "prod",
    "aten.prod.dim_int": "prod",
    "aten.logsumexp.default": "logsumexp",
    "aten.argmax.default": "argmax",
    "aten.argmin.default": "argmin",
    "aten.max.dim": "max",
    "aten.min.dim": "min",
    "aten.var.dim": "variance",
    "aten.std.dim": "variance",
    "aten.var.default": "variance",
    "aten.std.default": "variance",
    "aten.var.correction": "variance",
    "aten.std.correction": "variance",
    "aten.linalg_vector_norm.default": "vector_norm",
    "aten.linalg_norm.default": "vector_norm",
    "aten.linalg_matrix_norm.str_ord": "vector_norm",
}
COMPOSITES = {
    "aten.softmax.int": "softmax",
    "aten.log_softmax.int": "log_softmax",
    "aten.layer_norm.default": "layer_norm",
    "aten.rms_norm.default": "rms_norm",
    "aten.group_norm.default": "group_norm",
    "aten.instance_norm.default": "instance_norm",
    "aten.batch_norm.default": "batch_norm",
    **dict.fromkeys((*ELEMENT_LOSSES, *ROW_LOSSES, *SIMILARITIES), "loss"),
}
RESHAPES = (
    "aten.unsqueeze.default",
    "aten.squeeze.dim",
    "aten.view.default",
    "aten.reshape.default",
)


def is_reduction(node: Node) -> bool:
    """Whether a node is a reduction, softmax, norm or loss."""
    return (node.target in PLAIN_REDUCTIONS or node.target in COMPOSITES) and not is_channelwise(
        node
    )


def reduced_dims(graph: OpGraph, node: Node) -> tuple[tuple[int, ...], bool] | None:
    """Reduced dimensions of a reduction or composite, and whether it keeps them; None if it is not
    one that can be lowered.
    """
    if not isinstance(node.args[0], Ref):
        return None
    rank = len(graph.spec(node.args[0].name).shape)
    everything = tuple(range(rank))
    if node.target in ("aten.layer_norm.default", "aten.rms_norm.default"):
        return everything[rank - len(node.args[1]) :], True
    if node.target in ("aten.group_norm.default", "aten.instance_norm.default"):
        return everything[2 if node.target.startswith("aten.instance") else 1 :], True
    if node.target == "aten.batch_norm.default":
        return (everything[0], *everything[2:]), True
    if COMPOSITES.get(node.target) == "loss":
        dims = loss_dims(graph, node)
        return None if dims is None else (dims, False)
    if node.target in ("aten.softmax.int", "aten.log_softmax.int"):
        return (everything[node.args[1]],) if everything else (), True
    if PLAIN_REDUCTIONS.get(node.target) == "vector_norm":
        norm = read_norm(graph, node)
        if norm is None:
            return None
        _, dims, keep = norm
    elif node.target in ("aten.var.correction", "aten.std.correction"):
        dims, keep = argument(node, 1, "dim"), node.kwargs.get("keepdim", False)
    elif node.target in ("aten.var.dim", "aten.std.dim"):
        dims, keep = argument(node, 1, "dim"), argument(node, 3, "keepdim", False)
    elif node.target in (
        "aten.sum.default",
        "aten.mean.default",
        "aten.max.default",
        "aten.min.default",
        "aten.prod.default",
        "aten.var.default",
        "aten.std.default",
    ):
        dims, keep = None, False
    else:
        dims, keep = argument(node, 1, "dim"), argument(node, 2, "keepdim", False)
    if dims is None or dims == ():
        return everything, bool(keep)
    dims = (dims,) if isinstance(dims, int) else dims
    return tuple(sorted(dim % rank for dim in dims)), bool(keep)


@dataclass
class Lowering:
    """Statements of one region while it is built.

    `groups` > 0: dimension 1 is split into (groups, rest), the rest reduced.
    """

    graph: OpGraph
    shape: tuple[int, ...]
    dims: tuple[int, ...]
    groups: int = 0
    forms: dict[str, str] = field(default_factory=dict)
    statements: list[Load | Map | Reduce] = field(default_factory=list)
    inputs: dict[str, Operand] = field(default_factory=dict)
    changes: list[Store] = field(default_factory=list)  # of buffers, in place
    total: Total | None = None
    _loads: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def axes(self) -> tuple[Axis, ...]:
        axes = []
        for dim, size in enumerate(self.shape):
            if dim == 1 and self.groups:
                share = size // self.groups
                axes += [Axis(self.groups, 1, share, False), Axis(share, 1, 1, True)]
            else:
                axes.append(Axis(size, dim, 1, dim in self.dims))
        return tuple(axes)

    @property
    def kept_shape(self) -> tuple[int, ...]:
        return tuple(1 if dim in self.dims else size for dim, size in enumerate(self.shape))

    @property
    def squeezed_shape(self) -> tuple[int, ...]:
        return tuple(size for dim, size in enumerate(self.shape) if dim not in self.dims)

    @property
    def columns(self) -> int:
        total = 1
        for axis in self.axes:
            total *= axis.size if axis.reduced else 1
        return total

    def form_of(self, node: Node) -> str | None:
        """The form a node's value would have here; None if the node does not fit this space."""
        if is_channelwise(node):
            return self._form_of_channelwise(node)
        if is_reduction(node):
            return self._form_of_reduction(node)
        if node.target == "getitem":
            # of a reduction with values and indices, or of equal shapes broadcast together
            return self.forms.get(node.args[0].name)
        if node.target == "aten.broadcast_tensors.default":
            return "full" if all(spec.shape == self.shape for spec in node.output) else None
        if isinstance(node.output, tuple) or node.output is None:
            return None
        forms = {self.forms[name] for name in node.refs() if name in self.forms}
        shape = node.output.shape
        if "total" in forms:
            return None
        if node.target in RESHAPES:
            source = node.args[0]
            if (
                forms != {"squeezed"}
                or not isinstance(source, Ref)
                or source.name not in self.forms
                or self.groups
            ):
                return None
            return "full" if shape == self.kept_shape else None
        if write_pointwise(self.graph, node, variable) is None:
            return None
        if "squeezed" in forms:
            return "squeezed" if forms == {"squeezed"} and shape == self.squeezed_shape else None
        padded = (1,) * (len(self.shape) - len(shape)) + shape
        fits = len(shape) <= len(self.shape) and all(
            size in (1, full) for size, full in zip(padded, self.shape, strict=True)
        )
        return "full" if fits else None

    def _form_of_channelwise(self, node: Node) -> str | None:
        source = node.args[0]
        is_full = isinstance(source, Ref) and self.forms.get(source.name, "full") == "full"
        return (
            "full" if is_full and is_supported_channelwise(self.graph, node, self.shape) else None
        )

    def _form_of_reduction(self, node: Node) -> str | None:
        found = reduced_dims(self.graph, node)
        spec = self.graph.spec(node.args[0].name) if isinstance(node.args[0], Ref) else None
        if (
            found is None
            or spec is None
            or spec.shape != self.shape
            or spec.dtype not in FLOATS
            or self.forms.get(node.args[0].name, "full") != "full"
        ):
            return None
        dims, keep = found
        grouped = node.target == "aten.group_norm.default"
        if (
            dims != self.dims
            or grouped != bool(self.groups)
            or (grouped and argument(node, 1, "num_groups") != self.groups)
        ):
            return None
        if not self._has_supported_arguments(node):
            return None
        if reduces_rows(node):
            return "total" if self.total is None else None
        if (
            keep
            or all(
                size == 1 for size in self.kept_shape[: len(self.shape) - len(self.squeezed_shape)]
            )
            and self._squeezed_is_kept()
        ):
            return "full"
        return "squeezed"

    def _squeezed_is_kept(self) -> bool:
        """Whether the squeezed shape, padded from the left, is the kept shape: true when leading or
        all dimensions are reduced.
        """
        return (1,) * len(self.dims) + self.squeezed_shape == self.kept_shape

    def _has_supported_arguments(self, node: Node) -> bool:
        target = node.target
        if PLAIN_REDUCTIONS.get(target) == "vector_norm":
            return read_norm(self.graph, node)[0] in (1, 2, float("inf")) and not node.kwargs.get(
                "dtype"
            )
        if target == "aten.instance_norm.default":
            return (
                bool(argument(node, 5, "use_input_stats"))
                and argument(node, 3, "running_mean") is None
            )
        if target == "aten.batch_norm.default":
            return self._is_supported_batch_norm(node)
        if COMPOSITES.get(target) == "loss":
            return is_supported_loss(self.graph, node)
        if target in ("aten.argmax.default", "aten.argmin.default"):
            return self.columns < 2**31
        results = node.output if isinstance(node.output, tuple) else (node.output,)
        return all(spec.dtype in (*FLOATS, "int64") for spec in results)

    def _is_supported_batch_norm(self, node: Node) -> bool:
        """Batch statistics with a fixed momentum; running ones that nothing else reads, for they
        change.
        """
        buffers = [
            ref.name
            for place in (3, 4)
            if isinstance(
                ref := argument(node, place, ("running_mean", "running_var")[place - 3]), Ref
            )
        ]
        is_alone = all(
            self.graph.users(name) == (node,) and name not in self.graph.outputs for name in buffers
        )
        has_momentum = isinstance(argument(node, 6, "momentum"), float)
        return (
            argument(node, 5, "training") is True and has_momentum and is_alone and self.columns > 1
        )

    def read(self, name: str, form: str) -> str:
        """The variable of a graph value, loading it if it comes from outside."""
        if name in self.forms:
            return variable(name)
        key = (name, form)
        if key not in self._loads:
            spec = self.graph.spec(name)
            strides = self.strides(spec, form)
            self._loads[key] = variable(name) if form == "full" else f"{variable(name)}_row"
            self.load(self._loads[key], name, strides)
        return self._loads[key]

    def load(self, variable_name: str, name: str, strides: tuple[int, ...]) -> None:
        spec = self.graph.spec(name)
        operand = self.inputs.setdefault(name, Operand(name, spec))
        self.statements.append(
            Load(variable_name, list(self.inputs).index(operand.name), strides, spec.dtype)
        )

    def strides(self, spec: TensorSpec, form: str) -> tuple[int, ...]:
        """Strides of an operand of this form, one per axis."""
        if form == "full":
            return axis_strides(self.axes, self.shape, spec)
        kept = [dim for dim in range(len(self.shape)) if dim not in self.dims]
        strides = []
        for axis in self.axes:
            place = kept.index(axis.dim) - (len(kept) - len(spec.shape)) if axis.dim in kept else -1
            strides.append(spec.stride[place] if place >= 0 and spec.shape[place] != 1 else 0)
        return tuple(strides)

    def channel_strides(self, spec: TensorSpec) -> tuple[int, ...]:
        """Strides of a vector that lies along dimension 1, one per axis; a vector of one element is
        for all channels.
        """
        step = spec.stride[0] if spec.shape and spec.shape[0] > 1 else 0
        return tuple(
            step * axis.step if axis.dim == 1 and axis.size > 1 else 0 for axis in self.axes
        )

    def add(self, node: Node) -> bool:
        """Append a node; False, with nothing to undo by the caller but this object, if it does not
        fit.
        """
        form = self.form_of(node)
        if form is None:
            return False
        if is_channelwise(node):
            lower_channelwise(self, node)
        elif is_reduction(node):
            lower_reduction(self, node)
        elif node.target == "getitem":
            self._add_getitem(node)
        # its results are written where they are taken
        elif node.target != "aten.broadcast_tensors.default":
            self._add_map(node, form)
        self.forms[node.name] = form
        return True

    def _add_getitem(self, node: Node) -> None:
        producer = self.graph.node(node.args[0].name)
        if producer.target == "aten.broadcast_tensors.default":
            source = self.read(producer.args[0][node.args[1]].name, "full")
            self.statements.append(Map(variable(node.name), source, (source,)))

    def _add_map(self, node: Node, form: str) -> None:
        if node.target in RESHAPES:
            source = variable(node.args[0].name)
            self.statements.append(Map(variable(node.name), source, (source,)))
            return
        names = {}
        for name in node.refs():
            if node.target in IDENTITIES and name != node.args[0].name:
                continue  # expand_as reads its second input for its shape alone
            names[name] = self.read(name, form)
        if (
            node.target == "aten.div.Tensor"
            and len(names) == 2
            and self._divides_by_row_value(*names.values())
        ):
            self._add_row_division(variable(node.name), *names.values())
            return
        text = write_pointwise(self.graph, node, lambda name: names[name])
        self.statements.append(Map(variable(node.name), text, tuple(dict.fromkeys(names.values()))))

    def _divides_by_row_value(self, numerator: str, divisor: str) -> bool:
        levels = value_levels(self.axes, self.statements)
        return levels[numerator] and not levels[divisor]

    def _add_row_division(self, out: str, numerator: str, divisor: str) -> None:
        """out = numerator / divisor by one division per row, for an IEEE division per element takes
        a branch and about ten instructions.

        Error: 1.5 units of the last place instead of 0.5. The power of two keeps the reciprocal of
        tiny and huge divisors (below 2^-100, above 2^100) a normal number; products with it are
        exact.
        """
        size = f"tl.abs({divisor})"
        power = self.map(
            f"{out}_power",
            (
                f"tl.where({size} < {2.0**-100!r}, {2.0**100!r}, tl.where({size} > {2.0**100!r}, "
                f"{2.0**-100!r}, 1.0))"
            ),
            divisor,
        )
        inverse = self.map(f"{out}_inverse", f"tl.div_rn(1.0, {divisor} * {power})", divisor, power)
        self.map(out, f"({numerator} * {inverse}) * {power}", numerator, inverse, power)

    def map(self, name: str, text: str, *reads: str) -> str:
        """Append `name = text` and return the name."""
        self.statements.append(Map(name, text, reads))
        return name

    def reduce(self, names: tuple[str, ...], kind: str, read: str) -> tuple[str, ...]:
        self.statements.append(Reduce(names, kind, read))
        return names

    def change(self, name: str, buffer: str, strides: tuple[int, ...]) -> None:
        """A row-level value takes the place of what an input holds."""
        spec = self.graph.spec(buffer)
        self.changes.append(
            Store(
                name,
                list(self.inputs).index(buffer),
                strides,
                spec.dtype,
                is_row=True,
                in_place=True,
            )
        )

    def store(self, name: str, output: int) -> Store | None:
        """How a value of the region is stored; None if its shape is neither the full, the kept nor
        the squeezed one.
        """
        spec, form = self.graph.spec(name), self.forms[name]
        if spec.dtype not in (*FLOATS, "bool", "int64"):
            return None
        if form == "squeezed":
            return Store(variable(name), output, self.strides(spec, "squeezed"), spec.dtype, True)
        if spec.shape == self.shape:
            return Store(
                variable(name), output, axis_strides(self.axes, self.shape, spec), spec.dtype, False
            )
        padded = (1,) * (len(self.shape) - len(spec.shape)) + spec.shape
        if padded == self.kept_shape:
            return Store(
                variable(name), output, axis_strides(self.axes, self.shape, spec), spec.dtype, True
            )
        return None

    def finish(self, operator: str, outputs: tuple[str, ...]) -> Region | None:
        """The region with these outputs; None if one cannot be stored or a row-level store holds an
        element-level value.
        """
        totals = [index for index, name in enumerate(outputs) if self.forms[name] == "total"]
        stores = [
            self.store(name, index) for index, name in enumerate(outputs) if index not in totals
        ]
        if not outputs or any(store is None for store in stores):
            return None
        operands = tuple(Operand(name, self.graph.spec(name)) for name in outputs)
        total = replace(self.total, output=totals[0]) if totals else None
        region = Region(
            operator,
            self.axes,
            tuple(self.statements),
            (*stores, *self.changes),
            tuple(self.inputs.values()),
            operands,
            total,
        )
        levels = region.levels()
        if any(store.is_row and levels[store.value] for store in stores):
            return None
        if any(isinstance(item, Reduce) and not levels[item.read] for item in region.statements):
            # a reduction over a broadcast dimension: the count would have to multiply in
            return None
        return region
