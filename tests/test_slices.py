"""Concatenations without copies: which values lie in them, who writes them there, what it costs."""

import subprocess
import sys
import types
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from compile_sm90 import compile_jobs

from kmem.codegen.module.assemble import assemble_module
from kmem.codegen.module.plan import SitePlan, WorkloadPlan
from kmem.devices import named_target
from kmem.explore.recipes.cover import cover_graph, find_options
from kmem.problem.costs.bound import node_cost_ms, node_costs_ms
from kmem.problem.graph import OpGraph
from kmem.problem.homes import Home, find_homes, home_in_memory, possible_homes
from kmem.records import Contract, Purity
from kmem.rewrites import Rewrite
from kmem.skills import load_recipe, load_rewrite, load_skill
from kmem.testing import check_recipe, check_rewrite, import_source, trace_source

SKILLS = Path(__file__).parent.parent / "skills"
CONTRACT, DEVICE = Contract(purity=Purity.TRITON), named_target("h200")


@cache
def rewrite() -> Rewrite:
    loaded = load_rewrite(load_skill(SKILLS / "concatenate-in-place"))
    assert loaded is not None
    return loaded


def problem(layers: str, forward: str, inputs: str = "2, 16, 6, 6") -> str:
    """A module with these statements in its constructor and its forward."""
    return f"""
import torch
from torch import nn
from torch.nn import functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
{_indented(layers)}

    def forward(self, x):
{_indented(forward)}

def get_inputs():
    return [torch.randn({inputs})]
"""


def _indented(statements: str) -> str:
    return "\n".join(f"        {line.rstrip()}" for line in statements.strip().splitlines())


FIRE = problem(
    """
self.squeeze = nn.Conv2d(16, 8, 1)
self.one = nn.Conv2d(8, 16, 1)
self.three = nn.Conv2d(8, 12, 3, padding=1)
self.relu = nn.ReLU(inplace=True)
""",
    """
x = self.relu(self.squeeze(x))
return torch.cat([self.relu(self.one(x)), self.relu(self.three(x))], 1)
""",
)
DENSE = problem(
    """
def layer(channels):
    return nn.Sequential(
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels, 8, 3, padding=1, bias=False),
        nn.Dropout(0.0),
    )
self.layers = nn.ModuleList(layer(16 + 8 * place) for place in range(3))
""",
    """
features = [x]
for layer in self.layers:
    features.append(layer(x))
    x = torch.cat(features, 1)
return x
""",
)
INCEPTION = problem(
    """
self.one = nn.Conv2d(16, 8, 1)
self.three = nn.Sequential(nn.Conv2d(16, 8, 1), nn.Conv2d(8, 16, 3, padding=1))
self.pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), nn.Conv2d(16, 8, 1))
self.plain = nn.MaxPool2d(3, stride=1, padding=1)
""",
    """
whole = torch.cat([self.one(x), self.three(x), self.pool(x), self.plain(x)], 1)
return torch.relu(whole) + 1.0
""",
)
UNET = problem(
    """
self.down = nn.Conv2d(16, 8, 3, padding=1)
self.middle = nn.Conv2d(8, 8, 3, padding=1)
self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
self.last = nn.Conv2d(16, 8, 3, padding=1)
""",
    """
kept = torch.relu(self.down(x))
deep = torch.relu(self.middle(F.max_pool2d(kept, 2)))
return self.last(torch.cat([self.up(deep), kept], 1))
""",
)
DEPTHWISE = problem(
    "self.a = nn.Conv2d(16, 16, 3, padding=1, groups=16)\nself.b = nn.Conv2d(16, 16, 1, groups=2)",
    """
left, right = torch.tanh(self.a(x)), self.b(x)
both = torch.cat([left, right], 1)
return both, F.avg_pool2d(torch.cat([both, x], 1), 3)
""",
)
NETWORKS = {
    "fire": FIRE,
    "dense": DENSE,
    "inception": INCEPTION,
    "unet": UNET,
    "depthwise": DEPTHWISE,
}


def in_place(source: str) -> tuple[types.ModuleType, OpGraph, OpGraph]:
    """A problem's module, its graph, and that with concatenations in place."""
    module, graph = trace_source(source)
    (rewriting,) = rewrite().rewritings(graph, CONTRACT)
    return module, graph, rewriting.graph


@cache
def recipes() -> dict[str, object]:
    skills = [load_skill(place) for place in sorted(SKILLS.iterdir()) if place.is_dir()]
    return {each.name: found for each in skills if (found := load_recipe(each)) is not None}


def written(source: str, graph: OpGraph, names: Sequence[str] | None = None) -> str:
    """The module of the cheapest cut by these recipes, by default all."""
    known = {name: recipe for name, recipe in recipes().items() if names is None or name in names}
    options = find_options({"full": graph}, known, CONTRACT, DEVICE)
    chosen = cover_graph(graph, options, CONTRACT, DEVICE)
    plans = [
        SitePlan(each.site, each.recipe.emit(each.site, each.ranked[0][1]), each.recipe.name)
        for each in chosen
    ]
    return assemble_module("slices", source, [WorkloadPlan("full", graph, tuple(plans))]).source


def run_both(problem: types.ModuleType, source: str) -> tuple[object, object, dict, dict]:
    """What a model and its written form return, and the buffers that they leave."""
    made = import_source(source)
    torch.manual_seed(0)
    model = problem.Model()
    new = made.ModelNew()
    new.load_state_dict(model.state_dict())
    (x,) = problem.get_inputs()
    with torch.no_grad():
        results = model(x), new(x)
    return *results, dict(model.named_buffers()), dict(new.named_buffers())


def assert_close(one: object, other: object) -> None:
    pairs = zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
    for expected, found in pairs:
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_written_in_place_computes_the_same(name: str, monkeypatch) -> None:
    monkeypatch.setenv("KMEM_STRICT", "1")
    module, _, graph = in_place(NETWORKS[name])
    source = written(NETWORKS[name], graph)
    expected, found, before, after = run_both(module, source)
    assert_close(expected, found)
    assert before.keys() == after.keys()
    for key, value in before.items():
        torch.testing.assert_close(after[key], value, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_where_the_library_makes_all_parts_they_are_copied_into_place(name: str) -> None:
    module, _, graph = in_place(NETWORKS[name])
    expected, found, *_ = run_both(module, written(NETWORKS[name], graph, ()))
    assert_close(expected, found)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_rewrite_keeps_its_contract(name: str) -> None:
    check_rewrite(rewrite(), NETWORKS[name], expect=1)


def test_a_fire_module_has_one_allocation_and_no_copy() -> None:
    _, _, graph = in_place(FIRE)
    source = written(FIRE, graph, ("staged-half-conv",))
    forward = source[source.index("def _forward") :]
    assert "torch.ops" not in forward and "copy_" not in forward
    assert forward.count("torch.empty((2, 28, 6, 6)") == 1
    assert "cat.narrow(1, 0, 16)" in forward and "cat.narrow(1, 16, 12)" in forward


def test_a_dense_block_grows_in_one_allocation_and_copies_its_input_once() -> None:
    _, graph, placed = in_place(DENSE)
    homes = find_homes(placed)
    assert find_homes(graph) == {}
    assert homes["cat"] == Home("cat_1", 1, 0, 24)
    assert homes["dropout"] == Home("cat", 1, 16, 8)
    assert home_in_memory(homes, "dropout_1") == Home("cat_2", 1, 24, 8)
    source = written(DENSE, placed)
    forward = source[source.index("def _forward") :]
    assert "cat = cat_2.narrow(1, 0, 24)\n" in forward
    assert forward.count(".copy_(") == 1 and "cat.narrow(1, 0, 16).copy_(x)" in forward


def test_what_is_copied_is_what_a_concatenation_costs() -> None:
    _, graph, placed = in_place(DENSE)

    def cats_ms(each: OpGraph) -> list[float]:
        nodes = [node for node in each.nodes if node.name.startswith("cat")]
        return [node_cost_ms(each, node, DEVICE, CONTRACT) for node in nodes]

    assert min(cats_ms(graph)) > 0
    first, *others = cats_ms(placed)
    moved = 2 * graph.spec("x").bytes
    copy_ms = 1e3 * moved / (0.885 * DEVICE.dram_bytes_per_s) + DEVICE.launch_ms
    assert first == pytest.approx(copy_ms, rel=0.2)
    assert others == [0.0, 0.0]
    # a part that the library makes is copied to where it lies
    before = node_costs_ms(graph, DEVICE, CONTRACT)["conv2d"]
    alone = node_costs_ms(placed, DEVICE, CONTRACT)
    assert alone["conv2d"] == before and alone["dropout"] > DEVICE.launch_ms


NOWHERE = {
    "a part is returned": "y = torch.tanh(x)\nreturn y, torch.cat([y, x], 1)",
    "a part is a view": "return torch.cat([x.view(2, 16, 6, 6), x[:, :4]], 1)",
    "a part is seen through a view": (
        "y = torch.tanh(x)\nreturn torch.cat([y, x], 1), y.view(2, -1) + 1.0"
    ),
    "a part is changed later": (
        "y = torch.tanh(x)\nz = torch.cat([y, x], 1)\ny.add_(1.0)\nreturn z + y.sum()"
    ),
    "the result is changed": "return torch.cat([torch.tanh(x), x], 1).relu_()",
    "a view of the result is changed": (
        "z = torch.cat([torch.tanh(x), x], 1)\nz[:, 3].add_(1.0)\nreturn z * 2.0"
    ),
    "a part was a view before it was changed": (
        "y = torch.tanh(x)\nreturn torch.cat([y[:, :8].relu_(), x], 1), y"
    ),
    "parts are of other types": "return torch.cat([torch.tanh(x), x.double()], 1)",
    "a part is made of parameters": "return torch.cat([torch.tanh(self.w), x], 1)",
}


@pytest.mark.parametrize("why", NOWHERE)
def test_nothing_lies_in_a_concatenation_where_somebody_could_tell(why: str) -> None:
    source = problem("self.w = nn.Parameter(torch.randn(2, 3, 6, 6))", NOWHERE[why])
    check_rewrite_finds_nothing(source)


def check_rewrite_finds_nothing(source: str) -> None:
    _, graph = trace_source(source)
    assert possible_homes(graph) == {}
    assert list(rewrite().rewritings(graph, CONTRACT)) == []


def test_a_value_in_two_concatenations_lies_in_the_last_and_is_copied_to_the_other() -> None:
    source = problem(
        "pass",
        "y = torch.tanh(x)\nreturn torch.cat([y, x], 1), torch.cat([x, y], 1), torch.cat([y, y])",
    )
    module, _, graph = in_place(source)
    assert find_homes(graph) == {"tanh": Home("cat_1", 1, 16, 16)}
    expected, found, *_ = run_both(module, written(source, graph))
    assert_close(expected, found)


def test_parts_along_the_first_axis_need_no_other_strides() -> None:
    source = problem("pass", "return torch.cat([torch.tanh(x), torch.relu(x) * 2.0])")
    module, graph = trace_source(source)
    assert find_homes(graph)["mul"] == Home("cat", 0, 2, 2)
    text = written(source, graph)
    assert "copy_" not in text[text.index("def _forward") :]
    expected, found, *_ = run_both(module, text)
    assert_close(expected, found)


def test_other_inputs_run_the_reference_operators() -> None:
    module, _, graph = in_place(FIRE)
    made = import_source(written(FIRE, graph))
    torch.manual_seed(0)
    model = module.Model()
    new = made.ModelNew()
    new.load_state_dict(model.state_dict())
    x = torch.randn(3, 16, 5, 5)
    with torch.no_grad(), pytest.warns(UserWarning, match="reference operators"):
        found = new(x)
    assert_close(model(x).detach(), found)
    with pytest.warns(UserWarning, match="gradients are recorded"):
        assert new(module.get_inputs()[0]).requires_grad


STRIPS = {"depths": 1, "rows": 4, "groups": 16, "shift": "load", "strips": 8, "warps": 4}
#: Convolutions of a half of the channels, as a split leaves it: skill, layer, and its settings.
READERS = {
    "staged": (
        "staged-half-conv",
        "nn.Conv2d(64, 128, 3, padding=1)",
        {
            "terms": 1,
            "block_p": 128,
            "block_co": 128,
            "block_k": 64,
            "copy_bytes": 16,
            "warps": 8,
            "stages": 3,
            "sums_along": "positions",
            "ACCURACY": 0,
        },
    ),
    "direct": (
        "implicit-gemm-conv",
        "nn.Conv2d(64, 128, 1)",
        {"block_p": 128, "block_co": 128, "block_k": 16, "ACCURACY": 0},
    ),
    "depthwise": (
        "depthwise-rolling-rows",
        "nn.Conv2d(64, 64, 3, padding=1, groups=64)",
        {
            "depths": 1,
            "rows": 4,
            "lanes": 4,
            "groups": 16,
            "shift": "load",
            "strips": 8,
            "warps": 4,
        },
    ),
    "pooling": (
        "separable-pooling",
        "nn.MaxPool2d(3, 2, 1)",
        {
            "depths": 1,
            "rows": 4,
            "lanes": 2,
            "groups": 16,
            "shift": "load",
            "strips": 8,
            "warps": 4,
        },
    ),
}


def half_read_by(layer: str, inputs: str) -> str:
    return problem(f"self.layer = {layer}", "return self.layer(x.chunk(2, 1)[1])", inputs)


@pytest.mark.parametrize("name", READERS)
def test_a_half_of_the_channels_is_read_where_it_lies(name: str) -> None:
    skill, layer, _ = READERS[name]
    source = half_read_by(layer, "2, 128, 6, 6")
    module, graph = trace_source(source)
    text = written(source, graph, (skill,))
    forward = text[text.index("def _forward") :]
    assert "_launch_" in forward and "_laid_out(getitem" not in forward
    expected, found, *_ = run_both(module, text)
    assert_close(expected, found)


@pytest.mark.parametrize("gather", ["no", "row", "window"])
def test_few_channels_of_many_are_staged_with_their_taps(gather: str) -> None:
    source = half_read_by("nn.Conv2d(4, 8, 3, padding=1)", "2, 8, 6, 6")
    recipe = recipes()["staged-half-conv"]
    _, graph = trace_source(source)
    (site,) = recipe.match(graph, CONTRACT)
    settings = recipe.space(site, DEVICE).settings()
    wanted = next(each for each in settings if each["gather"] == gather)
    check_recipe(recipe, source, DEVICE, settings=[wanted], tolerance=1e-6)


@pytest.mark.slow
def test_what_reads_slices_spills_no_more_on_sm_90_than_what_reads_whole_tensors() -> None:
    shapes = (
        half_read_by,
        lambda layer, _: problem(f"self.layer = {layer}", "return self.layer(x)", "8, 64, 56, 56"),
    )
    jobs = [
        (skill, write(layer, "8, 128, 56, 56"), "match", settings)
        for skill, layer, settings in READERS.values()
        for write in shapes
    ]
    compiled = compile_jobs(jobs)
    for sliced, whole in zip(compiled[::2], compiled[1::2], strict=True):
        for one, other in zip(sliced, whole, strict=True):
            assert (one["local"], one["stack"]) == (other["local"], other["stack"]) == (0, 0)
            assert one["registers"] <= other["registers"] + 16
            assert one["wide_loads"] == other["wide_loads"]
            assert one["async_copies"] == other["async_copies"]


@pytest.mark.parametrize("name", NETWORKS)
def test_linters_find_nothing_to_say_of_modules_with_slices(name: str, tmp_path: Path) -> None:
    _, _, graph = in_place(NETWORKS[name])
    for number, names in enumerate((None, ())):
        file = tmp_path / f"module_{number}.py"
        file.write_text(written(NETWORKS[name], graph, names))
        command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", str(file)]
        checked = subprocess.run(command, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout
