"""The kernel that kmem's own recipes write for a module, for a model to begin from.

Only where no recipe wrote for the run already: else the run's own kernels are shown, measured.
"""

import threading
from dataclasses import replace

from kmem.explore.recipes.author import RecipeAuthor
from kmem.interfaces import Assignment
from kmem.records import Candidate, Move, Task

#: Recipes that are asked for their kernel, until one has written.
_RECIPES = 3
_KERNEL = "@triton.jit"


class StartingPoint:
    """Finds the kernel to begin from once a run; for several threads at once."""

    def __init__(self) -> None:
        self._author = RecipeAuthor()
        self._found: dict[str, Candidate | None] = {}
        self._lock = threading.Lock()

    def find(self, assignment: Assignment) -> Candidate | None:
        """The kernel of the recipe that is most about this graph.

        None if no recipe matches, or one wrote a kernel of this run.
        """
        if any(attempt.candidate.kernel.choices for attempt in assignment.history):
            return None
        with self._lock:
            graph = assignment.traced.graph.hash
            if graph not in self._found:
                self._found[graph] = self._write(assignment)
            return self._found[graph]

    def _write(self, assignment: Assignment) -> Candidate | None:
        """By a remembered winner for this very graph, else by the first skill that writes.

        A form that leaves everything to the library shows nothing.
        """
        background = assignment.background
        exact = [hit.outcome for hit in background.recalled if hit.exact and hit.outcome.choices]
        tasks = [
            Task(Move.RECALL, outcome.skill, None, 1, "remembered", outcome.choices)
            for outcome in exact[:1]
        ]
        largest_first = sorted(assignment.writable, key=lambda name: -assignment.writable[name])
        names = [entry.skill for entry in background.first_skills] + largest_first
        tasks += [
            Task(Move.SEED, name, None, 1, "it matches")
            for name in dict.fromkeys(names)
            if name in assignment.writable or name in assignment.rewritten
        ][:_RECIPES]
        for task in tasks:
            about = replace(assignment, task=task, parent=None, history=())
            written = self._author.write(about)
            if written and _KERNEL in written[0].kernel.source:
                return written[0]
        return None
