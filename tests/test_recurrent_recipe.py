"""LSTM, GRU and RNN in one launch a layer: right in the interpreter, and as compiled for sm_90."""

import re

import pytest
from compile_sm90 import compile_jobs
from module_problems import recipe

from kmem.devices import named_target
from kmem.records import Contract
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
KEPT = {"block_h": 32, "block_k": 32, "warps": 8, "ACCURACY": 0}
PASSING = {"block_h": 8, "block_k": 16, "warps": 4, "ACCURACY": 1}


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
    settings = found.space(site, H200).settings()
    assert settings and all(512 // each["block_h"] * 2 <= 64 for each in settings)
    # weights of so many units in two parts do not fit shared memory
    assert all(each["block_k"] < 512 for each in settings)
    assert any(each["ACCURACY"] == 0 for each in settings)


@pytest.mark.slow
def test_weights_stay_on_chip_and_steps_are_released_and_acquired() -> None:
    source = source_of("LSTM", "batch_first=True", sizes=(10, 512, 256, 1))
    settings = {"block_h": 8, "block_k": 256, "warps": 4, "ACCURACY": 0}
    (kernels,) = compile_jobs([[NAME, source, "match", settings]], "ptx", "grid")
    (steps,) = [each for each in kernels if each["name"] == "kmem_recurrent_steps"]
    assert steps["grid"] == [32, 1] and steps["stack"] == 0
    text = steps["ptx"]
    loop = text[text.index("Loop Header") :]
    assert re.search(r"red\.\S*release\.add", loop) and re.search(r"ld\.\S*acquire", loop)
    assert loop.count("mma.sync") == 96  # a warp's eight columns, in three products
    assert "cp.async" not in loop  # nothing of the weights is fetched again
