"""How emitted modules get at parameters, and how they call the library."""

import ast
import copy
from pathlib import Path

import pytest
import torch
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode

from kmem.codegen.module import library_calls
from kmem.codegen.module.fetching import write_fetches
from kmem.devices import named_target
from kmem.problem.graph import Placeholder
from kmem.problem.operators.table import find_operator
from kmem.records import Contract
from kmem.skills import load_recipe, load_skill
from kmem.testing import emit_source, import_source, trace_source

SKILLS = Path(__file__).parents[1] / "skills"
#: Two blocks in a container, whose norms have one name; a parameter and a buffer of the module.
PROBLEM = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        return x + torch.relu(self.norm(self.linear(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.scale = nn.Parameter(torch.rand(8))
        self.register_buffer("shift", torch.rand(8))

    def forward(self, state):
        return self.blocks(state) * self.scale + self.shift


def get_inputs():
    return [torch.randn(5, 8)]
"""


def emitted() -> tuple[torch.nn.Module, torch.nn.Module, torch.Tensor, str]:
    """The problem's module, the emitted one with its state, an input, and the text."""
    module, graph = trace_source(PROBLEM)
    recipe = load_recipe(load_skill(SKILLS / "row-norm"))
    sites = recipe.match(graph, Contract())
    setting = next(iter(recipe.space(sites[0], named_target("h200")).settings()))
    text = emit_source(PROBLEM, graph, [(recipe, site, setting) for site in sites])
    model, candidate = module.Model(), import_source(text).ModelNew()
    candidate.load_state_dict(model.state_dict())
    return model, candidate, module.get_inputs()[0], text


def same(one: torch.nn.Module, other: torch.nn.Module, x: torch.Tensor) -> bool:
    with torch.no_grad():
        return torch.allclose(one(x), other(x), atol=1e-5)


def test_what_is_replaced_later_is_read() -> None:
    model, candidate, x, _ = emitted()
    assert same(model, candidate, x)
    for each in (model, candidate):
        torch.manual_seed(1)
        each.blocks[1].norm = torch.nn.LayerNorm(8)  # a submodule
        torch.nn.init.normal_(each.blocks[1].norm.weight)
        each.scale = torch.nn.Parameter(torch.randn(8))  # a parameter
        each.shift = torch.randn(8)  # a buffer
    assert same(model, candidate, x)
    with torch.no_grad():
        copied = copy.deepcopy(candidate)
        candidate.scale.zero_()
    assert same(model, copied, x)


def test_a_submodule_is_looked_up_once_and_no_name_stands_for_two() -> None:
    text = emitted()[3]
    (fetch,) = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name == "_fetch"
    ]
    made = [
        ast.unparse(target)
        for node in ast.walk(fetch)
        if isinstance(node, ast.Assign)
        for target in node.targets
    ]
    assert len(made) == len(set(made))
    assert sum("_modules['1']" in line for line in text.splitlines()) == 1
    assert "get_submodule" not in text


def test_modules_of_one_name_are_told_apart() -> None:
    state = [
        Placeholder("p_a", "parameter", "norm.weight", None),
        Placeholder("p_b", "parameter", "head.norm.weight", None),
        Placeholder("b_c", "buffer", "shift", None),
    ]
    assert write_fetches(state) == [
        "at_norm = self._modules['norm']",
        "at_head = self._modules['head']",
        "at_norm_of_2 = at_head._modules['norm']",
        "return (at_norm._parameters['weight'], at_norm_of_2._parameters['weight'], "
        "self._buffers['shift'],)",
    ]


def test_of_a_parameter_that_was_pruned_since_the_reference_operators_run() -> None:
    model, candidate, x, _ = emitted()
    for each in (model, candidate):
        prune.l1_unstructured(each.blocks[0].linear, "weight", 0.5)
    with pytest.warns(UserWarning, match="'weight' was given another form, as by pruning"):
        assert same(model, candidate, x)


# --- calls of the library

X, Y = torch.randn(4, 6, 8), torch.randn(4, 6, 8)
IMAGE = torch.randn(2, 4, 6, 6)
CHANNELS = [torch.rand(4) for _ in range(4)]
#: Arguments for each operator that has a shorter spelling.
ARGUMENTS: dict[str, tuple] = {
    "aten.add.Tensor": (X, Y),
    "aten.addmm.default": (X[0, 0], X[0], torch.randn(8, 8)),
    "aten.amax.default": (X, [1], True),
    "aten.avg_pool2d.default": (IMAGE, [2, 2], [2, 2]),
    "aten.batch_norm.default": (IMAGE, *CHANNELS, True, 0.1, 1e-5, True),
    "aten.bmm.default": (X, X.transpose(1, 2)),
    "aten.cat.default": ([X, Y], 1),
    "aten.clone.default": (X,),
    "aten.contiguous.default": (X.transpose(0, 1),),
    "aten.conv1d.default": (IMAGE[0], torch.randn(3, 6, 3), None, [1], [1], [1], 1),
    "aten.conv2d.default": (IMAGE, torch.randn(8, 2, 3, 3), None, [2, 2], [1, 1], [1, 1], 2),
    "aten.conv3d.default": (IMAGE[None], torch.randn(3, 2, 3, 3, 3), None, [1, 1, 1], [1, 1, 1]),
    "aten.conv_transpose1d.default": (IMAGE[0], torch.randn(6, 2, 3)),
    "aten.conv_transpose2d.input": (IMAGE, torch.randn(4, 2, 3, 3), None, [2, 2], [1, 1], [1, 1]),
    "aten.conv_transpose3d.input": (IMAGE[None], torch.randn(2, 2, 3, 3, 3), None, [2, 2, 2]),
    "aten.detach.default": (X,),
    "aten.div.Tensor": (X, 3.0),
    "aten.dropout.default": (X, 0.5, True),
    "aten.exp.default": (X,),
    "aten.expand.default": (X[:1], [4, -1, -1]),
    "aten.flatten.using_ints": (X, 1),
    "aten.gelu.default": (X,),
    "aten.group_norm.default": (IMAGE, 2, CHANNELS[0], CHANNELS[1], 1e-5),
    "aten.layer_norm.default": (X, [8], None, None, 1e-5, False),
    "aten.linear.default": (X, torch.randn(3, 8), torch.randn(3)),
    "aten.matmul.default": (X, X.transpose(1, 2)),
    "aten.max_pool2d.default": (IMAGE, [2, 2], [2, 2]),
    "aten.mean.dim": (X, [1], True),
    "aten.mm.default": (X[0], X[0].t()),
    "aten.mul.Tensor": (X, Y),
    "aten.permute.default": (X, [2, 0, 1]),
    "aten.relu.default": (X,),
    "aten.reshape.default": (X.transpose(0, 1), [24, 8]),
    "aten.scaled_dot_product_attention.default": (X[None], Y[None], Y[None]),
    "aten.select.int": (X, 1, 2),
    "aten.sigmoid.default": (X,),
    "aten.softmax.int": (X, -1),
    "aten.squeeze.dim": (X[:1], 0),
    "aten.sub.Tensor": (X, Y),
    "aten.sum.dim_IntList": (X, [0, 2]),
    "aten.t.default": (X[0],),
    "aten.tanh.default": (X,),
    "aten.transpose.int": (X, 0, -1),
    "aten.unfold.default": (X, 1, 2, 2),
    "aten.unsqueeze.default": (X, 0),
    "aten.view.default": (X, [-1, 8]),
}


class Log(TorchDispatchMode):
    """What reaches the device: operators, and their arguments but for tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        shown = [
            tuple(arg.shape) if isinstance(arg, torch.Tensor) else arg
            for arg in (*args, *(kwargs or {}).values())
        ]
        self.calls.append(f"{func} {shown}")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("target", [*library_calls.FUNCTIONS, *library_calls.METHODS])
def test_a_shorter_spelling_calls_the_same_operator(target: str) -> None:
    arguments = ARGUMENTS[target]
    packet, overload = target.removeprefix("aten.").rsplit(".", 1)
    with Log() as by_schema:
        getattr(getattr(torch.ops.aten, packet), overload)(*arguments)
    text = library_calls.spell(target, ["a0", *(f"a{n}" for n in range(1, len(arguments)))])
    with Log() as shorter:
        eval(text, {"torch": torch, **{f"a{n}": each for n, each in enumerate(arguments)}})
    assert by_schema.calls == shorter.calls != []
    assert find_operator(target) is not None
