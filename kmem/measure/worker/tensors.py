"""Tensors that judge and worker both see, and plain values as JSON.

Used on both sides (the worker runs from a copy of this file; torch and the standard library only).
On the CPU a tensor lies in a shared-memory file, on a GPU it is opened by a CUDA IPC handle. Where
CUDA IPC is refused, a CUDA tensor travels through a shared-memory file and the worker keeps a copy
on the device: `fetch` and `publish` move the values.

Covered: strided tensors and plain Python values. Not covered: sparse, nested and quantised tensors.
"""

import base64
import mmap
import os
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

#: Threads of a judge make tensors beside one another, and torch ends the process where a pool is
#: given back while another thread allocates to one. Source: torch 2.11, CUDACachingAllocator.cpp,
#: synchronize_and_free_events; five of level 3's models on H200s, 2026-11-28.
_POOLS = threading.Lock()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a judge makes the tensors that it shares.

    `directory` is for shared files (in a memory file system if there is one). `ipc` says whether
    CUDA IPC works here; it means nothing on the CPU.
    """

    device: torch.device
    directory: Path
    ipc: bool


@dataclass
class SharedTensor:
    """A tensor that both processes see.

    `value` is what a model gets, `host` the shared CPU copy behind it, None if `value` is itself
    shared. `descriptor` is what `open_shared` in the other process needs.
    """

    value: torch.Tensor
    host: torch.Tensor | None
    descriptor: dict

    def fetch(self) -> None:
        """Bring what the other process wrote into `value`."""
        if self.host is not None:
            self.value.copy_(self.host)

    def publish(self) -> None:
        """Let the other process see what `value` holds now."""
        if self.host is not None:
            self.host.copy_(self.value)
        elif self.value.is_cuda:
            torch.cuda.synchronize(self.value.device)


def where_once(value: torch.Tensor) -> tuple[slice, ...]:
    """An index that has each element of a tensor once, and so may be written through."""
    return tuple(
        slice(0, 1) if step == 0 and size > 1 else slice(None)
        for size, step in zip(value.shape, value.stride(), strict=True)
    )


def span_of(shape: Sequence[int], stride: Sequence[int], offset: int = 0) -> int:
    """Elements of the memory that a tensor reaches over, gaps and what lies before it included."""
    if 0 in shape:
        return offset
    return offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def empty_at(
    shape: Sequence[int],
    stride: Sequence[int],
    offset: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> torch.Tensor:
    """Memory of its own, uninitialised, of which a tensor starts some elements after the first."""
    base = torch.empty(span_of(shape, stride, offset), dtype=dtype, device=device)
    return base.as_strided(shape, stride, offset)


def allocate_shared(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    placement: Placement,
    *,
    offset: int = 0,
) -> SharedTensor:
    """A new shared tensor of uninitialised values; the judge's side.

    Args:
        stride: in elements.
        offset: elements before the first one, for misaligned views.

    Raises:
        OSError: if there is no room for the file.
    """
    device = placement.device
    span = max(1, span_of(shape, stride, offset))
    layout = {
        "shape": list(shape),
        "stride": list(stride),
        "dtype": str(dtype).removeprefix("torch."),
        "offset": offset,
        "device": str(device),
    }
    if device.type == "cuda" and placement.ipc:
        base = _empty_apart(span, dtype, device)
        value = base.as_strided(shape, stride, offset)
        return SharedTensor(value, None, {**layout, "via": "cuda_ipc", "handle": export_cuda(base)})
    nbytes = span * torch.empty(0, dtype=dtype).element_size()
    path = os.path.join(placement.directory, f"kmem-{uuid.uuid4().hex}")
    reserve_file(path, nbytes)
    storage = torch.UntypedStorage.from_file(path, shared=True, nbytes=nbytes)
    host = torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride)
    descriptor = {**layout, "via": "file", "path": path, "nbytes": nbytes}
    if device.type == "cpu":
        return SharedTensor(host, None, descriptor)
    return SharedTensor(empty_at(shape, stride, offset, dtype, device), host, descriptor)


def _empty_apart(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Device memory in an allocation of its own.

    An IPC handle opens the whole allocation that a tensor lies in to the other process, whose
    kernels could look beyond the tensor: the judge's answers must not lie there.

    Source: CUDA Runtime API, cudaIpcGetMemHandle ("sub-allocations"); torch.cuda.MemPool.
    """
    with _POOLS:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool, device=device):
            found = torch.empty(count, dtype=dtype, device=device)
        del pool  # while no other thread allocates to one
    return found


def reserve_file(path: str, nbytes: int) -> None:
    """Make a file whose space is really there.

    Writing to a mapped hole of a full file system would be a SIGBUS. Raises OSError.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def open_shared(descriptor: dict) -> SharedTensor:
    """The worker's side of `allocate_shared`; the file of one that has a file is closed here."""
    dtype = getattr(torch, descriptor["dtype"])
    shape = tuple(descriptor["shape"])
    stride = tuple(descriptor["stride"])
    offset = descriptor["offset"]
    if descriptor["via"] == "cuda_ipc":
        storage = import_cuda(descriptor["handle"])
        value = torch.empty(0, dtype=dtype, device=storage.device).set_(
            storage, offset, shape, stride
        )
        return SharedTensor(value, None, descriptor)
    storage = _map_file(descriptor["file"], descriptor["nbytes"])
    host = torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride)
    if descriptor["device"] == "cpu":
        return SharedTensor(host, None, descriptor)
    value = empty_at(shape, stride, offset, dtype, descriptor["device"])
    return SharedTensor(value, host, descriptor)


def _map_file(file: int, nbytes: int) -> torch.UntypedStorage:
    """An open file as shared memory; it is closed, which leaves the memory."""
    try:
        if not nbytes:  # nothing can be mapped
            return torch.UntypedStorage(0)
        return torch.frombuffer(mmap.mmap(file, nbytes), dtype=torch.uint8).untyped_storage()
    finally:
        os.close(file)


def export_cuda(tensor: torch.Tensor) -> list:
    """The IPC handle of a CUDA tensor's storage as JSON values.

    Source: torch.multiprocessing.reductions.reduce_tensor.
    """
    return [
        base64.b64encode(part).decode() if isinstance(part, bytes) else part
        for part in tensor.untyped_storage()._share_cuda_()
    ]


def import_cuda(handle: list) -> torch.UntypedStorage:
    """The storage behind an IPC handle.

    Source: torch.multiprocessing.reductions.rebuild_cuda_tensor.
    """
    torch.cuda.init()
    parts = [base64.b64decode(part) if isinstance(part, str) else part for part in handle]
    return torch.UntypedStorage._new_shared_cuda(*parts)


def encode_value(value: object) -> object:
    """A constructor argument or scalar input as JSON, tuples and dtypes tagged.

    Raises TypeError: for anything else.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if type(value) in (tuple, torch.Size):  # the worker would have no names of another
        return {"tuple": [encode_value(item) for item in value]}
    if isinstance(value, list):
        return {"list": [encode_value(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[encode_value(key), encode_value(item)] for key, item in value.items()]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    raise TypeError(f"a {type(value).__name__} cannot be passed to a worker")


def decode_value(value: object) -> object:
    """The inverse of `encode_value`."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "float":
        return float.fromhex(content)
    if kind == "dtype":
        return getattr(torch, content)
    if kind == "dict":
        return {decode_value(key): decode_value(item) for key, item in content}
    items = [decode_value(item) for item in content]
    return tuple(items) if kind == "tuple" else items
