"""The table of operators: rows agree with torch, and one row is all that a new operator takes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from kmem import hookimpl, hookspecs
from kmem.codegen.rows.recipe import PointwiseRecipe
from kmem.devices import named_target
from kmem.plugins import Plugins, collect
from kmem.problem.costs.work import node_work
from kmem.problem.features.naming import name_operators
from kmem.problem.graph import OpGraph
from kmem.problem.operators.arithmetic import Work, special_per_result, statistics_and_scale
from kmem.problem.operators.builder import RegionBuilder
from kmem.problem.operators.expressions import STABLE_EXP, STABLE_TANH, Helper, using, write_number
from kmem.problem.operators.row import (
    REQUIRED,
    Call,
    Layout,
    Operator,
    Pointwise,
    Reduced,
    Reduction,
    parameters,
)
from kmem.problem.operators.table import BUILT_IN, find_operator, install_operators
from kmem.records import Contract
from kmem.skills import load_recipe, load_skill
from kmem.testing import check_recipe, emit_source, trace_source

SKILLS = Path(__file__).parents[1] / "skills"
H200 = named_target("h200")
PROBLEM = """
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, x):
        return {forward}
def get_inputs():
    return [{inputs}]
"""


def source_of(forward: str, inputs: str = "torch.randn(7, 33)", init: str = "pass") -> str:
    return PROBLEM.format(init=init, forward=forward, inputs=inputs)


# --- rows and torch's schemas


def overload_of(row: Operator) -> torch._ops.OpOverload | None:
    """The overload that a row describes; None for a row that stands for all of an operator's."""
    _, packet, *name = row.target.split(".")
    found = getattr(torch.ops.aten, packet)
    return getattr(found, name[0]) if name else None


@pytest.mark.parametrize("row", BUILT_IN, ids=lambda row: row.target)
def test_a_row_has_the_parameters_of_torchs_schema_in_its_order(row: Operator) -> None:
    if row.target == "getitem":
        return
    overload = overload_of(row)
    if overload is None:
        return
    arguments = overload._schema.arguments
    placed = [argument for argument in arguments if not argument.kwarg_only]
    named = {argument.name for argument in arguments if argument.kwarg_only}
    names = list(row.parameters)
    assert set(names[len(placed) :]) <= named, "what follows the placed ones is given by keyword"
    assert named.isdisjoint(names[: len(placed)])
    required = [name for name in names if row.parameters[name] is REQUIRED]
    assert names[: len(required)] == required


def test_no_two_rows_describe_one_target() -> None:
    assert len({row.target for row in BUILT_IN}) == len(BUILT_IN)
    with pytest.raises(ValueError, match="Two rows describe aten.relu.default"):
        install_operators([find_operator("aten.relu.default")])


def test_an_overload_without_a_row_is_known_but_cannot_be_written() -> None:
    row = find_operator("aten.log_sigmoid.out")
    assert (row.name, row.lowering) == ("pointwise", None)
    assert find_operator("aten.fft_fft.default") is None


def test_a_name_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="is called 'swirl', which is no operator"):
        Operator("mylib.swirl.default", "swirl")


# --- a plugin's rows


@torch.library.custom_op("kmem_test::size_norm", mutates_args=())
def size_norm(x: torch.Tensor, eps: float = 0.5) -> torch.Tensor:
    return x / (x.abs().mean(-1, keepdim=True) + eps)


@torch.library.custom_op("kmem_test::bump", mutates_args=())
def bump(x: torch.Tensor, width: float) -> torch.Tensor:
    return torch.tanh(x) * torch.exp(-x.abs() * width) + 1


size_norm.register_fake(lambda x, eps=0.5: torch.empty_like(x))
bump.register_fake(lambda x, width: torch.empty_like(x))

ADD_ONE = Helper(
    "kmem_test_add_one", "@triton.jit\ndef kmem_test_add_one(x):\n    return x + 1.0\n"
)


def last_dim(call: Call) -> Reduced:
    return (len(call.spec("x").shape) - 1,), True


def lower_size_norm(build: RegionBuilder, call: Call) -> None:
    x = build.read(call.value("x"))
    size = build.map(f"{call.out}_size", f"tl.abs({x})", x)
    (total,) = build.reduce((f"{call.out}_sum",), "sum", size)
    mean = f"tl.div_rn({total}, {write_number(build.columns)})"
    scale = f"tl.div_rn(1.0, {mean} + {write_number(call['eps'])})"
    build.map(call.out, f"{x} * {build.map(f'{call.out}_scale', scale, total)}", x)


def write_bump(x: str, width: str):  # noqa: ANN201
    decay = f"stable_exp(-tl.abs({x}) * {width})"
    text = f"kmem_test_add_one(stable_tanh({x}) * {decay})"
    return using(text, STABLE_TANH, STABLE_EXP, ADD_ONE)


SIZE_NORM = Operator(
    "kmem_test.size_norm.default",
    "l1_norm",
    statistics_and_scale,
    parameters("x", eps=0.5),
    Reduction(last_dim, lower_size_norm, names_region=True),
)
BUMP = Operator(
    "kmem_test.bump.default",
    "pointwise",
    special_per_result,
    parameters("x", "width"),
    Pointwise(write_bump),
)


class Plugin:
    def __init__(self, *rows: Operator) -> None:
        self.rows = rows

    @hookimpl
    def register_operators(self, register: Callable[[Operator], None]) -> None:
        for row in self.rows:
            register(row)


def manager_with(**plugins: Plugin) -> Plugins:
    manager = Plugins()
    manager.add_hookspecs(hookspecs)
    for name, plugin in plugins.items():
        manager.register(plugin, name=name)
    return manager


@pytest.fixture
def plugin_rows() -> Iterator[None]:
    collect(manager_with(mine=Plugin(SIZE_NORM, BUMP)))
    yield
    install_operators(())


@pytest.mark.parametrize("strategy", ["registers", "loop", "split", "shared"])
def test_a_norm_that_a_plugin_adds_is_written_by_the_row_recipe(plugin_rows, strategy) -> None:
    recipe = load_recipe(load_skill(SKILLS / "row-norm"))
    setting = {"STRATEGY": strategy, "BK": 2, "BR": 16, "SPLIT": 2, "num_warps": 4}
    forward = "torch.relu(torch.ops.kmem_test.size_norm(x * 2)) + x"
    errors = check_recipe(recipe, source_of(forward), H200, settings=[setting])
    assert len(errors) == 1
    _, graph = trace_source(source_of(forward))
    (site,) = recipe.match(graph, Contract())
    assert site.operator == "l1_norm" and len(site.nodes) == len(graph.nodes)


def test_an_activation_that_a_plugin_adds_joins_a_chain(plugin_rows) -> None:
    source = source_of("torch.ops.kmem_test.bump(x + 1, 0.25) * 3")
    setting = {"BLOCK": 512, "num_warps": 4, "HINT": "keep"}
    check_recipe(PointwiseRecipe(), source, H200, settings=[setting])
    _, graph = trace_source(source)
    (site,) = PointwiseRecipe().match(graph, Contract())
    text = emit_source(source, graph, [(PointwiseRecipe(), site, setting)])
    helpers = ["def stable_exp(", "def stable_tanh(", "def kmem_test_add_one(", "def pointwise_"]
    assert sorted(map(text.index, helpers)) == [text.index(helper) for helper in helpers]


def test_a_plugins_operator_is_counted_and_named_as_torchs_are(plugin_rows) -> None:
    _, graph = trace_source(source_of("torch.ops.kmem_test.size_norm(x)"))
    assert node_work(graph, graph.nodes[0]) == Work(simple=2 * 7 * 33)
    assert name_operators(graph, (), H200, Contract()) == ("l1_norm",)


def test_without_its_row_a_foreign_operator_makes_the_forward_opaque() -> None:
    _, graph = trace_source(source_of("torch.ops.kmem_test.bump(x, 2.0)"))
    assert graph.opaque_reason == "it calls kmem_test.bump.default"


def test_of_two_rows_for_one_target_the_second_is_left_out_and_both_plugins_are_named() -> None:
    registry = collect(manager_with(mine=Plugin(BUMP), theirs=Plugin(BUMP)))
    assert registry.origins["operators", BUMP.target] == "mine"
    (reason,) = registry.left_out
    assert set(reason.split()) >= {"mine", "theirs", "'kmem_test.bump.default';"}
    relu = Operator("aten.relu.default", "pointwise")
    (reason,) = collect(manager_with(mine=Plugin(relu))).left_out
    assert "plugins kmem and mine both register the operator 'aten.relu.default'" in reason
    install_operators(())


def test_collecting_again_replaces_what_plugins_added(plugin_rows) -> None:
    assert find_operator("kmem_test.bump.default") is not None
    collect(manager_with())
    assert find_operator("kmem_test.bump.default") is None
    assert find_operator("aten.relu.default") is not None


# --- names of a graph


def names_of(forward: str, inputs: str, init: str = "pass", parts: tuple = ()) -> tuple[str, ...]:
    _, graph = trace_source(source_of(forward, inputs, init))
    return name_operators(graph, parts, H200, Contract())


@pytest.mark.parametrize(
    ("forward", "inputs", "init", "names"),
    [
        (
            "self.r(x)[0]",
            "torch.randn(5, 2, 64)",
            "self.r = torch.nn.GRU(64, 64)",
            ("recurrent", "layout"),
        ),
        (
            "self.e(x)",
            "torch.randint(9, (4, 5))",
            "self.e = torch.nn.Embedding(9, 3)",
            ("embedding",),
        ),
        (
            "F.adaptive_avg_pool2d(x, 1).flatten(1)",
            "torch.randn(2, 3, 8, 8)",
            "pass",
            ("adaptive_pool",),
        ),
        ("x.cummax(1)[0]", "torch.randn(4, 5)", "pass", ("cummax",)),
        ("x.t()", "torch.randn(4, 5)", "pass", ()),
        ("torch.special.i0(x)", "torch.randn(4, 5)", "pass", ()),
        ("x if x.sum() > 0 else -x", "torch.randn(4)", "pass", ("opaque",)),
    ],
)
def test_operators_are_known_whether_or_not_a_recipe_matches(forward, inputs, init, names) -> None:
    assert names_of(forward, inputs, init) == names


def test_what_takes_longest_comes_first_and_parts_before_their_nodes() -> None:
    forward, init = "torch.relu(self.l(x))", "self.l = torch.nn.Linear(512, 512)"
    inputs = "torch.randn(1024, 512)"
    assert names_of(forward, inputs, init) == ("linear", "pointwise")
    parts = (("pointwise", ("relu",)), ("matvec", ("linear",)))
    assert names_of(forward, inputs, init, parts) == ("matvec", "linear", "pointwise")
    fused = (("rms_norm", ("linear", "relu")),)
    assert names_of(forward, inputs, init, fused)[0] == "rms_norm"


# --- lookups of a graph


def test_lookups_do_not_depend_on_the_order_of_asking_and_are_no_part_of_equality() -> None:
    source = source_of("torch.relu(x) + torch.relu(x) * x")
    (_, graph), (_, other) = trace_source(source), trace_source(source)
    assert [user.name for user in graph.users("x")] == ["relu", "relu_1", "mul"]
    assert graph.node("relu").target == "aten.relu.default" and graph.node("x") is None
    assert graph.placeholder("x").kind == "input" and graph.placeholder("relu") is None
    assert [graph.place(node.name) for node in graph.nodes] == [0, 1, 2, 3]
    assert graph.depends_on("add", ["relu_1"]) and not graph.depends_on("mul", ["relu", "mul"])
    assert graph == other and OpGraph.__eq__(other, graph)


def test_lowering_is_chosen_by_arguments() -> None:
    _, graph = trace_source(source_of("F.dropout(x, 0.5, False).clone()"))
    rows = [find_operator(node.target) for node in graph.nodes]
    calls = [row.call(graph, node) for row, node in zip(rows, graph.nodes, strict=True)]
    chosen = [row.lowering_of(call) for row, call in zip(rows, calls, strict=True)]
    assert isinstance(chosen[0], Pointwise) and chosen[1] is Layout.IDENTITY
