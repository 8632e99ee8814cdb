"""A model as graphs of plain operators, traced on fake tensors: no memory is taken.

A model that torch.export takes whole is one segment. Where it does not (data-dependent control flow
or sizes), the model is cut at module borders: each submodule that can be exported at the shapes
that it is called with is a segment, and what lies between runs as it is written.

Covered beyond problem/tracing/trace.py: dictionaries, keyword arguments, nested inputs and outputs,
tied weights, tensors kept in attributes, constructors that cast, operators that work in place on
what the graph itself made.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils import _pytree as pytree

from kmem.errors import ProblemError
from kmem.host.deadline import DeadlinePassed, deadline
from kmem.problem.graph import OpGraph
from kmem.problem.tracing.calls import Untraceable
from kmem.problem.tracing.fake import (
    cast_fake_module,
    cast_floating,
    casting_constructors,
    quiet_fake_tensors,
)
from kmem.problem.tracing.trace import export_reason, read_flat_program
from kmem.records import Precision
from kmem.whole.graphs.observe import Call, observe_calls
from kmem.whole.graphs.source import Built, ModelSource
from kmem.whole.graphs.tidying import tidied

logger = logging.getLogger(__name__)

#: For exporting one module; a hundred layers take a minute.
EXPORT_DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True)
class Segment:
    """One submodule as a graph; the path is "" for the model itself.

    Inputs and outputs are flat in the graph; `inputs` and `outputs` say how they are nested (as
    pytree.treespec_dumps does). `leaves` has for each leaf of the outputs the place among the
    graph's outputs, or the value itself in a tuple of one. `modes` are the modules inside, by
    paths of the model, that were in another mode than the submodule; `hooks` counts theirs. `ties`
    has the names of each parameter or buffer that has several: the graph knows it by one of them.
    `recorded` are placeholders whose gradients are wanted: parameters that are trained, and inputs.
    """

    path: str
    graph: OpGraph
    inputs: str
    outputs: str
    leaves: tuple[int | tuple[Any], ...]
    calls: int = 1  # of one forward of the model
    modes: tuple[str, ...] = ()
    hooks: int = 0
    ties: tuple[tuple[str, ...], ...] = ()
    recorded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Captured:
    """A model as it was captured.

    `left` are paths of submodules that run as they are written, each with the reason.
    """

    name: str
    segments: tuple[Segment, ...]
    left: tuple[tuple[str, str], ...]
    parameters: int  # elements, tied ones once
    parameter_bytes: int
    notes: tuple[str, ...] = ()


def capture(source: ModelSource, precision: Precision = Precision.MATCH) -> Captured:
    """Trace a model.

    Args:
        precision: BF16 casts the model and its floating inputs first.

    Raises ProblemError: if it cannot be built, or nothing of it can be exported, with the reason.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with deadline(EXPORT_DEADLINE_S), quiet_fake_tensors():
            built = _build_without_values(source, precision, mode)
            notes = _register_kept_tensors(built.module)
            try:
                segments, left = [_export(built.module, "", Call(built.args, built.kwargs))], []
            except Untraceable as ex:
                whole = ("", str(ex))
                segments, cut = _cut_at_borders(source, precision, built, mode)
                left = [whole, *cut]
    except DeadlinePassed as ex:
        raise ProblemError(
            f"{source.text} has not been exported after {EXPORT_DEADLINE_S:g} s; name a submodule"
        ) from ex
    if not segments:
        reason = left[0][1]
        raise ProblemError(
            f"Nothing of {source.text} can be exported ({reason}); name a submodule that can"
        )
    held = {id(each): each for each in (*built.module.parameters(), *built.module.buffers())}
    return Captured(
        source.name if source.problem is not None else type(built.module).__name__,
        tuple(segments),
        tuple(left),
        sum(each.numel() for each in held.values()),
        sum(each.numel() * each.element_size() for each in held.values()),
        tuple(notes),
    )


def _build_without_values(source: ModelSource, precision: Precision, mode: FakeTensorMode) -> Built:
    """The model on fake tensors; on real ones where its constructor reads a tensor's value."""
    try:
        with mode, torch.device("cpu"), casting_constructors():
            return _build(source, precision, fake=True)
    except ProblemError as ex:
        if not isinstance(ex.__cause__, DataDependentOutputException):
            raise
    return build_real(source, precision)


def input_shapes(
    source: ModelSource, precision: Precision = Precision.MATCH
) -> tuple[tuple[int, ...], ...]:
    """The shapes of the tensors that a model is given, which are drawn without memory.

    Raises ProblemError: if it cannot be built.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with quiet_fake_tensors():
        built = _build_without_values(source, precision, mode)
    leaves = pytree.tree_leaves((built.args, dict(built.kwargs)))
    return tuple(tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor))


def _build(source: ModelSource, precision: Precision, *, fake: bool) -> Built:
    built = source.make()
    if precision is not Precision.BF16:
        return built
    cast = cast_fake_module if fake else nn.Module.to
    args, kwargs = pytree.tree_map(
        lambda leaf: cast_floating(leaf, torch.bfloat16), (built.args, dict(built.kwargs))
    )
    return Built(cast(built.module, torch.bfloat16), args, kwargs)


def build_real(
    source: ModelSource, precision: Precision = Precision.MATCH, device: str = "cpu"
) -> Built:
    """The model with values: on a device, its parameters and inputs drawn as its author draws them.

    Raises ProblemError: if it cannot be built.
    """
    with torch.device("cpu"):
        built = _build(source, precision, fake=False)
    args, kwargs = pytree.tree_map(lambda leaf: moved(leaf, device), (built.args, built.kwargs))
    module = built.module.to(device)
    for each in module.modules():  # tensors in attributes, which `to` does not know
        vars(each).update({name: moved(value, device) for name, value in vars(each).items()})
    return Built(module, args, kwargs)


def moved(value: Any, device: str) -> Any:
    """A tensor on a device with the strides that it has, expanded ones too; else what it is.

    `to` makes what is expanded, or has gaps, dense.
    """
    if not isinstance(value, torch.Tensor):
        return value
    there = value.to(device)
    if there.stride() == value.stride() or not value.numel():
        return there
    extent = 1 + sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
    memory = value.as_strided((extent,), (1,), value.storage_offset())
    return memory.to(device).as_strided(value.shape, value.stride(), 0)


def _register_kept_tensors(model: nn.Module) -> list[str]:
    """Make buffers of tensors that modules keep in attributes, which torch.export refuses.

    Returns: sentences for people.
    """
    found = []
    for path, module in model.named_modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):
                del vars(module)[name]
                module.register_buffer(name, value, persistent=False)
                found.append(f"{path}.{name}" if path else name)
    return [f"{name} is a tensor in an attribute and is treated as a buffer" for name in found]


def _export(module: nn.Module, path: str, call: Call) -> Segment:
    """Raises Untraceable: with the reason."""
    args, kwargs = _apart(call)
    try:
        with torch.no_grad():
            program = torch.export.export(module, args, kwargs, strict=False)
    except DeadlinePassed:
        raise
    except Exception as ex:  # exporting runs the author's code, which may raise anything
        raise Untraceable(export_reason(ex)) from ex
    graph = read_flat_program(program, module.training)
    given = pytree.tree_leaves((call.args, dict(call.kwargs)))
    inputs = [each for each in graph.placeholders if each.kind == "input"]
    if len(inputs) != len(given):
        raise Untraceable("export changed the number of its inputs")
    output = next(node for node in program.graph.nodes if node.op == "output")
    leaves: list[int | tuple[Any]] = []
    for leaf in output.args[0]:
        is_tensor = isinstance(leaf, torch.fx.Node)
        leaves.append(sum(not isinstance(each, tuple) for each in leaves) if is_tensor else (leaf,))
    spec = pytree.tree_structure((call.args, dict(call.kwargs)))
    try:
        texts = pytree.treespec_dumps(spec), pytree.treespec_dumps(program.call_spec.out_spec)
    except Exception as ex:  # a class of the author's that torch knows no text for
        raise Untraceable(f"its arguments or results cannot be written down: {ex}") from ex
    modes = tuple(
        name
        for name, each in module.named_modules(prefix=path)
        if each.training is not module.training
    )
    return Segment(
        path,
        _with_paths(tidied(graph), path),
        *texts,
        tuple(leaves),
        call.times,
        modes,
        sum(map(len, inner_hooks(module))),
        tuple(_ties(module, path)),
        tuple(_recorded(module, graph, given, is_inside=bool(path))),
    )


def _recorded(
    module: nn.Module, graph: OpGraph, given: Sequence[Any], *, is_inside: bool
) -> Iterator[str]:
    """Placeholders whose gradients are wanted; of what is inside of a model, of every input."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    leaves = iter(given)
    for each in graph.placeholders:
        value = next(leaves) if each.kind == "input" else parameters.get(each.target)
        if isinstance(value, torch.Tensor) and (
            value.requires_grad or (is_inside and each.kind == "input" and _is_wide(value))
        ):
            yield each.name


def _is_wide(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _ties(module: nn.Module, path: str) -> Iterator[tuple[str, ...]]:
    named: dict[int, list[str]] = {}
    for every in (module.named_parameters, module.named_buffers):
        for name, value in every(prefix=path, remove_duplicate=False):
            named.setdefault(id(value), []).append(name)
    yield from (tuple(names) for names in named.values() if len(names) > 1)


def inner_hooks(module: nn.Module) -> list[Sized]:
    """What is called around the forwards of submodules, which a graph does not call."""
    inside = [each for each in module.modules() if each is not module]
    return [held for each in inside for held in (each._forward_pre_hooks, each._forward_hooks)]


def _apart(call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with a tensor of its own for each leaf.

    Of one tensor that is given twice, a traced graph would read a single input, and compute wrongly
    when two are given.
    """
    seen: set[int] = set()

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) in seen:
            return leaf.detach()
        seen.add(id(leaf))
        return leaf

    args, kwargs = pytree.tree_map(own, (call.args, dict(call.kwargs)))
    return args, kwargs


def _with_paths(graph: OpGraph, path: str) -> OpGraph:
    """Names of submodules and state as the model has them."""
    if not path:
        return graph
    nodes = tuple(
        replace(node, module=f"{path}.{node.module}" if node.module else path)
        for node in graph.nodes
    )
    placeholders = tuple(
        replace(each, target=f"{path}.{each.target}") if each.target else each
        for each in graph.placeholders
    )
    return replace(graph, nodes=nodes, placeholders=placeholders)


# --- models that cannot be exported whole


def _cut_at_borders(
    source: ModelSource, precision: Precision, built: Built, mode: FakeTensorMode
) -> tuple[list[Segment], list[tuple[str, str]]]:
    calls = observe_calls(source, lambda: build_real(source, precision))
    segments: list[Segment] = []
    left: list[tuple[str, str]] = []
    for path in _children(built.module, ""):
        _cut(path, built.module, calls, mode, (segments, left))
    return segments, left


def _children(model: nn.Module, path: str) -> Iterator[str]:
    inside = model.get_submodule(path)
    for name, _ in inside.named_children():
        yield f"{path}.{name}" if path else name


def _cut(
    path: str,
    model: nn.Module,
    calls: Mapping[str, Sequence[Call]],
    mode: FakeTensorMode,
    found: tuple[list[Segment], list[tuple[str, str]]],
) -> None:
    """Export a submodule, or else what is in it."""
    segments, left = found
    module, seen = model.get_submodule(path), calls.get(path, ())
    inside = list(_children(model, path))
    if any(call.is_autocast for call in seen):
        left.append((path, "it runs under autocast"))
        return
    if len(seen) == 1:
        try:
            with mode:
                call = seen[0].as_fake(mode)
            segments.append(_export(module, path, call))
            return
        except Untraceable as ex:
            left.append((path, str(ex)))
    else:
        reason = "it is called with several shapes" if seen else "values decide its shapes"
        left.append((path, reason))
    so_far, told = len(segments), len(left)
    for child in inside:
        _cut(child, model, calls, mode, found)
    if len(segments) == so_far:  # nothing inside either: the module stands for all of it
        del left[told:]
