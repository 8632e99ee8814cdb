"""What follows an anchor element by element, as a jitted function that the anchor's kernel calls.

    @triton.jit
    def kmem_chain_1f3a(acc, n, channel, channel_ok, place, place_ok, e0, COUT, PLANE):
        x0 = tl.load(e0 + channel, mask=channel_ok, other=0.0).to(tl.float32)
        y0 = acc + x0
        return y0

The anchor makes an image: samples n, channels, and places within a channel. It hands in a value and
where it lies, as tensors that broadcast together, and stores what comes back. The text knows no
sizes, only along which of the three an operand of the chain has elements, so that one text serves
every workload.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kmem.codegen.chains.epilogue import Epilogue, grow_epilogue, write_epilogue
from kmem.codegen.regions.matching import FoundRegion, find_row_regions, may_reduce
from kmem.codegen.regions.reductions import REDUCTIONS
from kmem.codegen.regions.region import Load, Map, Region
from kmem.codegen.text.definitions import write_definition
from kmem.problem.costs.work import node_work
from kmem.problem.graph import Node, OpGraph
from kmem.problem.operators.expressions import Helper, order_helpers
from kmem.recipes import Operand
from kmem.records import TensorSpec, content_hash

_GIVEN = "acc, n, channel, channel_ok, place, place_ok"
_SIZES = "COUT: tl.constexpr, PLANE: tl.constexpr"


@dataclass(frozen=True, slots=True)
class Chain:
    """Nodes after an anchor, written as a function; `result` is the value that they leave.

    `functions` are (name, text) of what it calls, and of itself, in order of definition.
    `by_place` is whether an operand has elements of its own for every place of a channel.
    `special` are operations of all elements on the special-function unit.
    A chain that `reduces` does so over the channels of a place: it is called with a tile (places,
    channels) that holds all of them, and `leaves_row` if one value of each place is left.
    """

    nodes: tuple[str, ...] = ()
    result: str = ""
    operands: tuple[str, ...] = ()
    functions: tuple[tuple[str, str], ...] = ()
    by_place: bool = False
    special: int = 0
    bytes: int = 0  # of the operands
    reduces: bool = False
    leaves_row: bool = False

    @property
    def name(self) -> str:
        """The function; empty if nothing follows."""
        return self.functions[-1][0] if self.functions else ""

    @property
    def pointers(self) -> tuple[str, ...]:
        """What the operands are called, as parameters of kernels and launchers."""
        return tuple(f"e{index}" for index in range(len(self.operands)))

    def call(self, value: str, where: str, sizes: str = "COUT, OD * OH * OW") -> str:
        """The chain of a value, as text; the value itself if nothing follows.

        Args:
            where: its sample, its channel with a mask, and its place with a mask, as text.
            sizes: channels, and elements of one, as text.
        """
        if not self.functions:
            return value
        return f"{self.name}({', '.join([value, where, *self.pointers, sizes])})"


def grow_chain(graph: OpGraph, anchor: Node, taken: Collection[str] = ()) -> Chain:
    """The longest chain after an anchor that can be written; empty if there is none.

    Args:
        anchor: makes (samples, channels, places...), contiguous.
        taken: nodes that may not join.
    """
    refused = set(taken)
    while members := grow_epilogue(graph, anchor, refused):
        inner = {anchor.name, *(node.name for node in members)}
        foreign = [
            node.name
            for node in members
            for name in node.refs()
            if name not in inner and _reach(graph.spec(name), anchor.spec.shape) is None
        ]
        epilogue = None if foreign else write_epilogue(graph, anchor, None, None, members)
        if epilogue is not None and members[-1].spec.is_contiguous:
            return _write(graph, anchor, members, epilogue)
        refused.update(foreign or [members[-1].name])
    return Chain()


def _reach(spec: TensorSpec, shape: tuple[int, ...]) -> tuple[bool, bool, bool] | None:
    """Whether an operand has several elements along samples, channels and places.

    None if it has some but not all of the places, or lies in memory in another order.
    """
    padded = (1,) * (len(shape) - len(spec.shape)) + spec.shape
    if len(padded) != len(shape) or not spec.is_contiguous:
        return None
    places = padded[2:]
    is_one = all(size == 1 for size in places)
    if not is_one and places != shape[2:]:
        return None
    return padded[0] > 1, padded[1] > 1, not is_one


def _write(graph: OpGraph, anchor: Node, members: Sequence[Node], epilogue: Epilogue) -> Chain:
    reached = [_reach(graph.spec(name), anchor.spec.shape) for name in epilogue.operands]
    reaches = [reach for reach in reached if reach is not None]
    lines = [_load(index, *reach) for index, reach in enumerate(reaches)]
    lines += [f"{name} = {text}" for name, text in epilogue.statements]
    lines.append(f"return {epilogue.statements[-1][0]}")
    name, text = _define("chain", len(reaches), lines, "What follows for a value and its place.")
    work = [node_work(graph, node) for node in members]
    called = [helper for helper in epilogue.helpers if helper[0] != "kmem_load_operand"]
    return Chain(
        tuple(node.name for node in members),
        members[-1].name,
        epilogue.operands,
        (*called, (name, text)),
        any(by_place for _, _, by_place in reaches),
        sum(each.special for each in work),
        sum(graph.spec(name).bytes for name in epilogue.operands),
    )


def _load(index: int, by_sample: bool, by_channel: bool, by_place: bool) -> str:  # noqa: FBT001
    """One operand, as fp32: masked where it could be read outside."""
    at = "n" if by_sample else ""
    if by_channel:
        at = "n * COUT + channel" if by_sample else "channel"
    if by_place:
        at = f"({at}).to(tl.int64) * PLANE + place" if at else "place"
    masks = ["channel_ok"] * by_channel + ["place_ok"] * by_place
    mask = f", mask={' & '.join(masks)}, other=0.0" if masks else ""
    where = f"e{index} + ({at})" if at else f"e{index}"
    return f"x{index} = tl.load({where}{mask}).to(tl.float32)"


def _define(purpose: str, count: int, lines: Sequence[str], says: str) -> tuple[str, str]:
    """A function that reads so many operands."""
    pointers = ", ".join(f"e{index}" for index in range(count))
    name = f"kmem_{purpose}_{content_hash(*lines)[:10]}"
    return name, write_definition(name, (_GIVEN, pointers, _SIZES), lines, says)


# --- reductions of what the anchor's tile holds whole


def grow_reducing_chain(graph: OpGraph, anchor: Node) -> Chain:
    """What follows an anchor up to and behind reductions over its channels; empty if nothing can.

    That is the region that the recipes of rows would write, if it reads nothing else for each place
    and the anchor is read by it alone.
    """
    found = find_closing(graph, anchor)
    if found is None:
        return Chain()
    return _write_region(graph, found.nodes, found.region, anchor.name)


def find_closing(graph: OpGraph, anchor: Node) -> FoundRegion | None:
    """The region that reduces an anchor's channels and can be written where the anchor stores."""
    if not may_reduce(graph, anchor.name, anchor.spec.shape[1]):
        return None
    regions = find_row_regions(graph.hiding({anchor.name}))
    return next((found for found in regions if _closes(graph, anchor, found)), None)


def _closes(graph: OpGraph, anchor: Node, found: FoundRegion) -> bool:
    region, spec = found.region, anchor.spec
    inputs = [operand.name for operand in region.inputs]
    users = {user.name for user in graph.users(anchor.name)}
    if anchor.name not in inputs or anchor.name in graph.outputs or not users <= {*found.nodes}:
        return False
    outputs, channels = region.outputs, spec.shape[1]
    is_one = len(region.stores) == len(outputs) == 1 and region.total is None
    along = region.reduced
    if not is_one or len(along) != 1 or region.axes[along[0]].dim != 1:
        return False
    if region.columns != channels or region.rows * channels != spec.numel:
        return False
    (made,) = outputs
    if made.spec.dtype != spec.dtype or not made.spec.is_contiguous or not spec.is_contiguous:
        return False
    return all(
        region.inputs[load.operand].name == anchor.name
        or region.inputs[load.operand].spec.numel == 1
        or _is_by_channel(load, along[0], region.inputs[load.operand].spec, channels)
        for load in region.loads
    )


def _is_by_channel(load: Load, along: int, spec: TensorSpec, channels: int) -> bool:
    steps = [stride for axis, stride in enumerate(load.strides) if axis != along]
    return spec.numel == channels and load.strides[along] == 1 and not any(steps)


def _write_region(graph: OpGraph, nodes: tuple[str, ...], region: Region, anchor: str) -> Chain:
    given = tuple(operand.name for operand in region.inputs if operand.name != anchor)
    lines = ["EVEN_R: tl.constexpr = acc.shape[1] == COUT", "valid = channel_ok"]
    lines += ["r = channel", "count = COUT * 1.0"]
    helpers: list[Helper] = []
    for item in region.statements:
        if isinstance(item, Load):
            operand = region.inputs[item.operand]
            lines.append(f"{item.name} = {_read(operand, given, anchor)}")
        elif isinstance(item, Map):
            lines.append(f"{item.name} = {item.text}")
            helpers += item.helpers
        else:
            kind = REDUCTIONS[item.kind]
            lines += kind.direct(item.read, item.names)
            helpers += kind.helpers
    (store,) = region.stores
    lines.append(f"return {store.value}")
    says = "What follows for all channels of a place."
    name, text = _define("closing", len(given), lines, says)
    work = [node_work(graph, node) for node in graph.nodes if node.name in nodes]
    return Chain(
        nodes,
        region.outputs[0].name,
        given,
        (*order_helpers(helpers), (name, text)),
        by_place=False,
        special=sum(each.special for each in work),
        bytes=sum(graph.spec(each).bytes for each in given),
        reduces=True,
        leaves_row=store.is_row,
    )


def _read(operand: Operand, given: tuple[str, ...], anchor: str) -> str:
    if operand.name == anchor:
        return "acc.to(tl.float32)"
    pointer = f"e{given.index(operand.name)}"
    if operand.spec.numel == 1:
        return f"tl.load({pointer}).to(tl.float32)"
    return f"tl.load({pointer} + channel, mask=channel_ok, other=0.0).to(tl.float32)"
