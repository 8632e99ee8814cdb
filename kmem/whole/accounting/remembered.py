"""What memory holds of the pieces of a model: the fastest kernel measured on the same graph."""

from collections.abc import Sequence

from kmem.memory.ledger.experience import recall_measured
from kmem.memory.ledger.graphs import GraphKey
from kmem.memory.store import Memory
from kmem.problem.graph import graph_sizes
from kmem.records import Contract, Device
from kmem.whole.cutting.pieces import PieceGroup


def remembered_pieces(
    memory: Memory, groups: Sequence[PieceGroup], device: Device, contract: Contract
) -> dict[str, float]:
    """By name of a piece, the least time of a verified kernel for one call, in milliseconds."""
    found = {}
    for group in groups:
        graph = group.graph
        key = GraphKey(
            graph.hash, graph.structure_hash, (), graph_sizes(graph), device.arch, contract
        )
        measured = recall_measured(memory.storage, key, device.full_name)
        if measured:
            found[group.name] = min(each.latency_ms for each in measured)
    return found
