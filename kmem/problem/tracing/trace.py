"""Trace a forward to an `OpGraph` on fake tensors: nothing is computed, no memory is taken.

torch.export is used before decomposition, so that composite operators (softmax, layer_norm, conv2d,
linear) stay whole and can be matched. What torch.export refuses (data-dependent control flow,
exotic inputs) becomes an opaque graph with the reason, never an error.

Covered: modules whose inputs are tensors and plain scalars and which return a tensor or a flat list
or tuple of tensors, in train and eval mode; small tensor constants made in forward from values;
operators of torch, and of plugins that have a row in the table of operators. Not covered (opaque):
nested inputs, dict outputs, larger constants, tensors that are neither parameters nor buffers (a
hidden state kept in an attribute), other operators.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.export.graph_signature import InputKind, InputSpec

from kmem.host.deadline import DeadlinePassed, deadline
from kmem.problem.graph import Node, OpGraph, Placeholder
from kmem.problem.tracing.backward import take_apart
from kmem.problem.tracing.calls import Untraceable, read_call, target_name, tensor_spec
from kmem.problem.tracing.drawing import draw_apart
from kmem.problem.tracing.fake import (
    cast_fake_module,
    cast_floating,
    casting_constructors,
    quiet_fake_tensors,
)
from kmem.problem.tracing.kept import give_attributes_memory, replace_overwritten
from kmem.records import DTYPE_BYTES, Contract, Precision, Purity

logger = logging.getLogger(__name__)

#: Constants up to this many elements are written into the emitted file; a larger one makes the
#: graph opaque.
MAX_CONSTANT_ELEMENTS = 64

#: How reasons begin that are about what a forward returns, or takes, and not what it computes.
_RETURNS, _TAKES = "it returns ", "an input of type "
_CONTAINERS = tuple(_TAKES + kind.__name__ for kind in (dict, list, tuple))

#: For tracing a module in both modes.
TRACE_DEADLINE_S = 300.0


def trace_problem(
    module: ModuleType, precision: Precision = Precision.MATCH, *, both_modes: bool = True
) -> OpGraph:
    """Trace an executed problem file (see load.execute_problem).

    Args:
        module: the namespace with `Model`, `get_inputs` and perhaps `get_init_inputs`.
        precision: BF16 casts the module and its floating inputs to bfloat16 first, as the judge
            does.
        both_modes: trace in train and in eval mode, if that is needed to find out whether the mode
            matters; else the mode counts as if it did, in half the time.
    """
    try:
        with deadline(TRACE_DEADLINE_S):
            graph = _trace(module, precision, training=None)
            if not both_modes or _counts_batches(graph):
                return replace(graph, mode_matters=True)
            other = _trace(module, precision, training=not graph.training)
    except DeadlinePassed:
        reason = f"torch.export has not ended after {TRACE_DEADLINE_S:g} s"
        return OpGraph((), (), (), False, training=True, mode_matters=True, opaque_reason=reason)
    except Untraceable as ex:
        return OpGraph((), (), (), False, training=True, mode_matters=True, opaque_reason=str(ex))
    return replace(graph, mode_matters=other.hash != graph.hash)


def _counts_batches(graph: OpGraph) -> bool:
    """Whether a forward has a batch norm count its batch, which it does in training alone."""
    counters = {
        each.name
        for each in graph.placeholders
        if each.kind == "buffer" and each.target.rpartition(".")[2] == "num_batches_tracked"
    }
    return graph.training and any(
        node.target == "aten.add_.Tensor" and counters & set(node.refs()) for node in graph.nodes
    )


def may_have_pieces(graph: OpGraph) -> bool:
    """Whether a forward is opaque for containers alone, which the pieces of a model do without."""
    reason = graph.opaque_reason
    return reason is not None and (reason.startswith(_RETURNS) or reason in _CONTAINERS)


def trace_under(module: ModuleType, contract: Contract) -> OpGraph:
    """Trace an executed problem file for kernels under a contract."""
    return put_under(trace_problem(module, contract.precision), contract)


def put_under(graph: OpGraph, contract: Contract) -> OpGraph:
    """A traced graph as kernels under a contract are written for it.

    Where the library may compute nothing, it may still draw: dropout is taken apart (drawing.py).
    """
    return draw_apart(graph) if contract.purity is Purity.TRITON else graph


def _trace(module: ModuleType, precision: Precision, *, training: bool | None) -> OpGraph:
    with quiet_fake_tensors():
        # Exporting runs the author's module, which may raise anything at all; whatever it raises is
        # the reason in the report.
        try:
            mode = FakeTensorMode(allow_non_fake_inputs=True)
            with mode, torch.device("cpu"):
                inputs = list(module.get_inputs())
            model = _make_model(module, mode)
            for value in inputs:
                if not isinstance(value, torch.Tensor | int | float | str | None):
                    raise Untraceable(f"{_TAKES}{type(value).__name__}")
            if precision is Precision.BF16:
                model = cast_fake_module(model, torch.bfloat16)
                inputs = [cast_floating(value, torch.bfloat16) for value in inputs]
            if training is not None:
                model.train(training)
            with torch.no_grad():
                program = torch.export.export(model, tuple(inputs), strict=False)
        except Untraceable:
            raise
        except Exception as ex:  # noqa: BLE001 - see above
            raise Untraceable(export_reason(ex)) from ex
    replace_overwritten(program)
    return take_apart(_read_program(program, model.training))


#: Texts of torch.export (non-strict, torch 2.11 to 2.13) -> what they mean for the author of a
#: module.
_EXPORT_TEXTS = {
    # detect_fake_mode, torch/_guards.py
    "doesn't match mode": "forward uses a tensor that is neither input, parameter nor buffer",
    # torch/_export/non_strict_utils.py
    "was assigned during export": "forward keeps a tensor in an attribute",
}


def export_reason(error: Exception) -> str:
    """One line that says why a forward cannot be traced."""
    text = str(error)
    for fragment, meaning in _EXPORT_TEXTS.items():
        if fragment in text:
            return meaning
    first = text.splitlines()[0] if text else ""
    return f"torch.export refused it: {type(error).__name__}: {first}"


def _make_model(module: ModuleType, mode: FakeTensorMode) -> torch.nn.Module:
    """The model on fake tensors; on real ones where its constructor reads a tensor's value."""
    try:
        with mode, torch.device("cpu"), casting_constructors():
            model = module.Model(*_init_inputs(module))
    except DataDependentOutputException:
        logger.info(
            "%s: Model reads tensor values in its constructor; "
            "it is built with real memory to be traced",
            module.__file__,
        )
        with torch.device("cpu"):
            return module.Model(*_init_inputs(module))
    return give_attributes_memory(model, above=MAX_CONSTANT_ELEMENTS)


def _init_inputs(module: ModuleType) -> list[object]:
    return list(module.get_init_inputs()) if hasattr(module, "get_init_inputs") else []


_KINDS = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.USER_INPUT: "input",
    InputKind.CONSTANT_TENSOR: "constant",
}


#: What export writes around torch.tensor(...) in forward; the value is the constant's own.
_CONSTANT_COPIES = ("aten.lift_fresh_copy.default", "aten.detach_.default", "aten.detach.default")


def _read_program(program: torch.export.ExportedProgram, training: bool) -> OpGraph:
    spec = program.call_spec.out_spec
    if spec.num_nodes != spec.num_leaves + 1 and not spec.is_leaf():
        raise Untraceable(f"{_RETURNS}a nested structure")
    if not spec.is_leaf() and spec.type not in (tuple, list):
        raise Untraceable(f"{_RETURNS}a {spec.type.__name__}")
    graph = read_flat_program(program, training)
    leaves = len(program.graph_signature.user_outputs)
    if len(graph.outputs) != leaves:
        raise Untraceable(f"{_RETURNS}something that is not a tensor")
    return graph


def read_flat_program(program: torch.export.ExportedProgram, training: bool) -> OpGraph:
    """The graph of an exported program, its inputs and outputs flattened.

    Outputs that are no tensors are left out.

    Raises Untraceable: with the reason, for what an OpGraph cannot say.
    """
    spec = program.call_spec.out_spec
    placeholders = []
    nodes = []
    outputs = ()
    constants: dict[str, str] = {}  # nodes that only copy a constant -> its placeholder
    signature = {entry.arg.name: entry for entry in program.graph_signature.input_specs}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            if signature[node.name].kind is InputKind.CONSTANT_TENSOR and not node.users:
                continue
            placeholder = _read_placeholder(program, node, signature[node.name])
            placeholders.append(placeholder)
            if placeholder.kind == "constant":
                constants[node.name] = node.name
        elif node.op == "call_function":
            target = target_name(node.target)
            if target in _CONSTANT_COPIES and node.args[0].name in constants:
                constants[node.name] = constants[node.args[0].name]
            else:
                nodes.append(read_call(node, target, constants))
        elif node.op == "output":
            leaves = [leaf for leaf in node.args[0] if isinstance(leaf, torch.fx.Node)]
            outputs = tuple(constants.get(leaf.name, leaf.name) for leaf in leaves)
        else:
            raise Untraceable(f"a {node.op} node")
    _refuse_unknown_dtypes([*placeholders, *nodes])
    return OpGraph(
        tuple(placeholders), tuple(nodes), outputs, not spec.is_leaf(), training, mode_matters=False
    )


def _refuse_unknown_dtypes(values: Sequence[Placeholder | Node]) -> None:
    """Raises Untraceable: if there is a tensor of which nobody here knows how large it is."""
    for value in values:
        made = value.spec if isinstance(value, Placeholder) else value.output
        for spec in made if isinstance(made, tuple) else (made,):
            if spec is not None and spec.dtype not in DTYPE_BYTES:
                raise Untraceable(f"it computes with a tensor of dtype {spec.dtype}")


def _read_placeholder(
    program: torch.export.ExportedProgram, node: torch.fx.Node, entry: InputSpec
) -> Placeholder:
    if entry.kind not in _KINDS:
        raise Untraceable(f"an input of kind {entry.kind.name}")
    kind = _KINDS[entry.kind]
    value = node.meta["val"]
    if kind == "constant":
        number = _constant_value(program, entry.target)
        return Placeholder(node.name, kind, "", tensor_spec(value), number)
    if isinstance(value, torch.Tensor):
        return Placeholder(node.name, kind, entry.target or "", tensor_spec(value))
    if value is None or isinstance(value, int | float | str):
        return Placeholder(node.name, "input", "", None, _plain(value))
    raise Untraceable(f"{_TAKES}{type(value).__name__}")


def _plain(value: int | float | str | None) -> int | float | bool | str | None:
    """A number or string as such: of an enum's or NumPy's nothing can be written as Python."""
    for kind in (int, float):
        if isinstance(value, kind) and not isinstance(value, bool):
            return kind(value)
    return str.__str__(value) if isinstance(value, str) else value


def _constant_value(
    program: torch.export.ExportedProgram, name: str
) -> int | float | bool | tuple[object, ...]:
    """A small constant as a number or nested tuples of numbers."""
    tensor = program.constants[name]
    if isinstance(tensor, FakeTensor) or tensor.numel() > MAX_CONSTANT_ELEMENTS:
        raise Untraceable(
            f"forward uses a tensor of {tensor.numel()} elements "
            "that is neither input, parameter nor buffer"
        )
    return _as_tuples(tensor.tolist())


def _as_tuples(value: object) -> object:
    return tuple(_as_tuples(item) for item in value) if isinstance(value, list) else value
