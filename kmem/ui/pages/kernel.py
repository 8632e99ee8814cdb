"""One candidate: verdict, errors, times, roofline, profile, diff against its parent, source."""

from collections.abc import Mapping

from kmem.curate.change import diff_sources
from kmem.devices import TARGETS
from kmem.memory.store import Memory
from kmem.records import Attempt, Device, Kernel, Profile
from kmem.run.report.first_screen import describe_knobs
from kmem.ui.addresses import kernel_address, problem_address, run_address, skill_address
from kmem.ui.figures import Fact, Origin, describe_factor, describe_ms
from kmem.ui.pages.kernel_tables import kernel_tables
from kmem.ui.pages.run_story import RunStory, read_story
from kmem.ui.plots.roofline import Roofline, Timed, draw_roofline, moved_bytes
from kmem.ui.plots.treemap import draw_treemap
from kmem.ui.requests import Export, NoSuchPage, Page, PageRequest
from kmem.ui.source import show_diff, show_python
from kmem.ui.tables import TableView, find_export


def show_kernel(memory: Memory, request: PageRequest) -> Page | Export:
    """A candidate of a run, by the hash of its source or its beginning.

    Raises NoSuchPage if the run has no such kernel.
    """
    story = read_story(memory, request.names["run"])
    asked = request.names["kernel"]
    for number, attempt in enumerate(story.attempts, 1):
        if asked and attempt.candidate.kernel.hash.startswith(asked):
            tables = _tables(memory, story, attempt, request)
            if export := find_export(*tables.values()):
                return export
            content = {**kernel_content(memory, story, number, attempt), "tables": tables}
            return Page("kernel.html", f"Candidate {number} of {story.run.problem.name}", content)
    raise NoSuchPage(f"Run {story.run.id} has no kernel {asked}")


def _tables(
    memory: Memory, story: RunStory, attempt: Attempt, request: PageRequest
) -> Mapping[str, TableView | Export]:
    profiles: dict[str, list[Profile]] = {}
    for profile in story.profiles:
        profiles.setdefault(profile.kernel, []).append(profile)
    kernel = attempt.candidate.kernel
    verdict = story.verdicts.get(kernel.hash)
    measurement = verdict.measurement if verdict is not None else attempt.measurement
    return kernel_tables(
        attempt,
        measurement.errors,
        [each for each in story.lessons if each.kernel == kernel.hash],
        profiles,
        device_of(memory, story),
        story.origin,
        request,
    )


def device_of(memory: Memory, story: RunStory) -> Device | None:
    """The device of a run: with its measured ceilings where times were measured too."""
    known = TARGETS.get(story.run.target)
    if story.is_estimated:
        return known
    return memory.devices.ceilings(story.run.target) or known


def kernel_content(
    memory: Memory, story: RunStory, number: int, attempt: Attempt
) -> Mapping[str, object]:
    """What the template of a candidate shows, but its tables."""
    kernel = attempt.candidate.kernel
    verdict = story.verdicts.get(kernel.hash)
    measurement = verdict.measurement if verdict is not None else attempt.measurement
    parent = memory.runs.kernel(kernel.parent) if kernel.parent else None
    diff = diff_sources(parent or Kernel(story.run.problem.source), kernel)
    in_run = {each.candidate.kernel.hash for each in story.attempts}
    profiles = [each for each in story.profiles if each.kernel == kernel.hash]
    return {
        "story": story,
        "run": story.run,
        "number": number,
        "attempt": attempt,
        "kernel": kernel,
        "verified": verdict is not None,
        "measurement": measurement,
        "origin": str(Origin(measurement.estimated, story.run.target, story.run.created_at)),
        "facts": _facts(story, attempt),
        "roofline": _roofline(memory, story, attempt, profiles),
        "treemaps": [(profile, drawn) for profile in profiles if (drawn := draw_treemap(profile))],
        "diff": show_diff(diff) if diff else "",
        "diff_against": f"kernel {kernel.parent[:10]}"
        if parent and kernel.parent
        else "the module",
        "source": show_python(kernel.source),
        "profiles": profiles,
        "diagnoses": [each for each in story.diagnoses if each.kernel == kernel.hash],
        "lessons": [each for each in story.lessons if each.kernel == kernel.hash],
        "knobs": [(choice, describe_knobs(choice)) for choice in kernel.choices],
        "parent_href": kernel_address(story.run.id, kernel.parent)
        if kernel.parent in in_run and kernel.parent
        else "",
        "run_href": run_address(story.run.id),
        "problem_href": problem_address(story.run.problem.name),
        "skill_link": skill_address,
        "describe_ms": describe_ms,
    }


def _roofline(
    memory: Memory, story: RunStory, attempt: Attempt, profiles: list[Profile]
) -> Roofline | None:
    """This kernel, the one it was made from and the fastest baseline below the device's roof."""
    device, time_ms = device_of(memory, story), attempt.measurement.latency_ms
    if device is None or story.bound is None or time_ms is None:
        return None
    moved = moved_bytes(profiles[-1] if profiles else None)
    timed = [Timed("best", "this kernel", time_ms, moved)]
    if attempt.parent_ms is not None:
        timed.append(Timed("parent", "parent", attempt.parent_ms))
    baseline = story.baseline
    if baseline is not None and baseline.timing is not None:
        timed.append(Timed("baseline", baseline.name, baseline.timing.latency_ms))
    return draw_roofline(story.bound, device, timed)


def _facts(story: RunStory, attempt: Attempt) -> list[Fact]:
    verdict = story.verdicts.get(attempt.candidate.kernel.hash)
    facts = []
    timing = attempt.measurement.timing
    kind = Origin(attempt.measurement.estimated, "", "").kind
    if timing is not None:
        spread = f"{describe_ms(timing.latency_ms_p20)} to {describe_ms(timing.latency_ms_p80)}"
        note = f"middle 60%: {spread}" if timing.samples else "of the compiled kernel"
        facts.append(Fact("Time", describe_ms(timing.latency_ms), note, kind))
    if attempt.speedup is not None:
        before = f"it took {describe_ms(attempt.parent_ms)}"
        facts.append(Fact("Against its parent", describe_factor(attempt.speedup), before, kind))
    if timing is not None and story.bound is not None and timing.latency_ms:
        share = f"{story.bound.time_ms / timing.latency_ms:.0%}"
        facts.append(Fact("Of the bound", share, describe_ms(story.bound.time_ms), kind))
    if verdict is not None:
        final = verdict.measurement.timing
        ratio = describe_factor(final.ratio) if final is not None else ""
        name = verdict.measurement.status.value
        said = Origin(verdict.measurement.estimated, "", "").kind
        facts.append(Fact("Final verdict", ratio or name, name if ratio else "", said))
    if attempt.measurement.errors:
        worst = max(attempt.measurement.errors, key=lambda error: error.excess)
        facts.append(Fact("Worst error", f"{worst.excess:.2g}", "of what is allowed", "checked"))
    return facts
