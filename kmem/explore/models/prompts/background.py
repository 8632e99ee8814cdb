"""What a run knows beside its attempts, as sections: times, launches, remembered kernels, pitfalls.

Pure functions of a situation, like sections.py; what of a file is shown is excerpts.py's.
"""

from collections.abc import Sequence

from kmem.explore.models.answers.schema import short_hash
from kmem.explore.models.prompts.excerpts import (
    KernelShape,
    failing_lines,
    kernel_excerpt,
    kernel_shapes,
)
from kmem.explore.models.prompts.message import Section, Worth
from kmem.explore.models.prompts.rendering import fenced, one_line
from kmem.interfaces import Situation
from kmem.records import Kernel, Launch, Recalled, Status, fastest_baseline
from kmem.skills import PITFALLS

#: Remembered kernels, launches of a forward, common errors and failures shown at most.
_REMEMBERED = 2
_LAUNCHES = 8
_FAULTS = 8
_FAILURES = 3


def times_section(situation: Situation) -> Section:
    """What there is to beat, what the run has, and what the hardware allows."""
    traced, background = situation.traced, situation.background
    fastest = fastest_baseline(background.baselines)
    lines = []
    for baseline in background.baselines:
        if baseline.timing is None:
            continue
        estimated = ", estimated" if baseline.estimated else ""
        beat = "; this is the time to beat" if baseline is fastest else ""
        lines.append(
            f"- the module, {baseline.name}: {baseline.timing.latency_ms:.4g} ms{estimated}{beat}"
        )
    passed = [item for item in situation.history if item.measurement.latency_ms is not None]
    if passed:
        best = min(passed, key=lambda item: item.measurement.latency_ms or 0.0)
        estimated = ", estimated" if best.measurement.estimated else ""
        lines.append(
            f"- the best kernel of this run, {short_hash(best.candidate.kernel.hash)}: "
            f"{best.measurement.latency_ms:.4g} ms{estimated}"
        )
    if traced.bound is not None and lines:
        lines.append(
            f"- the least that the hardware allows, the target: {traced.bound.time_ms:.4g} ms"
        )
    return Section("Times of one forward", ("\n".join(lines),), Worth.TASK)


def launches_section(situation: Situation) -> Section:
    """Every kernel that one forward of the parent launches, those that take most time first."""
    profile = situation.background.profile
    if profile is None or not profile.launches:
        return Section("What one forward launches", ("",), Worth.LAUNCHES)
    groups: dict[str, list[Launch]] = {}
    for launch in profile.launches:
        groups.setdefault(launch.name, []).append(launch)
    ranked = sorted(groups.items(), key=lambda entry: -_total_ms(entry[1]))
    total = sum(_total_ms(launches) for launches in groups.values())
    lines = ["| kernel | launches | ms | share | grid | threads |", "|---|---|---|---|---|---|"]
    for name, launches in ranked[:_LAUNCHES]:
        ms = _total_ms(launches)
        first = launches[0]
        cells = [
            one_line(name, 70),
            str(len(launches)),
            f"{ms:.4g}" if ms else "unknown",
            f"{ms / total:.0%}" if total else "unknown",
            "x".join(map(str, first.grid)) if first.grid else "unknown",
            "x".join(map(str, first.block)) if first.block else "unknown",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if len(ranked) > _LAUNCHES:
        lines.append(f"({len(ranked) - _LAUNCHES} more kernels are left out)")
    how = "estimated by the compiler" if profile.estimated else f"seen by {profile.profiler}"
    return Section(
        "What one forward launches", ("\n".join([f"As {how}:", *lines]), ""), Worth.LAUNCHES
    )


def structure_section(kernel: Kernel | None) -> Section:
    """What each kernel of a file does, by count."""
    shapes = kernel_shapes(kernel.source) if kernel is not None else []
    text = "\n".join(map(_describe_shape, shapes))
    return Section("What its kernels do", (text, "") if text else ("",), Worth.STRUCTURE)


def remembered_section(situation: Situation) -> Section:
    """The best kernels of like graphs: what made them fast, and what matters of their source."""
    hits = [hit for hit in situation.background.recalled if hit.source][:_REMEMBERED]
    told = [_describe_hit(hit) for hit in hits]
    shown = [
        f"{said}\n{fenced(kernel_excerpt(hit.source or ''), 'python')}"
        for said, hit in zip(told, hits, strict=True)
    ]
    texts = ["\n\n".join([*shown[:count], *told[count:]]) for count in range(len(shown), -1, -1)]
    return Section(
        "Fast kernels that memory holds for like graphs",
        tuple(dict.fromkeys([*texts, ""])),
        Worth.REMEMBERED,
    )


def start_section(kernel: Kernel | None, estimated_ms: float | None) -> Section:
    """The kernel that the nearest recipe writes for this module, to begin from."""
    title = "A kernel to begin from"
    if kernel is None:
        return Section(title, ("",), Worth.START)
    recipes = ", ".join(dict.fromkeys(choice.recipe for choice in kernel.choices))
    time = f", estimated at {estimated_ms:.3g} ms" if estimated_ms is not None else ""
    said = (
        f"kmem's own recipe ({recipes}) writes this for the module{time}; it was not measured. "
        "The parts that matter; what launches it is left out. Use what is good in it, do better "
        "where you can, and write a plain file of your own: kernels, sizes as arguments, a launch."
    )
    excerpt = kernel_excerpt(kernel.source)
    return Section(title, (f"{said}\n{fenced(excerpt, 'python')}", ""), Worth.START)


def failures_section(situation: Situation) -> Section:
    """The latest failures of the run, one for each error, with the lines that they failed at."""
    shown: dict[str, str] = {}
    for attempt in reversed(situation.history):
        status = attempt.measurement.status
        if status in (Status.PASSED, Status.INTERRUPTED) or len(shown) == _FAILURES:
            continue
        error = one_line(attempt.measurement.telling_line, 300) or status.value
        if error in shown:
            continue
        kernel = attempt.candidate.kernel
        where = failing_lines(attempt)
        shown[error] = f"{short_hash(kernel.hash)}, {status.value}: {error}" + (
            f"\n{fenced(where)}" if where else ""
        )
    blocks = list(shown.values())
    texts = ["\n\n".join(blocks[:count]) for count in range(len(blocks), -1, -1)]
    return Section("What failed, and where", tuple(texts), Worth.FAILURES)


def pitfalls_section(situation: Situation) -> Section:
    """What goes wrong in Triton of these versions, by the skill that says so and by the ledger."""
    versions = situation.background.versions
    used = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    lines = [f"In use here: {used}."] if used else []
    faults = situation.background.faults[:_FAULTS]
    if faults:
        lines.append("What models got wrong most often in earlier runs here:")
        lines += [f"- {fault.count} times {fault.status.value}: {fault.text}" for fault in faults]
    known = "\n".join(lines)
    skill = situation.skills.get(PITFALLS)
    if skill is None:
        return Section("Triton here", (known,), Worth.PITFALLS)
    sheet = skill.section("Pitfalls")
    full = "\n".join(filter(None, [known, skill.section("In Triton"), sheet]))
    short = "\n".join(filter(None, [known, sheet]))
    return Section("Triton here", (full, short, known), Worth.PITFALLS)


def _total_ms(launches: Sequence[Launch]) -> float:
    return sum(launch.duration_ms or 0.0 for launch in launches)


def _describe_shape(shape: KernelShape) -> str:
    counts = {
        "loads": shape.loads,
        "stores": shape.stores,
        "dots": shape.dots,
        "loops": shape.loops,
        "reductions": shape.reductions,
        "atomics": shape.atomics,
    }
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"- {shape.name}: {shape.lines} lines; {told or 'no access to memory'}"


def _describe_hit(hit: Recalled) -> str:
    outcome = hit.outcome
    like = "this very graph" if hit.exact else f"a graph with {', '.join(outcome.operators)}"
    lines = [f"For {like} ({outcome.problem}) on {outcome.device}:"]
    if outcome.latency_ms is not None:
        time = f"it took {outcome.latency_ms:.4g} ms"
        if outcome.ratio is not None and outcome.baseline:
            time += f", {outcome.ratio:.3g}x {outcome.baseline}"
        if outcome.bound_ms:
            time += f", {outcome.bound_ms / outcome.latency_ms:.0%} of what the hardware allows"
        lines.append(time + ".")
    made = [
        f"{choice.recipe} at {choice.site}"
        + (
            f" ({' '.join(f'{name}={value}' for name, value in choice.knobs)})"
            if choice.knobs
            else ""
        )
        for choice in outcome.choices
    ]
    lines.append(f"What made it fast: {'; '.join(made) or outcome.skill}.")
    return " ".join(lines)
