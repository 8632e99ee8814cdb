"""`kmem doctor`: what this machine can do, what it lacks and the remedy, and how fast its GPU
really is.
"""

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING

import click

from kmem.errors import KmemError

if TYPE_CHECKING:
    from kmem.records import Device

# torch, the memory and the judge are imported inside the checks: `kmem --help` must not pay for
# them.


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report: `ok` None means that it does not apply here.

    `remedy` is set where something is missing.
    """

    name: str
    ok: bool | None
    detail: str
    remedy: str | None = None


@click.command()
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: checks and the device with its ceilings.",
)
@click.option(
    "--measure/--no-measure",
    default=True,
    show_default=True,
    help="Measure the ceilings of the GPU and keep them in the database (a minute).",
)
def doctor(as_json: bool, measure: bool) -> None:
    """Report what works on this machine: GPU, versions, profilers, offline parts, database; measure
    the GPU's ceilings.

    Always exits 0; what is missing is said with its remedy.
    """
    device, checks = _find_device()
    checks += [
        _check_versions(),
        _check_ncu(device),
        _check_compiler(device),
        _check_isolation(),
        _check_embeddings(),
        _check_database(),
    ]
    if device is not None and measure:
        device, check = _measure(device)
        checks.append(check)
    if as_json:
        click.echo(
            json.dumps(
                {"checks": [asdict(check) for check in checks], "device": _device_data(device)}
            )
        )
        return
    for check in checks:
        mark = {True: "ok  ", False: "LACK", None: "-   "}[check.ok]
        click.echo(f"{mark} {check.name:12} {check.detail}")
        if check.remedy:
            click.echo(f"{'':17} remedy: {check.remedy}")
    if device is not None:
        _print_ceilings(device)


def _find_device() -> "tuple[Device | None, list[Check]]":
    from kmem.devices import TARGETS, detect_device

    device = detect_device()
    if device is None:
        offline = (
            "no GPU: kernels are proved correct in the Triton interpreter, compiled for a named "
            "target and ranked by estimates; "
            "nothing is timed"
        )
        return None, [
            Check(
                "gpu",
                None,
                offline,
                f"name a target: kmem optimize PROBLEM --target {next(iter(TARGETS))}",
            )
        ]
    memory = f"{device.memory_bytes / 2**30:.0f} GiB"
    driver = _driver_version() or "unknown"
    detail = (
        f"{device.full_name}, {device.arch}, {device.sm_count} multiprocessors, {memory}, driver "
        f"{driver}"
    )
    return device, [Check("gpu", True, detail)]


def _driver_version() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    result = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return (
        result.stdout.strip().splitlines()[0]
        if result.returncode == 0 and result.stdout.strip()
        else None
    )


def _check_versions() -> Check:
    import torch

    return Check(
        "versions",
        True,
        (
            f"torch {torch.__version__}, triton {metadata.version('triton')}, CUDA "
            f"{torch.version.cuda or 'none in this build of torch'}"
        ),
    )


def _check_ncu(device: "Device | None") -> Check:
    from kmem.profile.ncu import counters_unreadable_reason

    if device is None:
        found = shutil.which("ncu")
        return Check(
            "ncu",
            None,
            (
                f"{found or 'not installed'}; counters need a GPU, reports from elsewhere are read "
                f"by `kmem diagnose --ncu FILE.csv`"
            ),
        )
    reason = counters_unreadable_reason()
    if reason is None:
        return Check("ncu", True, "reads hardware counters")
    fact, _, remedy = reason.partition("; ")
    return Check("ncu", False, f"{fact}; the cupti profiler is used instead", remedy)


def _check_compiler(device: "Device | None") -> Check:
    from kmem.devices import named_target
    from kmem.profile.selftest import try_compiling

    return _guarded(
        "compiler", lambda: try_compiling(device or named_target("h200")), "reinstall triton"
    )


def _check_isolation() -> Check:
    from kmem.measure.pool.process import network_isolation

    return Check("isolation", None, network_isolation())


def _check_embeddings() -> Check:
    from kmem.memory.skills.embeddings import load_embedder

    def describe() -> str:
        embedder = load_embedder()
        if embedder is None:
            return "switched off by KMEM_EMBEDDING_MODEL=none; skills are found by text and rules"
        return f"{embedder.model}, {embedder(['kmem']).shape[1]} dimensions"

    return _guarded("embeddings", describe, None)


def _check_database() -> Check:
    from kmem.memory.store import Memory, default_db_path

    def describe() -> str:
        with Memory():
            return f"{default_db_path()} opens and is up to date"

    return _guarded("database", describe, None)


def _guarded(name: str, describe: Callable[[], str], remedy: str | None) -> Check:
    """A check that passes unless it raises what the user can mend."""
    try:
        return Check(name, True, describe())
    except KmemError as ex:
        return Check(name, False, str(ex), remedy)


def _measure(device: "Device") -> "tuple[Device, Check]":
    import torch

    from kmem.memory.store import Memory
    from kmem.profile.ceilings import measure_ceilings

    try:
        measured = measure_ceilings(device)
    except torch.OutOfMemoryError:
        return device, Check(
            "ceilings",
            False,
            "the device's memory is taken by another program",
            "free it and run kmem doctor again",
        )
    try:
        with Memory() as memory:
            memory.devices.put_ceilings(measured, _versions())
    except KmemError as ex:
        return measured, Check("ceilings", False, f"measured but not kept: {ex}")
    return measured, Check("ceilings", True, measured.source)


def _versions() -> dict[str, str]:
    import torch

    return {
        "torch": torch.__version__,
        "triton": metadata.version("triton"),
        "cuda": str(torch.version.cuda),
        "driver": _driver_version() or "unknown",
    }


def _device_data(device: "Device | None") -> dict[str, object] | None:
    from kmem.serialize import to_data

    return to_data(device) if device is not None else None


def _print_ceilings(device: "Device") -> None:
    click.echo(f"ceilings ({device.source}):")
    copy, read = device.dram_bytes_per_s / 1e12, device.read_bytes_per_s / 1e12
    click.echo(
        f"  copy {copy:.2f} TB/s, read {read:.2f} TB/s, launch {1e3 * device.launch_ms:.2f} us"
    )
    rates = ", ".join(
        f"{unit} {rate / 1e12:.1f}" for unit, rate in sorted(device.peak_flops_per_s.items())
    )
    click.echo(f"  {rates} TFLOP/s (special: 1e12 operations/s)")
