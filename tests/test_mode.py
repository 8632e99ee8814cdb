"""Training or evaluation: which was used, and that a kernel is written for it."""

import pytest
import torch

from kmem.problem.features.mode import MODES, describe_mode, in_mode
from kmem.problem.source.load import execute_problem
from kmem.problem.tracing.trace import trace_problem
from kmem.records import Problem

SOURCE = """
import torch

class Model(torch.nn.Module):
    def __init__(self, width):
        super(Model, self).__init__()
        self.norm = torch.nn.BatchNorm1d(width)
        self.drop = torch.nn.Dropout(0.1)

    def forward(self, x):
        return self.drop(self.norm(x)).relu()

def get_inputs():
    return [torch.randn(16, 8)]

def get_init_inputs():
    return [8]
"""
PROBLEM = Problem("norm", "norm.py", SOURCE)


def note(problem: Problem) -> str | None:
    return describe_mode(trace_problem(execute_problem(problem)))


def test_a_problem_runs_as_its_file_leaves_it_unless_a_mode_is_given() -> None:
    assert in_mode(PROBLEM, None) == PROBLEM
    trained = {
        mode: execute_problem(in_mode(PROBLEM, mode)).Model(8).norm.training for mode in MODES
    }
    assert trained == {"train": True, "eval": False}
    assert execute_problem(PROBLEM).Model(8).training


def test_the_mode_holds_in_a_class_that_inherits_from_the_model() -> None:
    source = in_mode(PROBLEM, "eval").source + "\nclass ModelNew(Model):\n    pass\n"
    model = execute_problem(Problem("new", "new.py", source)).ModelNew(8)
    assert not model.training and isinstance(model, torch.nn.Module)


def test_training_mode_says_what_was_traced_and_how_to_get_the_other() -> None:
    text = note(PROBLEM)
    assert text.startswith("training mode (batch norm and dropout as in training)")
    assert "only while module.training is True" in text and "--mode eval" in text


def test_eval_mode_says_when_the_kernel_runs() -> None:
    assert note(in_mode(PROBLEM, "eval")).startswith("eval mode")
    assert "after .eval(), without gradients" in note(in_mode(PROBLEM, "eval"))


@pytest.mark.parametrize("mode", [None, *MODES])
def test_nothing_is_said_of_a_mode_that_changes_nothing(mode: str | None) -> None:
    source = SOURCE.replace("self.drop(self.norm(x))", "x")
    assert note(in_mode(Problem("relu", "relu.py", source), mode)) is None
