"""What is known of a kernel without counters: derived, marked so, and never made up."""

from dataclasses import replace
from pathlib import Path

import pytest

from kmem.cli.actions.stages import graph_operators
from kmem.devices import named_target
from kmem.diagnose.bottleneck import diagnose
from kmem.diagnose.signature import make_signature
from kmem.plugins import Registry
from kmem.prescribe.gate import Gate, SkillQuery
from kmem.problem.graph import OpGraph
from kmem.problem.source.load import load_problem
from kmem.problem.traced import trace_at_full_size
from kmem.profile.collect import collect_profile
from kmem.profile.derive import add_derived
from kmem.profile.ncu_csv import read_report
from kmem.profile.serving import add_served
from kmem.profile.static import StaticProfiler
from kmem.records import Bottleneck, Bound, Contract, Diagnosis, Kernel, Launch, Profile
from kmem.skills import bundled_skills_root, load_skill, skill_directories

H200 = named_target("h200")
RECORDINGS = Path(__file__).parent / "recordings"
PROBLEM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x * 2.0, dim=1)

def get_inputs():
    return [torch.rand(16384, 16384)]
"""
KERNEL = """
import torch
import triton
import triton.language as tl

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x * 2.0, dim=1)

@triton.jit
def doubled(x, y, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i) * 2.0)

def _launch_full_0(x):
    y = torch.empty_like(x)
    doubled[(x.numel() // 1024,)](x, y, BLOCK=1024, num_warps=4)
    return y

def _forward_full(self, x):
    mul = _launch_full_0(x)
    return torch.ops.aten._softmax.default(mul, 1, False)

class ModelNew(Model):
    def forward(self, x):
        return _forward_full(self, x)
"""
NEEDED = Bound(2**31, {"fp32": 2.0**28}, 0.447, "bytes")


def streaming(**changes: float) -> Launch:
    """The pointwise kernel of recordings/ncu_pointwise_triton.csv: 1 GiB in and out.

    Its duration is the recorded one, its counts are those of such a kernel's binary.
    """
    recorded = read_report(RECORDINGS / "ncu_pointwise_triton.csv")[0]
    metrics = {
        "argument_bytes": 2.0**31,
        "program_load_bytes": 4096.0,
        "program_store_bytes": 4096.0,
        "global_load_bytes": 32.0,
        "global_loads": 2.0,
        "instructions": 60.0,
        "predicated": 4.0,
        "fma": 8.0,
        "fma_flops": 16.0,
        "blocks_per_sm": 16.0,
        **changes,
    }
    static = {f"static__{name}": value for name, value in metrics.items()}
    return Launch("pw", recorded.duration_ms, recorded.grid, recorded.block, static)


def test_a_streaming_kernels_derived_figures_are_those_that_ncu_counted() -> None:
    recorded = read_report(RECORDINGS / "ncu_pointwise_triton.csv")
    counted = make_signature(Profile("", "ncu", "h200", False, recorded), H200, NEEDED).values
    launches = add_derived([streaming()], NEEDED, H200)
    found = make_signature(Profile("", "cupti", "h200", False, launches), H200, NEEDED)
    for metric, tolerance in {
        "dram_throughput_pct": 5.0,
        "traffic_ratio": 0.05,
        "l1_hit_pct": 1.0,
        "l2_hit_pct": 2.0,
        "sector_efficiency_pct": 1.0,
        "barrier_stall_pct": 1.0,
    }.items():
        assert found.values[metric] == pytest.approx(counted[metric], abs=tolerance), metric
        assert metric in found.derived
    assert "memory_stall_pct" not in found.values and "l2_throughput_pct" not in found.values


@pytest.mark.parametrize(
    ("changes", "unknown"),
    [
        # read twice, and far more than L2 holds: how much of it hits is not known
        ({"program_load_bytes": 8192.0}, {"traffic_ratio", "l2_hit_pct", "dram_throughput_pct"}),
        ({"global_load_bytes": 8.0}, {"sector_efficiency_pct", "l1_hit_pct"}),
        ({"barriers": 1.0}, {"barrier_stall_pct"}),
        ({"predicated": 30.0}, {"branch_divergence_pct"}),
        # a loop whose length nothing tells
        ({"loop_instructions": 20.0}, {"fma_pipe_pct", "sm_throughput_pct", "work_ratio"}),
    ],
)
def test_what_does_not_follow_stays_unknown(changes: dict[str, float], unknown: set[str]) -> None:
    def known(launch: Launch) -> set[str]:
        launches = add_derived([launch], NEEDED, H200)
        needed = replace(NEEDED, limiter="fp32")
        profile = Profile("", "cupti", "h200", False, launches)
        return set(make_signature(profile, H200, needed).values)

    assert unknown <= known(streaming())
    assert not unknown & known(streaming(**changes))


def test_what_stores_waste_of_sectors_what_is_read_again_and_the_code_are_figures() -> None:
    def figures(**changes: float) -> dict[str, float]:
        launches = add_derived([streaming(**changes)], NEEDED, H200)
        profile = Profile("", "cupti", "h200", False, launches)
        return dict(make_signature(profile, H200, NEEDED).values)

    plain = figures()
    assert plain["access_bytes"] == 16.0 and plain["reuse_ratio"] == pytest.approx(1.0)
    loaded, stored = (
        streaming().metrics[f"static__program_{name}_bytes"] for name in ("load", "store")
    )
    spread = figures(program_store_sector_bytes=8.0 * stored)
    assert spread["sector_efficiency_pct"] == pytest.approx(
        100.0 * (loaded + stored) / (loaded + 8.0 * stored)
    )
    assert figures(program_load_bytes=2.0 * loaded)["reuse_ratio"] == pytest.approx(
        (2.0 * loaded + stored) / (loaded + stored)
    )
    assert plain["code_bytes"] == 16.0 * streaming().metrics["static__instructions"]


def test_launches_of_a_vendor_move_their_arguments_at_least() -> None:
    operator = Launch(
        "aten.mul.Tensor", 0.5, None, None,
        {"static__library": 1.0, "static__argument_bytes": 2.0**31},
    )  # fmt: skip
    launches = add_derived([operator, replace(operator, name="aten.sub.Tensor")], NEEDED, H200)
    found = diagnose(Profile("", "static", "h200", True, launches), H200, NEEDED, latency_ms=None)
    assert found.bottleneck is Bottleneck.REDUNDANT_TRAFFIC
    assert [item.metric for item in found.evidence][0] == "least_traffic_ratio"
    assert "traffic_ratio" not in found.signature.values  # at least is not how many


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """The profile of a kernel of the module, without a GPU."""
    path = tmp_path_factory.mktemp("problem") / "scaled_softmax.py"
    path.write_text(PROBLEM, encoding="utf-8")
    traced = trace_at_full_size(load_problem(path), Contract(), H200)
    profilers = {"static": StaticProfiler()}
    return collect_profile(Kernel(KERNEL), traced, profilers, None, present=False)


def of_the_library(compiled: Profile) -> Diagnosis:
    """What is said of the softmax of the library alone."""
    return diagnose(
        replace(compiled, launches=compiled.launches[1:]), H200, NEEDED, latency_ms=None
    )


def test_where_nothing_tells_the_diagnosis_names_what_would(
    compiled: Profile,
) -> None:
    found = of_the_library(compiled)
    assert found.bottleneck is Bottleneck.UNKNOWN
    assert Bottleneck.LATENCY in found.possible and Bottleneck.LOW_PARALLELISM in found.possible
    assert len(found.tests) == 2
    assert found.tests[0].counters and all(test.metric in found.summary for test in found.tests)
    # the bound is set by bytes, so the figures of memory would tell
    assert {test.metric for test in found.tests} == {"memory_stall_pct", "sector_efficiency_pct"}
    # a figure that is known rules out what it speaks of
    busy = replace(compiled.launches[1], metrics={"derived__sm_throughput_pct": 5.0})
    ruled_out = diagnose(replace(compiled, launches=(busy,)), H200, NEEDED, latency_ms=None)
    assert Bottleneck.ISSUE_BOUND in found.possible
    assert Bottleneck.ISSUE_BOUND not in ruled_out.possible


def test_a_skill_for_what_is_not_ruled_out_is_unknown_to_the_gate(
    compiled: Profile,
) -> None:
    found = of_the_library(compiled)
    gate = Gate(SkillQuery(found, ("softmax",), "sm_90", Contract()))
    skill = replace(
        load_skill(bundled_skills_root() / "online-softmax"), signature=(), operators=("softmax",)
    )
    possible = replace(skill, bottlenecks=(Bottleneck.LATENCY,))
    ruled_out = replace(skill, bottlenecks=(Bottleneck.AT_BOUND,))
    assert gate.passes(possible) and not gate.passes(ruled_out)
    assert gate.strength(possible) == gate.test(possible).strength < 1.0
    assert "treats latency, which nothing names or rules out" in gate.test(possible).reasons


def test_launches_are_told_apart_with_the_values_that_they_make(
    compiled: Profile,
) -> None:
    profile = compiled
    assert profile.operators and "softmax" in profile.operators
    assert [launch.serves for launch in profile.launches] == [("mul",), ("softmax",)]
    found = diagnose(profile, H200, profile.bound, latency_ms=None)
    assert found.operators == profile.operators
    assert {share.name: share.serves for share in found.launches} == {
        "doubled": ("mul",),
        "aten._softmax.default": ("softmax",),
    }
    assert sum(share.share for share in found.launches) == pytest.approx(1.0)
    streaming_part = next(share for share in found.launches if share.name == "doubled")
    assert streaming_part.bottleneck is Bottleneck.DRAM_BANDWIDTH
    assert f"which serves {found.launches[0].serves[0]}" in found.summary


def test_a_kernel_alone_has_eighteen_dimensions_without_counters(
    compiled: Profile,
) -> None:
    traced_time = replace(compiled.launches[0], duration_ms=0.5)
    profile = Profile("", "cupti", "h200", False, (traced_time,))
    signature = make_signature(profile, H200, NEEDED, host_ms=0.52)
    assert len(signature.values) >= 18, sorted(signature.values)
    assert {"launches", "registers_per_thread", "host_overhead_pct"}.isdisjoint(signature.derived)


def test_a_text_that_kmem_did_not_write_serves_nothing_that_is_known() -> None:
    launch = Launch("k", 1.0, None, None, {})
    graph = OpGraph((), (), (), False, False, False)
    assert add_served([launch], "def broken(", graph) == (launch,)
    assert add_served([launch], "x = 1\n", graph) == (launch,)


def test_operators_come_from_the_graph_as_recipes_name_its_parts() -> None:
    problem = load_problem(Path(__file__).parents[1] / "problems" / "rms_norm")
    traced = trace_at_full_size(problem, Contract(), H200)
    paths = skill_directories(bundled_skills_root())
    skills = Registry(skills={path.name: path for path in paths})
    assert "rms_norm" in graph_operators(traced, skills)
    assert "rms_norm" not in graph_operators(traced, Registry())
