"""A replay begins with what the run began with: the same memory, the same retracted skills."""

from dataclasses import replace
from pathlib import Path

from scripted_evaluator import ScriptedEvaluator, kernel_text, make_run, small_registry

from kmem.devices import named_target
from kmem.interfaces import Assignment, Author, Direction, Situation
from kmem.memory.ledger.outcomes import Retraction
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.records import Candidate, Experience, Kernel, Move, Run
from kmem.run.directory import RunDirectory
from kmem.run.loop import optimize
from kmem.run.replay import replay_run
from kmem.run.setup.session import open_session
from kmem.skills import load_skill

KNOWN = Experience("tile", (("BLOCK", 64),), 1.0, None, "a graph", "a structure", (64, 64))


class Mirror(Author):
    """Seeds with every skill there is, and notes in its kernels what memory knew."""

    name = "mirror"

    def propose(self, situation: Situation) -> list[Direction]:
        return [Direction(self.name, Move.SEED, skill, "why") for skill in sorted(situation.skills)]

    def write(self, assignment: Assignment) -> list[Candidate]:
        note = f"{assignment.task.skill}, {len(assignment.experience)} known"
        return [Candidate(Kernel(kernel_text(8.0, note=note)), assignment.task, self.name)]


def registry_with_mirror() -> Registry:
    return replace(small_registry(), authors={"mirror": Mirror()})


def walk_mirror(run: Run, memory: Memory) -> None:
    memory.runs.start(run)
    session = open_session(
        run.problem, run.contract, named_target("h200"), True, registry_with_mirror(), memory
    )

    def open_evaluator(announce: object) -> ScriptedEvaluator:
        return ScriptedEvaluator(session)

    optimize(
        run,
        session,
        memory,
        registry_with_mirror(),
        lambda event: None,
        open_evaluator=open_evaluator,
    )


def retraction(home: Path, name: str, created_at: str) -> Retraction:
    """The retraction of a skill, as if it had been made at that time."""
    with Memory(home / "elsewhere.db") as elsewhere:
        return replace(
            elsewhere.standings.retract(load_skill(small_registry().skills[name]), "it misled"),
            created_at=created_at,
        )


def test_a_replay_knows_what_the_run_knew_and_nothing_that_was_learnt_since(tmp_path: Path) -> None:
    run = replace(make_run(tmp_path, base_url="", rounds=0), authors=("mirror",), models=())
    RunDirectory(Path(run.out_dir)).write_experience(run.id, [KNOWN])
    with Memory(tmp_path / "kmem.db") as memory:
        memory.ledger.record_retraction(
            retraction(tmp_path, "more-loads-in-flight", "2026-11-20T23:59:59.000+00:00")
        )
        walk_mirror(run, memory)
        notes = [
            attempt.candidate.kernel.source.splitlines()[4]
            for attempt in memory.runs.attempts(run.id)
        ]
        assert notes == [
            "NOTE = 'drop-masks-when-even, 1 known'",
            "NOTE = 'widen-vector-access, 1 known'",
        ]
        assert (
            replay_run(run, tmp_path / "again", registry_with_mirror(), memory, lambda event: None)
            == []
        )
        memory.ledger.record_retraction(
            retraction(tmp_path, "widen-vector-access", "2026-11-21T00:00:01.000+00:00")
        )
        assert (
            replay_run(run, tmp_path / "later", registry_with_mirror(), memory, lambda event: None)
            == []
        )
