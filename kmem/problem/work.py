"""The arithmetic one node of a traced graph needs at least: multiply-adds of products, plain
operations, special functions.

Owned here: one rule per operator family, over shapes and arguments alone. bound.py adds the bytes
and turns both into time.

Covered: every operator of KernelBench levels 1 to 3 as torch.export names it. An operator without a
rule is counted as pointwise and named in the log once. Counts are lower bounds of the textbook
definition: taps that fall on padding and structural zeros of transposed convolutions are left out,
pooling and scans count each element once, however large the window. Not covered: algorithms that
need fewer multiply-adds than the definition (Strassen, Winograd, FFT), and algebra across nodes.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from kmem.problem.graph import Arg, Node, OpGraph, Ref
from kmem.records import TensorSpec

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Work:
    """Operations of one node.

    `product_fma`: multiply-adds of matrix products, exact fp32 in eager by default. `conv_fma`:
    those of convolutions and recurrent layers, which eager does in TF32 by default
    (torch.backends.cudnn.allow_tf32). `simple`: adds, multiplies, comparisons. `special`: results
    of exp, log, tanh, sin, sqrt and the like.
    """

    product_fma: int = 0
    conv_fma: int = 0
    simple: int = 0
    special: int = 0


def operator_name(node: Node) -> str:
    """ "conv2d" for aten.conv2d.default, "add" for the in-place aten.add_.Tensor, "getitem" for
    itself.
    """
    parts = node.target.split(".")
    return (parts[1] if len(parts) > 1 else parts[0]).rstrip("_")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Operators that move or re-describe data and compute nothing.
LAYOUT = _names(
    """
    _assert_tensor_metadata _to_copy alias arange assert_tensor_metadata broadcast_tensors cat channel_shuffle chunk clone
    constant_pad_nd contiguous copy detach diag diag_embed diagonal dropout embedding empty empty_like expand expand_as flatten flip
    full full_like gather getitem index index_select lift_fresh_copy movedim mT narrow new_zeros numpy_T ones ones_like pad permute
    pixel_shuffle pixel_unshuffle repeat reshape roll select slice split split_with_sizes squeeze stack swapaxes t to to_copy
    transpose tril triu unbind unflatten unfold unsqueeze upsample_nearest2d view view_as zeros zeros_like
    """
)

#: Of those, the ones that return another view of the same memory, so that no kernel runs.
VIEWS = _names(
    """
    _assert_tensor_metadata alias assert_tensor_metadata broadcast_tensors chunk detach diagonal expand expand_as flatten getitem
    movedim mT narrow numpy_T permute reshape select slice split split_with_sizes squeeze swapaxes t transpose unbind unflatten
    unfold unsqueeze view view_as
    """
)

#: One operation per result.
_SIMPLE = _names(
    """
    abs add addcdiv addcmul bitwise_and bitwise_not ceil clamp clamp_max clamp_min div eq floor floor_divide ge gt hardshrink
    hardsigmoid hardswish hardtanh le leaky_relu logical_and logical_not logical_or lt masked_fill maximum minimum mul multiply ne
    neg prelu reciprocal relu relu6 remainder round rsub sign softshrink square sub subtract threshold true_divide where
    """
)

#: One operation and one special-function result per result.
_SPECIAL = _names(
    """
    atan celu cos elu erf exp exp2 expm1 gelu log log10 log1p log2 log_sigmoid logit mish rsqrt selu sigmoid silu sin sinh softplus
    sqrt tan tanh
    """
)

#: Every element of the (largest) input is looked at once.
_ONCE_PER_INPUT = _names(
    """
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d all amax
    amin any argmax argmin avg_pool1d avg_pool2d avg_pool3d cosine_similarity cummax cummin cumprod cumsum hinge_embedding_loss
    huber_loss l1_loss linalg_matrix_norm linalg_norm linalg_vector_norm lp_pool2d margin_ranking_loss max max_pool1d max_pool2d
    max_pool2d_with_indices max_pool3d mean median min mse_loss norm prod smooth_l1_loss sort std sum topk triplet_margin_loss var var_mean
    """
)

#: The same, with one special-function result for each.
_EXP_PER_INPUT = _names(
    "cross_entropy_loss kl_div log_softmax logcumsumexp logsumexp nll_loss binary_cross_entropy "
    "softmax"
)

#: Statistics of every element, then scale and shift of every element.
_NORMS = _names("batch_norm group_norm instance_norm layer_norm native_layer_norm rms_norm")


def node_work(graph: OpGraph, node: Node) -> Work:
    """Count one node.

    Raises nothing: an operator without a rule, or with arguments its rule does not know, counts as
    one operation per element.
    """
    name = operator_name(node)
    if name in LAYOUT:
        return Work()
    inputs = input_specs(graph, node)
    made, read = output_elements(node), max((spec.numel for spec in inputs), default=0)
    if name in _PRODUCTS and inputs:
        return _PRODUCTS[name](node, inputs)
    if name in ("max", "min") and len(inputs) == 2:  # max.other is pointwise
        return Work(simple=made)
    if name in _SIMPLE:
        return Work(simple=made)
    if name in _SPECIAL:
        return Work(simple=made, special=made)
    if name == "pow":
        whole = (
            len(node.args) > 1
            and isinstance(node.args[1], int | float)
            and float(node.args[1]).is_integer()
        )
        return Work(simple=made, special=0 if whole else made)
    if name in _ONCE_PER_INPUT:
        return Work(simple=read)
    if name in _EXP_PER_INPUT:
        return Work(simple=read, special=read)
    if name in _NORMS:
        return Work(simple=2 * read)
    _log_unknown(node.target)
    return Work(simple=max(made, read))


@cache  # each operator is named once, not once per node
def _log_unknown(target: str) -> None:
    logger.info(
        "No rule counts the arithmetic of %s; it is taken as one operation per element", target
    )


def input_specs(graph: OpGraph, node: Node) -> list[TensorSpec]:
    """Specs of the tensors a node reads, each value once, in order; tuples and scalars are left
    out.
    """
    specs = []
    for name in dict.fromkeys(node.refs()):
        value = graph.node(name) or graph.placeholder(name)
        spec = value.output if isinstance(value, Node) else value.spec
        if isinstance(spec, TensorSpec):
            specs.append(spec)
    return specs


def output_elements(node: Node) -> int:
    """Elements of all tensors a node makes."""
    outputs = node.output if isinstance(node.output, tuple) else (node.output,)
    return sum(spec.numel for spec in outputs if spec is not None)


def _argument(node: Node, position: int, name: str, default: Arg) -> Arg:
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


# --- products
# -------------------------------------------------------------------------------------------------------------------------


def _matmul(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    """Output elements times the contracted length; `x @ x` reads one value twice, so the left
    operand comes first or alone.
    """
    return Work(product_fma=output_elements(node) * inputs[0].shape[-1])


def _addmm(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    made = output_elements(node)
    left = inputs[1] if len(inputs) > 1 else inputs[0]
    return Work(product_fma=made * left.shape[-1], simple=made)


def _linear(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    made = output_elements(node)
    return Work(product_fma=made * inputs[0].shape[-1], simple=made if len(inputs) > 2 else 0)


def _einsum(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    """One multiply-add per combination of all labels, for two operands without ellipsis."""
    equation = node.args[0]
    operands = str(equation).replace(" ", "").split("->")[0].split(",")
    if len(operands) != 2 or "." in str(equation) or len(inputs) != 2:
        _log_unknown(f"aten.einsum {equation}")
        return Work(simple=max(spec.numel for spec in inputs))
    sizes: dict[str, int] = {}
    for labels, spec in zip(operands, inputs, strict=True):
        for label, size in zip(labels, spec.shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    return Work(product_fma=math.prod(sizes.values()))


def _attention(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    """Scores (length x keys x width) and weighted values, one exp per score; a causal mask leaves
    about half of both.
    """
    references = [arg for arg in node.args[:3] if isinstance(arg, Ref)]
    if len({reference.name for reference in references}) == len(inputs) == 1:
        query = key = value = inputs[0]
    else:
        query = inputs[0]
        key = inputs[min(1, len(inputs) - 1)]
        value = inputs[min(2, len(inputs) - 1)]
    batch = math.prod(query.shape[:-2])
    rows = query.shape[-2]
    keys = key.shape[-2]
    scores = rows * keys
    if _argument(node, 5, "is_causal", False):
        scores = sum(min(keys, row + 1) for row in range(rows))
    return Work(
        product_fma=batch * scores * (query.shape[-1] + value.shape[-1]), special=batch * scores
    )


def _recurrent(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    """Every weight matrix once per element of the sequence; biases and states are 1- and
    3-dimensional.
    """
    sequence = inputs[0]
    steps = math.prod(sequence.shape[:-1])
    return Work(conv_fma=steps * sum(spec.numel for spec in inputs[1:] if len(spec.shape) == 2))


def _convolution(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    """(Output, tap) pairs that hit the input, per dimension, times channels.

    Weight: (out, in / groups, *kernel).
    """
    image, weight = inputs[0], inputs[1]
    rank = len(weight.shape) - 2
    stride = _per_dimension(_argument(node, 3, "stride", 1), rank)
    dilation = _per_dimension(_argument(node, 5, "dilation", 1), rank)
    padding = _argument(node, 4, "padding", 0)
    if padding == "same":
        before = [
            (kernel - 1) * step // 2
            for kernel, step in zip(weight.shape[2:], dilation, strict=True)
        ]
    else:
        before = _per_dimension(0 if padding == "valid" else padding, rank)
    if rank < 1 or not isinstance(node.output, TensorSpec):
        return Work(simple=output_elements(node))
    pairs = math.prod(
        _hits(
            node.output.shape[-rank + axis],
            image.shape[-rank + axis],
            weight.shape[2 + axis],
            stride[axis],
            before[axis],
            dilation[axis],
        )
        for axis in range(rank)
    )
    batch = math.prod(image.shape[: -rank - 1])
    return Work(
        conv_fma=batch * weight.shape[0] * weight.shape[1] * pairs,
        simple=output_elements(node) if len(inputs) > 2 else 0,
    )


def _transposed_convolution(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    """(Input, tap) pairs that hit the output: exactly the structurally non-zero ones.

    Weight: (in, out / groups, *kernel).
    """
    image, weight = inputs[0], inputs[1]
    rank = len(weight.shape) - 2
    stride = _per_dimension(_argument(node, 3, "stride", 1), rank)
    padding = _per_dimension(_argument(node, 4, "padding", 0), rank)
    dilation = _per_dimension(_argument(node, 7, "dilation", 1), rank)
    pairs = math.prod(
        _hits(
            image.shape[-rank + axis],
            node.spec.shape[-rank + axis],
            weight.shape[2 + axis],
            stride[axis],
            padding[axis],
            dilation[axis],
        )
        for axis in range(rank)
    )
    batch = math.prod(image.shape[: -rank - 1])
    return Work(
        conv_fma=batch * weight.shape[0] * weight.shape[1] * pairs,
        simple=output_elements(node) if len(inputs) > 2 else 0,
    )


def _hits(
    positions: int, length: int, kernel: int, stride: int, padding: int, dilation: int
) -> int:
    """How many (position, tap) have 0 <= position * stride - padding + tap * dilation < length."""
    total = 0
    for tap in range(kernel):
        offset = tap * dilation - padding
        # smallest position with position * stride + offset >= 0
        first = max(0, -(offset // stride))
        last = min(positions - 1, (length - 1 - offset) // stride)
        total += max(0, last - first + 1)
    return total


def _per_dimension(value: Arg, rank: int) -> list[int]:
    """2, [2] and [2, 2] for two dimensions all mean [2, 2]."""
    values = [int(item) for item in value] if isinstance(value, tuple) else [int(value)]
    return values * rank if len(values) == 1 else values


_PRODUCTS: dict[str, Callable[[Node, Sequence[TensorSpec]], Work]] = {
    "matmul": _matmul,
    "mm": _matmul,
    "bmm": _matmul,
    "mv": _matmul,
    "dot": _matmul,
    "addmm": _addmm,
    "addmv": _addmm,
    "baddbmm": _addmm,
    "linear": _linear,
    "einsum": _einsum,
    "scaled_dot_product_attention": _attention,
    "lstm": _recurrent,
    "gru": _recurrent,
    "rnn_tanh": _recurrent,
    "rnn_relu": _recurrent,
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv3d": _convolution,
    "conv_transpose1d": _transposed_convolution,
    "conv_transpose2d": _transposed_convolution,
    "conv_transpose3d": _transposed_convolution,
}
