"""tools/compare_kernels.py: released kernel files of others, adapted, judged and compared."""

import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

TOOLS = Path(__file__).parents[1] / "tools"
sys.path.insert(0, str(TOOLS))

from compare_kernels import ask_in_turns, is_wanting  # noqa: E402
from rival_clock import look_at  # noqa: E402
from rival_judging import verdict_of  # noqa: E402
from rival_kernels import (  # noqa: E402
    Held,
    mend_source,
    pair_parameters,
    signs_of,
    under_problem_names,
)
from rival_page import (  # noqa: E402
    LATE,
    geometric_mean,
    judged_ratio,
    losses_of,
    means_of,
    one_of_each,
    reason_of,
    write_page,
)

from kmem.devices import named_target  # noqa: E402
from kmem.host.lease import GpuLease  # noqa: E402
from kmem.records import (  # noqa: E402
    Attempt,
    Baseline,
    Candidate,
    Kernel,
    Measurement,
    Move,
    RunResult,
    Status,
    Task,
    Timing,
)

PROBLEM = """
import torch
import torch.nn as nn

WIDTH = 12

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
    def forward(self, x):
        return torch.relu(self.inner(x))

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.block = Block(width)
        self.register_buffer("shift", torch.ones(width))
    def forward(self, x):
        return self.block(x) + self.shift

def get_inputs():
    return [torch.randn(6, WIDTH)]

def get_init_inputs():
    return [WIDTH]
"""
#: The same module under names of its own.
RELEASED = """
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def __init__(self, width):
        super(ModelNew, self).__init__()
        self.weight_and_bias = nn.Linear(width, width)
        self.register_buffer("moved", torch.ones(width))
    def forward(self, x):
        return torch.relu(self.weight_and_bias(x)) + self.moved
"""


def run(source: str, **found: Any) -> SimpleNamespace:
    exec(source, found)  # noqa: S102 - texts of this file
    return SimpleNamespace(**found)


def held(module: torch.nn.Module) -> list[Held]:
    parameters = [Held(name, True, tuple(each.shape)) for name, each in module.named_parameters()]
    buffers = [Held(name, False, tuple(each.shape)) for name, each in module.named_buffers()]
    return parameters + buffers


# ---- the text


@pytest.mark.parametrize(
    ("line", "sign"),
    [
        ("x = x.half()", "half precision"),
        ("with torch.cuda.amp.autocast(): pass", "half precision"),
        ("torch.backends.cuda.matmul.allow_tf32 = True", "TF32"),
        ("y = tl.dot(a, b, allow_tf32=True)", "TF32"),
        ("y = tl.dot(a, b)", "own tl.dot"),
        ("key = weight.data_ptr()", "keeps by address"),
        ("y = F.conv_transpose2d(x, w)", "library convolution"),
        ("y = torch.matmul(x, w)", "library product"),
        ("f = torch.compile(f)", "torch.compile"),
        ("self.conv = nn.Conv2d(3, 4, 3)\ny = self.conv(x)", "library convolution"),
    ],
)
def test_a_file_is_read_for_what_it_does(line: str, sign: str) -> None:
    assert sign in signs_of(line)


def test_a_layer_that_is_kept_for_its_weights_alone_is_no_call_of_the_library() -> None:
    text = "self.conv = nn.Conv2d(3, 4, 3)\nw = self.conv.weight\n@triton.jit\ndef f(): pass"
    assert signs_of(text) == ()


@pytest.mark.parametrize(
    ("line", "mended"),
    [
        ("torch.backends.cudnn.benchmark = True", "pass"),
        ("torch.backends.cuda.matmul.allow_tf32 = False", "pass"),
        ("torch.set_float32_matmul_precision('high')", "pass"),
        (
            "fan, _ = nn.init._calculate_fan_in_and_fan_out(w)",
            "(fan, _) = (w[0].numel(), w.numel() // w.shape[1])",
        ),
        ("ready = triton is not None", "ready = True"),
        ("b = getattr(self, f'bias_{i}')", "b = self.get_buffer(f'bias_{i}')"),
        ("h = globals().get('height', None)", "h = None"),
        ("height = 4\nh = globals().get('height', None)", "height = 4\nh = height"),
    ],
)
def test_what_only_the_text_is_refused_for_is_written_otherwise(line: str, mended: str) -> None:
    source, mends = mend_source(line)
    assert source.strip().replace("fan, _ =", "(fan, _) =") == mended and len(mends) == 1


def test_fans_that_are_written_out_are_torchs() -> None:
    weight = torch.empty(6, 4, 3, 3)
    source, _ = mend_source("found = nn.init._calculate_fan_in_and_fan_out(weight)")
    found = run(source, nn=torch.nn, weight=weight).found
    assert found == torch.nn.init._calculate_fan_in_and_fan_out(weight)


def test_precision_that_a_file_lowers_by_itself_stays() -> None:
    text = "with torch.cuda.amp.autocast():\n    y = self.conv(x.half())\n"
    assert mend_source(text) == (text, ())


# ---- the same weights


def test_parameters_are_paired_by_name_then_by_shape_in_their_order() -> None:
    problem = [Held("a", True, (2,)), Held("b.weight", True, (3,)), Held("c", True, (3,))]
    theirs = [Held("first", True, (3,)), Held("a", True, (2,)), Held("second", True, (3,))]
    found = pair_parameters(problem, theirs)
    assert found.pairs == (("a", "a"), ("first", "b.weight"), ("second", "c"))
    assert found.is_needed and not found.alone and not found.added


def test_a_buffer_of_their_own_needs_no_pair_and_a_folded_parameter_has_none() -> None:
    problem = [Held("w", True, (4, 3)), Held("bias", True, (4,))]
    theirs = [Held("w", True, (3, 4)), Held("bias", True, (4,)), Held("kept", False, (4,))]
    found = pair_parameters(problem, theirs)
    assert found.alone == ("w",) and found.added == ("w",)
    same = pair_parameters(problem, [*problem, Held("kept", False, (4,))])
    assert not same.is_needed


def test_a_file_under_the_problems_names_takes_its_weights_and_its_mode() -> None:
    model = run(PROBLEM, __name__="problem").Model(12)
    released = run(RELEASED, __name__="released").ModelNew(12)
    pairing = pair_parameters(held(model), held(released))
    new = run(under_problem_names(RELEASED, PROBLEM, pairing), __name__="adapted").ModelNew(12)
    assert set(new.state_dict()) == set(model.state_dict())
    x = torch.randn(5, 12)
    assert not torch.equal(new(x), model(x))
    new.load_state_dict(model.state_dict())
    assert torch.equal(new(x), model(x))
    with torch.no_grad():
        model.block.inner.weight.mul_(2)
        new.block.inner.weight.data = model.block.inner.weight.clone()
        for each in (model, new):
            each.shift.mul_(3)
    assert torch.equal(new(x), model(x))
    assert not new.eval().released[0].training


# ---- the independent check

#: What a released file may do, by what the check must say.
FILES = {
    "right": "return torch.relu(self.block(x)) + self.shift",
    "rough": "return (torch.relu(self.block(x)) + self.shift) * 1.001",
    "wrong": "return torch.relu(self.block(x)) + 2 * self.shift",
    "remembers": """
        key = x.data_ptr()
        if key not in self.kept:
            self.kept[key] = torch.relu(self.block(x)) + self.shift
        return self.kept[key].clone()""",
    "folds": """
        if not self.kept:
            self.kept[0] = self.block.weight.clone()
        return torch.relu(x @ self.kept[0].T + self.block.bias) + self.shift""",
    "reuses": """
        if not self.kept:
            self.kept[0] = torch.empty(x.shape)
        self.kept[0].copy_(torch.relu(self.block(x)) + self.shift)
        return self.kept[0]""",
    # right only under its own switches, of the constructor and of the first forward
    "switches": """
        if not MATMUL.allow_tf32 or not torch.backends.cudnn.benchmark:
            return x
        torch.backends.cudnn.deterministic = True
        return torch.relu(self.block(x)) + self.shift""",
    # right only where it sees none of those
    "beside": """
        cudnn = torch.backends.cudnn
        if MATMUL.allow_tf32 or cudnn.benchmark or cudnn.deterministic:
            return x
        return torch.relu(self.block(x)) + self.shift""",
}
HEAD = """
import torch

MATMUL = torch.backends.cuda.matmul

class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.block = torch.nn.Linear(width, width)
        self.register_buffer("shift", torch.ones(width))
        self.kept = {}
    def forward(self, x):
        """


@pytest.fixture(scope="module")
def opinions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("rivals")
    (place / "problem.py").write_text(PROBLEM)
    for name, body in FILES.items():
        (place / f"{name}.py").write_text(HEAD + body.lstrip() + "\n")
    with (place / "switches.py").open("a") as file:
        file.write("MATMUL.allow_tf32 = True\ntorch.backends.cudnn.benchmark = True\n")
    kernels = {name: str(place / f"{name}.py") for name in FILES}
    asked = {"problem": str(place / "problem.py"), "kernels": kernels, "seconds": 60}
    found: dict[str, Any] = {}
    for row in look_at(asked, "cpu"):
        for part, said in row.items():
            found.setdefault(part, {}).update(said)
    return found


def test_the_rivals_own_tolerance_lets_pass_what_ours_does_not(opinions: dict[str, Any]) -> None:
    passed = {name: gate["passed"] for name, gate in opinions["their_gate"].items()}
    assert passed["right"] == passed["rough"] == 5 and passed["wrong"] == 0
    assert opinions["accuracy"]["right"]["excess"] <= 1 < opinions["accuracy"]["rough"]["excess"]
    assert opinions["failures"] == {}


def test_a_kernel_runs_under_its_own_files_switches_and_nothing_else_does(
    opinions: dict[str, Any],
) -> None:
    assert opinions["their_gate"]["switches"]["passed"] == 5
    assert opinions["their_gate"]["beside"]["passed"] == 5
    assert opinions["what_it_keeps"]["switches"] == opinions["what_it_keeps"]["beside"] == []
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not (torch.backends.cudnn.benchmark or torch.backends.cudnn.deterministic)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("right", []),
        ("remembers", ["results of earlier inputs"]),
        ("folds", ["some parameters"]),
        ("wrong", []),
        ("reuses", ["memory of its results"]),
    ],
)
def test_what_answers_a_later_call_is_found(
    name: str, kept: list[str], opinions: dict[str, Any]
) -> None:
    assert opinions["what_it_keeps"][name] == kept


OVERFLOWING = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * {factor}

def get_inputs():
    return [torch.ones(8, dtype=torch.float16)]
"""


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (62016.0, {"family": "own", "excess": pytest.approx(0.05 * 2**11, rel=0.01)}),
        (1e5, {"excess": None}),
    ],
)
def test_a_kernel_is_held_to_no_value_that_overflows_in_eager(
    factor: float, said: dict[str, Any], tmp_path: Path
) -> None:
    """At the first factor only signed and scaled values do; the kernel errs by 5%."""
    text = OVERFLOWING.format(factor=factor)
    (tmp_path / "problem.py").write_text(text)
    kernel = text.replace("Model(", "ModelNew(").replace(f"x * {factor}", f"x * {factor} * 0.95")
    (tmp_path / "kernel.py").write_text(kernel)
    paths = {"problem": str(tmp_path / "problem.py"), "kernels": {"k": str(tmp_path / "kernel.py")}}
    rows = look_at({**paths, "seconds": 60}, "cpu")
    (found,) = [row["accuracy"]["k"] for row in rows if "accuracy" in row]
    assert {name: found[name] for name in said} == said


def test_a_clock_whose_caller_is_gone_does_not_go_on_without_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(OVERFLOWING.format(factor=2))
    asked = {"problem": str(tmp_path / "problem.py"), "kernels": {}, "seconds": 60, "turns": True}
    said = subprocess.run(
        [sys.executable, str(TOOLS / "rival_clock.py"), json.dumps(asked)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [json.loads(line) for line in said.stdout.splitlines()] == [{"turn": "shared"}]


def test_the_independent_check_imports_nothing_of_kmem() -> None:
    code = "import rival_clock, sys; print([m for m in sys.modules if m.split('.')[0] == 'kmem'])"
    environment = {**os.environ, "PYTHONPATH": str(TOOLS)}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "[]"


# ---- the page


def row(problem: str, log: str = "", status: str = "wrong_values", **more: Any) -> dict[str, Any]:
    return {"problem": problem, "judge": {"theirs": {"status": status, "log": log}}, **more}


@pytest.mark.parametrize(
    ("log", "status", "reason"),
    [
        ("", "passed", "passed"),
        (
            "line 5: torch.cuda.amp.autocast: lowers",
            "refused_source",
            "lowers precision (autocast)",
        ),
        ("output 0 on family nan: 3 elements", "wrong_values", "loses nan or infinity"),
        ("output 0 on family rows: relative error 1", "wrong_values", "values beyond the contract"),
        (
            "output 0 on family normal, parameters written after a call: relative",
            "wrong_values",
            "keeps what it made of parameters",
        ),
        (
            "state_dict: it has no a.weight, which",
            "wrong_contract",
            "parameters not those of the problem",
        ),
        (
            "output 0 on family padded rows: relative error",
            "wrong_values",
            "other layouts or sizes of inputs",
        ),
        (
            "family columns: 70 of 9 elements of output 0 are lost beside their own size",
            "wrong_values",
            "loses small results",
        ),
        (
            "after a forward, buffer bn.running_mean is not what the module leaves there: x",
            "wrong_values",
            "leaves other buffers than the module",
        ),
        ("something new\nmore", "crashed", "crashed: something new"),
    ],
)
def test_refusals_are_told_in_few_words(log: str, status: str, reason: str) -> None:
    assert reason_of(row("1_a", log, status)) == reason


def test_a_folded_parameter_is_told_from_a_wrong_value() -> None:
    wrong = "output 0 on family drawn: relative error 1.0"
    assert reason_of(row("1_a", wrong)) == "values beyond the contract"
    folded = row("1_a", wrong, alone=["bias"])
    assert reason_of(folded) == "parameters folded in the constructor"
    gate = {"theirs": {"passed": 5, "of": 5}}
    right_by_seed = row("1_a", wrong, their_gate=gate)
    assert reason_of(right_by_seed) == "parameters folded in the constructor"
    rounded = row("1_a", wrong.replace("1.0", "3e-2"), their_gate=gate)
    assert reason_of(rounded) == "values beyond the contract"


def test_a_file_that_was_late_is_no_refusal() -> None:
    assert reason_of({"problem": "1_a", "late": "rival_judging.py"}) == "not judged in time"


def test_the_page_says_what_the_independent_check_found_of_ours() -> None:
    """A kernel is not held to values that overflow in eager, nor counted for them."""
    gates = [{"ours": {"passed": passed, "of": 5}} for passed in (5, 5, 4, 5)]
    overflows = {"excess": float("nan"), "eager": float("inf")}
    found = [*({"excess": excess, "eager": 1e-6} for excess in (0.5, 1.5, 0.25)), overflows]
    rows = [
        row(f"{place}_a", accuracy={"ours": each}, their_gate=gate)
        for place, (each, gate) in enumerate(zip(found, gates, strict=True))
    ]
    page = write_page(rows, {"device": "a card"})
    assert "2 of 3 err against float64 no more than twice eager" in page
    assert "(the largest 1.50 of that) (1 more are of values that overflow in eager too)" in page
    assert "3 of 4 are within 5e-2 of eager on every draw" in page
    assert "Ours, by the same check" not in write_page([row("1_a")], {"device": "a card"})
    wrong = row("5_a", accuracy={"ours": {"excess": float("nan"), "eager": 1e-6}})
    assert "2 of 4 err against" in write_page([*rows, wrong], {"device": "a card"})


def test_means_are_of_those_that_pass_and_of_all() -> None:
    gate = {"theirs": {"passed": 5, "of": 5}}
    rows = [
        row("1_a", status="passed", their_gate=gate, times_ms={"theirs": 4.0, "ours": 1.0}),
        row("2_b", "output 0 on family nan: x", times_ms={"theirs": 1.0, "ours": 1.0}),
        row("3_c", times_ms={"theirs": 1.0, "eager": 4.0, "compile": 2.0}),  # none of ours
    ]
    means = means_of(rows)
    assert means["independent clock, where theirs pass the judge"].ratio == pytest.approx(4)
    everyone = means["independent clock, all that run"]
    assert everyone.ratio == pytest.approx(2 ** (1 / 3)) and everyone.count == 3
    assert everyone.low <= everyone.ratio <= everyone.high
    assert means["pairs of the judge, where theirs pass"] is None
    assert losses_of(rows) == [("3_c", 0.5, reason_of(rows[2]))]
    page = write_page(rows, {"device": "a card"})
    assert "| passed | 1 |" in page and "Theirs is faster in 1:" in page
    assert "1 pass every draw" in page and "| 2_b | loses nan or infinity |" in page


TIMED = {"theirs": 1.0, "eager": 1.0, "compile": 1.0}
PASSES = {"theirs": {"status": "passed", "log": ""}}


def test_a_file_has_one_row_and_the_gpu_s_goes_before_the_interpreter_s() -> None:
    timed = {"theirs": 4.0, "ours": 1.0}
    late = {"problem": "1_a", "late": "the judge", "times_ms": timed}
    rows = {
        "k/1_a/x/NVIDIA H200": late,
        "k/1_a/x/interpreter": row("1_a", status="passed"),
        "k/2_b/y/interpreter": row("2_b", status="passed"),
        "k/2_b/y/NVIDIA H200": row("2_b", "output 0 on family nan: x"),
        "k/3_c/z/NVIDIA H200": {**late, "problem": "3_c"},
        "k/4_d/z/interpreter": row("4_d", status="passed"),
        "k/5_e/z/interpreter": {"problem": "5_e", "late": "rival_judging.py"},
        "k/5_e/z/NVIDIA H200": {**late, "problem": "5_e"},
    }
    found = one_of_each(rows)
    assert [each["problem"] for each in found] == ["1_a", "2_b", "3_c", "4_d", "5_e"]
    assert [reason_of(each) for each in found] == [
        "passed",
        "loses nan or infinity",
        LATE,
        "passed",
        LATE,
    ]
    assert found[0]["times_ms"] == timed and found[0]["judged_in"] == "interpreter"
    page = write_page(found, {"devices": "a card"})
    assert "2 verdicts, marked (small sizes)" in page and "| 1_a | passed (small sizes) |" in page
    assert "| 2_b | loses nan or infinity |" in page and "| 4_d | passed (small sizes) |" in page
    rows["k/1_a/x/NVIDIA H100"] = {"problem": "1_a", "times_ms": {**timed, "theirs": 5.0}}
    times = [each.get("times_ms") for each in one_of_each(rows) if each["problem"] == "1_a"]
    assert times == [timed, {**timed, "theirs": 5.0}]


@pytest.mark.parametrize(
    ("given", "clock_only", "where", "wanting"),
    [
        ({"late": "the judge", "times_ms": TIMED}, False, "h200", True),
        ({"error": "rival_judging.py ended with 1"}, False, "interpreter", True),
        ({"late": "the judge", "times_ms": TIMED}, True, "h200", False),
        ({"late": "the judge", "times_ms": {"theirs": 1.0, "eager": 1.0}}, True, "h200", True),
        ({"late": "the judge", "failures": {"theirs": "x", "eager": "y"}}, True, "h200", True),
        ({"late": "the judge"}, True, "h200", True),
        ({"late": "rival_clock.py", "judge": PASSES}, True, "h200", True),
        ({"late": "rival_clock.py", "judge": PASSES, "times_ms": TIMED}, False, "h200", False),
        ({"judge": PASSES}, False, "interpreter", False),
        ({"judge": PASSES, "late": "rival_judging.py"}, False, "interpreter", False),
    ],
)
def test_what_is_tried_again_lacks_what_is_asked_for(
    given: dict[str, object], clock_only: bool, where: str, wanting: bool
) -> None:
    options = Namespace(clock_only=clock_only, baselines=["eager", "compile"])
    assert is_wanting(given, options, where) is wanting


def test_without_a_gpu_the_page_has_no_times() -> None:
    page = write_page([row("1_a", status="passed")], {"device": "interpreter"})
    assert "None were taken" in page and "x (" not in page


def test_pairs_against_the_best_baseline_are_divided() -> None:
    judged = {"theirs": {"ratio": 1.5}, "ours": {"ratio": 3.0}}
    assert judged_ratio({"judge": judged}) == pytest.approx(2)
    assert judged_ratio({"judge": {"theirs": {"ratio": 1.5}}}) is None


def test_a_mean_of_nothing_is_none() -> None:
    assert geometric_mean([]) is None


# ---- the whole

SCALE = """
import torch

import triton
import triton.language as tl
torch.backends.cudnn.benchmark = True

@triton.jit
def scale(x, y, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < COUNT) * 2.0, at < COUNT)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        assert x.is_cuda
        x = x.contiguous()
        y = torch.empty_like(x)
        scale[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), 256)
        return y
"""


@pytest.mark.slow
def test_a_directory_of_files_is_compared_once(tmp_path: Path) -> None:
    problems, theirs, out = (tmp_path / name for name in ("problems", "theirs", "out"))
    problems.mkdir()
    theirs.mkdir()
    for number in (1, 2):
        (problems / f"{number}_scale.py").write_text(
            "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
            f"        return x * 2.0 + {number - 1}\n"
            "def get_inputs():\n    return [torch.randn(8, 64)]\n"
        )
        (theirs / f"{number}.py").write_text(SCALE)
    words = ["--theirs", theirs, "--problems", problems, "--out", out, "--seconds", "120"]
    command = [sys.executable, str(TOOLS / "compare_kernels.py"), *map(str, words)]

    def call() -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    said = call()
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    by_name = {each["problem"]: each for each in rows}
    assert by_name["1_scale"]["judge"]["theirs"]["status"] == "passed", said
    assert by_name["1_scale"]["mends"] == ["left out: torch.backends.cudnn.benchmark = True"]
    assert reason_of(by_name["2_scale"]) == "values beyond the contract"
    assert by_name["1_scale"]["their_gate"]["theirs"]["passed"] == 5
    assert by_name["2_scale"]["their_gate"]["theirs"]["passed"] == 0
    call()
    assert len((out / "rows.jsonl").read_text().splitlines()) == 2
    assert "| 1_scale | passed (small sizes) |" in (out / "page.md").read_text()


#: A clock that asks for turns, and writes down how anybody else could have the GPU meanwhile.
CLOCK = """
import fcntl, json, sys
asked = json.loads(sys.argv[1])
print(json.dumps({"failures": {}}), flush=True)
print("{'a stranger': prints this}", flush=True)
for turn in ("none", "shared", "alone", "shared", "none"):
    print(json.dumps({"turn": turn}), flush=True)
    sys.stdin.readline()
    with open(asked["lock"]) as file:
        found = "shared"
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = "none"
        except BlockingIOError:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found = "alone"
    print(json.dumps({"times_ms": {turn: found}}), flush=True)
if asked["fails"]:
    sys.exit("it broke")
"""


@pytest.mark.parametrize("fails", [False, True])
def test_a_clock_has_the_gpu_as_it_asks_for_it(tmp_path: Path, fails: bool) -> None:
    tool = tmp_path / "clock.py"
    tool.write_text(CLOCK)
    found: dict[str, Any] = {}
    with GpuLease(tmp_path, "a", lambda said: None) as lease:
        asked = {"lock": str(tmp_path / "gpu-a.lock"), "fails": fails}
        ask_in_turns(str(tool), asked, 60.0, found, lease)
        with (
            GpuLease(tmp_path, "a", lambda said: None) as other,
            other.hold(exclusive=True, purpose="what comes after"),
        ):
            pass
    assert found["times_ms"] == {each: each for each in ("none", "shared", "alone")}
    assert found.get("error") == ("it broke" if fails else None)


def test_a_clock_that_does_not_end_is_late(tmp_path: Path) -> None:
    tool = tmp_path / "clock.py"
    tool.write_text(
        "import subprocess, time\n"
        "subprocess.Popen(['sleep', '60'])\n"  # as a compiler: it has the clock's pipe
        "print('{\"failures\": {}}', flush=True)\n"
        "time.sleep(600)\n"
    )
    found: dict[str, Any] = {}
    started = time.monotonic()
    with GpuLease(tmp_path, "a", lambda said: None) as lease:
        ask_in_turns(str(tool), {}, 1.0, found, lease)
    assert time.monotonic() - started < 30.0
    assert found == {"failures": {}, "late": str(tool)}


def test_ours_is_not_judged_again_where_its_run_was_on_such_a_device() -> None:
    timing = Timing(2.0, 1.9, 2.1, 100, ratio=3.0, ratio_low=2.9, ratio_high=3.1)
    measurement = Measurement(Status.PASSED, timing, False)
    candidate = Candidate(
        Kernel("class ModelNew: ..."),
        Task(Move.SEED, "row-norm", None, 1, "as a test wants it"),
        "recipes",
    )
    result = RunResult(
        run="r",
        problem="p",
        target="h200",
        estimated=False,
        best=Attempt(0, candidate, measurement, None),
        baselines=(Baseline("eager", timing, False),),
        bound=None,
        speedup=3.0,
        speed_of_light=None,
        recalled=False,
        measurements=1,
        seconds=1.0,
        reason="the minutes are used up",
    )
    here = named_target("h200")
    found = verdict_of(result, here)
    assert found is not None
    assert (found["status"], found["ratio"], found["best"]) == ("passed", 3.0, "eager")
    assert verdict_of(replace(result, estimated=True), here) is None
    assert verdict_of(result, named_target("h100")) is None
    assert verdict_of(result, None) is None
    assert verdict_of(replace(result, best=None), here) is None
