"""Convolutions and transposed ones of every rank, and recurrent layers.

Eager does all of them in TF32 by default.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kmem.problem.graph import Arg, Node
from kmem.problem.operators.arithmetic import Work, output_elements
from kmem.problem.operators.row import Convolution, Operator, Parameters, parameters
from kmem.problem.sizes import per_axis, same_padding
from kmem.records import TensorSpec

_FORWARD = parameters(
    "input", "weight", bias=None, stride=None, padding=0, dilation=None, groups=None
)
_TRANSPOSED = parameters(
    "input",
    "weight",
    bias=None,
    stride=None,
    padding=0,
    output_padding=None,
    groups=None,
    dilation=None,
)


@dataclass(frozen=True, slots=True)
class _Steps:
    """How the window moves along one axis."""

    stride: int
    padding: int
    dilation: int


def _given(node: Node, names: Parameters) -> dict[str, Arg]:
    return {**names, **dict(zip(names, node.args, strict=False)), **node.kwargs}


def _convolution_work(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    """(Output, tap) pairs that hit the input, per dimension, times channels.

    Weight: (out, in / groups, *kernel).
    """
    image, weight = inputs[0], inputs[1]
    rank = len(weight.shape) - 2
    if rank < 1 or not isinstance(node.output, TensorSpec):
        return Work(simple=output_elements(node))
    given = _given(node, _FORWARD)
    stride = per_axis(given["stride"], rank, 1)
    dilation = per_axis(given["dilation"], rank, 1)
    padding = given["padding"]
    if padding == "same":
        before = same_padding(weight.shape[2:], dilation)
    else:
        before = per_axis(0 if padding == "valid" else padding, rank, 0)
    steps = [_Steps(*each) for each in zip(stride, before, dilation, strict=True)]
    pairs = _all_hits(node.output.shape, image.shape, weight.shape, steps)
    return _tap_work(node, inputs, pairs)


def _transposed_work(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    """(Input, tap) pairs that hit the output: exactly the structurally non-zero ones.

    Weight: (in, out / groups, *kernel).
    """
    image, weight = inputs[0], inputs[1]
    rank = len(weight.shape) - 2
    given = _given(node, _TRANSPOSED)
    stride, dilation = per_axis(given["stride"], rank, 1), per_axis(given["dilation"], rank, 1)
    padding = per_axis(given["padding"], rank, 0)
    steps = [_Steps(*each) for each in zip(stride, padding, dilation, strict=True)]
    pairs = _all_hits(image.shape, node.spec.shape, weight.shape, steps)
    return _tap_work(node, inputs, pairs)


def _tap_work(node: Node, inputs: Sequence[TensorSpec], pairs: int) -> Work:
    """Every pair of positions for every image and pair of channels, and the bias."""
    image, weight = inputs[0], inputs[1]
    batch = math.prod(image.shape[: 1 - len(weight.shape)])
    return Work(
        conv_fma=batch * weight.shape[0] * weight.shape[1] * pairs,
        simple=output_elements(node) if len(inputs) > 2 else 0,
    )


def _all_hits(
    positions: Sequence[int],
    lengths: Sequence[int],
    weight: Sequence[int],
    steps: Sequence[_Steps],
) -> int:
    """How many (position, tap) hit in all, over the spatial axes, which are the last ones."""
    return math.prod(
        _hits(positions[axis], lengths[axis], weight[axis], steps[axis])
        for axis in range(-len(steps), 0)
    )


def _hits(positions: int, length: int, kernel: int, steps: _Steps) -> int:
    """How many (position, tap) have 0 <= position * stride - padding + tap * dilation < length."""
    total = 0
    for tap in range(kernel):
        offset = tap * steps.dilation - steps.padding
        # smallest position with position * stride + offset >= 0
        first = max(0, -(offset // steps.stride))
        last = min(positions - 1, (length - 1 - offset) // steps.stride)
        total += max(0, last - first + 1)
    return total


def _recurrent_work(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    """Every weight matrix once per element of the sequence.

    Biases and states, which are 1- and 3-dimensional, do not count.
    """
    sequence = inputs[0]
    steps = math.prod(sequence.shape[:-1])
    return Work(conv_fma=steps * sum(spec.numel for spec in inputs[1:] if len(spec.shape) == 2))


def _forward_rows(rank: int) -> list[Operator]:
    return [
        Operator(
            f"aten.conv{rank}d.{overload}",
            "conv",
            _convolution_work,
            _FORWARD,
            Convolution(rank),
            is_fresh=True,
        )
        for overload in ("default", "padding")
    ]


def _transposed_row(rank: int, overload: str) -> Operator:
    return Operator(
        f"aten.conv_transpose{rank}d.{overload}",
        "conv_transpose",
        _transposed_work,
        _TRANSPOSED,
        Convolution(rank, is_transposed=True),
        is_fresh=True,
    )


ROWS = (
    *_forward_rows(1),
    *_forward_rows(2),
    *_forward_rows(3),
    _transposed_row(1, "default"),
    _transposed_row(2, "input"),
    _transposed_row(3, "input"),
    *(
        Operator(f"aten.{name}", "recurrent", _recurrent_work)
        for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    ),
)
