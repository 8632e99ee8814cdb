"""AutoKernel's nine kernel types at its own sizes, as problems of kmem and candidates for them.

    python tools/autokernel_problems.py --out DIR [--checkout AUTOKERNEL] [--precision float16]

DIR/problems has a problem file for each type and size, in our words, for `kmem bench`. With a
checkout of AutoKernel, DIR/theirs has its Triton kernel for each, called as its bench calls it, for
tools/compare_kernels.py; nothing of it is kept in this repository. Its models are given to kmem as
they are: `kmem plan FILE:GPT2 --input 'input_ids=i64[1,1024]<50257'`.

Source of sizes and meanings: github.com/RightNow-AI/autokernel, its bench and its references. Of
its sizes those are left out that take a GPU no time worth measuring (tiny, small).
"""

import argparse
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class KernelType:
    """A type of kernel: what it computes of which inputs, and its sizes.

    `inputs` are expressions in the names of `sizes`, drawn from `randn` unless they say otherwise.
    """

    about: str
    arguments: str
    body: str
    inputs: tuple[str, ...]
    names: tuple[str, ...]
    sizes: Mapping[str, tuple[int, ...]]


_ROTATED = """\
even, odd = x[..., ::2], x[..., 1::2]
turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
return turned.flatten(-2)"""
_ATTENDED = """\
scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
length = scores.shape[-1]
later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
return torch.softmax(scores.masked_fill(later, float("-inf")), dim=-1) @ v"""
_HEADS = ("BATCH", "HEADS", "LENGTH", "WIDTH")
_QKV = "BATCH, HEADS, LENGTH, WIDTH"

TYPES = {
    "matmul": KernelType(
        "A product of matrices.",
        "a, b",
        "return a @ b",
        ("M, K", "K, N"),
        ("M", "N", "K"),
        {
            "medium": (1024, 1024, 1024),
            "large": (2048, 2048, 2048),
            "xlarge": (4096, 4096, 4096),
            "tall": (8192, 1024, 1024),
            "wide": (1024, 8192, 1024),
            "deep_k": (1024, 1024, 8192),
            "llm_qkv": (4096, 4096, 512),
            "llm_mlp": (4096, 11008, 4096),
        },
    ),
    "softmax": KernelType(
        "A softmax over rows.",
        "x",
        "return torch.softmax(x, dim=-1)",
        ("ROWS, COLS",),
        ("ROWS", "COLS"),
        {
            "large": (4096, 4096),
            "xlarge": (8192, 8192),
            "wide": (1024, 32768),
            "narrow": (32768, 128),
            "vocab": (4096, 50257),
        },
    ),
    "layernorm": KernelType(
        "A layer norm over rows.",
        "x, weight, bias",
        "return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)",
        ("ROWS, WIDTH", "WIDTH", "WIDTH"),
        ("ROWS", "WIDTH"),
        {
            "large": (4096, 2048),
            "xlarge": (8192, 4096),
            "wide": (1024, 8192),
            "llm_7b": (4096, 4096),
            "llm_13b": (4096, 5120),
        },
    ),
    "rmsnorm": KernelType(
        "A root-mean-square norm over rows.",
        "x, weight",
        "return x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6) * weight",
        ("ROWS, WIDTH", "WIDTH"),
        ("ROWS", "WIDTH"),
        {"medium": (4096, 1024), "large": (4096, 4096), "llama": (2048, 4096)},
    ),
    "flash_attention": KernelType(
        "Causal attention.",
        "q, k, v",
        _ATTENDED,
        (_QKV, _QKV, _QKV),
        _HEADS,
        {
            "medium": (2, 16, 512, 64),
            "large": (2, 32, 1024, 64),
            "xlarge": (2, 32, 2048, 64),
            "long": (1, 32, 4096, 64),
            "gqa": (2, 32, 1024, 128),
            "llm_7b": (1, 32, 2048, 128),
        },
    ),
    "fused_mlp": KernelType(
        "A gated feed-forward: down(silu(gate(x)) * up(x)).",
        "x, gate, up, down",
        "return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T",
        (
            "ROWS, WIDTH",
            "HIDDEN, WIDTH) * (0.02",
            "HIDDEN, WIDTH) * (0.02",
            "WIDTH, HIDDEN) * (0.02",
        ),
        ("ROWS", "WIDTH", "HIDDEN"),
        {
            "medium": (1024, 1024, 2048),
            "large": (2048, 2048, 5504),
            "xlarge": (4096, 4096, 11008),
            "llm_7b": (2048, 4096, 11008),
            "llm_13b": (2048, 5120, 13824),
        },
    ),
    "cross_entropy": KernelType(
        "A cross entropy, averaged.",
        "logits, labels",
        "return F.cross_entropy(logits, labels)",
        ("ROWS, CLASSES", "labels"),
        ("ROWS", "CLASSES"),
        {
            "medium": (1024, 4096),
            "large": (4096, 32000),
            "xlarge": (8192, 50257),
            "gpt2": (4096, 50257),
        },
    ),
    "rotary_embedding": KernelType(
        "Rotary position embeddings of neighbouring pairs.",
        "x, cos, sin",
        _ROTATED,
        (_QKV, "LENGTH, WIDTH // 2", "LENGTH, WIDTH // 2"),
        _HEADS,
        {
            "medium": (2, 16, 512, 64),
            "large": (2, 32, 1024, 128),
            "xlarge": (2, 32, 2048, 128),
            "llm_7b": (1, 32, 2048, 128),
            "llm_13b": (1, 40, 2048, 128),
        },
    ),
    "reduce": KernelType(
        "A sum over rows.",
        "x",
        "return x.sum(dim=-1)",
        ("ROWS, COLS",),
        ("ROWS", "COLS"),
        {"medium": (4096, 4096), "large": (8192, 8192), "wide": (1024, 32768)},
    ),
}

_PROBLEM = '''"""{about} Size and meaning are AutoKernel's."""

import torch
import torch.nn.functional as F

{sizes}


class Model(torch.nn.Module):
    def forward(self, {arguments}):
{body}


def get_inputs():
    return [{inputs}]
'''
_CALLED = '''

class ModelNew(torch.nn.Module):
    """Calls the kernel as AutoKernel's bench does."""

    def forward(self, *inputs):
        return kernel_fn(*inputs)
'''


def write_problem(name: str, size: str, precision: str = "float16") -> str:
    """The text of a problem file. Raises KeyError: if there is no such type or size."""
    kind = TYPES[name]
    values = zip(kind.names, kind.sizes[size], strict=True)
    text = _PROBLEM.format(
        about=kind.about,
        sizes="\n".join(f"{each} = {value}" for each, value in values),
        arguments=kind.arguments,
        body=textwrap.indent(kind.body, " " * 8),
        inputs=", ".join(_drawn(each, precision) for each in kind.inputs),
    )
    return text if "F." in kind.body else text.replace("import torch.nn.functional as F\n", "")


def _drawn(shape: str, precision: str) -> str:
    if shape == "labels":
        return "torch.randint(0, CLASSES, (ROWS,))"
    sizes, _, factor = shape.partition(") * (")
    scaled = f" * {factor}" if factor else ""
    return f"torch.randn({sizes}, dtype=torch.{precision}){scaled}"


def write_all(out: Path, checkout: Path | None, precision: str) -> int:
    """Write every problem, and their kernel beside each where there is a checkout; how many."""
    problems, theirs = out / "problems", out / "theirs"
    places = [problems] if checkout is None else [problems, theirs]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
    names = [(name, size) for name, kind in TYPES.items() for size in kind.sizes]
    for name, size in names:
        file = f"{name}_{size}.py"
        (problems / file).write_text(write_problem(name, size, precision), encoding="utf-8")
        if checkout is not None:
            released = (checkout / "kernels" / f"{name}.py").read_text(encoding="utf-8")
            (theirs / file).write_text(released.rstrip() + "\n" + _CALLED, encoding="utf-8")
    return len(names)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkout", type=Path, help="of AutoKernel, for its own kernels")
    parser.add_argument("--precision", default="float16", choices=["float16", "bfloat16"])
    options = parser.parse_args()
    print(write_all(options.out, options.checkout, options.precision), "problems")
