"""What samples mean: medians, paired intervals, floors and clocks; and the race.

No GPU: samples are made up.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from kmem.devices import named_target
from kmem.measure.timing import gpu_clock
from kmem.measure.timing.gpu_clock import (
    Batch,
    ClocksDisagree,
    ClockSettings,
    LoadedModule,
    TimedSamples,
    calls_in_a_row,
    is_narrow,
    sample_times,
    time_alone,
    time_pairs,
)
from kmem.measure.timing.race import race
from kmem.measure.timing.statistics import (
    CLOCK_RESOLUTION,
    estimated_timing,
    implausible_reason,
    pair_samples,
    physical_floor_ms,
    summarize_samples,
    take_steady,
)
from kmem.measure.worker.commands import Time
from kmem.records import Bound, Timing


def test_a_summary_is_the_median_with_p20_and_p80() -> None:
    assert summarize_samples([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == Timing(3.5, 2.0, 5.0, 6)
    with pytest.raises(ValueError, match="no samples"):
        summarize_samples([])


@pytest.mark.parametrize(
    ("batches", "taken", "kept"),
    [
        ([[1.0, 1.1, 1.15]], 1, 0),
        ([[1.4, 9.3, 9.8], [1.4, 1.4, 1.5]], 2, 1),
        ([[1.4, 4.0, 9.8], [1.4, 9.0, 9.1], [2.0, 6.0, 8.0], [3.0, 5.0, 9.0]], 4, 0),
    ],
)
def test_times_that_spread_are_taken_again_until_a_batch_is_steady(
    batches: list[list[float]], taken: int, kept: int
) -> None:
    left = iter(batches)
    assert take_steady(lambda: next(left)) == batches[kept]
    assert len(list(left)) == len(batches) - taken


def test_an_estimate_has_no_samples() -> None:
    assert estimated_timing(0.5) == Timing(0.5, 0.5, 0.5, 0)


def noisy_blocks(rng: np.random.Generator, median_ms: float) -> list[list[float]]:
    return (median_ms * (1 + 0.01 * rng.standard_normal((30, 6)))).tolist()


def test_a_kernel_against_itself_has_an_interval_around_one() -> None:
    held = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        timing = pair_samples(noisy_blocks(rng, 1.0), noisy_blocks(rng, 1.0), "eager", seed=seed)
        assert abs(timing.ratio - 1) < 0.01
        held += timing.ratio_low <= 1 <= timing.ratio_high
    assert held >= 19  # a 95% interval, widened by what the clock cannot tell apart


def test_a_slowdown_of_two_percent_is_seen() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        assert (
            pair_samples(
                noisy_blocks(rng, 1.02), noisy_blocks(rng, 1.0), "eager", seed=seed
            ).ratio_high
            < 1
        )


def test_drift_that_both_sides_share_leaves_the_ratio_alone() -> None:
    drift = [[1.0 + 0.05 * block] * 4 for block in range(20)]
    timing = pair_samples(
        drift, [[2 * value for value in block] for block in drift], "compile", seed=0
    )
    assert (timing.ratio, timing.reference) == (2.0, "compile")
    assert (timing.ratio_low, timing.ratio_high) == (
        2.0 * (1 - CLOCK_RESOLUTION),
        2.0 * (1 + CLOCK_RESOLUTION),
    )


@pytest.mark.parametrize(
    ("latency_ms", "host_ms", "floor_ms", "reason"),
    [
        (1.0, 1.05, 0.99, None),
        (1.0, None, None, None),
        (0.96, 1.0, 1.0, None),
        (0.94, 1.0, 1.0, "below the physical floor"),
        (1.0, 1.5, None, "outside the timed region"),
        # launch and synchronisation cost the host more than this kernel runs
        (0.01, 0.1, None, None),
    ],
)
def test_a_time_below_the_floor_or_against_the_clock_is_implausible(
    latency_ms: float, host_ms: float | None, floor_ms: float | None, reason: str | None
) -> None:
    found = implausible_reason(latency_ms, host_ms, floor_ms)
    assert found is None if reason is None else reason in found


def test_work_on_another_stream_shows_in_the_kernels_and_launches_excuse_the_host() -> None:
    assert implausible_reason(0.05, None, None, [0.06, 0.05]) is None
    assert "work ran outside" in (implausible_reason(0.05, None, None, [0.06, 0.07]) or "")
    assert "host" in (implausible_reason(0.05, 0.3, None, [0.05]) or "")
    assert implausible_reason(0.05, 0.3, None, [0.02, 0.02, 0.01]) is None  # three launches
    # a forward of many steps in Python: the host takes as long to issue it
    assert implausible_reason(0.01, 0.2, None, [0.01], 0.1) is None
    assert "host" in (implausible_reason(0.01, 0.6, None, [0.01], 0.4) or "")
    assert "host" in (implausible_reason(0.2, 0.5, None, [0.2], 0.4) or "")


def test_the_floor_leaves_out_what_may_still_lie_in_l2() -> None:
    device = replace(
        named_target("h200"), l2_bytes=25, dram_bytes_per_s=50.0, read_bytes_per_s=100.0
    )
    assert physical_floor_ms(Bound(100, {}, 2.0, "bytes"), device) == 1.5
    assert physical_floor_ms(Bound(100, {}, 2.0, "bytes"), replace(device, l2_bytes=200)) == 0.0
    assert physical_floor_ms(Bound(100, {"fp32": 1e9}, 2.0, "fp32"), device) == 2.0
    assert physical_floor_ms(None, device) is None


def test_algebra_may_beat_the_arithmetic_but_not_the_bytes() -> None:
    device = replace(
        named_target("h200"), l2_bytes=25, dram_bytes_per_s=50.0, read_bytes_per_s=100.0
    )
    assert (
        physical_floor_ms(Bound(100, {"fp32": 1e9}, 9000.0, "fp32"), device, algebraic=True)
        == 750.0
    )


@pytest.mark.parametrize(("algebraic", "floor_ms"), [(True, 150.0), (False, 750.0)])
def test_weights_that_algebra_took_away_need_not_be_read(algebraic: bool, floor_ms: float) -> None:
    device = replace(
        named_target("h200"), l2_bytes=25, dram_bytes_per_s=50.0, read_bytes_per_s=100.0
    )
    bound = Bound(100, {}, 1000.0, "bytes")
    found = physical_floor_ms(bound, device, algebraic=algebraic, parameter_bytes=60)
    assert found == floor_ms


def test_a_race_gives_most_samples_to_the_fastest_and_drops_who_fails() -> None:
    speeds = {"slow": 4.0, "fast": 1.0, "middling": 2.0, "tortoise": 9.0}
    samples = race(
        [*speeds, "broken"],
        lambda name, count: None if name == "broken" else [speeds[name]] * count,
    )
    assert {name: len(times) for name, times in samples.items()} == {
        "slow": 5,
        "fast": 75,
        "middling": 15,
        "tortoise": 5,
    }


def test_a_race_of_nobody_ends() -> None:
    assert race([], lambda name, count: [1.0]) == {}


class FakeWorker:
    """Answers `Time` with fixed event times; the judge waits `slow_s` for each answer."""

    def __init__(self, event_ms: float, count: int | None = None, slow_s: float = 0.0) -> None:
        self.event_ms = event_ms
        self.count = count
        self.slow_s = slow_s
        self.asked: list[int] = []
        self.spots: list[object] = []

    def request(self, command: Time, *, timeout_s: float) -> dict[str, list[float]]:
        time.sleep(self.slow_s)
        self.asked.append(command.count)
        self.spots.append(command.spots)
        return {
            "event_ms": [self.event_ms] * (self.count or command.count),
            "host_ms": [self.event_ms] * command.host_count,
            "results": [f"{self.event_ms} {index}" for index in range(command.count)],
        }


CLOCK = ClockSettings(l2_bytes=1, timeout_s=1)


def test_a_worker_that_claims_less_than_the_judge_waited_is_disbelieved() -> None:
    with pytest.raises(ClocksDisagree, match="the judge's clock"):
        sample_times(LoadedModule(FakeWorker(0.001, slow_s=0.3), "k"), Batch(["in"], 10), CLOCK)


def test_a_worker_that_times_another_number_of_calls_is_disbelieved() -> None:
    with pytest.raises(ClocksDisagree, match="3 times for 10 calls"):
        sample_times(LoadedModule(FakeWorker(1.0, count=3), "k"), Batch(["in"], 10), CLOCK)
    with pytest.raises(ClocksDisagree, match="shortest 0.0 ms"):
        sample_times(LoadedModule(FakeWorker(0.0), "k"), Batch(["in"], 10), CLOCK)


class StallingWorker(FakeWorker):
    """Answers some of its batches, by number, only after a time that no call of them took."""

    def __init__(self, *stalled: int) -> None:
        super().__init__(1.0)
        self.stalled = stalled

    def request(self, command: Time, *, timeout_s: float) -> dict[str, list[float]]:
        self.slow_s = 0.2 if len(self.asked) in self.stalled else 0.0
        return super().request(command, timeout_s=timeout_s)


class FakeInputs:
    """Sets of inputs whose seeds are others every time."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self.count = len(names)
        self.drawn = 0

    def names(self, worker: object) -> list[str]:
        return list(self._names)

    def refresh(self, worker: object, count: int | None = None) -> list[int]:
        self.drawn += 1
        return [100 * (index + 1) + self.drawn for index in range(count or len(self._names))]


def pair(
    candidate: FakeWorker,
    reference: FakeWorker,
    inputs: FakeInputs,
    clock: ClockSettings = CLOCK,
) -> TimedSamples:
    sides = LoadedModule(candidate, "k"), LoadedModule(reference, "eager")
    return time_pairs(*sides, inputs, clock, name="eager", seed=0)


def alone(candidate: FakeWorker, inputs: FakeInputs, clock: ClockSettings = CLOCK) -> TimedSamples:
    return time_alone(LoadedModule(candidate, "k"), inputs, clock)


def test_a_batch_during_which_the_host_stood_still_is_taken_again_on_other_values() -> None:
    """Batch 0 is the first look.

    Three in one timing may be accidents, wherever they are; more are not forgiven.
    """
    inputs = FakeInputs("in")
    batches = alone(StallingWorker(2, 3, 9), inputs).candidate_ms
    assert [len(batch) for batch in batches] == [1] * len(batches)
    assert inputs.drawn == 1 + len(batches) + 3
    with pytest.raises(ClocksDisagree, match="the judge's clock"):
        alone(StallingWorker(2, 6, 9, 13), inputs)


def test_both_sides_of_a_pairing_share_what_is_forgiven() -> None:
    candidate, reference = StallingWorker(2, 5), StallingWorker(3)
    pair(candidate, reference, FakeInputs("a"))
    assert len(candidate.asked) - len(reference.asked) == 1
    with pytest.raises(ClocksDisagree, match="the judge's clock"):
        pair(StallingWorker(2, 5), StallingWorker(3, 7), FakeInputs("a"))


class FakeSpots:
    """Numbers its aims, and keeps what it is told to collect."""

    def __init__(self) -> None:
        self.aimed = 0
        self.collected: list[tuple[int, list[int], list[str]]] = []

    def aim(self) -> int:
        self.aimed += 1
        return self.aimed

    def collect(self, seeds: Sequence[int], described: Sequence[str]) -> None:
        self.collected.append((self.aimed, list(seeds), list(described)))


def test_pairs_are_interleaved_and_every_side_gets_fresh_inputs() -> None:
    candidate, reference = FakeWorker(12.0), FakeWorker(24.0)
    inputs, spots = FakeInputs("a", "b"), FakeSpots()
    paired = pair(candidate, reference, inputs, replace(CLOCK, spots=spots))
    timing = paired.timing
    assert (timing.ratio, timing.latency_ms, timing.reference_ms, paired.host_ms) == (
        2.0,
        12.0,
        24.0,
        12.0,
    )
    assert (paired.candidate_ms, paired.reference_ms) == (((12.0,) * 4,) * 10, ((24.0,) * 4,) * 10)
    assert inputs.drawn == 2 + 40  # a first look at each, and ten blocks, A B B A
    assert candidate.asked == reference.asked == [5] + [2] * 20
    # both sides, at other places every time
    assert sorted(candidate.spots + reference.spots) == list(range(1, 43))
    assert len(spots.collected) == 20
    # every batch of the candidate, with the seeds of what it was given
    for aimed, seeds, described in spots.collected:
        assert aimed in candidate.spots
        assert seeds == [100 + aimed, 200 + aimed]
        assert described == ["12.0 0", "12.0 1"]


def test_long_calls_are_timed_on_one_set_of_inputs_at_a_time() -> None:
    candidate, reference = FakeWorker(7.0), FakeWorker(140.0)
    inputs = FakeInputs("a", "b", "c")
    paired = pair(candidate, reference, inputs)
    assert paired.timing.ratio == 20.0
    assert candidate.asked == reference.asked == [5] + [1] * 20
    # as many calls in a row as fit
    assert [calls_in_a_row(ms, 3) for ms in (0.3, 12.0, 30.0, 200.0)] == [3, 3, 2, 1]


def test_a_pairing_of_calls_that_take_long_to_prepare_ends() -> None:
    class SlowInputs(FakeInputs):
        def refresh(self, worker: object, count: int | None = None) -> list[int]:
            time.sleep(0.03)
            return super().refresh(worker, count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_clock, "PAIRING_LIMIT_S", 0.5)
        paired = pair(DisturbedWorker(1.0, 10_000), FakeWorker(2.0), SlowInputs("a"))
    assert len(paired.candidate_ms) == gpu_clock.ROUND_BLOCKS


def test_of_a_large_gain_a_wider_interval_is_narrow_enough() -> None:
    def timed(ratio: float, half_width: float) -> Timing:
        interval = {"ratio_low": ratio - half_width, "ratio_high": ratio + half_width}
        return Timing(1.0, 1.0, 1.0, 20, ratio=ratio, **interval)

    assert is_narrow(timed(1.0, 0.0049))
    assert not is_narrow(timed(1.0, 0.0051))
    assert not is_narrow(timed(1.2, 0.007))
    assert is_narrow(timed(1.5, 0.0149))
    assert is_narrow(timed(7.0, 0.139))
    assert not is_narrow(timed(7.0, 0.141))


def test_without_a_baseline_every_batch_gets_fresh_inputs_too() -> None:
    candidate = FakeWorker(20.0)
    spots = FakeSpots()
    taken = alone(candidate, FakeInputs("a", "b"), replace(CLOCK, spots=spots))
    assert (taken.candidate_ms, taken.host_ms) == (((20.0, 20.0),) * 15, 20.0)
    assert taken.timing == Timing(20.0, 20.0, 20.0, 30)
    assert candidate.asked == [5] + [2] * 15
    assert [seeds for _, seeds, _ in spots.collected] == [
        [102 + index, 202 + index]
        for index in range(15)  # the first look had the first
    ]


class DisturbedWorker(FakeWorker):
    """Twice as slow every third time it is asked, for the first `disturbed` times."""

    def __init__(self, event_ms: float, disturbed: int) -> None:
        super().__init__(event_ms)
        self.disturbed = disturbed

    def request(self, command: Time, *, timeout_s: float) -> dict[str, list[float]]:
        answer = super().request(command, timeout_s=timeout_s)
        factor = 2.0 if len(self.asked) < self.disturbed and len(self.asked) % 3 == 0 else 1.0
        return {
            name: [factor * value for value in answer[name]] for name in ("event_ms", "host_ms")
        }


def test_a_disturbed_pairing_takes_more_blocks() -> None:
    def blocks_of(disturbed: int) -> int:
        paired = pair(DisturbedWorker(20.0, disturbed), FakeWorker(40.0), FakeInputs("a"))
        return len(paired.candidate_ms)

    calm = blocks_of(0)
    assert calm < blocks_of(2 * calm) <= 4 * calm
