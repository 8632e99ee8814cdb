"""What memory offers when a run begins: remembered winners, how settings did elsewhere, and rungs.

The run directory keeps all of it, because a resumed run must not recall what it has learnt itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kmem.memory.ledger.experience import recall_experience
from kmem.memory.ledger.rungs import recall_rungs
from kmem.memory.store import Memory
from kmem.records import (
    Bottleneck,
    Diagnosis,
    Experience,
    Fault,
    Prescription,
    Recalled,
    Run,
    Signature,
    SiteChoice,
    Strategy,
    is_aged,
)
from kmem.run.consulting import prescribe
from kmem.run.directory import RunDirectory
from kmem.run.session import Session
from kmem.serialize import from_json, to_json

#: What to do about a limit of the hardware before anything was profiled: move no byte twice, and
#: use the units that the bound counts on.
_LIMITED_BY = {
    "bytes": Bottleneck.REDUNDANT_TRAFFIC,
    "fp32": Bottleneck.FMA_BOUND,
    "tf32": Bottleneck.TENSOR_CORE_IDLE,
    "fp16": Bottleneck.TENSOR_CORE_IDLE,
    "bf16": Bottleneck.TENSOR_CORE_IDLE,
    "special": Bottleneck.SPECIAL_FUNCTION_BOUND,
}


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a run knows from earlier runs."""

    winners: tuple[Recalled, ...]  # for this graph or for one like it, best first
    experience: tuple[Experience, ...]  # of the matching recipes on other graphs
    rungs: tuple[SiteChoice, ...] = ()  # that sites had to climb to on this graph
    # what models get wrong most often, and skills for a first kernel; for models alone
    faults: tuple[Fault, ...] = ()
    first_skills: tuple[Prescription, ...] = ()


def recall(run: Run, session: Session, memory: Memory, directory: RunDirectory) -> Remembered:
    """What memory knew when the run began: from the run directory if the run is resumed.

    Nothing but skills for a first kernel without memory, or for a module that could not be traced.
    The strategy best-of-n, the control, recalls no winners: its kernels are to be independent.
    """
    if run.memory_mode == "off" or session.traced.graph.opaque_reason:
        return Remembered((), (), first_skills=_first_skills(run, session, memory))
    winners = (
        () if run.strategy is Strategy.BEST_OF_N else _winners(run, session, memory, directory)
    )
    return Remembered(
        winners,
        _experience(run, session, memory, directory),
        _rungs(run, session, memory, directory),
        memory.faults.most_frequent() if run.models else (),
        _first_skills(run, session, memory),
    )


def _first_skills(run: Run, session: Session, memory: Memory) -> tuple[Prescription, ...]:
    """The skills that a model is told for a first kernel: of what limits the forward as traced.

    Nothing was profiled then. Which question is asked does not hang on them, so that a resumed run
    may find others.
    """
    if not run.models:
        return ()
    bound = session.traced.bound
    limiter = bound.limiter if bound is not None else "unknown"
    diagnosis = Diagnosis(
        _LIMITED_BY.get(limiter, Bottleneck.UNKNOWN),
        (),
        Signature({}),
        None,
        None,
        f"nothing was measured yet; the hardware limits the forward by {limiter}",
        None,
        estimated=True,
    )
    return prescribe(diagnosis, list(session.skills.values()), run, session, memory)


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
