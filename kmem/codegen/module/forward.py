"""The forward of one workload in an emitted module, and what its inputs are recognised by.

`_forward` is the traced graph written out: a launch at the place of each site, the same library
calls elsewhere. What parameters alone decide of it is in `_stage`, whose results a module keeps.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kmem.codegen.module.entries import Launcher
from kmem.codegen.module.fetching import STATE, write_fetches, write_unpacking
from kmem.codegen.module.library_calls import write_arg, write_call, write_constant
from kmem.codegen.module.lifetimes import release_early
from kmem.codegen.module.placing import Placement, Slices
from kmem.codegen.module.plan import SitePlan, WorkloadPlan, makes, reads, schedule
from kmem.codegen.steady import SteadyValues, find_steady
from kmem.errors import RecipeError
from kmem.problem.graph import DEVICE, Arg, Node, OpGraph, Placeholder
from kmem.problem.operators.table import find_operator
from kmem.recipes import Operand, Site

_VIEW, _RESHAPE = "aten.view.default", "aten.reshape.default"
#: What the scratch memory of all launches is called in a forward.
_SCRATCH = "kmem_scratch"


@dataclass(frozen=True, slots=True)
class Forward:
    """The text of one forward, and whether it calls `_laid_out`.

    `staging` is "" or `_stage`, `fetching` "" or `_fetch`, whose result the forward is given.
    """

    text: str
    fetching: str
    staging: str
    lays_out: bool


def input_names(graph: OpGraph) -> list[str]:
    """The parameters of a module's forward."""
    return [placeholder.name for placeholder in graph.placeholders if placeholder.kind == "input"]


# --- the guard


def write_expected(plan: WorkloadPlan) -> str:
    """What `write_found` finds in inputs that the plan was written for, as text."""
    tests = [str(plan.graph.training)] if plan.graph.mode_matters else []
    for placeholder in _inputs(plan.graph):
        if placeholder.spec is None:
            tests.append(write_arg(placeholder.value))
        else:
            spec = placeholder.spec
            tests.append(f"{spec.shape!r}, {spec.stride!r}, torch.{spec.dtype}, False")
    expected = _write_tuple(tests)
    if plan.name != "full" and any(entry.emission.own_size_only for entry in plan.sites):
        # on a device the library may be more accurate at this size than at the problem's own
        return f"{expected} if _INTERPRETED else None"
    return expected


def write_found(graph: OpGraph) -> str:
    """An expression for all that the inputs of a forward are recognised by, one tuple."""
    tests = ["self.training"] if graph.mode_matters else []
    for placeholder in _inputs(graph):
        name = placeholder.name
        if placeholder.spec is None:
            tests.append(name)
        else:
            tests.append(f"{name}.shape, {name}.stride(), {name}.dtype")
            tests.append(f"{name}.is_cpu and not _INTERPRETED")
    return _write_tuple(tests)


def parameter_shapes(graph: OpGraph) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """State_dict name and shape of each parameter and buffer that the forward reads."""
    return tuple(
        (placeholder.target, tuple(placeholder.spec.shape))
        for placeholder in graph.placeholders
        if placeholder.kind in ("parameter", "buffer") and placeholder.spec is not None
    )


def _write_tuple(items: Sequence[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 and ", " not in items[0] else f"({', '.join(items)})"


def _inputs(graph: OpGraph) -> list[Placeholder]:
    return [placeholder for placeholder in graph.placeholders if placeholder.kind == "input"]


# --- the forward


def steady_values(plan: WorkloadPlan) -> SteadyValues:
    """What parameters alone decide of a forward. Raises RecipeError: if a site is not convex."""
    steps = schedule(plan.graph, plan.sites)
    return find_steady(
        plan.graph, [step if isinstance(step, Node) else step.site for step in steps]
    )


def steady_inputs(site: Site, steady: SteadyValues) -> tuple[int, ...]:
    """Places of a site's inputs that parameters decide; none where they decide the whole site."""
    if all(operand.name in steady.made for operand in site.outputs):
        return ()
    return tuple(place for place, operand in enumerate(site.inputs) if operand.name in steady.names)


def write_forward(
    plan: WorkloadPlan,
    launchers: Mapping[str, Launcher],
    placement: Placement,
    scratch_bytes: str = "",
    counting: Mapping[str, str] | None = None,
) -> Forward:
    """`_forward`: the graph in execution order, a launch for each site.

    Args:
        launchers: what launches a site, by the site's name.
        placement: the values that lie in something larger, and who is handed their memory.
        scratch_bytes: the constant with the size of what they are given as scratch, if any are.
        counting: what is written in the place of nodes that move counters along.
    Raises RecipeError: if a site is not convex in its graph.
    """
    graph = plan.graph
    writer = _ForwardWriter(graph, launchers, steady_values(plan), placement, counting or {})
    steps = schedule(graph, plan.sites)
    body = [line for step in steps for line in writer.write(step)]
    staging = writer.write_staging(steps)
    known = _known(plan)
    state = [each for each in known if each.kind in ("parameter", "buffer")]
    lines = [write_unpacking(state)] if state else []
    lines += [*_write_constants(graph, known), *writer.unpacking]
    if scratch_bytes:
        device = f"{_first_tensor(graph)}.device"
        memory = f"torch.empty({scratch_bytes}, dtype=torch.uint8, device={device})"
        lines.append(f"{_SCRATCH} = {memory}")
    lines += release_early(body, graph.outputs)
    result = ", ".join(graph.outputs)
    lines.append(f"return ({result},)" if graph.returns_tuple else f"return {result}")
    given = ["self", *([STATE] if state else []), *input_names(graph)]
    text = _define(f"_forward({', '.join(given)})", lines)
    fetching = _define("_fetch(self)", write_fetches(state)) if state else ""
    return Forward(text, fetching, staging, writer.lays_out)


def _define(head: str, lines: Iterable[str]) -> str:
    return f"def {head}:\n" + "".join(f"    {line}\n" for line in lines)


def _known(plan: WorkloadPlan) -> list[Placeholder]:
    """What the forward reads of what is there before it."""
    graph = plan.graph
    used = {name for node in graph.nodes for name in node.refs()} | set(graph.outputs)
    used |= {operand.name for entry in plan.sites for operand in entry.site.inputs}
    return [placeholder for placeholder in graph.placeholders if placeholder.name in used]


def _write_constants(graph: OpGraph, known: Iterable[Placeholder]) -> list[str]:
    """The constants that the forward reads, under their graph names, and the device if wanted."""
    constants = [placeholder for placeholder in known if placeholder.kind == "constant"]
    arguments = (arg for node in graph.nodes for arg in (*node.args, *node.kwargs.values()))
    if not constants and not any(_names_device(arg) for arg in arguments):
        return []
    lines = [f"{DEVICE.expression} = {_first_tensor(graph)}.device"]
    return lines + [f"{constant.name} = {write_constant(constant)}" for constant in constants]


def _first_tensor(graph: OpGraph) -> str:
    """The first input that is a tensor: where the forward runs."""
    return next(each.name for each in graph.placeholders if each.kind == "input" and each.spec)


def _names_device(arg: Arg) -> bool:
    return any(map(_names_device, arg)) if isinstance(arg, tuple) else arg == DEVICE


class _ForwardWriter:
    """Writes step after step, and knows which values have been made, and which lie as traced."""

    def __init__(
        self,
        graph: OpGraph,
        launchers: Mapping[str, Launcher],
        steady: SteadyValues,
        placement: Placement,
        counting: Mapping[str, str],
    ) -> None:
        self.graph = graph
        self.launchers = launchers
        self.steady = steady
        self.slices = Slices(graph, placement, f"{_first_tensor(graph)}.device")
        self.counting = counting
        self.lays_out = False
        self.unpacking: list[str] = []  # statements that fetch what was staged
        self._made = {placeholder.name for placeholder in graph.placeholders}
        self._read = {name for node in graph.nodes for name in node.refs()} | set(graph.outputs)
        # Values whose strides are as traced. Inputs are guarded; a vector of the module's own has
        # one layout (and may be changed in place).
        self._sure = {
            placeholder.name
            for placeholder in graph.placeholders
            if not _may_be_laid_out_anew(placeholder)
        }

    def write(self, step: Node | SitePlan) -> list[str]:
        """One library call, or one launch, and what that needs; nothing for what is staged."""
        if isinstance(step, Node):
            return self._write_node(step)
        missing = [operand.name for operand in step.site.inputs if operand.name not in self._made]
        if missing:
            raise RecipeError(
                f"Site {step.site.name} reads {missing}, made after or inside it: its nodes are "
                "not convex"
            )
        self._made.update(makes(step))
        if makes(step) <= self.steady.made:
            return []
        launcher = self.launchers[step.site.name]
        staged = [_staged_name(launcher)] if launcher.staging else []
        staged += [_SCRATCH] if launcher.takes_scratch else []
        launch = self._write_launch(step, launcher.name, launcher.reads, staged)
        self._sure.update(makes(step))
        return self.slices.around_launch(step.site, launch)

    def _write_launch(
        self, step: SitePlan, function: str, reads: Iterable[int] | None, staged: Iterable[str] = ()
    ) -> str:
        inputs = self._write_operands(step.site, reads)
        outputs = [operand.name for operand in step.site.outputs]
        return f"{', '.join(outputs)} = {function}({', '.join([*inputs, *staged])})"

    def _write_node(self, node: Node) -> list[str]:
        self._made.add(node.name)
        if node.name in self.steady.made:
            return []
        if node.name in self.counting:
            return [self.counting[node.name]] if self.counting[node.name] else []
        if node.name in self.slices.wholes:
            self._sure.add(node.name)
            return self.slices.put_together(node)
        operator = find_operator(node.target)
        if operator is not None and operator.is_view:
            if set(node.refs()) <= self._sure:
                self._sure.add(node.name)
            elif node.target == _VIEW:  # on some device the library may have chosen other strides
                node = replace(node, target=_RESHAPE)
        call = write_call(self.graph, node)
        if node.name in self.slices.homes:
            self._sure.add(node.name)
            return self.slices.around_call(node.name, call)
        return [f"{node.name} = {call}" if node.name in self._read else call]  # in place

    def _write_operands(self, site: Site, reads: Iterable[int] | None) -> list[str]:
        given = self.slices.given_to(site)
        if reads is None:
            return [*map(self._write_operand, site.inputs), *given]
        return [
            given[place - len(site.inputs)]
            if place >= len(site.inputs)
            else self._write_operand(site.inputs[place])
            for place in reads
        ]

    def _write_operand(self, operand: Operand) -> str:
        if operand.name in self._sure:
            return operand.name
        self.lays_out = True
        return f"_laid_out({operand.name}, {operand.spec.stride!r})"

    def write_staging(self, steps: Sequence[Node | SitePlan]) -> str:
        """`_stage`: what parameters alone decide, as far as the rest reads it; "" if nothing is.

        To be asked after all steps were written.
        """
        graph, made = self.graph, self.steady.made
        parted = [
            (step, self.launchers[step.site.name])
            for step in steps
            if isinstance(step, SitePlan) and not makes(step) <= made
        ]
        parted = [(step, launcher) for step, launcher in parted if launcher.staging]
        rest = [step for step in steps if not makes(step) <= made]
        values = sorted(made & set().union(*map(reads, rest)))
        if not parted and not values:
            return ""
        wanted = {
            step.site.inputs[place].name
            for step, launcher in parted
            for place in launcher.staging_reads
        }
        lines: list[str] = []
        for step in reversed(steps):
            if makes(step) <= self.steady.names and makes(step) & (wanted | set(values)):
                lines.append(self._write_steady(step))
                wanted |= reads(step)
        lines.reverse()
        for step, launcher in parted:
            inputs = self._write_operands(step.site, launcher.staging_reads)
            lines.append(f"{_staged_name(launcher)} = {launcher.staging}({', '.join(inputs)})")
        groups = [_staged_name(launcher) for _, launcher in parted]
        groups += [f"({', '.join(values)},)"] if values else []
        lines.append(f"return ({', '.join(groups)},)")
        roots = [each.name for each in graph.placeholders if each.name in wanted]
        self.unpacking.append(f"({', '.join(groups)},) = self.kmem_staged({', '.join(roots)})")
        return _define(f"_stage({', '.join(roots)})", lines)

    def _write_steady(self, step: Node | SitePlan) -> str:
        if isinstance(step, Node):
            return f"{step.name} = {write_call(self.graph, step)}"
        launcher = self.launchers[step.site.name]
        return self._write_launch(step, launcher.name, launcher.reads)


def _staged_name(launcher: Launcher) -> str:
    return launcher.staging.removeprefix("_stage_") + "_weights"


def _may_be_laid_out_anew(placeholder: Placeholder) -> bool:
    return (
        placeholder.kind in ("parameter", "buffer")
        and placeholder.spec is not None
        and len(placeholder.spec.shape) > 1
    )
