"""Problems of products that share what they read, as files, for the judge on a GPU.

    python tools/joined_problems.py DIR
    kmem bench DIR --rounds 0 --minutes-per-problem 1 --purity triton

Two products and their gate, the projections of an attention, an embedding before a linear, and
packed weights: what the recipes dual-gemm-gated-mlp, horizontal-fusion, gemm-prologue-fusion and
split-fp16-matmul write in one kernel. Nothing is measured here.
"""

import argparse
from pathlib import Path

_SOURCE = '''"""{title}."""

import torch
import torch.nn as nn
import torch.nn.functional as F

M, K, N, G = {sizes}


class Model(nn.Module):
    def __init__(self, k, n, g):
        super().__init__()
        self.n, self.g = n, g
        {setup}

    def forward(self, x):
        {body}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return [K, N, G]
'''
_UNPACKED = (
    "w = (self.q[:, :, None] >> torch.arange(0, 32, 4, dtype=torch.int32, device=x.device)) & 15\n"
    "        w = w.view(self.n, -1, self.g).to(x.dtype) - self.z[:, :, None]\n"
    "        return F.linear(x, (w * self.s[:, :, None]).view(self.n, -1))"
)
_PACKED = (
    "self.register_buffer('q', torch.randint(-(2**31), 2**31, (n, k // 8)).int())\n"
    "        self.register_buffer('z', torch.randint(0, 16, (n, k // g)){half})\n"
    "        self.register_buffer('s', (0.01 + torch.rand(n, k // g)){half})"
)
_HEADS = "self.q, self.key, self.v = nn.Linear(k, n){0}, nn.Linear(k, g){0}, nn.Linear(k, g){0}"
_GATED = "self.gate, self.up = nn.Linear(k, n, False){0}, nn.Linear(k, n, False){0}"
_TABLE = "self.e, self.l = nn.Embedding(g, k){0}, nn.Linear(k, n){0}"
_ROWS, _HALF = "torch.randn(M, K)", "torch.randn(M, K).half()"
_SWIGLU = "return F.silu(self.gate(x)) * self.up(x)"
_PROJECTED = "return self.q(x), self.key(x), self.v(x)"

#: name: (M, K, N, G; constructor; forward; inputs).
PROBLEMS = {
    "swiglu_fp32": ("4096, 1024, 4096, 4", _GATED.format(""), _SWIGLU, _ROWS),
    "swiglu_half": ("8192, 4096, 11008, 4", _GATED.format(".half()"), _SWIGLU, _HALF),
    "swiglu_half_few_rows": ("64, 4096, 11008, 4", _GATED.format(".half()"), _SWIGLU, _HALF),
    "glu_fp32": (
        "8192, 512, 2048, 4",
        "self.both = nn.Linear(k, 2 * n)",
        "return F.glu(self.both(x))",
        _ROWS,
    ),
    "geglu_half": (
        "8192, 1024, 4096, 4",
        "self.both = nn.Linear(k, 2 * n).half()",
        "u, v = self.both(x).chunk(2, -1)\n        return F.gelu(u) * v",
        _HALF,
    ),
    "projections_fp32": ("4096, 1024, 1024, 256", _HEADS.format(""), _PROJECTED, _ROWS),
    "projections_half": ("512, 4096, 4096, 1024", _HEADS.format(".half()"), _PROJECTED, _HALF),
    "embedding_fp32": (
        "16384, 256, 256, 32000",
        _TABLE.format(""),
        "return torch.relu(self.l(self.e(x)))",
        "torch.randint(0, G, (M,))",
    ),
    "embedding_half": (
        "16384, 1024, 1024, 32000",
        _TABLE.format(".half()"),
        "return torch.relu(self.l(self.e(x)))",
        "torch.randint(0, G, (M,))",
    ),
    "int4_one_row_half": ("1, 4096, 4096, 128", _PACKED.format(half=".half()"), _UNPACKED, _HALF),
    "int4_half": ("64, 4096, 11008, 128", _PACKED.format(half=".half()"), _UNPACKED, _HALF),
    "int4_fp32": ("16, 4096, 4096, 128", _PACKED.format(half=".float()"), _UNPACKED, _ROWS),
}


def write_problem(name: str) -> str:
    """The text of a problem's file."""
    sizes, setup, body, inputs = PROBLEMS[name]
    title = name.replace("_", " ").capitalize()
    return _SOURCE.format(title=title, sizes=sizes, setup=setup, body=body, inputs=inputs)


def main() -> None:
    """Write all problems into a directory."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("place", type=Path)
    place = parser.parse_args().place
    place.mkdir(parents=True, exist_ok=True)
    for name in PROBLEMS:
        (place / f"{name}.py").write_text(write_problem(name), encoding="utf-8")
        print(place / f"{name}.py")


if __name__ == "__main__":
    main()
