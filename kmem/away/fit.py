"""Whether figures of the card that is here belong to those of a reference."""

import sys
from dataclasses import replace
from pathlib import Path

from kmem.engines.card import Card, marks_of, read_card, unfit_for
from kmem.memory.location import default_db_path


def unfit_here(reference: str | None, ceilings: str | None, *, shared: bool) -> list[str]:
    """Why nothing may be measured on this card; what else there is to know of it goes to stderr.

    Args:
        reference: the card that all figures are to come from, as JSON; None: any will do.
        ceilings: the device with the rates that bounds are made of, as JSON; None: unknown.
        shared: whether other runs of who asked use the card meanwhile.
    """
    if reference is None:
        return []
    card, wanted = read_card(), Card.from_json(reference)
    if shared:
        card = replace(card, others=0)  # they may be ours
    if marks := marks_of(card, wanted):
        print(f"note: {card.host} {card.uuid}: {'; '.join(marks)}", file=sys.stderr, flush=True)
    reasons = unfit_for(card, wanted)
    if not reasons and ceilings is not None and card.uuid:
        from kmem.away.ceilings import ceilings_differ  # loads torch

        reasons = ceilings_differ(ceilings, card.uuid, shared_directory())
    return reasons


def shared_directory() -> Path:
    """What all runs of this user on this machine share: compiled kernels, locks, ceilings."""
    return (default_db_path().parent / "cache").resolve()
