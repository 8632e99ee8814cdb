"""The first hour of an engineer with a problem of their own: checked, made fast, used.

The files in newcomer/ are as one writes them: literal sizes, no small inputs, a module imported
from the file beside it. Each is large enough for the first candidate to win without a GPU.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import warm

from kmem.codegen.module.constants import swap_constants

FILES = Path(__file__).parent / "newcomer"
#: (file, options, what the check says of it, the skills that write its winner)
PATHS = [
    pytest.param(
        "conv_norm",
        ["--mode", "eval"],
        {"mode_matters": True, "training": False},
        {"fuse-pointwise-chain"},
        id="conv, batch norm in eval mode",
    ),
    pytest.param(
        "transformer_block",
        [],
        {"mode_matters": False},
        {"split-fp16-matmul"},
        id="attention, then linear, GELU, residual",
    ),
]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A newcomer's directory with their files; kmem has never run here."""
    shutil.copytree(FILES, tmp_path / "project")
    return tmp_path / "project"


def kmem(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    left_out = ("TRITON_INTERPRET", "COVERAGE_PROCESS")  # what runs here counts in other tests
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(left_out)
    }
    environment |= {"KMEM_DB": str(home.parent / "kmem.db"), "KMEM_TARGET": "h200"}
    return warm.run(*words, cwd=home, env=environment)


def imported(file: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "told", "writers"), PATHS)
def test_a_newcomers_module_is_checked_made_fast_and_used(
    name: str,
    options: list[str],
    told: dict,
    writers: set[str],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked = kmem(home, "problem", "check", f"{name}.py", *options, "--json")
    assert checked.returncode == 0, checked.stderr
    preview = json.loads(checked.stdout)
    assert {key: preview[key] for key in told} == told
    assert preview["sites"] and preview["small_inputs"] and preview["bound"]["time_ms"] > 0
    run = kmem(
        home,
        # compiling is slow, and one direction mostly enough
        *("optimize", f"{name}.py", *options, "--candidates", "8" if name == "conv_norm" else "1"),
        *("--rounds", "0", "--minutes", "0.1", "--memory", "off", "--out", "run", "--json"),
    )
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert result["speedup"] > 1.0 and result["estimated"], result
    outcome = json.loads((home / "run" / "result.json").read_text(encoding="utf-8"))
    best = outcome["best"]
    assert best["measurement"]["status"] == "passed"
    assert writers <= {choice["recipe"] for choice in best["candidate"]["kernel"]["choices"]}
    monkeypatch.syspath_prepend(str(home))  # as in the newcomer's own program
    problem = imported(home / f"{name}.py", f"newcomer_{name}")
    winner = home / "run" / "best_kernel.py"
    assert not winner.read_text(encoding="utf-8").startswith("# PROVISIONAL")
    block = winner.with_name("best_kernel.small.py").read_text(encoding="utf-8")
    at_small = home / "at_small_sizes.py"  # the interpreter would take hours at the full ones
    at_small.write_text(swap_constants(winner.read_text(encoding="utf-8"), block), encoding="utf-8")
    kernel = imported(at_small, f"newcomer_kernel_{name}")
    init = problem.get_init_inputs() if hasattr(problem, "get_init_inputs") else []
    small = dict(preview["replaced"])  # a large width shrinks with its parameters
    init = [small.get(str(size), size) for size in init]
    model = problem.Model(*init)
    fast = kernel.ModelNew(*init)
    fast.load_state_dict(model.state_dict())
    model.train(fast.training)
    inputs = [torch.randn(shape) for shape in preview["small_inputs"]]
    monkeypatch.setenv("KMEM_STRICT", "1")  # kernels run, not the module as it is
    with torch.no_grad():
        torch.testing.assert_close(fast(*inputs), model(*inputs), rtol=1e-3, atol=1e-3)
    sys.modules.pop("attention", None)
