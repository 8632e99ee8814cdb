"""An author whose code is imported when a run begins with it, so that no other command waits."""

from importlib import import_module

from kmem.interfaces import Assignment, Author, Direction, RunContext, Situation
from kmem.records import Candidate


class AuthorOnDemand(Author):
    """Stands for an author in the registry; it works only within a run.

    Args:
        name: the author's name.
        module: where its class is.
        class_name: which is made without arguments.
    """

    def __init__(self, name: str, module: str, class_name: str) -> None:
        self.name = name
        self._module, self._class_name = module, class_name

    def begin(self, context: RunContext) -> Author:
        """The author of one run. Raises what the author's own `begin` raises."""
        author: Author = getattr(import_module(self._module), self._class_name)()
        return author.begin(context)

    def propose(self, situation: Situation) -> list[Direction]:
        """Raises RuntimeError: no run has begun."""
        raise RuntimeError(f"the author {self.name} has not begun a run")

    def write(self, assignment: Assignment) -> list[Candidate]:
        """Raises RuntimeError: no run has begun."""
        raise RuntimeError(f"the author {self.name} has not begun a run")
