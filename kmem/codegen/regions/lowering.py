"""From aten nodes to the statements of a region.

`Lowering` holds one iteration space (full shape, reduced dimensions, axes) and appends statements
node by node; matching.py decides which nodes. What a node means stands in the row of its operator
(kmem/problem/operators/); `Lowering` is the builder that rows write with. A value's form says how
its shape sits in the space, see `Form`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from kmem.codegen.regions.pointwise import element_inputs, write_pointwise
from kmem.codegen.regions.region import (
    Load,
    Map,
    Reduce,
    Region,
    Store,
    Total,
    axis_strides,
    value_levels,
)
from kmem.codegen.regions.space import RowSpace, find_reduction, space_of
from kmem.problem.dtypes import FLOATS, LOADABLE
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.builder import Form
from kmem.problem.operators.expressions import Expression, as_expression, variable
from kmem.problem.operators.row import (
    Call,
    Channelwise,
    Layout,
    Pointwise,
    Reduction,
    Summed,
)
from kmem.problem.operators.table import find_operator, lowering_of
from kmem.recipes import Operand
from kmem.records import TensorSpec

#: Most rows whose values one program adds up: eight steps of its loop.
_MOST_TOTALLED = 2**17


@dataclass
class Lowering:
    """Statements of one region while it is built; a `RegionBuilder`."""

    graph: OpGraph
    space: RowSpace
    forms: dict[str, Form] = field(default_factory=dict)
    statements: list[Load | Map | Reduce] = field(default_factory=list)
    inputs: dict[str, Operand] = field(default_factory=dict)
    changes: list[Store] = field(default_factory=list)  # of buffers, in place
    total: Total | None = None
    totals: dict[str, str] = field(default_factory=dict)  # values after the total, as its texts
    _loads: dict[tuple[str, Form, tuple[int, ...]], str] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.space.shape

    @property
    def columns(self) -> int:
        return self.space.columns

    # --- which form a node's value would have

    def form_of(self, node: Node) -> Form | None:
        """The form that a node's value would have here; None if the node does not fit the space."""
        lowering = lowering_of(self.graph, node)
        if isinstance(lowering, Channelwise):
            return self._form_of_channelwise(node, lowering)
        if isinstance(lowering, Reduction):
            return self._form_of_reduction(node)
        if lowering is Layout.TAKE:
            # of a reduction with values and indices, or of equal shapes broadcast together
            return self.forms.get(node.args[0].name)
        if lowering is Layout.BROADCAST:
            is_full = all(spec.shape == self.shape for spec in node.output)
            return Form.FULL if is_full else None
        output = node.output
        if isinstance(output, tuple) and lowering is Layout.IDENTITY:
            output = output[0]  # the others are read by none
        if isinstance(output, tuple) or output is None:
            return None
        forms = {self.forms[name] for name in node.refs() if name in self.forms}
        if lowering is Layout.RESHAPE:
            return self._form_of_reshaped(node, forms)
        written = write_pointwise(self.graph, node, variable)
        if written is None:
            return None
        if Form.TOTAL in forms:
            is_number = output.numel == 1 and output.dtype in FLOATS
            is_of_it = is_number and len(set(node.refs())) == 1 and not written.helpers
            return Form.TOTAL if is_of_it else None
        if self._is_folded(node, output):
            return Form.FOLDED
        return None if Form.FOLDED in forms else self._form_of_pointwise(output.shape, forms)

    def _is_folded(self, node: Node, output: TensorSpec) -> bool:
        """Whether a pointwise node makes the elements of the space in another shape."""

        def lies_alike(name: str) -> bool:
            spec = self.graph.spec(name)
            if name in self.forms:
                return self.forms[name] is Form.FOLDED and spec.shape == output.shape
            return self.space.unfolded(spec, output.shape) is not None

        is_other = output.shape != self.shape and output.numel == prod(self.shape)
        is_laid = bool(self.space.dims) and is_other and output.is_contiguous
        return is_laid and all(lies_alike(name) for name in element_inputs(self.graph, node))

    def _form_of_channelwise(self, node: Node, lowering: Channelwise) -> Form | None:
        source = node.args[0]
        is_full = isinstance(source, Ref) and self.forms.get(source.name, Form.FULL) is Form.FULL
        call = find_operator(node.target).call(self.graph, node)
        fits = (
            lowering.supports(call)
            and node.spec.shape == self.shape
            and all(self.graph.spec(name).dtype in FLOATS for name in node.refs())
        )
        return Form.FULL if is_full and fits else None

    def _form_of_reshaped(self, node: Node, forms: set[Form]) -> Form | None:
        """A squeezed value that regains its reduced dimensions, one that is folded or unfolded."""
        if forms == {Form.FOLDED}:
            return Form.FULL if node.output.shape == self.shape else None
        source = node.args[0]
        if forms == {Form.FULL} and self.graph.spec(node.refs()[0]).shape == self.shape:
            is_other = bool(self.space.dims) and node.output.shape != self.shape
            return Form.FOLDED if is_other and node.output.is_contiguous else None
        is_squeezed = (
            forms == {Form.SQUEEZED} and isinstance(source, Ref) and source.name in self.forms
        )
        fits = is_squeezed and not self.space.groups and node.output.shape == self.space.kept_shape
        return Form.FULL if fits else None

    def _form_of_pointwise(self, shape: tuple[int, ...], forms: set[Form]) -> Form | None:
        if Form.SQUEEZED in forms:
            fits = forms == {Form.SQUEEZED} and shape == self.space.squeezed_shape
            return Form.SQUEEZED if fits else None
        if len(shape) > len(self.shape):
            return None
        padded = (1,) * (len(self.shape) - len(shape)) + shape
        fits = all(size in (1, full) for size, full in zip(padded, self.shape, strict=True))
        return Form.FULL if fits else None

    def _form_of_reduction(self, node: Node) -> Form | None:
        space = space_of(self.graph, node)
        if space != self.space:
            return Form.TOTAL if self._is_total(node, space) else None
        source = node.args[0].name
        if self.graph.spec(source).dtype not in FLOATS:
            return None
        if self.forms.get(source, Form.FULL) is not Form.FULL:
            return None
        reduction, call = find_reduction(self.graph, node)
        if not reduction.supports(self, call):
            return None
        if reduction.leaves_total(call):
            return Form.TOTAL if self.total is None else None
        _, keeps_dims = reduction.dims(call)
        return Form.FULL if keeps_dims or self._squeezes_in_front() else Form.SQUEEZED

    def _is_total(self, node: Node, space: RowSpace | None) -> bool:
        """Whether a node sums over all rows what is theirs: an element's, or one value of each."""
        found = find_reduction(self.graph, node)
        if space is None or found is None or found[0].summed is None or self.total is not None:
            return False
        reduction, call = found
        if space.rows > 1 or not 1 < self.space.rows <= _MOST_TOTALLED:
            return False
        if not reduction.supports(self, call):
            return False
        source = call.value("x")
        if self.graph.spec(source).dtype not in FLOATS:
            return False  # whole numbers add up exactly, in other registers
        if space.shape == self.shape:
            return self.forms.get(source, Form.FULL) is Form.FULL
        if source not in self.forms or space.columns != self.space.rows:
            return False
        return not value_levels(self.space.axes, self.statements)[variable(source)]

    def _squeezes_in_front(self) -> bool:
        missing = len(self.shape) - len(self.space.squeezed_shape)
        is_leading = all(size == 1 for size in self.space.kept_shape[:missing])
        return is_leading and self.space.squeezed_is_kept

    # --- what rows write with, see RegionBuilder

    def read(self, name: str, form: Form = Form.FULL, folded: tuple[int, ...] = ()) -> str:
        if name in self.forms:
            return variable(name)
        key = (name, form, folded)
        if key not in self._loads:
            spec, made = self.graph.spec(name), variable(name)
            if form is Form.SQUEEZED:
                made = f"{made}_row"
            elif form is Form.FOLDED and spec.shape != folded:
                known = sum(each[:2] == (name, form) for each in self._loads)
                made = f"{made}_folded{known or ''}"  # the same at every size
            self._loads[key] = self.load(made, name, self.strides(spec, form, folded))
        return self._loads[key]

    def load(self, variable_name: str, name: str, strides: tuple[int, ...]) -> str:
        spec = self.graph.spec(name)
        operand = self.inputs.setdefault(name, Operand(name, spec))
        place = list(self.inputs).index(operand.name)
        self.statements.append(Load(variable_name, place, strides, spec.dtype))
        return variable_name

    def map(self, name: str, expression: str | Expression, *reads: str, share_of: str = "") -> str:
        written = as_expression(expression)
        self.statements.append(Map(name, written.text, reads, written.helpers, share_of))
        return name

    def reduce(
        self, names: tuple[str, ...], kind: str, read: str, beside: str = ""
    ) -> tuple[str, ...]:
        self.statements.append(Reduce(names, kind, read, beside))
        return names

    def makes(self, name: str) -> bool:
        return name in self.forms

    def change(self, name: str, buffer: str, strides: tuple[int, ...]) -> None:
        place, dtype = list(self.inputs).index(buffer), self.graph.spec(buffer).dtype
        self.changes.append(Store(name, place, strides, dtype, is_row=True, in_place=True))

    def add_total(self, values: tuple[str, ...], text: str) -> None:
        self.total = Total(values, text, 0)

    def strides(
        self, spec: TensorSpec, form: Form = Form.FULL, folded: tuple[int, ...] = ()
    ) -> tuple[int, ...]:
        if form is Form.FOLDED:
            spec = self.space.unfolded(spec, folded or spec.shape)  # else it would not be folded
        if form in (Form.FULL, Form.FOLDED):
            return axis_strides(self.space.axes, self.shape, spec)
        kept = [dim for dim in range(len(self.shape)) if dim not in self.space.dims]
        strides = []
        for axis in self.space.axes:
            place = kept.index(axis.dim) - (len(kept) - len(spec.shape)) if axis.dim in kept else -1
            strides.append(spec.stride[place] if place >= 0 and spec.shape[place] != 1 else 0)
        return tuple(strides)

    def channel_strides(self, spec: TensorSpec) -> tuple[int, ...]:
        # a vector of one element is for all channels
        step = spec.stride[0] if spec.shape and spec.shape[0] > 1 else 0
        return tuple(
            step * axis.step if axis.dim == 1 and axis.size > 1 else 0 for axis in self.space.axes
        )

    # --- nodes

    def add(self, node: Node) -> bool:
        """Append a node; False if it does not fit.

        After False this object is of no more use.
        """
        form = self.form_of(node)
        if form is None:
            return False
        operator = find_operator(node.target)
        call = operator.call(self.graph, node)
        lowering = operator.lowering_of(call)
        if isinstance(lowering, Reduction) and space_of(self.graph, node) != self.space:
            self.add_total((self._row_sum(call, lowering.summed),), lowering.summed.of_total(call))
        elif isinstance(lowering, Channelwise | Reduction):
            lowering.lower(self, call)
        elif lowering is Layout.TAKE:
            self._add_taken(node)
        elif lowering is Layout.RESHAPE:
            source = variable(node.args[0].name)
            self.map(variable(node.name), source, source)
        elif form is Form.TOTAL:
            written = write_pointwise(self.graph, node, lambda name: f"({self.totals[name]})")
            self.total = replace(self.total, text=written.text)
        # the results of a broadcast are written where they are taken
        elif lowering is not Layout.BROADCAST:
            self._add_pointwise(node, form)
        self.forms[node.name] = form
        if form is Form.TOTAL:
            self.totals[node.name] = self.total.text
        return True

    def _row_sum(self, call: Call, summed: Summed) -> str:
        row = None if summed.row is None else summed.row(self, call)
        if row is not None:
            return row
        term = summed.term(self, call)
        if call.spec("x").shape == self.shape:
            (term,) = self.reduce((f"{call.out}_row",), "sum", term)
        return term

    def _add_taken(self, node: Node) -> None:
        producer = self.graph.node(node.args[0].name)
        lowering = lowering_of(self.graph, producer)
        if lowering is Layout.BROADCAST:
            source = self.read(producer.args[0][node.args[1]].name)
            self.map(variable(node.name), source, source)
        elif lowering is Layout.IDENTITY and node.args[1] == 0:
            self.map(variable(node.name), variable(producer.name), variable(producer.name))

    def _add_pointwise(self, node: Node, form: Form) -> None:
        shape = node.spec.shape if form is Form.FOLDED else ()
        names = {name: self.read(name, form, shape) for name in element_inputs(self.graph, node)}
        variables = tuple(dict.fromkeys(names.values()))
        if self._is_quotient(node) and len(names) == 2 and self._divides_by_row_value(*variables):
            self._add_row_division(variable(node.name), *variables)
            return
        written = write_pointwise(self.graph, node, lambda name: names[name])
        self.map(variable(node.name), written, *variables)

    def _is_quotient(self, node: Node) -> bool:
        lowering = lowering_of(self.graph, node)
        return isinstance(lowering, Pointwise) and lowering.is_quotient

    def _divides_by_row_value(self, numerator: str, divisor: str) -> bool:
        levels = value_levels(self.space.axes, self.statements)
        return levels[numerator] and not levels[divisor]

    def _add_row_division(self, out: str, numerator: str, divisor: str) -> None:
        """Append out = numerator / divisor by one division per row.

        An IEEE division per element takes a branch and about ten instructions. Error: 1.5 units of
        the last place instead of 0.5. The power of two keeps the reciprocal of tiny and huge
        divisors (below 2^-100, above 2^100) a normal number; products with it are exact.
        """
        size = f"tl.abs({divisor})"
        tiny, huge = repr(2.0**-100), repr(2.0**100)
        above = f"tl.where({size} > {huge}, {tiny}, 1.0)"
        power = self.map(f"{out}_power", f"tl.where({size} < {tiny}, {huge}, {above})", divisor)
        inverse = self.map(f"{out}_inverse", f"tl.div_rn(1.0, {divisor} * {power})", divisor, power)
        self.map(out, f"({numerator} * {inverse}) * {power}", numerator, inverse, power)

    # --- the whole region

    def finish(self, operator: str, outputs: Sequence[str]) -> Region | None:
        """The region with these outputs.

        Returns: None if one cannot be stored, or a row-level store holds an element-level value.
        """
        totals = [index for index, name in enumerate(outputs) if self.forms[name] is Form.TOTAL]
        stores = [
            self._store(name, index) for index, name in enumerate(outputs) if index not in totals
        ]
        if not outputs or any(store is None for store in stores) or len(totals) > 1:
            return None
        region = Region(
            operator,
            self.space.axes,
            self._needed([*stores, *self.changes]),
            (*stores, *self.changes),
            tuple(self.inputs.values()),
            tuple(Operand(name, self.graph.spec(name)) for name in outputs),
            self._total_of(outputs[totals[0]], totals[0]) if totals else None,
        )
        levels = region.levels()
        if any(store.is_row and levels[store.value] for store in stores):
            return None
        reads = [item.reads for item in region.statements if isinstance(item, Reduce)]
        if not all(levels[name] for each in reads for name in each):
            # a reduction over a broadcast dimension: the count would have to multiply in
            return None
        return region

    def _needed(self, stores: Sequence[Store]) -> tuple[Load | Map | Reduce, ...]:
        """All statements; where an expectation stands for a softmax, those that something reads."""
        if all(
            not isinstance(item, Reduce) or item.kind != "expectation" for item in self.statements
        ):
            return tuple(self.statements)
        needed = {store.value for store in stores}
        needed.update(self.total.values if self.total else ())
        kept: list[Load | Map | Reduce] = []
        for item in reversed(self.statements):
            if needed.intersection(item.names if isinstance(item, Reduce) else (item.name,)):
                kept.append(item)
                needed.update(() if isinstance(item, Load) else item.reads)
        return tuple(reversed(kept))

    def _total_of(self, name: str, output: int) -> Total:
        return replace(self.total, text=self.totals[name], output=output)

    def _store(self, name: str, output: int) -> Store | None:
        """How a value of the region is stored.

        Returns: None if its shape is neither the full one, folded, the kept nor the squeezed one.
        """
        spec, form = self.graph.spec(name), self.forms[name]
        if spec.dtype not in LOADABLE:
            return None
        padded = (1,) * (len(self.shape) - len(spec.shape)) + spec.shape
        is_element = form is Form.FOLDED or (form is Form.FULL and spec.shape == self.shape)
        if not is_element and form is not Form.SQUEEZED and padded != self.space.kept_shape:
            return None
        strides = self.strides(spec, form)
        return Store(variable(name), output, strides, spec.dtype, is_row=not is_element)
