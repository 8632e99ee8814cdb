"""What share of a device's ceiling the vendor's convolutions reach, and what else eager waits for.

A product comes close to the ceiling; a convolution does not. Source: cuDNN as eager calls it on one
H200 at torch's default flags (TF32, NCHW), the 35 convolutions of KernelBench's level 1 on
2026-11-22: 176 to 219 TFLOP/s of a ceiling of 367 with 64 channels and more, a quarter and less of
that with 8 channels, a twentieth with 3; transposed ones 120 to 210 over planes and 15 to 40 over
volumes.

Steps of a recurrence wait for one another. Source: cuDNN as eager calls it on one H200, 35 to 42 of
KernelBench's level 3 (512 steps, 10 rows, 256 units), 2026-11-22: 22.8 to 24.7 ms for LSTMs of six
layers, 48.8 in both directions, 33.4 to 36.7 and 64.5 to 65.4 for GRUs.
"""

from itertools import pairwise

from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.row import Convolution, Product
from kmem.problem.operators.table import find_operator
from kmem.records import TensorSpec

_PLAIN = 0.45
#: Of transposed convolutions over planes, and over volumes.
_TRANSPOSED, _TRANSPOSED_VOLUMES = 0.4, 0.08
#: Input channels of a group that fill a step of cuDNN's sums.
_FULL_CHANNELS = 32
_VOLUME = 3
#: Of one step of a layer in one direction; of plain recurrences as of LSTMs, which is a guess.
_STEP_MS = {"gru": 11e-3}
_OTHER_STEP_MS = 8e-3
_RECURRENT_ARGUMENTS = 9


def convolution_share(graph: OpGraph, node: Node) -> float:
    """The share of the tensor cores' ceiling that a node reaches; 1.0 if it is no convolution."""
    operator = find_operator(node.target)
    if operator is None or not isinstance(operator.lowering, Convolution):
        return 1.0
    weight = node.args[1]
    if not isinstance(weight, Ref):
        return 1.0
    shape, lowering = graph.spec(weight.name).shape, operator.lowering
    if not lowering.is_transposed:
        return _PLAIN * min(1.0, shape[1] / _FULL_CHANNELS)
    groups = operator.call(graph, node)["groups"] or 1
    share = _TRANSPOSED_VOLUMES if lowering.rank == _VOLUME else _TRANSPOSED
    return share * min(1.0, shape[0] / groups / _FULL_CHANNELS)


def copied_bytes(graph: OpGraph, node: Node) -> int:
    """What a product moves to bring its operands into rows, columns and one batch; 0 for others.

    The vendor's batched product takes a stride for each of these. torch copies an operand whose
    dimensions do not merge into them, as those of heads that lie between rows.
    """
    operator = find_operator(node.target)
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
