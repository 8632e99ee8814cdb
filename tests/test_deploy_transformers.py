"""A model of transformers with random weights gets kernels, and its code back."""

from pathlib import Path

import pytest
import torch

import kmem
from kmem.api.from_module import write_problem
from tests.shipped_runs import KERNEL, finished_run


@pytest.mark.slow
def test_a_language_model_has_the_same_logits_and_gets_its_forward_back(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM  # seconds

    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 50}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads)).eval()
    tokens, norm = torch.arange(7)[None], model.model.norm
    problem = write_problem(norm, (torch.randn(1, 7, 64),), tmp_path)
    kernel = KERNEL.replace("def __init__(self, width, eps):", "def __init__(self):")
    kernel = kernel.replace("torch.rand(width)", "torch.rand(64)")
    kernel = kernel.replace("self.eps = eps", f"self.eps = {norm.variance_epsilon}")
    kernel = kernel.replace("x.shape[0]", "x.numel() // 64")
    run = finished_run(tmp_path / "run", problem=problem.read_text(), kernel=kernel)
    with torch.no_grad():
        expected = model(tokens).logits
        handle = kmem.apply(model, run)
        found = model(tokens).logits
    assert len(handle.replaced) == 5
    assert [each.served for each in handle.status()] == [1] * 5
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    handle.undo()
    assert all("forward" not in vars(module) for module in model.modules())
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, expected)
