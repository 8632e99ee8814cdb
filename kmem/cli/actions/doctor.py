"""What this machine can do, what it lacks, and how fast its GPU really is.

`check_machine` makes every check of `kmem doctor`; a check that finds something wrong names the
remedy. Where there is no GPU nothing here loads torch. Compiler and interpreter are tried beside
the other checks.
"""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata

from kmem.devices import TARGETS, detect_device, named_target
from kmem.errors import KmemError
from kmem.host.wall_trial import try_walls
from kmem.memory.location import default_db_path
from kmem.memory.skills.embeddings import load_embedder
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.profile.ceilings import measure_ceilings
from kmem.profile.ncu import counters_unreadable_reason
from kmem.profile.selftest import try_compiling, try_interpreting
from kmem.records import Device
from kmem.skills import load_recipes, load_rewrites, read_library


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report.

    `ok` is None where the check does not apply; `remedy` is set where something is missing.
    """

    name: str
    ok: bool | None
    detail: str
    remedy: str | None = None


def check_machine(
    registry: Registry, *, measure: bool, announce: Callable[[str], None]
) -> tuple[Device | None, list[Check]]:
    """Make every check.

    Args:
        measure: whether to measure the ceilings of the GPU, if there is one, and keep them.
        announce: told in a line what takes long.
    Returns: the GPU with its ceilings, and the checks in the order in which they are shown.
    """
    device, gpu = _check_gpu()
    with ThreadPoolExecutor(2) as beside:
        compiler = beside.submit(_check_compiler, device)
        interpreter = beside.submit(_check_interpreter, device)
        checks = [
            gpu,
            _check_versions(),
            _check_ncu(device),
            _check_isolation(),
            _check_embeddings(),
            _check_database(),
            _check_plugins(registry),
            _check_skills(registry),
        ]
        announce("compiling a test kernel ...")
        checks[3:3] = [compiler.result(), interpreter.result()]
    if device is not None and measure:
        announce("measuring the ceilings of the GPU, a minute ...")
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
    import torch  # loaded already: it found the GPU

    memory = f"{device.memory_bytes / 2**30:.0f} GiB"
    driver = _driver_version() or "unknown"
    detail = (
        f"{device.full_name}, {device.arch}, {device.sm_count} multiprocessors, {memory}, driver "
        f"{driver}, CUDA {torch.version.cuda or 'none'}"
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
    found = [f"{name} {metadata.version(name)}" for name in ("torch", "triton")]
    return Check("versions", True, ", ".join(found))


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


def _check_interpreter(device: Device | None) -> Check:
    if device is not None:
        return Check("interpreter", None, "not needed: kernels run on the GPU")
    remedy = "with Triton 3.6 and NumPy 2.4 or later: pip install 'numpy<2.4', or a later Triton"
    return _guarded("interpreter", try_interpreting, remedy)


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
    embedder.verify()
    return f"{embedder.model}, {embedder(['kmem']).shape[1]} dimensions"


def _check_database() -> Check:
    return _guarded("database", _describe_database, None)


def _describe_database() -> str:
    place = default_db_path()
    with Memory.to_read():
        if not place.is_file():
            return f"{place} is not there yet; the first run makes it"
        return f"{place} opens and is up to date"


def _check_plugins(registry: Registry) -> Check:
    found = len({plugin for plugin in registry.origins.values() if not plugin.startswith("kmem")})
    return _left_out("plugins", registry.left_out, f"{found} beside kmem's own")


def _check_skills(registry: Registry) -> Check:
    skills, broken = read_library(registry.skills)
    recipes, no_recipe = load_recipes(skills.values())
    rewrites, no_rewrite = load_rewrites(skills.values())
    found = f"{len(skills)} skills, {len(recipes)} with a recipe, {len(rewrites)} with a rewrite"
    return _left_out("skills", [*broken, *no_recipe, *no_rewrite], found)


def _left_out(name: str, broken: Sequence[str], found: str) -> Check:
    """A check that passes unless something was left out as broken, each with its remedy."""
    if broken:
        return Check(name, False, "; ".join(broken))
    return Check(name, True, f"{found}, none broken")


def _guarded(name: str, describe: Callable[[], str], remedy: str | None) -> Check:
    """A check that passes unless it raises what the user can mend."""
    try:
        return Check(name, True, describe())
    except KmemError as ex:
        return Check(name, False, str(ex), remedy)


def _measure(device: Device) -> tuple[Device, Check]:
    import torch  # loaded already: it found the GPU

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
    import torch  # loaded already: it found the GPU

    return {
        "torch": torch.__version__,
        "triton": metadata.version("triton"),
        "cuda": str(torch.version.cuda),
        "driver": _driver_version() or "unknown",
    }
