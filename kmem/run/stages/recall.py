"""What memory offers when a run begins: remembered winners, how settings did elsewhere, and rungs.

The run directory keeps all of it, because a resumed run must not recall what it has learnt itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kmem.memory.ledger.descents import recall_descents
from kmem.memory.ledger.experience import recall_experience
from kmem.memory.ledger.rungs import recall_rungs
from kmem.memory.store import Memory
from kmem.records import (
    Background,
    Descent,
    Experience,
    Recalled,
    Run,
    SiteChoice,
    Strategy,
    is_aged,
    recipe_component,
)
from kmem.run.directory import RunDirectory
from kmem.run.setup.session import Session, versions
from kmem.run.stages.first_skills import first_skills
from kmem.run.state.background import keep_background
from kmem.serialize import from_json, to_json


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a run knows from earlier runs."""

    winners: tuple[Recalled, ...]  # for this graph or for one like it, best first
    experience: tuple[Experience, ...]  # of the matching recipes on other graphs
    rungs: tuple[SiteChoice, ...] = ()  # that sites had to climb to on this graph
    descents: tuple[Descent, ...] = ()  # how earlier searches came down
    background: Background = Background()  # what models are told beside


def recall(run: Run, session: Session, memory: Memory, directory: RunDirectory) -> Remembered:
    """What memory knew when the run began: from the run directory if the run is resumed.

    Nothing but skills for a first kernel without memory, or for a module that could not be traced.
    The strategy best-of-n, the control, recalls no winners: its kernels are to be independent.
    """
    if run.memory_mode == "off" or session.traced.graph.opaque_reason:
        return _with_background(Remembered((), ()), run, session, memory, directory)
    winners = (
        () if run.strategy is Strategy.BEST_OF_N else _winners(run, session, memory, directory)
    )
    remembered = Remembered(
        winners,
        _experience(run, session, memory, directory),
        _rungs(run, session, memory, directory),
        _descents(run, session, memory, directory),
    )
    return _with_background(remembered, run, session, memory, directory)


def _with_background(
    remembered: Remembered, run: Run, session: Session, memory: Memory, directory: RunDirectory
) -> Remembered:
    """With what models are told of earlier runs; nothing in a run that asks none."""
    if not run.models:
        return remembered
    known = keep_background(
        directory,
        run.id,
        "start",
        lambda: Background(
            recalled=remembered.winners,
            first_skills=first_skills(run, session, memory, remembered.winners),
            versions={name: versions()[name] for name in ("torch", "triton")},
            faults=memory.faults.most_frequent() if run.memory_mode != "off" else (),
        ),
    )
    return replace(remembered, background=known)


def _winners(
    run: Run, session: Session, memory: Memory, directory: RunDirectory
) -> tuple[Recalled, ...]:
    kept = directory.read_recalled(run.id)
    if kept is None:
        kept = [
            replace(hit, aged=is_aged(hit.outcome, session.recipe_versions))
            for hit in memory.winners.recall(session.graph_key)
        ]
        directory.write_recalled(run.id, kept)
    return tuple(kept)


def _experience(
    run: Run, session: Session, memory: Memory, directory: RunDirectory
) -> tuple[Experience, ...]:
    kept = directory.read_experience(run.id)
    if kept is None:
        kept = recall_experience(
            memory.storage, sorted(session.writable), session.graph_key, session.recipe_versions
        )
        directory.write_experience(run.id, kept)
    return kept


def _rungs(
    run: Run, session: Session, memory: Memory, directory: RunDirectory
) -> tuple[SiteChoice, ...]:
    kept = read_rungs(directory, run.id)
    if kept is None:
        kept = recall_rungs(memory.storage, session.graph_key, session.recipe_versions)
        write_rungs(directory, run.id, kept)
    return kept


def _descents(
    run: Run, session: Session, memory: Memory, directory: RunDirectory
) -> tuple[Descent, ...]:
    kept = directory.read_descents(run.id)
    if kept is None:
        recipes = {
            recipe_component(name): version for name, version in session.recipe_versions.items()
        }
        kept = recall_descents(
            memory.storage,
            session.graph_key,
            memory.contributors.trust(),
            memory.contributors.own_name,
            versions() | recipes,
        )
        directory.write_descents(run.id, kept)
    return kept


def read_rungs(directory: RunDirectory, run_id: str) -> tuple[SiteChoice, ...] | None:
    """The rungs that a run knew when it began; None if nothing was written yet."""
    place = directory.root / _rungs_name(run_id)
    if not place.is_file():
        return None
    lines = place.read_text(encoding="utf-8").splitlines()
    return tuple(from_json(SiteChoice, line) for line in lines)


def write_rungs(directory: RunDirectory, run_id: str, rungs: Sequence[SiteChoice]) -> None:
    """Keep the rungs that a run knows, so that it resumes from the same."""
    directory.write_text(_rungs_name(run_id), "".join(to_json(rung) + "\n" for rung in rungs))


def _rungs_name(run_id: str) -> str:
    return f"rungs-{run_id}.jsonl"
