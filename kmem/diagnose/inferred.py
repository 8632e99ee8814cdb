"""The rules of a diagnosis that go by the bound alone; rules.py has the others."""

from kmem.diagnose.rule import Rule, make_rule
from kmem.records import Bottleneck

#: Without counters (CUPTI, static) there is little to go by: these are tried after RULES, on the
#: bound alone.
INFERRED: tuple[Rule, ...] = (
    make_rule(
        Bottleneck.DRAM_BANDWIDTH,
        phrase="near the DRAM bandwidth wall by its own bytes: only fewer or smaller bytes help",
        source="the bytes that must move already take three quarters of the time",
        all_of="speed_of_light >= 0.75, bound_bytes_pct >= 90",
    ),
    make_rule(
        Bottleneck.DRAM_BANDWIDTH,
        phrase="near the DRAM bandwidth wall by its arguments: only fewer or smaller bytes help",
        source="the arguments of the launches already take three quarters of the time",
        all_of="least_dram_pct >= 75",
    ),
    make_rule(
        Bottleneck.REDUNDANT_TRAFFIC,
        phrase=(
            "several kernels pass intermediate results through DRAM: fuse them, keep values on "
            "chip, read inputs once"
        ),
        source=(
            "more than one launch for a problem limited by bytes means that values go out and "
            "come back"
        ),
        all_of="launches >= 2, bound_bytes_pct >= 60, speed_of_light <= 0.75",
        unless="traffic_ratio <= 1.3",
    ),
    make_rule(
        Bottleneck.TENSOR_CORE_IDLE,
        phrase=(
            "a matrix product far below the tensor cores' rate: tl.dot with suitable tiles, "
            "precision splits, deeper pipelining"
        ),
        source="limited by tensor cores in the bound and at less than 60% of it",
        all_of="bound_tensor_pct >= 60, speed_of_light <= 0.6",
    ),
)
