"""What is shown of skills: tables, hits of a search, status and track record."""

import json
from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table

from kmem.curate.sources import SkillOrigin
from kmem.memory.ledger.track_records import TrackRecord
from kmem.memory.skills.search import SkillHit
from kmem.memory.skills.standing import SkillStanding
from kmem.records import Diagnosis
from kmem.serialize import to_data
from kmem.skills import Skill


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
        "conflicts": skill.conflicts,
        "recipe": skill.has_recipe,
        "path": str(skill.path),
    }


def describe_status(standing: SkillStanding, origin: SkillOrigin | None) -> str:
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
        "| arch | tried | passed | improved | geometric-mean speedup of its steps | recalled |",
        "|---|---|---|---|---|---|",
    ]
    for item in records:
        speedup = "unknown" if item.speedup is None else f"{item.speedup:.2f}x"
        cells = (item.arch, item.tried, item.passed, item.improved, speedup, item.recalled)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def print_hits(hits: Sequence[SkillHit], diagnosis: Diagnosis | None, *, as_json: bool) -> None:
    """Print the hits of a search, after the diagnosis of the report that was searched by."""
    if as_json:
        found = {
            "diagnosis": to_data(diagnosis) if diagnosis else None,
            "skills": [to_data(hit) for hit in hits],
        }
        click.echo(json.dumps(found, indent=2))
        return
    if diagnosis is not None:
        click.echo(diagnosis.summary)
    if not hits:
        click.echo("No skill fits; leave out --op or --arch, or use other words", err=True)
        return
    print_table(
        ("skill", "score", "why"),
        [(hit.name, f"{hit.score:.4f}", "; ".join(hit.reasons)) for hit in hits],
    )


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table without borders on stdout."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, column in enumerate(columns):
        # a name cut short could not be copied into the next command
        table.add_column(column, no_wrap=place == 0)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
