"""What one more launch costs in a forward: on the stream, or on the host where that is the slower.

A network of small operators takes as long as the host needs to issue them. There a kernel that
saves time on the device by launching five times for one operator loses; a cut of the graph has to
know that before anything is measured.
"""

from dataclasses import replace

from kmem.problem.costs.bound import node_costs_ms
from kmem.problem.graph import OpGraph
from kmem.records import Contract, Device

#: What the host takes for one launch of an emitted module, its share of keys, scratch and results
#: among it, and for one operator of the library. Source: the machine of an H200, torch 2.11, Triton
#: 3.6, 2026-11-28: calls back to back of kernels for ResNet18 (85 launches in 1.42 ms) and a deep
#: MLP (84 in 1.41), and of eager there (33 operators in 0.9); conv2d takes 35 us, batch_norm 47.
#: Other hosts may take a third of both.
_ISSUE_MS = 0.017
_CALL_MS = 0.030
#: The host may be so late before the device waits: it still works on what came before. A round
#: figure between what kmem's clock hides of the host, 1 ms (worker/clocks.py), and what calls back
#: to back hide, nothing; none was measured.
_AHEAD_MS = 0.2
#: Kernels of kmem halve a forward's time on the device, and launch no less often than the library:
#: the host becomes the slower one this much earlier than it is for the library.
_EARLIER = 2


def priced_device(graph: OpGraph, device: Device, contract: Contract) -> Device:
    """The device with what a launch and a call of the library cost in this forward.

    That is what the stream takes for one as long as the device has more to do than the host. Where
    it is the other way round all launches together take until the host has issued the last one, so
    that neither one operator more nor a little less work on the device changes an estimate by more
    than the host takes for one.
    """
    costs = [cost for cost in node_costs_ms(graph, device, contract).values() if cost > 0.0]
    on_device_ms = (sum(costs) - device.launch_ms * len(costs)) / _EARLIER
    late_ms = _ISSUE_MS * len(costs) - _AHEAD_MS
    waits_ms = late_ms - on_device_ms - device.launch_ms * len(costs)
    if waits_ms <= 0.0:
        return device
    # The host's head start is over all launches; of one more the price is a little higher.
    share = waits_ms / len(costs) / (_ISSUE_MS - device.launch_ms)
    return replace(
        device,
        launch_ms=device.launch_ms + share * (_ISSUE_MS - device.launch_ms),
        call_ms=device.launch_ms + share * (_CALL_MS - device.launch_ms),
    )
