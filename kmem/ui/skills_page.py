"""The skill library: its index, and one skill with its text, its record and its posterior."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markupsafe import Markup

from kmem.memory.ledger.posteriors import Posterior
from kmem.memory.ledger.track_records import TrackRecord, installed_versions
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.skills import Skill, load_library
from kmem.ui.addresses import skill_address
from kmem.ui.figures import describe_date, describe_factor
from kmem.ui.posterior import draw_posterior
from kmem.ui.requests import Export, NoSuchPage, Page, PageRequest
from kmem.ui.run_page import Fact
from kmem.ui.source import show_python
from kmem.ui.tables import Cell, Column, Row, view_table

COLUMNS = (
    Column("name", "Skill"),
    Column("status", "Status"),
    Column("acts", "Acts"),
    Column("tried", "Tried", numeric=True),
    Column("passed", "Passed", numeric=True),
    Column("improved", "Improved", numeric=True),
    Column("speedup", "Speedup", numeric=True),
    Column("operators", "Operators"),
    Column("bottlenecks", "Bottlenecks", wraps=True),
    Column("description", "Description", shown=False),
)
RECORD_COLUMNS = (
    Column("arch", "Architecture", sortable=False),
    Column("tried", "Tried", numeric=True, sortable=False),
    Column("passed", "Passed", numeric=True, sortable=False),
    Column("improved", "Improved", numeric=True, sortable=False),
    Column("speedup", "Speedup of a step", numeric=True, sortable=False),
    Column("recalled", "Recalled", numeric=True, sortable=False),
)
#: More would widen the table beyond any screen.
_OPERATORS_SHOWN = 3


@dataclass
class Shelf:
    """The registered skills, read again when a file of theirs changes."""

    registry: Registry
    _stamps: dict[str, int] | None = None
    _skills: list[Skill] | None = None

    def skills(self) -> Sequence[Skill]:
        """Every skill that can be read, by name."""
        stamps = {name: _stamp(path) for name, path in self.registry.skills.items()}
        if self._skills is None or stamps != self._stamps:
            self._skills = list(load_library(self.registry.skills).values())
            self._stamps = stamps
        return self._skills


def _stamp(path: Path) -> int:
    try:
        return (path / "SKILL.md").stat().st_mtime_ns
    except OSError:
        return 0


def show_skills(shelf: Shelf) -> Callable[[Memory, PageRequest], Page | Export]:
    """The page with every skill: what it is about, and what it has earned."""

    def show(memory: Memory, request: PageRequest) -> Page | Export:
        skills = shelf.skills()
        standings = memory.standings.of_each(skills)
        earned = memory.track_records.of_skills([skill.name for skill in skills])
        rows = [
            _row(skill, standings[skill.name].standing.value, earned.get(skill.name))
            for skill in skills
        ]
        table = view_table("skills", COLUMNS, rows, request, "name")
        if isinstance(table, Export):
            return table
        recipes = sum(skill.has_recipe for skill in skills)
        return Page(
            "skills.html", "Skills", {"table": table, "total": len(skills), "recipes": recipes}
        )

    return show


def _row(skill: Skill, status: str, record: TrackRecord | None) -> Row:
    tried = record.tried if record is not None else 0
    names = list(skill.operators)
    short = ", ".join(names[:_OPERATORS_SHOWN])
    if len(names) > _OPERATORS_SHOWN:
        short += f" +{len(names) - _OPERATORS_SHOWN}"
    return {
        "name": Cell(skill.name, href=skill_address(skill.name), hint=skill.description),
        "status": Cell(status, kind="status"),
        "acts": Cell(skill.manner if skill.acts else "prose"),
        "tried": Cell(tried),
        "passed": Cell(record.passed if record is not None else 0),
        "improved": Cell(record.improved if record is not None else 0),
        "speedup": _speedup(record),
        "operators": Cell(", ".join(names), short, hint=", ".join(names)),
        "bottlenecks": Cell(", ".join(each.value for each in skill.bottlenecks)),
        "description": Cell(skill.description),
    }


def _speedup(record: TrackRecord | None) -> Cell:
    factor = record.speedup if record is not None else None
    hint = "measured: geometric mean over the steps of its outcomes" if factor else ""
    return Cell(factor, describe_factor(factor), hint=hint)


def show_skill(shelf: Shelf) -> Callable[[Memory, PageRequest], Page]:
    """The page of one skill."""

    def show(memory: Memory, request: PageRequest) -> Page:
        name = request.names["skill"]
        skill = next((each for each in shelf.skills() if each.name == name), None)
        if skill is None:
            raise NoSuchPage(f"No skill is named {name}")
        return Page("skill.html", skill.name, _content(memory, skill, request))

    return show


def _content(memory: Memory, skill: Skill, request: PageRequest) -> dict[str, object]:
    records = memory.track_records.of_skill(skill.name)
    outcomes = memory.listing.successes(skill.name)
    posterior = memory.track_records.posteriors(
        [skill.name], bottleneck=None, operators=(), arch="", versions=installed_versions()
    )[skill.name]
    ends = [outcomes[0].number, outcomes[-1].number] if outcomes else []
    recipe = skill.path / "recipe.py"
    return {
        "skill": skill,
        "standing": memory.standings.of(skill),
        "facts": _facts(posterior),
        "posterior": posterior,
        "plot": draw_posterior(outcomes),
        "dates": [describe_date(date) for date in memory.listing.dates(ends)],
        "records": view_table(
            "record", RECORD_COLUMNS, [_record_row(each) for each in records], PageRequest("")
        ),
        "body": show_prose(skill.body),
        "recipe": show_python(recipe.read_text(encoding="utf-8")) if recipe.is_file() else "",
    }


def _facts(posterior: Posterior) -> list[Fact]:
    if not posterior.tried:
        return [Fact("Tried", "never", "so nothing is known of it but its text")]
    spread = 2 * posterior.deviation
    low, high = math.exp(posterior.log_speedup - spread), math.exp(posterior.log_speedup + spread)
    speedup = describe_factor(math.exp(posterior.log_speedup))
    return [
        Fact("Tried", f"{posterior.tried:,}", "outcomes in the ledger"),
        Fact("Next is correct", f"{posterior.correct:.0%}", "expected", "measured"),
        Fact("A correct one improves", f"{posterior.improves:.0%}", "expected", "measured"),
        Fact("By a factor", speedup, f"{low:.2f} to {high:.2f}", "measured"),
    ]


def _record_row(record: TrackRecord) -> Row:
    return {
        "arch": Cell(record.arch),
        "tried": Cell(record.tried),
        "passed": Cell(record.passed),
        "improved": Cell(record.improved),
        "speedup": _speedup(record),
        "recalled": Cell(record.recalled),
    }


def show_prose(text: str) -> Markup:
    """Markdown as HTML; HTML inside it is shown as text, and links lead nowhere but to pages."""
    return Markup(MarkdownIt("commonmark", {"html": False}).enable("table").render(text))
