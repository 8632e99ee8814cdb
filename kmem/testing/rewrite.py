"""The suite of `kmem.rewrites.Rewrite`, computed in float64 on the CPU.

Covered: every sentence of the contract, for one problem at its own and at other sizes, on every
family of inputs, with parameters as they are born and with others, running statistics among them.
Not covered: speed, and the accuracy of float32, which the judge sees to.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kmem.errors import KmemError, first_line
from kmem.problem.graph import OpGraph
from kmem.records import Contract, Problem, Workload
from kmem.rewrites import Rewrite, Rewriting
from kmem.testing.sources import trace_once
from kmem.vocabulary import OPERATORS

if TYPE_CHECKING:
    import torch

#: Largest relative error between two orders of the same sums in float64.
_TOLERANCE = 1e-10
#: What is smaller in every element may be rounding alone, as is a norm of equal values.
_ROUNDING = 0.1
#: Draws of each family: infinities are planted in single places, and may miss what matters.
_DRAWS = 2

Sizes = Mapping[str, int | tuple[int, ...]]


def check_rewrite(
    rewrite: Rewrite,
    source: str,
    *,
    sizes: Sequence[Sizes] = (),
    contract: Contract | None = None,
    expect: int | None = None,
) -> list[Rewriting]:
    """Rewrite a problem's graph, and compare what both graphs compute in float64.

    Args:
        source: a problem in the contract, with sizes small enough to be computed.
        sizes: other values for its constants; the rewrite must apply there as well.
        expect: how many places the rewrite must find; by default at least one.
    Returns: The rewritings at the problem's own sizes.
    Raises:
        AssertionError: naming place, family and sizes, where the contract is broken.
    """
    problem = Problem("inline", "<inline>", source)
    workloads = [Workload("other", tuple(sorted(given.items()))) for given in sizes]
    return _check_at(
        rewrite, problem, [Workload("full"), *workloads], contract or Contract(), expect
    )


def rewrite_fault(rewrite: Rewrite, example: Path) -> str:
    """How a rewrite breaks its contract on a problem, at small sizes; "" if it does not.

    Args:
        example: a problem's file, in which the rewrite must find at least one place.
    """
    from kmem.problem.sizing.workload import derive_small_workload
    from kmem.problem.source.load import load_problem

    problem = load_problem(example)
    try:
        workload = derive_small_workload(problem)
        _check_at(rewrite, problem, [workload], Contract(), None)
    except (AssertionError, KmemError) as ex:
        return first_line(ex)
    return ""


def _check_at(
    rewrite: Rewrite,
    problem: Problem,
    workloads: Sequence[Workload],
    contract: Contract,
    expect: int | None,
) -> list[Rewriting]:
    found: list[list[Rewriting]] = []
    for workload in workloads:
        graph = trace_once(problem, contract.precision, workload)
        assert graph.opaque_reason is None, graph.opaque_reason
        rewritings = list(rewrite.rewritings(graph, contract))
        assert rewritings == list(rewrite.rewritings(graph, contract)), (
            "rewritings() is a pure function"
        )
        found.append(rewritings)
        what = f" at {dict(workload.constants)}" if workload.constants else ""
        wanted = "at least one" if expect is None else expect
        assert rewritings if expect is None else len(rewritings) == expect, (
            f"{len(rewritings)} places{what}, expected {wanted}: "
            f"{[each.site for each in rewritings]}"
        )
        for rewriting in rewritings:
            _check_form(rewriting, graph)
        if rewritings:
            _compare(problem, workload, graph, rewritings, what)
    sites = [[each.site for each in rewritings] for rewritings in found]
    assert all(each == sites[0] for each in sites), f"sites have other names elsewhere: {sites}"
    return found[0]


def _check_form(rewriting: Rewriting, graph: OpGraph) -> None:
    made = rewriting.graph
    assert rewriting.operator in OPERATORS, f"{rewriting.site}: no operator {rewriting.operator!r}"
    assert graph.node(rewriting.site) is not None, f"{rewriting.site} is no node of the graph"
    assert rewriting.reason.strip(), f"{rewriting.site}: a reason is a sentence"
    assert made.placeholders == graph.placeholders, f"{rewriting.site}: other inputs"
    assert made.outputs == graph.outputs, f"{rewriting.site}: other outputs"
    assert made.hash != graph.hash, f"{rewriting.site}: nothing was rewritten"
    for name in graph.outputs:
        assert made.spec(name) == graph.spec(name), (
            f"{rewriting.site}: the output {name} was {graph.spec(name)}, is {made.spec(name)}"
        )


def _compare(
    problem: Problem,
    workload: Workload,
    graph: OpGraph,
    rewritings: Sequence[Rewriting],
    what: str,
) -> None:
    import torch

    from kmem.problem.tracing.evaluate import evaluate_graph

    for case, given in _cases(problem, workload, graph):
        before = _copied(given)
        torch.manual_seed(0)
        right = evaluate_graph(graph, before, floating=torch.float64)
        for rewriting in rewritings:
            after = _copied(given)
            torch.manual_seed(0)
            made = evaluate_graph(rewriting.graph, after, floating=torch.float64)
            place = f"{rewriting.site}, {case}{what}"
            for name, one, other in zip(graph.outputs, right, made, strict=True):
                _check_equal(one, other, f"{place}: output {name}")
            for name in given:
                _check_equal(before[name], after[name], f"{place}: what is left in {name}")


def _cases(
    problem: Problem, workload: Workload, graph: OpGraph
) -> Iterator[tuple[str, dict[str, object]]]:
    """Values of all placeholders by name: every family, and other parameters."""
    import torch

    from kmem.measure.oracle.inputs.families import apply_family, families_for
    from kmem.measure.oracle.inputs.traits import input_traits
    from kmem.measure.oracle.running.parameters import vary_state
    from kmem.problem.source.load import build_inputs, build_model, execute_problem

    module = execute_problem(problem, workload)
    torch.manual_seed(0)
    model = build_model(module, "cpu").double()
    state = {
        name: value.detach()
        for name, value in (
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        )
    }
    generator = torch.Generator().manual_seed(1)
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    varied = vary_state(state, parameters, generator, signed=True)

    def draw(seed: int) -> list[object]:
        torch.manual_seed(seed)
        return list(build_inputs(module, "cpu"))

    traits = [input_traits(one, other) for one, other in zip(draw(0), draw(1), strict=True)]
    for family in families_for(draw(0), traits):
        for number in range(_DRAWS):
            values = draw(number)
            apply_family(family, values, traits, generator.manual_seed(number))
            values = [_doubled(value) for value in values]
            yield family, _given(graph, state, values)
            if number == 0:
                yield f"{family}, other parameters", _given(graph, varied, values)


def _given(
    graph: OpGraph, state: Mapping[str, "torch.Tensor"], inputs: Sequence[object]
) -> dict[str, object]:
    left = iter(inputs)
    return {
        placeholder.name: next(left) if placeholder.kind == "input" else state[placeholder.target]
        for placeholder in graph.placeholders
        if placeholder.kind != "constant"
    }


def _doubled(value: object) -> object:
    import torch

    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return value


def _copied(given: Mapping[str, object]) -> dict[str, object]:
    import torch

    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in given.items()
    }


def _check_equal(right: object, made: object, what: str) -> None:
    import torch

    if not isinstance(right, torch.Tensor) or not isinstance(made, torch.Tensor):
        assert right == made, f"{what}: {made} in place of {right}"
        return
    assert right.shape == made.shape, f"{what}: {made.shape} in place of {right.shape}"
    if not right.is_floating_point():
        assert torch.equal(right, made), f"{what} differs"
        return
    finite = torch.isfinite(right)
    same = torch.equal(finite, torch.isfinite(made)) and torch.equal(
        right[~finite].nan_to_num(nan=0.0, posinf=1.0, neginf=-1.0),
        made[~finite].nan_to_num(nan=0.0, posinf=1.0, neginf=-1.0),
    )
    assert same, f"{what}: infinities or NaN stand elsewhere"
    scale = right[finite].norm() + _ROUNDING * right.numel() ** 0.5
    error = (made - right)[finite].norm() / scale
    assert error <= _TOLERANCE, f"{what} differs by {error:.2g}"
