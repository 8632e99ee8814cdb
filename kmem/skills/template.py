"""The files that `kmem skills new` makes: a SKILL.md to fill in, and code that works.

A SKILL.md that still says what the template says is no skill yet: validate.py asks `remains_of`.
"""

from functools import cache

from kmem.errors import SkillError
from kmem.skills.form import Form, is_name, read_form, read_sections

_SOURCE = "the URL or paper this comes from"
_TEMPLATE = """---
name: {name}
description: State in one sentence what makes the kernel faster. Use when the profile shows a \
symptom an engineer would search for.
license: Apache-2.0
metadata:
  kmem-ops: any
  kmem-bottlenecks: redundant_traffic
  kmem-signature: traffic_ratio >= 1.3
  kmem-claims: traffic_ratio <= 1.1
  kmem-precision: exact{moves}
  kmem-source: {source}
---
## Mechanism
What the hardware does now, what it does after the change, and why that takes less time.

## Use when
- The counters or the shape of the code that tell that this applies.

## Do not use when
- Cases in which it costs more than it saves.

## In Triton
The change, in terms of Triton's own names, with a short piece of code.

## Pitfalls
- What goes wrong at the edges: sizes, alignment, precision.

## How to check it worked
- `traffic_ratio` should fall below 1.1: name the metric, the direction and the amount, so that the
  next profile can prove it wrong.
"""

#: Moves that act on the recipes that ship: fewer registers, so that more warps reside.
_MOVES = """
  kmem-moves: >-
    tile down if registers_per_thread >= 128 then registers_per_thread <= 0.9x;
    tile down and warps up then occupancy_pct >= 1.1x"""

#: A whole recipe for one operator. It is plain text for its user to edit, so everything it does
#: stands in it: nothing is taken from kmem/codegen.
_RECIPE = '''"""Writes one operator over a contiguous fp32 tensor as one Triton kernel.

An example that works: `kmem skills try DIRECTORY PROBLEM` shows what it matches and emits. Change
TARGET and the kernel's middle line first, then `match` where several operators are to be fused.
"""

from kmem.recipes import Emission, Operand, Recipe, Role, Site, Space

#: The operator, as `kmem skills try` lists those of a problem's graph.
TARGET = "aten.relu.default"

KERNEL = """
@triton.jit
def {kernel}(source, result, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(source + place, mask=place < COUNT, other=0.0)
    y = tl.where(x < 0, 0.0, x)  # not tl.maximum, which would drop a NaN that torch keeps
    tl.store(result + place, y, mask=place < COUNT)
"""

LAUNCHER = """
def launch(source):
    result = torch.empty_like(source)
    {kernel}[({{programs}},)](
        source, result, COUNT={{count}}, BLOCK={{block}}, num_warps={{warps}}
    )
    return result
"""


class Example(Recipe):
    operators = ("pointwise",)
    # what each knob changes (`kmem skills vocabulary`), so that the moves of other skills find it
    roles = {{"BLOCK": (Role("tile"),), "num_warps": (Role("warps"),)}}

    def match(self, graph, contract):
        """The sites: what this recipe replaces, reads and makes. What does not fit is no site."""
        sites = []
        for node in graph.nodes:
            if node.target != TARGET:
                continue
            source = node.args[0].name
            specs = (graph.spec(source), node.spec)
            if any(spec.dtype != "float32" or not spec.is_contiguous for spec in specs):
                continue
            sites.append(
                Site(
                    name=node.name,
                    operator="pointwise",
                    nodes=(node.name,),
                    inputs=(Operand(source, specs[0]),),
                    outputs=(Operand(node.name, specs[1]),),
                    detail=None,
                    bytes=specs[0].bytes + specs[1].bytes,
                )
            )
        return sites

    def space(self, site, device):
        """The knobs and their values; every combination must be correct."""
        return Space({{"BLOCK": (1024, 512, 2048), "num_warps": (4, 8)}})

    def cost_ms(self, site, settings, device):
        """A rough time that ranks settings: here the bytes over the memory's bandwidth."""
        return device.launch_ms + 1e3 * site.bytes / device.dram_bytes_per_s

    def emit(self, site, settings):
        """The text of the kernel and of its launch at one setting."""
        count, block = site.outputs[0].spec.numel, settings["BLOCK"]
        launcher = LAUNCHER.format(
            programs=-(-count // block), count=count, block=block, warps=settings["num_warps"]
        )
        return Emission((("{kernel}", KERNEL),), launcher)


RECIPE = Example()
'''


#: A whole rewrite of one pattern, and the problem that it is checked on.
_REWRITE = '''"""relu(relu(x)) is relu(x): the outer one goes.

An example that works: `kmem skills try DIRECTORY PROBLEM` shows where it applies and what becomes
of the graph. Change the pattern in `_applies` and the new nodes in `_rewritten`, then
examples/rewritten.py, on which `kmem skills validate` checks that both graphs are equal.
"""

from kmem.algebra.editing import CannotRewrite, GraphEditor
from kmem.rewrites import Rewrite, Rewriting

#: The operator, as `kmem skills try` lists those of a problem's graph.
TARGET = "aten.relu.default"


class Example(Rewrite):
    def rewritings(self, graph, contract):
        """Every place, each applied by itself. What cannot be kept equal is left alone."""
        found = []
        for node in graph.nodes:
            if not _applies(graph, node):
                continue
            try:
                rewritten = _rewritten(graph, node)
            except CannotRewrite:  # torch refuses the new nodes
                continue
            reason = f"{node.name} is the relu of a relu"
            found.append(Rewriting(node.name, "pointwise", rewritten, reason))
        return found


def _applies(graph, node):
    if node.target != TARGET:
        return False
    maker = graph.node(node.args[0].name)
    return maker is not None and maker.target == TARGET


def _rewritten(graph, node):
    """The graph with new nodes in place of this one, which keeps its name."""
    inner = graph.node(node.args[0].name)
    editor = GraphEditor(graph, node.name)
    return editor.replaced(editor.call(TARGET, inner.args[0]))


REWRITE = Example()
'''
_REWRITTEN = '''"""A problem in which the rewrite applies, small enough for float64."""

import torch


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.relu(x))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(8, 12)]
'''


def skill_template(
    name: str, *, recipe: bool = False, rewrite: bool = False, moves: bool = False
) -> dict[str, str]:
    """The files of a new skill, relative path -> text.

    Each part of SKILL.md tells the writer what belongs there, and is a fault until it is replaced;
    the recipe, the rewrite and the moves work as they are.

    Raises:
        SkillError: if the name is not one the format allows.
    """
    if not is_name(name):
        raise SkillError(
            f"Skill name '{name}' must be 1-64 lower-case letters, digits and single hyphens, like "
            f"separable-pooling"
        )
    text = _TEMPLATE.format(name=name, source=_SOURCE, moves=_MOVES if moves else "")
    files = {"SKILL.md": text}
    if recipe:
        files["recipe.py"] = _RECIPE.format(kernel=f"{name.replace('-', '_')}_kernel")
    if rewrite:
        files |= {"rewrite.py": _REWRITE, "examples/rewritten.py": _REWRITTEN}
    return files


def remains_of(form: Form) -> list[str]:
    """A fault for each part of a SKILL.md that still says what the template says."""
    template = _template_sections()
    faults = []
    if form.front.get("description") == _template_form().front["description"]:
        faults.append("description is still the template's; say what makes the kernel faster")
    metadata = form.front.get("metadata")
    if isinstance(metadata, dict) and metadata.get("kmem-source") == _SOURCE:
        faults.append("kmem-source is still the template's; name a URL or a paper, or drop the key")
    written = dict(read_sections(form.body))
    faults += [
        f"section '{heading}' is still the template's; say it of this skill"
        for heading, text in template.items()
        if written.get(heading) == text
    ]
    return faults


@cache
def _template_form() -> Form:
    return read_form(_TEMPLATE.format(name="template", source=_SOURCE, moves=""))


@cache
def _template_sections() -> dict[str, str]:
    return dict(read_sections(_template_form().body))
