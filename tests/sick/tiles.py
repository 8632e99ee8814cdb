"""Sick tiles, orders and chains of matrix products, and attention beyond one head."""

from collections.abc import Iterator

from sick.case import Body, SickKernel, make_case

#: A product whose tiles, stages and warps a case chooses; B is K x N.
_PRODUCT = """
@triton.jit
def product(a_ptr, b_ptr, out_ptr, M, N, K, TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr):
    rows = tl.program_id(1).to(tl.int64) * TM + tl.arange(0, TM)
    columns = tl.program_id(0) * TN + tl.arange(0, TN)
    acc = tl.zeros((TM, TN), tl.float32)
    for k in range(0, K, TK):
        ks = k + tl.arange(0, TK)
        a = tl.load(a_ptr + rows[:, None] * K + ks[None, :], (rows < M)[:, None], 0.0)
        b = tl.load(b_ptr + ks[:, None] * N + columns[None, :])
        acc = tl.dot(a, b, acc)
    place = rows[:, None] * N + columns[None, :]
    tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), (rows < M)[:, None])

"""
_RUN = """
def multiplied(a, b, TM, TN, TK, **options):
    out = a.new_empty(a.shape[0], b.shape[1])
    grid = (b.shape[1] // TN, triton.cdiv(a.shape[0], TM))
    M, N, K = a.shape[0], b.shape[1], a.shape[1]
    product[grid](a, b, out, M, N, K, TM=TM, TN=TN, TK=TK, **options)
    return out
"""
MATMUL = _PRODUCT + _RUN
_HALVES = "torch.randn(ROWS, DEPTH).half(), torch.randn(DEPTH, COLUMNS).half()"
_ROW_SUM = """
@triton.jit
def joined(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    begin = tl.program_id(0).to(tl.int64) * columns
    acc = tl.full((BLOCK,), FIRST, tl.float32)
    for start in range(0, columns, BLOCK):
        v = tl.load(x_ptr + begin + start + tl.arange(0, BLOCK)).to(tl.float32)
        acc = JOINED
    tl.store(out_ptr + tl.program_id(0), END)

"""
ATTEND = """
@triton.jit
def sick(q_ptr, k_ptr, v_ptr, out_ptr, length, shared, TQ: tl.constexpr, TK: tl.constexpr):
    head, lanes = tl.program_id(1).to(tl.int64), tl.arange(0, 64)
    rows = tl.program_id(0) * TQ + tl.arange(0, TQ)
    place = head * length * 64 + rows[:, None] * 64 + lanes
    other = head // shared * length * 64
    q = tl.load(q_ptr + place)
    top = tl.full((TQ,), -1e30, tl.float32)
    total = tl.zeros((TQ,), tl.float32)
    acc = tl.zeros((TQ, 64), tl.float32)
    for start in range(0, length, TK):
        keys = start + tl.arange(0, TK)
        k = tl.load(k_ptr + other + keys[None, :] * 64 + lanes[:, None])
        scores = tl.dot(q, k) * 0.125
        scores = MASKED
        new = tl.maximum(top, tl.max(scores, 1))
        p = tl.exp(scores - new[:, None])
        factor = tl.exp(top - new)
        total = total * factor + tl.sum(p, 1)
        v = tl.load(v_ptr + other + keys[:, None] * 64 + lanes)
        acc = tl.dot(p.to(v.dtype), v, acc * factor[:, None])
        top = new
    tl.store(out_ptr + place, (acc / total[:, None]).to(out_ptr.dtype.element_ty))

"""


def tile_cases() -> Iterator[SickKernel]:
    """The cases of this module."""
    yield from _tiles()
    yield from _orders()
    yield from _around()
    yield from _attention()


def _tiles() -> Iterator[SickKernel]:
    product = "return torch.matmul(a, b)"
    for kind, name, right, sizes, launch in (
        (
            "small tiles",
            "half matmul",
            ("wgmma-tile-shapes", "register-tiling", "tile-matmul", "tune-warps-and-stages"),
            (4096, 4096, 4096),
            "16, 32, 32, num_warps=1",
        ),
        (
            "small tiles",
            "tall half matmul",
            ("wgmma-tile-shapes", "register-tiling", "tile-matmul", "tune-warps-and-stages"),
            (65536, 512, 512),
            "32, 32, 32, num_warps=2",
        ),
        (
            "tiles row by row",
            "large half matmul",
            ("group-tiles-for-l2", "tile-matmul"),
            (16384, 16384, 8192),
            "128, 128, 64, num_warps=8, num_stages=3",
        ),
        (
            "one stage",
            "half matmul",
            ("pipeline-loads-with-stages", "tile-matmul", "tune-warps-and-stages"),
            (8192, 4096, 4096),
            "128, 128, 64, num_warps=8, num_stages=1",
        ),
        (
            "a wave and a few programs more",
            "half matmul",
            ("stream-k-matmul", "fill-the-grid", "split-k-matmul", "persistent-programs"),
            (1536, 3072, 8192),
            "128, 256, 64, num_warps=8, num_stages=3",
        ),
        (
            "square tiles for few rows",
            "half product of 16 rows",
            ("small-m-matmul", "matvec-rows-per-program", "split-k-matmul"),
            (16, 8192, 8192),
            "128, 128, 64, num_warps=8, num_stages=2",
        ),
        (
            "square tiles for few rows",
            "half product of 4 rows",
            ("small-m-matmul", "matvec-rows-per-program", "split-k-matmul"),
            (4, 16384, 4096),
            "64, 128, 32, num_warps=4, num_stages=2",
        ),
        (
            "a tile that registers do not hold",
            "half matmul",
            ("no-giant-tiles", "cut-live-ranges", "tune-warps-and-stages"),
            (8192, 8192, 4096),
            "256, 256, 32, num_warps=4, num_stages=2",
        ),
    ):
        yield make_case(
            kind,
            name,
            "matmul",
            right,
            Body(MATMUL, product, f"return multiplied(a, b, {launch})", _HALVES, "a, b"),
            ROWS=sizes[0],
            COLUMNS=sizes[1],
            DEPTH=sizes[2],
        )
    short = """
    @triton.jit
    def sick(x_ptr, w_ptr, out_ptr, TM: tl.constexpr):
        rows = tl.program_id(0).to(tl.int64) * TM + tl.arange(0, TM)
        lanes = tl.arange(0, 128)
        x = tl.load(x_ptr + rows[:, None] * 128 + lanes)
        w = tl.load(w_ptr + lanes[:, None] * 128 + lanes)
        y = tl.dot(x, w)
        y = y / (1.0 + tl.exp(-y))
        tl.store(out_ptr + rows[:, None] * 128 + lanes, y.to(x.dtype))
    """
    yield make_case(
        "weights loaded by each of many short programs",
        "narrow linear, silu",
        "matmul",
        ("persistent-programs", "hoist-shared-operand"),
        Body(
            short,
            "return torch.nn.functional.silu(torch.matmul(a, b))",
            """
            out = torch.empty_like(a)
            sick[(a.shape[0] // 32,)](a, b, out, TM=32)
            return out
            """,
            _HALVES,
            "a, b",
        ),
        ROWS=1 << 20,
        COLUMNS=128,
        DEPTH=128,
    )
    atomics = """
    @triton.jit
    def sick(a_ptr, b_ptr, out_ptr, N, K, PART: tl.constexpr):
        rows = tl.program_id(1) * 64 + tl.arange(0, 64)
        columns = tl.program_id(0) * 64 + tl.arange(0, 64)
        acc = tl.zeros((64, 64), tl.float32)
        for k in range(0, PART, 32):
            ks = tl.program_id(2) * PART + k + tl.arange(0, 32)
            a = tl.load(a_ptr + rows[:, None] * K + ks)
            b = tl.load(b_ptr + ks[:, None] * N + columns)
            acc = tl.dot(a, b, acc, input_precision="tf32")
        tl.atomic_add(out_ptr + rows[:, None] * N + columns, acc)
    """
    yield make_case(
        "parts of a product added by atomics",
        "deep matmul",
        "matmul",
        ("no-float-atomics", "split-k-matmul"),
        Body(
            atomics,
            product,
            """
            out = a.new_zeros(a.shape[0], b.shape[1])
            grid = (b.shape[1] // 64, a.shape[0] // 64, a.shape[1] // 256)
            sick[grid](a, b, out, b.shape[1], a.shape[1], PART=256)
            return out
            """,
            "torch.randn(512, 65536), torch.randn(65536, 512)",
            "a, b",
        ),
    )


def _orders() -> Iterator[SickKernel]:
    tiles = "64, 64, 32, num_warps=4"
    reduced = f"""
    y = multiplied(a, b, {tiles})
    out = y.new_empty(y.shape[0])
    joined[(y.shape[0],)](y, out, y.shape[1], BLOCK=1024)
    return out
    """
    for kind, name, right, reference, forward, inputs, words in (
        (
            "a product of matrices before that with a vector",
            "(A B) x",
            ("reassociate-matmul-chain",),
            "return torch.matmul(torch.matmul(a, b), c)",
            f"return multiplied(multiplied(a, b, {tiles}), c, {tiles})",
            "torch.randn(4096, 4096), torch.randn(4096, 4096), torch.randn(4096, 64)",
            {},
        ),
        (
            "a product of matrices before that with a vector",
            "linear attention",
            ("reassociate-matmul-chain",),
            "return torch.matmul(torch.matmul(a, b.t()), c)",
            f"return multiplied(multiplied(a, b.t().contiguous(), {tiles}), c, {tiles})",
            "torch.randn(8192, 64), torch.randn(8192, 64), torch.randn(8192, 64)",
            {},
        ),
        (
            "a whole layer for the sum of its outputs",
            "linear, sum",
            ("collapse-linear-then-sum",),
            "return torch.matmul(a, b).sum(1)",
            reduced,
            "torch.randn(8192, 2048), torch.randn(2048, 4096)",
            {"FIRST": "0.0", "JOINED": "acc + v", "END": "tl.sum(acc, 0)"},
        ),
        (
            "results kept for the maximum of each row alone",
            "linear, max",
            ("reduce-after-gemm",),
            "return torch.matmul(a, b).amax(1)",
            reduced,
            "torch.randn(16384, 256), torch.randn(256, 32768)",
            {"FIRST": "-1e30", "JOINED": "tl.maximum(acc, v)", "END": "tl.max(acc, 0)"},
        ),
        (
            "results kept for the maximum of each row alone",
            "distances, logsumexp",
            ("reduce-after-gemm",),
            "return torch.matmul(a, b).exp().sum(1).log()",
            reduced,
            "torch.rand(16384, 64), torch.rand(64, 65536)",
            {"FIRST": "0.0", "JOINED": "acc + tl.exp(v)", "END": "tl.log(tl.sum(acc, 0))"},
        ),
        (
            "both halves of a symmetric product",
            "Gram matrix",
            ("skip-zero-tiles-matmul",),
            "return torch.matmul(a, a.t())",
            f"return multiplied(a, a.t().contiguous(), {tiles})",
            "torch.randn(8192, 1024)",
            {},
        ),
    ):
        kernels = MATMUL + (_ROW_SUM if words else "")
        arguments = ", ".join("abc"[: 1 + inputs.count("), ")])
        yield make_case(
            kind,
            name,
            "matmul",
            right,
            Body(kernels, reference, forward, inputs, arguments),
            **words,
        )
    yield make_case(
        "a layer for every position before their mean",
        "linear, mean over positions",
        "matmul",
        ("average-before-linear",),
        Body(
            MATMUL,
            "return torch.matmul(a, b).mean(1)",
            """
            rows = a.shape[0] * a.shape[1]
            y = multiplied(a.reshape(rows, -1), b, 64, 64, 32, num_warps=4)
            return y.view(a.shape[0], a.shape[1], -1).mean(1)
            """,
            "torch.randn(64, 1024, 768), torch.randn(768, 3072)",
            "a, b",
        ),
    )


def _around() -> Iterator[SickKernel]:
    dequantised = """
    @triton.jit
    def widen(x_ptr, scale_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + place).to(tl.float32) * tl.load(scale_ptr + place % columns)
        tl.store(out_ptr + place, v.to(tl.float16))

    """.replace("\n    ", "\n")
    yield make_case(
        "weights made wide in memory",
        "int8 linear of 64 rows",
        "matmul",
        ("gemm-prologue-fusion",),
        Body(
            MATMUL + dequantised,
            "return torch.matmul(a, (w.float() * scale).half())",
            """
            b = torch.empty(w.shape, dtype=torch.float16, device=w.device)
            widen[(w.numel() // 1024,)](w, scale, b, w.shape[1], BLOCK=1024)
            return multiplied(a, b, 64, 64, 64, num_warps=4)
            """,
            "torch.randn(64, 8192, dtype=torch.float16),"
            " torch.randint(-127, 127, (8192, 8192), dtype=torch.int8), torch.rand(8192)",
            "a, w, scale",
        ),
    )
    transposed = """
    @triton.jit
    def turn(x_ptr, out_ptr, rows, columns, BLOCK: tl.constexpr):
        row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + row[:, None] * columns + column)
        tl.store(out_ptr + column[:, None] * rows + row, tl.trans(v))

    """.replace("\n    ", "\n")
    yield make_case(
        "weights turned anew in each forward",
        "linear of few rows",
        "matmul",
        ("repack-weights-once", "avoid-hidden-copies"),
        Body(
            MATMUL + transposed,
            "return torch.nn.functional.linear(a, self.weight)",
            """
            w = self.weight
            b = w.new_empty(w.shape[1], w.shape[0])
            turn[(w.shape[0] // 64, w.shape[1] // 64)](w, b, w.shape[0], w.shape[1], BLOCK=64)
            return multiplied(a, b, 64, 64, 64, num_warps=4)
            """,
            "torch.randn(256, 8192)",
            "a",
            made="self.weight = torch.nn.Parameter(torch.randn(8192, 8192))",
        ),
    )
    towers = """
    parts = [
        multiplied(a, v, 64, 64, 32, num_warps=4),
        multiplied(b, w, 64, 64, 32, num_warps=4),
        multiplied(c, u, 64, 64, 32, num_warps=4),
    ]
    return torch.cat(parts, 1)
    """
    yield make_case(
        "branches one behind the other",
        "three small products",
        "matmul",
        ("overlap-kernels-on-streams", "horizontal-fusion", "batch-small-matmuls"),
        Body(
            MATMUL,
            "return torch.cat([torch.matmul(a, v), torch.matmul(b, w), torch.matmul(c, u)], 1)",
            towers,
            "torch.randn(256, 1024), torch.randn(256, 2048), torch.randn(256, 512),"
            " torch.randn(1024, 256), torch.randn(2048, 512), torch.randn(512, 128)",
            "a, b, c, v, w, u",
        ),
    )
    fused = """
    @triton.jit
    def sick(x_ptr, v_ptr, w_ptr, out_ptr, hidden, TM: tl.constexpr, WIDE: tl.constexpr):
        rows, lanes = tl.program_id(0) * TM + tl.arange(0, TM), tl.arange(0, WIDE)
        x = tl.load(x_ptr + rows[:, None] * WIDE + lanes)
        acc = tl.zeros((TM, WIDE), tl.float32)
        for start in range(0, hidden, 32):
            part = start + tl.arange(0, 32)
            v = tl.load(v_ptr + lanes[:, None] * hidden + part)
            y = tl.maximum(tl.dot(x, v), 0.0).to(x.dtype)
            acc = tl.dot(y, tl.load(w_ptr + part[:, None] * WIDE + lanes), acc)
        tl.store(out_ptr + rows[:, None] * WIDE + lanes, acc.to(x.dtype))
    """
    yield make_case(
        "a block joined into few programs",
        "perceptron of two layers",
        "matmul",
        ("no-fusion-that-starves-grid", "fill-the-grid"),
        Body(
            fused,
            "return torch.matmul(torch.relu(torch.matmul(a, b)), c)",
            """
            out = torch.empty_like(a)
            sick[(a.shape[0] // 64,)](a, b, c, out, b.shape[1], TM=64, WIDE=256, num_warps=8)
            return out
            """,
            "torch.randn(512, 256, dtype=torch.float16),"
            " torch.randn(256, 8192, dtype=torch.float16),"
            " torch.randn(8192, 256, dtype=torch.float16)",
            "a, b, c",
        ),
    )
    cell = """
    @triton.jit
    def cell(x_ptr, h_ptr, out_ptr, stride, BLOCK: tl.constexpr):
        lane = tl.arange(0, BLOCK)
        row = tl.program_id(0)
        v = tl.load(x_ptr + row * BLOCK + lane) + tl.load(h_ptr + row * BLOCK + lane)
        tl.store(out_ptr + row * stride + lane, 2.0 / (1.0 + tl.exp(-2.0 * v)) - 1.0)

    """.replace("\n    ", "\n")
    yield make_case(
        "both products in each step",
        "tanh recurrence",
        "recurrent",
        ("hoist-recurrent-input-gemm", "persistent-recurrent-weights", "cuda-graph-replay"),
        Body(
            MATMUL + cell,
            """
            h, out = x.new_zeros(x.shape[0], w.shape[1]), []
            for t in range(x.shape[1]):
                h = torch.tanh(torch.matmul(x[:, t], w) + torch.matmul(h, u))
                out.append(h)
            return torch.stack(out, 1)
            """,
            """
            h, wide = x.new_zeros(x.shape[0], w.shape[1]), w.shape[1]
            out = x.new_empty(x.shape[0], x.shape[1], wide)
            for t in range(x.shape[1]):
                first = multiplied(x[:, t].contiguous(), w, 64, 64, 32, num_warps=4)
                second = multiplied(h, u, 64, 64, 32, num_warps=4)
                cell[(x.shape[0],)](first, second, out[:, t], x.shape[1] * wide, BLOCK=256)
                h = out[:, t].contiguous()
            return out
            """,
            "torch.randn(64, 48, 256), torch.randn(256, 256), torch.randn(256, 256)",
            "x, w, u",
        ),
    )
    permuted = """
    @triton.jit
    def turn(x_ptr, out_ptr, rows, columns, BLOCK: tl.constexpr):
        row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
        base = tl.program_id(0).to(tl.int64) * rows * columns
        v = tl.load(x_ptr + base + row[:, None] * columns + column)
        tl.store(out_ptr + base + column[:, None] * rows + row, tl.trans(v))


    def turned(x, rows, columns):
        out = torch.empty_like(x)
        turn[(x.shape[0], rows // 64, columns // 64)](x, out, rows, columns, BLOCK=64)
        return out

    """.replace("\n    ", "\n")
    yield make_case(
        "pixels turned to the front and back",
        "linear over channels",
        "pointwise_conv",
        ("pointwise-conv-as-matmul", "avoid-hidden-copies"),
        Body(
            MATMUL + permuted,
            "return torch.matmul(x.permute(0, 2, 3, 1), w).permute(0, 3, 1, 2).contiguous()",
            """
            n, c, h, wide = x.shape
            rows = turned(x, c, h * wide).view(n * h * wide, c)
            y = multiplied(rows, w, 64, 64, 32, num_warps=4)
            return turned(y.view(n, -1, h, wide), h * wide, w.shape[1]).view(n, -1, h, wide)
            """,
            "torch.randn(32, 128, 128, 128), torch.randn(128, 128)",
            "x, w",
        ),
    )


def _attention() -> Iterator[SickKernel]:
    attend = "return torch.nn.functional.scaled_dot_product_attention(q, k, v)"
    launch = """
    out = torch.empty_like(q)
    heads, length = q.shape[0] * q.shape[1], q.shape[2]
    shared = q.shape[1] // k.shape[1]
    sick[(length // 64, heads)](q, k, v, out, length, shared, TQ=64, TK=64)
    return out
    """
    heads = "torch.randn(4, 32, 4096, 64, dtype=torch.float16)"
    few = "torch.randn(4, 4, 4096, 64, dtype=torch.float16)"
    yield make_case(
        "keys loaded for each query head",
        "attention of grouped queries",
        "attention",
        ("pack-query-heads",),
        Body(
            ATTEND,
            """
            k, v = k.repeat_interleave(8, 1), v.repeat_interleave(8, 1)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)
            """,
            """
            out = torch.empty_like(q)
            heads, length = q.shape[0] * q.shape[1], k.shape[2]
            sick[(q.shape[2] // 16, heads)](q, k, v, out, length, 8, TQ=16, TK=64)
            return out
            """,
            f"{heads}, {few}, {few}",
            "q, k, v",
        ),
        MASKED="scores",
    )
    yield make_case(
        "masked tiles computed",
        "causal attention",
        "attention",
        ("causal-tile-skipping", "skip-zero-tiles-matmul"),
        Body(
            ATTEND,
            attend.replace("v)", "v, is_causal=True)"),
            launch,
            f"{heads}, {heads}, {heads}",
            "q, k, v",
        ),
        MASKED="tl.where(keys[None, :] <= rows[:, None], scores, -1e30)",
    )
    merge = """
    @triton.jit
    def merge(x_ptr, out_ptr, heads, length):
        lanes = tl.arange(0, 64)
        batch, head = tl.program_id(1) // heads, tl.program_id(1) % heads
        begin = (tl.program_id(1).to(tl.int64) * length + tl.program_id(0)) * 64
        place = (batch.to(tl.int64) * length + tl.program_id(0)) * heads + head
        tl.store(out_ptr + place * 64 + lanes, tl.load(x_ptr + begin + lanes))

    """.replace("\n    ", "\n")
    yield make_case(
        "heads merged by a launch",
        "attention, merge",
        "attention",
        ("write-where-copied", "avoid-hidden-copies"),
        Body(
            ATTEND + merge,
            """
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            return y.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)
            """,
            launch.replace(
                "return out",
                """last = out.new_empty(q.shape[0], length, q.shape[1] * 64)
    merge[(length, heads)](out, last, q.shape[1], length, num_warps=2)
    return last""",
            ),
            "torch.randn(64, 16, 512, 64, dtype=torch.float16),"
            " torch.randn(64, 16, 512, 64, dtype=torch.float16),"
            " torch.randn(64, 16, 512, 64, dtype=torch.float16)",
            "q, k, v",
        ),
        MASKED="scores",
    )
