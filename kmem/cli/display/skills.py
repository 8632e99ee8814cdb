"""What is shown of skills: tables, hits of a search, status and track record."""

import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from kmem.memory.ledger.track_records import TrackRecord
from kmem.memory.skills.search import SkillHit
from kmem.memory.skills.standing import SkillStanding
from kmem.serialize import to_data
from kmem.skills import Skill

if TYPE_CHECKING:
    from kmem.curate.sources import SkillOrigin


def skill_data(skill: Skill, standing: SkillStanding) -> dict[str, object]:
    """A skill and where it stands, for programs."""
    return {
        "name": skill.name,
        "status": standing.standing.value,
        "description": skill.description,
        "operators": skill.operators,
        "bottlenecks": [bottleneck.value for bottleneck in skill.bottlenecks],
        "signature": [str(condition) for condition in skill.signature],
        "arch": skill.arch,
        "precision": skill.precision,
        "structure": [str(condition) for condition in skill.structure],
        "conflicts": skill.conflicts,
        "forbidden": [str(combination) for combination in skill.forbidden],
        "recipe": skill.has_recipe,
        "rewrite": skill.has_rewrite,
        "claims": [str(claim) for claim in skill.claims],
        "moves": [str(move) for move in skill.moves],
        "path": str(skill.path),
    }


def describe_gates(skill: Skill) -> str:
    """Markdown: what a skill asks of a kernel's text, and where it must not be applied."""
    asked = [f"`{condition}`" for condition in skill.structure]
    lines = [f"- Only for a text with {' and '.join(asked)}."] if asked else []
    lines += [f"- Forbidden where `{each}`." for each in skill.forbidden]
    lines += [f"- Never together with `{other}`." for other in skill.conflicts]
    return "\n".join(lines) or "It asks nothing of a kernel's text and goes with every other skill."


def describe_status(standing: SkillStanding, origin: "SkillOrigin | None") -> str:
    """Markdown: where a skill stands and why, where it came from, and who reproduced it."""
    lines = [f"{standing.reason[0].upper()}{standing.reason[1:]}."]
    if origin is not None:
        revision = f" at {origin.revision[:12]}" if origin.revision else ""
        left_out = "; its recipe.py was left out" if origin.recipe_left_out else ""
        lines.append(f"Added from {origin.address}{revision}{left_out}.")
    lines += [
        f"- {each.effect} on {each.problem}, {each.device}, seed "
        f"{'unknown' if each.seed is None else each.seed}, by {each.origin} "
        f"(outcome {each.outcome[:12]})"
        for each in standing.reproductions
    ]
    return "\n\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:])


def describe_track_record(records: Sequence[TrackRecord]) -> str:
    """Markdown: a table with a row for each architecture."""
    if not records:
        return "Never measured in this memory."
    lines = [
        "| arch | tried | passed | compared with what does without it | faster of these | "
        "geometric-mean speedup of these | predictions held | recalled |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for item in records:
        speedup = "unknown" if item.speedup is None else f"{item.speedup:.2f}x"
        settled = item.held + item.refuted
        kept = f"{item.held} of {settled}" if settled else "none settled"
        cells = (
            *(item.arch, item.tried, item.passed, item.compared, item.improved),
            *(speedup, kept, item.recalled),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def print_markdown(*texts: str) -> None:
    """Print Markdown as it reads best on a terminal."""
    from rich.console import Console  # with the next a tenth of a search's time
    from rich.markdown import Markdown

    for text in texts:
        Console().print(Markdown(text))


def hit_data(hit: SkillHit, skill: Skill, standing: SkillStanding) -> dict[str, object]:
    """A hit of a search, for programs."""
    return {
        **to_data(hit),
        "description": skill.description,
        "status": standing.standing.value,
        "acts": skill.manner,
        "path": str(skill.path),
    }


def print_hits(
    hits: Sequence[SkillHit],
    skills: Mapping[str, Skill],
    standings: Mapping[str, SkillStanding],
) -> None:
    """Print the hits of a search, best first: what each is, how it acts, and why it was found."""
    for place, hit in enumerate(hits, start=1):
        skill = skills[hit.name]
        status = standings[hit.name].standing.value
        click.echo(f"{place:2}. {hit.name} ({status}; {skill.manner})")
        for text in (skill.description, f"Why: {'; '.join(hit.reasons)}"):
            click.echo(textwrap.indent(textwrap.fill(text, _text_width() - 4), "    "))


def print_list(skills: Sequence[Skill], standings: Mapping[str, SkillStanding]) -> None:
    """Print a line for each skill: name, status, how it acts by itself, its description."""
    rows = [
        (
            skill.name,
            standings[skill.name].standing.value,
            skill.manner if skill.acts else "",
        )
        for skill in skills
    ]
    widths = [max((len(row[place]) for row in rows), default=0) for place in range(3)]
    for row, skill in zip(rows, skills, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        line = "  ".join([*cells, skill.description])
        # whole where a program reads it
        click.echo(line[: shutil.get_terminal_size().columns] if sys.stdout.isatty() else line)


def _text_width() -> int:
    return min(100, shutil.get_terminal_size().columns)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table without borders on stdout."""
    from rich.console import Console  # with the next a tenth of a search's time, which has no table
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, column in enumerate(columns):
        # a name cut short could not be copied into the next command
        table.add_column(column, no_wrap=place == 0)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
