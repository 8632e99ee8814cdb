"""Figures without a GPU: instruction counts, occupancy by formula, estimates, traces."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from kmem.devices import named_target
from kmem.errors import NotRegistered, ProfilerError
from kmem.interfaces import Profiler
from kmem.problem.costs.bound import REACHED
from kmem.problem.traced import untraced_problem
from kmem.profile.collect import collect_profile
from kmem.profile.compile.occupancy import compute_occupancy
from kmem.profile.compile.sass import count_instructions
from kmem.profile.compile.ttir import count_program_work
from kmem.profile.cupti import add_static, read_trace
from kmem.profile.estimate import estimate_kernel_ms, estimate_launches
from kmem.profile.vendor import vendor_share
from kmem.records import Bound, Contract, Kernel, Launch, Problem, Profile

H200 = named_target("h200")

# The format of nvdisasm -b SM90a 13.0: one instruction a line, branches to addresses.
LISTING = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   MUFU.EX2 R5, R4 ;
        /*0030*/                   LDGSTS.E.BYPASS.128 [R4+0x800], desc[UR6][R12.64+0x40] ;
        /*0040*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0050*/                   HMMA.1688.F32.TF32 R8, R4, R2, R8 ;
        /*0060*/                   FFMA R0, R1, R2, R3 ;
        /*0070*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0080*/               @P1 BRA 0x30 ;
        /*0090*/                   STL [R1], R3 ;
        /*00a0*/                   STG.E.U16 desc[UR4][R2.64], R4 ;
        /*00b0*/                   EXIT ;
        /*00c0*/                   BRA 0xc0;
        /*00d0*/                   NOP;
"""


TTIR = """
module {
  tt.func public @k(%a: !tt.ptr<f32> {tt.divisibility = 16 : i32}) {
    %c0_i32 = arith.constant 0 : i32
    %c100_i32 = arith.constant 100 : i32
    %c32_i32 = arith.constant 32 : i32
    %once = tt.load %p, %mask, %other : tensor<128x!tt.ptr<f16>> loc(#loc1)
    %acc = scf.for %k = %c0_i32 to %c100_i32 step %c32_i32 \
iter_args(%x = %y) -> (tensor<64x64xf32>)  : i32 {
      %t = tt.load %q : tensor<64x32x!tt.ptr<f32>>
      %s = tt.load %r : !tt.ptr<i64>
      %d = tt.descriptor_load %desc[%i, %j] \
: !tt.tensordesc<tensor<32x64xbf16>> -> tensor<32x64xbf16>
      tt.store %w, %v, %m : tensor<64x!tt.ptr<bf16>>
      %acc_27 = tt.dot %t, %u, %x, inputPrecision = tf32x3 \
: tensor<64x32xf32> * tensor<32x64xf32> -> tensor<64x64xf32>
    }
    tt.store %z, %acc : tensor<64x64x!tt.ptr<f32>>
    tt.descriptor_store %desc[%i, %j], %v : !tt.tensordesc<tensor<32x64xbf16>>, tensor<32x64xbf16>
    %old = tt.atomic_rmw fadd, relaxed, gpu, %n, %v, %m \
: (tensor<16x!tt.ptr<f32>>, tensor<16xf32>, tensor<16xi1>) -> tensor<16xf32>
    %one = tt.atomic_rmw add, release, gpu, %n, %v, %m : (!tt.ptr<i32>, i32, i1) -> i32
    tt.return
  }
}
"""


def test_loops_with_constant_bounds_are_multiplied_out() -> None:
    work = count_program_work(TTIR)
    assert work["static__program_load_bytes"] == 128 * 2 + 4 * (64 * 32 * 4 + 8 + 32 * 64 * 2)
    assert (
        work["static__program_store_bytes"] == 4 * 64 * 2 + 64 * 64 * 4 + 32 * 64 * 2 + 16 * 4 + 4
    )
    assert work["static__program_flops"] == 4 * 3 * 2 * 64 * 32 * 64


def test_a_loop_of_unknown_length_gives_no_figure() -> None:
    assert count_program_work(TTIR.replace("to %c100_i32", "to %n")) == {}


EXCEPTION_TTIR = """
module {
  tt.func public @k(%a: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("a"(#loc))) attributes {} {
    %c0_i32 = arith.constant 0 : i32 loc(#loc1)
    %c8_i32 = arith.constant 8 : i32
    %c1_i32 = arith.constant 1 : i32
    %pid = tt.get_program_id x : i32
    %turn = tt.atomic_rmw add, relaxed, gpu, %a, %c1_i32, %true : (!tt.ptr<i32>, i32, i1) -> i32
    %worst = scf.for %k = %c0_i32 to %c8_i32 step %c1_i32 iter_args(%x = %y) -> (i32)  : i32 {
      %t = tt.load %q : tensor<64x!tt.ptr<f32>>
      %n = arith.maxsi %x, %t : i32
      scf.yield %n : i32
    }
    %0 = "tt.reduce"(%worst) <{axis = 0 : i32}> ({
    ^bb0(%arg7: i32 loc("r"(#loc)), %arg8: i32 loc("r"(#loc))):
      tt.reduce.return %11 : i32
    }) : (tensor<64xi32>) -> i32
    %bad = arith.cmpi sgt, CONDITION, %c0_i32 : i32
    scf.if %bad {
      %again = tt.load %q : tensor<1024x!tt.ptr<f32>>
    }ELSE
  }
}
"""


@pytest.mark.parametrize(
    ("condition", "other_side", "loaded"),
    [
        pytest.param("%0", "", 8 * 64 * 4, id="an exception that loaded values call for"),
        pytest.param("%pid", "", 8 * 64 * 4 + 4096, id="a branch that is known beforehand"),
        pytest.param("%turn", "", 8 * 64 * 4 + 4096, id="a program's turn, which it drew"),
        pytest.param("%0", " else {\n    }", 8 * 64 * 4 + 4096, id="one side or the other"),
    ],
)
def test_a_branch_that_only_an_exception_in_the_data_takes_costs_nothing(
    condition: str, other_side: str, loaded: float
) -> None:
    text = EXCEPTION_TTIR.replace("CONDITION", condition).replace("ELSE", other_side)
    assert count_program_work(text)["static__program_load_bytes"] == loaded


def test_instructions_are_counted_by_kind_inside_and_outside_loops() -> None:
    counts = count_instructions(LISTING)
    assert (
        counts["static__global_load_bytes"] == 16 and counts["static__loop_global_load_bytes"] == 16
    )
    assert (
        counts["static__global_store_bytes"] == 2
        and counts["static__local_accesses"] == 1
        and counts["static__special"] == 1
    )
    assert counts["static__loop_tensor_flops"] == 2 * 64 * 128 * 16 / 4 + 2 * 16 * 8 * 8
    assert counts["static__loop_tf32_tensor_flops"] == 2 * 16 * 8 * 8
    assert counts["static__loop_fma_flops"] == 2 and counts["static__loop_barriers"] == 1
    assert counts["static__predicated"] == 1
    # the NOP is padding
    assert counts["static__instructions"] + counts["static__loop_instructions"] == 13


@pytest.mark.parametrize(
    ("warps", "registers", "shared", "blocks", "limiter"),
    [
        (4, 32, 0, 16, "warps"),
        (4, 128, 0, 4, "registers"),
        (8, 255, 0, 1, "registers"),
        (4, 32, 100_000, 2, "shared"),
        (1, 16, 0, 32, "blocks"),
        (4, 32, 232_448, 1, "shared"),
    ],
)
def test_occupancy_follows_nvidias_calculator(
    warps: int, registers: int, shared: int, blocks: int, limiter: str
) -> None:
    found = compute_occupancy(
        H200, warps_per_block=warps, registers_per_thread=registers, shared_bytes_per_block=shared
    )
    assert (found.blocks_per_sm, found.limiter) == (blocks, limiter)
    assert found.ratio == blocks * warps / 64


def test_a_block_that_does_not_fit_has_no_occupancy() -> None:
    assert (
        compute_occupancy(
            H200, warps_per_block=4, registers_per_thread=32, shared_bytes_per_block=300_000
        ).blocks_per_sm
        == 0
    )


def streaming(**changes: float) -> Launch:
    """A pointwise kernel over 1 GiB in and out: 16 bytes a thread."""
    metrics = {
        "static__argument_bytes": 2.0**31,
        "static__global_load_bytes": 32.0,
        "static__instructions": 60.0,
        "static__fma": 8.0,
        "static__fma_flops": 16.0,
        "static__blocks_per_sm": 16.0,
        "static__waves": 124.0,
    }
    return Launch(
        "k",
        None,
        (262144, 1, 1),
        (128, 1, 1),
        {**metrics, **{f"static__{name}": value for name, value in changes.items()}},
    )


BOUND = Bound(2**31, {"fp32": 2.0**28}, 0.447, "bytes")


def test_a_streaming_kernel_is_estimated_near_what_the_h200_took() -> None:
    # tests/recordings/ncu_pointwise_triton.csv: 0.503 ms for the same bytes on the same grid.
    assert estimate_kernel_ms([streaming()], BOUND, H200) == pytest.approx(0.503, rel=0.1)


def test_a_launch_that_reads_little_of_a_large_argument_is_short() -> None:
    combine = replace(streaming(program_load_bytes=8192.0, program_store_bytes=4.0), grid=(1, 1, 1))
    assert estimate_kernel_ms([combine], None, H200) < 0.01
    assert (
        estimate_kernel_ms(
            [replace(streaming(program_load_bytes=8192.0), grid=(1, 1, 1))], None, H200
        )
        > 1.0
    ), "stores are unknown"


@pytest.mark.parametrize(
    "worse",
    [
        streaming(argument_bytes=2.0**32),
        streaming(instructions=2000.0),
        streaming(special=600.0),
        streaming(local_accesses=600.0),
        streaming(program_load_bytes=1e6),
        streaming(blocks_per_sm=1.0, global_load_bytes=4.0),
        streaming(tensor_flops=1e6),
        replace(streaming(), grid=(16, 1, 1)),
    ],
    ids=[
        "bytes",
        "instructions",
        "special functions",
        "spills",
        "cache traffic",
        "bytes in flight",
        "tensor work",
        "few blocks",
    ],
)
def test_the_estimate_grows_with_whatever_costs_more(worse: Launch) -> None:
    assert estimate_kernel_ms([worse], BOUND, H200) > 1.5 * estimate_kernel_ms(
        [streaming()], BOUND, H200
    )


def test_a_kernel_whose_block_does_not_fit_is_estimated_as_never_ending() -> None:
    assert estimate_kernel_ms([streaming(blocks_per_sm=0.0)], BOUND, H200) == float("inf")


def test_library_operators_cost_their_bytes_or_flops_and_each_launch_itself() -> None:
    product = Launch(
        "aten.mm.default",
        None,
        None,
        None,
        {
            "static__library": 1.0,
            "static__argument_bytes": 1e6,
            "static__flops": 9.895e11,
            "static__item_bytes": 2.0,
        },
    )
    fill = Launch(
        "aten.zeros.default",
        None,
        None,
        None,
        {"static__library": 1.0, "static__argument_bytes": 0.0},
    )
    first, second = estimate_launches([product, fill], None, H200)
    assert first.duration_ms == pytest.approx(1.0 / REACHED["bf16"] + H200.launch_ms)
    assert second.duration_ms == H200.launch_ms


def event(name: str, start: float, **fields: object) -> Mapping[str, object]:
    return {"cat": "kernel", "name": name, "ts": start, "dur": 12.5, "args": fields}


@pytest.mark.parametrize(
    ("weight", "transposed", "groups", "share"),
    [
        ((64, 32, 3, 3), False, 1, 0.41),
        ((64, 32, 1, 1), False, 1, 0.89),
        ((64, 32, 3, 3, 3), False, 1, 0.18),
        ((32, 1, 3, 3), False, 32, 0.16),
        ((64, 32, 3, 3), True, 1, 0.12),
    ],
)
def test_a_vendors_convolution_is_taken_at_what_its_kind_was_measured_to_reach(
    weight: tuple[int, ...], transposed: bool, groups: int, share: float
) -> None:
    axes = len(weight) - 2
    one, nothing = [1] * axes, [0] * axes
    arguments = [None, torch.empty(weight, device="meta"), None, one, nothing, one]
    arguments += [transposed, nothing, groups]
    assert vendor_share("aten.convolution.default", arguments) == share
    assert vendor_share("aten.mm.default", []) == 1.0


def test_what_a_vendors_kernel_does_not_reach_makes_it_longer() -> None:
    metrics = {"static__library": 1.0, "static__argument_bytes": 1e9}
    whole, part = (
        Launch("aten.op.default", None, None, None, {**metrics, "static__vendor_share": share})
        for share in (1.0, 0.5)
    )
    whole_ms, part_ms = (estimate_kernel_ms([launch], None, H200) for launch in (whole, part))
    assert part_ms - H200.launch_ms == pytest.approx(2 * (whole_ms - H200.launch_ms))


def test_kernels_of_a_chrome_trace_become_launches_in_order() -> None:
    trace = {
        "traceEvents": [
            event(
                "second",
                20.0,
                grid=[8, 1, 1],
                block=[128, 1, 1],
                **{
                    "registers per thread": 40,
                    "shared memory": 512,
                    "est. achieved occupancy %": 25,
                },
            ),
            {"cat": "cpu_op", "name": "aten::add", "ts": 1.0, "dur": 3.0},
            event("first", 10.0, grid=[4, 2, 1], block=[64, 1, 1]),
            {
                "cat": "gpu_memset",
                "name": "Memset (Device)",
                "ts": 30.0,
                "dur": 1.0,
                "args": {"bytes": 4},
            },
        ]
    }
    launches = read_trace(trace)
    (first, second), fill = launches[:2], launches[2]
    assert (first.name, first.grid, first.duration_ms, dict(first.metrics)) == (
        "first",
        (4, 2, 1),
        0.0125,
        {},
    )
    assert dict(second.metrics) == {
        "cupti__registers_per_thread": 40,
        "cupti__shared_bytes_per_block": 512,
        "cupti__achieved_occupancy_pct": 25,
    }
    assert fill.grid is None
    compiled = [
        Launch("second", None, (8, 1, 1), (128, 1, 1), {"static__stack_bytes_per_thread": 64.0}),
        Launch("first", None, (9, 9, 9), None, {"static__x": 1.0}),
    ]
    joined = add_static([first, second, fill], compiled)
    assert (
        joined[0] == first
        and joined[1].metrics["static__stack_bytes_per_thread"] == 64.0
        and joined[1].duration_ms == 0.0125
    )


class FakeProfiler(Profiler):
    """Answers or refuses as told."""

    def __init__(
        self,
        name: str,
        *,
        estimated: bool = False,
        reason: str | None = None,
        error: str | None = None,
    ) -> None:
        self.name = name
        self.estimated = estimated
        self.reason = reason
        self.error = error

    def unavailable_reason(self) -> str | None:
        return self.reason

    def profile(self, kernel, traced, executor) -> Profile:  # noqa: ANN001
        if self.error:
            raise ProfilerError(self.error)
        return Profile(kernel.hash, self.name, traced.device.name, self.estimated, ())


def collect(profilers: list[FakeProfiler], *, present: bool = True, name: str = "auto") -> str:
    table = {profiler.name: profiler for profiler in profilers}
    return collect_profile(
        Kernel(""),
        untraced_problem(Problem("p", "p", ""), Contract(), H200),
        table,
        None,
        present=present,
        name=name,
    ).profiler


def test_auto_takes_the_first_profiler_that_works() -> None:
    table = [
        FakeProfiler("ncu", reason="no permission"),
        FakeProfiler("cupti", error="CUPTI is busy"),
        FakeProfiler("static", estimated=True),
    ]
    assert collect(table) == "static"
    assert collect([FakeProfiler("ncu"), *table[1:]]) == "ncu"
    assert collect([FakeProfiler("ncu"), *table[1:]], present=False) == "static"


def test_a_named_profiler_that_cannot_run_says_why() -> None:
    with pytest.raises(ProfilerError, match="ncu cannot run: no permission"):
        collect([FakeProfiler("ncu", reason="no permission")], name="ncu")
    with pytest.raises(ProfilerError, match="needs h200 here; use --profiler static"):
        collect([FakeProfiler("ncu")], name="ncu", present=False)
    with pytest.raises(NotRegistered, match="'nsys'. Registered: ncu"):
        collect([FakeProfiler("ncu")], name="nsys")
    with pytest.raises(ProfilerError, match="ncu: gone; cupti: busy"):
        collect([FakeProfiler("ncu", reason="gone"), FakeProfiler("cupti", error="busy")])


LANES_TTIR = """
module {
  tt.func public @k(%x: !tt.ptr<f32>, %n: i32, %columns: i32 {tt.divisibility = 16 : i32}) {
    %cst = arith.constant dense<4> : tensor<64x1xi32>
    %c2_i32 = arith.constant 2 : i32
    %lane = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %wide = tt.splat %columns : i32 -> tensor<64xi32>
    %odd = tt.splat %n : i32 -> tensor<64xi32>
    %two = tt.splat %c2_i32 : i32 -> tensor<64xi32>
    %far = arith.muli %lane, %wide : tensor<64xi32>
    %unknown = arith.muli %lane, %odd : tensor<64xi32>
    %even = arith.muli %two, %lane : tensor<64xi32>
    %down = tt.expand_dims %lane {axis = 1 : i32} : tensor<64xi32> -> tensor<64x1xi32>
    %rows = arith.muli %down, %cst : tensor<64x1xi32>
    %across = tt.expand_dims %lane {axis = 0 : i32} : tensor<64xi32> -> tensor<1x64xi32>
    %rows_1 = tt.broadcast %rows : tensor<64x1xi32> -> tensor<64x64xi32>
    %across_1 = tt.broadcast %across : tensor<1x64xi32> -> tensor<64x64xi32>
    %tile = arith.addi %rows_1, %across_1 : tensor<64x64xi32>
    %p = tt.splat %x : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %q = tt.splat %x : !tt.ptr<f32> -> tensor<64x64x!tt.ptr<f32>>
    %place = tt.addptr OFFSET
    %v = tt.load %place : LOADED
  }
}
"""
_ROW, _TILE = "tensor<64x!tt.ptr<f32>>", "tensor<64x64x!tt.ptr<f32>>"


@pytest.mark.parametrize(
    ("offset", "asked"),
    [
        pytest.param("%p, %lane", 1.0, id="neighbours"),
        pytest.param("%p, %even", 0.5, id="every second"),
        pytest.param("%p, %far", 1 / 8, id="lanes a row of sixteen or more apart"),
        pytest.param("%q, %tile", 1.0, id="one dimension of a tile runs along neighbours"),
        pytest.param("%p, %unknown", None, id="nobody knows how far"),
    ],
)
def test_how_far_lanes_are_apart_says_how_much_of_their_sectors_is_asked_for(
    offset: str, asked: float | None
) -> None:
    loaded = _TILE if "%q" in offset else _ROW
    text = LANES_TTIR.replace("OFFSET", f"{offset} : {loaded}, {loaded}")
    work = count_program_work(text.replace("LOADED", loaded))
    sectors = work.get("static__program_sector_bytes")
    found = None if sectors is None else work["static__program_load_bytes"] / sectors
    assert found == asked
    stored = text.replace("%v = tt.load %place :", "tt.store %place, %v :").replace(
        "LOADED", loaded
    )
    work = count_program_work(stored)
    sectors = work.get("static__program_store_sector_bytes")
    assert (None if sectors is None else work["static__program_store_bytes"] / sectors) == asked


def test_bounds_that_are_worked_out_from_constants_are_constants() -> None:
    text = TTIR.replace(
        "    %c32_i32 = arith.constant 32 : i32",
        "    %c32_i32 = arith.constant 32 : i32\n"
        "    %more = arith.addi %c100_i32, %c32_i32 : i32\n"
        "    %tiles = arith.ceildivsi %more, %c32_i32 : i32\n"
        "    %stop = arith.muli %tiles, %c32_i32 : i32",
    )
    work = count_program_work(text.replace("to %c100_i32", "to %stop"))
    assert work["static__program_flops"] == 5 * 3 * 2 * 64 * 32 * 64
    again = text.replace("to %c100_i32", "to %stop").replace("muli %tiles", "muli %unknown")
    assert count_program_work(again) == {}


def test_masks_and_arithmetic_are_counted_where_they_stand() -> None:
    text = TTIR.replace(
        "      %s = tt.load",
        "      %z = arith.mulf %t, %t : tensor<64x32xf32>\n      %s = tt.load",
    ).replace("    tt.return", "    tt.store %w, %v, %m : tensor<64x!tt.ptr<bf16>>\n    tt.return")
    work = count_program_work(text)
    assert work["static__program_vector_flops"] == 4 * 64 * 32
    assert work["static__program_masked_store_bytes"] == 64 * 2, "not that in the loop"
