"""The page of a run: its verdict, the staircase, every candidate, descent, and its rounds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kmem.memory.store import Memory
from kmem.records import Attempt, Diagnosis, Prescription, RunResult, Veto
from kmem.run.report.first_screen import describe_knobs
from kmem.run.state.diary import read_diary
from kmem.ui.addresses import compare_address, kernel_address, problem_address, skill_address
from kmem.ui.figures import (
    Fact,
    Origin,
    describe_date,
    describe_factor,
    describe_ms,
    describe_share,
    time_cell,
)
from kmem.ui.live import listen_to_run
from kmem.ui.pages.module_map import view_module
from kmem.ui.pages.run_story import RunStory, read_story
from kmem.ui.pages.whole_model import model_of
from kmem.ui.plots.genealogy import choose_kin, grow_tree
from kmem.ui.plots.staircase import draw_staircase
from kmem.ui.requests import Export, Page, PageRequest
from kmem.ui.tables import Cell, Column, Row, TableView, find_export, read_page, view_table

COLUMNS = (
    Column("number", "#", numeric=True, names_row=True),
    Column("round", "Round", numeric=True),
    Column("kernel", "Kernel"),
    Column("parent", "From"),
    Column("skill", "Skill"),
    Column("move", "Move"),
    Column("status", "Status"),
    Column("time_ms", "Time", numeric=True),
    Column("figures", "Figures"),
    Column("speedup", "Vs parent", numeric=True),
    Column("knobs", "Knobs", sortable=False, wraps=True),
    Column("why", "Why", shown=False),
)

BASELINES = (
    Column("baseline", "The module itself, by", names_row=True),
    Column("time_ms", "Time", numeric=True),
    Column("figures", "Figures"),
    Column("spread", "Middle 60%", sortable=False),
    Column("log", "Says", wraps=True),
)
_SAID_SHOWN = 8
_OTHERS_SHOWN = 10
#: Kernels of the tree, and rounds on a page: a run of a week has thousands.
_KIN_SHOWN = 200
_ROUNDS_SHOWN = 20
_FIRST_ROUNDS = PageRequest("", prefix="rounds.")
#: Without scripts a live page loads itself so often, in seconds.
_REFRESH_PLAIN_S = "5"

KernelLink = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Round:
    """What a round found, offered, and decided."""

    number: int
    diagnoses: tuple[tuple[str, Diagnosis, tuple[Prescription, ...]], ...]
    plan: str
    vetoes: tuple[Veto, ...]


def show_run(memory: Memory, request: PageRequest) -> Page | Export:
    """A run as it stands, finished or not."""
    # before anything is read: what changes meanwhile is told
    live = listen_to_run(memory, request.names["run"])
    story = read_story(memory, request.names["run"])
    table = candidates(story, request)
    baselines = view_baselines(story, request)
    eager = next((each for each in story.baselines if each.name == "eager"), None)
    module = view_module(story.run, request, eager)
    if export := find_export(table, baselines, module):
        return export
    going = story.state != "finished"
    content = {
        **run_content(story, table, baselines, rounds=request.part("rounds")),
        "module": module,
        "model_href": model_of(story.run),
        "live": live if going else "",
        "diary": read_diary(Path(story.run.out_dir), _SAID_SHOWN) if going else (),
        "others": _others(memory, story),
        "refresh_plain": _REFRESH_PLAIN_S if story.state == "running" else "",
    }
    return Page("run.html", story.run.problem.name, content)


def _others(memory: Memory, story: RunStory) -> list[tuple[str, str]]:
    """The newest other runs of the same problem: what each is called, and both side by side."""
    lines = memory.run_entries.lines(problem=story.run.problem.name)
    others = [line for line in lines if line.id != story.run.id]
    return [
        (
            f"{describe_date(line.created_at)}, {line.target}",
            compare_address(line.id, story.run.id),
        )
        for line in others[:_OTHERS_SHOWN]
    ]


def view_baselines(story: RunStory, request: PageRequest) -> TableView | Export:
    """The table of the ways to run the unmodified module."""
    rows = []
    for baseline in story.baselines:
        timing = baseline.timing
        origin = Origin(baseline.estimated, story.run.target, story.run.created_at)
        log = baseline.log.strip().splitlines()
        rows.append(
            {
                "baseline": Cell(baseline.name),
                "time_ms": time_cell(timing.latency_ms if timing else None, origin),
                "figures": Cell(origin.kind, kind=origin.kind, hint=str(origin)),
                "spread": Cell(
                    f"{describe_ms(timing.latency_ms_p20)} to {describe_ms(timing.latency_ms_p80)}"
                    if timing and timing.samples
                    else ""
                ),
                "log": Cell(log[-1] if log else ""),
            }
        )
    return view_table("baselines", BASELINES, rows, request.part("baselines"))


def run_content(
    story: RunStory,
    table: TableView | Export,
    baselines: TableView | Export,
    link: KernelLink | None = None,
    rounds: PageRequest = _FIRST_ROUNDS,
) -> Mapping[str, object]:
    """What the template of a run shows.

    Args:
        link: the address of a kernel's page; by default that of the server.
        rounds: which page of the rounds, newest first.
    """
    return {
        "baselines": baselines,
        "diary": (),
        "module": None,
        "model_href": "",
        "others": (),
        "problem_href": problem_address(story.run.problem.name),
        "story": story,
        "run": story.run,
        "began": describe_date(story.run.created_at),
        "headline": describe_verdict(story),
        "facts": run_facts(story),
        "staircase": draw_staircase(
            story.attempts, story.baselines, story.bound.time_ms if story.bound else None
        ),
        "tree": grow_tree(choose_kin(story.attempts, _KIN_SHOWN)),
        "kernels": len({attempt.candidate.kernel.hash for attempt in story.attempts}),
        **_page_of_rounds(_rounds(story), rounds),
        "table": table,
        "kernel_link": link or (lambda kernel: kernel_address(story.run.id, kernel)),
        "skill_link": skill_address,
        "describe_ms": describe_ms,
    }


def candidates(
    story: RunStory, request: PageRequest, link: KernelLink | None = None
) -> TableView | Export:
    """The table of all candidates."""
    href = link or (lambda kernel: kernel_address(story.run.id, kernel))
    known = {attempt.candidate.kernel.hash for attempt in story.attempts}
    best = story.best.candidate.kernel.hash if story.best is not None else ""
    rows = [
        _row(number, attempt, story, known, href) | {"best": Cell(_hash(attempt) == best)}
        for number, attempt in enumerate(story.attempts, 1)
    ]
    return view_table("candidates", COLUMNS, rows, request, "number")


def _row(number: int, attempt: Attempt, story: RunStory, known: set[str], href: KernelLink) -> Row:
    task, kernel = attempt.candidate.task, attempt.candidate.kernel
    measurement = attempt.measurement
    origin = Origin(measurement.estimated, story.run.target, story.run.created_at)
    parent = kernel.parent or ""
    has_time = measurement.latency_ms is not None
    log = measurement.log.strip().splitlines()
    return {
        "number": Cell(number),
        "round": Cell(attempt.round),
        "kernel": Cell(kernel.hash, kernel.hash[:10], href(kernel.hash), "code"),
        "parent": Cell(parent, parent[:10], href(parent) if parent in known else "", "code"),
        "skill": Cell(task.skill, href=skill_address(task.skill)),
        "move": Cell(task.move.value),
        "status": Cell(measurement.status.value, kind="status", hint=log[-1] if log else ""),
        "time_ms": time_cell(measurement.latency_ms, origin),
        "figures": Cell(origin.kind, kind=origin.kind, hint=str(origin))
        if has_time
        else Cell(None),
        "speedup": Cell(attempt.speedup, describe_factor(attempt.speedup)),
        "knobs": Cell("; ".join(describe_knobs(choice) for choice in kernel.choices), kind="code"),
        "why": Cell(task.reason),
    }


def _hash(attempt: Attempt) -> str:
    return attempt.candidate.kernel.hash


def describe_verdict(story: RunStory) -> str:
    """What came of a run, or where it stands, in a sentence."""
    result = story.result
    if result is not None and result.best is not None:
        which = "a remembered kernel" if result.recalled else "a new kernel"
        return f"{describe_factor(result.speedup)} faster by {which}, proved correct"
    if result is not None:
        return "Nothing beat the best baseline"
    if story.best is None:
        return "Nothing has passed yet"
    best = describe_ms(story.best.measurement.latency_ms)
    return f"Best so far {best}, not verified yet"


def run_facts(story: RunStory) -> list[Fact]:
    """The figures of the head, each with its origin."""
    kind = story.origin.kind
    best, baseline = story.best, story.baseline
    facts = []
    if best is not None:
        interval = _interval(story.result)
        best_ms = best.measurement.latency_ms
        facts.append(Fact("Best kernel", describe_ms(best_ms), interval, kind))
        if story.bound is not None and best_ms:
            share = describe_share(story.bound.time_ms / best_ms)
            facts.append(Fact("Of the bound", share, "bound over time", kind))
    if baseline is not None and baseline.timing is not None:
        time = describe_ms(baseline.timing.latency_ms)
        said = Origin(baseline.estimated, "", "").kind
        facts.append(Fact("Best baseline", time, baseline.name, said))
    if story.bound is not None:
        time = describe_ms(story.bound.time_ms)
        facts.append(Fact("Bound", time, f"set by {story.bound.limiter}", "computed"))
    passed = sum(attempt.measurement.latency_ms is not None for attempt in story.attempts)
    facts.append(Fact("Candidates", str(len(story.attempts)), f"{passed} passed"))
    budget = f"of {story.run.budget.minutes:g} min"
    facts.append(Fact("Time spent", f"{story.seconds_spent / 60:.1f} min", budget))
    return facts


def _interval(result: RunResult | None) -> str:
    """The speedup in pairs with its 95% interval, where the judge timed pairs."""
    timing = result.best.measurement.timing if result is not None and result.best else None
    if timing is None or timing.ratio is None:
        return ""
    text = f"{timing.ratio:.3f}× {timing.reference or 'the baseline'}"
    if timing.ratio_low is None or timing.ratio_high is None:
        return text
    return f"{text}, 95% {timing.ratio_low:.3f} to {timing.ratio_high:.3f}"


def _page_of_rounds(rounds: Sequence[Round], request: PageRequest) -> Mapping[str, object]:
    """Some of the rounds, newest first, with the addresses of those before and after."""
    newest = rounds[::-1]
    page = read_page(request)
    if page * _ROUNDS_SHOWN >= len(newest):
        page = 0
    shown = newest[page * _ROUNDS_SHOWN : (page + 1) * _ROUNDS_SHOWN]
    more = (page + 1) * _ROUNDS_SHOWN < len(newest)
    return {
        "rounds": shown,
        "rounds_total": len(newest),
        "rounds_newer": request.address(page=str(page)) if page else "",
        "rounds_older": request.address(page=str(page + 2)) if more else "",
    }


def _rounds(story: RunStory) -> list[Round]:
    plans = {entry.round: entry.plan for entry in story.plans}
    found: dict[int, list[tuple[str, Diagnosis, tuple[Prescription, ...]]]] = {}
    for entry in story.diagnoses:
        found.setdefault(entry.round, []).append(
            (entry.kernel, entry.diagnosis, entry.prescriptions)
        )
    return [
        Round(
            number,
            tuple(found.get(number, ())),
            plans[number].reason if number in plans else "",
            _distinct(plans[number].vetoes) if number in plans else (),
        )
        for number in sorted({*plans, *found})
    ]


def _distinct(vetoes: Sequence[Veto]) -> tuple[Veto, ...]:
    return tuple({(veto.skill, veto.reason): veto for veto in vetoes}.values())
