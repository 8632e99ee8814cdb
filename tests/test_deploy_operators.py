"""Kernels that recipes write, as operators: what `torch.library.opcheck` asks of each."""

from pathlib import Path

import pytest
import torch

from kmem.deploy.entries import entries_of
from kmem.deploy.shipped.ops import operator
from kmem.deploy.shipped.sharing import holder_of
from kmem.deploy.shipped.table import load_original
from tests.shipped_runs import finished_run
from tests.test_codegen_emitted import CASES, PROBLEM, emitted


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("skill", CASES)
def test_the_operator_of_an_emitted_kernel_keeps_what_torch_library_asks(
    skill: str, tmp_path: Path
) -> None:
    init, forward, shape = CASES[skill]
    problem = PROBLEM.format(size=24, init=init, forward=forward, shape=shape)
    run = finished_run(tmp_path / "run", problem=problem, kernel=emitted(skill).source)
    (entry,) = entries_of([run])
    module = load_original(entry)
    model, inputs = module.Model().eval(), module.get_inputs()
    places = [holder_of(model, each.name) for each in entry.state]
    state = [holder[name].detach() for holder, name in places]
    known = operator(entry)
    with torch.no_grad():
        torch.testing.assert_close(known(inputs, state), model(*inputs), rtol=1e-4, atol=1e-5)
        torch.library.opcheck(known.overload, (*inputs, *state))
    assert not known.fault
