"""A problem before a run: what does not end or does not fit is said before anything runs."""

import time
from dataclasses import replace

import pytest

from kmem.devices import named_target
from kmem.errors import DeviceMemoryError, ProblemError
from kmem.host.deadline import DeadlinePassed, deadline
from kmem.problem.source import load
from kmem.problem.traced import trace_at_full_size
from kmem.records import Contract, Problem
from kmem.run.setup.tracing import trace_for_run

H200 = named_target("h200")
PROBLEM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        {forward}

def get_inputs():
    return [torch.rand({shape})]
"""


def problem_of(forward: str, shape: str) -> Problem:
    return Problem("inline", "inline.py", PROBLEM.format(forward=forward, shape=shape))


def test_a_forward_that_never_ends_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    load.check_forward(load.execute_problem(problem_of("return x", "8")))  # torch loads more of it
    monkeypatch.setattr(load, "FORWARD_DEADLINE_S", 1.0)
    endless = problem_of("while True: pass", "8")
    with pytest.raises(ProblemError, match="not ended after 1 s .* a loop that never ends"):
        trace_for_run(endless, Contract(), H200, needs_small=True)


def test_a_deadline_that_was_kept_breaks_nothing_off_later() -> None:
    with deadline(0.05):
        pass
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        pass
    with pytest.raises(DeadlinePassed), deadline(0.05):
        while True:
            pass


def test_what_does_not_fit_the_card_is_refused_with_both_figures() -> None:
    huge = problem_of("return x + 1", "1000000, 1000000")
    expected = r"needs 8 TB for inputs, parameters and outputs, h200 has 141 GB"
    with pytest.raises(DeviceMemoryError, match=expected):
        trace_for_run(huge, Contract(), H200, needs_small=True)
    with pytest.raises(DeviceMemoryError, match=expected):
        trace_at_full_size(huge, Contract(), H200)


def test_what_fits_is_traced_at_both_sizes_without_a_note() -> None:
    traced, notes = trace_for_run(
        problem_of("return x + 1", "4096, 4096"), Contract(), H200, needs_small=True
    )
    assert traced.graphs.keys() == {"full", "small"} and notes == ()


@pytest.mark.parametrize(
    ("forward", "given", "is_named"),
    [
        ("return {'y': x}", "torch.rand(8)", True),
        ("return x, (x, x)", "torch.rand(8)", True),
        ("return x, 3", "torch.rand(8)", True),
        ("return x if x.sum() > 0 else -x", "torch.rand(8)", False),
    ],
)
def test_pieces_are_named_where_containers_alone_make_a_forward_opaque(
    forward: str, given: str, is_named: bool
) -> None:
    plain = problem_of(forward, "8")
    problem = replace(plain, source=plain.source.replace("torch.rand(8)", given))
    _, notes = trace_for_run(problem, Contract(), H200, needs_small=False)
    (opaque,) = [note for note in notes if "one opaque call" in note]
    assert ("`kmem optimize --pieces`" in opaque) is is_named


@pytest.mark.parametrize(
    ("forward", "given"),
    [
        ("return x['scale'] + 1", "{'scale': torch.rand(8)}"),
        ("return x.real + torch.ones(8)", "1j"),
    ],
)
def test_inputs_that_no_worker_can_be_given_are_refused_at_once(forward: str, given: str) -> None:
    plain = problem_of(forward, "8")
    problem = replace(plain, source=plain.source.replace("torch.rand(8)", given))
    with pytest.raises(ProblemError, match=r"cannot be passed to a worker.*--pieces"):
        trace_for_run(problem, Contract(), H200, needs_small=False)
