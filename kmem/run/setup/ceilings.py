"""What the GPU can do at most: remembered, or measured once and kept."""

from collections.abc import Callable

from kmem.measure.resources import open_lease
from kmem.memory.store import Memory
from kmem.profile.ceilings import measure_ceilings
from kmem.records import Device
from kmem.run.setup.session import versions


def measured_ceilings(device: Device, memory: Memory, say: Callable[[str], None]) -> Device:
    """The device with its rates as measured here: remembered, or measured now and kept.

    A bound is only as good as these rates. Of several runs that start together one measures, with
    the GPU to itself, and the others wait for what it finds. Where several GPUs of one name are
    measured at once, all take what was kept first.

    Args:
        say: told in a line what is waited for or measured.
    """
    known = memory.devices.ceilings(device.name)
    if known is not None:
        return known
    locks = memory.path.parent / "cache" / "locks"
    with (
        open_lease(locks, say) as lease,
        lease.hold(exclusive=True, purpose="ceilings"),
    ):
        known = memory.devices.ceilings(device.name)
        if known is not None:
            return known
        say("measuring what this GPU can do at most (once)")
        measured = measure_ceilings(device)
        with memory.storage.write():
            known = memory.devices.ceilings(device.name)
            if known is None:
                memory.devices.put_ceilings(measured, versions())
        return known or measured
