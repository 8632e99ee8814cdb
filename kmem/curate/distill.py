"""From runs to draft skills.

The wins of runs are found; a win that existing skills explain is left to them; the others are kept
beside the database as drafts.
"""

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kmem.curate.change import Explanation, explain_change
from kmem.curate.draft import draft_files, draft_name, write_draft
from kmem.curate.wins import Win, find_wins
from kmem.memory.location import added_skills_root
from kmem.memory.skills.added import add_skill
from kmem.memory.skills.standing import Interval
from kmem.memory.store import Memory
from kmem.records import Run
from kmem.skills import DRAFT, read_skill


@dataclass(frozen=True, slots=True)
class DistilledDraft:
    """A draft that a win stands for; `is_new` unless the same change was distilled before."""

    name: str
    path: str
    is_new: bool
    run: str
    effect: Interval
    outcomes: tuple[str, ...]  # hashes


@dataclass(frozen=True, slots=True)
class ExplainedWin:
    """A win that existing skills explain: the ledger has it among their outcomes already."""

    skills: tuple[str, ...]
    change: str
    run: str
    effect: Interval
    outcomes: tuple[str, ...]  # hashes


@dataclass(frozen=True, slots=True)
class Distilled:
    """What runs taught.

    `knobs` are the wins that existing skills explain. `left_out` says of the other improvements why
    they are no wins, one line each.
    """

    drafts: tuple[DistilledDraft, ...]
    knobs: tuple[ExplainedWin, ...]
    left_out: tuple[str, ...]


def distill_runs(
    memory: Memory, runs: Iterable[Run], existing: Mapping[str, Path], out: Path | None = None
) -> Distilled:
    """Turn the wins of runs, oldest run first, into drafts.

    Args:
        existing: the skills registered now, name -> directory.
        out: where to put a copy of each draft for review; None for nowhere.

    Raises:
        OutputError: if a draft cannot be written.
        SkillError: if one came out faulty, or a draft's name means something else.
    """
    drafts: list[DistilledDraft] = []
    knobs: list[ExplainedWin] = []
    left_out: list[str] = []
    licences = memory.contributors.licences()
    known = dict(existing)
    for run in sorted(runs, key=lambda run: (run.created_at, run.id)):
        wins, reasons = find_wins(memory, run)
        left_out += reasons
        for win in wins:
            outcomes = tuple(entry.hash for entry in win.outcomes)
            explanation = explain_change(*win.kernels, win.skill)
            if explanation is None and _is_draft(known.get(win.skill)):
                explanation = Explanation((win.skill,), "the draft applied to another kernel")
            if explanation is not None:
                knobs.append(
                    ExplainedWin(explanation.skills, explanation.text, run.id, win.effect, outcomes)
                )
                continue
            name = draft_name(win)
            is_new = name not in known
            if is_new:
                known[name] = _keep_draft(memory, win, licences)
            if out is not None:
                write_draft(out / name, _read_files(known[name]))
            drafts.append(
                DistilledDraft(name, str(known[name]), is_new, run.id, win.effect, outcomes)
            )
    return Distilled(tuple(drafts), tuple(knobs), tuple(left_out))


def _is_draft(path: Path | None) -> bool:
    skill = read_skill(path)[0] if path is not None else None
    return skill is not None and skill.status == DRAFT


def _keep_draft(memory: Memory, win: Win, licences: Mapping[str, str]) -> Path:
    """Add a draft beside the database, checked like any skill that is added.

    It appears whole or not at all.
    """
    present = added_skills_root(memory.path) / draft_name(win)
    if present.is_dir():  # another process distilled the same since the registry was read
        return present
    with tempfile.TemporaryDirectory(prefix="kmem-draft-") as scratch:
        directory = Path(scratch) / draft_name(win)
        write_draft(directory, draft_files(win, licences))
        return add_skill(directory, memory.path, {}).path


def _read_files(directory: Path) -> dict[str, str]:
    """The files of a draft, relative path -> text."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {file.relative_to(directory).as_posix(): file.read_text("utf-8") for file in files}
