"""Fake tensors, on which problems are checked and traced without memory or computing."""

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kmem.problem.tracing.fake_recurrences import recurrences_by_one_step

#: Where torch logs tracebacks and graphs when fake execution or export fails.
_NOISY_LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")


@contextmanager
def quiet_fake_tensors() -> Iterator[None]:
    """Hide what torch prints when fake tensors fail; the exception carries the reason.

    torch prints tracebacks on its own logger, and export's warnings. Recurrent operators take one
    step for all. Where there is a GPU, a GPU that the code names counts as the CPU (`OnTheCpu`);
    where there is none, it cannot be had, and says so.
    """
    loggers = [logging.getLogger(name) for name in _NOISY_LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        # export prints the graph it gave up on, straight to the streams
        with (
            warnings.catch_warnings(),
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
            recurrences_by_one_step(),
            OnTheCpu() if torch.cuda.is_available() else nullcontext(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


class OnTheCpu(TorchFunctionMode):
    """Has every tensor made on the CPU, whatever device the code names: `device="cuda"`, `.cuda()`.

    What an author puts on the GPU would not go together with what the contract has moved there,
    parameters and inputs made without a device, and a graph tells of no device.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to and any(map(_names_gpu, (*args[1:2], kwargs.get("device")))):
            return _cast(*args, **kwargs)
        if _names_gpu(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def _cast(
    tensor: torch.Tensor,
    device: Any = None,
    dtype: torch.dtype | None = None,
    non_blocking: bool = False,
    copy: bool = False,
    **memory_format: Any,
) -> torch.Tensor:
    """What is left of `tensor.to(device, ...)` where the device does not count."""
    if dtype is None and not copy and not memory_format:
        return tensor
    return tensor.to(dtype or tensor.dtype, non_blocking, copy, **memory_format)


def _names_gpu(device: Any) -> bool:
    """Whether a device, or a string that names one, is a GPU."""
    return isinstance(device, str | torch.device) and str(device).partition(":")[0] == "cuda"


def cast_floating(value: object, dtype: torch.dtype) -> object:
    """A floating tensor in another dtype; anything else as it is."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(dtype)
    return value


def cast_fake_module(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """What `model.to(dtype)` does, in place.

    `to` swaps tensors, which fake ones refuse, for their mode holds weak references to them.
    """
    parameters = list(model.parameters())
    casts = {
        id(old): torch.nn.Parameter(cast_floating(old.detach(), dtype), old.requires_grad)
        for old in parameters
    }  # tied ones stay tied
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(module, name, casts[id(parameter)])
        for name, buffer in list(module.named_buffers(recurse=False, remove_duplicate=False)):
            setattr(module, name, cast_floating(buffer, dtype))
    return model


@contextmanager
def casting_constructors() -> Iterator[None]:
    """Let constructors cast their own modules on fake tensors: `self.to(torch.bfloat16)`.

    What torch does then, swapping tensors in place, fake ones refuse (see `cast_fake_module`).
    """
    before = torch.nn.Module._apply
    torch.nn.Module._apply = _apply_anew  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module._apply = before  # type: ignore[method-assign]


def _apply_anew(
    self: torch.nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> torch.nn.Module:
    """`Module._apply` that makes new parameters; tied ones stay tied."""
    made: dict[int, torch.nn.Parameter] = {}
    for module in self.modules() if recurse else (self,):
        for name, old in module._parameters.items():
            if old is not None:
                if id(old) not in made:
                    with torch.no_grad():
                        new = function(old.detach())
                    made[id(old)] = torch.nn.Parameter(new, old.requires_grad)
                module._parameters[name] = made[id(old)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = function(buffer)
    return self
