"""LSTM, GRU and RNN in one launch a layer: right in the interpreter, and as compiled for sm_90."""

import re

import pytest
import torch
from compile_sm90 import compile_jobs
from module_problems import recipe

from kmem.devices import named_target
from kmem.measure.oracle.running.module import ReferenceModule
from kmem.records import Contract, Problem, Workload
from kmem.testing import check_recipe, trace_source

NAME = "persistent-recurrent-weights"
H200 = named_target("h200")
SOURCE = """
import torch
BATCH, STEPS = {batch}, {steps}
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.{kind}({width}, {hidden}, {depth}, {words})
    def forward(self, x, *states):
        y, s = self.net(x{change}, {states})
        return (y, s) if isinstance(s, torch.Tensor) else (y, *s)
def get_inputs():
    shape = ({layers}, BATCH, {hidden})
    x = torch.randn({shape}, {width})
    return [x, torch.randn(shape), torch.randn(shape)]
"""
#: One program has all units and keeps them, or goes through them block by block.
KEPT = {"block_h": 32, "block_k": 32, "warps": 8, "ACCURACY": 1}
PASSING = {"block_h": 8, "block_k": 16, "warps": 4, "ACCURACY": 2}


def source_of(
    kind: str,
    words: str,
    *,
    sizes: tuple[int, int, int, int] = (3, 4, 20, 2),  # batch, steps, units, layers
    change: str = "",
) -> str:
    batch, steps = sizes[:2]
    hidden, depth = sizes[2:]
    return SOURCE.format(
        kind=kind,
        words=words,
        batch=batch,
        steps=steps,
        hidden=hidden,
        width=hidden // 2,
        states="states" if kind == "LSTM" else "states[0]",
        depth=depth,
        layers=depth * (2 if "bidirectional" in words else 1),
        shape="BATCH, STEPS" if "batch_first" in words else "STEPS, BATCH",
        change=change,
    )


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("kind", "words", "settings"),
    [
        ("LSTM", "batch_first=True", KEPT),
        ("GRU", "bidirectional=True", PASSING),
        ("LSTM", "bidirectional=True, bias=False", PASSING),
        ("GRU", "batch_first=True, bias=False", KEPT),
        ("RNN", "batch_first=True, bidirectional=True", KEPT),
        ("RNN", "nonlinearity='relu'", PASSING),
    ],
)
def test_all_steps_of_a_layer_are_one_launch(
    kind: str, words: str, settings: dict[str, int]
) -> None:
    source = source_of(kind, words)
    errors = check_recipe(recipe(NAME), source, H200, settings=[settings], tolerance=1e-6)
    assert len(errors) == 1


@pytest.mark.parametrize(
    ("kind", "words", "change", "is_covered"),
    [
        ("LSTM", "batch_first=True", "", True),
        ("LSTM", "dropout=0.1", "", False),
        ("GRU", "dropout=0.1", ".double().float()", False),
        ("GRU", "", ".double().float()", True),  # whatever made its input
    ],
)
def test_what_is_not_covered_is_not_matched(
    kind: str, words: str, change: str, is_covered: bool
) -> None:
    _, graph = trace_source(source_of(kind, words, change=change))
    assert bool(recipe(NAME).match(graph, Contract())) is is_covered


def test_no_more_programs_wait_for_one_another_than_run_at_once() -> None:
    found = recipe(NAME)
    _, graph = trace_source(source_of("LSTM", "bidirectional=True", sizes=(32, 4, 512, 2)))
    (site,) = found.match(graph, Contract())
    space = found.space(site, H200)
    first, second = space.settings(), space.settings(1)
    assert first and all(512 // each["block_h"] * 2 <= 64 for each in (*first, *second))
    # weights of so many units in two parts do not fit shared memory
    assert any(each["block_k"] == 512 for each in first)
    assert all(each["block_k"] < 512 for each in second) and second


@pytest.mark.parametrize(("allowed", "precision"), [(True, "tf32"), (False, "ieee")])
def test_products_are_rounded_as_cudnn_rounds_where_it_may(
    allowed: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lowest rung errs as TF32 does, and is exact where TF32 is forbidden."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
    lowest = {**KEPT, "ACCURACY": 0}
    source = source_of("LSTM", "batch_first=True", sizes=(3, 4, 32, 1))
    (error,) = check_recipe(recipe(NAME), source, H200, settings=[lowest], tolerance=1e-3).values()
    assert error > 1e-5 if precision == "tf32" else error < 1e-6
    site = recipe(NAME).match(trace_source(source)[1], Contract())[0]
    emission = recipe(NAME).emit(site, lowest)
    assert emission.own_size_only and not recipe(NAME).emit(site, KEPT).own_size_only


@pytest.mark.slow
@pytest.mark.parametrize(("rung", "products"), [(0, 32), (1, 96)])  # a warp's eight columns
def test_weights_stay_on_chip_and_steps_are_released_and_acquired(rung: int, products: int) -> None:
    source = source_of("LSTM", "batch_first=True", sizes=(10, 512, 256, 1))
    settings = {"block_h": 8, "block_k": 256, "warps": 4, "ACCURACY": rung}
    (kernels,) = compile_jobs([[NAME, source, "match", settings]], "ptx", "grid")
    (steps,) = [each for each in kernels if each["name"] == "kmem_recurrent_steps"]
    assert steps["grid"] == [32, 1] and steps["stack"] == 0
    text = steps["ptx"]
    loop = text[text.index("Loop Header") :]
    released, acquired = (
        re.search(r"red\.\S*release\.add", loop),
        re.search(r"ld\.\S*acquire", loop),
    )
    assert released and acquired and loop.count("mma.sync") == products
    # the four gates' inputs of the next step are on their way while programs wait
    assert loop[released.end() : acquired.start()].count("ld.global.b32") == 4
    assert "st.shared" not in loop[released.end() : acquired.start()]
    assert "cp.async" not in loop  # nothing of the weights is fetched again


@pytest.mark.parametrize(
    ("forward", "rounds"),
    [
        ("self.net(x)[0]", True),
        ("torch.ops.aten.gru.input(x, x[:1], [x], False, 1, 0.0, False, False, False)", True),
        ("torch.conv1d(x, x)", True),
        ("torch.tanh(x @ x)  # of an RNN", False),
    ],
)
def test_eager_may_be_in_tf32_where_cudnn_works(forward: str, rounds: bool) -> None:
    made = "self.net = torch.nn.LSTM(4, 4)" if "net" in forward else "pass"
    source = (
        "import torch\nclass Model(torch.nn.Module):\n    def __init__(self):\n"
        f"        super().__init__()\n        {made}\n    def forward(self, x):\n"
        f"        return {forward}\ndef get_inputs():\n    return [torch.randn(4, 4, 4)]\n"
    )
    problem = Problem("p", "p.py", source)
    cpu = torch.device("cpu")
    module = ReferenceModule(problem, Workload("full", {}), Contract(), cpu, seed=1)
    assert module.may_be_tf32 is module.stands_in is rounds
