"""Lets a kernel believe that it runs on a GPU, in a process that only interprets or compiles it.

Whoever asks where it is then takes the way that a GPU would take, and that is the one to be judged.
Used from a copy too (torch and the standard library only).
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode


def imitate_cuda(properties: Mapping[str, object]) -> None:
    """Answer what kernels ask torch.cuda as it would with this GPU; not undone.

    Args:
        properties: as torch.cuda.get_device_properties has them.
    """
    answer = SimpleNamespace(**properties)
    capability = answer.major, answer.minor
    imitated = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda device=None: answer,
        "get_device_capability": lambda device=None: capability,
        "get_device_name": lambda device=None: answer.name,
        "synchronize": lambda device=None: None,
        "device": lambda device=None: nullcontext(),
        "device_of": lambda tensor=None: nullcontext(),
        "set_device": lambda device=None: None,
        "empty_cache": lambda: None,
        "is_bf16_supported": lambda *args: True,
        "mem_get_info": lambda device=None: (answer.total_memory, answer.total_memory),
        "current_stream": lambda device=None: SimpleNamespace(
            cuda_stream=0, synchronize=lambda: None
        ),
        "is_current_stream_capturing": lambda: False,
    }
    for name, function in imitated.items():
        setattr(torch.cuda, name, function)
    torch.version.cuda = torch.version.cuda or _CUDA
    torch.backends.cuda.is_built = lambda: True


#: Triton compiles for pointers that divide by this, or for any.
_ALIGNED_BYTES = 16
#: What torch built for a GPU says, where the one that is there was not.
_CUDA = "12.8"


class ImitatedDevice(TorchFunctionMode):
    """Lets tensors say that they lie on a GPU, and be made and moved there, where there is none.

    Args:
        device: where they lie.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = torch.device(device)

    # torch's own signature
    def __torch_function__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        kwargs = kwargs or {}
        if func in _SAID:
            return _SAID[func]
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.data_ptr and self._device.type == "meta":
            # a view's is its offset, which would pass for a place in memory; how it divides stays
            return func(*args) % _ALIGNED_BYTES
        if func in _OTHERWISE:
            return _OTHERWISE[func](*args, **kwargs)
        return func(
            *[self._real(value) for value in args],
            **{name: self._real(value) for name, value in kwargs.items()},
        )

    def _real(self, value: object) -> object:
        is_name = type(value) is str and (value == "cuda" or value.startswith("cuda:"))
        is_device = type(value) is torch.device and value.type == "cuda"
        return self._device if is_name or is_device else value


def _convolve(  # noqa: PLR0913 - torch's own signature
    x: torch.Tensor,
    weight: torch.Tensor,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *settings: object,
    **named: object,
) -> torch.Tensor:
    """What torch.cudnn_convolution computes, which exists on a GPU alone."""
    outside = [0] * len(stride)
    return _sum_in_single(x, weight, None, stride, padding, dilation, False, outside, groups)


def _convolve_transposed(  # noqa: PLR0913 - torch's own signature
    x: torch.Tensor,
    weight: torch.Tensor,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *settings: object,
    **named: object,
) -> torch.Tensor:
    """What torch.cudnn_convolution_transpose computes, which exists on a GPU alone."""
    window = stride, padding, dilation
    return _sum_in_single(x, weight, None, *window, True, output_padding, groups)


def _sum_in_single(x: torch.Tensor, weight: torch.Tensor, *rest: object) -> torch.Tensor:
    """A convolution whose sums are rounded once, as on a GPU; of meta tensors as it is."""
    if x.device.type != "cpu" or x.dtype not in (torch.float16, torch.bfloat16):
        return torch.convolution(x, weight, *rest)
    return torch.convolution(x.float(), weight.float(), *rest).to(x.dtype)


def _one_hot(input: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """What a GPU makes of one_hot: the CPU looks at values first, meta tensors compare.

    Source: torch 2.13, aten/src/ATen/native/Onehot.cpp.
    """
    if num_classes == -1:
        num_classes = int(input.max()) + 1
    zeros = torch.zeros((*input.shape, num_classes), dtype=input.dtype, device=input.device)
    return zeros.scatter_(-1, input.unsqueeze(-1), 1)


#: What a GPU has alone, or does otherwise.
_OTHERWISE = {
    torch.cudnn_convolution: _convolve,
    torch.cudnn_convolution_transpose: _convolve_transposed,
    torch.nn.functional.one_hot: _one_hot,
    torch.ops.aten.one_hot: _one_hot,
    torch.ops.aten.one_hot.default: _one_hot,
}
#: What tensors say about where they are.
_SAID = {
    torch.Tensor.device.__get__: torch.device("cuda", 0),
    torch.Tensor.is_cuda.__get__: True,
    torch.Tensor.is_cpu.__get__: False,
    torch.Tensor.is_meta.__get__: False,
    torch.Tensor.get_device: 0,
}
