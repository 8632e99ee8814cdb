"""The least time of a traced graph on a device, and what a node costs as eager runs it.

`graph_bound` is the roofline of the whole forward as if it were one perfect kernel: inputs and
parameters read once, outputs written once, every operation done on the fastest unit that the
contract allows; `part_bound` is that of some of its nodes. `node_cost_ms` is the opposite: a node
as a kernel of its own, for ranking what to replace. work.py counts operations.

Covered: dead nodes are not counted; inputs of which only slices are used count as those; products
of which a triangle is kept count that triangle, products with `torch.diag(...)` one multiplication
per result. Not covered (the bound is then above what algebra or caching could reach): results that
need fewer operations than their definition says (a sum after a linear layer), input elements no
window touches, output bytes that are still in L2 when the last kernel ends.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from kmem.problem.costs.vendor import copied_bytes, vendor_convolution, waiting_ms
from kmem.problem.costs.work import node_work
from kmem.problem.graph import Node, OpGraph, Placeholder, live_nodes
from kmem.problem.homes import Home, copied_parts, find_homes
from kmem.problem.operators.arithmetic import Work, input_specs
from kmem.problem.operators.row import Layout, Operator, Traffic
from kmem.problem.operators.table import find_operator, lowering_of
from kmem.records import DTYPE_BYTES, Bound, Contract, Device, Precision, TensorSpec

#: How an fp32 product may be done so that it errs no more than eager does: unit -> products on it
#: per product. Exact fp32 by two fp16 parts of each operand and three products. Source: Ootomo and
#: Yokota, "Recovering single precision accuracy from Tensor Cores", IJHPCA 36(4), 2022; measured on
#: an H200 at errors below those of cuBLAS fp32. TF32 keeps 11 significant bits, as fp16 does once
#: rows and columns are scaled into its range, so one fp16 product errs like one TF32 product.
#: Source: PTX ISA, "Alternate Floating-Point Data Formats".
_EXACT_WAYS: Mapping[str, int] = {"fp32": 1, "fp16": 3}
_TF32_WAYS: Mapping[str, int] = {"tf32": 1, "fp16": 1}

#: fp32 operations of an exponential done as a polynomial on the FMA pipe beside the
#: special-function unit: about 8 multiply-adds. Source: FlashAttention-4 and Cody and Waite,
#: "Software Manual for the Elementary Functions" (range reduction plus degree 5).
_POLYNOMIAL_FLOPS = 16

#: Share of the datasheet's rate that eager's own kernels reach, for estimates on devices nobody
#: measured. Source: one H200, 2026-11-20: copy 4.25 of 4.8 TB/s; fp32 50.9 of 67, TF32 367 of
#: 494.5, bf16 722 of 989.5 TFLOP/s.
REACHED: Mapping[str, float] = {
    "bytes": 0.885,
    "fp32": 0.76,
    "tf32": 0.74,
    "bf16": 0.73,
    "fp16": 0.73,
    "special": 0.76,
}


def graph_bound(graph: OpGraph, device: Device, contract: Contract) -> Bound | None:
    """The least time one forward can take on a device under a contract.

    Args:
        graph: as traced at the contract's precision.
    Returns: None for an opaque graph, of which nothing is known. `flops` are keyed by the unit that
        would do them; `time_ms` is the largest of bytes over bandwidth and operations over peak
        (roofline, see records.Bound).
    """
    if graph.opaque_reason is not None:
        return None
    live = _live_nodes(graph)
    read, written = _bytes_read(graph, live), _bytes_written(graph)
    flops: dict[str, float] = {}
    for node in live:
        for unit, amount in _fastest_units(
            _kept_work(graph, node), _compute_dtype(graph, node), device, contract
        ).items():
            flops[unit] = flops.get(unit, 0.0) + amount
    rates = dict(device.peak_flops_per_s)
    rates["special"] += rates["fp32"] / _POLYNOMIAL_FLOPS
    times = {unit: amount / rates[unit] * 1e3 for unit, amount in flops.items()}
    times["bytes"] = _traffic_ms(read, written, device)
    limiter = max(times, key=times.__getitem__)
    return Bound(read + written, flops, times[limiter], limiter)


def part_bound(
    graph: OpGraph, nodes: Sequence[Node], device: Device, contract: Contract
) -> Bound | None:
    """The least time of some nodes of a graph, as if they were one perfect kernel.

    What they read from others is read once, what others read of them is written once.
    """
    # the results of an operator with several are taken apart by nodes of their own
    taken = [
        user for node in nodes if isinstance(node.output, tuple) for user in graph.users(node.name)
    ]
    inside = {node.name: node for node in (*nodes, *taken)}
    given = {
        name: graph.placeholder(name) or Placeholder(name, "input", "", graph.spec(name))
        for node in inside.values()
        for name in node.refs()
        if name not in inside
    }
    outputs = [
        name
        for name, node in inside.items()
        if isinstance(node.output, TensorSpec)
        and (name in graph.outputs or any(user.name not in inside for user in graph.users(name)))
    ]
    part = OpGraph(
        tuple(given.values()),
        tuple(sorted(inside.values(), key=lambda node: graph.place(node.name))),
        tuple(outputs),
        returns_tuple=True,
        training=graph.training,
        mode_matters=graph.mode_matters,
    )
    return graph_bound(part, device, contract)


def parameter_bytes(graph: OpGraph) -> int:
    """What of a forward's bytes is parameters and buffers.

    A kernel that works its weights up once and keeps the little that algebra leaves of them reads
    none of these at a call.
    """
    return _bytes_read(graph, _live_nodes(graph), ("parameter", "buffer"))


def node_cost_ms(
    graph: OpGraph,
    node: Node,
    device: Device,
    contract: Contract,
    homes: Mapping[str, Home] | None = None,
) -> float:
    """An estimate of one node as eager runs it; 0 for a view.

    Eager runs a kernel for each node, with its operands from and to memory. Of a concatenation the
    parts are copied that do not lie in its result already.

    Args:
        homes: what lies where, as `find_homes` has it of the graph.
    """
    operator = find_operator(node.target)
    if operator is not None and _is_free(operator, graph, node):
        return 0.0
    if lowering_of(graph, node) is Layout.CONCATENATE:
        homes = find_homes(graph) if homes is None else homes
        if any(home.cat == node.name for home in homes.values()) or node.name in homes:
            left = copied_parts(graph, node, homes)
            return sum(_copy_ms(graph.spec(name), device) for name, _ in left)
    specs = input_specs(graph, node)
    outputs = node.output if isinstance(node.output, tuple) else (node.output,)
    written = sum(_storage_bytes(spec) for spec in outputs if spec is not None)
    moved = sum(map(_storage_bytes, specs)) + written
    traffic = Traffic.ONCE if operator is None else operator.traffic
    if traffic is Traffic.PART:
        moved = 2 * written
    if traffic is Traffic.ROWS:
        moved = sum(map(_storage_bytes, specs[1:])) + _picked_bytes(*specs[:2]) + written
    if traffic is Traffic.TWICE and specs:
        moved += _storage_bytes(specs[0])
    reached = {} if device.measured else REACHED
    bytes_per_s = device.dram_bytes_per_s * reached.get("bytes", 1.0)
    seconds = [moved / bytes_per_s]
    work = node_work(graph, node)
    convolution = vendor_convolution(graph, node)
    if convolution is not None:
        work = replace(work, conv_fma=round(work.conv_fma / convolution.share))
    units = _eager_units(work, _compute_dtype(graph, node), contract)
    if convolution is not None and convolution.is_depthwise:
        units = {"fp32": convolution.depthwise_flops}
    for unit, amount in units.items():
        seconds.append(amount / (device.peak_flops_per_s[unit] * reached.get(unit, 1.0)))
    beside = copied_bytes(graph, node)  # before a product
    if convolution is not None:
        beside += convolution.moved_beside
    beside_ms = beside / bytes_per_s * 1e3
    busy_ms = max(max(seconds) * 1e3, waiting_ms(graph, node)) + beside_ms
    return busy_ms + max(device.launch_ms, device.call_ms)


def node_costs_ms(graph: OpGraph, device: Device, contract: Contract) -> dict[str, float]:
    """By node, what `node_cost_ms` estimates of it.

    What the library makes lies where the library wants it: a copy more where it has a home.
    """
    homes = find_homes(graph)
    costs = {}
    for node in graph.nodes:
        costs[node.name] = node_cost_ms(graph, node, device, contract, homes)
        if node.name in homes and lowering_of(graph, node) is not Layout.CONCATENATE:
            costs[node.name] += _copy_ms(node.spec, device)
    return costs


def _copy_ms(spec: TensorSpec, device: Device) -> float:
    """A launch that reads a tensor and writes it elsewhere."""
    reached = 1.0 if device.measured else REACHED["bytes"]
    return 2e3 * spec.bytes / (device.dram_bytes_per_s * reached) + device.launch_ms


def library_ms(
    graph: OpGraph, written: Collection[str], device: Device, contract: Contract
) -> float:
    """What the library is predicted to take for the nodes that are not among the written ones."""
    costs = node_costs_ms(graph, device, contract)
    return sum(cost for name, cost in costs.items() if name not in written)


#: A copy, unless there is nothing to do.
_MAKES_DENSE = "aten.contiguous.default"


def _is_free(operator: Operator, graph: OpGraph, node: Node) -> bool:
    # a dropout that can be written drops nothing
    is_idle = not graph.training or lowering_of(graph, node) is not None
    if node.target == _MAKES_DENSE:  # it looks before it copies
        return graph.spec(node.refs()[0]).is_contiguous
    return operator.is_view or (operator.only_in_training and is_idle)


# --- bytes


def _live_nodes(graph: OpGraph) -> list[Node]:
    """Nodes that an output, or an in-place change of a placeholder, depends on; in their order."""
    return live_nodes(graph.nodes, graph.outputs, lambda node: node.is_in_place)


def _bytes_read(
    graph: OpGraph,
    live: list[Node],
    kinds: tuple[str, ...] = ("input", "parameter", "buffer"),
) -> int:
    readers: dict[str, list[Node]] = {}
    for node in live:
        for name in set(node.refs()):
            readers.setdefault(name, []).append(node)
    total = 0
    for placeholder in graph.placeholders:
        users = readers.get(placeholder.name, [])
        if placeholder.spec is None or not users or placeholder.kind not in kinds:
            continue
        size = _storage_bytes(placeholder.spec)
        if placeholder.name not in graph.outputs:
            parts = [_part_read(graph, node, placeholder.name) for node in users]
            size = min(size, sum(size if part is None else part for part in parts))
        total += size
    return total


def _part_read(graph: OpGraph, node: Node, name: str) -> int | None:
    """Bytes that a node reads of its first input where it needs no more; None for all of it."""
    operator = find_operator(node.target)
    if operator is None or node.refs()[0] != name or name in node.refs()[1:]:
        return None
    if operator.traffic is Traffic.ROWS:
        return _picked_bytes(*(graph.spec(each) for each in node.refs()[:2]))
    if operator.traffic is Traffic.PART and isinstance(node.output, TensorSpec):
        return node.spec.numel * DTYPE_BYTES[graph.spec(name).dtype]
    return None


def _picked_bytes(table: TensorSpec, indices: TensorSpec) -> int:
    """Bytes of a row for each index, or of the table if it is smaller."""
    return min(table.bytes, indices.numel * table.bytes // max(1, table.shape[0]))


def _bytes_written(graph: OpGraph) -> int:
    """Outputs, each once; what is only another view of an input needs no writing."""
    placeholders = {placeholder.name for placeholder in graph.placeholders}
    total = 0
    for name in dict.fromkeys(graph.outputs):
        base = _viewed_value(graph, name)
        if base not in placeholders:
            total += _storage_bytes(graph.spec(name))
    return total


def _viewed_value(graph: OpGraph, name: str) -> str:
    """The value whose memory a value is a view of, perhaps itself."""
    node = graph.node(name)
    while node is not None and _is_surely_view(node):
        name = node.refs()[0]
        node = graph.node(name)
    return name


def _is_surely_view(node: Node) -> bool:
    operator = find_operator(node.target)
    return operator is not None and operator.is_view and not operator.may_copy


def _storage_bytes(spec: TensorSpec) -> int:
    """Bytes behind a tensor: an expanded dimension (stride 0) is stored once."""
    elements = 1
    for size, stride in zip(spec.shape, spec.stride, strict=True):
        elements *= size if stride != 0 or size == 0 else 1
    return elements * DTYPE_BYTES[spec.dtype]


def _traffic_ms(read: int, written: int, device: Device) -> float:
    """The time of bytes read and written.

    As much of the reading as there is writing runs at the copy's rate, the rest at the read-only
    rate.
    """
    copied = read + written if written >= read else 2 * written
    return (
        copied / device.dram_bytes_per_s + (read + written - copied) / device.read_bytes_per_s
    ) * 1e3


# --- operations


def _kept_work(graph: OpGraph, node: Node) -> Work:
    """A node's work, less the products that nothing keeps.

    A triangle mask drops some; those with the zeros of a matrix made from its diagonal are zero.
    """
    work = node_work(graph, node)
    if work.product_fma and any(_is_diagonal(graph, name) for name in node.refs()):
        return Work(simple=node.spec.numel)
    if not work.product_fma or not graph.has_one_user(node.name):
        return work
    (user,) = graph.users(node.name)
    triangle = lowering_of(graph, user)
    if triangle not in (Layout.LOWER, Layout.UPPER):
        return work
    rows, columns = node.spec.shape[-2:]
    diagonal = user.args[1] if len(user.args) > 1 else 0
    if triangle is Layout.LOWER:  # elements with column <= row + diagonal
        kept = sum(min(columns, max(0, row + diagonal + 1)) for row in range(rows))
    else:
        kept = rows * columns - sum(min(columns, max(0, row + diagonal)) for row in range(rows))
    product = work.product_fma * kept // (rows * columns)
    return replace(work, product_fma=product)


def _is_diagonal(graph: OpGraph, name: str) -> bool:
    node = graph.node(name)
    return (
        node is not None
        and lowering_of(graph, node) is Layout.DIAGONAL
        and len(graph.spec(node.refs()[0]).shape) < len(node.spec.shape)
    )


def _compute_dtype(graph: OpGraph, node: Node) -> str:
    """The dtype in which a node computes: that of its widest floating operand.

    The output does not tell, for an argmax has integers.
    """
    specs = input_specs(graph, node) or (
        [node.output] if isinstance(node.output, TensorSpec) else []
    )
    floating = [spec.dtype for spec in specs if "float" in spec.dtype]
    return max(floating, key=DTYPE_BYTES.__getitem__, default="float32")


def _fastest_units(work: Work, dtype: str, device: Device, contract: Contract) -> dict[str, float]:
    """Operations by unit, products on whichever unit finishes them first."""
    flops: dict[str, float] = {}
    for multiply_adds, exact in (
        (work.product_fma, contract.precision is Precision.MATCH),
        (work.conv_fma, False),
    ):
        if not multiply_adds:
            continue
        if dtype in ("float16", "bfloat16"):
            ways: Mapping[str, int] = {"fp16" if dtype == "float16" else "bf16": 1}
        elif dtype == "float32":
            ways = _EXACT_WAYS if exact else _TF32_WAYS
        else:
            ways = {"fp32": 1}  # float64 is never faster than float32
        unit = min(ways, key=lambda name: ways[name] / device.peak_flops_per_s[name])
        flops[unit] = flops.get(unit, 0.0) + 2.0 * ways[unit] * multiply_adds
    if work.simple:
        # half-precision pairs share an instruction, so they count half
        flops["fp32"] = flops.get("fp32", 0.0) + work.simple * (
            0.5 if DTYPE_BYTES[dtype] == 2 else 1.0
        )
    if work.special:
        flops["special"] = float(work.special)
    return flops


def _eager_units(work: Work, dtype: str, contract: Contract) -> dict[str, float]:
    """Operations by the unit that eager PyTorch uses at its default flags."""
    flops: dict[str, float] = {"fp32": float(work.simple), "special": float(work.special)}
    for multiply_adds, unit in (
        (work.product_fma, "fp32" if contract.precision is Precision.MATCH else "tf32"),
        (work.conv_fma, "tf32"),
    ):
        if dtype in ("float16", "bfloat16"):
            unit = "fp16" if dtype == "float16" else "bf16"
        flops[unit] = flops.get(unit, 0.0) + 2.0 * multiply_adds
    return flops
