"""Outcomes without what belongs to their owner.

Kept: recipe, knobs, signature, operators, device, versions, seed, times and ratios. Removed: the
problem's name, the text and hash of kernels, the graph with its shapes, and the names of sites
(they come from the module's source).

A redacted outcome has a hash of its own. So that nobody who knows both counts the same measurement
twice, the redacted outcome carries the hash of its original, and a memory that holds both retracts
the redacted one, by a retraction that is the same in every memory.
"""

from dataclasses import replace

from kmem.memory.ledger.outcomes import Retraction
from kmem.memory.ledger.settlements import Settlement
from kmem.records import REDACTED, Outcome, content_hash


def redact_outcome(outcome: Outcome) -> Outcome:
    """The outcome as it may leave; redacting it again changes nothing."""
    if outcome.problem == REDACTED:
        return outcome
    return replace(
        outcome,
        problem=REDACTED,
        graph_hash=REDACTED,
        structure_hash=REDACTED,
        sizes=(),
        workload=REDACTED,
        choices=tuple(
            replace(choice, site=choice.operator, members=None) for choice in outcome.choices
        ),
        # two outcomes of one kernel are still known as such
        source_hash=content_hash(REDACTED, outcome.source_hash),
        parent_hash=None,
    )


def redact_settlement(settlement: Settlement, redacted_hash: str) -> Settlement:
    """The settlement of an outcome as that of the redacted one; claims name no module."""
    return replace(settlement, outcome_hash=redacted_hash)


def supersede(redacted_hash: str, original: Outcome) -> Retraction:
    """The retraction of a redacted outcome whose original is known.

    It is made of the two alone, so that every memory makes the same.
    """
    return Retraction(
        redacted_hash, "the outcome it was redacted from is here", REDACTED, original.created_at
    )
