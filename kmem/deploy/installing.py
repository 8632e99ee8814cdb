"""`kmem install`: a package of somebody else's, checked, judged again on this card, and kept.

No code of the package runs but in the judge's confined processes: kmem reads its table, its kernels
and their evidence, and serves them by its own code.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kmem.deploy.installed import installed_place
from kmem.deploy.package import Package, export_package, find_package
from kmem.deploy.shipped.between import entry_at
from kmem.deploy.shipped.table import Entry, PackageError, read_verified, with_constants
from kmem.deploy.sources import find_source
from kmem.devices import detect_device
from kmem.errors import BundleError, OutputError, first_line
from kmem.measure.bundle import Bundle, read_bundle
from kmem.problem.sizing.shapes import problem_at
from kmem.records import Kernel, Problem, Status
from kmem.run.evaluation.single import Case, Terms, judge_case

HUB = "HUB:"


@dataclass(frozen=True, slots=True)
class Installed:
    """A package that was installed, and what each kernel was found to be."""

    package: Package
    verdicts: tuple[str, ...]  # one a kernel


def install(source: str, *, trust: bool, force: bool, announce: Callable[[str], None]) -> Installed:
    """Check a package, judge its kernels again, and keep a copy beside the database.

    Args:
        source: the directory of a package or of a run, a run's id, or `HUB:owner/name` for a
            repository of Hugging Face's.
        trust: whether the recorded verdicts stand without being repeated here.
        force: whether an installed package of the same name is replaced.
        announce: told in a line what is being done.

    Raises OutputError: if there is no package and no run, a hash or a verdict does not hold, or
        the name is taken. ProblemError, BundleError: where evidence cannot be judged.
    """
    with tempfile.TemporaryDirectory(prefix="kmem-install-", ignore_cleanup_errors=True) as place:
        directory = _fetch(source, Path(place)) if source.startswith(HUB) else Path(source)
        found = find_source(directory)
        if not isinstance(found, Package):  # a run of this machine's own memory
            found = export_package([found], Path(place) / found.directory.name)
        package = found
        bundles = [check_entry(entry, package) for entry in package.entries]
        verdicts = tuple(
            _recorded(bundle) if trust else _judge_again(entry, bundle, announce)
            for entry, bundle in zip(package.entries, bundles, strict=True)
        )
        return Installed(_keep(package, force=force), verdicts)


def check_entry(entry: Entry, package: Package) -> Bundle:
    """The evidence of an entry, if kernel, evidence and table say the same.

    Raises OutputError: with what does not hold.
    """
    root = package.directory.resolve()
    for place in (entry.kernel, entry.evidence, *(each.kernel for each in entry.between)):
        if not place.resolve().is_relative_to(root):
            raise OutputError(f"{entry.name}: its table names {place}, which is not in the package")
    try:
        kernel = read_verified(entry.kernel, entry.kernel_sha256, "kernel").decode()
        read_verified(entry.evidence, entry.evidence_sha256, "evidence")
        for each in entry.between:
            read_verified(each.kernel, each.kernel_sha256, "kernel")
        bundle = read_bundle(entry.evidence)
    except (PackageError, BundleError, UnicodeDecodeError) as ex:
        raise OutputError(f"{entry.name}: {ex}") from ex
    row = _row(entry, package)
    recorded = bundle.measurement.timing
    reasons = (
        (bundle.kernel_source != kernel, "its evidence is of another kernel"),
        (
            bundle.measurement.status is not Status.PASSED,
            "its evidence is of no kernel that passed",
        ),
        (bundle.device.full_name != entry.device, f"its evidence is of {bundle.device.full_name}"),
        (
            recorded is None or recorded.latency_ms != row["timing"]["latency_ms"],
            "its table gives another time than its evidence",
        ),
    )
    for is_so, reason in reasons:
        if is_so:
            raise OutputError(f"{entry.name}: {reason}; get the package again from its author")
    return bundle


def _row(entry: Entry, package: Package) -> dict[str, Any]:
    table = next(iter(package.directory.glob(f"**/{package.name}/table.json")))
    rows = json.loads(table.read_text(encoding="utf-8"))["entries"]
    return next(row for row in rows if row["name"] == entry.name)


def _recorded(bundle: Bundle) -> str:
    return f"{bundle.problem.name}: trusted as recorded for {bundle.device.full_name}"


def _judge_again(entry: Entry, bundle: Bundle, announce: Callable[[str], None]) -> str:
    present = detect_device()
    if present is not None and present.full_name != entry.device:
        raise OutputError(
            f"{entry.name} is for an {entry.device}, this machine has an {present.full_name}: it "
            "would never be used; run kmem optimize here, or --trust for another machine"
        )
    kernel = Kernel(
        bundle.kernel_source,
        flags=bundle.kernel_flags,
        small_constants=bundle.kernel_small_constants,
    )
    for name, problem, each in [
        (entry.name, bundle.problem, kernel),
        *_kernels_between(entry, bundle, gpu=present is not None),
    ]:
        announce(f"{name}: judged again")
        with tempfile.TemporaryDirectory(
            prefix="kmem-install-", ignore_cleanup_errors=True
        ) as place:
            terms = Terms(bundle.contract, bundle.seed, (), Path(place))
            measurement, _ = judge_case(
                Case(problem, each, terms),
                present or bundle.device,
                gpu=present is not None,
                announce=announce,
            )
        if measurement.status is not Status.PASSED:
            text = measurement.log.strip() or measurement.status.value
            raise OutputError(f"{name} does not pass here: {text.splitlines()[-1]}")
    where = "on this GPU" if present else "in the Triton interpreter, at small sizes"
    return f"{entry.name}: passed {where}"


def _kernels_between(
    entry: Entry, bundle: Bundle, *, gpu: bool
) -> Iterator[tuple[str, Problem, Kernel]]:
    """What serves sizes around an entry's own, where the judge had passed it: name, problem, text.

    Without a GPU only what says its constants at small sizes can be judged.
    """
    for between in entry.between:
        for size, small in zip(between.judged, between.small_constants, strict=True):
            if small or gpu:
                sized = entry_at(entry, between, size)
                text = with_constants(sized.kernel.read_text(encoding="utf-8"), sized.constants)
                source = problem_at(bundle.problem, ((between.size, size),))
                problem = replace(bundle.problem, source=source)
                yield sized.name, problem, Kernel(text, small_constants=small)


def _fetch(source: str, directory: Path) -> Path:
    """A repository of the Hub's as a directory."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as ex:
        raise OutputError(f"{source} needs huggingface_hub: pip install huggingface_hub") from ex
    name = source.removeprefix(HUB)
    try:
        return Path(snapshot_download(name, local_dir=directory / name.rpartition("/")[2]))
    except Exception as ex:  # noqa: BLE001  # whatever the network and the Hub do
        raise OutputError(
            f"{source} cannot be fetched from the Hub: {first_line(ex)}; a package there is "
            f"{HUB}OWNER/NAME, and a directory needs no network"
        ) from ex


def _keep(package: Package, *, force: bool) -> Package:
    place = installed_place() / package.directory.resolve().name
    if place.exists() and not force:
        raise OutputError(f"{place} is installed already; --force replaces it")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as scratch:
            shutil.copytree(package.directory, Path(scratch) / "new")
            if place.exists():
                place.rename(Path(scratch) / "old")
            (Path(scratch) / "new").rename(place)
    except OSError as ex:
        raise OutputError(f"Cannot write {place}: {ex.strerror or ex}; free space") from ex
    found = find_package(place)
    assert found is not None, "it was one before it was copied"
    return found
