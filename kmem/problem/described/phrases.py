"""Operators in words: what people call them, and how torch writes them.

Functions of one tensor are those of kmem's own table of operators; what has parameters, a dimension
or a second tensor has a row here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache

import torch

from kmem.problem.operators import pointwise


class Kind(Enum):
    """What an operator wants beside the tensor that it is applied to."""

    POINTWISE = auto()
    ROW = auto()  # a dimension
    NORM = auto()  # a weight, of the size of the last dimension
    LINEAR = auto()  # a weight: the next tensor that was said, else one of as many features
    PRODUCT = auto()  # the next tensor that was said
    LOSS = auto()  # a second tensor like the first
    ATTENTION = auto()  # keys and values like the first


@dataclass(frozen=True, slots=True)
class Phrase:
    """An operator as torch wants it: x stands for its input, and dim, w, b, y for the rest."""

    kind: Kind
    code: str


_ROWS = {
    "softmax": "torch.softmax({x}, dim={dim})",
    "log softmax": "torch.log_softmax({x}, dim={dim})",
    "logsumexp": "torch.logsumexp({x}, dim={dim})",
    "sum": "{x}.sum(dim={dim})",
    "mean": "{x}.mean(dim={dim})",
    "average": "{x}.mean(dim={dim})",
    "variance": "{x}.var(dim={dim})",
    "standard deviation": "{x}.std(dim={dim})",
    "maximum": "{x}.amax(dim={dim})",
    "max": "{x}.amax(dim={dim})",
    "minimum": "{x}.amin(dim={dim})",
    "min": "{x}.amin(dim={dim})",
    "argmax": "{x}.argmax(dim={dim})",
    "argmin": "{x}.argmin(dim={dim})",
    "cumsum": "torch.cumsum({x}, dim={dim})",
    "cumulative sum": "torch.cumsum({x}, dim={dim})",
    "prefix sum": "torch.cumsum({x}, dim={dim})",
    "cumprod": "torch.cumprod({x}, dim={dim})",
    "cumulative product": "torch.cumprod({x}, dim={dim})",
    "l2 normalize": "F.normalize({x}, dim={dim})",
    "l2 normalization": "F.normalize({x}, dim={dim})",
}
_OTHERS = {
    "rms norm": Phrase(Kind.NORM, "F.rms_norm({x}, ({n},), self.{w})"),
    "layer norm": Phrase(Kind.NORM, "F.layer_norm({x}, ({n},), self.{w}, self.{b})"),
    "linear": Phrase(Kind.LINEAR, "F.linear({x}, self.{w})"),
    "matmul": Phrase(Kind.PRODUCT, "torch.matmul({x}, {y})"),
    "matrix product": Phrase(Kind.PRODUCT, "torch.matmul({x}, {y})"),
    "gemm": Phrase(Kind.PRODUCT, "torch.matmul({x}, {y})"),
    "bmm": Phrase(Kind.PRODUCT, "torch.bmm({x}, {y})"),
    "mse loss": Phrase(Kind.LOSS, "F.mse_loss({x}, {y})"),
    "l1 loss": Phrase(Kind.LOSS, "F.l1_loss({x}, {y})"),
    "huber loss": Phrase(Kind.LOSS, "F.huber_loss({x}, {y})"),
    "smooth l1 loss": Phrase(Kind.LOSS, "F.smooth_l1_loss({x}, {y})"),
    "attention": Phrase(
        Kind.ATTENTION, "F.scaled_dot_product_attention({x}, {y}, {z}, is_causal={causal})"
    ),
}
_SPELLINGS: Mapping[str, str] = {
    "rmsnorm": "rms norm",
    "layernorm": "layer norm",
    "layer normalization": "layer norm",
    "rms normalization": "rms norm",
    "logsoftmax": "log softmax",
    "log_softmax": "log softmax",
    "mse": "mse loss",
    "matrix multiplication": "matmul",
    "matrix multiply": "matmul",
    "batched matmul": "bmm",
    "swish": "silu",
    "linear layer": "linear",
    "scaled dot product attention": "attention",
    "self attention": "attention",
    "sdpa": "attention",
    "square root": "sqrt",
    "absolute value": "abs",
    "exponential": "exp",
    "logarithm": "log",
    "negation": "neg",
}


#: Without their numbers these say nothing, or are not about numbers.
_BARE = ("clamp", "clip", "bitwise_not", "logical_not")


@cache
def known_phrases() -> Mapping[str, Phrase]:
    """Every operator by what it may be called, in lower case."""
    found = {name: Phrase(Kind.ROW, code) for name, code in _ROWS.items()} | dict(_OTHERS)
    for row in pointwise.ROWS:
        name = row.target.split(".")[1]
        if name.endswith("_") or name in _BARE:
            continue
        home = next(
            (
                prefix
                for prefix, module in (("F", torch.nn.functional), ("torch", torch))
                if hasattr(module, name)
            ),
            None,
        )
        if home is not None and list(row.parameters)[:1] == ["x"] and _takes_one(row.parameters):
            found[name.replace("_", " ")] = Phrase(Kind.POINTWISE, f"{home}.{name}({{x}})")
    for spelling, name in _SPELLINGS.items():
        if name in found:
            found[spelling] = found[name]
    return found


def _takes_one(parameters: Mapping[str, object]) -> bool:
    """Whether all but the first have a value of their own."""
    return all(not repr(value).count("_Required") for value in list(parameters.values())[1:])
