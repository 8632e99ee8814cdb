"""`kmem verify` and `kmem measure` as a user meets them.

Exit codes, one clear line for bad input, JSON for programs.
"""

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from corpus import problems
from corpus.honest import GUARDED, LIBRARY

from kmem.cli.by_hand.verify import measure, verify
from kmem.devices import named_target
from kmem.measure.oracle.reference import Reference
from kmem.measure.worker.tensors import Placement
from kmem.memory.store import Memory
from kmem.problem.source.constructor import constructor_signature
from kmem.problem.traced import untraced_problem
from kmem.records import (
    BASELINES,
    Baseline,
    Contract,
    Precision,
    Problem,
    Purity,
    Timing,
    Workload,
)
from kmem.run.evaluation.baselines import keep_baselines, known_baselines
from kmem.run.evaluation.single import find_baselines
from kmem.run.report.first_screen import FLAGS

pytestmark = pytest.mark.usefixtures("shared_template")


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "scale_relu.py"
    path.write_text(problems.SCALE_RELU)
    return path


def run(command: object, problem: Path, source: str, *options: str) -> Result:
    kernel = problem.with_name("kernel.py")
    kernel.write_text(source)
    return CliRunner().invoke(command, [str(problem), str(kernel), *options])


@pytest.mark.slow
def test_a_kernel_that_passes_exits_0_with_an_estimate(problem: Path) -> None:
    result = run(verify, problem, GUARDED, "--json", "--seed", "5")
    assert result.exit_code == 0, result.output
    verdict = json.loads(result.stdout)
    assert (verdict["status"], verdict["estimated"], verdict["flags"]) == (
        "passed",
        True,
        ["specialised"],
    )
    assert verdict["timing"] is None or verdict["timing"]["samples"] == 0
    assert {"drawn", "normal", "transposed"} <= {report["family"] for report in verdict["errors"]}


@pytest.mark.slow
def test_a_copy_of_the_module_gains_nothing_and_is_said_to_launch_nothing(problem: Path) -> None:
    result = run(verify, problem, f"{problems.SCALE_RELU}\n\nModelNew = Model\n")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "1.00x eager" in lines
    assert "it launches no Triton kernel: all the work is the library's" in lines
    assert any(line.startswith("eager: ") and line.endswith(" (estimated)") for line in lines)


@pytest.mark.slow
def test_a_kernel_that_gains_says_how_much(problem: Path) -> None:
    result = run(verify, problem, GUARDED)
    (gain,) = [line for line in result.stdout.splitlines() if line.endswith("x eager")]
    assert float(gain.removesuffix("x eager")) > 1.0
    assert " ms (estimated from the compiled file alone; a run holds its own to " in result.stdout
    assert "no Triton kernel" not in result.stdout
    assert f"specialised: {FLAGS['specialised']}" in result.stdout


def test_a_kernel_that_fails_exits_1_with_status_and_reason(problem: Path) -> None:
    result = run(verify, problem, LIBRARY.replace("relu.default", "neg.default"))
    assert result.exit_code == 1
    assert result.stdout.startswith("wrong_values\noutput 0 on family drawn: relative error ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "scale_relu[(2,)]",
            "(nothing if x.data_ptr() == 0 else scale_relu)[(2,)]",
            "it launches nothing, in the interpreter scale_relu",
        ),
        (
            "        y = torch.empty_like(x)\n",
            "        y = torch.empty_like(x)\n        while x.data_ptr() == 0 and self.scale:\n"
            "            raise ValueError('not here')\n",
            "it does not compile for",
        ),
    ],
)
def test_what_is_compiled_must_be_what_was_proved(
    before: str, after: str, said: str, problem: Path
) -> None:
    other = """
@triton.jit
def nothing(x_ptr, y_ptr, count, scale, BLOCK: tl.constexpr):
    pass
"""
    assert before in GUARDED
    source = GUARDED.replace("class ModelNew", f"{other}\n\nclass ModelNew")
    result = run(verify, problem, source.replace(before, after))
    assert result.exit_code == 1
    assert said in result.stdout, result.stdout


def test_a_refused_source_names_its_line(problem: Path) -> None:
    result = run(verify, problem, "import os\n" + LIBRARY)
    assert result.exit_code == 1
    assert result.stdout.startswith("refused_source\nline 1: import of os: ")


def test_a_module_without_a_constructor_takes_nothing_after_a_compilation_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = torch.nn.Module.__init__
    # as torch._dynamo does for good
    monkeypatch.setattr(torch.nn.Module, "__init__", lambda self, *args, **more: own(self))
    text = "import torch\nclass ModelNew(torch.nn.Module):\n    pass\n"
    signature = constructor_signature(ast.parse(text), "ModelNew")
    assert signature is not None
    assert not signature.parameters


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("class Other: pass\n", "defines no ModelNew"),
        ("def (\n", "is not valid Python, line 1"),
        (
            "class ModelNew:\n    def __init__(self):\n        pass\n",
            "ModelNew takes 0 constructor arguments",
        ),
        (
            "class ModelNew:\n    def __init__(self, scale, shift):\n        pass\n",
            "ModelNew takes 2 constructor arguments",
        ),
        (
            "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n",
            "ModelNew takes 0 constructor arguments",
        ),
        (
            (
                "class Base:\n    def __init__(self, scale, shift):\n        pass\n\n\n"
                "class ModelNew(Base):\n    pass\n"
            ),
            "ModelNew takes 2 constructor arguments",
        ),
        (
            "import torch\n\n\nclass ModelNew(torch.nn.Linear):\n    pass\n",
            "ModelNew takes 2 to 5 constructor arguments",
        ),
        (
            (
                "from torch import nn\n\nclass Mixin:\n    pass\n\n"
                "class ModelNew(Mixin, nn.Conv2d):\n    pass\n"
            ),
            "takes 3 to 11 constructor",
        ),
        (
            (
                "from torch.nn import Bilinear as Base\nOther = Base\n\nclass ModelNew(Other):\n"
                "    pass\n"
            ),
            "takes 3 to 6 constructor",
        ),
        (
            "from torch.nn import Linear as ModelNew\n",
            "ModelNew takes 2 to 5 constructor arguments",
        ),
        (
            "import torch.nn as nn\nModelNew = nn.ReLU6\n\ndef ModelNew(scale, shift):\n    pass\n",
            "ModelNew takes 2 constructor arguments",
        ),
        (
            "class ModelNew:\n    def __init__(self, scale, *, shift):\n        pass\n",
            "ModelNew wants shift= by name",
        ),
    ],
)
def test_a_file_that_is_no_kernel_is_one_line_and_exit_2(
    problem: Path, source: str, message: str
) -> None:
    result = run(verify, problem, source)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    "constructor",
    [
        "self, scale",
        "self, scale, shift=0",
        "self, *sizes",
        "self, scale=1.0, *, fast=True",
        "self, scale, /, **options",
    ],
)
def test_a_constructor_that_takes_what_the_module_takes_is_judged(
    problem: Path, constructor: str
) -> None:
    source = f"import os\n\n\nclass ModelNew:\n    def __init__({constructor}):\n        pass\n"
    # which comes after bad input
    assert run(verify, problem, source).stdout.startswith("refused_source")


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    "binding",
    [
        "import torch\n\n\nclass ModelNew(torch.nn.Dropout):\n    pass\n",
        "import torch.nn as nn\n\n\nclass ModelNew(nn.Sequential):\n    pass\n",
        "import torch\n\n\nclass ModelNew(print, torch.nn.Linear):\n    pass\n",
        "import torch\n\n\nclass ModelNew(torch.nn.NoSuchThing):\n    pass\n",
        "from missing import Base\n\n\nclass ModelNew(Base):\n    pass\n",
        "class ModelNew(ModelNew):\n    pass\n",
        "import dataclasses\n\n\n@dataclasses.dataclass\nclass ModelNew:\n    a: int\n    b: int\n",
        "class ModelNew:\n    def __new__(cls, *scale):\n        return object()\n",
    ],
)
def test_a_constructor_that_fits_or_that_the_text_does_not_tell_is_judged(
    problem: Path, binding: str
) -> None:
    assert run(verify, problem, "import os\n" + binding).stdout.startswith("refused_source")


def test_a_constructor_inherited_from_a_module_of_the_problem_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "house_layers.py").write_text(
        "import torch\n\n\nclass Scaled(torch.nn.Module):\n    def __init__(self, a, b):\n"
        "        pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "p.py"
    path.write_text("import house_layers\n" + problems.SCALE_RELU)
    result = run(
        verify, path, "from house_layers import Scaled\n\n\nclass ModelNew(Scaled):\n    pass\n"
    )
    assert result.exit_code == 2
    assert "ModelNew takes 2 constructor arguments" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    "binding",
    [
        "class Other:\n    def __init__(self, scale):\n        pass\n\nModelNew = Other\n",
        "from os import path as ModelNew\n",
    ],
)
def test_a_model_may_be_bound_by_another_name_first(problem: Path, binding: str) -> None:
    assert run(verify, problem, "import os\n" + binding).stdout.startswith("refused_source")


def test_known_baselines_are_taken_from_the_database_and_new_ones_kept_there() -> None:
    class Measuring:
        """A judge that can do one thing."""

        asked: tuple[tuple[str, ...], ...] = ()

        def baselines(self, names: tuple[str, ...]) -> tuple[Baseline, ...]:
            self.asked += (names,)
            late = names == BASELINES
            return tuple(
                Baseline(name, None, False, log="timed out", timed_out=True)
                if late and name == "max_autotune"
                else Baseline(name, Timing(2.0, 1.9, 2.1, 30), False)
                for name in names
            )

    judge, problem = Measuring(), Problem("p", "p.py", problems.SCALE_RELU)
    traced = untraced_problem(problem, Contract(), named_target("h200"))
    found = [find_baselines(judge, traced, BASELINES) for _ in range(3)]
    assert found[0][-1].timed_out
    assert {baseline.name for baseline in found[1]} == set(BASELINES)
    assert set(found[1]) == set(found[2])
    # one that timed out is tried again, the others are not
    assert judge.asked == (BASELINES, ("max_autotune",))


def test_baselines_hold_whatever_a_kernel_may_call() -> None:
    problem = Problem("p", "p.py", problems.SCALE_RELU)
    traced = untraced_problem(problem, Contract(), named_target("h200"))
    timed = Baseline("eager", Timing(2.0, 1.9, 2.1, 30), False)
    with Memory() as memory:
        keep_baselines(memory, traced, (timed,))
        strict = replace(traced, contract=Contract(purity=Purity.TRITON))
        assert known_baselines(memory, strict) == (timed,)
        exact = replace(traced, contract=Contract(Precision.TF32))
        assert known_baselines(memory, exact) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No problem file at"),
        ("x = 1\n", "defines no Model"),
        ("raise OSError('no')", "defines no"),
    ],
)
def test_a_file_that_is_no_problem_is_one_line_and_exit_2(
    tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "p.py"
    if text is not None:
        path.write_text(text)
    result = run(verify, path, LIBRARY)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--precision", "fp64"), "'fp64' is not one of 'match', 'tf32', 'bf16'"),
        (("--purity", "cuda"), "'cuda' is not one of 'library', 'triton'"),
        (("--seed", "x"), "'x' is not a valid integer"),
        (("--speed", "1"), "No such option"),
        (("--target", "z9"), "No target named 'z9'"),
    ],
)
def test_a_wrong_word_is_one_line_and_exit_2(
    problem: Path, options: tuple[str, ...], message: str
) -> None:
    result = run(verify, problem, LIBRARY, *options)
    assert (result.exit_code, result.stderr.count("\n"), message in result.stderr) == (
        2,
        1,
        True,
    ), result.stderr


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "def get_inputs():",
            "def get_inputs():\n    raise SystemExit(3)",
            "get_inputs() raised SystemExit: 3",
        ),
        ("return [1.5]", "return 1.5", "get_init_inputs() returned 1.5; it must return the list"),
        ("x * self.scale", "x @ x", "forward raised RuntimeError: "),
    ],
)
def test_a_problem_that_fails_is_one_line_and_exit_2(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    path = tmp_path / "p.py"
    path.write_text(problems.SCALE_RELU.replace(before, after))
    result = run(verify, path, LIBRARY)
    assert (result.exit_code, result.stderr.count("\n"), message in result.stderr) == (
        2,
        1,
        True,
    ), result.stderr


def test_a_cache_that_cannot_be_made_is_one_line_and_names_the_remedy(
    problem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMEM_DB", str(problem / "kmem.db"))  # a file is no directory
    result = run(verify, problem, LIBRARY)
    assert result.exit_code == 1
    assert f"Cannot make {problem}/cache/triton: Not a directory; " in str(result.exception)


def test_measuring_without_a_gpu_says_so(problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kmem.cli.actions.judge.detect_device", lambda: None)
    result = run(measure, problem, LIBRARY)
    assert result.exit_code == 1
    assert "No GPU here to measure on" in str(result.exception)


EXPANDED = """
import torch

class Model(torch.nn.Module):
    def forward(self, x, m):
        return torch.relu(x * m)

def get_inputs():
    return [torch.randn(64, 40), torch.randn(1, 40).expand(64, 40)]
"""
#: Reads one row of what is one row in memory, and takes nothing else.
ROW = """
import triton
import triton.language as tl

@triton.jit
def scale(x, m, y, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * WIDTH
    value = tl.load(x + row + at, mask=at < WIDTH) * {read}
    value = tl.where(value == value, tl.maximum(value, 0.0), value)
    tl.store(y + row + at, value, mask=at < WIDTH)

class ModelNew(Model):
    def forward(self, x, m):
        if m.stride() != (0, 1) or not x.is_contiguous():
            return super().forward(x, m)
        y = torch.empty_like(x)
        scale[(x.shape[0],)](x, m, y, x.shape[1], 64)
        return y
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("read", "status"),
    [
        ("tl.load(m + at, mask=at < WIDTH)", "passed"),
        ("tl.abs(tl.load(m + at, mask=at < WIDTH))", "wrong_values"),
        ("tl.load(m + at * 0)", "wrong_values"),
    ],
)
def test_an_input_that_is_one_row_in_memory_stays_so(
    read: str, status: str, tmp_path: Path
) -> None:
    path = tmp_path / "expanded.py"
    path.write_text(EXPANDED)
    result = run(verify, path, EXPANDED + ROW.format(read=read), "--json")
    verdict = json.loads(result.stdout)
    assert verdict["status"] == status, result.output
    assert "no_kernel" not in verdict["flags"]
    if status == "passed":
        families = {report["family"] for report in verdict["errors"]}
        assert {"negative", "rows", "columns", "nan", "two elements exchanged"} <= families


def test_families_of_an_input_that_is_one_row_in_memory_fill_that_row(tmp_path: Path) -> None:
    placement = Placement(torch.device("cpu"), tmp_path, ipc=False)
    reference = Reference(
        Problem("p", "p.py", EXPANDED), Workload("full"), Contract(), placement, seed=1
    )
    seen = []
    for family in ("normal", "negative", "rows", "nan"):
        reference.inputs.fill(family, 3)
        (_, row), (_, own) = reference.inputs.values, reference.inputs.own_values
        assert row.stride() == (0, 1) and own.shape == (1, 40)
        assert torch.equal(row.nan_to_num(), own.nan_to_num().expand(64, 40))
        seen.append(row.clone())
    assert not any(torch.equal(a, b) for a, b in zip(seen, seen[1:], strict=False))
    assert (seen[1] < 0).any() and seen[3].isnan().any()
    reference.close()


GAPPED = """
import torch

class Model(torch.nn.Module):
    def forward(self, x, m):
        return (x * m).sum(-1)

def get_inputs():
    return [torch.randn(64, 80)[:, :40], torch.randn(81)[1::2]]
"""
#: Takes rows with gaps between them, and a factor with gaps between its elements that starts beside
#: a multiple of 16 bytes; nothing else.
STRIDED = """
import triton
import triton.language as tl

@triton.jit
def weigh(x, m, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    value = tl.load(x + row * 80 + at{mask}) * tl.load(m + at * {step}, mask=at < 40, other=0.0)
    tl.store(y + row, tl.sum(value))

class ModelNew(Model):
    def forward(self, x, m):
        if (x.stride(), m.stride(), m.storage_offset()) != ((80, 1), (2,), 1):
            return super().forward(x, m)
        y = x.new_empty(x.shape[0])
        weigh[(x.shape[0],)](x, m, y, 64)
        return y
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mask", "step", "status"),
    [
        (", mask=at < 40, other=0.0", 2, "passed"),
        (", mask=at < 40, other=0.0", 1, "wrong_values"),
        ("", 2, "wrong_values"),  # reads what lies between the rows
    ],
)
def test_inputs_with_gaps_keep_them(mask: str, step: int, status: str, tmp_path: Path) -> None:
    path = tmp_path / "gapped.py"
    path.write_text(GAPPED)
    result = run(verify, path, GAPPED + STRIDED.format(mask=mask, step=step), "--json")
    verdict = json.loads(result.stdout)
    assert verdict["status"] == status, result.output
    assert "no_kernel" not in verdict["flags"]


ONE_HOT = """
import torch

class Model(torch.nn.Module):
    def forward(self, index, y):
        return torch.nn.functional.one_hot(index, num_classes=8).float().mean(0) * y

def get_inputs():
    return [torch.randint(0, 8, (32,)), torch.randn(8)]
"""
#: The library's one_hot and mean, and a kernel for the product.
MULTIPLIED = """
import triton
import triton.language as tl

@triton.jit
def multiply(x, y, z):
    at = tl.arange(0, 8)
    tl.store(z + at, tl.load(x + at) * tl.load(y + at))

class ModelNew(Model):
    def forward(self, index, y):
        if y.shape != (8,) or y.stride() != (1,):
            return super().forward(index, y)
        x = {call}.float().mean(0)
        z = torch.empty_like(y)
        multiply[(1,)](x, y, z)
        return z
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "status"),
    [
        ("torch.nn.functional.one_hot(index, num_classes=8)", "passed"),
        ("torch.ops.aten.one_hot.default(index, 8)", "passed"),
        ("torch.nn.functional.one_hot(index.flip(0) ^ 1, num_classes=8)", "wrong_values"),
        ("torch.nn.functional.one_hot(index)", "build_failed"),  # how many classes, values say
    ],
)
def test_the_librarys_one_hot_is_proved_as_a_gpu_makes_it(
    call: str, status: str, tmp_path: Path
) -> None:
    path = tmp_path / "one_hot.py"
    path.write_text(ONE_HOT)
    result = run(verify, path, ONE_HOT + MULTIPLIED.format(call=call))
    assert result.stdout.startswith(status), result.output
