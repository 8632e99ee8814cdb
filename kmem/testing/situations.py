"""A situation, a run and an archive of conversations for an author under test."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from kmem.interfaces import (
    CompletionKey,
    CompletionRecord,
    Provider,
    RunContext,
    Situation,
    Unanswered,
)
from kmem.problem.traced import TracedProblem
from kmem.recipes import Recipe
from kmem.records import Budget, Contract, Device, ModelChoice, Problem, Run, Workload
from kmem.skills import Skill
from kmem.testing.sources import trace_once


class DictArchive:
    """A `kmem.interfaces.CompletionArchive` in memory; `notes` holds what is unanswered."""

    def __init__(self, kept: Iterable[CompletionRecord] = ()) -> None:
        self.kept = {record.key: record for record in kept}
        self.notes: list[Unanswered] = []
        self._lock = threading.Lock()

    def note(self, question: Unanswered) -> None:
        """See `CompletionArchive`."""
        with self._lock:
            self.notes.append(question)

    def withdraw(self, key: CompletionKey) -> None:
        """See `CompletionArchive`."""
        with self._lock:
            places = [place for place, question in enumerate(self.notes) if question.key == key]
            if places:
                del self.notes[places[-1]]

    def unanswered(self) -> list[Unanswered]:
        """See `CompletionArchive`."""
        return list(self.notes)

    def find(self, key: CompletionKey) -> CompletionRecord | None:
        """See `CompletionArchive`."""
        return self.kept.get(key)

    def keep(self, record: CompletionRecord) -> None:
        """See `CompletionArchive`. Raises AssertionError: if the question was answered before."""
        assert record.key not in self.kept, f"{record.key} is asked twice"
        self.withdraw(record.key)
        self.kept[record.key] = record

    def records(self) -> list[CompletionRecord]:
        """See `CompletionArchive`."""
        return list(self.kept.values())


def open_situation(
    problem: Problem,
    device: Device,
    *,
    recipes: Mapping[str, Recipe] | None = None,
    skills: Mapping[str, Skill] | None = None,
) -> Situation:
    """The first round of a run: the problem is traced, and nothing was tried yet.

    Args:
        recipes: executable skills that the author may write with, by name.
        skills: every skill of the library, by name.
    """
    from kmem.problem.costs.bound import graph_bound  # imports torch

    graph, contract = trace_once(problem), Contract()
    bound = graph_bound(graph, device, contract)
    writable = {}
    for name, recipe in (recipes or {}).items():
        if sites := recipe.match(graph, contract):
            writable[name] = float(sum(site.bytes for site in sites))
    return Situation(
        traced=TracedProblem(
            problem, contract, device, {"full": Workload("full")}, {"full": graph}, bound
        ),
        parent=None,
        diagnosis=None,
        prescriptions=(),
        history=(),
        recipes=dict(recipes or {}),
        writable=writable,
        skills=dict(skills or {}),
        seed=0,
    )


def open_context(
    situation: Situation,
    author: str,
    *,
    providers: Sequence[Provider] = (),
    models: Sequence[ModelChoice] = (),
    budget: Budget | None = None,
    announce: Callable[[str], None] = lambda text: None,
) -> RunContext:
    """What an author gets at the beginning of a run about this situation.

    Args:
        author: the name under which the author is registered.
        providers: of language models, where the author asks some.
        models: which model of which provider plays which role.
        announce: gets each line that the author tells the user.
    """
    run = Run(
        id="r1",
        problem=situation.traced.problem,
        target=situation.traced.device.name,
        contract=situation.traced.contract,
        budget=budget or Budget(),
        memory_mode="off",
        seed=situation.seed,
        out_dir="out",
        created_at="2026-11-21T00:00:00",
        authors=(author,),
        models=tuple(models),
    )
    named = {provider.name: provider for provider in providers}
    return RunContext(run, named, DictArchive(), announce)
