"""Results that add up over rows: found out for losses, and for nothing else."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from kmem.measure.oracle.reference import Reference
from kmem.measure.oracle.running.module import Forward, ReferenceModule
from kmem.measure.worker.tensors import Placement
from kmem.records import Contract, Problem, Workload

_ROWS = 40
#: More rows than this find no room in float64.
_MOST_ROWS = 5


def reference_of(forward: str, inputs: str, directory: Path) -> Reference:
    source = f"""
import torch
from torch.nn import functional as F

class Model(torch.nn.Module):
    def forward(self, x, y):
        return {forward}

def get_inputs():
    return [{inputs}]
"""
    placement = Placement(torch.device("cpu"), directory, ipc=False)
    return Reference(Problem("p", "p.py", source), Workload("full"), Contract(), placement, seed=1)


@pytest.fixture(autouse=True)
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have float64 find room for a few rows alone."""
    original = ReferenceModule._run_double

    def run(
        self: ReferenceModule,
        model: torch.nn.Module,
        values: Sequence[object],
        seed: int,
        calls: int,
    ) -> Forward:
        is_whole = model is self._double and len(values[0]) > _MOST_ROWS
        if is_whole and len(values[0]) != 12:  # the rows of the proof
            raise torch.OutOfMemoryError
        return original(self, model, values, seed, calls)

    monkeypatch.setattr(ReferenceModule, "_run_double", run)


TWO = f"torch.rand({_ROWS}, 33), torch.rand({_ROWS}, 33)"


@pytest.mark.parametrize(
    ("forward", "inputs"),
    [
        ("F.mse_loss(x, y)", TWO),
        ("F.smooth_l1_loss(x, y)", TWO),
        ("F.kl_div(torch.log_softmax(x, 1), torch.softmax(y, 1), reduction='batchmean')", TWO),
        ("F.cross_entropy(x, y)", f"torch.rand({_ROWS}, 33), torch.randint(0, 33, ({_ROWS},))"),
        ("(x * y).sum()", TWO),
        ("(x - y).sum(0)", TWO),
        ("(x.mean() + 1.0, y.mean(0))", TWO),
        # the second input has no rows
        ("(x * y).mean()", f"torch.rand({_ROWS}, 33), torch.rand(33)"),
    ],
)
def test_what_adds_up_over_rows_is_right_in_pieces(
    forward: str, inputs: str, tmp_path: Path
) -> None:
    reference = reference_of(forward, inputs, tmp_path)
    reference.inputs.fill("normal", 3)
    values = reference.inputs.values
    expected = reference.expect(values, 3)
    model = reference.module.model
    double = model(*(v.double() if v.is_floating_point() else v for v in values))
    wanted = double if isinstance(double, tuple) else (double,)
    for one, other in zip(expected.oracle, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    assert reference.flags == set()
    assert expected.compare(expected.eager).is_within
    assert not expected.compare([1.001 * value for value in expected.eager]).is_within
    # what cancelled, and what one rounding of the inputs changes, are found in pieces, too
    find_origins = reference.origins_finder(3)
    assert find_origins is not None
    assert expected.compare(expected.eager, find_origins).is_within
    assert len(reference.input_noise(expected, 3)) == len(wanted)
    assert reference.flags == set()


@pytest.mark.parametrize(
    "forward",
    [
        "((x - y) ** 2).mean().sqrt()",
        "x.amax()",
        "x.std()",
        "(x * y).sum() + 1.0",
        "x.sum() / x.shape[0] ** 2",
        "torch.logsumexp(x, (0, 1))",
        "x.add_(1).mean()",  # it modifies its input
        "x.argmax()",
        "(x.reshape(8, 5, 33) * y[0]).mean()",  # it takes no pieces
    ],
)
def test_what_does_not_is_left_to_the_cpu(forward: str, tmp_path: Path) -> None:
    reference = reference_of(forward, TWO, tmp_path)
    reference.inputs.fill("drawn", 3)
    values = [value.clone() for value in reference.inputs.values]
    expected = reference.expect(reference.inputs.values, 3)
    wanted = reference.module.model(*(value.double() for value in values))
    torch.testing.assert_close(expected.oracle[0], wanted, rtol=1e-12, atol=1e-14)
    assert reference.flags == {"oracle_on_cpu"}
