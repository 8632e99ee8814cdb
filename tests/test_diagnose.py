"""Every bottleneck from a synthetic profile, the recorded ones from real reports.

What the run's history changes is tested here, too.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kmem.devices import named_target
from kmem.diagnose.bottleneck import diagnose, refuted_bottlenecks
from kmem.diagnose.inferred import INFERRED
from kmem.diagnose.rule import EXTRA_FACTS
from kmem.diagnose.rules import RULES
from kmem.diagnose.signature import make_signature
from kmem.profile.ncu_csv import read_report
from kmem.records import (
    Attempt,
    Bottleneck,
    Bound,
    Candidate,
    Kernel,
    Launch,
    Measurement,
    Move,
    Profile,
    Status,
    Task,
    Timing,
)
from kmem.vocabulary import SIGNATURE_METRICS

H200 = named_target("h200")
RECORDINGS = Path(__file__).parent / "recordings"
BYTES_BOUND = Bound(480_000_000, {"fp32": 1e9}, 0.1, "bytes")  # 0.1 ms at 4.8 TB/s
TENSOR_BOUND = Bound(48_000_000, {"bf16": 9.895e10}, 0.1, "bf16")
FP32_BOUND = Bound(48_000_000, {"fp32": 6.7e9}, 0.1, "fp32")

_PEAK = ".avg.pct_of_peak_sustained_elapsed"
DRAM = "gpu__dram_throughput" + _PEAK
L2 = "lts__throughput" + _PEAK
L1 = "l1tex__throughput" + _PEAK
SM = "sm__throughput" + _PEAK
TENSOR = "sm__pipe_tensor_cycles_active" + _PEAK
FMA = "sm__pipe_fma_cycles_active" + _PEAK
XU = "sm__inst_executed_pipe_xu" + _PEAK
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
WAVES = "launch__waves_per_multiprocessor"
SECTOR = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio"
WARP = "smsp__average_warp_latency_per_inst_issued.ratio"
LONG = "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"
BARRIER = "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio"
READ, WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"
ADD = "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"
MUL = "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum"
MULADD = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
QUIET = {DRAM: 20.0, L2: 20.0, L1: 20.0, SM: 20.0, WAVES: 10.0, OCCUPANCY: 80.0}


def profile_of(
    metrics: Mapping[str, float], *, count: int = 1, duration_ms: float = 0.2, profiler: str = "ncu"
) -> Profile:
    return Profile(
        "k",
        profiler,
        "h200",
        False,
        tuple(
            Launch(f"kernel_{i}", duration_ms, (1000, 1, 1), (128, 1, 1), metrics)
            for i in range(count)
        ),
    )


CASES: list[tuple[Bottleneck, Profile, Bound | None, float | None]] = [
    (Bottleneck.AT_BOUND, profile_of({**QUIET, DRAM: 91.0}, duration_ms=0.104), BYTES_BOUND, 0.104),
    (Bottleneck.AT_BOUND, profile_of({**QUIET, TENSOR: 90.0, SM: 90.0}), None, None),
    (
        Bottleneck.REDUNDANT_TRAFFIC,
        profile_of({**QUIET, DRAM: 90.0, READ: 1e9, WRITE: 4.4e8}, duration_ms=0.33),
        BYTES_BOUND,
        0.33,
    ),
    (Bottleneck.REDUNDANT_TRAFFIC, profile_of({**QUIET, DRAM: 70.0}, count=3), None, None),
    (Bottleneck.UNCOALESCED, profile_of({**QUIET, SECTOR: 4.0, L2: 95.0}), None, None),
    (
        Bottleneck.DRAM_BANDWIDTH,
        profile_of({**QUIET, DRAM: 88.0, L2: 91.0, READ: 2.4e8, WRITE: 2.4e8}, duration_ms=0.12),
        BYTES_BOUND,
        0.12,
    ),
    (Bottleneck.L2_OR_L1_BANDWIDTH, profile_of({**QUIET, L1: 85.0}), None, None),
    (
        Bottleneck.TENSOR_CORE_IDLE,
        profile_of({**QUIET, TENSOR: 25.0, SM: 40.0}, duration_ms=0.4),
        TENSOR_BOUND,
        0.4,
    ),
    (Bottleneck.FMA_BOUND, profile_of({**QUIET, FMA: 77.0, SM: 87.0}), FP32_BOUND, 0.13),
    (Bottleneck.ISSUE_BOUND, profile_of({**QUIET, FMA: 32.0, SM: 76.0}), None, None),
    (Bottleneck.SPECIAL_FUNCTION_BOUND, profile_of({**QUIET, XU: 85.0, SM: 85.0}), None, None),
    (Bottleneck.LATENCY, profile_of({**QUIET, WARP: 20.0, LONG: 15.0}), None, None),
    (
        Bottleneck.LOW_PARALLELISM,
        profile_of(
            {**QUIET, WAVES: 0.02, DRAM: 3.0, WARP: 20.0, LONG: 18.0, OCCUPANCY: 6.0},
            duration_ms=3.5,
        ),
        BYTES_BOUND,
        3.5,
    ),
    (Bottleneck.LOW_PARALLELISM, profile_of({**QUIET, WAVES: 1.1}), None, None),
    (
        Bottleneck.REGISTER_SPILL,
        profile_of(
            {
                **QUIET,
                "smsp__sass_inst_executed_op_local_st.sum": 4e5,
                "launch__thread_count": 128_000.0,
            }
        ),
        None,
        None,
    ),
    (
        Bottleneck.OCCUPANCY_LIMITED,
        profile_of({**QUIET, OCCUPANCY: 12.0, WARP: 20.0, BARRIER: 10.0}),
        None,
        None,
    ),
    (
        Bottleneck.DIVERGENCE_OR_MASKING,
        profile_of(
            {**QUIET, SM: 75.0, "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio": 16.0}
        ),
        None,
        None,
    ),
    (Bottleneck.LAUNCH_OVERHEAD, profile_of(QUIET, count=20, duration_ms=0.003), None, None),
    (Bottleneck.LAUNCH_OVERHEAD, profile_of(QUIET, count=8, duration_ms=0.02), BYTES_BOUND, 0.4),
    (Bottleneck.HOST_OVERHEAD, profile_of(QUIET, duration_ms=0.1), None, 0.5),
    (
        Bottleneck.ALGORITHMIC,
        profile_of({**QUIET, FMA: 55.0, ADD: 0.0, MUL: 0.0, MULADD: 6.7e9}),
        FP32_BOUND,
        0.25,
    ),
    (Bottleneck.ALGORITHMIC, profile_of({**QUIET, TENSOR: 88.0}), TENSOR_BOUND, 0.2),
]


@pytest.mark.parametrize(
    ("expected", "profile", "bound", "latency_ms"),
    CASES,
    ids=lambda value: value.value if isinstance(value, Bottleneck) else "",
)
def test_each_bottleneck_is_named_with_its_evidence(
    expected: Bottleneck, profile: Profile, bound: Bound | None, latency_ms: float | None
) -> None:
    diagnosis = diagnose(profile, H200, bound, latency_ms=latency_ms)
    assert diagnosis.bottleneck is expected, diagnosis
    assert diagnosis.evidence
    for item in diagnosis.evidence:
        assert (
            item.value >= item.threshold
            if item.comparison == ">="
            else item.value <= item.threshold
        )
    assert diagnosis.summary.startswith(expected.value)
    assert expected not in diagnosis.secondary


def test_the_table_covers_every_bottleneck() -> None:
    named = set(Bottleneck) - {Bottleneck.UNKNOWN}  # which is what no rule names
    assert {case[0] for case in CASES} == named
    assert {rule.bottleneck for rule in RULES} == named


def test_every_rule_uses_facts_that_exist_and_gives_its_reason() -> None:
    known = set(SIGNATURE_METRICS) | set(EXTRA_FACTS)
    for rule in (*RULES, *INFERRED):
        conditions = (*rule.all_of, *rule.any_of, *rule.unless)
        assert conditions and {condition.metric for condition in conditions} <= known
        assert rule.phrase and rule.source


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # cuDNN's dgrad kernel stores 300,000 registers to local memory
        ("conv_transpose", Bottleneck.REGISTER_SPILL),
        ("depthwise", Bottleneck.ISSUE_BOUND),  # issue slots 76% busy with index arithmetic
        ("matmul_bf16", Bottleneck.AT_BOUND),
        ("matmul_fp32", Bottleneck.FMA_BOUND),
        ("matvec_16_blocks", Bottleneck.LOW_PARALLELISM),
        ("maxpool3d", Bottleneck.ISSUE_BOUND),
        ("pointwise_triton", Bottleneck.DRAM_BANDWIDTH),
        ("rmsnorm_eager", Bottleneck.REDUNDANT_TRAFFIC),
        ("softmax", Bottleneck.DRAM_BANDWIDTH),
        ("strided_copy", Bottleneck.UNCOALESCED),
        ("tiny_launches", Bottleneck.LAUNCH_OVERHEAD),
    ],
)
def test_reports_of_a_real_h200_are_diagnosed_without_knowing_the_problem(
    name: str, expected: Bottleneck
) -> None:
    diagnosis = diagnose(
        Profile("", "ncu", "h200", False, read_report(RECORDINGS / f"ncu_{name}.csv")),
        H200,
        None,
        latency_ms=None,
    )
    assert diagnosis.bottleneck is expected, diagnosis
    assert diagnosis.speed_of_light is None and diagnosis.headroom_ms is None


def test_busy_dram_is_redundant_traffic_once_the_bound_is_known() -> None:
    profile = Profile("", "ncu", "h200", False, read_report(RECORDINGS / "ncu_softmax.csv"))
    bound = Bound(2 * 1024 * 393216 * 4, {}, 0.67, "bytes")
    diagnosis = diagnose(profile, H200, bound, latency_ms=1.5)
    assert diagnosis.bottleneck is Bottleneck.REDUNDANT_TRAFFIC
    assert diagnosis.signature.values["traffic_ratio"] == pytest.approx(
        (4_831_930_880 + 1_590_618_368) / bound.bytes
    )
    assert diagnosis.secondary[0] is Bottleneck.DRAM_BANDWIDTH
    assert diagnosis.headroom_ms == pytest.approx(
        0.83
    ) and diagnosis.speed_of_light == pytest.approx(0.67 / 1.5)


def test_the_signature_is_weighted_by_time_and_names_the_hottest_launch() -> None:
    launches = (
        Launch("short", 0.1, None, None, {DRAM: 10.0, SECTOR: 32.0}),
        Launch("long", 0.9, None, None, {DRAM: 90.0}),
    )
    profile = Profile("k", "ncu", "h200", False, launches)
    signature = make_signature(profile, H200, None)
    assert signature.values["dram_throughput_pct"] == pytest.approx(82.0)
    assert signature.values["sector_efficiency_pct"] == 100.0  # over the launches that know it
    assert diagnose(profile, H200, None, latency_ms=None).hottest == "long"


def test_what_no_counter_gave_is_absent_from_the_signature() -> None:
    assert dict(make_signature(profile_of({}), H200, None).values) == {"launches": 1.0}
    assert (
        "sector_efficiency_pct" not in make_signature(profile_of({SECTOR: 0.0}), H200, None).values
    )


def test_a_profile_without_counters_still_gets_a_diagnosis_from_the_bound() -> None:
    several = diagnose(profile_of({}, count=3, profiler="cupti"), H200, BYTES_BOUND, latency_ms=0.6)
    assert several.bottleneck is Bottleneck.REDUNDANT_TRAFFIC and several.evidence
    alone = diagnose(
        profile_of({}, duration_ms=0.12, profiler="cupti"), H200, BYTES_BOUND, latency_ms=0.12
    )
    assert alone.bottleneck is Bottleneck.DRAM_BANDWIDTH
    slow_product = diagnose(
        profile_of({}, duration_ms=0.5, profiler="cupti"), H200, TENSOR_BOUND, latency_ms=0.5
    )
    assert slow_product.bottleneck is Bottleneck.TENSOR_CORE_IDLE
    nothing = diagnose(profile_of({}), H200, None, latency_ms=None)
    assert nothing.bottleneck is Bottleneck.UNKNOWN and nothing.evidence == ()
    assert "no counter and no time names what limits it" in nothing.summary


def test_an_estimated_time_excuses_no_spill_and_masks_are_told_without_counters() -> None:
    spilled = {"static__stack_bytes_per_thread": 520.0, "derived__dram_throughput_pct": 88.0}
    for estimated in (False, True):
        profile = replace(profile_of(spilled, profiler="static"), estimated=estimated)
        found = diagnose(profile, H200, None, latency_ms=None)
        named = {found.bottleneck, *found.secondary}
        assert (Bottleneck.REGISTER_SPILL in named) is estimated
    for masked_pct, is_named in ((90.0, True), (10.0, False)):
        profile = profile_of({"derived__masked_out_pct": masked_pct}, profiler="static")
        found = diagnose(profile, H200, None, latency_ms=None)
        assert (found.bottleneck is Bottleneck.DIVERGENCE_OR_MASKING) is is_named


def test_an_estimate_does_not_tell_that_a_kernel_is_at_its_bound() -> None:
    """It takes a kernel to be as fast as the unit that is busiest."""
    for estimated, is_named in ((False, True), (True, False)):
        profile = replace(profile_of({**QUIET, DRAM: 91.0}, duration_ms=0.1), estimated=estimated)
        found = diagnose(profile, H200, BYTES_BOUND, latency_ms=None)
        assert (found.bottleneck is Bottleneck.AT_BOUND) is is_named
        assert Bottleneck.AT_BOUND not in found.secondary


def test_a_product_on_fp32_pipes_is_named_where_these_cannot_reach_the_bound() -> None:
    # 12 operations a byte are less than an H200's fp32 pipes do meanwhile, 50 are more
    for operations, is_named in ((12.0, False), (50.0, True)):
        bound = Bound(48_000_000, {"tf32": operations * 48e6}, 0.01, "bytes")
        profile = profile_of({**QUIET, TENSOR: 0.0, L1: 85.0}, duration_ms=0.1)
        found = diagnose(profile, H200, bound, latency_ms=0.1)
        named = Bottleneck.TENSOR_CORE_IDLE if is_named else Bottleneck.L2_OR_L1_BANDWIDTH
        assert found.bottleneck is named


def test_a_product_without_stages_waits_for_its_loads() -> None:
    for stages, is_named in ((1.0, True), (3.0, False)):
        figures = {"static__loop_tensor_flops": 4096.0, "static__num_stages": stages}
        profile = replace(profile_of(figures, profiler="static"), estimated=True)
        found = diagnose(profile, H200, None, latency_ms=None)
        assert (found.bottleneck is Bottleneck.LATENCY) is is_named


def test_too_few_bytes_in_flight_are_told_without_counters() -> None:
    for in_flight_pct, busy_pct, is_named in (
        (30.0, 10.0, True),
        (80.0, 10.0, False),
        (30.0, 70.0, False),
    ):
        few = {"derived__bytes_in_flight_pct": in_flight_pct, WAVES: 8.0, SM: busy_pct}
        found = diagnose(profile_of(few, profiler="static"), H200, None, latency_ms=None)
        assert (found.bottleneck is Bottleneck.LATENCY) is is_named


def test_an_estimate_names_the_busiest_unit_before_device_memory() -> None:
    for busy_pct, first in ((97.0, Bottleneck.ISSUE_BOUND), (60.0, Bottleneck.DRAM_BANDWIDTH)):
        figures = {"derived__dram_throughput_pct": 84.0, "derived__sm_throughput_pct": busy_pct}
        profile = replace(profile_of(figures, profiler="static"), estimated=True)
        found = diagnose(profile, H200, None, latency_ms=None)
        assert found.bottleneck is first
        assert Bottleneck.DRAM_BANDWIDTH in (first, *found.secondary)


def test_wasted_sectors_count_unless_arithmetic_hides_them() -> None:
    for busy_pct, is_named in ((20.0, True), (90.0, False)):
        figures = {"derived__sector_efficiency_pct": 12.5, "derived__sm_throughput_pct": busy_pct}
        profile = replace(profile_of(figures, profiler="static"), estimated=True)
        found = diagnose(profile, H200, None, latency_ms=None)
        assert (found.bottleneck is Bottleneck.UNCOALESCED) is is_named


def test_programs_of_a_word_a_thread_are_named_behind_what_they_keep_busy() -> None:
    for loaded, is_named in ((256.0, True), (8192.0, False)):
        figures = {"static__program_load_bytes": loaded, WAVES: 64.0, SM: 80.0}
        launch = Launch("kernel", 1.0, (1 << 16, 1, 1), (128, 1, 1), figures)
        profile = Profile("", "static", "h200", True, (launch,))
        found = diagnose(profile, H200, None, latency_ms=None)
        assert found.bottleneck is Bottleneck.ISSUE_BOUND
        assert (Bottleneck.LATENCY in found.secondary) is is_named


def test_what_hardly_fits_registers_at_all_comes_before_an_empty_grid() -> None:
    for spilled, first in ((64.0, Bottleneck.LOW_PARALLELISM), (4096.0, Bottleneck.REGISTER_SPILL)):
        figures = {"static__stack_bytes_per_thread": spilled, WAVES: 0.3}
        profile = replace(profile_of(figures, profiler="static"), estimated=True)
        assert diagnose(profile, H200, None, latency_ms=None).bottleneck is first


def test_a_busy_tensor_pipe_is_not_called_a_busy_fma_pipe() -> None:
    found = diagnose(
        profile_of({**QUIET, TENSOR: 67.0, FMA: 5.0, SM: 67.0}), H200, None, latency_ms=None
    )
    named = {found.bottleneck, *found.secondary}
    assert not named & {Bottleneck.FMA_BOUND, Bottleneck.ISSUE_BOUND}


def attempt(bottleneck: Bottleneck, speedup: float | None) -> Attempt:
    task = Task(Move.FIX, "skill", None, 1, "")
    timing = Timing(1.0 / speedup, 1.0, 1.0, 10) if speedup else None
    status = Status.PASSED if speedup else Status.WRONG_VALUES
    return Attempt(
        1,
        Candidate(Kernel("x"), task, "recipes"),
        Measurement(status, timing, False),
        1.0,
        bottleneck,
    )


def test_a_bottleneck_that_this_run_refuted_is_named_second() -> None:
    profile = profile_of({**QUIET, SECTOR: 4.0, L2: 95.0})
    history = [attempt(Bottleneck.UNCOALESCED, 1.0), attempt(Bottleneck.UNCOALESCED, 0.9)]
    diagnosis = diagnose(profile, H200, None, latency_ms=None, history=history)
    assert diagnosis.bottleneck is Bottleneck.L2_OR_L1_BANDWIDTH
    assert diagnosis.secondary == (Bottleneck.UNCOALESCED,)


@pytest.mark.parametrize(
    ("speedups", "refuted"),
    [
        ((1.0, 1.01), True),
        ((1.0,), False),
        ((1.0, 1.5), False),
        ((None, None, None), False),
        ((1.0, None), False),
    ],
)
def test_only_verified_attempts_without_a_gain_refute(
    speedups: tuple[float | None, ...], refuted: bool
) -> None:
    history = [attempt(Bottleneck.LATENCY, speedup) for speedup in speedups]
    assert (Bottleneck.LATENCY in refuted_bottlenecks(history)) is refuted


def test_when_everything_that_fires_is_refuted_the_first_stays() -> None:
    history = [attempt(bottleneck, 1.0) for bottleneck in Bottleneck for _ in range(2)]
    diagnosis = diagnose(
        profile_of({**QUIET, DRAM: 88.0}), H200, None, latency_ms=None, history=history
    )
    assert diagnosis.bottleneck is Bottleneck.DRAM_BANDWIDTH
