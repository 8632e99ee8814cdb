"""Where the bytes of a forward's outputs came from, followed through operators and launches.

Runs inside the worker, from a copy of this file; the judge follows the module itself with it. What
of it may be there is for the judge to say.

Each byte of memory has origins. An operator of torch that copies hands them on, one that computes
makes LIBRARY; a Triton kernel hands on those of values that it only carries, and makes COMPUTED of
what it works out. Memory that turns up in a call and that no operator made is UNSEEN: Python or
NumPy filled it. In the interpreter every stored byte is followed (copying.py); on a GPU a launch is
read from its Triton IR (kernel_flow.py), and a whole allocation has the origins of all its parts.

Not covered: a kernel that works a value out and back again, as x * 2 / 2, counts as one that
computes it; memory from before the call that NumPy writes into.
"""

import gc
from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy
import torch

#: Origins, of which memory may have several.
GIVEN, FILLED = 1, 2
COMPUTED, LIBRARY = 4, 8
UNSEEN = 16
_FILLING = frozenset(
    """
    empty empty_strided empty_like new_empty new_empty_strided new_zeros new_ones new_full zeros
    zeros_like ones ones_like full full_like fill_ zero_ arange scalar_tensor
    """.split()  # noqa: SIM905 - so many quoted words read worse
)
_COPYING = frozenset(
    """
    copy_ clone _to_copy contiguous _reshape_copy _unsafe_view lift_fresh_copy view_copy
    expand_copy permute_copy select_copy slice_copy as_strided_copy detach_copy alias_copy
    pin_memory
    """.split()  # noqa: SIM905 - so many quoted words read worse
)
_storage, _strides = torch.Tensor.untyped_storage, torch.Tensor.stride
_shape = torch.Tensor.shape.__get__
_offset, _element_bytes = torch.Tensor.storage_offset, torch.Tensor.element_size
_objects = gc.get_objects
_TENSORS = (torch.Tensor, torch.nn.Parameter)


@dataclass(slots=True)
class _Memory:
    """One allocation; `parts` are the origins byte by byte, once they differ."""

    start: int
    size: int
    origins: int
    parts: numpy.ndarray | None = None
    kept: object = None  # the storage: memory of the host is not to be used again meanwhile


class Lineage:
    """The origins of all memory that one call touches, while it is on."""

    def __init__(self, *, by_bytes: bool) -> None:
        """Off until `begin`.

        Args:
            by_bytes: every stored byte is told of, so that allocations are followed in parts.
        """
        self.is_on = False
        self._by_bytes = by_bytes
        self._starts: list[int] = []
        self._memories: dict[int, _Memory] = {}

    def begin(self) -> None:
        """Before a call: whatever tensors there are now are GIVEN."""
        self._starts, self._memories = [], {}
        self.is_on = True
        for value in [each for each in _objects() if type(each) in _TENSORS]:  # among 100,000s
            if _has_memory(value):
                self._find_tensor(value, GIVEN)

    def end(self, leaves: Sequence[object]) -> list[int]:
        """After the call: the origins of each output, none if it is no tensor."""
        self.is_on = False
        found = [self._origins_of(leaf) if _has_memory(leaf) else 0 for leaf in leaves]
        self._starts, self._memories = [], {}
        return found

    # ---- what is told

    def note_operator(self, func: object, args: object, kwargs: object, result: object) -> None:
        """An operator of torch that was dispatched."""
        if not self.is_on:
            return
        given = list(_tensors([args, kwargs]))
        known = {_storage(value).data_ptr(): self._find_tensor(value) for value in given}
        written = _written(func, args, kwargs)
        name = str(func).split(".")[1]
        if name in _FILLING:
            origins = FILLED
        elif name in _COPYING:
            origins = 0
            for value in given:
                if all(value is not other for other in written):
                    origins |= self._origins_of(value)
        else:
            origins = LIBRARY
        for value in written:
            self._assign(value, origins)
        for value in _tensors(result):
            if _storage(value).data_ptr() not in known:
                self._register(value, origins)

    def are_filled(self, values: object) -> bool:
        """Whether tensors hold nothing but a constant that an operator of this call wrote."""
        return self.is_on and all(self._origins_of(each) == FILLED for each in _tensors(values))

    def note_arguments(self, values: object) -> None:
        """What a launch is given; memory that nobody has made is taken down as UNSEEN."""
        if self.is_on:
            for value in _tensors(values):
                self._find_tensor(value)

    def read(self, places: numpy.ndarray) -> int:
        """The origins of what lies at these addresses."""
        found = 0
        while places.size:
            memory = self._find(int(places[0]))
            if memory is None:
                return found | UNSEEN
            here = (places >= memory.start) & (places < memory.start + memory.size)
            if memory.parts is None:
                found |= memory.origins
            else:
                inside = places[here] - memory.start
                found |= int(numpy.bitwise_or.reduce(memory.parts[inside.astype(numpy.int64)]))
            places = places[~here]
        return found

    def write(self, places: numpy.ndarray, element_bytes: int, origins: int) -> None:
        """What was stored at these addresses has these origins."""
        while places.size:
            memory = self._find(int(places[0]))
            if memory is None:
                places = places[1:]
                continue
            here = (places >= memory.start) & (places < memory.start + memory.size)
            first = (places[here] - memory.start).astype(numpy.int64)
            self._split(memory)[first[:, None] + numpy.arange(element_bytes)] = origins
            places = places[~here]

    def add(self, address: int, origins: int) -> None:
        """Something in the allocation with this address was stored."""
        if (memory := self._find(address)) is not None:
            memory.origins |= origins

    def origins_at(self, address: int) -> int:
        """The origins of the allocation with this address."""
        memory = self._find(address)
        return UNSEEN if memory is None else memory.origins

    # ---- memory

    def _find(self, address: int) -> _Memory | None:
        index = bisect_right(self._starts, address)
        if not index:
            return None
        memory = self._memories[self._starts[index - 1]]
        return memory if address < memory.start + memory.size else None

    def _find_tensor(self, tensor: torch.Tensor, origins: int = UNSEEN) -> _Memory | None:
        """The memory of a tensor, taken down with these origins if it was not known."""
        start = _storage(tensor).data_ptr()
        return self._find(start) or self._register(tensor, origins)

    def _register(self, tensor: torch.Tensor, origins: int) -> _Memory | None:
        storage = _storage(tensor)
        start, size = storage.data_ptr(), storage.nbytes()
        if not size or not start:
            return None
        first = bisect_right(self._starts, start)
        if first and self._find(start) is not None:
            first -= 1
        while first < len(self._starts) and self._starts[first] < start + size:
            del self._memories[self._starts.pop(first)]
        kept = storage if tensor.device.type == "cpu" else None
        insort(self._starts, start)
        self._memories[start] = _Memory(start, size, origins, kept=kept)
        return self._memories[start]

    def _split(self, memory: _Memory) -> numpy.ndarray:
        if memory.parts is None:
            memory.parts = numpy.full(memory.size, memory.origins, dtype=numpy.uint8)
        return memory.parts

    def _region(self, memory: _Memory, tensor: torch.Tensor) -> numpy.ndarray:
        """The bytes of a tensor in the parts of its memory, one row for each element."""
        item = _element_bytes(tensor)
        return numpy.lib.stride_tricks.as_strided(
            self._split(memory)[_offset(tensor) * item :],
            (*_shape(tensor), item),
            (*(step * item for step in _strides(tensor)), 1),
        )

    def _assign(self, tensor: torch.Tensor, origins: int) -> None:
        memory = self._find_tensor(tensor)
        if memory is None or not tensor.numel():
            return
        if tensor.numel() * _element_bytes(tensor) == memory.size:
            memory.origins, memory.parts = origins, None
        elif self._by_bytes:
            self._region(memory, tensor)[...] = origins
        else:
            memory.origins |= origins

    def _origins_of(self, tensor: torch.Tensor) -> int:
        memory = self._find_tensor(tensor)
        if memory is None or not tensor.numel():
            return 0
        if memory.parts is None:
            return memory.origins
        return int(numpy.bitwise_or.reduce(self._region(memory, tensor), axis=None))


def _has_memory(value: object) -> bool:
    return (
        type(value) in _TENSORS
        and value.layout is torch.strided
        and value.device.type in ("cpu", "cuda")
    )


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if _has_memory(value):
            yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(base := getattr(value, "base", None), torch.Tensor):  # of a tensor descriptor
        yield from _tensors(base)


def _written(func: object, args: Sequence[object], kwargs: dict) -> list[torch.Tensor]:
    """The arguments that an operator writes into, by its schema."""
    found = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            found.extend(_tensors(value))
    return found
