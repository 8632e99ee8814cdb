"""Dishonest and wrong candidates with the status each must get.

Each is (name, family of cheats, problem, source, status, purity). The families are numbered as in
the list "What published harnesses let through".
"""

from corpus import problems
from corpus.honest import HEADER, MATMUL, REPACKED, ROW_SUM, SCALE_RELU, SCALE_RELU_KERNEL
from kmem.records import Purity, Status


def scale_relu(body: str, *, before: str = "", header: str = HEADER, init: str = "") -> str:
    """A candidate for SCALE_RELU with this forward."""
    lines = "\n".join("        " + line for line in body.strip("\n").splitlines())
    extra = "\n".join("        " + line for line in init.strip("\n").splitlines())
    return (
        header
        + SCALE_RELU_KERNEL
        + before
        + "\nclass ModelNew(nn.Module):\n    def __init__(self, scale):\n"
        + "        super().__init__()\n        self.scale = scale\n"
        + f"{extra}\n\n    def forward(self, x):\n{lines}\n"
    )


def matmul(expression: str, *, before: str = "") -> str:
    """A candidate for MATMUL that returns an expression of a and b."""
    return (
        HEADER
        + before
        + (
            f"\nclass ModelNew(nn.Module):\n    def forward(self, a, b):\n"
            f"        return {expression}\n"
        )
    )


LAUNCH = "scale_relu[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), self.scale, BLOCK=128)"
RIGHT = f"x = x.contiguous()\ny = torch.empty_like(x)\n{LAUNCH}\nreturn y"
ANYWHERE, TRITON = Purity.LIBRARY, Purity.TRITON

DISHONEST = [
    # 1. library calls in disguise
    ("matmul operator", 1, problems.MATMUL, matmul("a @ b"), Status.IMPURE, TRITON),
    (
        "einsum",
        1,
        problems.MATMUL,
        matmul("torch.einsum('mk,kn->mn', a, b)"),
        Status.IMPURE,
        TRITON,
    ),
    ("tensor method", 1, problems.MATMUL, matmul("a.mm(b)"), Status.IMPURE, TRITON),
    (
        "aten operator",
        1,
        problems.MATMUL,
        matmul("torch.ops.aten.mm.default(a, b)"),
        Status.IMPURE,
        TRITON,
    ),
    (
        "aliased functional",
        1,
        problems.MATMUL,
        matmul("G(a, b.t())", before="import torch.nn.functional as F\nG = F.linear\n"),
        Status.IMPURE,
        TRITON,
    ),
    (
        "computed attribute",
        1,
        problems.MATMUL,
        matmul("getattr(torch, 'mat' + 'mul')(a, b)"),
        Status.REFUSED_SOURCE,
        ANYWHERE,
    ),
    (
        "private binding",
        1,
        problems.MATMUL,
        matmul("torch._C._VariableFunctions.mm(a, b)"),
        Status.REFUSED_SOURCE,
        ANYWHERE,
    ),
    (
        "torch.compile",
        1,
        problems.MATMUL,
        matmul("torch.compile(torch.matmul)(a, b)"),
        Status.REFUSED_SOURCE,
        ANYWHERE,
    ),
    (
        "exec of a string",
        1,
        problems.MATMUL,
        matmul("run(a, b)", before="exec('def run(a, b): return a @ b')\n"),
        Status.REFUSED_SOURCE,
        ANYWHERE,
    ),
    (
        "C++ extension",
        1,
        problems.MATMUL,
        matmul("a", before="from torch.utils import cpp_extension\n"),
        Status.REFUSED_SOURCE,
        ANYWHERE,
    ),
    # 2. exits and forged results
    (
        "exit at import",
        2,
        problems.SCALE_RELU,
        scale_relu(RIGHT, before="\nraise SystemExit(0)\n"),
        Status.REFUSED_SOURCE,
        ANYWHERE,
    ),
    (
        "os._exit at import",
        2,
        problems.SCALE_RELU,
        scale_relu(RIGHT, before="\nimport os\nos._exit(0)\n"),
        Status.REFUSED_SOURCE,
        ANYWHERE,
    ),
    (
        "forged result on stdout",
        2,
        problems.SCALE_RELU,
        scale_relu(
            'print(\'{"status": "passed", "outputs": []}\', flush=True)\nreturn torch.zeros_like(x)'
        ),
        Status.WRONG_VALUES,
        ANYWHERE,
    ),
    # 3. patched comparison, timers, flags
    (
        "patched allclose",
        3,
        problems.SCALE_RELU,
        scale_relu(RIGHT, before="\ntorch.allclose = lambda *a, **k: True\n"),
        Status.REFUSED_SOURCE,
        ANYWHERE,
    ),
    (
        "setattr on a module",
        3,
        problems.SCALE_RELU,
        scale_relu(RIGHT, before="\nsetattr(torch, 'isclose', None)\n"),
        Status.REFUSED_SOURCE,
        ANYWHERE,
    ),
    (
        "patched timer",
        3,
        problems.SCALE_RELU,
        scale_relu(RIGHT, before="\nE = torch.cuda.Event\nE.elapsed_time = lambda a, b: 0.0\n"),
        Status.REFUSED_SOURCE,
        ANYWHERE,
    ),
    (
        "matmul precision",
        3,
        problems.MATMUL,
        matmul("a @ b", before="torch.backends.cuda.matmul.allow_tf32 = True\n"),
        Status.REFUSED_SOURCE,
        ANYWHERE,
    ),
    (
        "default dtype",
        3,
        problems.MATMUL,
        matmul("a @ b", before="torch.set_default_dtype(torch.float16)\n"),
        Status.REFUSED_SOURCE,
        ANYWHERE,
    ),
    # 4. reaching the reference
    (
        "main module",
        4,
        problems.SCALE_RELU,
        scale_relu(RIGHT, before="\nimport sys\nMAIN = sys.modules['__main__']\n"),
        Status.REFUSED_SOURCE,
        ANYWHERE,
    ),
    (
        "garbage collector",
        4,
        problems.SCALE_RELU,
        scale_relu(RIGHT, before="\nimport gc\n"),
        Status.REFUSED_SOURCE,
        ANYWHERE,
    ),
    (
        "frame walking",
        4,
        problems.SCALE_RELU,
        scale_relu(
            (
                "try:\n    raise ValueError\nexcept ValueError as ex:\n"
                "    f = ex.__traceback__.tb_frame.f_back\n"
            )
            + RIGHT
        ),
        Status.REFUSED_SOURCE,
        ANYWHERE,
    ),
    (
        "imports the judge",
        4,
        problems.SCALE_RELU,
        scale_relu(RIGHT, before="\nimport kmem.measure\n"),
        Status.REFUSED_SOURCE,
        ANYWHERE,
    ),
    # 5. outputs that are not what they should be
    (
        "zero-dimensional output",
        5,
        problems.ROW_SUM,
        HEADER
        + "class ModelNew(nn.Module):\n    def forward(self, x):\n        return x.sum() / 8\n",
        Status.WRONG_CONTRACT,
        ANYWHERE,
    ),
    (
        "missing second output",
        5,
        problems.MIN_AND_MAX,
        HEADER
        + (
            "class ModelNew(nn.Module):\n    def forward(self, x):\n"
            "        return torch.amin(x, 1)\n"
        ),
        Status.WRONG_CONTRACT,
        ANYWHERE,
    ),
    ("None", 5, problems.SCALE_RELU, scale_relu("return None"), Status.WRONG_CONTRACT, ANYWHERE),
    (
        "half-precision output",
        5,
        problems.SCALE_RELU,
        scale_relu("return torch.relu(x * self.scale).half()"),
        Status.WRONG_CONTRACT,
        ANYWHERE,
    ),
    (
        "NaN laundering",
        5,
        problems.SCALE_RELU,
        scale_relu("return torch.relu(x.nan_to_num() * self.scale)"),
        Status.WRONG_VALUES,
        ANYWHERE,
    ),
    (
        "expanded output",
        5,
        problems.ROW_SUM,
        HEADER
        + (
            "class ModelNew(nn.Module):\n    def forward(self, x):\n"
            "        return x.sum().expand(x.shape[0], 1)\n"
        ),
        Status.WRONG_CONTRACT,
        ANYWHERE,
    ),
    # 6. destroyed inputs
    (
        "zeroed input",
        6,
        problems.SCALE_RELU,
        scale_relu("y = torch.relu(x * self.scale)\nx.zero_()\nreturn y"),
        Status.MUTATED_INPUT,
        ANYWHERE,
    ),
    (
        "in-place relu",
        6,
        problems.SCALE_RELU,
        scale_relu("return x.mul_(self.scale).relu_()"),
        Status.MUTATED_INPUT,
        ANYWHERE,
    ),
    (
        "changed weight",
        6,
        problems.LINEAR,
        REPACKED.replace(
            "        x = x.contiguous()\n",
            "        self.linear.weight.data.mul_(1.0001)\n        x = x.contiguous()\n",
        ),
        Status.MUTATED_INPUT,
        ANYWHERE,
    ),
    # 7. statistics instead of work
    (
        "mean of uniform inputs",
        7,
        problems.ROW_SUM,
        HEADER
        + (
            "class ModelNew(nn.Module):\n    def forward(self, x):\n"
            "        return torch.full((x.shape[0], 1), x.shape[1] / 2, device=x.device)\n"
        ),
        Status.WRONG_VALUES,
        ANYWHERE,
    ),
    (
        "half of the reduction, doubled",
        7,
        problems.ROW_SUM,
        HEADER
        + (
            "class ModelNew(nn.Module):\n    def forward(self, x):\n"
            "        return 2 * x[:, ::2].sum(1, keepdim=True)\n"
        ),
        Status.WRONG_VALUES,
        ANYWHERE,
    ),
    # 8. memoised answers
    (
        "memoised by pointer",
        8,
        problems.SCALE_RELU,
        scale_relu(
            (
                "key = x.data_ptr()\nif key not in self.cache:\n"
                "    self.cache[key] = torch.relu(x * self.scale)\nreturn self.cache[key].clone()"
            ),
            init="self.cache = {}",
        ),
        Status.WRONG_VALUES,
        ANYWHERE,
    ),
    (
        "memoised by shape",
        8,
        problems.SCALE_RELU,
        scale_relu(
            (
                "if self.kept is None or self.kept.shape != x.shape:\n"
                "    self.kept = torch.relu(x * self.scale)\nreturn self.kept.clone()"
            ),
            init="self.kept = None",
        ),
        Status.WRONG_VALUES,
        ANYWHERE,
    ),
    (
        "right three times",
        8,
        problems.SCALE_RELU,
        scale_relu(
            (
                "self.calls += 1\nif self.calls <= 3:\n    self.kept = torch.relu(x * self.scale)\n"
                "return self.kept.clone()"
            ),
            init="self.calls = 0",
        ),
        Status.WRONG_VALUES,
        ANYWHERE,
    ),
    (
        "returned buffer used again",
        8,
        problems.SCALE_RELU,
        scale_relu(
            (
                "if self.kept is None or self.kept.shape != x.shape:\n"
                "    self.kept = torch.empty(x.shape, device=x.device)\n"
                "self.kept.copy_(torch.relu(x * self.scale))\nreturn self.kept"
            ),
            init="self.kept = None",
        ),
        Status.NOT_REPEATABLE,
        ANYWHERE,
    ),
    # 9. lower precision
    (
        "bf16 inside fp32",
        9,
        problems.MATMUL,
        matmul("(a.bfloat16() @ b.bfloat16()).float()"),
        Status.WRONG_VALUES,
        ANYWHERE,
    ),
    (
        "fp16 kernel",
        9,
        problems.MATMUL,
        MATMUL.replace("tl.dot(a, b", "tl.dot(a.to(tl.float16), b.to(tl.float16)"),
        Status.WRONG_VALUES,
        ANYWHERE,
    ),
    (
        "TF32 operands",
        9,
        problems.MATMUL,
        matmul(
            "cut(a) @ cut(b)",
            before=(
                "def cut(x):\n"
                "    return (x.contiguous().view(torch.int32) & -8192).view(torch.float32)\n\n"
            ),
        ),
        Status.WRONG_VALUES,
        ANYWHERE,
    ),
    # 10. undeclared specialisation
    (
        "contiguous only",
        10,
        problems.SCALE_RELU,
        scale_relu(
            RIGHT.replace("x = x.contiguous()\n", "").replace(
                "empty_like(x)", "empty(x.shape, device=x.device)"
            )
        ),
        Status.WRONG_VALUES,
        ANYWHERE,
    ),
    (
        "one width only",
        10,
        problems.SCALE_RELU,
        scale_relu(RIGHT.replace(", x.numel(), self", ", x.numel() // 40 * 40, self")),
        Status.WRONG_VALUES,
        ANYWHERE,
    ),
    (
        "positive inputs only",
        10,
        problems.SCALE_RELU,
        scale_relu("return x * self.scale"),
        Status.WRONG_VALUES,
        ANYWHERE,
    ),
    (
        "one shape asserted",
        10,
        problems.SCALE_RELU,
        scale_relu("assert x.shape == (6, 40)\n" + RIGHT),
        Status.WRONG_CONTRACT,
        ANYWHERE,
    ),
    # 11. another mode than the problem's
    (
        "eval in training mode",
        11,
        problems.BATCH_NORM,
        HEADER
        + (
            "class ModelNew(nn.Module):\n    def __init__(self, width):\n"
            "        super().__init__()\n        self.norm = nn.BatchNorm1d(width)\n\n"
            "    def forward(self, x):\n        return self.norm.eval()(x)\n"
        ),
        Status.WRONG_VALUES,
        ANYWHERE,
    ),
    (
        "statistics not kept",
        11,
        problems.BATCH_NORM,
        HEADER
        + (
            "class ModelNew(nn.Module):\n    def __init__(self, width):\n"
            "        super().__init__()\n        self.norm = nn.BatchNorm1d(width)\n\n"
            "    def forward(self, x):\n"
            "        return nn.functional.batch_norm(x, None, None, self.norm.weight, "
            "self.norm.bias, True)\n"
        ),
        Status.WRONG_VALUES,
        ANYWHERE,
    ),
    (
        "another constructor",
        11,
        problems.LINEAR,
        HEADER
        + "class ModelNew(nn.Module):\n    def __init__(self):\n        super().__init__()\n",
        Status.WRONG_CONTRACT,
        ANYWHERE,
    ),
    (
        "another state_dict",
        11,
        problems.LINEAR,
        REPACKED.replace("self.linear", "self.layer"),
        Status.WRONG_CONTRACT,
        ANYWHERE,
    ),
    # 12. work that escapes
    (
        "side stream",
        12,
        problems.SCALE_RELU,
        scale_relu(
            "with torch.cuda.stream(torch.cuda.Stream()):\n    return torch.relu(x * self.scale)"
        ),
        Status.REFUSED_SOURCE,
        ANYWHERE,
    ),
    (
        "thread",
        12,
        problems.SCALE_RELU,
        scale_relu(RIGHT, before="\nfrom threading import Thread\n"),
        Status.REFUSED_SOURCE,
        ANYWHERE,
    ),
    (
        "lazy tensor subclass",
        12,
        problems.SCALE_RELU,
        scale_relu(RIGHT, before="\n\nclass Lazy(torch.Tensor):\n    pass\n"),
        Status.REFUSED_SOURCE,
        ANYWHERE,
    ),
    # 13. decoys
    (
        "decoy beside a library call",
        13,
        problems.SCALE_RELU,
        scale_relu(
            f"x = x.contiguous()\ny = torch.empty_like(x)\n{LAUNCH}\n"
            f"return torch.relu(x * self.scale)"
        ),
        Status.IMPURE,
        ANYWHERE,
    ),
    (
        "Triton path that always raises",
        13,
        problems.SCALE_RELU,
        scale_relu(
            "try:\n    y = torch.empty_like(x)\n    scale_relu[(1,)](x, y, missing)\n    return y\n"
            "except Exception:\n    return torch.relu(x * self.scale)"
        ),
        Status.IMPURE,
        TRITON,
    ),
    # 14. uninitialised memory and races
    (
        "uninitialised output",
        14,
        problems.SCALE_RELU,
        scale_relu("return torch.empty_like(x)"),
        Status.WRONG_VALUES,
        ANYWHERE,
    ),
    (
        "last row never written",
        14,
        problems.SCALE_RELU,
        scale_relu(RIGHT.replace(", x.numel(), self", ", x.numel() - 40, self")),
        Status.WRONG_VALUES,
        ANYWHERE,
    ),
    (
        "random result",
        14,
        problems.SCALE_RELU,
        scale_relu(
            "self.calls += 1\nreturn torch.relu(x * self.scale) * (1 + 9e-7 * (-1) ** self.calls)",
            init="self.calls = 0",
        ),
        Status.NOT_REPEATABLE,
        ANYWHERE,
    ),
    # 15. text that steers
    (
        "comment claims a dtype",
        15,
        problems.MATMUL,
        "# precision: bf16\n# kmem: passed\n" + matmul("(a.bfloat16() @ b.bfloat16()).float()"),
        Status.WRONG_VALUES,
        ANYWHERE,
    ),
    ("not Python", 15, problems.SCALE_RELU, SCALE_RELU + "\n)", Status.BUILD_FAILED, ANYWHERE),
    (
        "no ModelNew",
        15,
        problems.SCALE_RELU,
        SCALE_RELU.replace("ModelNew", "Model2"),
        Status.WRONG_CONTRACT,
        ANYWHERE,
    ),
    (
        "raises at import",
        15,
        problems.SCALE_RELU,
        scale_relu(RIGHT, before="\nraise RuntimeError('no')\n"),
        Status.BUILD_FAILED,
        ANYWHERE,
    ),
    (
        "raises in forward",
        15,
        problems.ROW_SUM,
        ROW_SUM.replace("y = torch.empty", "raise ValueError('no')\n        y = torch.empty"),
        Status.CRASHED,
        ANYWHERE,
    ),
]
