"""The winner of a run as an entry of a table."""

import ast
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kmem.deploy.recording import record_calls
from kmem.deploy.shipped.fingerprint import NoFingerprint, fingerprint
from kmem.deploy.shipped.table import Entry, Input, read_entry
from kmem.devices import named_target
from kmem.errors import OutputError
from kmem.host.syntax import parse_python
from kmem.measure.bundle import read_bundle
from kmem.problem.graph import OpGraph
from kmem.problem.source.load import execute_problem
from kmem.problem.tracing.fake import cast_fake_module, quiet_fake_tensors
from kmem.problem.tracing.trace import trace_problem
from kmem.records import Measurement, Precision, Problem, TensorSpec
from kmem.run.report.result import Result

#: The last element that a signed 32-bit offset reaches.
_MAX_OFFSET = 2**31 - 1
#: Source: torch, ATen/core/dispatch/DispatchKeyExtractor.h: a bit for each argument of a schema.
_MOST_ARGUMENTS = 64


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry as a table holds it, with the files that it names."""

    data: dict[str, Any]
    kernel: str  # text
    evidence: str  # text of the bundle


@dataclass(frozen=True, slots=True)
class Wide:
    """Sizes around an entry's own, as a table holds them, with the kernel that serves them."""

    data: dict[str, Any]
    kernel: str  # text


def draft_entries(results: Sequence[Result]) -> list[Draft]:
    """Each run's winner as an entry, under a name of its own.

    Raises OutputError: if a run has no kernel, or one that cannot be shipped, with the reason.
    """
    drafts: list[Draft] = []
    for result in results:
        wanted = re.sub(r"\W+", "_", result.outcome.problem).strip("_").lower() or "kernel"
        if wanted[0].isdigit():  # operators, modules and layers are called after it
            wanted = f"problem_{wanted}"
        taken = {each.data["name"] for each in drafts}
        numbered = (f"{wanted}_{number}" for number in range(2, len(results) + 2))
        name = (
            wanted if wanted not in taken else next(each for each in numbered if each not in taken)
        )
        drafts.append(_draft(result, name))
    return drafts


def entries_of(results: Sequence[Result]) -> tuple[Entry, ...]:
    """The winners of runs as entries whose kernels are the files in the run directories.

    Raises OutputError: as `draft_entries` does.
    """
    return tuple(
        read_entry(_in_place(draft, result), result.directory)
        for draft, result in zip(draft_entries(results), results, strict=True)
    )


def row_of(result: Result) -> dict[str, Any]:
    """A run's winner as a row of a table whose files lie in the run's directory.

    Raises OutputError: as `draft_entries` does.
    """
    (draft,) = draft_entries([result])
    return _in_place(draft, result)


def _in_place(draft: Draft, result: Result) -> dict[str, Any]:
    return draft.data | {
        "kernel": result.kernel_path.name,
        "kernel_sha256": _digest(_read(result.kernel_path, "The run")),
        "evidence": str(result.evidence_path.relative_to(result.directory)),
    }


def _draft(result: Result, name: str) -> Draft:
    what = f"Run {result.run.id} ({result.outcome.problem})"
    best = result.outcome.best
    if best is None:
        raise OutputError(f"{what} has no kernel that beats the best baseline: nothing to ship")
    evidence = _read(result.evidence_path, what)
    kernel = _judged(result, what)
    precision = result.run.contract.precision
    graph, computed = describe_computation(result.run.problem, precision, what)
    _refuse_kernel(kernel, graph, what, estimated=result.estimated)
    data = {
        "name": name,
        **computed,
        "between": [],
        "device": named_target(result.outcome.target).full_name,
        "target": result.outcome.target,
        "kernel": f"kernels/{name}_{best.candidate.kernel.hash[:12]}.py",
        "kernel_sha256": _digest(kernel),
        "precision": precision.value,
        "flags": list(result.outcome.flags),
        "accuracy": _accuracy(best.measurement),
        "timing": _timing(result),
        "evidence": f"evidence/{name}_{best.candidate.kernel.hash[:12]}.json",
        "evidence_sha256": _digest(evidence),
        "run": result.run.id,
        "versions": dict(best.measurement.environment),
    }
    return Draft(data, kernel, evidence)


def describe_computation(
    problem: Problem, precision: Precision, what: str
) -> tuple[OpGraph, dict[str, Any]]:
    """A problem's graph, and what a row of a table says of the module and its inputs.

    Raises OutputError: if no operator can replace the module; `what` begins the reason.
    """
    module = execute_problem(problem)
    graph = trace_problem(module, precision)
    _refuse_graph(graph, what)
    inputs = [_input_data(each.spec, each.value) for each in _inputs(graph)]
    init = list(getattr(module, "get_init_inputs", list)())
    _refuse_constructor(init, what)
    names, prints = _trace_reference(module, init, inputs, precision, what)
    read = {ref for node in graph.nodes for ref in node.refs()}
    state = [
        {"name": each.target, **_spec_data(each.spec)}
        for each in graph.placeholders
        if each.kind in ("parameter", "buffer") and each.name in read
    ]
    taken = sum(each.spec is not None for each in _inputs(graph)) + len(state)
    if taken > _MOST_ARGUMENTS:
        raise OutputError(
            f"{what} cannot be shipped: its operator would take {taken} tensors, and torch's take "
            f"{_MOST_ARGUMENTS} at most; optimise its parts (kmem optimize --pieces)"
        )
    return graph, {
        **prints,
        "inputs": inputs,
        "outputs": [_spec_data(graph.node(each).spec) for each in graph.outputs],
        "returns_tuple": graph.returns_tuple,
        "state": state,
        "parameters": names,
        "training": graph.training,
        "init": repr(init),
    }


def _read(place: Path | None, what: str) -> str:
    if place is None or not place.is_file():
        missing = place.name if place is not None else "the evidence of its verdict"
        raise OutputError(
            f"{what} lacks {missing} in its directory; run the problem again, what was measured "
            "is remembered"
        )
    return place.read_text(encoding="utf-8")


def _judged(result: Result, what: str) -> str:
    """The winner's text as the judge saw it: the user's file has the evidence in its docstring.

    Raises OutputError: if that file is gone, or its code is not what was judged.
    """
    bundle = read_bundle(result.evidence_path)
    if _code(_read(result.kernel_path, what)) != _code(bundle.kernel_source):
        raise OutputError(
            f"{what}: {result.kernel_path} was changed since it was judged; run the problem with "
            "--start and that file, or copy the kernel from its evidence"
        )
    return bundle.kernel_source


def _code(text: str) -> str:
    """What a file does: its text but comments and its docstring."""
    try:
        tree = parse_python(text)
    except (SyntaxError, ValueError):
        return text
    if ast.get_docstring(tree, clean=False) is not None:
        del tree.body[0]
    return ast.dump(tree)


def _refuse_graph(graph: OpGraph, what: str) -> None:
    """Raise OutputError for a module that no operator without side effects can replace."""
    reason = ""
    if graph.opaque_reason is not None:
        reason = f"its forward cannot be traced: {graph.opaque_reason}"
    elif any(graph.node(name) is None for name in graph.outputs):
        reason = "it returns one of its inputs as it is"
    elif any(node.is_in_place for node in graph.nodes) or (
        graph.training and any("batch_norm" in node.target for node in graph.nodes)
    ):
        reason = "it changes its buffers or inputs when it is called; optimise it in eval mode"
    if reason:
        raise OutputError(f"{what} cannot be shipped: {reason}")


def _refuse_kernel(kernel: str, graph: OpGraph, what: str, *, estimated: bool) -> None:
    """Raise OutputError for a kernel that tunes when it is called, or whose offsets may overflow.

    A kernel that was judged on the GPU has been there at its very sizes; an estimate has not.
    """
    if "autotune(" in kernel:
        raise OutputError(
            f"{what} cannot be shipped: its kernel tunes itself when it is called, which a CUDA "
            "graph cannot capture and no two processes do alike; write the best settings into it"
        )
    made = (each.output for each in graph.nodes)
    specs = [each.spec for each in graph.placeholders if each.spec is not None]
    for output in made:
        specs += [output] if isinstance(output, TensorSpec) else list(output or ())
    far = max(map(_extent, specs), default=0)
    if estimated and far > _MAX_OFFSET and "int64" not in kernel:
        raise OutputError(
            f"{what} cannot be shipped: a tensor of it reaches {far} elements, past 32-bit "
            "offsets, and its kernel has no 64-bit ones and never ran at this size; run it on a "
            "GPU, or use .to(tl.int64) in the kernel"
        )


def _extent(spec: TensorSpec) -> int:
    """How many elements of memory a tensor reaches over."""
    if 0 in spec.shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(spec.shape, spec.stride, strict=True))


def _refuse_constructor(init: list[object], what: str) -> None:
    try:
        if ast.literal_eval(repr(init)) == init:
            return
    except (ValueError, SyntaxError):
        pass
    raise OutputError(
        f"{what} cannot be shipped: its constructor takes {init!r:.60}, which no table can hold; "
        "let get_init_inputs() return numbers, strings, lists and tuples"
    )


def _trace_reference(
    module: ModuleType,
    init: list[object],
    inputs: Sequence[dict[str, Any]],
    precision: Precision,
    what: str,
) -> tuple[list[str], dict[str, Any]]:
    """Names of all parameters of the problem's Model, its fingerprint, and its calls.

    On fake tensors.
    """
    given = [
        Input(None, None, None, each["value"])
        if "value" in each
        else Input(tuple(each["shape"]), tuple(each["stride"]), getattr(torch, each["dtype"]))
        for each in inputs
    ]
    try:
        with quiet_fake_tensors():
            with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"):
                model = module.Model(*init)
            if precision is Precision.BF16:
                model = cast_fake_module(model, torch.bfloat16)
            mark = fingerprint(model, given, torch.device("cpu"))
    except NoFingerprint as ex:
        raise OutputError(f"{what} cannot be shipped: its forward cannot be traced: {ex}") from ex
    marks = {"graph": mark, "calls": record_calls(model, given)}
    return [name for name, _ in model.named_parameters()], marks


def _inputs(graph: OpGraph) -> list[Any]:
    return [each for each in graph.placeholders if each.kind == "input"]


def _input_data(spec: TensorSpec | None, value: object) -> dict[str, Any]:
    return {"value": value} if spec is None else _spec_data(spec)


def _spec_data(spec: TensorSpec) -> dict[str, Any]:
    return {"shape": list(spec.shape), "stride": list(spec.stride), "dtype": spec.dtype}


def _accuracy(measurement: Measurement) -> dict[str, Any]:
    """The family of inputs on which the kernel came nearest to what is allowed."""
    worst = max(measurement.errors, key=lambda each: each.excess, default=None)
    return {
        "families": len(measurement.errors),
        "worst_family": worst.family if worst else "",
        "relative_error": worst.relative_error if worst else 0.0,
        "reference_error": worst.reference_error if worst else 0.0,
        "allowed_error": worst.allowed_error if worst else 0.0,
    }


def _timing(result: Result) -> dict[str, Any]:
    timing = result.outcome.best.measurement.timing
    return {
        "estimated": result.estimated,
        "latency_ms": timing.latency_ms,
        "baselines_ms": dict(result.baselines_ms),
        "speedup": result.speedup,
        "ratio_low": timing.ratio_low,
        "ratio_high": timing.ratio_high,
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
