"""tools/lay_out_rivals.py: problems and kernels of others, from their repositories."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from autokernel_problems import TYPES  # noqa: E402 - no package
from lay_out_rivals import main  # noqa: E402 - no package

from kmem.problem.source.load import execute_problem, load_problem  # noqa: E402

MODEL = """import torch


class {}(torch.nn.Module):
    def forward(self, ids):
        return ids
"""


def repository(place: Path, files: Mapping[str, str]) -> Path:
    """A bare repository, as a mirror is one, whose HEAD has these files."""
    work, bare = place / "work", place / "bare"
    for name, text in files.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    who = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "all"]):
        subprocess.run(["git", *command], cwd=work, check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(work), str(bare)], check=True)
    return bare


def test_problems_and_kernels_lie_where_the_tools_look_for_them(tmp_path: Path) -> None:
    bench = repository(tmp_path / "kb", {"KernelBench/level3/1_MLP.py": "x = 1\n", "a.py": ""})
    saved = "results/saved_kernels/kernelbench/level{}/7.py"
    theirs = repository(
        tmp_path / "ada", {saved.format(2): "two = 2\n", saved.format(3): "three = 3\n"}
    )
    out = tmp_path / "out"
    main(["--out", str(out), "--kernelbench", str(bench), "--adaexplore", str(theirs)])
    assert {str(file.relative_to(out)) for file in out.rglob("*.py")} == {
        "KernelBench/level3/1_MLP.py",
        "AdaExplore/level2/7.py",
        "AdaExplore/level3/7.py",
    }
    assert (out / "AdaExplore/level3/7.py").read_text() == "three = 3\n"


def test_a_model_of_autokernel_is_a_problem_with_inputs(tmp_path: Path) -> None:
    models = {"gpt2": "GPT2", "llama_7b": "LlamaModel", "bert_base": "BertModel"}
    files = {f"models/{name}.py": MODEL.format(model) for name, model in models.items()}
    files |= {f"kernels/{name}.py": "def kernel_fn(*inputs): ...\n" for name in TYPES}
    out = tmp_path / "out"
    main(["--out", str(out), "--autokernel", str(repository(tmp_path / "ak", files))])
    for name, model in models.items():
        found = execute_problem(load_problem(out / f"AutoKernel/whole/{name}.py"))
        assert found.Model.__mro__[1].__name__ == model
        assert found.get_inputs()[0].dim() == 2
    assert len(list((out / "AutoKernel/theirs").iterdir())) == sum(
        len(kind.sizes) for kind in TYPES.values()
    )


def test_a_repository_without_the_folder_is_named(tmp_path: Path) -> None:
    other = repository(tmp_path / "other", {"a.py": ""})
    with pytest.raises(SystemExit, match="has no KernelBench"):
        main(["--out", str(tmp_path / "out"), "--kernelbench", str(other)])
