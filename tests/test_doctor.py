"""`kmem doctor` on a machine without a GPU (and, marked gpu, with one)."""

import itertools
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from kmem.cli.machine.doctor import doctor
from kmem.profile import ceilings, selftest


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    # loading the model takes seconds and is tested with the memory
    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")


def test_without_a_gpu_doctor_says_so_plainly_and_what_works_offline(without_gpu: None) -> None:
    result = CliRunner().invoke(doctor, ["--json"], catch_exceptions=False)
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["device"] is None
    checks = {check["name"]: check for check in report["checks"]}
    assert (
        checks["gpu"]["ok"] is None
        and "nothing is timed" in checks["gpu"]["detail"]
        and "--target" in checks["gpu"]["remedy"]
    )
    assert (
        checks["compiler"]["ok"] is True
        and "compiles for h200 (sm_90) without a GPU" in checks["compiler"]["detail"]
    )
    assert checks["interpreter"]["ok"] is True
    assert checks["database"]["ok"] is True and checks["database"]["detail"].split()[0].endswith(
        "kmem.db"
    )
    assert checks["ncu"]["ok"] is None and "--ncu FILE.csv" in checks["ncu"]["detail"]
    assert "no network" in checks["isolation"]["detail"]
    assert "ceilings" not in checks


def test_what_is_broken_is_said_with_its_remedy_and_the_exit_code_stays_zero(
    without_gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("broken")
    (directory / "kmem.db").write_bytes(b"this is no database at all" * 100)
    monkeypatch.setenv("KMEM_DB", str(directory / "kmem.db"))
    monkeypatch.setattr("kmem.cli.actions.doctor.try_compiling", lambda device: "compiles")
    wrong = selftest._INTERPRETED.replace("source.sum(1)", "source.sum(1) + 1")
    monkeypatch.setattr(selftest, "_INTERPRETED", wrong)
    result = CliRunner().invoke(doctor, [], catch_exceptions=False)
    assert result.exit_code == 0
    shown = " ".join(result.stdout.split())
    assert "LACK database" in shown and "kmem.db" in shown
    assert "LACK interpreter Triton's interpreter fails: AssertionError: [496.0, 1520.0]" in shown
    assert "pip install 'numpy<2.4'" in shown


def test_without_a_gpu_nothing_that_doctor_does_loads_torch() -> None:
    code = (
        "import sys; from kmem.cli.actions.doctor import check_machine; "
        "from kmem.plugins import build_plugin_manager, collect; "
        "registry = collect(build_plugin_manager()); "
        "device, _ = check_machine(registry, measure=True, announce=len); "
        "print(device is not None or 'torch' not in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize(
    ("rounds", "expected", "taken"),
    [
        ([100, 101, 100], 120.0, 101),
        ([100, 50, 51, 99], 120.0, 100),  # two agree, but a better one stands alone
        ([50, 50, 50, 100, 99], 120.0, 100),  # far below the datasheet
        ([50, 50, 50], 0.0, 50),  # of which nothing is known
    ],
)
def test_a_ceiling_is_taken_until_nothing_else_disturbs_it(
    rounds: list[float], expected: float, taken: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "PAUSE_S", 0.0)
    left = iter(rounds)
    assert ceilings.settled_rate(lambda: next(left), expected) == taken
    assert list(left) == []


def test_a_ceiling_that_never_settles_is_the_best_of_some_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ceilings, "LONGEST_S", 0.2)
    rates = itertools.count(1)
    assert ceilings.settled_rate(lambda: float(next(rates) ** 2), 1e9) > ceilings.ROUNDS


@pytest.mark.gpu
def test_measured_ceilings_are_of_the_order_of_the_datasheet() -> None:
    from kmem.devices import detect_device

    device = detect_device()
    measured = ceilings.measure_ceilings(device)
    assert measured.measured and "measured" in measured.source
    assert (
        0.4 * device.dram_bytes_per_s < measured.dram_bytes_per_s <= 1.05 * device.dram_bytes_per_s
    )
    for unit, rate in measured.peak_flops_per_s.items():
        assert 0.3 * device.peak_flops_per_s[unit] < rate < 1.2 * device.peak_flops_per_s[unit], (
            unit
        )
    assert 0.0005 < measured.launch_ms < 0.02
