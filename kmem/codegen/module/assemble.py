"""Assemble a self-contained module file: `Model`, Triton kernels, and `ModelNew`.

`ModelNew` subclasses the copied `Model`, so that constructor and state_dict are the same by
construction. model.py writes the class, forward.py what a plan does, entries.py its kernels;
layout.py breaks what is generated into lines of 100 columns, while the problem's own text stays as
its author wrote it.
"""

import logging
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from kmem.codegen.module.alignment import Misaligned
from kmem.codegen.module.constants import BEGIN, CONSTANT, END, Constants
from kmem.codegen.module.counters import count_up, find_counters, write_counting
from kmem.codegen.module.entries import ModuleKernels
from kmem.codegen.module.forward import (
    Forward,
    parameter_shapes,
    steady_inputs,
    steady_values,
    write_expected,
    write_forward,
)
from kmem.codegen.module.launchers import LauncherWriter
from kmem.codegen.module.layout import WIDTH, lay_out
from kmem.codegen.module.lint_excuses import excuse_rules
from kmem.codegen.module.model import write_model
from kmem.codegen.module.placing import Placement, place_values, take_outputs
from kmem.codegen.module.plan import SitePlan, WorkloadPlan
from kmem.codegen.module.reference import reference_source
from kmem.codegen.module.runtime import RUNTIME, SCRATCH, STAGED
from kmem.codegen.module.shared_scratch import share_scratch
from kmem.host.syntax import parse_python
from kmem.problem.graph import Node

__all__ = ["EmittedModule", "SitePlan", "WorkloadPlan", "assemble_module", "with_evidence"]

logger = logging.getLogger(__name__)

#: How what a module is for begins in its docstring; what is known of the module stands before it.
_ABOUT = "`ModelNew` has the constructor and state_dict of `Model`; it launches the Triton\n"
_HEADER = '''\
"""{title}
{provenance}
{about}\
kernels below for the inputs named in INPUTS. For any others, and where gradients are recorded, it
warns and runs the reference operators; with KMEM_STRICT=1 it raises instead.
{staging}"""

{imports}

_INTERPRETED = triton.knobs.runtime.interpret
'''
#: What an emitted module imports, and what stands in its text if it does.
_IMPORTS = {
    "import warnings": "warnings.",
    "from os import getenv": "getenv",
    "import torch": "torch.",
    "import triton": "triton.",
    "import triton.language as tl": "tl.",
}

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

#: What the docstring of a module says of it.
_STAGES = """
What the launches make of parameters alone is made once and kept beside them, in as much memory
again; a parameter that changes has it made anew. After a change in place through `.data`, which
leaves no trace, call `kmem_staged.forget()`.
"""


@dataclass(frozen=True, slots=True)
class EmittedModule:
    """A module file, and the block of constants that it has at each other workload."""

    source: str
    constants: Mapping[str, str]


def assemble_module(
    title: str,
    problem_source: str,
    plans: Sequence[WorkloadPlan],
    provenance: str = "Written by kmem.",
) -> EmittedModule:
    """Write the file.

    Args:
        title: the first line of its docstring.
        provenance: by what it was written, for what, and from which evidence.
        problem_source: the problem file's text; everything but its input functions is kept as the
            reference.
        plans: at least one; their graphs must take the same inputs, of whatever sizes. The file is
            the first one's. Another one whose text would differ in more than constants is left out.
    Raises RecipeError: if two emissions give one kernel name different texts, or a site is not
        convex in its graph.
    """
    try:
        return _assemble(title, problem_source, plans, provenance)
    except Misaligned as ex:
        if len(plans) == 1:
            raise
        _say_once(f"no form of this module for {plans[1].name} sizes: {ex}")
        return _assemble(title, problem_source, plans[:1], provenance)


@cache
def _say_once(text: str) -> None:
    """A network's candidates are written dozens of times, and each would say the same."""
    logger.warning(text)


def with_evidence(source: str, evidence: str) -> str:
    """The text of an emitted module whose docstring also says what was found out about it.

    Any other text is as it was.

    Args:
        evidence: a sentence.
    """
    place = source.find(f"\n{_ABOUT}")
    if place < 0 or source.count('"""', 0, place) != 1:
        return source
    return f"{source[:place]}\n{_wrap(evidence)}\n{source[place:]}"


def _assemble(
    title: str, problem_source: str, plans: Sequence[WorkloadPlan], provenance: str
) -> EmittedModule:
    constants = Constants()
    writer = LauncherWriter(constants)
    module_kernels = ModuleKernels(constants, writer)
    steady = steady_values(plans[0])
    placements = _place_values(plans)
    for place, label in enumerate(_labels(plans[0])):
        entry = plans[0].sites[place]
        emissions = [
            take_outputs(
                plan.sites[place].site,
                plan.sites[place].emission,
                placement.given.get(entry.site.name, ()),
            )
            for plan, placement in zip(plans, placements, strict=True)
        ]
        module_kernels.add_site(label, emissions, entry.origin, steady_inputs(entry.site, steady))
    counters = _counters(plans[0])
    for place, (step, nodes) in enumerate(counters):
        emission = count_up(step, len(nodes))
        module_kernels.add_site(f"counters_{place}", [emission] * len(plans))
    kernels, written = module_kernels.write()
    own, counting = written[: len(plans[0].sites)], written[len(plans[0].sites) :]
    counted: dict[str, str] = {}
    for (_, nodes), launcher in zip(counters, counting, strict=True):
        counted |= write_counting(launcher.name, nodes)
    kept = [
        place
        for place, entry in enumerate(plans[0].sites)
        if all(operand.name in steady.made for operand in entry.site.outputs)
    ]
    launchers, scratch_bytes = share_scratch(own, kept, constants)
    by_site = {
        entry.site.name: launcher for entry, launcher in zip(plans[0].sites, launchers, strict=True)
    }
    forwards: list[Forward] = [
        write_forward(plan, by_site, placement, scratch_bytes, counted)
        for plan, placement in zip(plans, placements, strict=True)
    ]
    forward = writer.align_texts([one.text for one in forwards], "forward")
    staging = writer.align_texts([one.staging for one in forwards], "staging")
    constants.add("INPUTS", [write_expected(plan) for plan in plans])
    if parameter_shapes(plans[0].graph):
        constants.add("PARAMETERS", [repr(parameter_shapes(plan.graph)) for plan in plans])
    reference = reference_source(problem_source)
    generated = "\n\n".join(
        part.strip("\n") + "\n"
        for part in (
            kernels,
            _LAID_OUT if forwards[0].lays_out else "",
            RUNTIME if writer.objects else "",
            SCRATCH if writer.pools_scratch else "",
            "".join(writer.objects),
            *(launcher.text for launcher in (*launchers, *counting)),
            staging,
            STAGED if staging else "",
            forwards[0].fetching,
            forward,
            write_model(
                plans[0].graph,
                reference.signature,
                fetches=bool(forwards[0].fetching),
                stages=bool(staging),
            ),
        )
        if part
    )
    used = set(re.findall(r"\w+", generated))
    blocks = [lay_out(constants.write(place, only=used)) for place in range(len(plans))]
    has_kernel_constants = "constant(" in blocks[0]
    rest = [
        CONSTANT if has_kernel_constants else "",
        BEGIN + blocks[0] + END,
        reference.text,
        lay_out(generated),
    ]
    body = "\n\n".join(part.strip("\n") + "\n" for part in rest if part)
    head = _HEADER.format(
        title=_wrap(title),
        about=_ABOUT,
        provenance=f"\n{_wrap(provenance)}\n",
        staging=_STAGES if staging else "",
        imports=_write_imports(reference.imports, body),
    )
    # parsed apart, once: of a large network each parsing takes a tenth of a second
    head = excuse_rules(parse_python(body)) + head
    parse_python(head)
    text = "".join([head, "\n\n" if has_kernel_constants else "\n", body])
    others = zip(plans[1:], blocks[1:], strict=True)
    return EmittedModule(text, {plan.name: block for plan, block in others})


def _counters(plan: WorkloadPlan) -> list[tuple[int, tuple[Node, ...]]]:
    """The counters that a kernel moves along: none where no other kernel is launched.

    What the module returns does not hang on them, so that they alone would be a decoy.
    """
    has_kernels = any(entry.emission.kernels for entry in plan.sites)
    return find_counters(plan.graph) if has_kernels else []


def _place_values(plans: Sequence[WorkloadPlan]) -> list[Placement]:
    """Which values lie in something larger, at each workload; none where workloads differ."""
    found = [
        place_values(plan.graph, [(entry.site, entry.emission) for entry in plan.sites])
        for plan in plans
    ]
    shapes = [(set(each.homes), list(each.wholes), each.given) for each in found]
    return found if all(shape == shapes[0] for shape in shapes) else [Placement()] * len(plans)


def _labels(plan: WorkloadPlan) -> list[str]:
    """What each site is called in the file: its operator, numbered where several have the same."""
    operators = [entry.site.operator for entry in plan.sites]
    return [
        f"{name}_{operators[: place + 1].count(name)}" if operators.count(name) > 1 else name
        for place, name in enumerate(operators)
    ]


def _wrap(text: str) -> str:
    """A sentence of a docstring, on as many lines as it takes."""
    return "\n".join(textwrap.wrap(text.replace('"""', "'''"), WIDTH - 3)) or text


def _write_imports(own: Sequence[str], body: str) -> str:
    """The imports of a module, once each, those of the standard library first."""
    needed = [line for line, mark in _IMPORTS.items() if mark in f"{body} triton."]
    lines = sorted({*needed, *own}, key=_import_order)
    groups = [
        [line for line in lines if _is_standard(line) is standard] for standard in (True, False)
    ]
    return "\n\n".join("\n".join(group) for group in groups if group)


def _import_order(line: str) -> tuple[bool, str]:
    return line.startswith("from "), line.lower()


def _is_standard(line: str) -> bool:
    return line.split()[1].split(".")[0] in sys.stdlib_module_names
