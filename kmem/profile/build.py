"""Build a candidate's model from its file, on a device or on meta; for the processes that run one.

Both processes that run a forward use this: the compile process (compile/worker.py) and the program
that a profiler watches (harness.py).
"""

from types import ModuleType

import torch

from kmem.records import Precision


def build_model(
    candidate: ModuleType, problem: ModuleType, precision: Precision, device: str
) -> torch.nn.Module:
    """A candidate's ModelNew with the problem's init inputs, in the contract's precision."""
    init_inputs = list(problem.get_init_inputs()) if hasattr(problem, "get_init_inputs") else []
    with torch.device(device):
        model = candidate.ModelNew(*init_inputs).to(device)
    return model.to(torch.bfloat16) if precision is Precision.BF16 else model
