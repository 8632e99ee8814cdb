"""`kmem problem new` and `kmem problem check`."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from kmem.cli import cli
from kmem.plugins import Registry, build_plugin_manager, collect

NORM = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(64)

    def forward(self, x):
        return torch.relu(self.norm(x))

def get_inputs():
    return [torch.randn(4096, 64)]
"""

CONFIG = """
from collections import namedtuple
from dataclasses import dataclass

@dataclass
class Config:
    width: int = 64

Pair = namedtuple("Pair", "one two")

"""
#: A constructor that takes a record.
CONFIGURED = f"""
import torch
{CONFIG}
class Model(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.linear = torch.nn.Linear(config.width, config.width)

    def forward(self, x):
        return torch.relu(self.linear(x))

def get_inputs():
    return [torch.randn(128, 64)]

def get_init_inputs():
    return [Config()]
"""


def taking(argument: str) -> str:
    """A problem whose forward takes one argument more."""
    return (
        NORM.replace("class Model", CONFIG + "class Model")
        .replace("(self, x)", "(self, x, other)")
        .replace("64)]", f"64), {argument}]")
    )


@pytest.fixture(scope="module")
def registry() -> Registry:
    return collect(build_plugin_manager())


def invoke(registry: Registry, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["problem", *words], obj=registry)
    return result.exit_code, result.output


def test_a_new_problem_file_passes_its_check_and_is_never_overwritten(
    registry: Registry, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    assert invoke(registry, "new", str(file))[0] == 0
    code, text = invoke(registry, "check", str(file), "--target", "h200")
    assert code == 0
    for line in (
        "operators    linear, pointwise",
        "mode         the same in training and eval",
        "ms on h200, limited by fp16",
        "split-fp16-matmul (linear)",
        "small sizes  29 x 1024 (TOKENS -> 29)",
    ):
        assert line in text
    file.write_text("mine", encoding="utf-8")
    code, text = invoke(registry, "new", str(file))
    assert code == 1 and "is there already" in text
    assert file.read_text(encoding="utf-8") == "mine"


def test_a_check_says_the_mode_and_what_it_means(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "norm.py"
    file.write_text(NORM, encoding="utf-8")
    argv = ["check", str(file), "--target", "h200", "--json"]
    as_it_is = json.loads(invoke(registry, *argv)[1].splitlines()[-1])
    assert as_it_is["training"] and "give --mode eval" in as_it_is["notes"][0]
    in_eval = json.loads(invoke(registry, *argv, "--mode", "eval")[1].splitlines()[-1])
    assert not in_eval["training"] and in_eval["notes"][0].startswith("eval mode")


def test_what_cannot_be_traced_is_said_to_be_unknown(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "norm.py"
    returned = "torch.relu(self.norm(x))"
    file.write_text(NORM.replace(returned, f"{{'y': {returned}}}"), encoding="utf-8")
    code, text = invoke(registry, "check", str(file), "--target", "h200")
    assert code == 0
    for line in (
        "mode         as the file leaves it; whether it matters is unknown",
        "memory       unknown",
        "recipes      none: only a language model can write this",
        "library      the whole forward",
        "note         the forward is one opaque call: it returns a dict; `kmem optimize --pieces` "
        "treats the file as a model",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NORM.replace("BatchNorm1d(64)", "BatchNorm1d(65)"), "running_mean"),
        (NORM.replace("4096, 64", "1 << 34, 64"), "needs 8.8 TB"),
        (NORM.replace("class Model", "class Modell"), "defines no Model"),
        (NORM.replace("64)]", "64).cuda()]"), "name no device in the file"),
    ],
)
def test_what_breaks_the_contract_is_one_line(
    text: str, message: str, registry: Registry, tmp_path: Path
) -> None:
    file = tmp_path / "norm.py"
    file.write_text(text, encoding="utf-8")
    code, output = invoke(registry, "check", str(file), "--target", "h200")
    assert code == 1 and message in output and output.startswith("Error: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CONFIGURED, "a Config cannot be passed to a worker; use dense tensors, numbers"),
        (NORM.replace("64)]", '64, device="cuda")]'), "name no device in the file"),
        (taking("Config()"), "a Config cannot be passed to a worker; use dense tensors, numbers"),
        (taking("Pair(1, 2)"), "a Pair cannot be passed to a worker"),
        (taking("[torch.randn(4)]"), "a list that holds tensors cannot be passed to a worker"),
        (taking("torch.eye(4).to_sparse()"), "a sparse or nested tensor cannot be passed"),
        (taking("torch.zeros(4).to(torch.uint16)"), "a tensor of uint16 cannot be filled"),
        (taking("torch.zeros(4).to(torch.float8_e5m2)"), "a tensor of float8_e5m2 cannot"),
        (taking('torch.zeros(4, device="meta")'), "makes tensors on the meta device"),
        (NORM.replace("norm(x))", "norm(x)).to_sparse()"), "forward returned a sparse tensor"),
    ],
)
def test_a_check_refuses_what_a_run_refuses_and_in_its_words(
    text: str,
    message: str,
    registry: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    file = tmp_path / "refused.py"
    file.write_text(text, encoding="utf-8")
    code, output = invoke(registry, "check", str(file), "--target", "h200")
    assert code == 1 and message in output and len(output.splitlines()) == 1
    argv = ["optimize", str(file), "--target", "h200", "--out", str(tmp_path / "out")]
    run = CliRunner().invoke(cli, argv, obj=registry)
    assert run.exit_code == 1 and run.output.splitlines()[-1] == output.strip()
    assert not (tmp_path / "out").exists()


def test_a_check_of_a_model_names_the_commands_that_take_one(
    registry: Registry, tmp_path: Path
) -> None:
    file = tmp_path / "mixer.py"
    file.write_text("import torch\ndef factory():\n    return torch.nn.ReLU()\n")
    code, output = invoke(registry, "check", f"{file}:factory", "--target", "h200")
    assert code == 1 and len(output.splitlines()) == 1
    assert output.startswith(f"Error: {file}:factory names a model, as FILE:NAME or PACKAGE:NAME")
    assert "`kmem plan` shows what a run would make" in output
