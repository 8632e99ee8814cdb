"""What emitted modules keep of their parameters: made once, and anew whenever one changes."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kmem.codegen.steady import find_steady
from kmem.codegen.text.functions import split_functions
from kmem.codegen.text.written import written_parameters
from kmem.devices import named_target
from kmem.measure.source_check import check_source
from kmem.records import Contract
from kmem.skills import load_recipe, load_skill
from kmem.testing import emit_source, import_source, trace_source

SKILLS = Path(__file__).parents[1] / "skills"
PROBLEM = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, {inputs}):
        return {forward}
def get_inputs():
    return [torch.randn(5, 20)]
"""
LINEAR = PROBLEM.format(init="self.l = torch.nn.Linear(20, 9)", inputs="x", forward="self.l(x)")
#: (skill, what the module holds, its forward)
KEPT = {
    "two parts": ("split-fp16-matmul", "self.l = torch.nn.Linear(20, 9)", "self.l(x)"),
    "packed filter": (
        "split-half-conv",
        "self.c = torch.nn.Conv1d(1, 8, 3)",
        "self.c(x.unsqueeze(1))",
    ),
    "phases": (
        "transposed-conv-phases",
        "self.c = torch.nn.ConvTranspose1d(1, 8, 3, stride=2)",
        "self.c(x.unsqueeze(1))",
    ),
    "mask in training": (
        "flash-attention",
        "self.register_buffer('m', torch.rand(5, 5) > 0.5)",
        "torch.softmax((x @ x.transpose(0, 1)).masked_fill(self.m, -9.0), 1) @ x",
    ),
    "bias looked up": (
        "flash-attention",
        "self.b = torch.nn.Embedding(7, 3);"
        " self.register_buffer('at', torch.arange(75).view(3, 5, 5) % 7)",
        "torch.softmax(x @ x.transpose(0, 1) + self.b(self.at[0]).permute(2, 0, 1)[0], 1) @ x",
    ),
    "scaled before": (
        "split-fp16-matmul",
        "self.w = torch.nn.Parameter(torch.randn(9, 20))",
        "x @ (torch.relu(self.w) * 3).t()",
    ),
}


def write(source: str, skill: str) -> str:
    recipe = load_recipe(load_skill(SKILLS / skill))
    _, graph = trace_source(source)
    (site, *_) = recipe.match(graph, Contract())
    setting = recipe.space(site, named_target("h200")).settings()[0]
    return emit_source(source, graph, [(recipe, site, setting)])


class Pair:
    """A module and the one emitted for it; how often the latter has staged."""

    def __init__(self, source: str, skill: str = "split-fp16-matmul") -> None:
        module, _ = trace_source(source)
        self.emitted = import_source(write(source, skill))
        self.model, self.new = module.Model(), self.emitted.ModelNew()
        self.new.load_state_dict(self.model.state_dict())
        self.inputs = module.get_inputs()
        self.staged = 0
        stage = self.emitted._stage

        def count(*parameters: torch.Tensor) -> object:
            self.staged += 1
            return stage(*parameters)

        self.emitted._stage = count

    def agrees(self, new: torch.nn.Module | None = None) -> bool:
        new = new or self.new
        with torch.no_grad():
            self.model.load_state_dict(new.state_dict())
            return torch.allclose(new(*self.inputs), self.model(*self.inputs), atol=1e-4, rtol=1e-3)


def _changed(held: torch.Tensor) -> torch.Tensor:
    if held.dtype is torch.int64:  # indices stay some
        return held.flip(-1)
    return ~held if held.dtype is torch.bool else held * -1.5


@pytest.mark.parametrize("case", KEPT)
def test_what_is_made_of_a_weight_is_made_once_and_anew_when_it_changes(case: str) -> None:
    skill, init, forward = KEPT[case]
    pair = Pair(PROBLEM.format(init=init, inputs="x", forward=forward), skill)
    assert pair.agrees() and pair.agrees()
    assert pair.staged == 1
    with torch.no_grad():
        for held in (*pair.new.parameters(), *pair.new.buffers()):
            held.copy_(_changed(held))
    assert pair.agrees()
    assert pair.staged == 2


def test_an_operand_that_is_an_input_is_never_kept() -> None:
    source = PROBLEM.format(init="pass", inputs="x", forward="x @ x.t()")
    assert "kmem_staged" not in write(source, "split-fp16-matmul")


COSTS = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(4096, {k}))
    def forward(self, x, y):
        return x @ {weight}.t()
def get_inputs():
    return [torch.randn(256, {k}), torch.randn(4096, {k})]
"""


@pytest.mark.parametrize(("k", "split"), [(4096, "ahead"), (65536 * 2, "in_loop")])
def test_what_is_kept_of_a_weight_costs_a_call_nothing(k: int, split: str) -> None:
    """Reading 4096 x K of fp32 and writing it, or reading it for the scales alone."""
    recipe, device = load_recipe(load_skill(SKILLS / "split-fp16-matmul")), named_target("h200")
    costs = []
    for weight in ("y", "self.w", "(self.w * 2.0)"):
        _, graph = trace_source(COSTS.format(weight=weight, k=k))
        (site,) = recipe.match(graph, Contract())
        assert [operand.kept for operand in site.inputs] == [False, weight != "y"]
        settings = recipe.space(site, device).settings()
        setting = next(each for each in settings if each.get("split", "ahead") == split)
        costs.append(recipe.cost_ms(site, setting, device))
    passes = 2 if split == "ahead" else 1
    least_ms = passes * 4096 * k * 4 / device.dram_bytes_per_s * 1e3
    assert costs[0] - costs[1] >= least_ms
    assert costs[1] == costs[2]


def _write(module: torch.nn.Module) -> None:
    with torch.no_grad():
        module.l.weight.add_(0.5)


def _replace_twice(module: torch.nn.Module) -> None:
    # the second may be given the memory that the first had
    module.l.weight.data = module.l.weight.data * 2
    module.l.weight.data = module.l.weight.data * 2


def _load(module: torch.nn.Module) -> None:
    module.load_state_dict({name: value + 1 for name, value in module.state_dict().items()})


def _assign(module: torch.nn.Module) -> None:
    state = {name: value + 1 for name, value in module.state_dict().items()}
    module.load_state_dict(state, assign=True)


def _convert(module: torch.nn.Module) -> None:
    module.bfloat16().float()


def _transpose(module: torch.nn.Module) -> None:
    data = module.l.weight.data
    module.l.weight.data = data.flip(0).t().contiguous().t()


def _train(module: torch.nn.Module, **options: bool) -> None:
    # the reference records gradients; a fused optimizer does not count versions
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1, **options)
    with pytest.warns(UserWarning, match="no backward"):
        loss = module(torch.ones(5, 20)).square().sum()
    with torch.no_grad():
        module(torch.ones(5, 20))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def _train_fused(module: torch.nn.Module) -> None:
    _train(module, fused=True)


def _step_after_a_call(module: torch.nn.Module) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, fused=True)
    module.l.weight.sum().backward()
    with torch.no_grad():
        module(torch.ones(5, 20))
    optimizer.step()


@pytest.mark.parametrize(
    "change",
    [
        _write,
        _replace_twice,
        _load,
        _assign,
        _convert,
        _transpose,
        _train,
        _train_fused,
        _step_after_a_call,
    ],
)
def test_every_way_to_change_a_parameter_is_noticed(
    change: Callable[[torch.nn.Module], None],
) -> None:
    pair = Pair(LINEAR)
    assert pair.agrees()
    for _ in range(2):
        change(pair.new)
        assert pair.agrees()


def test_what_leaves_no_trace_is_staged_anew_on_request() -> None:
    pair = Pair(LINEAR)
    assert pair.agrees()
    pair.new.l.weight.data.mul_(2)
    pair.new.kmem_staged.forget()
    assert pair.agrees()


def test_parameters_without_versions_are_staged_at_every_call() -> None:
    pair = Pair(LINEAR)
    with torch.inference_mode():
        pair.new.l.weight = torch.nn.Parameter(torch.randn(9, 20))
        assert pair.agrees()
        pair.new.l.weight.mul_(2)
        assert pair.agrees()


def test_a_module_first_called_in_inference_mode_takes_changes_outside_of_it() -> None:
    pair = Pair(LINEAR)
    with torch.inference_mode():
        pair.new(*pair.inputs)
    _write(pair.new)
    assert pair.agrees()


def test_two_modules_and_copies_keep_their_own() -> None:
    pair = Pair(LINEAR)
    assert pair.agrees()
    other = pair.emitted.ModelNew()
    copied = copy.deepcopy(pair.new)
    pickled = pickle.loads(pickle.dumps(pair.new))
    _write(copied)
    _load(pickled)
    for _ in range(2):
        assert all(map(pair.agrees, (pair.new, other, copied, pickled)))
    assert pair.staged == 4
    assert not pickle.loads(pickle.dumps(pair.new)).kmem_staged.kept


def test_what_was_made_before_stays_where_it_is() -> None:
    """A CUDA graph goes on reading there."""
    pair = Pair(LINEAR)
    pair.agrees()
    ((_, _, made),) = pair.new.kmem_staged.kept.values()
    places = [value.data_ptr() for value in made[0]]
    _write(pair.new)
    assert pair.agrees()
    ((_, _, made),) = pair.new.kmem_staged.kept.values()
    assert [value.data_ptr() for value in made[0]] == places


def test_the_judge_lets_a_module_pass_that_keeps_weights() -> None:
    assert check_source(write(LINEAR, "split-fp16-matmul")) == []


@pytest.mark.parametrize(
    ("forward", "made"),
    [
        ("x @ (self.w * 2).t()", {"mul"}),
        ("x @ (self.w * 2).t() + self.w.sum()", {"mul", "sum_1"}),
        ("(x @ (self.w * 2).t(), (self.w * 2).t())", {"mul"}),  # the second is handed out
        ("x @ (self.w * 2).add_(x.sum()).t()", set()),
        ("x @ self.w.mul_(2).t()", set()),
        ("x @ (self.w * x.sum()).t()", set()),
    ],
)
def test_what_parameters_alone_decide(forward: str, made: set[str]) -> None:
    init = "self.w = torch.nn.Parameter(torch.randn(9, 20), requires_grad=False)"
    _, graph = trace_source(PROBLEM.format(init=init, inputs="x", forward=forward))
    assert find_steady(graph, graph.nodes).made == made


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("forward", "made", "made_in_training"),
    [
        ("x + self.b.running_mean * 2", {"mul"}, {"mul"}),
        ("self.b(x) + self.b.running_mean * 2", {"mul"}, set()),  # training moves it
        ("self.b(x) + self.b.running_mean[:1] * 2", {"mul"}, set()),
        ("x.masked_fill(self.b.running_var.bool(), 0.0)", {"to"}, {"to"}),
        ("x + self.b.weight[self.b.running_var.long()]", {"to", "index"}, {"to", "index"}),
        ("x + self.b.weight[x[0].long()]", set(), set()),
    ],
)
def test_what_buffers_alone_decide(forward, made, made_in_training, training) -> None:
    init = "self.b = torch.nn.BatchNorm1d(20)" + ("" if training else "; self.eval()")
    _, graph = trace_source(PROBLEM.format(init=init, inputs="x", forward=forward))
    assert find_steady(graph, graph.nodes).made == (made_in_training if training else made)


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("tl.store(y + 1, tl.load(x))", {"y"}),
        ("at = x\n    at += 4\n    tl.store(at, 0.0)", {"x"}),
        ("put(y, tl.load(x))", {"y"}),
        ("tl.store(moved(x), tl.load(y))", {"x"}),
        ("tl.store(y + value(x), 0.0)", {"y"}),
        ("tl.atomic_add(x, tl.load(y))", {"x"}),
        ("a, b = x, y\n    tl.store(b, 0.0)", {"x", "y"}),
        ("unknown(x)", {"x"}),
        ("apply(x, y, put)", {"x"}),  # what is handed in is known where it is called
        ("apply(x, y, value)", set()),
        ("apply(x, y, unknown)", {"x"}),
        ("tl.store(tl.load(x).to(tl.pointer_type(tl.float32)), 0.0)", {"x", "y"}),
    ],
)
def test_the_pointers_that_a_kernel_may_store_through(body: str, written: set[str]) -> None:
    text = f"""
@triton.jit
def put(place, value):
    tl.store(place, value)

@triton.jit
def moved(place):
    return place + tl.program_id(0)

@triton.jit
def value(place):
    return tl.load(place)

@triton.jit
def apply(place, other, PORT: tl.constexpr):
    PORT(place, tl.load(other)) if PORT is not None else other

@triton.jit
def kernel(x, y):
    {body}
"""
    functions = {function.name: function for function in split_functions(text)}
    assert written_parameters("kernel", functions) == written
