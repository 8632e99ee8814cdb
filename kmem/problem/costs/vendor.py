"""What the vendor's convolutions take of a device, and what else eager waits for.

A product comes close to the ceiling; a convolution does not, and cuDNN moves images into the layout
that its tensor cores want and back, before torch adds the bias in a pass of its own. Source: cuDNN
as eager calls it on one H200 at torch's default flags (TF32, NCHW), the 91 convolutions of
KernelBench's levels 1 (2026-11-22) and 2 (2026-11-23, less what is predicted of what follows):
within 1.32 of the prediction in the geometric mean, half of them within 1.16; constants fitted to
those with even numbers say the others within 1.33. Depthwise ones, which are torch's own kernels,
take as long as 600 operations for each result and 57 for each tap (level 1, 82 to 85).

Steps of a recurrence wait for one another. Source: cuDNN as eager calls it on one H200, 35 to 42 of
KernelBench's level 3 (512 steps, 10 rows, 256 units), 2026-11-22: 22.8 to 24.7 ms for LSTMs of six
layers, 48.8 in both directions, 33.4 to 36.7 and 64.5 to 65.4 for GRUs.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import prod

from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.reductions import multiplies_points
from kmem.problem.operators.row import Call, Convolution, Product
from kmem.problem.operators.table import find_operator
from kmem.problem.sizes import per_axis
from kmem.records import TensorSpec

#: Channels of a group, in and out, that fill a step and a tile of cuDNN's sums.
_FULL_IN, _FULL_OUT = 32, 64
#: What a transposed convolution loses by its stride: so many times less for 2 along each of two.
_BY_STRIDE = 0.55
#: Images read and written to change their layout: passes over input and output, each both ways.
_LAYOUT_PASSES = 1.5
_DEPTHWISE_FLOPS, _DEPTHWISE_TAP_FLOPS = 600, 57
_VOLUME = 3
#: Of one step of a layer in one direction; of plain recurrences as of LSTMs, which is a guess.
_STEP_MS = {"gru": 11e-3}
_OTHER_STEP_MS = 8e-3
_RECURRENT_ARGUMENTS = 9


@dataclass(frozen=True, slots=True)
class _Reached:
    """The share of the tensor cores' ceiling with full channels; the exponents of fewer."""

    share: float
    by_in: float
    by_out: float

    def with_channels(self, channels_in: int, channels_out: int) -> float:
        """The share with so many channels of a group."""
        return (
            self.share
            * min(1.0, channels_in / _FULL_IN) ** self.by_in
            * min(1.0, channels_out / _FULL_OUT) ** self.by_out
        )


#: By whether it is transposed and whether it is over volumes; lines count as planes.
_REACHED = {
    (False, False): _Reached(0.6, 1.0, 1.5),
    (False, True): _Reached(0.45, 1.0, 0.25),
    (True, False): _Reached(0.7, 0.0, 0.75),
    (True, True): _Reached(0.25, 0.0, 1.9),
}


@dataclass(frozen=True, slots=True)
class VendorConvolution:
    """A convolution as the vendor's library is called: channels are those of one group."""

    rank: int
    is_transposed: bool
    channels_in: int
    channels_out: int
    is_depthwise: bool
    taps: int
    stride: tuple[int, ...]
    input_bytes: int
    output: TensorSpec
    has_bias: bool

    @property
    def share(self) -> float:
        """The share of the tensor cores' ceiling that it reaches; 1.0 for a depthwise one."""
        if self.is_depthwise:
            return 1.0
        reached = _REACHED[self.is_transposed, self.rank == _VOLUME]
        share = reached.with_channels(self.channels_in, self.channels_out)
        return share / prod(self.stride) ** _BY_STRIDE if self.is_transposed else share

    @property
    def depthwise_flops(self) -> float:
        """The fp32 operations in whose time a depthwise one is done; 0 for others."""
        if not self.is_depthwise:
            return 0.0
        return self.output.numel * max(_DEPTHWISE_FLOPS, _DEPTHWISE_TAP_FLOPS * self.taps)

    @property
    def moved_beside(self) -> float:
        """Bytes that it moves beside its operands and result.

        Layouts change there and back, but for windows of one element; a bias is added afterwards.
        """
        changes_layout = self.taps > 1 and not self.is_depthwise
        images = self.input_bytes + self.output.bytes
        return 2.0 * (_LAYOUT_PASSES * images * changes_layout + self.output.bytes * self.has_bias)


def vendor_convolution(graph: OpGraph, node: Node) -> VendorConvolution | None:
    """The convolution of a node; None for other nodes."""
    operator = find_operator(node.target)
    if operator is None or not isinstance(operator.lowering, Convolution):
        return None
    call = operator.call(graph, node)
    if call.value("weight") is None:
        return None
    source, weight = call.spec("input"), call.spec("weight")
    rank, is_transposed = operator.lowering.rank, operator.lowering.is_transposed
    (groups,) = per_axis(call["groups"], 1, 1)
    first, second = weight.shape[:2]
    channels_in, channels_out = (
        (first // groups, second) if is_transposed else (second, first // groups)
    )
    return VendorConvolution(
        rank,
        is_transposed,
        channels_in,
        channels_out,
        is_depthwise=channels_in == 1 and groups > 1,
        taps=prod(weight.shape[2:]),
        stride=per_axis(call["stride"], rank, 1),
        input_bytes=source.bytes,
        output=node.spec,
        has_bias=call.value("bias") is not None,
    )


def copied_bytes(graph: OpGraph, node: Node) -> int:
    """What a product moves to bring its operands into rows, columns and one batch; 0 for others.

    The vendor's batched product takes a stride for each of these. torch copies an operand whose
    dimensions do not merge into them, as those of heads that lie between rows. Distances of all
    pairs move more around theirs.
    """
    operator = find_operator(node.target)
    if node.target == "aten.cdist.default":
        return _moved_by_distances(operator.call(graph, node))
    if operator is None or not isinstance(operator.lowering, Product):
        return 0
    terms = operator.lowering.read(operator.call(graph, node))
    if terms is None:
        return 0
    read, output = terms.equation.split("->")
    words = read.split(",")
    moved = 0
    for name, word, other in zip((terms.a, terms.b), words, reversed(words), strict=True):
        spec = graph.spec(name)
        if len(spec.shape) == len(word) and not _merges(spec, word, other, output):
            moved += 2 * spec.bytes
    return moved


def _moved_by_distances(call: Call) -> int:
    """What eager moves beside its product of points: squared norms are concatenated with both, and
    the result is clamped and rooted in place.
    """
    if not multiplies_points(call):
        return 0
    points = call.spec("x").bytes + call.spec("y").bytes
    return 4 * points + 4 * call.node.spec.bytes


def _merges(spec: TensorSpec, word: str, other: str, output: str) -> bool:
    """Whether the dimensions of a batch, of rows or columns, and of the sum each merge into one."""
    kinds: dict[tuple[bool, bool], list[int]] = {}
    for axis, label in enumerate(word):
        if spec.shape[axis] > 1:
            kinds.setdefault((label in other, label in output), []).append(axis)
    return all(
        spec.stride[axis] == spec.stride[behind] * spec.shape[behind]
        for axes in kinds.values()
        for axis, behind in pairwise(axes)
    )


def waiting_ms(graph: OpGraph, node: Node) -> float:
    """What the steps of a recurrent node take one after another, in milliseconds; 0 for others."""
    operator = find_operator(node.target)
    is_recurrent = operator is not None and operator.name == "recurrent"
    if not is_recurrent or len(node.args) != _RECURRENT_ARGUMENTS:
        return 0.0
    x, layers = node.args[0], node.args[4]
    both, batch_first = node.args[7:]
    if not isinstance(x, Ref):
        return 0.0
    steps = graph.spec(x.name).shape[1 if batch_first else 0]
    kind = node.target.removeprefix("aten.").split(".")[0]
    return steps * int(layers) * (2 if both else 1) * _STEP_MS.get(kind, _OTHER_STEP_MS)
