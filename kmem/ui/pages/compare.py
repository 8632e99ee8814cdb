"""Two runs side by side: figures, staircases, options, and the best kernels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kmem.curate.change import diff_sources
from kmem.errors import MemoryStoreError
from kmem.memory.store import Memory
from kmem.serialize import to_data
from kmem.ui.addresses import kernel_address, run_address
from kmem.ui.pages.run import describe_verdict, run_facts
from kmem.ui.pages.run_story import RunStory, read_story
from kmem.ui.plots.staircase import draw_staircase
from kmem.ui.requests import Export, Page, PageRequest
from kmem.ui.source import show_diff
from kmem.ui.tables import Cell, Column, Row, find_export, view_table

FIGURES = (
    Column("figure", "Figure"),
    Column("first", "First", sortable=False, wraps=True),
    Column("second", "Second", sortable=False, wraps=True),
)
OPTIONS = (
    Column("option", "Option"),
    Column("first", "First", sortable=False, wraps=True),
    Column("second", "Second", sortable=False, wraps=True),
    Column("same", "Same"),
)
#: Of a run's record: what it was asked is shown, what names it is not.
_NOT_OPTIONS = ("id", "problem", "out_dir", "created_at")
_OFFERED = 100


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs."""

    story: RunStory
    headline: str
    href: str
    staircase: object
    best_href: str


def show_comparison(memory: Memory, request: PageRequest) -> Page | Export:
    """The runs `a` and `b` of the address; a form to choose them while one is missing."""
    chosen = [request.query.get("a", "").strip(), request.query.get("b", "").strip()]
    stories: list[RunStory] = []
    faults: list[str] = []
    for run_id in filter(None, chosen):
        try:
            stories.append(read_story(memory, run_id))
        except MemoryStoreError as ex:
            faults.append(str(ex))
    content: dict[str, object] = {
        "chosen": chosen,
        "faults": faults,
        "sides": (),
        "link_into": lambda run: partial(kernel_address, run),
        "offered": [
            (line.id, f"{line.problem}, {line.target}")
            for line in memory.run_entries.lines()[:_OFFERED]
        ],
    }
    if len(stories) == 2:
        first, second = stories
        figures = view_table(
            "figures", FIGURES, _figure_rows(first, second), request.part("figures")
        )
        options = view_table(
            "options", OPTIONS, _option_rows(first, second), request.part("options"), "same"
        )
        if export := find_export(figures, options):
            return export
        content |= {
            "sides": _sides(first, second),
            "figures": figures,
            "options": options,
            "diff": _diff(first, second),
        }
    return Page("compare.html", "Two runs", content)


def _sides(first: RunStory, second: RunStory) -> list[Side]:
    return [
        Side(
            story,
            describe_verdict(story),
            run_address(story.run.id),
            draw_staircase(
                story.attempts, story.baselines, story.bound.time_ms if story.bound else None
            ),
            kernel_address(story.run.id, story.best.candidate.kernel.hash) if story.best else "",
        )
        for story in (first, second)
    ]


def _figure_rows(first: RunStory, second: RunStory) -> list[Row]:
    """The facts of both; a figure that one lacks stays empty."""
    sides: list[Mapping[str, str]] = [
        {
            fact.name: ", ".join(filter(None, (fact.value, fact.kind, fact.note)))
            for fact in run_facts(story)
        }
        for story in (first, second)
    ]
    names = dict.fromkeys([*sides[0], *sides[1]])
    where = [("Figures are", str(first.origin), str(second.origin))]
    rows = where + [(name, sides[0].get(name, ""), sides[1].get(name, "")) for name in names]
    return [{"figure": Cell(a), "first": Cell(b), "second": Cell(c)} for a, b, c in rows]


def _option_rows(first: RunStory, second: RunStory) -> list[Row]:
    sides = [dict(_flat(to_data(story.run))) for story in (first, second)]
    rows: list[Row] = []
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        values = [side.get(name, "") for side in sides]
        same = "same" if values[0] == values[1] else "different"
        rows.append(
            {
                "option": Cell(name, kind="code"),
                "first": Cell(values[0], values[0] or "none"),
                "second": Cell(values[1], values[1] or "none"),
                "same": Cell(same, kind="status"),
            }
        )
    return rows


def _flat(data: Mapping[str, object], before: str = "") -> list[tuple[str, str]]:
    """The values of nested records by their dotted names."""
    found: list[tuple[str, str]] = []
    for name, value in data.items():
        if not before and name in _NOT_OPTIONS:
            continue
        if isinstance(value, Mapping):
            found += _flat(value, f"{before}{name}.")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            found.append((f"{before}{name}", ", ".join(map(str, value))))
        else:
            found.append((f"{before}{name}", "" if value is None else str(value)))
    return found


def _diff(first: RunStory, second: RunStory) -> object:
    """The best kernel of the second against that of the first."""
    if first.best is None or second.best is None:
        return ""
    return show_diff(diff_sources(first.best.candidate.kernel, second.best.candidate.kernel))
