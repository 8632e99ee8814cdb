"""Assemble a self-contained module file: the problem's own `Model`, the Triton kernels, and
`ModelNew` with one plan per workload.

`ModelNew` subclasses the copied `Model`, so constructor and state_dict are the same by
construction. Its forward checks the inputs against each plan (shape, dtype, strides, scalar values,
train/eval mode where it matters) and otherwise runs the reference operators. A plan is the traced
graph written out: launches where a site matched, the same library calls elsewhere.

Autograd: emitted kernels have no backward, so a forward that must record gradients runs the
reference operators too.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kmem.errors import RecipeError
from kmem.host.syntax import parse_python
from kmem.problem.graph import Arg, Literal, Node, OpGraph, Placeholder, Ref
from kmem.problem.operators.table import find_operator
from kmem.recipes import Emission, Site

_HEADER = '''\
"""{title}

Written by kmem. `ModelNew` has the constructor and state_dict of `Model`; it launches the Triton kernels below for the sizes in
its guards and runs the reference operators for anything else.
"""

import torch
import triton
import triton.language as tl
'''

_LAID_OUT = '''
def _laid_out(value, stride):
    """The value with the strides that a kernel was written for: on some device a library operator, or `to`, may choose others."""
    if value.stride() == stride or all(size == 1 or a == b for size, a, b in zip(value.shape, value.stride(), stride)):
        return value
    return torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device).copy_(value)
'''

_FORWARD = '''
_INTERPRETED = triton.knobs.runtime.interpret


class ModelNew({base}):
    """`{base}` with Triton kernels; needs a GPU (or TRITON_INTERPRET=1), no gradients, and sizes named in a guard."""

    def forward(self, {parameters}):
        if {device_check}:
            return super().forward({parameters})
        if torch.is_grad_enabled() and ({grad_check}):
            return super().forward({parameters})
{branches}
        return super().forward({parameters})
'''


@dataclass(frozen=True, slots=True)
class SitePlan:
    """One site of one workload's graph with the text a recipe wrote for it."""

    site: Site
    emission: Emission


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """Everything to write out for one workload: its traced graph and the sites that replace parts
    of it.
    """

    name: str  # "full", "small": becomes part of a function name
    graph: OpGraph
    sites: tuple[SitePlan, ...]


def assemble_module(title: str, problem_source: str, plans: Sequence[WorkloadPlan]) -> str:
    """Write the file.

    Args: title: first line of its docstring. problem_source: the problem file's text; everything
        but its input functions is kept as the reference. plans: at least one; their graphs must
        take the same inputs, of whatever sizes.
    Raises: RecipeError: if two emissions give one kernel name different texts, or a site is not
        convex in its graph.
    """
    kernels: dict[str, str] = {}
    functions: list[str] = []
    branches: list[str] = []
    for plan in plans:
        launchers = {}
        for index, entry in enumerate(plan.sites):
            for name, source in entry.emission.kernels:
                if kernels.setdefault(name, source) != source:
                    raise RecipeError(
                        f"Two kernels named {name} have different texts; put what differs into the "
                        f"name or a constexpr"
                    )
            launchers[entry.site.name] = f"_launch_{plan.name}_{index}"
            functions.append(_rename_launch(entry.emission.launcher, launchers[entry.site.name]))
        functions.append(_write_forward(plan, launchers))
        functions.append(_write_guard(plan))
        arguments = ", ".join(_inputs(plan.graph))
        branches.append(
            f"        if _covers_{plan.name}(self, {arguments}):\n"
            f"            return _forward_{plan.name}(self, {arguments})"
        )
    graph = plans[0].graph
    tensors = [
        placeholder.name
        for placeholder in graph.placeholders
        if placeholder.kind == "input" and placeholder.spec is not None
    ]
    parameters = any(placeholder.kind == "parameter" for placeholder in graph.placeholders)
    grad_checks = [f"{name}.requires_grad" for name in tensors]
    if parameters:
        grad_checks.append("any(parameter.requires_grad for parameter in self.parameters())")
    forward = _FORWARD.format(
        base="Model",
        parameters=", ".join(_inputs(graph)),
        device_check=" or ".join(
            f"not isinstance({name}, torch.Tensor) or ({name}.is_cpu and not _INTERPRETED)"
            for name in tensors
        )
        or "False",
        grad_check=" or ".join(grad_checks) or "False",
        branches="\n".join(branches),
    )
    helpers = [_LAID_OUT] if any("_laid_out(" in function for function in functions) else []
    written = [*kernels.values(), *helpers, *functions, forward]
    parts = [
        _HEADER.format(title=title.replace('"""', "'''")),
        _reference_source(problem_source),
        *written,
    ]
    text = "\n\n".join(part.strip("\n") + "\n" for part in parts)
    parse_python(text)
    return text


def _reference_source(source: str) -> str:
    """The problem file without its docstring and input functions, so that the reference operators
    are at hand as a fallback.
    """
    tree = parse_python(source)
    lines = source.splitlines()
    drop: set[int] = set()
    for position, statement in enumerate(tree.body):
        is_docstring = (
            position == 0
            and isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
        )
        is_input_function = isinstance(statement, ast.FunctionDef) and statement.name in (
            "get_inputs",
            "get_init_inputs",
            "get_small_inputs",
        )
        is_script = isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)
        if is_docstring or is_input_function or is_script:
            drop.update(range(statement.lineno - 1, statement.end_lineno))
    return "\n".join(line for number, line in enumerate(lines) if number not in drop)


def _rename_launch(source: str, name: str) -> str:
    text, count = re.subn(r"^def launch\(", f"def {name}(", source, count=1, flags=re.MULTILINE)
    if count != 1:
        raise RecipeError("An emission's launcher must define a top-level function named launch")
    return text


def _inputs(graph: OpGraph) -> list[str]:
    return [placeholder.name for placeholder in graph.placeholders if placeholder.kind == "input"]


def _write_guard(plan: WorkloadPlan) -> str:
    """`_covers_<workload>`: whether the inputs are those the plan was written for."""
    tests = [f"self.training is {plan.graph.training}"] if plan.graph.mode_matters else []
    if plan.name != "full" and any(entry.emission.own_size_only for entry in plan.sites):
        # on a device the library may be more accurate at this size than at the problem's own
        tests.append("_INTERPRETED")
    for placeholder in plan.graph.placeholders:
        tests += _guard_tests(placeholder)
    condition = "\n        and ".join(tests) or "True"
    return (
        f"def _covers_{plan.name}(self, {', '.join(_inputs(plan.graph))}):\n    return (\n"
        f"        {condition}\n    )\n"
    )


def _guard_tests(placeholder: Placeholder) -> list[str]:
    if placeholder.kind != "input":
        return []
    if placeholder.spec is None:
        return [f"{placeholder.name} == {placeholder.value!r}"]
    spec = placeholder.spec
    return [
        f"{placeholder.name}.shape == {spec.shape!r}",
        f"{placeholder.name}.dtype is torch.{spec.dtype}",
        f"{placeholder.name}.stride() == {spec.stride!r}",
    ]


def _write_forward(plan: WorkloadPlan, launchers: Mapping[str, str]) -> str:
    """`_forward_<workload>`: the graph in execution order, each site as one launch at the place of
    its last node.
    """
    graph = plan.graph
    lines = [f"def _forward_{plan.name}(self, {', '.join(_inputs(graph))}):"]
    used = {name for node in graph.nodes for name in node.refs()} | set(graph.outputs)
    used |= {operand.name for entry in plan.sites for operand in entry.site.inputs}
    for placeholder in graph.placeholders:
        if placeholder.kind in ("parameter", "buffer") and placeholder.name in used:
            lines.append(f"    {placeholder.name} = self.{_attribute(placeholder.target)}")
    constants = [
        placeholder
        for placeholder in graph.placeholders
        if placeholder.kind == "constant" and placeholder.name in used
    ]
    if constants or any(
        "_DEVICE" in _write_arg(arg)
        for node in graph.nodes
        for arg in (*node.args, *node.kwargs.values())
    ):
        first = next(
            placeholder.name
            for placeholder in graph.placeholders
            if placeholder.kind == "input" and placeholder.spec
        )
        lines.append(f"    _DEVICE = {first}.device")
    lines += [f"    {constant.name} = {_write_constant(constant)}" for constant in constants]
    made = {placeholder.name for placeholder in graph.placeholders}
    # Values whose strides are as traced. Inputs are guarded; a vector of the module's own has one
    # layout (and may be changed in place).
    sure = {
        placeholder.name
        for placeholder in graph.placeholders
        if not _may_be_laid_out_anew(placeholder)
    }
    covered = {node: entry for entry in plan.sites for node in entry.site.nodes}
    written: set[str] = set()
    for step in _schedule(graph, plan.sites):
        if isinstance(step, Node):
            lines.append(f"    {step.name} = {_write_call(step)}")
            made.add(step.name)
            row = find_operator(step.target)
            if row is not None and row.is_view and set(step.refs()) <= sure:
                sure.add(step.name)
            continue
        missing = [operand.name for operand in step.site.inputs if operand.name not in made]
        if missing:
            raise RecipeError(
                f"Site {step.site.name} reads {missing}, made after or inside it: its nodes are "
                f"not convex"
            )
        outputs = ", ".join(operand.name for operand in step.site.outputs)
        arguments = ", ".join(
            operand.name
            if operand.name in sure
            else f"_laid_out({operand.name}, {operand.spec.stride!r})"
            for operand in step.site.inputs
        )
        lines.append(f"    {outputs} = {launchers[step.site.name]}({arguments})")
        made.update(operand.name for operand in step.site.outputs)
        sure.update(operand.name for operand in step.site.outputs)
        written.add(step.site.name)
    assert written == {entry.site.name for entry in covered.values()}
    result = ", ".join(graph.outputs)
    lines.append(f"    return ({result},)" if graph.returns_tuple else f"    return {result}")
    return "\n".join(lines) + "\n"


def _may_be_laid_out_anew(placeholder: Placeholder) -> bool:
    return (
        placeholder.kind in ("parameter", "buffer")
        and placeholder.spec is not None
        and len(placeholder.spec.shape) > 1
    )


def _schedule(graph: OpGraph, sites: Sequence[SitePlan]) -> list[Node | SitePlan]:
    """Nodes and sites in an order in which everything is made before it is read.

    Raises RecipeError if there is none, which means that a site is not convex. In-place nodes keep
    their place among nodes.
    """
    owner = {name: entry for entry in sites for name in entry.site.nodes}
    made = {placeholder.name for placeholder in graph.placeholders}
    waiting: list[Node | SitePlan] = []
    for node in graph.nodes:
        step = owner.get(node.name, node)
        if step not in waiting:
            waiting.append(step)
    order: list[Node | SitePlan] = []
    while waiting:
        ready = next((step for step in waiting if _reads(step) <= made), None)
        if ready is None:
            raise RecipeError(
                f"No order of execution exists: {[_step_name(step) for step in waiting]} wait for "
                f"each other"
            )
        waiting.remove(ready)
        order.append(ready)
        made |= (
            {ready.name}
            if isinstance(ready, Node)
            else {operand.name for operand in ready.site.outputs}
        )
    return order


def _reads(step: Node | SitePlan) -> set[str]:
    return (
        set(step.refs())
        if isinstance(step, Node)
        else {operand.name for operand in step.site.inputs}
    )


def _step_name(step: Node | SitePlan) -> str:
    return step.name if isinstance(step, Node) else step.site.name


def _attribute(target: str) -> str:
    """`layers.0.weight` as an attribute path that works in source: `layers[0].weight` for
    containers with number names.
    """
    path = ""
    for part in target.split("."):
        path += f".get_submodule('{part}')" if part.isdigit() else (f".{part}" if path else part)
    return path.removeprefix(".")


def _write_constant(constant: Placeholder) -> str:
    """A single number by a fill kernel (no copy from the host, which would stall the stream), more
    by torch.tensor.
    """
    make = (
        f"torch.full({constant.spec.shape!r}, "
        if not isinstance(constant.value, tuple)
        else "torch.tensor("
    )
    return f"{make}{_write_arg(constant.value)}, dtype=torch.{constant.spec.dtype}, device=_DEVICE)"


def _write_call(node: Node) -> str:
    arguments = [_write_arg(arg) for arg in node.args] + [
        f"{key}={_write_arg(arg)}" for key, arg in node.kwargs.items()
    ]
    if node.target == "getitem":
        return f"{arguments[0]}[{arguments[1]}]"
    return f"torch.ops.{node.target}({', '.join(arguments)})"


def _write_arg(arg: Arg) -> str:
    if isinstance(arg, Ref):
        return arg.name
    if isinstance(arg, Literal):
        return arg.expression
    if isinstance(arg, tuple):
        return "[" + ", ".join(_write_arg(item) for item in arg) + "]"
    if isinstance(arg, float) and (arg != arg or arg in (float("inf"), float("-inf"))):
        return f"float('{arg}')"
    return repr(arg)
