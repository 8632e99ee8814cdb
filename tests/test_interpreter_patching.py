"""What is left out of Triton's interpreter changes nothing: operands become what they were."""

import importlib.util
from itertools import product

import numpy as np
import pytest
import triton.language as tl
from triton.language import semantic
from triton.runtime.interpreter import interpreter_builder


@pytest.fixture(scope="module")
def as_it_comes() -> semantic.TritonSemantic:
    """Triton's own rules, from a second import of their file, which nobody changed."""
    spec = importlib.util.spec_from_file_location("triton.language.as_it_comes", semantic.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TritonSemantic(interpreter_builder)


def operands(rules: semantic.TritonSemantic) -> list[object]:
    """Values of every kind: blocks of several shapes and types, single values, Python's numbers."""
    types = (tl.float32, tl.float16, tl.bfloat16, tl.float64, tl.int1, tl.int8, tl.int32, tl.int64)
    blocks = [rules.full([8], 1, dtype) for dtype in types]
    shapes = ([4, 1], [1, 8], [4, 8], [2])
    shaped = [rules.full(shape, 2, dtype) for shape in shapes for dtype in (tl.float32, tl.int32)]
    single = [rules.scalar_constant(3, dtype) for dtype in (tl.float32, tl.int32, tl.uint32)]
    pointer = tl.tensor(rules.full([8], 64, tl.int64).handle, tl.pointer_type(tl.float32))
    return [*blocks, *shaped, *single, pointer, 2, -1, 0.5, True]


def outcome(rules: semantic.TritonSemantic, lhs: object, rhs: object, flags: tuple) -> object:
    """Types and contents of both operands, or why they do not go together."""
    try:
        found = rules.binary_op_type_checking_impl(lhs, rhs, *flags)
    except Exception as ex:  # noqa: BLE001 - whatever Triton raises must stay the same
        return type(ex).__name__, str(ex)
    return [(str(each.type), np.asarray(each.handle.data).tolist()) for each in found]


def test_operands_become_what_triton_alone_makes_of_them(
    as_it_comes: semantic.TritonSemantic,
) -> None:
    changed = semantic.TritonSemantic(interpreter_builder)
    check = type(changed).binary_op_type_checking_impl
    assert check.__module__ == "kmem.measure.worker.patching"
    flags = [(False, False, True, division) for division in (False, True)]
    flags += [(True, True, True, False), (True, True, False, False)]
    values = operands(as_it_comes)
    for lhs, rhs, how in product(values, values, flags):
        if isinstance(lhs, int | float) and isinstance(rhs, int | float):
            continue
        expected = outcome(as_it_comes, lhs, rhs, how)
        assert outcome(changed, lhs, rhs, how) == expected, (lhs, rhs, how)
