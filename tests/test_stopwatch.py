"""A time that can be true is not refused for what others did on the GPU meanwhile."""

from types import SimpleNamespace

import pytest

from kmem.measure import stopwatch
from kmem.measure.examine.examination import Refused
from kmem.measure.timing.gpu_clock import HostTimes
from kmem.records import Timing


class Worker:
    """Answers with a profile after another: what one kernel took, in microseconds."""

    def __init__(self, *times_us: float) -> None:
        self.times_us = list(times_us)

    def request(self, command: object, timeout_s: float) -> dict[str, object]:
        return {"kernels": [["gelu", self.times_us.pop(0)]], "binaries": {}, "own": {}}


def check(first_us: float, *later_us: float) -> list[float]:
    """Profiles that were not asked for, where events say 0.5 ms."""
    worker = Worker(*later_us)
    inputs = SimpleNamespace(fill=lambda family, seed: None, shared=SimpleNamespace(name="i"))
    examination = SimpleNamespace(
        kernel=SimpleNamespace(flags=()),
        gpu_kernels=(("gelu", first_us),),
        worker=worker,
        key="k",
        lease=None,
        loaded_reference=SimpleNamespace(inputs=inputs),
        run_timeout_s=1.0,
        flags=set(),
    )
    resources = SimpleNamespace(
        traced=SimpleNamespace(bound=None, device=None), seed_for=lambda *purpose: 1
    )
    stopwatch._check_plausible(examination, Timing(0.5, 0.5, 0.5, 40), 0.5, resources)
    return worker.times_us


def test_a_call_that_others_slowed_down_is_profiled_again() -> None:
    assert check(500.0, 1.0, 1.0) == [1.0, 1.0], "the first profile will do"
    assert check(2856.0, 505.0, 506.0) == []


@pytest.mark.parametrize("later_us", [(2850.0, 2860.0), (505.0, 2860.0)])
def test_work_outside_the_timed_region_shows_in_most_profiles(later_us: tuple[float, ...]) -> None:
    with pytest.raises(Refused, match=r"2\.85\d+ ms: work ran outside|2\.86\d+ ms: work ran"):
        check(2856.0, *later_us)


@pytest.mark.parametrize(
    ("host_us", "back_to_back_ms", "waits"),
    [
        (200.0, 1.0, False),
        (200.0, 1.2, True),  # launches are late where nothing lies between two calls
        (990.0, 1.0, True),  # a network of small kernels: every call takes what the host takes
    ],
)
def test_a_forward_that_waits_for_its_host_is_captured_too(
    host_us: float, back_to_back_ms: float, waits: bool
) -> None:
    assert stopwatch._waits_for_host(HostTimes(host_us, back_to_back_ms), 1.0) == waits
