"""Which interpreted launches compute, and which only carry values from one place to another.

Runs inside the worker, from a copy of this file. A value that was loaded is followed through
conversions and changes of shape; one that reaches a store like that was copied, not computed.
"""

from collections.abc import Callable

from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

#: What leaves every value what it was, but for its type and place.
_CARRYING = """
create_si_to_fp create_ui_to_fp create_fp_to_si create_fp_to_ui create_fp_ext create_fp_trunc
create_int_cast create_fp_to_fp create_bitcast create_reshape create_trans create_expand_dims
create_broadcast create_cat create_join create_split create_splat create_unsplat
"""
_COPIED = "_kmem_copied"


class CopyDetector:
    """Notices stores of computed values: `computed` is set by one, and never unset here."""

    def __init__(self) -> None:
        self.computed = False
        for name in ("create_masked_load", "create_atomic_load"):
            self._wrap(name, self._load)
        for name in _CARRYING.split():
            self._wrap(name, self._carry)
        self._wrap("create_masked_store", self._store)
        for name in ("create_atomic_rmw", "create_atomic_cas"):
            self._wrap(name, self._combine)

    def _wrap(self, name: str, around: Callable) -> None:
        method = getattr(InterpreterBuilder, name, None)
        if method is None:  # another version of Triton
            return

        # a pass-through
        def operation(builder, *args, **kwargs):  # noqa: ANN001, ANN002, ANN003, ANN202
            return around(args, method(builder, *args, **kwargs))

        setattr(InterpreterBuilder, name, operation)

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


def _mark(result: object) -> None:
    for value in result if isinstance(result, list | tuple) else (result,):
        if isinstance(value, TensorHandle):
            setattr(value, _COPIED, True)
