"""Sick formulas: what algebra would spare, precision not used, tiles and waves ill chosen."""

from collections.abc import Iterator
from textwrap import dedent

from sick.case import Body, SickKernel, make_case
from sick.parts import RUN_ROWS, RUN_STEP, row_step, step
from sick.tiles import ATTEND, MATMUL

_HALF_PRODUCT = "torch.randn(ROWS, DEPTH).half(), torch.randn(DEPTH, COLUMNS).half()"


def formula_cases() -> Iterator[SickKernel]:
    """The cases of this module."""
    yield from _spared()
    yield from _behind()
    yield from _precision()
    yield from _waves()
    yield from _windows()


def _spared() -> Iterator[SickKernel]:
    yield make_case(
        "a diagonal matrix written out and multiplied",
        "scale of rows",
        "matmul",
        ("diagonal-row-scaling",),
        Body(
            MATMUL,
            "return torch.diag(d) @ b",
            "return multiplied(torch.diag(d), b, 64, 64, 32, num_warps=4)",
            "torch.randn(4096), torch.randn(4096, 4096)",
            "d, b",
        ),
    )
    rows = row_step("total", "0.0", "acc + v", "tl.sum(acc, 0)")
    yield make_case(
        "results kept for their sum alone",
        "linear, sum of outputs",
        "matmul",
        ("collapse-linear-then-sum",),
        Body(
            MATMUL + rows + RUN_ROWS,
            "return torch.matmul(a, b).sum(1)",
            "return joined(total, multiplied(a, b, 64, 64, 32, num_warps=4))",
            "torch.randn(8192, 2048), torch.randn(2048, 8192)",
            "a, b",
        ),
    )
    averaged = dedent("""
    @triton.jit
    def averaged(x_ptr, out_ptr, tokens, width, BLOCK: tl.constexpr):
        lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        begin = tl.program_id(1).to(tl.int64) * tokens * width
        acc = tl.zeros((BLOCK,), tl.float32)
        for token in range(tokens):
            acc += tl.load(x_ptr + begin + token * width + lanes)
        tl.store(out_ptr + tl.program_id(1) * width + lanes, acc / tokens)
    """)
    yield make_case(
        "every position mapped before their mean",
        "linear, mean of tokens",
        "matmul",
        ("average-before-linear",),
        Body(
            MATMUL + averaged,
            "return torch.matmul(x, w).mean(1)",
            """
            y = multiplied(x.view(-1, x.shape[2]), w, 64, 64, 32, num_warps=4)
            out = x.new_empty(x.shape[0], w.shape[1])
            grid = (w.shape[1] // 256, x.shape[0])
            averaged[grid](y, out, x.shape[1], w.shape[1], BLOCK=256)
            return out
            """,
            "torch.randn(64, 512, 1024), torch.randn(1024, 1024)",
            "x, w",
        ),
    )
    yield make_case(
        "factors of a weight multiplied in each forward",
        "low rank linear",
        "matmul",
        ("reassociate-matmul-chain", "repack-weights-once"),
        Body(
            MATMUL,
            "return x @ (self.down @ self.up)",
            """
            weight = multiplied(self.down, self.up, 64, 64, 32, num_warps=4)
            return multiplied(x, weight, 64, 64, 32, num_warps=4)
            """,
            "torch.randn(4096, 4096)",
            "x",
            """
            self.down = torch.nn.Parameter(torch.randn(4096, 64))
            self.up = torch.nn.Parameter(torch.randn(64, 4096))
            """,
        ),
    )
    yield make_case(
        "steps whose result is known",
        "times one, plus zero, relu",
        "pointwise",
        ("remove-dead-work", "fuse-pointwise-chain"),
        Body(
            step("times", "v * 1.0")
            + step("plus", "v + 0.0")
            + step("cut", "tl.maximum(v, 0.0)")
            + RUN_STEP,
            "return torch.relu(x * 1.0 + 0.0)",
            "return stepped(cut, stepped(plus, stepped(times, x)))",
            "torch.randn(8192, 8192)",
        ),
    )


def _behind() -> Iterator[SickKernel]:
    yield make_case(
        "a residual added behind the product",
        "half linear and its input",
        "matmul",
        ("gemm-epilogue-fusion",),
        Body(
            MATMUL + step("added", "v + u", "vu") + RUN_STEP,
            "return x + torch.matmul(x, w)",
            "return stepped(added, x, multiplied(x, w, 128, 128, 64, num_warps=8))",
            "torch.randn(16384, 1024).half(), torch.randn(1024, 1024).half()",
            "x, w",
        ),
    )
    affine = dedent("""
    @triton.jit
    def affine(x_ptr, scale_ptr, shift_ptr, out_ptr, width, BLOCK: tl.constexpr):
        lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        place = tl.program_id(1).to(tl.int64) * width + lanes
        v = tl.load(x_ptr + place)
        tl.store(out_ptr + place, v * tl.load(scale_ptr + lanes) + tl.load(shift_ptr + lanes))
    """)
    yield make_case(
        "an affine step behind a layer",
        "linear, scale and shift",
        "matmul",
        ("fold-affine-into-weights", "gemm-epilogue-fusion"),
        Body(
            MATMUL + affine,
            "return torch.nn.functional.linear(x, self.weight) * self.scale + self.shift",
            """
            y = multiplied(x, self.weight.t().contiguous(), 64, 64, 32, num_warps=4)
            out = torch.empty_like(y)
            grid = (y.shape[1] // 256, y.shape[0])
            affine[grid](y, self.scale, self.shift, out, y.shape[1], BLOCK=256)
            return out
            """,
            "torch.randn(16384, 512)",
            "x",
            """
            self.weight = torch.nn.Parameter(torch.randn(1024, 512))
            self.scale = torch.nn.Parameter(torch.randn(1024))
            self.shift = torch.nn.Parameter(torch.randn(1024))
            """,
        ),
    )
    wide = dedent("""
    @triton.jit
    def pixels(x_ptr, w_ptr, out_ptr, ins, outs, size, TO: tl.constexpr, TP: tl.constexpr):
        o = tl.program_id(1) * TO + tl.arange(0, TO)
        pixel = tl.program_id(0) * TP + tl.arange(0, TP)
        image = tl.program_id(2).to(tl.int64)
        acc = tl.zeros((TO, TP), tl.float32)
        for c in range(0, ins, 32):
            cs = c + tl.arange(0, 32)
            w = tl.load(w_ptr + o[:, None] * ins + cs)
            x = tl.load(x_ptr + image * ins * size + cs[:, None] * size + pixel)
            acc = tl.dot(w, x, acc)
        tl.store(out_ptr + image * outs * size + o[:, None] * size + pixel, acc)

    def pointed(x, w):
        out = x.new_empty(x.shape[0], w.shape[0], *x.shape[2:])
        size = x.shape[2] * x.shape[3]
        grid = (size // 128, w.shape[0] // 64, x.shape[0])
        pixels[grid](x, w, out, x.shape[1], w.shape[0], size, TO=64, TP=128)
        return out
    """)
    convolved = "torch.nn.functional.conv2d(x, w[:, :, None, None])"
    yield make_case(
        "a residual added behind the product",
        "pointwise_conv and its input",
        "convolution",
        ("gemm-epilogue-fusion",),
        Body(
            wide + step("added", "v + u", "vu") + RUN_STEP,
            f"return x + {convolved}",
            "return stepped(added, x, pointed(x, w))",
            "torch.randn(32, 128, 64, 64), torch.randn(128, 128)",
            "x, w",
        ),
    )
    yield make_case(
        "every position mapped before their mean",
        "pointwise_conv, global average",
        "convolution",
        ("average-before-linear",),
        Body(
            wide + row_step("mean", "0.0", "acc + v", "tl.sum(acc, 0) / columns") + RUN_ROWS,
            f"return {convolved}.mean((2, 3))",
            """
            y = pointed(x, w)
            return joined(mean, y.view(-1, x.shape[2] * x.shape[3])).view(y.shape[:2])
            """,
            "torch.randn(32, 128, 64, 64), torch.randn(256, 128)",
            "x, w",
        ),
    )


def _precision() -> Iterator[SickKernel]:
    exact = MATMUL.replace("tl.dot(a, b, acc)", 'tl.dot(a, b, acc, input_precision="ieee")')
    yield make_case(
        "a product of floats off the tensor cores",
        "matmul of 4096",
        "matmul",
        ("split-fp16-matmul", "tile-matmul", "register-tiling"),
        Body(
            exact,
            "return torch.matmul(a, b)",
            "return multiplied(a, b, 64, 64, 16, num_warps=4)",
            "torch.randn(4096, 4096), torch.randn(4096, 4096)",
            "a, b",
        ),
    )
    wide = exact.replace("tl.dot(a, b,", "tl.dot(a.to(tl.float32), b.to(tl.float32),")
    yield make_case(
        "halves made wide before the product",
        "half matmul",
        "matmul",
        ("bf16-tensor-core-matmul", "tile-matmul", "wgmma-tile-shapes"),
        Body(
            wide,
            "return torch.matmul(a, b)",
            "return multiplied(a, b, 64, 64, 32, num_warps=4)",
            _HALF_PRODUCT,
            "a, b",
        ),
        ROWS=8192,
        DEPTH=2048,
        COLUMNS=4096,
    )
    yield make_case(
        "halves made wide before the product",
        "half attention",
        "attention",
        ("bf16-tensor-core-matmul", "flash-attention"),
        Body(
            ATTEND.replace("MASKED", "scores")
            .replace("tl.dot(q, k)", 'tl.dot(q, k.to(tl.float32), input_precision="ieee")')
            .replace("tl.load(q_ptr + place)", "tl.load(q_ptr + place).to(tl.float32)")
            .replace(
                "tl.dot(p.to(v.dtype), v, acc * factor[:, None])",
                'tl.dot(p, v.to(tl.float32), acc * factor[:, None], input_precision="ieee")',
            ),
            "return torch.nn.functional.scaled_dot_product_attention(q, k, v)",
            """
            out = torch.empty_like(q)
            heads, length = q.shape[0] * q.shape[1], k.shape[2]
            sick[(q.shape[2] // 32, heads)](q, k, v, out, length, 1, TQ=32, TK=32)
            return out
            """,
            ", ".join(["torch.randn(4, 16, 2048, 64, dtype=torch.float16)"] * 3),
            "q, k, v",
        ),
    )
    yield make_case(
        "half values made wide for arithmetic",
        "polynomial of half values",
        "pointwise",
        ("packed-half-math", "reduce-instruction-count"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, out_ptr, BLOCK: tl.constexpr):
                place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
                v = tl.load(x_ptr + place).to(tl.float32)
                acc = v
                for i in tl.static_range(64):
                    acc = acc * v + 0.01 * i
                tl.store(out_ptr + place, acc.to(tl.float16))
            """,
            """
            acc = x
            for i in range(64):
                acc = acc * x + 0.01 * i
            return acc
            """,
            """
            out = torch.empty_like(x)
            sick[(x.numel() // 1024,)](x, out, BLOCK=1024)
            return out
            """,
            "torch.randn(8192, 8192).half()",
        ),
    )


def _waves() -> Iterator[SickKernel]:
    yield make_case(
        "an almost empty last wave",
        "half product of 133 tiles",
        "matmul",
        ("stream-k-matmul", "persistent-programs", "fill-the-grid", "split-k-matmul"),
        Body(
            MATMUL,
            "return torch.matmul(a, b)",
            "return multiplied(a, b, 128, 256, 64, num_warps=8, num_stages=3)",
            _HALF_PRODUCT,
            "a, b",
        ),
        ROWS=2432,
        DEPTH=8192,
        COLUMNS=1792,
    )
    yield make_case(
        "tiles walked row by row",
        "half product of 16384",
        "matmul",
        ("group-tiles-for-l2",),
        Body(
            MATMUL,
            "return torch.matmul(a, b)",
            "return multiplied(a, b, 128, 256, 64, num_warps=8, num_stages=3)",
            _HALF_PRODUCT,
            "a, b",
        ),
        ROWS=16384,
        DEPTH=16384,
        COLUMNS=16384,
    )
    yield make_case(
        "a tile that registers do not hold",
        "float product",
        "matmul",
        ("no-giant-tiles", "cut-live-ranges", "tune-warps-and-stages"),
        Body(
            MATMUL,
            "return torch.matmul(a, b)",
            "return multiplied(a, b, 256, 256, 32, num_warps=4, num_stages=1)",
            "torch.randn(4096, 1024), torch.randn(1024, 4096)",
            "a, b",
        ),
    )


def _windows() -> Iterator[SickKernel]:
    taps = """
    @triton.jit
    def sick(x_ptr, w_ptr, out_ptr, width, BLOCK: tl.constexpr):
        lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        row, begin = tl.program_id(1), tl.program_id(2).to(tl.int64) * width * width
        acc = FIRST
        for i in range(TAPS):
            for j in range(TAPS):
                place = begin + (row + i) * width + lanes + j
                v = tl.load(x_ptr + place, mask=lanes + j < width, other=0.0)
                acc = JOINED
        across = width - TAPS + 1
        place = tl.program_id(2).to(tl.int64) * across * across + row * across + lanes
        tl.store(out_ptr + place, acc, mask=lanes < across)
    """
    run = """
    across = x.shape[3] - TAPS + 1
    out = x.new_empty(*x.shape[:2], across, across)
    grid = (triton.cdiv(across, 128), across, x.shape[0] * x.shape[1])
    sick[grid](x, KERNEL, out, x.shape[3], BLOCK=128)
    return out
    """
    yield make_case(
        "each window read by itself",
        "blur of 7 of one channel",
        "convolution",
        ("stencil-register-tiling", "hoist-shared-operand", "direct-conv-few-channels"),
        Body(
            taps,
            "return torch.nn.functional.conv2d(x, k)",
            run,
            "torch.randn(64, 1, 512, 512), torch.randn(1, 1, 7, 7)",
            "x, k",
        ),
        TAPS=7,
        KERNEL="k",
        FIRST="tl.zeros((BLOCK,), tl.float32)",
        JOINED="acc + v * tl.load(w_ptr + i * 7 + j)",
    )
    yield make_case(
        "each window read by itself",
        "max_pool of 7",
        "pooling",
        ("separable-pooling", "stencil-register-tiling"),
        Body(
            taps,
            "return torch.nn.functional.max_pool2d(x, 7, 1)",
            run,
            "torch.randn(16, 32, 256, 256)",
        ),
        TAPS=7,
        KERNEL="x",
        FIRST='tl.full((BLOCK,), float("-inf"), tl.float32)',
        JOINED="tl.maximum(acc, v)",
    )
