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

from collections.abc import Collection
from dataclasses import dataclass

from kmem.codegen.epilogue import Epilogue, grow_epilogue, write_epilogue
from kmem.problem.graph import Node, OpGraph
from kmem.problem.work import node_work
from kmem.records import Device, TensorSpec, content_hash

_HEAD = """@triton.jit
def {name}(
    acc, n, channel, channel_ok, place, place_ok,{pointers}
    COUT: tl.constexpr, PLANE: tl.constexpr,
):
"""


@dataclass(frozen=True, slots=True)
class Chain:
    """Pointwise nodes after an anchor, written as a function.

    `functions` are (name, text) of what it calls, and of itself, in order of definition.
    `by_place` is whether an operand has elements of its own for every place of a channel.
    `simple` and `special` are operations of all elements on the FMA and special-function units.
    """

    nodes: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()
    functions: tuple[tuple[str, str], ...] = ()
    by_place: bool = False
    simple: int = 0
    special: int = 0
    bytes: int = 0  # of the operands

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

    def seconds(self, device: Device) -> float:
        """What the arithmetic alone takes."""
        rates = device.peak_flops_per_s
        return max(self.simple / rates["fp32"], self.special / rates["special"])


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


def _write(graph: OpGraph, anchor: Node, members: Collection[Node], epilogue: Epilogue) -> Chain:
    reached = [_reach(graph.spec(name), anchor.spec.shape) for name in epilogue.operands]
    reaches = [reach for reach in reached if reach is not None]
    lines = [_load(index, *reach) for index, reach in enumerate(reaches)]
    lines += [f"    {name} = {text}\n" for name, text in epilogue.statements]
    lines.append(f"    return {epilogue.statements[-1][0]}\n")
    pointers = "".join(f" e{index}," for index in range(len(reaches)))
    name = f"kmem_chain_{content_hash(*lines)[:10]}"
    text = _HEAD.format(name=name, pointers=pointers) + "".join(lines)
    work = [node_work(graph, node) for node in members]
    called = [helper for helper in epilogue.helpers if helper[0] != "kmem_load_operand"]
    return Chain(
        tuple(node.name for node in members),
        epilogue.operands,
        (*called, (name, text)),
        any(by_place for _, _, by_place in reaches),
        sum(each.simple for each in work),
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
    return f"    x{index} = tl.load({where}{mask}).to(tl.float32)\n"
