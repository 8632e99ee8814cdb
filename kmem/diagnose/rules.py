"""The rules of a diagnosis: which facts name which bottleneck, most telling first.

Each threshold comes with its reason.
"""

from kmem.diagnose.rule import Rule, make_rule
from kmem.records import Bottleneck

RULES: tuple[Rule, ...] = (
    make_rule(
        Bottleneck.AT_BOUND,
        phrase="runs at the speed of the hardware; only less work would make it faster",
        source="the roofline's peaks are themselves measured within a few percent",
        all_of="speed_of_light >= 0.95",
    ),
    make_rule(
        Bottleneck.AT_BOUND,
        phrase=(
            "keeps the tensor cores busy all the time; only less or narrower work would make it "
            "faster"
        ),
        source="cuBLAS's own bf16 product shows 90% (tests/recordings/ncu_matmul_bf16.csv)",
        all_of="tensor_pipe_pct >= 85",
        unless="speed_of_light <= 0.8",
    ),
    make_rule(
        Bottleneck.LAUNCH_OVERHEAD,
        phrase=(
            "many tiny kernel launches: launching takes longer than the work; fuse the kernels "
            "into one or capture a graph"
        ),
        source=(
            "a launch costs 2-4 us on a stream (kmem doctor measures it), so kernels of 10 us "
            "spend a quarter or more on it"
        ),
        all_of="launches >= 4, mean_launch_us <= 10",
    ),
    make_rule(
        Bottleneck.LAUNCH_OVERHEAD,
        phrase=(
            "gaps between many kernel launches leave the GPU idle; fuse the kernels into one or "
            "capture a graph"
        ),
        source=(
            "a third of the forward with no kernel running is more than any kernel fix of it can "
            "give"
        ),
        all_of="launches >= 4, host_overhead_pct >= 33",
    ),
    make_rule(
        Bottleneck.HOST_OVERHEAD,
        phrase="the GPU waits for Python and the launch path; do less on the host per forward",
        source="as above, with too few launches for them to be the reason",
        all_of="host_overhead_pct >= 33",
    ),
    make_rule(
        Bottleneck.ALGORITHMIC,
        phrase=(
            "keeps arithmetic units busy for a result that needs little arithmetic: skip "
            "structural zeros, share repeated work, use algebra"
        ),
        source=(
            "four times slower than the bytes that must move, which are the bound, with a pipe "
            "over 60% busy: most of its work is not needed"
        ),
        all_of="bound_bytes_pct >= 90, speed_of_light <= 0.25",
        any_of="tensor_pipe_pct >= 60, fma_pipe_pct >= 60",
        unless="bound_tensor_pct >= 20",
    ),
    make_rule(
        Bottleneck.REGISTER_SPILL,
        phrase=(
            "most of what a thread holds is spilled to local memory: smaller tiles, more warps for "
            "a tile, fewer live values"
        ),
        source=(
            "the register file gives a thread 255 registers, 1020 bytes; with a quarter as much "
            "spilled, more of the same blocks would wait for the same memory"
        ),
        all_of="spill_bytes_per_thread >= 256",
        unless="measured_dram_pct >= 85",
    ),
    make_rule(
        Bottleneck.LOW_PARALLELISM,
        phrase=(
            "the grid is too small to fill the multiprocessors: split the work over more blocks "
            "(split-K, split reduction, smaller tiles)"
        ),
        source=(
            "half a wave leaves at least half of the block slots empty; a kernel that saturates "
            "a unit all the same is not short of blocks"
        ),
        all_of="waves <= 0.5",
        unless="dram_throughput_pct >= 60, l2_throughput_pct >= 60, sm_throughput_pct >= 60",
    ),
    make_rule(
        Bottleneck.REGISTER_SPILL,
        phrase="registers spill to local memory: smaller tiles, fewer live values, less unrolling",
        source=(
            "eight registers; ptxas spills a few cold ones at no cost. Source: CUDA C++ Best "
            "Practices Guide, Register Pressure"
        ),
        all_of="spill_bytes_per_thread >= 32",
        unless="measured_dram_pct >= 85",
    ),
    make_rule(
        Bottleneck.UNCOALESCED,
        phrase=(
            "uncoalesced global loads: neighbouring threads read scattered addresses and waste "
            "most of each 32-byte sector; make the lanes follow the unit-stride axis"
        ),
        source=(
            "half of the fetched bytes unused. Source: Nsight Compute, Source Counters section, "
            "rule UncoalescedGlobalAccess"
        ),
        all_of="sector_efficiency_pct <= 50",
        any_of=(
            "dram_throughput_pct >= 50, l2_throughput_pct >= 50, l1_throughput_pct >= 60, "
            "memory_stall_pct >= 50, bound_bytes_pct >= 60, sm_throughput_pct <= 60"
        ),
    ),
    make_rule(
        Bottleneck.REDUNDANT_TRAFFIC,
        phrase=(
            "moves more bytes through DRAM than the problem needs: fuse the passes, keep values "
            "on chip, read inputs once"
        ),
        source=(
            "30% above the minimum is more than caches and partial sectors explain; only worth "
            "it where memory is busy"
        ),
        all_of="traffic_ratio >= 1.3",
        any_of="dram_throughput_pct >= 40, l2_throughput_pct >= 60, bound_bytes_pct >= 60",
    ),
    make_rule(
        Bottleneck.REDUNDANT_TRAFFIC,
        phrase=(
            "its launches read and write more than the problem needs: fuse them, keep values on "
            "chip, read inputs once"
        ),
        source=(
            "the arguments of the launches are what moves at least; 30% as where bytes are counted"
        ),
        all_of="least_traffic_ratio >= 1.3, bound_bytes_pct >= 60, least_dram_pct >= 40",
    ),
    make_rule(
        Bottleneck.ALGORITHMIC,
        phrase=(
            "executes arithmetic that the result does not need: skip structural zeros, share "
            "repeated work, use algebra"
        ),
        source=(
            "half as much again as the definition needs is more than address arithmetic done in "
            "floating point"
        ),
        all_of="work_ratio >= 1.5",
        any_of="sm_throughput_pct >= 50, fma_pipe_pct >= 40",
    ),
    make_rule(
        Bottleneck.ALGORITHMIC,
        phrase=(
            "keeps the tensor cores busy with products that the result does not need: skip "
            "structural zeros, use algebra, narrower operands"
        ),
        source=(
            "busy tensor cores at 60% of the bound or less do at least half as much again as needed"
        ),
        all_of="tensor_pipe_pct >= 75, speed_of_light <= 0.6",
    ),
    make_rule(
        Bottleneck.TENSOR_CORE_IDLE,
        phrase=(
            "the matrix product does not use the tensor cores enough: tl.dot with suitable "
            "tiles, precision splits, deeper pipelining"
        ),
        source=(
            "a tuned Hopper GEMM keeps the pipe above 80% busy "
            "(tests/recordings/ncu_matmul_bf16.csv: 90%)"
        ),
        all_of="bound_tensor_pct >= 40, tensor_pipe_pct <= 60",
        unless="dram_throughput_pct >= 75",
    ),
    make_rule(
        Bottleneck.TENSOR_CORE_IDLE,
        phrase=(
            "a matrix product that leaves the tensor cores alone, where fp32 arithmetic cannot be "
            "as fast as the bound: tl.dot, precision splits"
        ),
        source="by arithmetic: products of so many operations a byte take fp32 pipes longer",
        all_of="bound_fma_ratio >= 1, tensor_pipe_pct <= 5, speed_of_light <= 0.5",
        unless="dram_throughput_pct >= 75",
    ),
    make_rule(
        Bottleneck.REDUNDANT_TRAFFIC,
        phrase=(
            "several streaming kernels pass intermediate results through DRAM: fuse them, keep "
            "values on chip, read inputs once"
        ),
        source=(
            "two kernels that both stream at half of the peak or more move values out and in "
            "again, unless the traffic is known to be minimal"
        ),
        all_of="launches >= 2, dram_throughput_pct >= 50",
        unless="traffic_ratio <= 1.3",
    ),
    make_rule(
        Bottleneck.DRAM_BANDWIDTH,
        phrase="at the DRAM bandwidth wall: only fewer or smaller bytes help",
        source=(
            "a plain copy reaches 85-92% on Hopper (tests/recordings/ncu_pointwise_triton.csv: 88%)"
        ),
        all_of="dram_throughput_pct >= 75",
        unless="sm_over_dram_pct >= 5",
    ),
    make_rule(
        Bottleneck.DIVERGENCE_OR_MASKING,
        phrase=(
            "threads are predicated off or masked out of the instructions executed: drop masks, "
            "size tiles to the data, make branches uniform"
        ),
        source=(
            "a plain streaming Triton kernel shows 24% "
            "(tests/recordings/ncu_pointwise_triton.csv), so well above that"
        ),
        all_of="branch_divergence_pct >= 40, sm_throughput_pct >= 50",
    ),
    make_rule(
        Bottleneck.DIVERGENCE_OR_MASKING,
        phrase=(
            "most of what its programs could store is masked out: size tiles to the data, put "
            "several rows into one program"
        ),
        source="half of the lanes do the work of others for nothing",
        all_of="masked_out_pct >= 50",
    ),
    make_rule(
        Bottleneck.SPECIAL_FUNCTION_BOUND,
        phrase=(
            "the special-function unit (exp, log, rsqrt, sin, conversions) is the busiest pipe: "
            "fewer or cheaper transcendentals"
        ),
        source=(
            "Source: Nsight Compute, Compute Workload Analysis: a pipe over 60% is highly "
            "utilised, over 80% a bottleneck"
        ),
        all_of="xu_pipe_pct >= 60",
    ),
    make_rule(
        Bottleneck.L2_OR_L1_BANDWIDTH,
        phrase=(
            "L2 or L1 traffic is the limit: re-use values in registers or shared memory, larger "
            "tiles, wider accesses"
        ),
        source=(
            "Source: Nsight Compute, GPU Speed Of Light: over 80% is a bottleneck; L2 counters "
            "pass 75% at the wall of mixed reads and writes"
        ),
        any_of="l2_throughput_pct >= 75, l1_throughput_pct >= 75",
        unless="tensor_pipe_pct >= 75, dram_throughput_pct >= 75",
    ),
    make_rule(
        Bottleneck.FMA_BOUND,
        phrase=(
            "the fp32 FMA pipe is the limit: fewer multiply-adds per result, half precision in "
            "pairs, tensor cores where allowed"
        ),
        source=(
            "Source: Nsight Compute, Compute Workload Analysis: a pipe over 60% is highly utilised"
        ),
        all_of="fma_pipe_pct >= 60",
        unless="tensor_pipe_pct >= 75",
    ),
    make_rule(
        Bottleneck.ISSUE_BOUND,
        phrase=(
            "instruction issue or integer arithmetic is the limit: fewer instructions per result, "
            "hoisted index arithmetic, wider accesses"
        ),
        source=(
            "Source: Nsight Compute, GPU Speed Of Light rule: compute over 60% and above memory "
            "is compute-bound; with the floating-point pipes idle, it is the issue slots "
            "(tests/recordings/ncu_depthwise.csv: 76%, FMA 32%)"
        ),
        all_of="sm_throughput_pct >= 65",
        unless="tensor_pipe_pct >= 50, fma_pipe_pct >= 60, xu_pipe_pct >= 60",
    ),
    make_rule(
        Bottleneck.DRAM_BANDWIDTH,
        phrase="near the DRAM bandwidth wall, behind a pipe that is busier yet",
        source="an estimate takes the busiest unit for the limit, and the next ones come second",
        all_of="dram_throughput_pct >= 75, sm_over_dram_pct >= 5",
    ),
    make_rule(
        Bottleneck.LOW_PARALLELISM,
        phrase=(
            "a partial last wave leaves the device half empty: change the tile or use a "
            "persistent grid"
        ),
        source=(
            "a quarter of the block slots idle over the run; beyond three waves the tail is "
            "under 10%"
        ),
        all_of="tail_efficiency_pct <= 75, waves <= 3",
        unless="dram_throughput_pct >= 70, sm_throughput_pct >= 80",
    ),
    make_rule(
        Bottleneck.OCCUPANCY_LIMITED,
        phrase=(
            "too few resident warps to hide latency, held down by registers or shared memory: "
            "smaller tiles, fewer stages, fewer registers"
        ),
        source=(
            "Source: Volkov 2016, chapter 5: streaming needs about 40% occupancy at one load in "
            "flight a thread"
        ),
        all_of="occupancy_pct <= 35, waves >= 1",
        any_of="memory_stall_pct >= 40, barrier_stall_pct >= 40",
        unless="tensor_pipe_pct >= 60",
    ),
    make_rule(
        Bottleneck.LATENCY,
        phrase=(
            "each step of a product waits for its own loads: give the loop stages, so that the "
            "next step's are on their way"
        ),
        source="Source: Triton's software pipeline: with num_stages=1 loads and products alternate",
        all_of="product_stages <= 1",
    ),
    make_rule(
        Bottleneck.LATENCY,
        phrase=(
            "its threads ask for too few bytes at once to keep device memory busy: more rows or "
            "elements for a program, wider and more independent loads, more warps"
        ),
        source=(
            "Little's law: half of the bytes in flight is half of the bandwidth. Source: Volkov "
            "2016, chapter 4"
        ),
        all_of="bytes_in_flight_pct <= 50, waves >= 1",
        unless=(
            "measured_dram_pct >= 60, sm_throughput_pct >= 60, bound_bytes_pct <= 40, "
            "bound_tensor_pct >= 40"
        ),
    ),
    make_rule(
        Bottleneck.LATENCY,
        phrase=(
            "waits for memory latency with too little in flight: more independent loads per "
            "thread, software pipelining, more warps"
        ),
        source=(
            "most stall cycles wait for memory while no memory unit is busy. Source: Nsight "
            "Compute, Warp State Statistics"
        ),
        any_of="memory_stall_pct >= 40, barrier_stall_pct >= 30",
        unless="dram_throughput_pct >= 60, l2_throughput_pct >= 75, sm_throughput_pct >= 60",
    ),
    make_rule(
        Bottleneck.LATENCY,
        phrase=(
            "programs so small that their own set-up is most of their work: several rows or more "
            "elements for a program"
        ),
        source="a word a thread is less than the addresses that it is loaded from",
        all_of="loaded_by_thread <= 4, waves >= 8",
        unless="dram_throughput_pct >= 75",
    ),
)
