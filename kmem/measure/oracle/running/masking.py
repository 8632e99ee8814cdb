"""Attention in which what the mask hides is not read.

PyTorch's formula for float64 adds a mask of -inf to the scores and multiplies hidden values by 0: a
NaN or an infinity in a key or value makes every row NaN, also those that it is hidden from. The
kernels that eager runs in fp32 and below skip whole blocks that a causal mask hides, so that eager
is finite there (the CPU's flash attention with 2,048 rows and a NaN in the 1,501st is NaN from the
1,025th on). The right answer is what the mask means: a row all of whose keys are finite is finite.

Covered: torch's operator, called by a module or by `nn.MultiheadAttention`. Not covered: the fused
path of `nn.TransformerEncoderLayer`, and attention that is written out, whose formula is the
module's own.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

#: Of torch's operator, in the order of its arguments.
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


_ATTENTION = functional.scaled_dot_product_attention


class MaskedAttention(TorchFunctionMode):
    """Under it a masked attention whose formula is not finite is computed from what is seen.

    In this thread alone. A mode is off within other functions of torch that see it, so torch's name
    of the operator stands for one of its own meanwhile.
    """

    def __enter__(self) -> "MaskedAttention":
        owner = threading.get_ident()

        def attend(*args: Any, **kwargs: Any) -> torch.Tensor:
            result = _ATTENTION(*args, **kwargs)
            if threading.get_ident() != owner:
                return result
            return _as_masked(result, {**dict(zip(_NAMES, args, strict=False)), **kwargs})

        functional.scaled_dot_product_attention = attend
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        functional.scaled_dot_product_attention = _ATTENTION
        super().__exit__(*raised)

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        result = function(*args, **given)
        if function is not _ATTENTION:
            return result
        return _as_masked(result, {**dict(zip(_NAMES, args, strict=False)), **given})


def _as_masked(result: torch.Tensor, given: Mapping[str, Any]) -> torch.Tensor:
    """`result`, but rows that see finite values alone as they are without the others.

    Shapes: query (..., L, E), key (..., S, E), value (..., S, V), attn_mask broadcast to (..., L,
    S); under `enable_gqa` keys and values have fewer heads, in dimension -3.
    """
    attn_mask, is_causal = given.get("attn_mask"), given.get("is_causal", False)
    is_masked = is_causal or attn_mask is not None
    if given.get("dropout_p") or not is_masked or bool(torch.isfinite(result).all()):
        return result
    query, key = given["query"], given["key"]
    value, scale = given["value"], given.get("scale")
    if given.get("enable_gqa"):
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    lead = result.shape[:-2]
    rows, columns = query.shape[-2], key.shape[-2]
    hidden = torch.zeros((rows, columns), dtype=torch.bool, device=query.device)
    if is_causal:
        hidden = torch.ones_like(hidden).triu(1)
    added = torch.zeros((), dtype=query.dtype, device=query.device)
    if attn_mask is not None:
        is_hidden = ~attn_mask if attn_mask.dtype is torch.bool else attn_mask == -math.inf
        hidden = hidden | is_hidden
        added = added if attn_mask.dtype is torch.bool else attn_mask
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    every = (
        query.expand(*lead, *query.shape[-2:]),
        key.expand(*lead, *key.shape[-2:]),
        value.expand(*lead, *value.shape[-2:]),
        hidden.expand(*lead, rows, columns),
        added.expand(*lead, rows, columns),
    )
    found = result.clone()
    bad = ~torch.isfinite(result).flatten(-2).all(-1)
    for place in bad.nonzero().tolist():  # one matrix of scores at a time
        at = tuple(place)
        found[at] = _seen(result[at], *(each[at] for each in every), factor=factor)
    return found


def _seen(
    formula: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    hidden: torch.Tensor,
    bias: torch.Tensor,
    *,
    factor: float,
) -> torch.Tensor:
    """One head: what each row makes of the keys that it sees, 0 where it sees none.

    Where one that it sees is not finite, it is what the formula has.
    """
    scores = (query @ key.mT * factor + bias).masked_fill(hidden, -math.inf)
    weights = torch.softmax(scores, -1).masked_fill(hidden.all(-1, keepdim=True), 0)
    finite = torch.isfinite(value)
    answer = weights @ value.where(finite, torch.zeros_like(value))
    sees_others = (~hidden).to(value.dtype) @ (~finite).to(value.dtype) > 0
    return torch.where(sees_others, formula, answer)
