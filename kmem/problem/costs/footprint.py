"""Whether a problem can fit a device at all."""

from kmem.errors import DeviceMemoryError
from kmem.problem.graph import OpGraph
from kmem.records import Device, Problem

_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"))


def least_bytes(graph: OpGraph) -> int:
    """Bytes of inputs, parameters, buffers and outputs; what lies between them comes on top."""
    held = [placeholder.spec for placeholder in graph.placeholders if placeholder.spec is not None]
    made = {placeholder.name for placeholder in graph.placeholders}
    held += [graph.spec(name) for name in dict.fromkeys(graph.outputs) if name not in made]
    return sum(spec.bytes for spec in held)


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
