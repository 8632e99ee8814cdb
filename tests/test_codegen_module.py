"""Emitted modules where values do not lie as they were traced: parameters moved to another memory
format, library operators that choose.
"""

import warnings
from pathlib import Path

import pytest
import torch

from kmem.codegen.module.assemble import assemble_module
from kmem.codegen.module.constants import swap_constants
from kmem.codegen.module.plan import WorkloadPlan
from kmem.devices import named_target
from kmem.recipes import Recipe
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
    def forward(self, x):
        return {forward}
def get_inputs():
    return [{inputs}]
"""


def emitted(
    skill: str, init: str, forward: str, inputs: str, site_name: str | None = None
) -> tuple[torch.nn.Module, torch.nn.Module, list]:
    """The problem's module, the emitted one with the same state, and inputs; `site_name`: write
    only this site.
    """
    source = PROBLEM.format(init=init, forward=forward, inputs=inputs)
    module, graph = trace_source(source)
    recipe: Recipe = load_recipe(load_skill(SKILLS / skill))
    sites = [site for site in recipe.match(graph, Contract()) if site_name in (None, site.name)]
    setting = next(iter(recipe.space(sites[0], named_target("h200")).settings()))
    text = emit_source(source, graph, [(recipe, site, setting) for site in sites])
    model, candidate = module.Model(), import_source(text).ModelNew()
    candidate.load_state_dict(model.state_dict())
    return model, candidate, module.get_inputs()


@pytest.mark.parametrize(
    ("skill", "forward"),
    [("tile-matmul", "self.l(x)"), ("fuse-pointwise-chain", "x * self.l.weight[0]")],
)
def test_a_module_whose_parameters_were_laid_out_anew_answers_alike(
    skill: str, forward: str
) -> None:
    model, candidate, inputs = emitted(
        skill, "self.l = torch.nn.Linear(20, 33)", forward, "torch.randn(17, 20)"
    )
    candidate.l.weight.data = candidate.l.weight.data.t().contiguous().t()
    with torch.no_grad():
        torch.testing.assert_close(candidate(*inputs), model(*inputs))


def test_what_a_library_operator_lays_out_otherwise_than_it_was_traced_is_read_right() -> None:
    init = "self.n = torch.nn.BatchNorm1d(6).eval()"
    swapped = "torch.randn(2, 6, 5).transpose(0, 1).contiguous().transpose(0, 1)"
    model, candidate, inputs = emitted(
        "fuse-pointwise-chain", init, "self.n(x).transpose(1, 2) + 1", swapped, "add"
    )
    assert model.n(*inputs).stride() != inputs[0].stride(), "tracing says that the norm keeps them"
    with torch.no_grad():
        torch.testing.assert_close(candidate(*inputs), model(*inputs))


def test_a_view_of_what_the_library_laid_out_otherwise_is_taken_all_the_same() -> None:
    """Attention on the GPU leaves its result laid out so that `view` is possible; elsewhere not."""
    model, candidate, inputs = emitted(
        "fuse-pointwise-chain", "pass", "torch.mm(x, x).view(4, 4, 16) * 2.0", "torch.randn(16, 16)"
    )
    mm = torch.mm
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        expected = model(*inputs)
        patch.setattr(torch, "mm", lambda a, b: mm(a, b).t().contiguous().t())
        assert torch.allclose(candidate(*inputs), expected, atol=1e-5)


@pytest.mark.parametrize("forward", ["x.transpose(0, 1) + 1", "torch.relu(x)"])
def test_what_lies_as_traced_by_construction_is_given_as_it_is(forward: str) -> None:
    source = PROBLEM.format(init="pass", forward=forward, inputs="torch.randn(4, 5)")
    _, graph = trace_source(source)
    recipe = load_recipe(load_skill(SKILLS / "fuse-pointwise-chain"))
    setting = {"BLOCK": 1024, "num_warps": 4, "HINT": "keep"}
    assert "_laid_out" not in emit_source(
        source, graph, [(recipe, site, setting) for site in recipe.match(graph, Contract())]
    )


def test_kernels_step_aside_for_parameters_of_other_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
import torch

class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.randn(width))
    def forward(self, x):
        return x + self.bias.sum()
def get_inputs():
    return [torch.randn(8)]
def get_init_inputs():
    return [64]
"""
    plans = []
    for name, text in (("full", source), ("small", source.replace("[64]", "[16]"))):
        _, graph = trace_source(text)
        plans.append(WorkloadPlan(name, graph, ()))
    written = assemble_module("two widths", source, plans)
    small = swap_constants(written.source, written.constants["small"])
    monkeypatch.setenv("KMEM_STRICT", "1")
    x = torch.randn(8)
    with torch.no_grad():
        for text, fitting, other in ((written.source, 64, 16), (small, 16, 64)):
            module = import_source(text)
            model = module.ModelNew(fitting)
            torch.testing.assert_close(model(x), x + model.bias.sum())
            with pytest.raises(RuntimeError, match="runs the reference operators"):
                module.ModelNew(other)(x)
            with monkeypatch.context() as lenient:
                lenient.delenv("KMEM_STRICT")
                model = module.ModelNew(other)
                with pytest.warns(UserWarning, match="runs the reference operators"):
                    torch.testing.assert_close(model(x), x + model.bias.sum())


@pytest.mark.parametrize(
    ("signature", "inputs", "kernels", "reference"),
    [
        ("x, mask=None", 1, ["(x)", "(x=x)"], ["(x, y)", "(x, mask=y)", "(x, None)"]),
        ("x, mask=None", 2, ["(x, y)", "(x, mask=y)"], ["(x)", "(x, None)"]),
        ("x, by=WIDE", 1, ["(x)"], ["(x, 3.0)"]),
        ("x, others=NONE", 2, ["(x, y)", "(x, others=y)"], ["(x)"]),
        ("x, *others", 1, ["(x)"], ["(x, y)", "(x, y, y)"]),
        ("x, *others", 2, ["(x, y)"], ["(x, y, y)"]),
        ("x, *, by=2.0, **named", 1, ["(x)"], ["(x, by=3.0)", "(x, more=y)"]),
    ],
)
def test_an_emitted_forward_takes_what_the_modules_own_takes(
    signature: str,
    inputs: int,
    kernels: list[str],
    reference: list[str],
) -> None:
    source = f"""
import torch

class Base(torch.nn.Module):
    WIDE = 2.0
    NONE = None
    def forward(self, {signature}):
        given = dict(locals())
        for name, value in given.items():
            if isinstance(value, tuple):
                for each in value:
                    x = x + each
            elif isinstance(value, dict):
                for each in value.values():
                    x = x + each
            elif name not in ("self", "x") and value is not None:
                x = x * value
        return x

class Model(Base):
    pass
def get_inputs():
    return [{", ".join(["torch.randn(4, 5)"] * inputs)}]
"""
    _, graph = trace_source(source)
    recipe = load_recipe(load_skill(SKILLS / "fuse-pointwise-chain"))
    setting = {"BLOCK": 1024, "num_warps": 4, "HINT": "keep"}
    sites = recipe.match(graph, Contract())
    module = import_source(emit_source(source, graph, [(recipe, each, setting) for each in sites]))
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    with torch.no_grad():
        for call in (*kernels, *reference):
            how = {"m": module.Model(), "n": module.ModelNew(), "x": x, "y": y}
            expected = eval(f"m{call}", how)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                torch.testing.assert_close(eval(f"n{call}", how), expected)
            assert bool(said) is (call in reference), call
        with pytest.raises(TypeError):
            module.ModelNew()()


GUARDED = """
import enum
import numpy
import torch
class Level(enum.IntEnum):
    TWO = 2
class Way(str, enum.Enum):
    DOWN = "down"
class Model(torch.nn.Module):
    def forward(self, x, given):
        return torch.relu(x + 1.0) * {factor}
def get_inputs():
    return [torch.randn(8, 16), {given}]
"""


@pytest.mark.parametrize(
    ("given", "factor"),
    [
        ("Level.TWO", "int(given)"),
        ("numpy.float64(0.5)", "given"),
        ("float('inf')", "(1.0 if given > 3 else 2.0)"),
        ("Way.DOWN", "(1.0 if given == 'down' else 2.0)"),
    ],
)
def test_what_is_expected_of_an_argument_is_python_whatever_kind_of_number_it_is(
    given: str, factor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMEM_STRICT", "1")
    source = GUARDED.format(given=given, factor=factor)
    module, graph = trace_source(source)
    recipe: Recipe = load_recipe(load_skill(SKILLS / "fuse-pointwise-chain"))
    (site,) = recipe.match(graph, Contract())
    setting = next(iter(recipe.space(site, named_target("h200")).settings()))
    candidate = import_source(emit_source(source, graph, [(recipe, site, setting)])).ModelNew()
    inputs = module.get_inputs()
    with torch.no_grad():
        torch.testing.assert_close(candidate(*inputs), module.Model()(*inputs))
