"""Trivial outputs beside an answer that is made slice by slice."""

from collections.abc import Sequence

import torch

from kmem.measure.oracle.answers.trial import Trial

ROWS, COLUMNS = 4, 300


def passing(slices: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> tuple[set[str], Trial]:
    """What passes for one output, given (oracle, eager) of each slice."""
    trial = Trial(1)
    for oracle, eager in slices:
        trial.add(0, eager, oracle, ())
    return trial.passing(trial.differences(), [1e-6]), trial


def exact(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return values.double(), values


def test_what_is_nearly_constant_lets_a_constant_pass_in_all_slices_or_in_none() -> None:
    ones, drawn = torch.ones(ROWS, COLUMNS), torch.rand(ROWS, COLUMNS)
    assert passing([exact(ones), exact(ones)])[0] == {"constant"}
    assert passing([exact(ones), exact(drawn)])[0] == set()
    assert passing([exact(drawn), exact(drawn)])[0] == set()


def test_what_the_first_slice_refutes_is_not_computed_again(monkeypatch) -> None:  # noqa: ANN001
    found, trial = passing([exact(torch.rand(ROWS, COLUMNS))])
    asked = []
    monkeypatch.setattr(
        "kmem.measure.oracle.answers.trial.trivial_outputs", lambda *a, **k: asked.append(a)
    )
    oracle, eager = exact(torch.rand(ROWS, COLUMNS))
    trial.add(0, eager, oracle, ())
    assert (found, asked) == (set(), [])


def test_where_eager_errs_as_much_later_what_was_given_up_counts_as_passing() -> None:
    drawn = torch.rand(ROWS, COLUMNS)
    wrong = (drawn.double(), drawn * 3.0)
    assert passing([exact(drawn), wrong])[0] == {"zeros", "constant"}
