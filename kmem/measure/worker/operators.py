"""What one call dispatches, and what of a tensor's values it reads into Python.

Runs inside the worker, from a copy of this file, and is imported before any candidate. Whether any
of it may be there is for the judge to say.
"""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from lineage import Lineage
    from results import Result

#: What the lineage asks a tensor is no reading of the call's.
_untold = torch._C.DisableTorchFunction
#: What a mask counts as that torch drew given a constant: nobody else can draw from its generator,
#: and no value of the call's is touched.
DRAWN_MASK = "drawn.mask"
_MASKING = "aten.native_dropout.default"
BodyOf = Callable[[object], Callable[..., object] | None]
#: Methods that hand a tensor's values to Python or NumPy, which no dispatcher sees.
_READINGS = frozenset(
    """
    numpy tolist item __array__ __array_wrap__ __dlpack__ __repr__ __str__ __format__ __float__
    __int__ __complex__ __bool__ __index__ __reduce_ex__ __reduce__ storage untyped_storage apply_
    map_ map2_
    """.split()  # noqa: SIM905 - so many quoted words read worse
)


class OperatorLog:
    """A context in which `counts` fills: what happened, with how often: {"aten.mm.default": 1}.

    Beside operators there are readings of values, "Tensor.numpy", and threads that were started,
    "thread.start", whose operators nobody here sees.

    Args:
        in_launch: says whether Triton's interpreter is at work, which reads tensors as well.
        lineage: told of every operator outside of launches.
        body_of: what an operator of the file's own is made of (kmem/host/own_operators.py).
    """

    def __init__(self, in_launch: Callable[[], bool], lineage: "Lineage", body_of: BodyOf) -> None:
        self.counts: dict[str, int] = {}
        self.lineage = lineage
        self.body_of = body_of
        self._in_launch = in_launch
        self._stack = ExitStack()

    def __enter__(self) -> "OperatorLog":
        self._stack.enter_context(_Readings(self))
        self._stack.enter_context(_Dispatches(self))
        start = threading._start_new_thread

        def start_seen(*args, **kwargs):  # noqa: ANN002, ANN003, ANN202 - a pass-through
            self.count("thread.start")
            return start(*args, **kwargs)

        threading._start_new_thread = start_seen
        self._stack.callback(setattr, threading, "_start_new_thread", start)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def observe(self, call: Callable[[], "Result"]) -> tuple["Result", list[int]]:
        """What a call returns, with the origins of each output; `counts` fills meanwhile."""
        leaves: tuple[object, ...] = ()
        self.lineage.begin()
        try:
            with self:
                result = call()
            leaves = result.leaves
        finally:
            origins = self.lineage.end(leaves)
        return result, origins

    def ignore(self, call: Callable[[], "Result"]) -> tuple["Result", list[int]]:
        """What a call returns that is not observed."""
        return call(), []

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def name_of(self, func: object, args: object, kwargs: object) -> str:
        """What an operator of the call's counts as."""
        if str(func) == _MASKING:
            with _untold():
                if self.lineage.are_filled([args, kwargs]):
                    return DRAWN_MASK
        return str(func)

    def follow(self, func: object, args: object, kwargs: object, result: object) -> None:
        """Tell the lineage of an operator, if it is the call's own."""
        if not self._in_launch():
            with _untold():
                self.lineage.note_operator(func, args, kwargs, result)

    def count_reading(self, name: str) -> None:
        """Count a reading of values by the call itself."""
        if name in _READINGS and not self._in_launch():
            self.count(f"Tensor.{name}")


class _Dispatches(TorchDispatchMode):
    def __init__(self, log: OperatorLog) -> None:
        super().__init__()
        self._log = log

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its compiler, which takes a second, and nothing here compiles."""
        return False

    # torch's own signature
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        if (body := self._log.body_of(func)) is not None:
            with self:  # what it is made of counts, not what it is called
                return body(*args, **(kwargs or {}))
        self._log.count(self._log.name_of(func, args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        self._log.follow(func, args, kwargs or {}, result)
        return result


class _Readings(TorchFunctionMode):
    def __init__(self, log: OperatorLog) -> None:
        super().__init__()
        self._log = log

    # torch's own signature
    def __torch_function__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        self._log.count_reading(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))
