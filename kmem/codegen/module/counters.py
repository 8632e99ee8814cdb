"""Counters that a forward moves along, as a batch norm in training mode counts its batches.

Each is a launch of its own for one number: twenty in a ResNet-18, one for every layer of a dense
network. All that grow by the same number are moved by one call.
"""

from kmem.problem.graph import Node, OpGraph, Ref

_ADDS = "aten.add_.Tensor"
#: Fewer are moved as they are.
_LEAST = 2


def move_together(graph: OpGraph) -> dict[str, str]:
    """By node that moves a counter along, what is written in its place: "" but for the first.

    A counter is a buffer of one number that nothing else in the forward reads.
    """
    groups: dict[object, list[Node]] = {}
    for node in graph.nodes:
        if _is_counter(graph, node):
            groups.setdefault(node.args[1], []).append(node)
    written: dict[str, str] = {}
    for step, nodes in groups.items():
        if len(nodes) >= _LEAST:
            names = ", ".join(next(node.refs()) for node in nodes)
            written.update(dict.fromkeys((node.name for node in nodes), ""))
            written[nodes[0].name] = f"torch.ops.aten._foreach_add_.Scalar([{names}], {step!r})"
    return written


def _is_counter(graph: OpGraph, node: Node) -> bool:
    if node.target != _ADDS or node.kwargs or len(node.args) != 2:
        return False
    value, step = node.args
    held = graph.placeholder(value.name) if isinstance(value, Ref) else None
    return (
        held is not None
        and held.kind == "buffer"
        and held.spec is not None
        and (held.spec.shape, held.spec.dtype) == ((), "int64")
        and isinstance(step, int)
        and graph.has_one_user(held.name)
        and not graph.users(node.name)
        and node.name not in graph.outputs
    )
