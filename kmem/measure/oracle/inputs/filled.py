"""The inputs of one workload: draws of the problem, input families, and the memory they lie in.

The problem's own `get_inputs()` draws values under a seed; families.py turns a draw into a family.
Both happen in place, in memory of the judge's own, from which they are copied to where workers see
them; large inputs lie in shared memory alone where there is no room for two. Of large inputs there
is never room for two draws.

    inputs.fill("normal", seed)  # the same values for the same family and seed
    worker.attach(inputs.shared)
"""

import os
from collections.abc import Sequence
from functools import partial

import torch

from kmem.measure.oracle.inputs.drawing import draw_into
from kmem.measure.oracle.inputs.families import apply_family
from kmem.measure.oracle.inputs.traits import find_traits_in_turn, input_traits
from kmem.measure.oracle.running.forward import (
    PROCESS_STATE,
    memory_bytes,
    seed_generators,
    tensor_bytes,
)
from kmem.measure.oracle.running.module import ReferenceModule, encodable_values
from kmem.measure.pool.arguments import SharedArguments, given_layouts
from kmem.measure.worker.tensors import Placement, empty_at, where_once

#: Inputs and outputs up to this size, or this share of the free device memory, are given to the
#: oracle whole; float64 copies and intermediates of larger ones would crowd the device.
_WHOLE_BYTES = 2**27
_WHOLE_SHARE = 1 / 64
#: How much of the memory that is free then a copy that no worker maps may take: little, for oracle,
#: workers and baselines want theirs.
_PRIVATE_SHARE = 1 / 16


def find_whole_bytes(device: torch.device) -> int:
    """How large inputs and outputs may be together to be given to the oracle whole."""
    if device.type != "cuda":
        return _WHOLE_BYTES
    return min(_WHOLE_BYTES, int(torch.cuda.mem_get_info(device)[0] * _WHOLE_SHARE))


def has_room_for_copy(device: torch.device, nbytes: int) -> bool:
    """Whether large inputs may lie in memory twice, once where no worker sees them."""
    if device.type == "cuda":
        free_bytes = torch.cuda.mem_get_info(device)[0]
    else:
        free_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return nbytes <= _PRIVATE_SHARE * free_bytes


class ReferenceInputs:
    """`shared` holds one draw or family at a time; `traits` are what every family keeps.

    `layouts` are how the problem's inputs lie in memory, for other lists of the same.
    """

    def __init__(
        self,
        module: ReferenceModule,
        placement: Placement,
        name: str,
        *,
        seed: int,
        whole_bytes: int,
    ) -> None:
        """Draw inputs from `seed`, share them, and find their traits.

        Args:
            name: of the workload.
            whole_bytes: from which size on inputs and outputs are large (`find_whole_bytes`).

        Raises:
            ProblemError: if the problem's inputs cannot be made, or no worker can be given them.
        """
        self._module = module
        self.whole_bytes = whole_bytes
        self.growth = 1.0  # inputs and outputs over inputs, by bytes; known after the first case
        self.filled = "drawn", seed  # family and seed of what the inputs hold
        first = self.draw(seed)
        with encodable_values(module.problem):
            like = [_without_values(value) for value in first]
            self.layouts = given_layouts(like, placement)
            if is_large := self.is_large(first):
                # of large inputs there is no room for two draws beside what else is on the device
                del first
                torch.cuda.empty_cache()
            # A worker that changes what it sees changes nothing that it is judged by. Where there
            # is no room, checksums say what it was given.
            private = not is_large or has_room_for_copy(placement.device, memory_bytes(like))
            self.shared = SharedArguments(
                f"{name}-inputs", like, placement, layouts=self.layouts, private=private
            )
            self.shared.describe()
        if is_large:
            write = partial(self.write_draw, self.shared)
            self.traits = find_traits_in_turn(
                self.own_values, write, self._draw_once, (seed, seed + 1)
            )
        else:
            self.shared.write(first)
            self.traits = [
                input_traits(one, other)
                for one, other in zip(map(_once, first), self._draw_once(seed + 1), strict=True)
            ]

    @property
    def values(self) -> list[object]:
        """What the module is called with."""
        return self.shared.values

    @property
    def own_values(self) -> list[object]:
        """The same, of what is one in memory one element: these may be written to."""
        return list(map(_once, self.values))

    def draw(self, seed: int) -> list[object]:
        """Fresh inputs as the problem makes them, in memory of their own."""
        with PROCESS_STATE:
            seed_generators(seed, self._module.device)
            return self._module.build_inputs()

    def _draw_once(self, seed: int) -> list[object]:
        return list(map(_once, self.draw(seed)))

    def fill(self, family: str, seed: int) -> None:
        """Overwrite the shared inputs with one family; the same for the same family and seed."""
        self.filled = family, seed
        self.write_draw(self.shared, seed)
        generator = torch.Generator(device=self._module.device).manual_seed(seed)
        apply_family(family, self.own_values, self.traits, generator)
        self.shared.publish()

    def write_draw(self, shared: SharedArguments, seed: int, *, keep: bool = False) -> None:
        """Overwrite a list of shared arguments, laid out as these inputs, with a fresh draw.

        Of large inputs nothing else is in memory while the draw is made, nor afterwards.

        Args:
            keep: leave the device memory that a large draw wanted with the allocator.
        """
        if not self.is_large(shared.values):
            shared.write(self.draw(seed))
            return
        if not keep:
            torch.cuda.empty_cache()
        make, device = self._module.build_inputs, self._module.device
        with PROCESS_STATE:
            values = draw_into(shared.values, make, seed=seed, device=device)
        shared.write(values)
        del values
        if not keep:
            torch.cuda.empty_cache()

    def is_large(self, values: Sequence[object]) -> bool:
        """Whether these inputs are not to be given to the oracle whole.

        With float64 inputs there is no eager run to compare slices with.
        """
        is_rounded = all(
            value.dtype is not torch.float64 for value in values if isinstance(value, torch.Tensor)
        )
        return self.growth * tensor_bytes(values) > self.whole_bytes and is_rounded


def _once(value: object) -> object:
    return value[where_once(value)] if isinstance(value, torch.Tensor) else value


def _without_values(value: object) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    return empty_at(value.shape, value.stride(), value.storage_offset(), value.dtype, "meta")
