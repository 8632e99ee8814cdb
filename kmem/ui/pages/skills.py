"""The skill library: its index, and one skill with its text, its record and its posterior."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markupsafe import Markup

from kmem.memory.ledger.posteriors import Posterior
from kmem.memory.ledger.sums import step_log_speedup
from kmem.memory.ledger.track_records import TrackRecord, installed_versions
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.records import Outcome, Status
from kmem.skills import Skill, load_library
from kmem.ui.addresses import problem_address, skill_address
from kmem.ui.figures import Fact, date_cell, describe_date, describe_factor
from kmem.ui.plots.posterior import POINTS, draw_posterior
from kmem.ui.requests import Export, NoSuchPage, Page, PageRequest
from kmem.ui.source import show_python
from kmem.ui.tables import Cell, Column, Row, find_export, view_table

COLUMNS = (
    Column("name", "Skill"),
    Column("status", "Status"),
    Column("acts", "Acts"),
    Column("tried", "Tried", numeric=True),
    Column("passed", "Passed", numeric=True),
    Column("compared", "Compared", numeric=True),
    Column("improved", "Faster", numeric=True),
    Column("speedup", "Speedup", numeric=True),
    Column("expected", "Expected", numeric=True),
    Column("held", "Predictions held", numeric=True),
    Column("operators", "Operators", wraps=True),
    Column("bottlenecks", "Bottlenecks", wraps=True),
    Column("description", "Description", shown=False),
)
RECORD_COLUMNS = (
    Column("by", "By"),
    Column("name", "Where"),
    Column("tried", "Tried", numeric=True),
    Column("passed", "Passed", numeric=True),
    Column("improved", "Won", numeric=True),
    Column("lost", "Lost", numeric=True),
    Column("speedup", "Speedup of a step", numeric=True),
    Column("recalled", "Recalled", numeric=True),
)
PROBLEM_COLUMNS = (
    Column("problem", "Problem"),
    Column("tried", "Tried", numeric=True),
    Column("passed", "Passed", numeric=True),
    Column("won", "Won", numeric=True),
    Column("lost", "Lost", numeric=True),
    Column("best", "Best step", numeric=True),
    Column("device", "Device", wraps=True),
    Column("latest", "Latest (UTC)"),
)
#: Outcomes whose problems are told apart; a skill may have a hundred thousand.
LATEST = 300
#: What the record of a skill is told by, as people say it.
_BY = {"arch": "architecture", "operator": "operator", "bottleneck": "bottleneck"}
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
        posteriors = memory.track_records.posteriors(
            earned, bottleneck=None, operators=(), arch="", versions=installed_versions()
        )
        rows = [
            _row(skill, standings[skill.name].standing.value, earned.get(skill.name))
            | {"expected": _expected(posteriors.get(skill.name))}
            for skill in skills
        ]
        table = view_table("skills", COLUMNS, rows, request, "-expected" if earned else "name")
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
        "compared": Cell(record.compared if record is not None else 0),
        "improved": Cell(record.improved if record is not None else 0),
        "speedup": _speedup(record),
        "held": _predictions(record),
        "operators": Cell(", ".join(names), short, hint=", ".join(names)),
        "bottlenecks": Cell(", ".join(each.value for each in skill.bottlenecks)),
        "description": Cell(skill.description),
    }


def _speedup(record: TrackRecord | None) -> Cell:
    factor = record.speedup if record is not None else None
    hint = "measured: geometric mean over comparisons with what does without it" if factor else ""
    return Cell(factor, describe_factor(factor), hint=hint)


def _expected(posterior: Posterior | None) -> Cell:
    """What to expect of a skill's next kernel: its speedup, drawn in where little was compared."""
    if posterior is None:
        return Cell(None)
    factor = math.exp(posterior.log_speedup)
    return Cell(factor, describe_factor(factor), hint="by age and trust")


def _predictions(record: TrackRecord | None) -> Cell:
    """The share of settled predictions that held."""
    settled = record.held + record.refuted if record is not None else 0
    if record is None or not settled:
        return Cell(None)
    return Cell(record.held / settled, f"{record.held} of {settled}")


def show_skill(shelf: Shelf) -> Callable[[Memory, PageRequest], Page | Export]:
    """The page of one skill."""

    def show(memory: Memory, request: PageRequest) -> Page | Export:
        name = request.names["skill"]
        skill = next((each for each in shelf.skills() if each.name == name), None)
        if skill is None:
            raise NoSuchPage(f"No skill is named {name}")
        tables = {
            "records": view_table(
                "record", RECORD_COLUMNS, _record_rows(memory, name), request.part("record")
            ),
            "problems": view_table(
                "problems", PROBLEM_COLUMNS, _problem_rows(memory, name), request.part("problems")
            ),
        }
        if export := find_export(*tables.values()):
            return export
        return Page("skill.html", skill.name, _content(memory, skill) | tables)

    return show


def _content(memory: Memory, skill: Skill) -> dict[str, object]:
    outcomes = memory.listing.successes(skill.name, POINTS)
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
        "latest": LATEST,
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
        Fact("Next is correct", f"{posterior.correct:.0%}", "by age and trust", "measured"),
        Fact("A correct one improves", f"{posterior.improves:.0%}", "by age and trust", "measured"),
        Fact("By a factor", speedup, f"{low:.2f} to {high:.2f}", "measured"),
    ]


def _record_rows(memory: Memory, skill: str) -> list[Row]:
    """Where a skill won and lost: by architecture, operator and bottleneck."""
    return [
        {
            "by": Cell(said),
            "name": Cell(name or "none diagnosed"),
            "tried": Cell(record.tried),
            "passed": Cell(record.passed),
            "improved": Cell(record.improved),
            "lost": Cell(record.compared - record.improved),
            "speedup": _speedup(record),
            "recalled": Cell(record.recalled),
        }
        for what, said in _BY.items()
        for name, record in memory.track_records.of_skill_by(skill, what)
    ]


def _problem_rows(memory: Memory, skill: str) -> list[Row]:
    """The problems of a skill's latest outcomes: how often it won there, and by how much."""
    found: dict[str, list[Outcome]] = {}
    for listed in memory.listing.latest(skill, LATEST):
        if not listed.retracted:
            found.setdefault(listed.outcome.problem, []).append(listed.outcome)
    return [_problem_row(problem, outcomes) for problem, outcomes in found.items()]


def _problem_row(problem: str, outcomes: Sequence[Outcome]) -> Row:
    gains = [step_log_speedup(outcome) for outcome in outcomes]
    steps = [math.exp(gain) for gain in gains if gain is not None]
    won = sum(step > 1 for step in steps)
    best = max(steps, default=None)
    devices = ", ".join(dict.fromkeys(outcome.device for outcome in outcomes))
    return {
        "problem": Cell(problem, href=problem_address(problem)),
        "tried": Cell(len(outcomes)),
        "passed": Cell(sum(outcome.status is Status.PASSED for outcome in outcomes)),
        "won": Cell(won),
        "lost": Cell(len(steps) - won),
        "best": Cell(best, describe_factor(best)),
        "device": Cell(devices),
        "latest": date_cell(max(outcome.created_at for outcome in outcomes)),
    }


def show_prose(text: str) -> Markup:
    """Markdown as HTML; HTML, pictures and links inside it are shown as the text that they are."""
    shown = MarkdownIt("commonmark", {"html": False}).enable("table")
    return Markup(shown.disable(["image", "link", "autolink"]).render(text))
