"""What models are told beside the run's attempts: excerpts, remembered kernels, common errors."""

from dataclasses import replace
from pathlib import Path

from prompt_cases import BACKGROUND, PARENT, make_run
from scripted_evaluator import make_run as make_walk
from scripted_models import EDITED, KERNEL, attempted, make_situation
from test_serialize import OUTCOME

from kmem.explore.models.prompts.background import (
    algebra_section,
    failures_section,
    launches_section,
    pitfalls_section,
    remembered_section,
    start_section,
    structure_section,
    times_section,
)
from kmem.explore.models.prompts.excerpts import failing_lines, kernel_excerpt
from kmem.explore.models.prompts.message import Section, Worth, fit_prompt
from kmem.explore.models.prompts.rendering import without_foreign_frames
from kmem.explore.models.roles import Role
from kmem.memory.store import Memory
from kmem.records import (
    Background,
    Fault,
    Kernel,
    Prescription,
    Recalled,
    SiteChoice,
    Status,
)
from kmem.run.directory import RunDirectory
from kmem.run.state.background import copy_backgrounds, keep_background

TWO_KERNELS = '''"""A file."""
import torch
import triton
import triton.language as tl

USED = 64
UNUSED = 65


@triton.jit
def helper(x):
    return x * 2


@triton.jit
def first(x_ptr, USED: tl.constexpr):
    tl.store(x_ptr, helper(tl.load(x_ptr)))


@triton.jit
def second(x_ptr):
    for place in range(4):
        tl.atomic_add(x_ptr + place, 1.0)


class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2


class ModelNew(Model):
    def forward(self, x):
        first[(1,)](x, USED)
        return x


def get_inputs():
    return [torch.rand(3)]
'''


def test_an_excerpt_has_the_kernels_their_launches_and_the_constants_they_read() -> None:
    shown = kernel_excerpt(TWO_KERNELS)
    for part in ("USED = 64", "def helper", "def first", "def second", "class ModelNew"):
        assert part in shown
    for part in ("import", "UNUSED", "class Model(", "get_inputs", "A file"):
        assert part not in shown
    order = "\n\ndef _launch(x):\n    second[(1,)](x)\n\n\ndef _forward(x):\n    _launch(x)\n"
    assert "def _forward" in kernel_excerpt(TWO_KERNELS + order), "the order of launches is told"
    short = kernel_excerpt(TWO_KERNELS, 60)
    assert "def helper" in short
    assert short.endswith("# 3 more functions are left out")


def test_a_file_without_a_kernel_is_shown_whole_and_one_that_does_not_parse_too() -> None:
    assert kernel_excerpt("x = 1\n") == "x = 1"
    assert kernel_excerpt("x = (\n") == "x = ("


def test_what_each_kernel_does_is_counted() -> None:
    (text, _) = structure_section(Kernel(TWO_KERNELS)).texts
    assert text.splitlines() == [
        "- helper: 2 lines; no access to memory",
        "- first: 2 lines; 1 loads, 1 stores",
        "- second: 3 lines; 1 loops, 1 atomics",
    ]
    assert structure_section(None).texts == ("",)


def test_times_name_what_is_to_beat_and_the_target() -> None:
    lines = times_section(make_run("softmax")).texts[0].splitlines()
    assert lines[0] == "- the module, eager: 2 ms"
    assert lines[1] == "- the module, compile: 1.6 ms; this is the time to beat"
    assert lines[2] == f"- the best kernel of this run, {PARENT.hash[:8]}: 1.25 ms"
    assert lines[3].startswith("- the least that the hardware allows, the target: ")
    assert times_section(make_situation("softmax")).texts == ("",), "nothing is timed yet"


def test_launches_of_one_kernel_are_one_row_and_the_longest_comes_first() -> None:
    lines = launches_section(make_run("softmax")).texts[0].splitlines()
    assert lines[0] == "As seen by cupti:"
    assert lines[3:] == [
        "| scale_kernel | 1 | 1.1 | 92% | 4096x1x1 | 128x1x1 |",
        "| void at::native::fill_kernel | 2 | 0.1 | 8% | 64x1x1 | 256x1x1 |",
    ]


def remembered(outcome_of: Recalled, **changes: object) -> Background:
    hits = (replace(outcome_of, **changes),)
    return Background(recalled=hits, first_skills=(Prescription("online-softmax", 1.0, ()),))


def test_remembered_kernels_say_what_made_them_fast_and_unlike_ones_are_left_out() -> None:
    choice = SiteChoice("softmax", "softmax", "online-softmax", (("BR", 8192),))
    won = replace(OUTCOME, skill="online-softmax", choices=(choice,), problem="like")
    hit = Recalled(won, KERNEL, exact=False, distance=float("inf"))
    situation = replace(make_situation("softmax"), background=remembered(hit))
    text = remembered_section(situation).texts[0]
    assert "What made it fast: online-softmax at softmax (BR=8192)." in text
    assert "def scale_kernel" in text
    unlike = replace(hit, outcome=replace(won, skill="row-norm"))
    assert remembered_section(replace(situation, background=remembered(unlike))).texts == ("",)
    near = replace(situation, background=remembered(unlike, distance=0.5, source=None))
    assert remembered_section(near).texts[0].endswith("(BR=8192).")


def test_of_failures_with_one_error_the_latest_is_shown_with_its_lines() -> None:
    log = 'Traceback:\n  File "/x/candidate.py", line 12, in scale_kernel\nNameError: no such name'
    again = attempted(Kernel(EDITED), Status.BUILD_FAILED, log=log)
    other = attempted(Kernel(EDITED + "#\n"), Status.WRONG_VALUES, log="output 0 is wrong")
    run = replace(make_situation("softmax"), history=(again, again, other))
    text = failures_section(run).texts[0]
    assert text.count("NameError: no such name") == 1
    assert ">  12 " in text
    assert text.index("output 0 is wrong") < text.index("NameError"), "the latest comes first"


def test_a_compilers_line_counts_from_its_kernel_and_foreign_frames_are_left_out() -> None:
    log = (
        "Traceback (most recent call last):\n"
        '  File "/site-packages/torch/nn/module.py", line 1778, in _wrapped_call_impl\n'
        "    return self._call_impl(*args)\n           ^^^^^^\n"
        '  File "/tmp/x/kmem_candidate_1_2.py", line 20, in forward\n'
        "    scale_kernel[grid](x)\n"
        '  File "/site-packages/triton/compiler.py", line 80, in make_ir\n'
        "triton.compiler.errors.CompilationError: at 2:27:\n"
        "def scale_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):\n"
        "    columns = tl.program_id(0) * BLOCK\n"
        "                     ^\n"
        "NameError('no such name')"
    )
    failed = attempted(Kernel(KERNEL), Status.BUILD_FAILED, log=log)
    line = next(row for row in failing_lines(failed).splitlines() if row.startswith(">"))
    assert line == ">  11     columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)"
    shown = without_foreign_frames(log)
    assert "site-packages" not in shown
    assert "_call_impl" not in shown
    for part in ("line 20, in forward", "scale_kernel[grid]", "at 2:27:", "NameError"):
        assert part in shown


def test_the_sheet_of_pitfalls_comes_with_versions_and_what_models_got_wrong() -> None:
    full, short, known, *_ = pitfalls_section(make_run("softmax")).texts
    assert known.startswith("In use here: torch 2.13.0, triton 3.9.0.")
    assert "- 7 times build_failed: ValueError: arange's range must be a power of N" in known
    assert len(full) > len(short) > len(known)
    assert "`tl.arange(0, N)`" in short


def test_exact_algebra_and_a_start_are_left_out_where_there_is_none() -> None:
    assert algebra_section(make_situation("softmax")).texts[0] == ""
    assert start_section(None, None).texts == ("",)


def test_what_was_dropped_for_a_section_that_then_shrank_comes_back() -> None:
    sections = [
        Section("small", ("s" * 30, ""), Worth.STRUCTURE),
        Section("large", ("l" * 3000, "l" * 30), Worth.SKILL),
        Section("task", ("t",), Worth.TASK),
    ]
    assert "s" * 30 in fit_prompt(Role("tester", 100, 10), "", sections)


def test_errors_of_models_are_counted_without_paths_and_numbers(tmp_path: Path) -> None:
    with Memory(tmp_path / "kmem.db") as memory:
        run = make_walk(tmp_path, base_url="http://localhost:1")
        memory.runs.start(run)
        logs = [
            "/tmp/a/x.py:3: error: no such name",
            "/tmp/b/x.py:14: error: no such name",
            "once only",
        ]
        for number, log in enumerate(logs):
            failed = attempted(Kernel(f"{KERNEL}# {number}\n"), Status.BUILD_FAILED, log=log)
            memory.runs.record_attempt(run.id, failed)
        by_recipe = Kernel(KERNEL, choices=(SiteChoice("s", "softmax", "online-softmax", ()),))
        memory.runs.record_attempt(
            run.id,
            attempted(by_recipe, Status.BUILD_FAILED, log="/tmp/x.py:1: error: no such name"),
        )
        assert memory.faults.most_frequent() == (
            Fault(Status.BUILD_FAILED, "x.py:N: error: no such name", 2),
        )


def test_what_a_moment_of_a_run_was_told_stays_and_goes_into_a_replay(tmp_path: Path) -> None:
    directory, other = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "again")
    told = Background(faults=BACKGROUND.faults)
    assert keep_background(directory, "r1", "start", lambda: told) == told
    assert keep_background(directory, "r1", "start", Background) == told
    copy_backgrounds("r1", directory.root, other)
    assert keep_background(other, "r1", "start", Background) == told
    assert keep_background(other, "r2", "start", Background) == Background()
