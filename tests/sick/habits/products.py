"""Habits of products and attention."""

from collections.abc import Iterator

from sick.case import Body
from sick.habits.habit import Habit
from sick.tiles import ATTEND, MATMUL


def product_habits() -> Iterator[Habit]:
    """The cases of this module."""
    tiles = "64, 64, 32, num_warps=4"
    yield Habit(
        "a launch for each product of one input",
        "queries, keys and values",
        "matmul",
        ("horizontal-fusion",),
        Body(
            MATMUL,
            "return torch.cat([torch.matmul(a, q), torch.matmul(a, k), torch.matmul(a, v)], 1)",
            f"""
            parts = [multiplied(a, w, {tiles}) for w in (q, k, v)]
            return torch.cat(parts, 1)
            """,
            "torch.randn(8192, 1024), torch.randn(1024, 1024), torch.randn(1024, 256),"
            " torch.randn(1024, 256)",
            "a, q, k, v",
        ),
    )
    norm = """
    @triton.jit
    def norm(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        place = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + place)
        tl.store(out_ptr + place, v * tl.rsqrt(tl.sum(v * v, 0) / columns + 1e-6))

    """.replace("\n    ", "\n")
    yield Habit(
        "a norm in a launch before the product",
        "rms_norm, matmul",
        "matmul",
        ("gemm-prologue-fusion",),
        Body(
            MATMUL + norm,
            "return torch.matmul(torch.nn.functional.rms_norm(a, (a.shape[1],), eps=1e-6), b)",
            f"""
            y = torch.empty_like(a)
            norm[(a.shape[0],)](a, y, a.shape[1], BLOCK=1024)
            return multiplied(y, b, {tiles})
            """,
            "torch.randn(32768, 1024), torch.randn(1024, 256)",
            "a, b",
        ),
    )
    tiny = """
    @triton.jit
    def sick(a_ptr, b_ptr, out_ptr):
        lanes = tl.arange(0, 16)
        begin = tl.program_id(0).to(tl.int64) * 256
        place = begin + lanes[:, None] * 16 + lanes
        product = tl.dot(tl.load(a_ptr + place), tl.load(b_ptr + place), input_precision="ieee")
        tl.store(out_ptr + place, product)
    """
    yield Habit(
        "a program for each tiny product",
        "batched matmul of 16",
        "batched_matmul",
        ("batch-small-matmuls", "persistent-programs", "more-work-per-thread"),
        Body(
            tiny,
            "return torch.matmul(a, b)",
            """
            out = torch.empty_like(a)
            sick[(a.shape[0],)](a, b, out, num_warps=4)
            return out
            """,
            "torch.randn(1 << 18, 16, 16), torch.randn(1 << 18, 16, 16)",
            "a, b",
        ),
    )
    hot = """
    @triton.jit
    def mark(index_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        held = lanes == tl.load(index_ptr + tl.program_id(0))
        tl.store(out_ptr + tl.program_id(0).to(tl.int64) * columns + lanes, held.to(tl.float32))

    """.replace("\n    ", "\n")
    yield Habit(
        "a product with rows of one in place of a look-up",
        "one-hot embedding",
        "embedding",
        ("gather-whole-rows",),
        Body(
            MATMUL + hot,
            "return torch.nn.functional.embedding(index, table)",
            f"""
            ones = table.new_empty(index.shape[0], table.shape[0])
            mark[(index.shape[0], table.shape[0] // 1024)](index, ones, table.shape[0], BLOCK=1024)
            return multiplied(ones, table, {tiles})
            """,
            "torch.randint(0, 8192, (8192,)), torch.randn(8192, 512)",
            "index, table",
        ),
    )
    attention = "return torch.nn.functional.scaled_dot_product_attention(q, k, v)"
    heads = "torch.randn(4, 32, 4096, 64).half()"
    for kind, right, tile in (
        ("small tiles", ("wgmma-tile-shapes", "tune-warps-and-stages"), "TQ=16, TK=16"),
        (
            "a tile that registers do not hold",
            ("no-giant-tiles", "cut-live-ranges", "tune-warps-and-stages"),
            "TQ=256, TK=128, num_warps=4",
        ),
    ):
        yield Habit(
            kind,
            "half attention",
            "attention",
            right,
            Body(
                ATTEND.replace("MASKED", "scores"),
                attention,
                f"""
                out = torch.empty_like(q)
                heads, length = q.shape[0] * q.shape[1], q.shape[2]
                sick[(length // 256, heads)](q, k, v, out, length, 1, {tile})
                return out
                """.replace("// 256", f"// {tile[3:].split(',')[0]}"),
                f"{heads}, {heads}, {heads}",
                "q, k, v",
            ),
        )
    even = """
    @triton.jit
    def sick(a_ptr, b_ptr, out_ptr, M, N, K, T: tl.constexpr, TK: tl.constexpr):
        rows = tl.program_id(1) * T + tl.arange(0, T)[:, None]
        columns = tl.program_id(0) * T + tl.arange(0, T)[None, :]
        acc = tl.zeros((T, T), tl.float32)
        for k in range(0, K, TK):
            down, along = k + tl.arange(0, TK)[:, None], k + tl.arange(0, TK)[None, :]
            a = tl.load(a_ptr + rows * K + along, mask=(rows < M) & (along < K), other=0.0)
            b = tl.load(b_ptr + down * N + columns, mask=(down < K) & (columns < N), other=0.0)
            acc = tl.dot(a, b, acc)
        held = (rows < M) & (columns < N)
        tl.store(out_ptr + rows * N + columns, acc.to(tl.float16), mask=held)
    """
    yield Habit(
        "bounds of even tiles asked in each step",
        "half matmul",
        "matmul",
        ("drop-masks-when-even", "tma-descriptors"),
        Body(
            even,
            "return torch.matmul(a, b)",
            """
            M, N, K = a.shape[0], b.shape[1], a.shape[1]
            out = a.new_empty(M, N)
            sick[(N // 64, M // 64)](a, b, out, M, N, K, T=64, TK=32, num_warps=4)
            return out
            """,
            "torch.randn(4096, 4096).half(), torch.randn(4096, 4096).half()",
            "a, b",
        ),
    )
    layers = """
    @triton.jit
    def layer(x_ptr, w_ptr, out_ptr, width, BLOCK: tl.constexpr):
        lanes = tl.arange(0, BLOCK)
        row = tl.load(w_ptr + tl.program_id(0) * width + lanes)
        v = tl.sum(row * tl.load(x_ptr + lanes), 0)
        tl.store(out_ptr + tl.program_id(0), tl.maximum(v, 0.0))
    """
    yield Habit(
        "a small network of many short launches",
        "twelve layers of one row",
        "matvec",
        ("cuda-graph-replay", "dependent-launch-overlap", "cached-launch"),
        Body(
            layers,
            """
            for step in range(12):
                x = torch.relu(w @ x)
            return x
            """,
            """
            for step in range(12):
                y = torch.empty_like(x)
                layer[(w.shape[0],)](x, w, y, w.shape[1], BLOCK=512, num_warps=1)
                x = y
            return x
            """,
            "torch.randn(512), torch.randn(512, 512)",
            "x, w",
        ),
    )
