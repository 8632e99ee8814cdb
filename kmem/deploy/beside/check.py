"""Tests of the package: `python -m pytest`, on a GPU of the kind it was measured on.

With TRITON_INTERPRET=1 small entries are tested without one.
"""

import pytest
import torch

from kmem.deploy.beside.reference import ENTRIES, can_run, details, make_reference
from kmem.deploy.shipped.ops import operator
from kmem.deploy.shipped.patch import apply
from kmem.deploy.shipped.sharing import holder_of
from kmem.deploy.shipped.supports import supports
from kmem.deploy.shipped.table import Entry, load_kernel

each_entry = pytest.mark.parametrize("entry", ENTRIES, ids=[entry.name for entry in ENTRIES])


def reference(entry: Entry) -> tuple[torch.nn.Module, list[object]]:
    if not can_run(entry):
        pytest.skip(f"needs an {entry.device}")
    return make_reference(entry)


def outputs(found: object) -> list[torch.Tensor]:
    return list(found) if isinstance(found, tuple | list) else [found]


@each_entry
def test_the_kernel_is_the_one_that_was_verified(entry: Entry) -> None:
    assert issubclass(load_kernel(entry), torch.nn.Module)


@each_entry
def test_a_model_with_the_kernel_computes_the_same_and_gets_its_forward_back(entry: Entry) -> None:
    model, inputs = reference(entry)
    allowed = max(details(entry)["accuracy"]["allowed_error"], 1e-5)
    forward = model.forward.__func__
    with torch.no_grad():
        expected = outputs(model(*inputs))
        with apply(model, [entry]) as handle:
            assert handle.replaced == [""], str(handle)
            found = outputs(model(*inputs))
            assert handle.status()[0].served == 1, str(handle)
    for mine, theirs in zip(found, expected, strict=True):
        error = (mine.double() - theirs.double()).norm() / theirs.double().norm().clamp_min(1e-30)
        assert error <= 2 * allowed
    assert "forward" not in vars(model)
    assert model.forward.__func__ is forward


@each_entry
def test_other_inputs_are_not_supported(entry: Entry) -> None:
    model, inputs = reference(entry)
    assert supports(entry, *inputs)
    assert not supports(entry, *inputs, None)
    for place, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            other = value.new_zeros((*value.shape, 2))
            assert not supports(entry, *inputs[:place], other, *inputs[place + 1 :])


@each_entry
def test_the_operator_keeps_what_torch_library_asks(entry: Entry) -> None:
    model, inputs = reference(entry)
    known = operator(entry)
    state = [
        holder[name].detach() for holder, name in (holder_of(model, s.name) for s in entry.state)
    ]
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    with torch.no_grad():
        torch.library.opcheck(known.overload, (*tensors, *state))
