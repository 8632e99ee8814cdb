"""What a problem takes of a device's memory, and whether it can fit at all."""

from kmem.errors import DeviceMemoryError
from kmem.problem.graph import Node, OpGraph
from kmem.problem.operators.table import may_be_view
from kmem.records import Device, Problem

_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"))


def least_bytes(graph: OpGraph) -> int:
    """Bytes of inputs, parameters, buffers and outputs; what lies between them comes on top."""
    held = [placeholder.spec for placeholder in graph.placeholders if placeholder.spec is not None]
    made = {placeholder.name for placeholder in graph.placeholders}
    held += [graph.spec(name) for name in dict.fromkeys(graph.outputs) if name not in made]
    return sum(spec.bytes for spec in held)


def most_inner_bytes(graph: OpGraph) -> int:
    """Bytes of what lies between inputs and outputs, where most of it is alive at once.

    Each value lives until its last reader has run; a view keeps what it is a view of. What
    operators take beside their results, and what a forward's variables keep longer, comes on top.
    """
    outer = {each.name for each in graph.placeholders} | set(graph.outputs)
    owners = {name: name for name in outer}
    last: dict[str, int] = {}
    for place, node in enumerate(graph.nodes):
        refs = tuple(node.refs())
        owners.setdefault(
            node.name, owners[refs[0]] if refs and _shares_memory(node) else node.name
        )
        for name in (node.name, *refs):
            last[owners[name]] = place
    sizes: dict[str, int] = {}
    most = 0
    for place, node in enumerate(graph.nodes):
        if owners[node.name] == node.name and node.name not in outer:
            sizes[node.name] = _result_bytes(node)
        most = max(most, sum(sizes.values()))
        for name in {owners[name] for name in (node.name, *node.refs())}:
            if last[name] == place:
                sizes.pop(name, None)
    return most


def _shares_memory(node: Node) -> bool:
    return node.is_in_place or may_be_view(node.target)


def _result_bytes(node: Node) -> int:
    results = node.output if isinstance(node.output, tuple) else (node.output,)
    return sum(each.bytes for each in results if each is not None)


def check_footprint(problem: Problem, graph: OpGraph, device: Device) -> None:
    """Raise DeviceMemoryError: if inputs, parameters and outputs do not fit the device together."""
    needed = least_bytes(graph)
    if needed > device.memory_bytes:
        raise DeviceMemoryError(
            f"{problem.path} needs {in_units(needed)} for inputs, parameters and outputs, "
            f"{device.name} has {in_units(device.memory_bytes)}; make its sizes smaller"
        )


def in_units(count: int) -> str:
    """ "8 TB" for 8e12 bytes."""
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"
