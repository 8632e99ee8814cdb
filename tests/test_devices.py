"""Named targets, the GPU that is here, and which of them a command means."""

import types

import pytest

from kmem import devices
from kmem.devices import TARGETS, device_from_properties, named_target, resolve_target
from kmem.errors import TargetError


def test_the_seven_named_targets_exist_under_their_own_names() -> None:
    assert sorted(TARGETS) == ["a100", "b200", "h100", "h200", "l40s", "mi300x", "rtx4090"]
    assert all(device.name == name and not device.measured for name, device in TARGETS.items())


@pytest.mark.parametrize("device", TARGETS.values(), ids=TARGETS)
def test_rates_of_a_target_are_dense_and_consistent_with_its_own_lanes(device) -> None:
    rates = device.peak_flops_per_s
    assert set(rates) == {"fp32", "tf32", "bf16", "fp16", "special"}
    assert rates["fp32"] <= rates["tf32"] <= rates["fp16"] == rates["bf16"]
    # TF32 runs at half the half-precision rate, densely
    assert rates["fp16"] == pytest.approx(2 * rates["tf32"], rel=0.03)
    assert rates["special"] < rates["fp32"] / 4
    assert device.shared_bytes_per_block <= device.shared_bytes_per_sm
    assert device.max_threads_per_sm % device.warp_size == 0


def test_the_special_function_rate_is_sixteen_per_clock_per_sm() -> None:
    assert TARGETS["h200"].peak_flops_per_s["special"] == pytest.approx(132 * 16 * 1.98e9)


def test_target_names_ignore_case_and_an_unknown_one_lists_the_known() -> None:
    assert named_target("H200") is TARGETS["h200"]
    with pytest.raises(TargetError, match="No target named 'h300'; known: a100, b200"):
        named_target("h300")


def fake_properties(**changes):
    values = {
        "name": "NVIDIA H200",
        "major": 9,
        "minor": 0,
        "gcnArchName": "",
        "multi_processor_count": 132,
        "total_memory": 150_000_000_000,
        "L2_cache_size": 62914560,
        "warp_size": 32,
        "max_threads_per_multi_processor": 2048,
        "shared_memory_per_multiprocessor": 233472,
        "clock_rate": 1_980_000,
        "memory_clock_rate": 3_201_000,
        "memory_bus_width": 6144,
    }
    return types.SimpleNamespace(**{**values, **changes})


def test_a_card_of_the_table_keeps_its_datasheet_rates_and_reports_its_own_memory() -> None:
    device = device_from_properties(fake_properties())
    assert device.name == "h200" and device.memory_bytes == 150_000_000_000
    assert device.peak_flops_per_s == TARGETS["h200"].peak_flops_per_s


def test_a_card_outside_the_table_gets_rates_from_its_clocks_and_says_so() -> None:
    device = device_from_properties(fake_properties(name="NVIDIA H100 NVL"))
    assert device.name == "h100-nvl" and device.arch == "sm_90"
    assert "computed from the clocks" in device.source
    assert device.peak_flops_per_s["fp32"] == pytest.approx(132 * 128 * 2 * 1.98e9)
    assert device.dram_bytes_per_s == pytest.approx(2 * 3.201e9 * 6144 / 8)


@pytest.mark.parametrize(
    ("changes", "hip", "half_per_clock"),
    [
        ({"name": "B300", "major": 10, "minor": 3}, False, 4096),  # same generation as 10.0
        # unknown generation: the fastest known, so that a bound stays one
        ({"name": "Next", "major": 15, "minor": 0}, False, 4096),
        ({"name": "MI325X", "gcnArchName": "gfx942:sramecc+", "warp_size": 64}, True, 1024),
    ],
)
def test_a_capability_outside_the_table_takes_the_nearest_or_fastest_row(
    changes, hip, half_per_clock
) -> None:
    device = device_from_properties(fake_properties(**changes), hip=hip)
    assert device.peak_flops_per_s["fp16"] == pytest.approx(132 * half_per_clock * 2 * 1.98e9)


def test_without_a_gpu_no_name_is_an_error_that_says_what_to_give(monkeypatch) -> None:
    monkeypatch.setattr(devices, "detect_device", lambda: None)
    with pytest.raises(
        TargetError, match="No GPU here; name the device to write for with --target"
    ):
        resolve_target(None)
    assert resolve_target("b200") == (TARGETS["b200"], False)


def test_the_present_gpu_is_meant_by_no_name_and_by_its_own_name(monkeypatch) -> None:
    present = device_from_properties(fake_properties())
    monkeypatch.setattr(devices, "detect_device", lambda: present)
    assert resolve_target(None) == (present, True)
    assert resolve_target("H200") == (present, True)
    assert resolve_target("a100") == (TARGETS["a100"], False)


def test_detection_agrees_with_torch_on_whether_there_is_a_gpu() -> None:
    import torch

    assert (devices.detect_device() is None) == (not torch.cuda.is_available())


@pytest.mark.gpu
def test_a_real_gpu_is_described_by_positive_figures() -> None:
    device, present = resolve_target(None)
    assert present and device.sm_count > 0 and min(device.peak_flops_per_s.values()) > 0
