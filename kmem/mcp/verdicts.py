"""What the judge said since this server started, and the outcomes those verdicts become.

Numbers that somebody typed have no way in. Verdicts are kept in this process alone, for a file
could be written by anyone. After a restart a kernel is measured again before it is recorded.
"""

import secrets
from dataclasses import dataclass

from kmem.errors import BundleError
from kmem.records import (
    Attempt,
    Baseline,
    Candidate,
    Device,
    Kernel,
    Measurement,
    Move,
    Outcome,
    Status,
    Task,
)
from kmem.run.evaluation.single import Case
from kmem.run.setup.session import Session
from kmem.run.state.recorder import make_outcome


@dataclass(frozen=True, slots=True)
class Verdict:
    """One case and what the judge of this process said about it."""

    case: Case
    device: Device
    measurement: Measurement
    baselines: tuple[Baseline, ...]


class Verdicts:
    """Verdicts of this process under names that nobody can guess."""

    def __init__(self) -> None:
        self._by_name: dict[str, Verdict] = {}

    def keep(self, verdict: Verdict) -> str:
        """Remember a verdict.

        Returns:
            The name to ask for it by.
        """
        name = f"verdict-{secrets.token_hex(8)}"
        self._by_name[name] = verdict
        return name

    def find(self, name: str) -> Verdict:
        """A verdict by name.

        Raises:
            BundleError: if the judge of this server gave none of that name.
        """
        if name not in self._by_name:
            raise BundleError(
                f"The judge of this server gave no verdict named '{name}'; call measure, then "
                "record the verdict it names"
            )
        return self._by_name[name]


def outcome_of(
    verdict: Verdict, parent: Verdict | None, skill: str, session: Session, origin: str
) -> Outcome:
    """The outcome a verdict stands for, as a run would have recorded it.

    Args:
        parent: the verdict on the kernel it was made from, on the same problem under the same
            contract; None if there was none.
        session: of the verdict's problem, for the identities of its graph.
        origin: this memory's contributor.

    Raises:
        BundleError: if nothing was measured, or the two verdicts cannot be compared.
    """
    measurement = verdict.measurement
    if measurement.estimated:
        raise BundleError(
            "The verdict was reached without a GPU, and the ledger holds nothing estimated; "
            "measure on a GPU to record it"
        )
    if measurement.status is Status.INTERRUPTED:
        raise BundleError(
            "The judge came to no verdict, which says nothing about the kernel; measure it again"
        )
    kernel = recorded_kernel(verdict, parent)
    move = Move.SEED if parent is None else Move.FIX
    task = Task(move, skill, kernel.parent, 1, "measured by a coding agent")
    attempt = Attempt(0, Candidate(kernel, task, "mcp"), measurement, _parent_ms(verdict, parent))
    return make_outcome(
        attempt, session, signature=None, seed=verdict.case.terms.seed, origin=origin
    )


def recorded_kernel(verdict: Verdict, parent: Verdict | None) -> Kernel:
    """The kernel as it is kept beside its outcome."""
    return Kernel(
        verdict.case.kernel.source,
        parent=parent.case.kernel.hash if parent else None,
        flags=verdict.measurement.flags,
        small_constants=verdict.case.kernel.small_constants,
    )


def _parent_ms(verdict: Verdict, parent: Verdict | None) -> float | None:
    if parent is None:
        return None
    same = (verdict.case.problem.hash, verdict.case.terms.contract, verdict.device) == (
        parent.case.problem.hash,
        parent.case.terms.contract,
        parent.device,
    )
    if not same or parent.measurement.estimated:
        raise BundleError(
            "The parent's verdict is of another problem, contract or device, or an estimate; "
            "measure the parent the same way"
        )
    if parent.measurement.latency_ms is None:
        raise BundleError(
            "The parent did not pass, so nothing can be compared with it; name the last kernel "
            "that passed, or none"
        )
    return parent.measurement.latency_ms
