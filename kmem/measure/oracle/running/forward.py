"""What surrounds one forward of the reference's module.

In order: room on the device, flags, float64, and what is made of the tensors that go in and come
out.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from kmem.errors import NO_ROOM, DeviceMemoryError, KmemError, ProblemError, first_line
from kmem.measure.oracle.correctness import ROUNDING
from kmem.measure.oracle.running.masking import MaskedAttention
from kmem.measure.oracle.running.widening import Widening
from kmem.measure.worker.tensors import span_of, where_once
from kmem.records import Precision, Problem

#: Half the distance between neighbours in TF32, which has ten bits of mantissa.
_TF32_ROUNDING = 2.0**-11
#: Torch's random numbers, default type and flags belong to the whole process, and baselines get
#: their inputs in a thread of their own: whoever draws or runs the module holds this meanwhile.
#: Source: level 1 of KernelBench on H100s, 2026-11-28: two of 1,080 candidates were told that they
#: had written to inputs, which had been drawn beside a baseline's.
PROCESS_STATE = threading.RLock()
#: What a module raises for sizes and values that it has no answer for.
UNDEFINED = (RuntimeError, ValueError, IndexError, AssertionError)


@contextmanager
def room_for(problem: Problem) -> Iterator[None]:
    """Say in one line that there is too little device memory for what the judge itself does.

    Raises DeviceMemoryError.
    """
    try:
        yield
    except torch.OutOfMemoryError as ex:
        torch.cuda.empty_cache()
        raise DeviceMemoryError(
            f"{problem.path} {NO_ROOM} to be judged: "
            f"{(str(ex).strip() or 'out of memory').splitlines()[0]}; "
            "make it smaller, or stop what else runs there"
        ) from ex


@contextmanager
def contract_flags(precision: Precision) -> Iterator[None]:
    """PyTorch's default flags, with TF32 matmul under a TF32 contract, in one thread at a time.

    The flags that were found are put back.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    with PROCESS_STATE:
        found = matmul.allow_tf32, cudnn.allow_tf32
        matmul.allow_tf32, cudnn.allow_tf32 = precision is Precision.TF32, True
        try:
            yield
        finally:
            matmul.allow_tf32, cudnn.allow_tf32 = found


@contextmanager
def in_double(problem: Problem) -> Iterator[None]:
    """Run the module's forward for the oracle: what it makes or casts itself is float64 too.

    In one thread at a time.

    Raises ProblemError: if the forward raises something that is no answer to values or sizes, as a
    Triton kernel of the module does that cannot be compiled for float64.
    """
    with PROCESS_STATE:
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with Widening(), MaskedAttention():
                yield
        except (*UNDEFINED, KmemError):
            raise
        except Exception as ex:
            raise ProblemError(
                f"{problem.path}: forward does not run in float64, in which the right answer is "
                f"computed: {first_line(ex)}; "
                "write the module with PyTorch's operators"
            ) from ex
        finally:
            torch.set_default_dtype(default)


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed torch's random numbers on the CPU and on this device.

    torch.manual_seed takes a millisecond: for each kind of device that is not there it notes where
    it was called.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)


def leaves_of(result: object) -> tuple[tuple[torch.Tensor, ...], bool]:
    """Output tensors in order, and whether they came in a list or tuple.

    Raises ProblemError for anything else.
    """
    leaves = tuple(result) if isinstance(result, list | tuple) else (result,)
    if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise ProblemError(
            f"The module returns {type(result).__name__}; kmem judges a tensor or a flat list or "
            f"tuple of tensors"
        )
    return leaves, isinstance(result, list | tuple)


def widen(value: torch.Tensor) -> torch.Tensor:
    """In float64 or complex128, if it is floating or complex."""
    if value.is_complex():
        return value.to(torch.complex128)
    return value.double() if value.is_floating_point() else value


def copy_of_view(value: torch.Tensor) -> torch.Tensor:
    """The same values in memory of their own, expanded where they were."""
    return value[where_once(value)].clone().expand(value.shape)


def layouts_of(outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Shapes, strides and dtypes: the same tensors on the meta device."""
    return tuple(
        torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        for value in outputs
    )


def tensor_bytes(values: Sequence[object]) -> int:
    """The bytes of all tensors among the values."""
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))


def memory_bytes(values: Sequence[object]) -> int:
    """The bytes of the memory that tensors reach over: with gaps, and what is expanded once."""
    return sum(
        span_of(value.shape, value.stride()) * value.element_size()
        for value in values
        if isinstance(value, torch.Tensor)
    )


def round_once(
    values: Sequence[object], generator: torch.Generator, *, to_tf32: bool = False
) -> list[object]:
    """Floating tensors in float64, each element moved by half the distance to its neighbour.

    Up or down at random. Other values are as they are.

    Args:
        to_tf32: in TF32, of a float32 tensor.
    """

    def move(value: torch.Tensor) -> torch.Tensor:
        coins = torch.empty(value.shape, device=value.device, dtype=torch.float64).bernoulli_(
            0.5, generator=generator
        )
        is_cut = to_tf32 and value.dtype is torch.float32
        rounding = _TF32_ROUNDING if is_cut else ROUNDING[value.dtype]
        return value.double() * (1 + coins.mul_(2).sub_(1) * rounding)

    return [
        move(value) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for value in values
    ]
