"""What a problem begins with, compiled ahead: the run that is measured finds it."""

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from test_away import silu
from test_bench import SETTINGS

from kmem.away.compiled import pack_kernels, unpack_kernels
from kmem.away.home import Home
from kmem.away.prefetch import Prefetch
from kmem.away.runner import CrewRunner
from kmem.away.there import There
from kmem.bench.results import BenchDirectory
from kmem.devices import named_target
from kmem.engines.desk import Desk
from kmem.engines.executor import Executor, Wanted
from kmem.engines.local import LocalExecutor
from kmem.engines.ray_crew import RayExecutor
from kmem.memory.store import Memory

ASKED = replace(SETTINGS, rounds=0, candidates=2, baselines="eager")


def kernel(cache: Path, name: str) -> Path:
    place = cache / name
    place.mkdir(parents=True)
    (place / "k.cubin").write_bytes(b"code")
    paths = {"child_paths": {"k.cubin": str(place / "k.cubin")}}
    (place / "__grp__k.json").write_text(json.dumps(paths))
    return place


def test_kernels_are_found_under_their_new_paths_and_those_that_are_there_stay(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        kernel(tmp_path / "there", name)
    (tmp_path / "there" / "no-kernel").mkdir()
    assert pack_kernels(tmp_path / "there", tmp_path / "file") == 2
    own = kernel(tmp_path / "here", "b") / "k.cubin"
    own.write_bytes(b"own")
    assert unpack_kernels(tmp_path / "file", tmp_path / "here") == 1
    assert sorted(each.name for each in (tmp_path / "here").iterdir()) == ["a", "b"]
    paths = json.loads((tmp_path / "here" / "a" / "__grp__k.json").read_text())["child_paths"]
    assert Path(paths["k.cubin"]) == tmp_path / "here" / "a" / "k.cubin"
    assert Path(paths["k.cubin"]).read_bytes() == b"code" and own.read_bytes() == b"own"


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "present"), [("local", True), ("ray", False)])
def test_a_run_compiles_nothing_that_was_compiled_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, present: bool
) -> None:
    if engine == "ray":
        pytest.importorskip("ray")
    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")
    monkeypatch.setenv("KMEM_DB", str(tmp_path / "worker" / "kmem.db"))
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    problem, root = silu(tmp_path), tmp_path / "bench"
    executor: Executor = LocalExecutor() if engine == "local" else RayExecutor()
    wanted = Wanted(gpus=0, cpus=1, address="local", directory=tmp_path)
    notes: list[str] = []
    home = Home(root / "copies", tmp_path / "home.db")
    Memory(tmp_path / "home.db").close()
    with BenchDirectory(root), Desk(executor.hire(wanted, notes.append), notes.append) as desk:
        target = named_target("h200"), present
        prefetch = Prefetch(desk, home, lambda problem: ASKED, target, root)
        prefetch.begin([problem])
        waiting = threading.Event()
        while not list((root / "compiled").glob("?" * 64)):
            desk.check()
            assert not waiting.wait(0.2)
        (ahead,) = (root / "compiled").iterdir()
        assert prefetch.take(problem) == ahead
        runner = CrewRunner(
            desk,
            lambda problem: ASKED,
            root,
            lambda asked, on_line, on_end: There(asked, home, on_line, on_end),
            gpu=False,
            prefetch=prefetch,
        )
        end = runner(problem, lambda stage, text: None, threading.Event())
    assert end is not None and end.code in (0, 3), end.stderr
    cache = tmp_path / "worker" / "cache" / "triton"
    found = {each.name for each in cache.iterdir() if list(each.glob("__grp__*"))}
    unpack_kernels(ahead, tmp_path / "again")
    compiled = {each.name for each in (tmp_path / "again").iterdir()}
    assert compiled and found >= compiled
    for name in compiled:  # the files that came in the archive, not compiled again
        assert {file.stat().st_mtime for file in (cache / name).glob("*.cubin")} == {0.0}
    assert found == compiled
