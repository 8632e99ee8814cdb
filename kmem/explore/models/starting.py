"""The kernel that kmem's own recipes write for a module, for a model to begin from.

Only where no recipe wrote for the run already: else the run's own kernels are shown, measured.
"""

import threading
from dataclasses import replace

from kmem.explore.recipes.author import RecipeAuthor
from kmem.interfaces import Assignment
from kmem.records import Candidate, Move

#: Recipes asked for their kernel, and the share of the largest one's bytes that each must move.
_RECIPES = 3
_NEARLY = 0.9


class StartingPoint:
    """Finds the kernel to begin from once a run; for several threads at once."""

    def __init__(self) -> None:
        self._author = RecipeAuthor()
        self._found: dict[str, Candidate | None] = {}
        self._lock = threading.Lock()

    def find(self, assignment: Assignment) -> Candidate | None:
        """The kernel of the recipe that covers most of the graph; of equals the faster.

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
        most = max(assignment.writable.values(), default=0.0)
        names = sorted(
            (name for name, size in assignment.writable.items() if size >= _NEARLY * most),
            key=lambda name: (-assignment.writable[name], name),
        )
        written = []
        for name in names[:_RECIPES]:
            task = replace(assignment.task, move=Move.SEED, skill=name, samples=1, parent=None)
            about = replace(assignment, task=task, parent=None, history=())
            written += self._author.write(about)[:1]
        return min(written, key=lambda candidate: candidate.estimated_ms or 0.0, default=None)
