"""Forwards that used to end in a traceback or a refusal."""

from pathlib import Path

import pytest
from models_for_tests import model_named

from kmem.problem.source.load import check_forward, execute_problem, load_problem
from kmem.problem.tracing.trace import trace_problem


def test_a_constructor_may_cast_its_own_module(tmp_path: Path) -> None:
    module = execute_problem(load_problem(model_named("casts", tmp_path)))
    assert check_forward(module) is not None
    graph = trace_problem(module)
    assert graph.opaque_reason is None
    assert {each.spec.dtype for each in graph.placeholders} == {"bfloat16"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [("routes", "sizes inside depend on values"), ("keeps_state", "neither input, parameter")],
)
def test_what_cannot_be_traced_is_opaque_with_the_reason(
    name: str, reason: str, tmp_path: Path
) -> None:
    graph = trace_problem(execute_problem(load_problem(model_named(name, tmp_path))))
    assert reason in (graph.opaque_reason or "")
