"""The task at hand as sections of a prompt: module, graph, device, diagnosis, skills, kernels.

Pure functions of a situation. The run so far is in history.py; which role reads what, in briefs.py.
"""

import re
from collections.abc import Sequence

from kmem.explore.models.answers.schema import short_hash
from kmem.explore.models.prompts.excerpts import kernel_excerpt
from kmem.explore.models.prompts.message import LAST_STABLE, Section, Worth
from kmem.explore.models.prompts.rendering import describe_result, fenced
from kmem.interfaces import Situation
from kmem.problem.costs.bound import node_costs_ms
from kmem.problem.graph import Arg, Literal, Node, Ref
from kmem.records import Attempt, Bound, Claim, Kernel, Prescription, TensorSpec
from kmem.skills import Skill
from kmem.vocabulary import SIGNATURE_METRICS

#: More than three skills made agents worse. Source: SkillsBench; prescribe/rank.py offers no more.
MAX_SKILLS = 3
#: Sources of other good kernels beside the parent.
_OTHER_KERNELS = 2
#: Operators that export adds, and that compute nothing.
_CHECKS = "aten._assert_"
#: The parts of a skill's body that say what to write; the rest says when.
_ESSENTIAL_PARTS = ("Mechanism", "In Triton", "Pitfalls")


def module_section(situation: Situation) -> Section:
    """The problem file, whole."""
    return Section(
        f"The module: {situation.traced.problem.name}",
        (fenced(situation.traced.problem.source, "python"),),
        Worth.TASK,
    )


def graph_section(situation: Situation) -> Section:
    """The traced forward at its full sizes, one operator a line, without what only checks.

    Each operator that takes time has an estimate of its share of eager's.
    """
    graph = situation.traced.graph
    if graph.opaque_reason is not None:
        return Section(
            "Its graph", (f"The forward could not be traced: {graph.opaque_reason}",), Worth.GRAPH
        )
    costs = node_costs_ms(graph, situation.traced.device, situation.traced.contract)
    total = sum(costs.values()) or 1.0
    inputs = [
        f"{item.name}: {item.kind} {_describe_tensor(item.spec)}"
        for item in graph.placeholders
        if item.spec is not None
    ]
    shares = {name: f"{cost / total:.0%}" for name, cost in costs.items()}
    nodes = [
        _describe_node(node)
        + ("" if shares[node.name] == "0%" else f"  # about {shares[node.name]} of eager's time")
        for node in graph.nodes
        if not node.target.startswith(_CHECKS)
    ]
    result = f"return {', '.join(graph.outputs)}"
    return Section(
        "Its graph",
        (fenced("\n".join([*inputs, *nodes, result])), fenced("\n".join([*nodes, result])), ""),
        Worth.GRAPH,
    )


def device_section(situation: Situation) -> Section:
    """The device, and the least time the forward can take on it."""
    device, bound = situation.traced.device, situation.traced.bound
    peaks = ", ".join(
        f"{unit} {rate / 1e12:.4g} T/s" for unit, rate in sorted(device.peak_flops_per_s.items())
    )
    lines = [
        f"{device.full_name} ({device.arch}): {device.sm_count} SMs; an SM has "
        f"{device.max_threads_per_sm} threads and {device.registers_per_sm} registers, a block at "
        f"most {device.shared_bytes_per_block} bytes of shared memory.",
        f"L2 {device.l2_bytes / 2**20:.4g} MiB, memory {device.dram_bytes_per_s / 1e12:.4g} TB/s, "
        f"peaks: {peaks}; one more launch costs {device.launch_ms * 1e3:.3g} us.",
    ]
    if bound is not None:
        work = ", ".join(
            f"{amount:.4g} {unit} operations"
            for unit, amount in sorted(bound.flops.items())
            if amount
        )
        if _is_split(situation, bound):
            lines.append(
                "A product of fp32 matrices counts as three products of fp16: each operand split "
                "into two halves, which is as accurate, and the fastest that there is."
            )
        lines.append(
            f"The forward must move {bound.bytes / 1e6:.4g} "
            f"MB{f' and do {work}' if work else ''}: at least {bound.time_ms:.4g} ms, limited by "
            f"{bound.limiter}."
        )
    return Section(LAST_STABLE, ("\n".join(lines),), Worth.TASK)


def _is_split(situation: Situation, bound: Bound) -> bool:
    """Whether the bound counts fp16 operations, though the module has no value of that type."""
    graph = situation.traced.graph
    specs = [item.spec for item in graph.placeholders if item.spec is not None]
    return bool(bound.flops.get("fp16")) and not any(spec.dtype == "float16" for spec in specs)


def diagnosis_section(situation: Situation) -> Section:
    """The diagnosis by arithmetic, with the signature as far as it is known."""
    diagnosis = situation.diagnosis
    if diagnosis is None:
        text = "There is no profile of this kernel; reason from its code and its time."
        return Section("Diagnosis by arithmetic", (text,), Worth.SIGNATURE)
    lines = [f"{diagnosis.summary}."]
    if diagnosis.secondary:
        lines.append(
            f"Next after it: {', '.join(bottleneck.value for bottleneck in diagnosis.secondary)}."
        )
    lines += [
        f"- {fact.metric} = {fact.value:.4g} ({fact.comparison} {fact.threshold:.4g})"
        for fact in diagnosis.evidence
    ]
    if diagnosis.headroom_ms is not None:
        lines.append(f"Removing it could save {diagnosis.headroom_ms:.4g} ms.")
    if diagnosis.hottest:
        lines.append(f"The hottest launch is {diagnosis.hottest}.")
    if diagnosis.estimated:
        lines.append("These figures are estimated by the compiler, not measured.")
    top = "\n".join(lines)
    known = sorted(diagnosis.signature.values.items())
    explained = [
        f"- {name} = {value:.4g} {SIGNATURE_METRICS[name].unit}: {SIGNATURE_METRICS[name].meaning}"
        for name, value in known
    ]
    bare = ", ".join(f"{name} = {value:.4g}" for name, value in known)
    texts = (
        top + "\nThe signature, as far as it is known:\n" + "\n".join(explained),
        f"{top}\nThe signature: {bare}",
    )
    return Section("Diagnosis by arithmetic", texts, Worth.SIGNATURE)


def skill_sections(situation: Situation, chosen: str = "") -> list[Section]:
    """At most three skills, the chosen one first.

    Each comes with what it has earned and why it is offered.
    """
    offered = [prescription.skill for prescription in _offered(situation)]
    names = [name for name in dict.fromkeys([chosen, *offered]) if name in situation.skills][
        :MAX_SKILLS
    ]
    return [_skill_section(situation, name, name == chosen) for name in names]


def parent_section(situation: Situation) -> Section:
    """The kernel to go on from, whole.

    Raises:
        ValueError: if there is none.
    """
    if situation.parent is None:
        raise ValueError("there is no parent to show")
    title = f"The kernel to go on from ({short_hash(situation.parent.hash)})"
    return Section(title, (_describe_kernel(situation.parent, situation.history),), Worth.TASK)


def other_kernels_section(situation: Situation) -> Section:
    """The fastest kernels of the run beside the parent."""
    timed = [attempt for attempt in situation.history if attempt.measurement.latency_ms is not None]
    timed.sort(key=lambda attempt: attempt.measurement.latency_ms or 0.0)
    fastest = list(
        dict.fromkeys(
            attempt.candidate.kernel
            for attempt in timed
            if attempt.candidate.kernel != situation.parent
        )
    )
    shown = [
        f"{short_hash(kernel.hash)}\n{_describe_kernel(kernel, situation.history)}"
        for kernel in fastest[:_OTHER_KERNELS]
    ]
    texts = tuple("\n\n".join(shown[:count]) for count in range(len(shown), -1, -1))
    return Section("Other fast kernels of this run", texts, Worth.OTHER_KERNELS)


def own_kernel_section(start: Kernel | None) -> Section:
    """The user's own kernel, for a first kernel of a run that starts from one."""
    text = fenced(start.source, "python") if start is not None else ""
    return Section("The user's own kernel, to begin from", (text,), Worth.TASK)


def claims_section(claims: Sequence[Claim]) -> Section:
    """What the next profile is to show."""
    return Section(
        "What must be seen if it works", ("\n".join(f"- {claim}" for claim in claims),), Worth.TASK
    )


def task_section(text: str) -> Section:
    """What is to be done now."""
    return Section("The task", (text,), Worth.TASK)


def _offered(situation: Situation) -> Sequence[Prescription]:
    """The skills for the diagnosis; before there is one, those for a first kernel."""
    return situation.prescriptions or situation.background.first_skills


def _skill_section(situation: Situation, name: str, chosen: bool) -> Section:
    skill = situation.skills[name]
    offered = [prescription for prescription in _offered(situation) if prescription.skill == name]
    records = {entry.skill: entry.record for entry in offered if entry.record}
    record = situation.track_records.get(name) or records.get(name, "none is known")
    reasons = [
        reason
        for prescription in offered
        for reason in prescription.reasons
        if reason not in record
    ]
    lines = [skill.description, f"Track record: {record}"]
    if reasons:
        lines.append(f"Offered because: {'; '.join(reasons)}")
    top = "\n".join(lines)
    example = kernel_excerpt(skill.example)
    code = (
        f"\n\n### Its example, what matters of it\n{fenced(example, 'python')}" if example else ""
    )
    texts = (
        f"{top}\n\n{_nested(skill.body)}{code}",
        f"{top}\n\n{_essential(skill)}{code}",
        f"{top}\n\n{_essential(skill)}",
        top,
    )
    return Section(
        f"Skill: {name}",
        texts if chosen else (*texts, ""),
        Worth.SKILL if chosen else Worth.OTHER_SKILLS,
    )


def _nested(body: str) -> str:
    """A skill's body with its headings below those of the prompt; code stays as it is."""
    parts = re.split(r"^(```.*?^```)", body.strip(), flags=re.MULTILINE | re.DOTALL)
    return "".join(
        part if part.startswith("```") else re.sub(r"^#{1,2} ", "### ", part, flags=re.MULTILINE)
        for part in parts
    )


def _essential(skill: Skill) -> str:
    return "\n".join(
        f"### {heading}\n{text}" for heading in _ESSENTIAL_PARTS if (text := skill.section(heading))
    )


def _describe_kernel(kernel: Kernel, history: Sequence[Attempt]) -> str:
    found = [attempt for attempt in history if attempt.candidate.kernel.hash == kernel.hash]
    lines = [describe_result(found[-1]) if found else "not measured yet"]
    if kernel.knob_space:
        space = "; ".join(
            f"{name} in {', '.join(map(str, values))}" for name, values in kernel.knob_space
        )
        lines.append(f"Its knobs are tuned elsewhere: {space}")
    return "\n".join([*lines, fenced(kernel.source, "python")])


def _describe_node(node: Node) -> str:
    arguments = [_describe_argument(arg) for arg in node.args] + [
        f"{name}={_describe_argument(arg)}" for name, arg in node.kwargs.items()
    ]
    outputs = node.output if isinstance(node.output, tuple) else (node.output,)
    return (
        f"{node.name} = {node.target}({', '.join(arguments)}) -> "
        f"{', '.join(map(_describe_tensor, outputs))}"
    )


def _describe_argument(arg: Arg) -> str:
    if isinstance(arg, Ref):
        return arg.name
    if isinstance(arg, tuple):
        return f"[{', '.join(map(_describe_argument, arg))}]"
    return arg.expression if isinstance(arg, Literal) else str(arg)


def _describe_tensor(spec: TensorSpec | None) -> str:
    if spec is None:
        return "no tensor"
    layout = "" if spec.is_contiguous else f" strides {list(spec.stride)}"
    return f"{spec.dtype}{list(spec.shape)}{layout}"
