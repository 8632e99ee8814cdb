"""`kmem install`: what is checked, what is judged again, and what is kept."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import kmem
from kmem.cli import cli
from kmem.deploy import installing
from kmem.deploy.installed import installed_entries
from kmem.deploy.package import Package, export_package
from kmem.deploy.shipped.table import read_table
from kmem.devices import named_target
from kmem.errors import OutputError
from kmem.plugins import build_plugin_manager, collect
from tests.shipped_runs import KERNEL, PROBLEM, finished_run

pytestmark = pytest.mark.usefixtures("shared_template")


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return export_package([finished_run(tmp_path / "run")], tmp_path / "norms")


def install(place: Path | str, **how: bool) -> installing.Installed:
    settings = {"trust": True, "force": False} | how
    return installing.install(str(place), announce=lambda text: None, **settings)


def test_what_is_installed_is_judged_loaded_by_name_and_used_by_the_backend(
    package: Package,
) -> None:
    registry = collect(build_plugin_manager())
    done = CliRunner().invoke(cli, ["install", str(package.directory)], obj=registry)
    assert done.exit_code == 0, done.output
    assert "rms_norm: passed in the Triton interpreter" in done.stderr
    assert [entry.name for entry in installed_entries()] == ["rms_norm"]
    namespace: dict[str, object] = {}
    exec(PROBLEM, namespace)
    model, x = namespace["Model"](64, 1e-6), torch.randn(6, 64)
    with torch.no_grad(), kmem.apply(model, kmem.load("norms")) as handle:
        model(x)
        assert handle.status()[0].served == 1


def test_a_kernel_that_does_not_pass_here_is_not_installed(tmp_path: Path) -> None:
    wrong = KERNEL.replace("x * scale", "2 * x * scale")
    package = export_package([finished_run(tmp_path / "run", kernel=wrong)], tmp_path / "norms")
    with pytest.raises(OutputError, match="rms_norm does not pass here"):
        install(package.directory, trust=False)
    assert installed_entries() == ()
    assert "trusted as recorded for NVIDIA H200" in install(package.directory).verdicts[0]


def rewrite(place: Path, change: Callable[[str], str]) -> None:
    place.write_text(change(place.read_text()))


def other_time(text: str) -> str:
    table = json.loads(text)
    table["entries"][0]["timing"]["latency_ms"] = 0.001
    return json.dumps(table)


def outside(text: str) -> str:
    return re.sub(r'"kernel": "[^"]*"', '"kernel": "../../run/best_kernel.py"', text)


ALTERED = [
    ("norms/kernels/rms_norm_*.py", lambda text: text + "#", "not the kernel that was verified"),
    ("norms/evidence/*.json", lambda text: text + " ", "not the evidence that was verified"),
    ("norms/table.json", other_time, "another time than its evidence"),
    ("norms/table.json", outside, "which is not in the package"),
    ("norms/table.json", lambda text: text.replace("NVIDIA H200", "NVIDIA L4"), "evidence is of"),
    ("norms/table.json", lambda text: text[:-9], "is damaged"),
]


@pytest.mark.parametrize(("place", "change", "why"), ALTERED)
def test_what_was_altered_is_refused_even_where_it_is_trusted(
    place: str, change: Callable[[str], str], why: str, package: Package
) -> None:
    (found,) = package.directory.glob(place)
    rewrite(found, change)
    with pytest.raises(OutputError, match=why):
        install(package.directory)


def test_evidence_of_another_kernel_is_no_evidence(package: Package, tmp_path: Path) -> None:
    other = finished_run(tmp_path / "other", kernel=KERNEL + "# another\n")
    place = package.directory / "norms" / "table.json"
    (mine,) = read_table(place)
    mine.evidence.write_bytes(other.evidence_path.read_bytes())
    digest = hashlib.sha256(mine.evidence.read_bytes()).hexdigest()
    rewrite(place, lambda text: text.replace(mine.evidence_sha256, digest))
    with pytest.raises(OutputError, match="its evidence is of another kernel"):
        install(package.directory)


def test_kernels_for_another_card_are_refused_with_the_remedy(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installing, "detect_device", lambda: named_target("h100"))
    with pytest.raises(OutputError, match="this machine has an NVIDIA H100.*--trust"):
        install(package.directory, trust=False)


def test_a_name_that_is_taken_and_a_directory_without_a_package_are_refused(
    package: Package, tmp_path: Path
) -> None:
    install(package.directory)
    with pytest.raises(OutputError, match="--force replaces it"):
        install(package.directory)
    assert install(package.directory, force=True).package.name == "norms"
    (tmp_path / "nothing").mkdir()
    with pytest.raises(OutputError, match="holds no finished run"):
        install(tmp_path / "nothing")


def test_a_run_of_this_machine_becomes_an_installed_package(tmp_path: Path) -> None:
    finished_run(tmp_path / "rms-norm-run")
    assert install(tmp_path / "rms-norm-run").package.name == "rms_norm_run"
    assert [entry.name for entry in installed_entries()] == ["rms_norm"]


def test_a_repository_of_the_hub_is_fetched_then_checked_alike(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked = []

    def fetch(name: str, local_dir: Path) -> str:
        asked.append(name)
        return str(package.directory)

    monkeypatch.setattr(hub, "snapshot_download", fetch)
    assert install("HUB:somebody/norms").package.name == "norms"
    assert asked == ["somebody/norms"]
    monkeypatch.setattr(hub, "snapshot_download", lambda *a, **k: 1 / 0)
    with pytest.raises(OutputError, match="somebody/none cannot be fetched from the Hub"):
        install("HUB:somebody/none")
