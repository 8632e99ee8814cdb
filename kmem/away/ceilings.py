"""Whether a card is as fast as those that the bounds of a bench were measured on."""

import os
from pathlib import Path

from kmem.engines.card import TOLERANCE
from kmem.measure.resources import open_lease
from kmem.profile.ceilings import measure_ceilings
from kmem.records import Device
from kmem.serialize import from_json, to_json


def ceilings_differ(reference: str, uuid: str, directory: Path) -> list[str]:
    """Why a card's rates are not those of a reference; empty if they are.

    They are measured once for each card, with the card alone, and kept in a file.

    Args:
        reference: the device with its measured rates, as JSON.
        uuid: of the card.
        directory: for the file and for locks.
    """
    theirs = from_json(Device, reference)
    place = directory / f"ceilings-{uuid}.json"
    with (
        open_lease(directory / "locks", lambda text: None) as lease,
        lease.hold(exclusive=True, purpose="ceilings"),
    ):
        if not place.is_file():
            partial = place.with_name(f"{place.name}.{os.getpid()}")
            partial.write_text(to_json(measure_ceilings(theirs)), encoding="utf-8")
            partial.replace(place)
        ours = from_json(Device, place.read_text(encoding="utf-8"))
    return compare_rates(ours, theirs)


def compare_rates(ours: Device, theirs: Device) -> list[str]:
    """Each rate that is off by more than the tolerance, in words."""
    pairs = {
        "copying": (ours.dram_bytes_per_s, theirs.dram_bytes_per_s),
        "reading": (ours.read_bytes_per_s, theirs.read_bytes_per_s),
        **{
            unit: (rate, theirs.peak_flops_per_s[unit])
            for unit, rate in ours.peak_flops_per_s.items()
            if unit in theirs.peak_flops_per_s
        },
    }
    return [
        f"{name} at {rate / 1e12:.3g} T/s, not {other / 1e12:.3g}"
        for name, (rate, other) in pairs.items()
        if other and abs(rate / other - 1) > TOLERANCE
    ]
