"""Which interpreted launches compute, and which only carry values from one place to another.

Runs inside the worker, from a copy of this file. A value that was loaded is followed through
conversions and changes of shape; one that reaches a store like that was copied, not computed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

#: What leaves every value what it was, but for its type and place.
_CARRYING = """
create_si_to_fp create_ui_to_fp create_fp_to_si create_fp_to_ui create_fp_ext create_fp_trunc
create_int_cast create_fp_to_fp create_bitcast create_reshape create_trans create_expand_dims
create_broadcast create_cat create_join create_split create_splat create_unsplat
"""
_COPIED = "_kmem_copied"


class CopyDetector:
    """Notices stores of computed values, while it is asked to watch.

    It makes every operation slower, and only one forward of a verdict asks for it.
    """

    def __init__(self) -> None:
        self.computed = False  # whether what was watched last stored a computed value
        self._around: dict[str, Callable] = {
            "create_masked_load": self._load,
            "create_atomic_load": self._load,
            **dict.fromkeys(_CARRYING.split(), self._carry),
            "create_masked_store": self._store,
            "create_atomic_rmw": self._combine,
            "create_atomic_cas": self._combine,
        }

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the launches meanwhile."""
        self.computed = False
        usual = {
            name: getattr(InterpreterBuilder, name)
            for name in self._around
            if hasattr(InterpreterBuilder, name)  # another version of Triton may lack it
        }
        for name, method in usual.items():
            setattr(InterpreterBuilder, name, _watched(method, self._around[name]))
        try:
            yield
        finally:
            for name, method in usual.items():
                setattr(InterpreterBuilder, name, method)

    def _load(self, args: tuple, result: object) -> object:
        _mark(result)
        return result

    def _carry(self, args: tuple, result: object) -> object:
        handles = [value for value in args if isinstance(value, TensorHandle)]
        if handles and all(hasattr(value, _COPIED) for value in handles):
            _mark(result)
        return result

    def _store(self, args: tuple, result: object) -> object:
        if not hasattr(args[1], _COPIED):
            self.computed = True
        return result

    def _combine(self, args: tuple, result: object) -> object:
        self.computed = True
        return result


def _watched(method: Callable, around: Callable) -> Callable:
    def operation(builder, *args, **kwargs):  # noqa: ANN001, ANN002, ANN003, ANN202 - a pass-through
        return around(args, method(builder, *args, **kwargs))

    return operation


def _mark(result: object) -> None:
    for value in result if isinstance(result, list | tuple) else (result,):
        if isinstance(value, TensorHandle):
            setattr(value, _COPIED, True)
