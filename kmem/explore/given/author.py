"""The author of `--from`: the user's own kernel first, as it stands, then at other numbers.

Its numbers are moved as those of a language model's kernel are. While nothing has passed, others
are tried where fewer registers or smaller tiles may be all that the kernel wants. A kernel that the
judge refuses is mended by the run's language models, if it has any.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from kmem.explore.given.tunables import make_tunable
from kmem.explore.models.author import LlmAuthor
from kmem.explore.models.knobs import knob_variants
from kmem.explore.models.selection import untried_variants
from kmem.interfaces import (
    GIVEN,
    KNOBS,
    UNAIDED,
    Assignment,
    Author,
    Direction,
    RunContext,
    Situation,
)
from kmem.records import Attempt, Candidate, Kernel, Move, Status

#: What smaller numbers may mend.
_TOO_LARGE = (
    Status.BUILD_FAILED,
    Status.CRASHED,
    Status.OUT_OF_MEMORY,
    Status.TIMED_OUT,
)


class GivenAuthor(Author):
    """Brings the kernel that a run starts from; it works only within such a run."""

    name = GIVEN

    def begin(self, context: RunContext) -> "Author":
        """The author of one run; one without ideas if the run starts from no kernel."""
        start = context.run.start
        return self if start is None else GivenRunAuthor(start, context)

    def propose(self, situation: Situation) -> list[Direction]:
        """Nothing: no kernel was given."""
        return []

    def write(self, assignment: Assignment) -> list[Candidate]:
        """Nothing: no kernel was given."""
        return []


class GivenRunAuthor(GivenAuthor):
    """The author of one run: it keeps what was given and how its numbers can be moved."""

    def __init__(self, start: Kernel, context: RunContext) -> None:
        self._start = start
        self._tunable = make_tunable(start)
        self._has_models = LlmAuthor.name in context.run.authors
        if self._has_models:
            self.repairs, self.mended_by = LlmAuthor.repairs, LlmAuthor.name
        names = [name for name, _ in self._tunable.kernel.knob_space] if self._tunable else []
        told = ", ".join(names) or "none that can be read"
        context.announce(f"numbers of the given kernel that can be moved: {told}")

    def propose(self, situation: Situation) -> list[Direction]:
        """The kernel itself as a seed, later other settings of its numbers."""
        if situation.parent is None:
            return self._propose_seed(situation)
        if next(self._untried(situation), None) is None:
            return []
        reason = "settings of its numbers that were not measured yet"
        return [Direction(self.name, Move.TUNE, KNOBS, reason)]

    def _propose_seed(self, situation: Situation) -> list[Direction]:
        tried = self._attempts(situation)
        if tried and not all(each.measurement.status in _TOO_LARGE for each in tried):
            return []
        if next(self._first_kernels(situation), None) is None:
            return []
        return [
            Direction(
                self.name,
                Move.SEED,
                UNAIDED,
                "the kernel to start from",
                instruction="the kernel that was given, as it stands, then at other numbers",
            )
        ]

    def write(self, assignment: Assignment) -> list[Candidate]:
        """Kernels that the run has not measured yet: as given, as configured, at other numbers."""
        task = assignment.task
        if task.move is Move.SEED:
            found = self._first_kernels(assignment)
        elif task.move is Move.TUNE:
            found = (replace(each, parent=task.parent) for each in self._untried(assignment))
        else:
            return []
        return [Candidate(kernel, task, self.name) for kernel in islice(found, task.samples)]

    def _first_kernels(self, situation: Situation) -> Iterator[Kernel]:
        tried = {attempt.candidate.kernel.hash for attempt in situation.history}
        if self._as_given.hash not in tried:
            yield self._as_given
        yield from (
            replace(kernel, parent=self._start.hash)
            for kernel in self._other_numbers(situation)
            if kernel.hash not in tried
        )

    @property
    def _as_given(self) -> Kernel:
        """The given text, with its space if all its numbers are constants of the module."""
        tunable = self._tunable
        is_same = tunable is not None and tunable.kernel.source == self._start.source
        return tunable.kernel if tunable is not None and is_same else self._start

    def _other_numbers(self, situation: Situation) -> Iterator[Kernel]:
        if self._tunable is not None:
            yield from self._tunable.configured()
            yield from knob_variants(self._tunable.kernel, str(situation.seed))

    def _untried(self, situation: Situation) -> Iterator[Kernel]:
        """Other settings of the parent; a run's models move those of knobs that it names itself."""
        parent = situation.parent
        if parent is None or (parent.knob_space and self._has_models):
            return
        if parent.hash == self._start.hash:
            tried = {attempt.candidate.kernel.hash for attempt in situation.history}
            yield from (
                kernel for kernel in self._other_numbers(situation) if kernel.hash not in tried
            )
        elif not self._has_models:
            yield from untried_variants(situation)

    def _attempts(self, situation: Situation) -> list[Attempt]:
        return [each for each in situation.history if each.candidate.author == self.name]
