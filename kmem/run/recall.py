"""What memory offers when a run begins: remembered winners, and how settings did on other graphs.

The run directory keeps both, because a resumed run must not recall what it has learnt itself.
"""

from dataclasses import dataclass

from kmem.memory.ledger.experience import recall_experience
from kmem.memory.store import Memory
from kmem.records import Experience, Recalled, Run, SiteChoice, Strategy
from kmem.run.directory import RunDirectory
from kmem.run.session import Session


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a run knows from earlier runs."""

    winners: tuple[Recalled, ...]  # for this graph or for one like it, best first
    experience: tuple[Experience, ...]  # of the matching recipes on other graphs
    rungs: tuple[SiteChoice, ...] = ()  # that sites had to climb to on this graph


def recall(run: Run, session: Session, memory: Memory, directory: RunDirectory) -> Remembered:
    """What memory knew when the run began: from the run directory if the run is resumed.

    Nothing without memory, or for a module that could not be traced. The strategy best-of-n, the
    control, recalls no winners: its kernels are to be independent.
    """
    if run.memory_mode == "off" or session.traced.graph.opaque_reason:
        return Remembered((), ())
    winners = (
        () if run.strategy is Strategy.BEST_OF_N else _winners(run, session, memory, directory)
    )
    return Remembered(winners, _experience(run, session, memory, directory))


def _winners(
    run: Run, session: Session, memory: Memory, directory: RunDirectory
) -> tuple[Recalled, ...]:
    kept = directory.read_recalled(run.id)
    if kept is None:
        kept = memory.winners.recall(session.graph_key)
        directory.write_recalled(run.id, kept)
    return tuple(kept)


def _experience(
    run: Run, session: Session, memory: Memory, directory: RunDirectory
) -> tuple[Experience, ...]:
    kept = directory.read_experience(run.id)
    if kept is None:
        kept = recall_experience(memory.storage, sorted(session.writable), session.graph_key)
        directory.write_experience(run.id, kept)
    return kept
