"""A model of transformers with random weights gets kernels, and its code back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import kmem
from kmem.api.from_module import write_problem
from kmem.deploy.package import export_hub_kernel
from kmem.run.report.result import Result
from tests.shipped_runs import KERNEL, finished_run

#: How far logits may be from the model's own, as the contract of these kernels has it.
NEAR = {"rtol": 1e-5, "atol": 1e-6}
NORMS = 5


@pytest.fixture(scope="module")
def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM  # seconds

    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 50}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads)).eval()


@pytest.fixture(scope="module")
def run(llama: Any, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run for the model's norm, for seven tokens."""
    place, norm = tmp_path_factory.mktemp("llama"), llama.model.norm
    problem = write_problem(norm, (torch.randn(1, 7, 64),), place)
    kernel = KERNEL.replace("def __init__(self, width, eps):", "def __init__(self):")
    kernel = kernel.replace("torch.rand(width)", "torch.rand(64)")
    kernel = kernel.replace("self.eps = eps", f"self.eps = {norm.variance_epsilon}")
    kernel = kernel.replace("x.shape[0]", "x.numel() // 64")
    return finished_run(place / "run", problem=problem.read_text(), kernel=kernel)


def has_its_very_forwards(model: torch.nn.Module) -> bool:
    return all("forward" not in vars(module) for module in model.modules())


@pytest.mark.slow
def test_a_language_model_has_the_same_logits_and_gets_its_forward_back(
    llama: Any, run: Result
) -> None:
    tokens = torch.arange(7)[None]
    with torch.no_grad():
        expected = llama(tokens).logits
        handle = kmem.apply(llama, run)
        found = llama(tokens).logits
    assert len(handle.replaced) == NORMS
    assert [each.served for each in handle.status()] == [1] * NORMS
    torch.testing.assert_close(found, expected, **NEAR)
    handle.undo()
    assert has_its_very_forwards(llama)
    with torch.no_grad():
        assert torch.equal(llama(tokens).logits, expected)


@pytest.mark.slow
def test_a_repository_in_the_environment_is_applied_like_a_package(
    llama: Any, run: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = pytest.importorskip("kernels")
    export_hub_kernel([run], tmp_path / "norms")
    place = tmp_path / "norms" / "build" / "torch-cuda"
    monkeypatch.setenv("LOCAL_KERNELS", f"somebody/norms={place}")
    kernel = kernels.get_kernel("somebody/norms", version=1)
    assert kernel.layers.RmsNorm.has_backward is kernel.layers.RmsNorm.can_torch_compile is False
    tokens = torch.arange(7)[None]
    with torch.no_grad():
        expected = llama(tokens).logits
        with kernel.apply(llama) as handle:
            torch.testing.assert_close(llama(tokens).logits, expected, **NEAR)
            assert [each.served for each in handle.status()] == [1] * NORMS
    assert has_its_very_forwards(llama)


@pytest.mark.slow
def test_kernelize_gives_a_language_model_the_layers_of_a_repository(
    llama: Any, run: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = pytest.importorskip("kernels")
    export_hub_kernel([run], tmp_path / "fast-norms")
    variant = tmp_path / "fast-norms" / "build" / "torch-cuda"
    repository = kernels.LocalLayerRepository(variant, layer_name="RmsNorm")
    # what transformers' own decorator does where it knows this version of kernels
    monkeypatch.setattr(type(llama.model.norm), "kernel_layer_name", "RMSNorm", raising=False)
    tokens, calls = torch.arange(7)[None], count_calls(monkeypatch)
    with torch.no_grad():
        expected = llama(tokens).logits
        with kernels.use_kernel_mapping({"RMSNorm": {"cpu": repository}}, inherit_mapping=False):
            fast = kernels.kernelize(llama, mode=kernels.Mode.INFERENCE, device="cpu")
            found = fast(tokens).logits
            other = fast(tokens[:, :5]).logits
        torch.testing.assert_close(found, expected, **NEAR)
        assert calls() == NORMS, "seven tokens have kernels, five have not"
        for module in llama.modules():
            vars(module).pop("forward", None)  # what kernelize binds
        torch.testing.assert_close(other, llama(tokens[:, :5]).logits, rtol=0, atol=0)
        assert torch.equal(llama(tokens).logits, expected)


def count_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often a Triton kernel is launched from now on."""
    from triton.runtime.interpreter import GridExecutor

    launched, call = [], GridExecutor.__call__

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        launched.append(self)
        return call(self, *args, **kwargs)

    monkeypatch.setattr(GridExecutor, "__call__", counted)
    return lambda: len(launched)
