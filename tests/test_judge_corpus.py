"""Every honest candidate of the corpus passes, every dishonest one is refused for its reason.

In the interpreter, on the CPU.
"""

import os
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import torch
from corpus import problems
from corpus.dishonest import DISHONEST, scale_relu
from corpus.honest import HONEST, LIBRARY, SCALE_RELU
from corpus.judging import SharedWorkers, judge_once

from kmem.devices import named_target
from kmem.host.lease import GpuLease
from kmem.measure.oracle.domain import find_refused, may_stop_gpu
from kmem.measure.oracle.reference import Reference
from kmem.measure.pool.workers import WorkerPool
from kmem.measure.resources import JudgeResources
from kmem.measure.worker.tensors import Placement
from kmem.problem.source.load import FULL, execute_problem
from kmem.problem.traced import untraced_problem
from kmem.problem.tracing.trace import trace_problem
from kmem.records import Contract, Precision, Problem, Purity, Status, Workload


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(
    ("problem", "source"), [case[1:] for case in HONEST], ids=[case[0] for case in HONEST]
)
def test_an_honest_candidate_passes(
    problem: str, source: str, workers: SharedWorkers, tmp_path: Path
) -> None:
    measurement = judge_once(problem, source, Purity.LIBRARY, workers, tmp_path)
    assert (measurement.status, measurement.log) == (Status.PASSED, "")
    assert measurement.estimated


@pytest.mark.parametrize(
    ("problem", "source", "status", "purity"),
    [case[2:] for case in DISHONEST],
    ids=[case[0] for case in DISHONEST],
)
def test_a_dishonest_candidate_is_refused(
    problem: str,
    source: str,
    status: Status,
    purity: Purity,
    workers: SharedWorkers,
    tmp_path: Path,
) -> None:
    measurement = judge_once(problem, source, purity, workers, tmp_path)
    assert measurement.status is status, measurement.log
    assert measurement.timing is None
    assert measurement.log


def test_the_corpus_covers_all_fifteen_families_and_many_styles() -> None:
    assert {case[1] for case in DISHONEST} == set(range(1, 16))
    assert len({case[3] for case in DISHONEST}) >= 60
    assert len({case[2] for case in HONEST}) >= 25


def test_a_triton_candidate_is_pure(workers: SharedWorkers, tmp_path: Path) -> None:
    assert (
        judge_once(problems.SCALE_RELU, SCALE_RELU, Purity.TRITON, workers, tmp_path).status
        is Status.PASSED
    )


def test_a_fallback_for_other_sizes_is_flagged_as_specialised(
    workers: SharedWorkers, tmp_path: Path
) -> None:
    guarded = next(source for name, _, source in HONEST if name == "guarded with fallback")
    assert judge_once(problems.SCALE_RELU, guarded, Purity.LIBRARY, workers, tmp_path).flags == (
        "specialised",
    )


STEPS_ASIDE = """
if x.numel() < 200:
    return torch.relu(x * self.scale)
x = {x}
y = torch.empty(x.shape, device=x.device)
scale_relu[({programs},)](x, y, x.numel(), self.scale, BLOCK=128)
return y
"""


@pytest.mark.parametrize(
    ("x", "programs", "said"),
    [
        ("x.contiguous()", "triton.cdiv(x.numel(), 128)", ""),
        # takes every input for a contiguous one
        ("x", "triton.cdiv(x.numel(), 128)", "family padded rows"),
        # covers no more than the problem's own 240 elements
        ("x.contiguous()", "2", "first dimension + 1"),
    ],
)
def test_a_kernel_that_steps_aside_at_the_small_size_is_held_to_layouts_and_sizes_at_its_own(
    x: str, programs: str, said: str, workers: SharedWorkers, tmp_path: Path
) -> None:
    small = Workload("small", (("rows", 3), ("columns", 8)))
    source = scale_relu(STEPS_ASIDE.format(x=x, programs=programs))
    measurement = judge_once(
        problems.SCALE_RELU, source, Purity.LIBRARY, workers, tmp_path, small=small
    )
    assert measurement.status is (Status.WRONG_VALUES if said else Status.PASSED), measurement.log
    assert said in measurement.log
    assert said or measurement.flags == ("specialised",)


def test_a_problem_that_cannot_tell_a_constant_is_flagged_as_degenerate(
    workers: SharedWorkers, tmp_path: Path
) -> None:
    header = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n"
    source = header + "        return torch.full_like(x[:, 0], 1 / x.shape[1])\n"
    measurement = judge_once(problems.SOFTMAX_MEAN, source, Purity.LIBRARY, workers, tmp_path)
    assert measurement.flags == ("degenerate",), measurement.log


def test_a_verdict_names_each_input_family_with_its_errors(
    workers: SharedWorkers, tmp_path: Path
) -> None:
    measurement = judge_once(problems.SCALE_RELU, LIBRARY, Purity.LIBRARY, workers, tmp_path)
    families = {report.family for report in measurement.errors}
    assert {
        "drawn",
        "normal",
        "large",
        "tiny",
        "sparse",
        "constant",
        "nan",
        "infinite",
        "denormal",
    } <= families
    assert len({report.seed for report in measurement.errors}) >= 5
    assert all(report.relative_error <= report.allowed_error for report in measurement.errors)


def test_a_family_that_the_module_refuses_is_left_out_with_the_reason(
    workers: SharedWorkers, tmp_path: Path
) -> None:
    source = next(source for name, _, source in HONEST if name == "probabilities only")
    measurement = judge_once(problems.PROBABILITIES, source, Purity.LIBRARY, workers, tmp_path)
    families = {report.family for report in measurement.errors}
    assert families & {"normal", "large", "nan", "infinite"} == set()
    assert {"drawn", "sparse", "constant", "tiny", "transposed", "first dimension - 1"} <= families
    left_out = measurement.environment["refused_families"]
    assert left_out.startswith(
        "normal (RuntimeError: all elements of input should be between 0 and 1); rows ("
    )


def test_what_a_module_refuses_is_found_before_a_gpu_is_asked(tmp_path: Path) -> None:
    def refused_by(problem: str) -> dict[str, str]:
        placement = Placement(torch.device("cpu"), tmp_path, ipc=False)
        loaded = Problem("p", "<p>", problem)
        make = partial(Reference, loaded, Workload("full"), Contract(), placement, seed=1)
        return find_refused(make, lambda *purpose: len("".join(purpose)))

    refused = refused_by(problems.PROBABILITIES)
    assert {"normal", "large", "nan", "infinite"} <= refused.keys()
    assert {"drawn", "sparse", "constant", "tiny"} & refused.keys() == set()
    refused = refused_by(problems.GATHER)
    assert {"last dimension - 1", "large integers", "ignored index"} <= refused.keys()
    assert {"drawn", "normal", "extreme integers"} & refused.keys() == set()
    assert refused_by(problems.SCALE_RELU) == {}
    # not even its own values: nothing to learn here
    assert refused_by(problems.SCALE_RELU.replace("torch.relu", "torch.linalg.inv")) == {}
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("problem", "may_stop"),
    [
        (problems.PROBABILITIES, True),
        (problems.GATHER, True),
        (problems.SCALE_RELU.replace("torch.relu", "torch.special.i1"), True),  # kmem has no row
        (problems.SCALE_RELU, False),
    ],
)
def test_the_cpu_is_asked_only_where_an_operator_may_stop_the_gpu(
    problem: str, may_stop: bool
) -> None:
    loaded = execute_problem(Problem("p", "<p>", problem), FULL)
    graph = trace_problem(loaded, Precision.MATCH)
    assert graph.opaque_reason is None
    assert may_stop_gpu(graph) is may_stop


def test_the_cpu_is_asked_before_anything_is_drawn_for_a_gpu_and_again_if_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that draw at once would get each other's numbers, and an error is no answer."""
    problem = Problem("p", "<p>", problems.PROBABILITIES)
    traced = untraced_problem(problem, Contract(), named_target("h100"))
    # of a GPU it has no more than the lease, and that is asked nothing here
    resources = JudgeResources(
        traced,
        seed=1,
        directory=tmp_path,
        workers=cast(WorkerPool, None),
        lease=cast(GpuLease, object()),
        on_event=lambda text: None,
    )
    made: list[torch.device] = []

    def make_reference(
        problem: Problem, workload: Workload, contract: Contract, placement: Placement, **seed: int
    ) -> Reference:
        made.append(placement.device)
        if len(made) != 2:
            raise MemoryError("no room")
        return Reference(problem, workload, contract, placement, **seed)

    monkeypatch.setattr("kmem.measure.resources.Reference", make_reference)
    monkeypatch.setattr(resources, "_can_share_cuda", lambda: False)
    for _ in range(2):
        with pytest.raises(MemoryError):
            resources.reference()
    assert [device.type for device in made] == ["cpu", "cpu", "cuda"]
