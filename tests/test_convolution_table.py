"""tools/convolution_table.py: what it measures, that it goes on, and what its page says."""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kmem.devices import named_target
from kmem.recipes import Site
from kmem.records import Contract
from kmem.skills import load_recipe, load_skill
from kmem.testing import emit_source, trace_source

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import convolution_clock  # noqa: E402 - tools are no package
import convolution_table  # noqa: E402
from convolution_report import write_table  # noqa: E402
from convolution_shapes import SHAPES, Shape  # noqa: E402

H200 = named_target("h200")
SMALL = Shape("small", "Conv2d(8, 16, 3, padding=1)", (2, 8, 7, 9), result="F.relu(y)")


def test_every_kind_of_convolution_is_in_the_table_once() -> None:
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)
    calls = " ".join(shape.call for shape in SHAPES)
    for kind in ("Conv1d", "Conv3d", "ConvTranspose2d", "dilation=2", "groups=4", "groups=64"):
        assert kind in calls
    results = " ".join(shape.result for shape in SHAPES)
    for tail in ("mish(F.mish", "hardswish", "max_pool2d", ".min(1", "softmax(1)", "logsumexp(1"):
        assert tail in results
    assert {shape.dtype for shape in SHAPES} == {"float32", "bfloat16", "float16"}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_shape_is_traced_and_some_recipe_writes_it(shape: Shape) -> None:
    _, graph = trace_source(shape.source)
    assert graph.opaque_reason is None
    assert convolution_table.convolution_flops(graph) > 1e9
    recipes = convolution_table.convolution_recipes().values()
    assert any(recipe.match(graph, Contract()) for recipe in recipes)


def test_flops_are_those_of_the_taps_that_hit_the_image() -> None:
    _, graph = trace_source(Shape("valid", "Conv2d(3, 5, 2)", (2, 3, 4, 6)).source)
    assert convolution_table.convolution_flops(graph) == 2 * (2 * 5 * 3 * 5) * (3 * 2 * 2)


def staged_site() -> tuple[object, Site]:
    _, graph = trace_source(SMALL.source)
    recipe = load_recipe(load_skill(ROOT / "skills" / "staged-half-conv"))
    (site,) = recipe.match(graph, Contract())
    return recipe, site


def test_settings_begin_with_the_models_choice_and_bring_other_values_before_more_of_the_same() -> (
    None
):
    recipe, site = staged_site()
    chosen = convolution_table.choose_settings(recipe, site, H200, 4)
    costs = [cost_ms for _, cost_ms in chosen[:4]]
    every = recipe.space(site, H200).settings()
    assert costs[0] == min(recipe.cost_ms(site, each, H200) for each in every)
    assert costs == sorted(costs)
    seen: set[tuple[str, object]] = set()
    for settings, _ in chosen[:4]:
        assert not set(settings.items()) <= seen
        seen.update(settings.items())
    everything = convolution_table.choose_settings(recipe, site, H200, 10**6)
    assert len(everything) == len(every)


def test_what_no_card_has_tried_is_among_the_settings() -> None:
    recipe, site = staged_site()
    chosen = convolution_table.choose_settings(recipe, site, H200, 1)
    assert {settings["gather"] for settings, _ in chosen} == {"no", "row", "window"}
    offered = recipe.space(site, H200).knobs["programs"]
    assert {settings["programs"] for settings, _ in chosen} == {*offered} != {0}


def test_a_module_is_timed_and_held_to_float64(tmp_path: Path) -> None:
    problem = tmp_path / "small.py"
    problem.write_text(SMALL.source)
    subject = convolution_clock.make_subject(problem, "cpu")
    asked = []

    def clock(call: object, count: int) -> list[float]:
        asked.append(count)
        call()
        return [4.0, 2.0, *[3.0] * (count - 2)]

    recipe, site = staged_site()
    settings = convolution_table.choose_settings(recipe, site, H200, 1)[0][0]
    _, graph = trace_source(SMALL.source)
    text = emit_source(SMALL.source, graph, [(recipe, site, settings)])
    found = convolution_clock.measure_kernel(subject, text, clock)
    assert (found["ms"], found["low_ms"], found["high_ms"]) == (3.0, 2.0, 4.0)
    assert asked == [3, 26] and 0 < found["error"] < 1e-6
    eager = convolution_clock.measure_library(subject, "eager", clock)
    half = convolution_clock.measure_library(subject, "cudnn fp16", clock)
    assert eager["error"] < 1e-6 and 1e-4 < half["error"] < 1e-2
    wrong = text.replace("out = torch.empty", "out = 2 + torch.empty").replace(
        "return out", "return out + 1"
    )
    assert convolution_clock.measure_kernel(subject, wrong, clock)["error"] > 0.1


def test_a_row_that_fails_says_why_and_is_no_end_of_the_table() -> None:
    found = convolution_clock.measure_on_gpu("no such problem", "eager", None, 1)
    assert set(found) == {"failure"} and "no such problem" in found["failure"]


def row(family: str, ms: float | None, predicted_ms: float | None = None, **more: object) -> dict:
    settings = more.pop("settings", {})
    found = {"device": "H", "shape": "S", "family": family, "settings": settings, "flops": 4e11}
    found |= {"kernel": json.dumps(settings), **more}
    if ms is not None:
        found |= {"ms": ms, "error": more.get("error", 3e-4)}
    if predicted_ms is not None:
        found |= {"predicted_ms": predicted_ms, "registers": 128, "spilled_bytes": 0}
        found.setdefault("left_to_eager", 0)
    return found


def test_rows_go_on_behind_a_line_that_was_cut_off(tmp_path: Path) -> None:
    place = tmp_path / "rows.jsonl"
    rows = convolution_table.Rows(place)
    rows.add(row("eager", 1.0))
    rows.add(row("own", None, 0.5, failure="out of memory"))
    place.write_text(place.read_text() + '{"device": "H", "sha')
    known = convolution_table.Rows(place)
    assert known.has(row("eager", None), again=True)
    assert known.has(row("own", None), again=False) and not known.has(row("own", None), again=True)
    assert not known.has(row("own", None, settings={"tile": 64}), again=False)


def test_the_page_compares_with_the_library_and_lists_what_was_mispredicted() -> None:
    page = write_table(
        [
            row("eager", 2.0),
            row("cudnn fp16", 0.5),
            row("own", 9.0, 0.9, settings={"tile": 64}, kernel="old"),
            row("own", 1.0, 0.9, settings={"tile": 64}),
            row("own", 0.8, 1.6, settings={"tile": 128}),
            row("own", 5.0, 0.1, settings={"tile": 32}, left_to_eager=2),
            row("loose", 0.4, 0.4, error=7e-4),
            row("broken", None, 1.0, failure="CUDA error | illegal\naddress"),
        ]
    )
    lines = page.splitlines()
    (own,) = (line for line in lines if line.startswith("| S | own | 0.8000 | 500 |"))
    assert own == (
        "| S | own | 0.8000 | 500 | 2.50 | 0.62 | 3.0e-04 / 3.0e-04 | 128 | 0 | 1.6000 | 2.00 | 3 "
        "| tile 128 |"
    )
    assert any("7.0e-04 / 3.0e-04 (too much)" in line for line in lines)
    assert "### 1 of 3 settings are mispredicted" in page
    assert "| S | own | 1.0000 | 0.8000 | 1.25 | tile 128 |" in lines
    assert "| S | broken | CUDA error / illegal address |  |" in lines


@pytest.mark.slow
def test_without_a_gpu_a_call_compiles_and_the_next_goes_on(tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "tools" / "convolution_table.py"), "--out", str(tmp_path)]
    words += ["--only", "1x1, stride 2", "--family", "implicit*", "--jobs", "1"]
    done = subprocess.run([*words, "--settings", "1"], capture_output=True, text=True, check=True)
    assert "complete" in done.stdout
    (first,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert first["registers"] > 32 and first["spilled_bytes"] == 0 and first["predicted_ms"] > 0
    assert first["main"].endswith("direct_conv") and "ms" not in first
    subprocess.run([*words, "--settings", "1"], capture_output=True, text=True, check=True)
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 1
    assert "implicit-gemm-conv" in (tmp_path / "table.md").read_text()


def test_no_row_is_begun_once_the_time_is_up(tmp_path: Path) -> None:
    options = argparse.Namespace(
        out=tmp_path, seconds=-1.0, only="*", family="*", settings=1, jobs=1, gpu=False, again=False
    )
    rows = convolution_table.Rows(tmp_path / "rows.jsonl")
    began = time.monotonic()
    assert not convolution_table.fill(options, H200, rows)
    assert rows.by_key == {} and time.monotonic() - began < 30
