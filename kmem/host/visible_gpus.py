"""The GPUs that this process sees, by the names that a process of its own would see them under."""

import os

from kmem.errors import TargetError


def visible_gpus(count: int | None) -> list[str]:
    """What CUDA_VISIBLE_DEVICES calls each of `count` GPUs that this process sees; None: all.

    Raises:
        TargetError: if there are fewer.
    """
    import torch  # counting them needs its driver calls; `kmem bench --help` does not

    if count is None:
        count = torch.cuda.device_count()
    if count > (found := torch.cuda.device_count()):
        raise TargetError(f"There are {found} GPUs here, not {count}; lower --gpus or leave it out")
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",")[:count] if named else [str(index) for index in range(count)]
