"""Exported packages: what is in them, that they work without kmem, and what is refused."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import kmem
from kmem.cli import cli
from kmem.deploy.package import Package, export_hub_kernel, export_package
from kmem.errors import OutputError
from kmem.plugins import build_plugin_manager, collect
from tests.shipped_runs import KERNEL, PROBLEM, finished_run, run_without_kmem


def test_an_exported_package_passes_its_own_tests_without_kmem(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path / "a"), finished_run(tmp_path / "b", rows=3)]
    package = export_package(runs, tmp_path / "my-kernels")
    assert [entry.name for entry in package.entries] == ["rms_norm", "rms_norm_2"]
    done = run_without_kmem(package.directory, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    assert "8 passed" in done.stdout


def test_a_package_is_loaded_and_applied_like_a_run(tmp_path: Path) -> None:
    export_package([finished_run(tmp_path / "a")], tmp_path / "shipped")
    package = kmem.load(tmp_path / "shipped")
    assert isinstance(package, Package)
    namespace: dict[str, object] = {}
    exec(PROBLEM, namespace)
    model, x = namespace["Model"](64, 1e-6), torch.randn(6, 64)
    with torch.no_grad():
        expected = model(x)
        with kmem.apply(model, package) as handle:
            torch.testing.assert_close(model(x), expected)
            assert handle.status()[0].served == 1


def test_the_card_says_what_was_shown_and_whose_it_is(tmp_path: Path) -> None:
    card = export_package([finished_run(tmp_path / "a")], tmp_path / "p", "norms").directory
    text = (card / "README.md").read_text()
    row = (
        "| `rms_norm` | NVIDIA H200 | 6x64 float32 | match | 0.01 est. | eager 0.02 est. | 2.00x |"
    )
    assert row in text
    assert "1e-07 / 2e-06" in text
    assert "never ran on the device" in text
    assert "Apache-2.0" in text
    assert "handle = norms.apply(model)" in text


def test_a_kernel_that_was_altered_is_not_loaded(tmp_path: Path) -> None:
    package = export_package([finished_run(tmp_path / "a")], tmp_path / "p")
    (kernel,) = (package.directory / "p" / "kernels").glob("rms_norm_*.py")
    # another hash than any that this process has loaded already
    table = package.directory / "p" / "table.json"
    table.write_text(table.read_text().replace('"kernel_sha256": "', '"kernel_sha256": "0'))
    handle = kmem.apply(torch.nn.Sequential(_norm()), kmem.load(package.directory))
    assert "is not the kernel that was verified" in str(handle)
    assert kernel.is_file()


def _norm() -> torch.nn.Module:
    namespace: dict[str, object] = {}
    exec(PROBLEM, namespace)
    return namespace["Model"](64, 1e-6)


def test_the_command_prints_the_directory_and_replaces_only_an_export(tmp_path: Path) -> None:
    finished_run(tmp_path / "a")
    registry = collect(build_plugin_manager())
    place = tmp_path / "out" / "kernels_of_ours"
    words = ["export", str(tmp_path / "a"), "--to", str(place)]
    result = CliRunner().invoke(cli, words, obj=registry)
    assert (result.exit_code, result.stdout) == (0, f"{place}\n")
    again = CliRunner().invoke(cli, words, obj=registry)
    assert "is not empty; --force replaces it" in again.output
    assert CliRunner().invoke(cli, [*words, "--force"], obj=registry).exit_code == 0
    assert sorted(path.name for path in place.parent.iterdir()) == [place.name]
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "notes.txt").write_text("mine")
    words = ["export", str(tmp_path / "a"), "--to", str(tmp_path / "theirs"), "--force"]
    assert "choose another with --to" in CliRunner().invoke(cli, words, obj=registry).output
    assert (tmp_path / "theirs" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (PROBLEM.replace("return x *", "x.mul_(2)\n        return x *"), "changes its buffers"),
        (PROBLEM.replace("* self.weight", "* self.weight if x.sum() > 0 else x"), "be traced"),
        (PROBLEM.replace("[64, 1e-6]", "[64, float('inf')]"), "which no table can hold"),
    ],
)
def test_what_cannot_be_shipped_is_refused_with_the_reason(
    problem: str, why: str, tmp_path: Path
) -> None:
    run = finished_run(tmp_path / "run", problem=problem.replace("ROWS", "6"))
    with pytest.raises(OutputError, match=why):
        export_package([run], tmp_path / "package")
    assert not (tmp_path / "package").exists()


def test_a_hub_kernel_is_loaded_and_kernelized(tmp_path: Path) -> None:
    kernels = pytest.importorskip("kernels")
    variant = tmp_path / "fast-norms" / "build" / "torch-cuda"
    twice = KERNEL.replace("x * scale", "2 * x * scale")  # so that a served call shows
    export_hub_kernel([finished_run(tmp_path / "a", kernel=twice)], tmp_path / "fast-norms")
    norm = kernels.use_kernel_forward_from_hub("AnyNorm")(type(_norm()))(64, 1e-6)
    model, x = torch.nn.Sequential(norm).eval(), torch.randn(6, 64)
    mapping = {"AnyNorm": {"cpu": kernels.LocalLayerRepository(variant, layer_name="RmsNorm")}}
    with torch.no_grad():
        expected = model(x)
        with kernels.get_local_kernel(variant).apply(model):
            torch.testing.assert_close(model(x), 2 * expected)
        with kernels.use_kernel_mapping(mapping):
            fast = kernels.kernelize(model, mode=kernels.Mode.INFERENCE, device="cpu")
        for _ in range(2):
            torch.testing.assert_close(fast(x), 2 * expected)
        torch.testing.assert_close(fast(x[:5]), expected[:5])


def test_what_is_shipped_is_what_was_judged_and_nothing_that_was_edited_since(
    tmp_path: Path,
) -> None:
    run = finished_run(tmp_path / "run")
    # as runs leave it: the docstring says what became of the kernel
    run.kernel_path.write_text(KERNEL.replace("a row a program.", "a row a program. Fast."))
    package = export_package([run], tmp_path / "package")
    assert package.entries[0].kernel.read_text() == KERNEL
    with torch.no_grad(), kmem.apply(_norm(), run) as handle:
        assert handle.replaced == [""]
    for text in (KERNEL.replace("x * scale", "x + scale"), "no Python:"):
        run.kernel_path.write_text(text)
        with pytest.raises(OutputError, match="was changed since it was judged"):
            export_package([run], tmp_path / "other")


def test_a_run_without_its_evidence_is_refused(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run")
    run.evidence_path.unlink()
    with pytest.raises(OutputError, match="lacks the evidence of its verdict"):
        export_package([run], tmp_path / "package")


def test_every_exported_operator_takes_what_the_table_says(tmp_path: Path) -> None:
    package = export_package([finished_run(tmp_path / "a")], tmp_path / "p")
    (row,) = json.loads((tmp_path / "p" / "p" / "table.json").read_text())["entries"]
    weight = {"name": "weight", "shape": [64], "stride": [1], "dtype": "float32"}
    assert row["state"] == [weight]
    assert (package.directory / "p" / row["kernel"]).read_text() == KERNEL
    assert (package.directory / "p" / row["evidence"]).is_file()
