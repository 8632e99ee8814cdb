"""A problem file from words: read offline, asked of a model, and checked either way."""

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from scripted_server import Reply, ScriptedServer, in_order

from kmem.cli import cli
from kmem.cli.actions import describe
from kmem.errors import ProblemError
from kmem.plugins import build_plugin_manager, collect
from kmem.problem.described.reading import read_description
from kmem.problem.described.writing import write_problem_file
from kmem.problem.source.load import execute_problem
from kmem.records import Problem

F = torch.nn.functional


def computed(text: str) -> tuple[torch.Tensor, list[torch.Tensor], torch.nn.Module]:
    """What the module of a description makes of its inputs, those, and the module."""
    source = write_problem_file(read_description(text))
    module = execute_problem(Problem("described", "described.py", source))
    torch.manual_seed(0)
    model, inputs = module.Model(), module.get_inputs()
    return model(*inputs), inputs, model


def test_a_residual_is_added_ahead_of_a_norm() -> None:
    found, (x, residual), model = computed(
        "fused RMSNorm over the last dimension of bf16[2, 3, 16] with a residual"
    )
    assert x.dtype is residual.dtype is model.norm_weight.dtype is torch.bfloat16
    assert torch.equal(found, F.rms_norm(x + residual, (16,), model.norm_weight))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("softmax of relu of fp32[4, 8]", lambda x: torch.softmax(torch.relu(x), -1)),
        ("relu then softmax along dim 0 of fp32[4, 8]", lambda x: torch.softmax(x.relu(), 0)),
        ("cumulative sum over the first axis of float32[4, 8]", lambda x: x.cumsum(0)),
        ("swish times 0.5 of fp32[6]", lambda x: F.silu(x) * 0.5),
        ("LayerNorm without weights of f32[4, 8]", lambda x: F.layer_norm(x, (8,))),
        ("leaky relu, log softmax, fp32[4, 8]", lambda x: F.leaky_relu(x).log_softmax(-1)),
    ],
)
def test_operators_are_applied_in_the_order_that_was_said(text: str, expected: object) -> None:
    found, (x,), _ = computed(text)
    assert torch.equal(found, expected(x))


def test_products_take_the_second_tensor_and_linear_layers_their_features() -> None:
    found, (x, y), model = computed("matmul of fp32[4, 8] and fp32[8, 6] with bias then gelu")
    assert torch.equal(found, F.gelu(x @ y + model.bias))
    found, (x, residual), model = computed(
        "linear to 16 features of fp32[4, 16] with a residual, then gelu"
    )
    assert torch.equal(found, F.gelu(F.linear(x, model.weight) + residual))
    found, (query, key, value), _ = computed("causal attention over fp32[1, 2, 8, 4]")
    attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert torch.equal(found, attended)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("frobnicate fp32[4]", "this is not understood: frobnicate"),
        ("a very nice softmax of fp32[4, 4]", "not understood: very, nice"),
        ("softmax", "Say also the input's type and sizes"),
        ("fp32[4, 4]", "Say also which operators"),
        ("matmul of fp32[4, 4]", "Say also the second factor"),
        ("matmul of fp32[4, 8] and fp32[4, 8]", "wants a second factor with that size"),
        ("softmax of fp32[4, 8] and fp32[4, 8]", "No operator of the description takes"),
        ("softmax over dim 3 of fp32[4, 8]", "The input has no dimension 3"),
    ],
)
def test_what_is_half_understood_is_refused_in_a_line(text: str, told: str) -> None:
    with pytest.raises(ProblemError, match="^.*$") as caught:
        write_problem_file(read_description(text))
    assert told in str(caught.value)


def new(*words: str, typed: str = "") -> Result:
    registry = collect(build_plugin_manager())
    return CliRunner().invoke(cli, ["problem", "new", *words], obj=registry, input=typed)


def test_the_file_is_shown_checked_and_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "norm.py"
    words = ("fused RMSNorm of bf16[32, 4096, 8192] with a residual", "--out", str(file))
    told = new(*words)
    assert (told.exit_code, told.stdout) == (0, f"{file}\n")
    assert file.read_text() in told.stderr
    assert "row-norm (rms_norm)" in told.stderr  # what a run would make of it
    assert "is there already" in new(*words).stderr


def test_on_a_terminal_what_is_missing_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "The description lacks the input's type" in new("softmax").stderr
    monkeypatch.setattr(describe.sys.stdin.__class__, "isatty", lambda self: True, raising=False)

    class Terminal:
        def isatty(self) -> bool:
            return True

    class System:
        stdin = Terminal()

    monkeypatch.setattr(describe, "sys", System)
    told = new("softmax", typed="nonsense\nfp32[64, 128]\n")
    assert told.exit_code == 0, told.output
    assert "not understood: nonsense" in told.stderr
    assert (tmp_path / "softmax.py").is_file()


GOOD = """import torch
N = 64
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x).square()
def get_inputs():
    return [torch.randn(N, N)]
"""


def test_a_model_writes_it_and_is_told_once_what_was_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-any")
    unsafe = Reply("Here:\n```python\nimport os\n" + GOOD + "```\n")
    good = Reply("Sorry.\n```python\n" + GOOD + "```\nThat is it.")
    file = tmp_path / "squared.py"
    with ScriptedServer(in_order(unsafe, good)) as server:
        model = ("-m", "scripted-large", "--base-url", server.url_openai)
        told = new("squared relu the way my colleague likes it", "--out", str(file), *model)
    assert told.exit_code == 0, told.output
    assert file.read_text() == GOOD
    first, second = server.requests
    assert first.user == "squared relu the way my colleague likes it"
    assert "import of os" in second.user  # it was read before it was run


def test_a_model_that_writes_no_problem_twice_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-any")
    wrong = Reply("```python\n" + GOOD.replace("torch.relu(x)", "x.nothing()") + "```")
    file = tmp_path / "squared.py"
    with ScriptedServer(in_order(wrong)) as server:
        model = ("-m", "scripted-large", "--base-url", server.url_openai)
        told = new("squared relu", "--out", str(file), *model)
    assert told.exit_code == 1 and not file.exists()
    assert "wrote no problem file that holds" in told.stderr and "nothing" in told.stderr
