"""Assemble a self-contained module file: `Model`, Triton kernels, and `ModelNew`.

`ModelNew` subclasses the copied `Model`, so that constructor and state_dict are the same by
construction. Its forward checks the inputs against each plan (shape, dtype, strides, scalar values,
train/eval mode where it matters) and otherwise runs the reference operators. forward.py writes
what a plan does; layout.py breaks what is generated into lines of 100 columns, while the problem's
own text stays as its author wrote it.

Autograd: emitted kernels have no backward, so a forward that must record gradients runs the
reference operators too.
"""

import ast
import textwrap
from collections.abc import Sequence

from kmem.codegen.forward import (
    Forward,
    SitePlan,
    WorkloadPlan,
    input_names,
    write_forward,
    write_guard,
)
from kmem.codegen.layout import WIDTH, lay_out
from kmem.errors import RecipeError
from kmem.host.syntax import parse_python
from kmem.problem.graph import OpGraph

__all__ = ["SitePlan", "WorkloadPlan", "assemble_module"]

_HEADER = '''\
"""{title}

Written by kmem. `ModelNew` has the constructor and state_dict of `Model`; it launches the Triton
kernels below for the sizes in its guards and runs the reference operators for anything else.
"""

import torch
import triton
import triton.language as tl
'''

_LAID_OUT = '''
def _laid_out(value, stride):
    """The value with the strides that a kernel was written for: on some device a library operator,
    or `to`, may choose others.
    """
    if value.stride() == stride or all(
        size == 1 or a == b for size, a, b in zip(value.shape, value.stride(), stride)
    ):
        return value
    return torch.empty_strided(
        value.shape, stride, dtype=value.dtype, device=value.device
    ).copy_(value)
'''

_FORWARD = '''
_INTERPRETED = triton.knobs.runtime.interpret


class ModelNew(Model):
    """`Model` with Triton kernels; needs a GPU (or TRITON_INTERPRET=1), no gradients, and sizes
    named in a guard.
    """

    def forward(self, {parameters}):
        if {device_check}:
            return super().forward({parameters})
        if torch.is_grad_enabled() and ({grad_check}):
            return super().forward({parameters})
{branches}
        return super().forward({parameters})
'''
_INPUT_FUNCTIONS = ("get_inputs", "get_init_inputs", "get_small_inputs")


def assemble_module(title: str, problem_source: str, plans: Sequence[WorkloadPlan]) -> str:
    """Write the file.

    Args:
        title: the first line of its docstring.
        problem_source: the problem file's text; everything but its input functions is kept as the
            reference.
        plans: at least one; their graphs must take the same inputs, of whatever sizes.
    Raises: RecipeError: if two emissions give one kernel name different texts, or a site is not
        convex in its graph.
    """
    functions: list[str] = []
    lays_out = False
    resized = _resized_parameters(plans)
    for plan in plans:
        launchers = {
            entry.site.name: f"_launch_{plan.name}_{index}"
            for index, entry in enumerate(plan.sites)
        }
        for entry in plan.sites:
            functions.append(_rename_launch(entry.emission.launcher, launchers[entry.site.name]))
        forward: Forward = write_forward(plan, launchers)
        lays_out = lays_out or forward.lays_out
        functions += [forward.text, write_guard(plan, resized)]
    helpers = [_LAID_OUT] if lays_out else []
    generated = [*_collect_kernels(plans), *helpers, *functions, _write_model(plans)]
    parts = [
        _HEADER.format(title=_write_title(title)),
        _reference_source(problem_source),
        *(lay_out(part) for part in generated),
    ]
    text = "\n\n".join(part.strip("\n") + "\n" for part in parts)
    parse_python(text)
    return text


def _resized_parameters(plans: Sequence[WorkloadPlan]) -> frozenset[str]:
    """Parameters and buffers, by their state_dict names, of which plans have different shapes."""
    shapes: dict[str, set[tuple[int, ...]]] = {}
    for plan in plans:
        for placeholder in plan.graph.placeholders:
            if placeholder.kind in ("parameter", "buffer") and placeholder.spec is not None:
                shapes.setdefault(placeholder.target, set()).add(placeholder.spec.shape)
    return frozenset(name for name, found in shapes.items() if len(found) > 1)


def _write_title(title: str) -> str:
    """The first line of a docstring, or several."""
    return "\n".join(textwrap.wrap(title.replace('"""', "'''"), WIDTH - 3)) or title


def _collect_kernels(plans: Sequence[WorkloadPlan]) -> list[str]:
    """The text of every kernel once."""
    kernels: dict[str, str] = {}
    for plan in plans:
        for entry in plan.sites:
            for name, source in entry.emission.kernels:
                if kernels.setdefault(name, source) != source:
                    raise RecipeError(
                        f"Two kernels named {name} have different texts; "
                        "put what differs into the name or a constexpr"
                    )
    return list(kernels.values())


def _write_model(plans: Sequence[WorkloadPlan]) -> str:
    """`ModelNew`: a branch for each plan, and the reference operators for anything else."""
    graph = plans[0].graph
    tensors = _tensor_inputs(graph)
    grad_checks = [f"{name}.requires_grad" for name in tensors]
    if any(placeholder.kind == "parameter" for placeholder in graph.placeholders):
        grad_checks.append("any(parameter.requires_grad for parameter in self.parameters())")
    device_checks = [
        f"not isinstance({name}, torch.Tensor) or ({name}.is_cpu and not _INTERPRETED)"
        for name in tensors
    ]
    return _FORWARD.format(
        parameters=", ".join(input_names(graph)),
        device_check=" or ".join(device_checks) or "False",
        grad_check=" or ".join(grad_checks) or "False",
        branches="\n".join(map(_write_branch, plans)),
    )


def _tensor_inputs(graph: OpGraph) -> list[str]:
    return [
        placeholder.name
        for placeholder in graph.placeholders
        if placeholder.kind == "input" and placeholder.spec is not None
    ]


def _write_branch(plan: WorkloadPlan) -> str:
    arguments = ", ".join(input_names(plan.graph))
    return (
        f"        if _covers_{plan.name}(self, {arguments}):\n"
        f"            return _forward_{plan.name}(self, {arguments})"
    )


def _reference_source(source: str) -> str:
    """The problem file without its docstring and input functions.

    It keeps the reference operators at hand as a fallback.
    """
    drop: set[int] = set()
    for position, statement in enumerate(parse_python(source).body):
        is_docstring = (
            position == 0
            and isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
        )
        is_input_function = (
            isinstance(statement, ast.FunctionDef) and statement.name in _INPUT_FUNCTIONS
        )
        if is_docstring or is_input_function or _is_script(statement):
            drop.update(range(statement.lineno - 1, statement.end_lineno))
    lines = source.splitlines()
    return "\n".join(line for number, line in enumerate(lines) if number not in drop)


def _is_script(statement: ast.stmt) -> bool:
    """Whether a statement is `if __name__ == "__main__"`."""
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )


def _rename_launch(source: str, name: str) -> str:
    """An emission's launcher under another name."""
    found = [
        statement
        for statement in parse_python(source).body
        if isinstance(statement, ast.FunctionDef) and statement.name == "launch"
    ]
    if len(found) != 1:
        raise RecipeError("An emission's launcher must define a top-level function named launch")
    lines = source.splitlines(keepends=True)
    head = found[0].lineno - 1
    lines[head] = lines[head].replace("launch", name, 1)
    return "".join(lines)
