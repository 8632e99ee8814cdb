"""tools/autokernel_problems.py: the nine kernel types as problems, and candidates for them."""

import re
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from autokernel_problems import TYPES, write_all, write_problem  # noqa: E402 - no package

from kmem.problem.load import (
    execute_problem,  # noqa: E402
    load_problem,  # noqa: E402
)
from kmem.problem.trace import trace_problem  # noqa: E402


def small(name: str) -> dict[str, object]:
    """A problem at sizes of a few, executed."""
    size = next(iter(TYPES[name].sizes))
    text = re.sub(r"^([A-Z]+) = \d+$", r"\1 = 8", write_problem(name, size), flags=re.MULTILINE)
    found: dict[str, object] = {"__name__": "problem"}
    exec(text, found)  # noqa: S102 - a text of ours
    return found


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2)


#: What torch itself has for a type.
RIGHT = {
    "matmul": torch.matmul,
    "softmax": lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
    "layernorm": lambda x, w, b: (
        (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt() * w
        + b
    ),
    "rmsnorm": lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6),
    "flash_attention": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "fused_mlp": lambda x, g, u, d: F.linear(F.silu(F.linear(x, g)) * F.linear(x, u), d),
    "cross_entropy": lambda x, y: -x.log_softmax(-1).gather(1, y[:, None]).mean(),
    "rotary_embedding": rotated,
    "reduce": lambda x: x.sum(-1),
}


@pytest.mark.parametrize("name", TYPES)
def test_a_type_means_what_torch_has_for_it(name: str) -> None:
    problem = small(name)
    wide = [each.double() if each.is_floating_point() else each for each in problem["get_inputs"]()]
    found = problem["Model"]()(*wide)
    torch.testing.assert_close(found, RIGHT[name](*wide))


def test_every_type_and_size_is_a_problem_and_a_candidate(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "kernels").mkdir(parents=True)
    for name in TYPES:
        (checkout / "kernels" / f"{name}.py").write_text("import torch\nkernel_fn = torch.neg\n")
    count = write_all(tmp_path, checkout, "bfloat16")
    assert len(TYPES) == 9 and count == sum(len(kind.sizes) for kind in TYPES.values())
    problems = sorted((tmp_path / "problems").iterdir())
    assert [each.name for each in problems] == sorted(
        each.name for each in (tmp_path / "theirs").iterdir()
    )
    assert "dtype=torch.bfloat16" in problems[0].read_text()
    found: dict[str, object] = {"__name__": "candidate"}
    exec((tmp_path / "theirs" / "reduce_wide.py").read_text(), found)  # noqa: S102 - made above
    assert torch.equal(found["ModelNew"]()(torch.ones(2)), -torch.ones(2))


@pytest.mark.parametrize("name", ["fused_mlp", "cross_entropy", "rotary_embedding"])
def test_a_problem_is_traced_at_its_own_size(name: str, tmp_path: Path) -> None:
    write_all(tmp_path, None, "float16")
    size = next(iter(TYPES[name].sizes))
    problem = load_problem(tmp_path / "problems" / f"{name}_{size}.py")
    graph = trace_problem(execute_problem(problem), both_modes=False)
    assert graph is not None and not (tmp_path / "theirs").exists()
