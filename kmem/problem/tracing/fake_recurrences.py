"""Recurrent operators on fake tensors: their shapes from a single step.

torch runs LSTM, GRU and RNN on fake tensors step after step, a minute for 512 of them in six layers
and two directions. One step has all that matters: every size is held to every other.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_OPERATORS = tuple(
    getattr(torch.ops.aten, name).input for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
)
_KEYS = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)
#: Where the operators have `batch_first` among their arguments.
_BATCH_FIRST = 8


@contextmanager
def recurrences_by_one_step() -> Iterator[None]:
    """Run recurrent operators on fake tensors by one step of theirs."""
    before = [
        (operator, key, operator.py_kernels.get(key)) for operator in _OPERATORS for key in _KEYS
    ]
    known = [entry for entry in before if entry[2] is not None]
    try:
        for operator, key, function in known:
            _install(operator, key, _by_one_step(function))
        yield
    finally:
        for operator, key, function in known:
            _install(operator, key, function)


def _install(operator: Any, key: Any, function: Callable[..., Any]) -> None:
    operator.py_kernels[key] = function
    operator._dispatch_cache.clear()


def _by_one_step(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        given = args[0]
        if not isinstance(given, FakeTensor) or len(args) <= _BATCH_FIRST:
            return function(*args)
        is_batch_first = args[_BATCH_FIRST]
        steps = given.shape[1 if is_batch_first else 0]
        one, *states = function(given.narrow(1 if is_batch_first else 0, 0, 1), *args[1:])
        batch = one.shape[0 if is_batch_first else 1]
        made = one.new_empty((steps, batch, one.shape[2]))
        begun = args[1] if isinstance(args[1], (list, tuple)) else (args[1],)
        # torch 2.11 gives the states of an LSTM a dimension of one too many here
        states = [left.reshape(first.shape) for left, first in zip(states, begun, strict=True)]
        return (made.transpose(0, 1) if is_batch_first else made, *states)

    return run
