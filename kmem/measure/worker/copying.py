"""What interpreted kernels carry from one place to another, and what they work out.

Runs inside the worker, from a copy of this file. A value that was loaded is followed, with the
origins of the memory that it came from (lineage.py), through conversions, changes of shape and
arithmetic that leaves it as it is, to where it is stored.
"""

from collections.abc import Callable

import numpy
from lineage import COMPUTED, LIBRARY, UNSEEN, Lineage
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

#: What leaves every value what it was, but for its type and place.
_CARRYING = """
create_si_to_fp create_ui_to_fp create_fp_to_si create_fp_to_ui create_fp_ext create_fp_trunc
create_int_cast create_fp_to_fp create_bitcast create_reshape create_trans create_expand_dims
create_broadcast create_cat create_join create_split create_splat create_unsplat create_gather
"""
#: What may leave a value as it is: times one, and nothing added.
_ARITHMETIC = "binary_op unary_op ternary_op create_fma create_clampf create_fabs create_idiv"
_ORIGINS = "_kmem_origins"


class CopyFollower:
    """Tells a lineage of every load and store, while it is on."""

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self._wrap("create_masked_load", self._load)
        for name in _CARRYING.split():
            self._wrap(name, self._carry)
        for name in _ARITHMETIC.split():
            self._wrap(name, self._compute)
        self._wrap("create_masked_store", self._store)
        self._wrap("create_atomic_rmw", self._add)
        self._wrap("create_atomic_cas", self._exchange)

    def _wrap(self, name: str, around: Callable) -> None:
        method = getattr(InterpreterBuilder, name, None)
        if method is None:  # another version of Triton
            return

        # a pass-through
        def operation(builder, *args, **kwargs):  # noqa: ANN001, ANN002, ANN003, ANN202
            result = method(builder, *args, **kwargs)
            if self._lineage.is_on:
                around(args, result)
            return result

        setattr(InterpreterBuilder, name, operation)

    def _load(self, args: tuple, result: object) -> None:
        pointers, mask = args[:2]
        _mark(result, self._lineage.read(_places(pointers, mask)))

    def _carry(self, args: tuple, result: object) -> None:
        handles = [value for value in args if isinstance(value, TensorHandle)]
        found = [getattr(value, _ORIGINS, None) for value in handles]
        if found and None not in found:
            _mark(result, _union(found))

    def _compute(self, args: tuple, result: object) -> None:
        """Arithmetic makes a value of another origin, unless a foreign one comes out of it."""
        for value in args:
            origins = getattr(value, _ORIGINS, 0)
            if origins & (LIBRARY | UNSEEN) and numpy.array_equal(value.data, result.data):
                _mark(result, origins | COMPUTED | getattr(result, _ORIGINS, 0))

    def _store(self, args: tuple, result: object) -> None:
        self._write(args[0], args[2], args[1])

    def _add(self, args: tuple, result: object) -> None:
        self._write(args[1], args[3], args[2], COMPUTED)

    def _exchange(self, args: tuple, result: object) -> None:
        self._write(args[0], None, args[2], COMPUTED)

    def _write(self, pointers: TensorHandle, mask: object, value: object, also: int = 0) -> None:
        origins = getattr(value, _ORIGINS, COMPUTED) | also
        element_bytes = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        self._lineage.write(_places(pointers, mask), element_bytes, origins)


def _places(pointers: TensorHandle, mask: TensorHandle | None) -> numpy.ndarray:
    """The addresses that are really touched."""
    places = numpy.asarray(pointers.data)
    if mask is None:
        return places.reshape(-1)
    return places[numpy.broadcast_to(mask.data, places.shape)]


def _union(found: list[int]) -> int:
    return int(numpy.bitwise_or.reduce(found))


def _mark(result: object, origins: int) -> None:
    for value in result if isinstance(result, list | tuple) else (result,):
        if isinstance(value, TensorHandle):
            setattr(value, _ORIGINS, origins)
