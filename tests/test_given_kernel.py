"""`--from`: a user's own kernel is judged as it stands, its numbers move, and models mend it."""

import ast
import json
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from scripted_evaluator import ScriptedEvaluator, fate, kernel_text, make_run, walk
from scripted_models import repair_answer
from scripted_server import Reply, ScriptedServer, Turn
from test_llm_run import role_of, script

from kmem.cli import cli
from kmem.explore.given.tunables import make_tunable
from kmem.interfaces import GIVEN, KNOBS
from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect
from kmem.records import Attempt, Kernel, Measurement, Move, Run, RunResult, Status
from kmem.run.report.starting import describe_start
from kmem.serialize import from_json, to_json

pytestmark = pytest.mark.usefixtures("shared_template")

HEAD = '''\
"""A kernel of one's own."""
import torch
import triton
import triton.language as tl
'''
BODY = """
@triton.jit
def scale(x, y, n, N: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr = 1):
    for step in range(GROUP):
        at = (tl.program_id(0) * GROUP + step) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, mask=at < n) * 2.0, mask=at < n)
"""


def file_with(launches: str, decorator: str = "", constants: str = "") -> str:
    body = BODY.replace("@triton.jit", f"{decorator}\n@triton.jit") if decorator else BODY
    module = "class ModelNew(torch.nn.Module):\n    def forward(self, x, y, n):\n"
    return (
        HEAD
        + constants
        + body
        + "\n"
        + module
        + textwrap.indent(textwrap.dedent(launches), " " * 8)
    )


def space_of(source: str) -> dict[str, tuple]:
    tunable = make_tunable(Kernel(source))
    return dict(tunable.kernel.knob_space) if tunable else {}


# ---- which numbers are knobs


def test_a_literal_of_a_launch_gets_a_name_and_nothing_else_changes() -> None:
    source = file_with("scale[(n // 64,)](x, y, n, 4096, BLOCK=64, num_warps=2, num_stages=1)\n")
    tunable = make_tunable(Kernel(source))
    text = tunable.kernel.source
    assert "BLOCK=TUNED_BLOCK, num_warps=TUNED_NUM_WARPS, num_stages=TUNED_NUM_STAGES)" in text
    assert "x, y, n, 4096," in text  # a size of the problem is none of its numbers to move
    assert space_of(source) == {
        "TUNED_BLOCK": (16, 32, 64, 128, 256),
        "TUNED_NUM_STAGES": (1, 2, 3, 4, 5),
        "TUNED_NUM_WARPS": (1, 2, 4, 8, 16),
    }
    # with the numbers put back it is the text that was given
    for name, value in {"BLOCK": 64, "NUM_WARPS": 2, "NUM_STAGES": 1}.items():
        text = text.replace(f"TUNED_{name} = {value}\n", "").replace(f"TUNED_{name}", str(value))
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(source))


def test_a_local_variable_is_followed_so_that_grid_and_launch_agree() -> None:
    source = file_with(
        """\
        block = 256
        scale[(triton.cdiv(n, block),)](x, y, n, 4096, BLOCK=block, num_warps=4, num_stages=2)
        """
    )
    text = make_tunable(Kernel(source)).kernel.source
    assert "block = TUNED_BLOCK\n" in text
    assert "triton.cdiv(n, block)" in text


def test_what_is_computed_or_assigned_twice_is_left_alone() -> None:
    source = file_with(
        """\
        block = 256
        block = block * 2
        for width in (32, 64):
            scale[(1,)](x, y, n, 1, BLOCK=block, GROUP=width, num_warps=4, num_stages=2)
        """
    )
    assert set(space_of(source)) == {"TUNED_NUM_WARPS", "TUNED_NUM_STAGES"}


def test_constants_of_the_module_stay_where_they_are() -> None:
    source = file_with(
        "scale[(1,)](x, y, n, 1, BLOCK=ROWS, num_warps=WARPS, num_stages=STAGES)\n",
        constants="ROWS = 128\nWARPS: int = 8\nSTAGES = 2\n",
    )
    tunable = make_tunable(Kernel(source))
    assert tunable.kernel.source == source
    assert dict(tunable.kernel.knob_space)["ROWS"] == (32, 64, 128, 256, 512)


def test_settings_that_a_launch_leaves_to_triton_can_be_moved() -> None:
    source = file_with("scale[(1,)](x, y, n, 1, BLOCK=x.shape[0])\n")
    text = make_tunable(Kernel(source)).kernel.source
    assert "BLOCK=x.shape[0], num_warps=TUNED_NUM_WARPS, num_stages=TUNED_NUM_STAGES)" in text
    assert "TUNED_NUM_WARPS = 4\nTUNED_NUM_STAGES = 3\n" in text


CONFIGURATIONS = """\
@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 128}, num_warps=4),
        triton.Config({"BLOCK": 512}, num_warps=8),
    ],
    key=["n"],
)"""


def test_configurations_of_an_autotuner_are_tried_as_the_user_listed_them() -> None:
    tunable = make_tunable(Kernel(file_with("scale[(1,)](x, y, n, 1)\n", CONFIGURATIONS)))
    (other,) = tunable.configured()
    assert "TUNED_BLOCK = 512\nTUNED_NUM_WARPS = 8\n" in other.source
    assert (
        "configs=[triton.Config({'BLOCK': TUNED_BLOCK}, num_warps=TUNED_NUM_WARPS)],"
        in other.source
    )
    assert dict(other.knob_space) == {"TUNED_BLOCK": (128, 512), "TUNED_NUM_WARPS": (4, 8)}


@pytest.mark.parametrize(
    "decorator",
    [
        CONFIGURATIONS.replace('key=["n"]', 'key=["n"], reset_to_zero=["y"]'),
        CONFIGURATIONS.replace("num_warps=8)", "num_warps=8, pre_hook=clear)"),
        CONFIGURATIONS.replace("512", "WIDE"),
        "@triton.autotune(configs=all_configurations(), key=['n'])",
    ],
)
def test_an_autotuner_that_does_more_than_choose_stays(decorator: str) -> None:
    assert space_of(file_with("scale[(1,)](x, y, n, 1)\n", decorator)) == {}


def test_equal_numbers_of_one_kernel_share_a_name_and_taken_names_are_left() -> None:
    source = file_with(
        """\
        TUNED_BLOCK = 3
        scale[(1,)](x, y, n, 1, BLOCK=64, num_warps=4, num_stages=2)
        scale[(1,)](x, y, n, 2, BLOCK=64, num_warps=4, num_stages=2)
        """
    )
    assert set(space_of(source)) == {"TUNED_BLOCK_2", "TUNED_NUM_WARPS", "TUNED_NUM_STAGES"}


# ---- runs


class TiledEvaluator(ScriptedEvaluator):
    """A kernel with a tile is the faster the nearer that is to 256."""

    def screen(self, kernels: list[Kernel], on_result: object, **others: object) -> None:
        def report(index: int, measurement: Measurement) -> None:
            timing = measurement.timing
            if timing is not None:
                tile = fate(kernels[index].source).get("BLOCK", 256)
                slower = timing.latency_ms * max(tile, 256) / min(tile, 256)
                measurement = replace(measurement, timing=replace(timing, latency_ms=slower))
            on_result(index, measurement)

        super().screen(kernels, report, **others)


def given_kernel(takes_ms: float, fails: str = "", tile: int = 64) -> Kernel:
    text = kernel_text(takes_ms, fails=fails)
    text = text.replace("class ModelNew", f"BLOCK = {tile}\n{LAUNCHED}")
    return Kernel(f"import triton\nimport triton.language as tl\n{text}")


LAUNCHED = BODY.replace("@triton.jit", "@triton.jit").replace(
    "GROUP: tl.constexpr = 1", "GROUP: tl.constexpr"
) + ("\n\ndef launch(x):\n    scale[(1,)](x, x, 1, 1, BLOCK=BLOCK)\n\n\nclass ModelNew")


def run_from(
    home: Path, start: Kernel, base_url: str = "", *, models: bool = False
) -> tuple[Run, RunResult, list[Attempt]]:
    run = make_run(home, base_url=base_url)
    authors = (GIVEN, "llm") if models else (GIVEN, "recipes")
    run = replace(run, start=start, authors=authors, models=run.models if models else ())
    with Memory(home / "kmem.db") as memory:
        result, _ = walk(run, memory, TiledEvaluator)
        return run, result, memory.runs.attempts("r1")


def test_without_models_and_recipes_the_numbers_of_the_kernel_are_searched(tmp_path: Path) -> None:
    start = given_kernel(4.0)
    run, result, attempts = run_from(tmp_path, start)
    assert attempts[0].candidate.kernel.source == start.source
    assert {each.candidate.author for each in attempts} == {GIVEN}
    assert fate(result.best.candidate.kernel.source)["BLOCK"] == 256
    moved = [each for each in attempts if each.candidate.task.move is Move.TUNE]
    assert moved and {each.candidate.task.skill for each in moved} == {KNOBS}
    assert describe_start(run, result, attempts) == (
        "The kernel to start from passed and takes 16 ms; the winner is 4.00x as fast."
    )
    assert from_json(Run, to_json(run)) == run  # as a run that is resumed reads it


def test_a_kernel_that_fails_goes_to_the_models_as_text_and_comes_back_mended(
    tmp_path: Path,
) -> None:
    start = given_kernel(4.0, fails=Status.WRONG_VALUES.value)
    mended = given_kernel(2.0, tile=256).source
    evidence = "it fails: wrong_values"

    def mend(turn: Turn) -> Reply:
        return Reply(repair_answer(evidence, mended, "numeric", "return torch.relu(x) * 2.0"))

    with ScriptedServer(
        script(repairer=mend, generator=Reply("no"), planner=Reply("no"))
    ) as server:
        run, result, attempts = run_from(tmp_path, start, server.url_openai, models=True)
    asked = [(role_of(turn), start.source.strip() in turn.user) for turn in server.requests]
    assert asked.count(("repairer", True)) == 1  # and nobody is asked about it at other numbers
    assert ("generator", True) in asked  # who writes a kernel of its own sees it
    assert ("repairer", False) not in asked
    assert result.best.candidate.kernel.source == mended
    repaired = next(each for each in attempts if each.candidate.task.move is Move.REPAIR)
    assert (repaired.candidate.author, repaired.candidate.kernel.parent) == ("llm", start.hash)
    assert describe_start(run, result, attempts) == (
        "The kernel to start from fails the judge (wrong_values: it fails: wrong_values); models "
        "had it as text."
    )


def test_a_file_without_modelnew_is_one_line(tmp_path: Path) -> None:
    problem, kernel = tmp_path / "problem.py", tmp_path / "mine.py"
    problem.write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x * 2\ndef get_inputs():\n    return [torch.randn(64)]\n"
    )
    kernel.write_text("import torch\n")
    told = CliRunner().invoke(
        cli,
        ["optimize", str(problem), "--from", str(kernel), "--target", "h200"],
        obj=collect(build_plugin_manager()),
    )
    assert told.exit_code == 1
    assert f"{kernel} defines no ModelNew" in told.stderr


PROBLEM = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.silu(x) * 2.0
def get_inputs():
    return [torch.randn(64, 512)]
"""
OWN = (
    HEAD
    + """
@triton.jit
def silu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, x * tl.sigmoid(x) * 2.0, mask=at < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        silu_kernel[(triton.cdiv(x.numel(), 32),)](x, y, x.numel(), BLOCK=32)
        return y
"""
)


@pytest.mark.slow(after=15)
def test_recipes_compete_with_a_real_kernel_that_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMEM_DB", str(tmp_path / "kmem.db"))
    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")
    problem, kernel = tmp_path / "problem.py", tmp_path / "mine.py"
    problem.write_text(PROBLEM)
    kernel.write_text(OWN.replace("* 2.0, mask", "* 2.5, mask"))
    options = ["--target", "h200", "--rounds", "0", "--candidates", "2", "--json"]
    told = CliRunner().invoke(
        cli,
        ["optimize", str(problem), "--from", str(kernel), "--out", str(tmp_path / "r"), *options],
        obj=collect(build_plugin_manager()),
    )
    assert told.exit_code == 0, told.stderr
    assert json.loads(told.stdout)["choices"][0]["recipe"] == "fuse-pointwise-chain"
    assert "The kernel to start from fails the judge (wrong_values" in told.stderr
