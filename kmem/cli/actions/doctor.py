"""What this machine can do, what it lacks, and how fast its GPU really is.

`check_machine` makes every check of `kmem doctor`; a check that finds something wrong names the
remedy.
"""

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

import torch

from kmem.devices import TARGETS, detect_device, named_target
from kmem.errors import KmemError
from kmem.host.wall_trial import try_walls
from kmem.memory.location import default_db_path
from kmem.memory.skills.embeddings import load_embedder
from kmem.memory.store import Memory
from kmem.profile.ceilings import measure_ceilings
from kmem.profile.ncu import counters_unreadable_reason
from kmem.profile.selftest import try_compiling
from kmem.records import Device


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report.

    `ok` is None where the check does not apply; `remedy` is set where something is missing.
    """

    name: str
    ok: bool | None
    detail: str
    remedy: str | None = None


def check_machine(*, measure: bool) -> tuple[Device | None, list[Check]]:
    """Make every check.

    Args:
        measure: whether to measure the ceilings of the GPU, if there is one, and keep them.
    Returns: the GPU with its ceilings, and the checks in the order in which they are shown.
    """
    device, gpu = _check_gpu()
    checks = [
        gpu,
        _check_versions(),
        _check_ncu(device),
        _check_compiler(device),
        _check_isolation(),
        _check_embeddings(),
        _check_database(),
    ]
    if device is not None and measure:
        device, ceilings = _measure(device)
        checks.append(ceilings)
    return device, checks


def _check_gpu() -> tuple[Device | None, Check]:
    device = detect_device()
    if device is None:
        offline = (
            "no GPU: kernels are proved correct in the Triton interpreter, compiled for a named "
            "target and ranked by estimates; nothing is timed"
        )
        remedy = f"name a target: kmem optimize PROBLEM --target {next(iter(TARGETS))}"
        return None, Check("gpu", None, offline, remedy)
    memory = f"{device.memory_bytes / 2**30:.0f} GiB"
    driver = _driver_version() or "unknown"
    detail = (
        f"{device.full_name}, {device.arch}, {device.sm_count} multiprocessors, {memory}, driver "
        f"{driver}"
    )
    return device, Check("gpu", True, detail)


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
    lines = result.stdout.strip().splitlines()
    return lines[0] if result.returncode == 0 and lines else None


def _check_versions() -> Check:
    cuda = torch.version.cuda or "none in this build of torch"
    triton = metadata.version("triton")
    return Check("versions", True, f"torch {torch.__version__}, triton {triton}, CUDA {cuda}")


def _check_ncu(device: Device | None) -> Check:
    if device is None:
        found = shutil.which("ncu") or "not installed"
        detail = (
            f"{found}; counters need a GPU, reports from elsewhere are read by `kmem diagnose "
            "--ncu FILE.csv`"
        )
        return Check("ncu", None, detail)
    reason = counters_unreadable_reason()
    if reason is None:
        return Check("ncu", True, "reads hardware counters")
    fact, remedy = [*reason.split("; ", 1), ""][:2]
    return Check("ncu", False, f"{fact}; the cupti profiler is used instead", remedy)


def _check_compiler(device: Device | None) -> Check:
    target = device or named_target("h200")
    return _guarded("compiler", lambda: try_compiling(target), "reinstall triton")


def _check_isolation() -> Check:
    walls = try_walls()
    held = ", ".join(name for name, holds in walls.items() if holds) or "nothing"
    missing = ", ".join(name for name, holds in walls.items() if not holds)
    if not missing:
        return Check("isolation", True, f"what runs a candidate has: {held}")
    return Check(
        "isolation",
        False,
        f"what runs a candidate has: {held}; it lacks: {missing}",
        "use Linux 6.12 or later with Landlock; until then run candidates of strangers in a "
        "container of their own",
    )


def _check_embeddings() -> Check:
    return _guarded("embeddings", _describe_embeddings, None)


def _describe_embeddings() -> str:
    embedder = load_embedder()
    if embedder is None:
        return "switched off by KMEM_EMBEDDING_MODEL=none; skills are found by text and rules"
    return f"{embedder.model}, {embedder(['kmem']).shape[1]} dimensions"


def _check_database() -> Check:
    return _guarded("database", _describe_database, None)


def _describe_database() -> str:
    with Memory():
        return f"{default_db_path()} opens and is up to date"


def _guarded(name: str, describe: Callable[[], str], remedy: str | None) -> Check:
    """A check that passes unless it raises what the user can mend."""
    try:
        return Check(name, True, describe())
    except KmemError as ex:
        return Check(name, False, str(ex), remedy)


def _measure(device: Device) -> tuple[Device, Check]:
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
    return {
        "torch": torch.__version__,
        "triton": metadata.version("triton"),
        "cuda": str(torch.version.cuda),
        "driver": _driver_version() or "unknown",
    }
