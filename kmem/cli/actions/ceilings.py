"""What the GPU can do at most: remembered, or measured once and kept."""

import click

from kmem.measure.resources import open_lease
from kmem.memory.store import Memory
from kmem.profile.ceilings import measure_ceilings
from kmem.records import Device
from kmem.run.session import versions


def measured_ceilings(device: Device, memory: Memory) -> Device:
    """The device with its rates as measured here: remembered, or measured now and kept.

    A bound is only as good as these rates. Of several runs that start together one measures, with
    the GPU to itself, and the others wait for what it finds. Where several GPUs of one name are
    measured at once, all take what was kept first.
    """
    known = memory.devices.ceilings(device.name)
    if known is not None:
        return known
    locks = memory.path.parent / "cache" / "locks"
    with (
        open_lease(locks, lambda text: click.echo(text, err=True)) as lease,
        lease.hold(exclusive=True),
    ):
        known = memory.devices.ceilings(device.name)
        if known is not None:
            return known
        click.echo("measuring what this GPU can do at most (once)", err=True)
        measured = measure_ceilings(device)
        with memory.storage.write():
            known = memory.devices.ceilings(device.name)
            if known is None:
                memory.devices.put_ceilings(measured, versions())
        return known or measured
