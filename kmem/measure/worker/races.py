"""Races between the programs of one launch, seen in Triton's interpreter.

Runs inside the worker, from a copy of this file. The interpreter runs one program after another, so
that a program may read what another has written, and the answer is right there and nowhere else.

Covered: a plain load of what another program of the same launch stores, without atomics in that
launch (whoever uses them may wait for the other), up to `_MOST_PLACES` places. Not covered: what
programs write to one place; the order in which they run decides then, and is shuffled.
"""

import numpy
from triton.runtime.interpreter import InterpreterBuilder

_LOADS = ("create_masked_load",)
_STORES = ("create_masked_store",)
_ATOMICS = ("create_atomic_cas", "create_atomic_rmw", "create_atomic_load", "create_atomic_store")
_MOST_PLACES = 2**22


class RaceLog:
    """The places that each program loads and stores, while it is switched on."""

    def __init__(self) -> None:
        self.is_on = False
        self.found = 0  # places that one program stores and another loads
        self._program = 0
        self._places: dict[str, list[numpy.ndarray]] = {"load": [], "store": []}
        self._programs: dict[str, list[int]] = {"load": [], "store": []}
        self._count, self._has_atomics = 0, False
        for kind, names in (("load", _LOADS), ("store", _STORES), ("atomic", _ATOMICS)):
            for name in names:
                if hasattr(InterpreterBuilder, name):
                    self._watch(name, kind)

    def _watch(self, name: str, kind: str) -> None:
        original = getattr(InterpreterBuilder, name)

        # a pass-through
        def access(builder, pointers, *args, **kwargs):  # noqa: ANN001, ANN002, ANN003, ANN202
            if self.is_on:
                self._note(kind, pointers, args)
            return original(builder, pointers, *args, **kwargs)

        setattr(InterpreterBuilder, name, access)

    def _note(self, kind: str, pointers: object, args: tuple[object, ...]) -> None:
        if kind == "atomic":
            self._has_atomics = True
            return
        mask = args[0 if kind == "load" else 1]
        places = numpy.broadcast_to(pointers.data, numpy.shape(mask.data))[mask.data]
        self._count += places.size
        if self._count <= _MOST_PLACES:
            self._places[kind].append(places.reshape(-1))
            self._programs[kind].append(self._program)

    def begin_program(self, number: int) -> None:
        self._program = number

    def begin_launch(self) -> None:
        self._places, self._programs = {"load": [], "store": []}, {"load": [], "store": []}
        self._count, self._program = 0, 0
        self._has_atomics = False

    def end_launch(self) -> None:
        """Count the places of this launch that one program stores and another loads."""
        if not self.is_on or self._has_atomics or not self._places["store"]:
            return
        stored, writers = self._joined("store")
        loaded, readers = self._joined("load")
        order = numpy.argsort(stored, kind="stable")
        stored, writers = stored[order], writers[order]
        first = numpy.searchsorted(stored, loaded, "left")
        last = numpy.searchsorted(stored, loaded, "right") - 1
        is_stored = last >= first
        first, last = first[is_stored], last[is_stored]
        reader = readers[is_stored]
        self.found += int(((writers[first] != reader) | (writers[last] != reader)).sum())

    def _joined(self, kind: str) -> tuple[numpy.ndarray, numpy.ndarray]:
        places = self._places[kind]
        if not places:
            return numpy.zeros(0, dtype=numpy.uint64), numpy.zeros(0, dtype=numpy.int64)
        sizes = [part.size for part in places]
        return numpy.concatenate(places), numpy.repeat(self._programs[kind], sizes)
