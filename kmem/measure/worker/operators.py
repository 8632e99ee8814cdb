"""The operators that one call dispatches.

Runs inside the worker, from a copy of this file. Whether an operator may be there is for the judge
to say.
"""

from torch.utils._python_dispatch import TorchDispatchMode


class OperatorLog(TorchDispatchMode):
    """Names of the operators that reach the dispatcher, with how often: {"aten.mm.default": 1}."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204 - torch's own signature
        self.counts[str(func)] = self.counts.get(str(func), 0) + 1
        return func(*args, **(kwargs or {}))
