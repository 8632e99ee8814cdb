"""Sick habits of hand-written kernels, over operators of every family."""

from collections.abc import Iterator
from typing import NamedTuple

from sick.case import Body, SickKernel, make_case
from sick.tiles import ATTEND, MATMUL


class _Habit(NamedTuple):
    """A case whose text has no words to fill in."""

    kind: str
    operator: str
    family: str
    right: tuple[str, ...]
    body: Body


_PASS = """
@triton.jit
def sick(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x_ptr + place, mask=place < size)
    tl.store(out_ptr + place, VALUE, mask=place < size)

"""


def habit_cases() -> Iterator[SickKernel]:
    """The cases of this module."""
    for habit in (*_elements(), *_rows(), *_scans(), *_products(), *_windows(), *_losses()):
        yield make_case(*habit)


def _elements() -> Iterator[_Habit]:
    double = _PASS.replace("VALUE", "(v.to(tl.float64) * 1.7 + 0.3 * v * v).to(tl.float32)")
    yield _Habit(
        "arithmetic of doubles",
        "polynomial",
        "pointwise",
        ("reduce-instruction-count",),
        Body(
            double,
            "return (x.double() * 1.7 + 0.3 * x * x).float()",
            """
            out = torch.empty_like(x)
            sick[(x.numel() // 1024,)](x, out, x.numel(), BLOCK=1024)
            return out
            """,
            "torch.randn(8192, 8192)",
        ),
    )
    yield _Habit(
        "two bytes a lane",
        "half relu",
        "pointwise",
        ("widen-vector-access", "more-work-per-thread"),
        Body(
            _PASS.replace("VALUE", "tl.maximum(v, 0.0)"),
            "return torch.relu(x)",
            """
            out = torch.empty_like(x)
            sick[(x.numel() // 128,)](x, out, x.numel(), BLOCK=128, num_warps=4)
            return out
            """,
            "torch.randn(16384, 8192).half()",
        ),
    )
    channel = """
    @triton.jit
    def sick(x_ptr, scale_ptr, out_ptr, channel, stride, size, BLOCK: tl.constexpr):
        lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        place = tl.program_id(0) * stride + channel * size + lane
        v = tl.load(x_ptr + place, mask=lane < size) * tl.load(scale_ptr + channel)
        tl.store(out_ptr + place, v, mask=lane < size)
    """
    yield _Habit(
        "a launch for each channel",
        "scale of channels",
        "pointwise",
        ("cuda-graph-replay", "cached-launch", "horizontal-fusion"),
        Body(
            channel,
            "return x * scale[:, None, None]",
            """
            out = torch.empty_like(x)
            size = x.shape[2] * x.shape[3]
            grid = (x.shape[0], triton.cdiv(size, 1024))
            for channel in range(x.shape[1]):
                stride = x.shape[1] * size
                sick[grid](x, scale, out, channel, stride, size, BLOCK=1024)
            return out
            """,
            "torch.randn(16, 96, 56, 56), torch.rand(96)",
            "x, scale",
        ),
    )
    spread = """
    @triton.jit
    def sick(index_ptr, x_ptr, out_ptr, width, BLOCK: tl.constexpr):
        item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        row = tl.load(index_ptr + item)
        v = tl.load(x_ptr + item * width + tl.program_id(1))
        tl.store(out_ptr + row * width + tl.program_id(1), v)
    """
    yield _Habit(
        "rows scattered a column a program",
        "index_copy",
        "embedding",
        ("gather-whole-rows", "coalesce-lane-axis"),
        Body(
            spread,
            "return x.new_zeros(x.shape).index_copy(0, index, x)",
            """
            out = x.new_zeros(x.shape)
            sick[(x.shape[0] // 256, x.shape[1])](index, x, out, x.shape[1], BLOCK=256)
            return out
            """,
            "torch.randperm(65536), torch.randn(65536, 256)",
            "index, x",
        ),
    )
    repeated = """
    @triton.jit
    def repeat(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + lanes)
        tl.store(out_ptr + tl.program_id(0).to(tl.int64) * columns + lanes, v)


    @triton.jit
    def times(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out_ptr + place, tl.load(x_ptr + place) * tl.load(y_ptr + place))
    """
    yield _Habit(
        "a repeated operand written out",
        "rows times a vector",
        "pointwise",
        ("avoid-hidden-copies", "fuse-pointwise-chain"),
        Body(
            repeated,
            "return x * y",
            """
            wide, out = torch.empty_like(x), torch.empty_like(x)
            repeat[(x.shape[0], x.shape[1] // 1024)](y, wide, x.shape[1], BLOCK=1024)
            times[(x.numel() // 1024,)](x, wide, out, BLOCK=1024)
            return out
            """,
            "torch.randn(8192, 8192), torch.randn(8192)",
            "x, y",
        ),
    )


def _rows() -> Iterator[_Habit]:
    weighted = """
    @triton.jit
    def sick(x_ptr, w_ptr, b_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        lanes = tl.arange(0, BLOCK)
        place = tl.program_id(0).to(tl.int64) * columns + lanes
        v = tl.load(x_ptr + place)
        v -= tl.sum(v, 0) / columns
        v = v / tl.sqrt(tl.sum(v * v, 0) / columns + 1e-5)
        tl.store(out_ptr + place, v * tl.load(w_ptr + lanes) + tl.load(b_ptr + lanes))
    """
    yield _Habit(
        "weights loaded for each short row",
        "layer_norm of 128",
        "norm",
        ("hoist-shared-operand", "several-rows-per-program", "persistent-programs"),
        Body(
            weighted,
            "return torch.nn.functional.layer_norm(x, (x.shape[1],), w, b)",
            """
            out = torch.empty_like(x)
            sick[(x.shape[0],)](x, w, b, out, x.shape[1], BLOCK=128, num_warps=4)
            return out
            """,
            "torch.randn(1 << 19, 128), torch.rand(128), torch.randn(128)",
            "x, w, b",
        ),
    )
    figures = """
    @triton.jit
    def figure(x_ptr, out_ptr, columns, KIND: tl.constexpr, BLOCK: tl.constexpr):
        begin = tl.program_id(0).to(tl.int64) * columns
        acc = tl.full((BLOCK,), -1e30 if KIND == 1 else 0.0, tl.float32)
        for start in range(0, columns, BLOCK):
            v = tl.load(x_ptr + begin + start + tl.arange(0, BLOCK))
            if KIND == 0:
                acc += v
            elif KIND == 1:
                acc = tl.maximum(acc, v)
            else:
                acc += v * v
        joined = tl.max(acc, 0) if KIND == 1 else tl.sum(acc, 0)
        tl.store(out_ptr + tl.program_id(0), joined)
    """
    yield _Habit(
        "a launch for each figure of one tensor",
        "sum, maximum and squares",
        "reduction",
        ("horizontal-fusion",),
        Body(
            figures,
            "return torch.stack([x.sum(1), x.amax(1), (x * x).sum(1)])",
            """
            out = x.new_empty(3, x.shape[0])
            figure[(x.shape[0],)](x, out[0], x.shape[1], KIND=0, BLOCK=2048)
            figure[(x.shape[0],)](x, out[1], x.shape[1], KIND=1, BLOCK=2048)
            figure[(x.shape[0],)](x, out[2], x.shape[1], KIND=2, BLOCK=2048)
            return out
            """,
            "torch.randn(8192, 16384)",
        ),
    )
    down = """
    @triton.jit
    def sick(x_ptr, out_ptr, rows, columns, BLOCK: tl.constexpr):
        column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        acc = tl.zeros((BLOCK,), tl.float32)
        for row in range(0, rows):
            acc += tl.load(x_ptr + row * columns + column)
        tl.store(out_ptr + column, acc)
    """
    yield _Habit(
        "one program down all rows",
        "sum of columns",
        "reduction",
        ("reduce-outer-axis", "split-reduction", "fill-the-grid"),
        Body(
            down,
            "return x.sum(0)",
            """
            out = x.new_empty(x.shape[1])
            sick[(x.shape[1] // 128,)](x, out, x.shape[0], x.shape[1], BLOCK=128)
            return out
            """,
            "torch.randn(1 << 18, 512)",
        ),
    )
    moments = """
    @triton.jit
    def sick(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        begin = tl.program_id(0).to(tl.int64) * columns
        lanes = tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, columns, BLOCK):
            total += tl.load(x_ptr + begin + start + lanes)
        mean = tl.sum(total, 0) / columns
        squares = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, columns, BLOCK):
            v = tl.load(x_ptr + begin + start + lanes) - mean
            squares += v * v
        tl.store(out_ptr + tl.program_id(0), tl.sum(squares, 0) / (columns - 1))
    """
    yield _Habit(
        "a pass for the mean and one for the deviations",
        "variance",
        "reduction",
        ("welford-one-pass", "l2-resident-two-phase"),
        Body(
            moments,
            "return x.var(1)",
            """
            out = x.new_empty(x.shape[0])
            sick[(x.shape[0],)](x, out, x.shape[1], BLOCK=1024)
            return out
            """,
            "torch.randn(4096, 1 << 17)",
        ),
    )


def _scans() -> Iterator[_Habit]:
    across = """
    @triton.jit
    def sick(x_ptr, out_ptr, rows, columns, BLOCK: tl.constexpr):
        row = tl.arange(0, BLOCK)
        carry = 0.0
        for start in range(0, rows, BLOCK):
            place = (start + row) * columns + tl.program_id(0)
            v = tl.load(x_ptr + place)
            tl.store(out_ptr + place, tl.cumsum(v, 0) + carry)
            carry += tl.sum(v, 0)
    """
    yield _Habit(
        "lanes along the scanned outer axis",
        "cumsum down the rows",
        "scan",
        ("coalesce-lane-axis", "reduce-outer-axis"),
        Body(
            across,
            "return x.cumsum(0)",
            """
            out = torch.empty_like(x)
            sick[(x.shape[1],)](x, out, x.shape[0], x.shape[1], BLOCK=256)
            return out
            """,
            "torch.randn(16384, 4096)",
        ),
    )
    parts = """
    @triton.jit
    def totals(x_ptr, out_ptr, BLOCK: tl.constexpr):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out_ptr + tl.program_id(0), tl.sum(tl.load(x_ptr + place), 0))


    @triton.jit
    def scan(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
        lanes = tl.arange(0, BLOCK)
        v = tl.load(x_ptr + lanes, mask=lanes < size, other=0.0)
        tl.store(out_ptr + lanes, tl.cumsum(v, 0) - v, mask=lanes < size)


    @triton.jit
    def finish(x_ptr, before_ptr, out_ptr, BLOCK: tl.constexpr):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        before = tl.load(before_ptr + tl.program_id(0))
        tl.store(out_ptr + place, tl.cumsum(tl.load(x_ptr + place), 0) + before)
    """
    yield _Habit(
        "totals, their scan and a second reading",
        "cumsum of a long vector",
        "scan",
        ("decoupled-look-back-scan",),
        Body(
            parts,
            "return x.cumsum(0)",
            """
            count = x.shape[0] // 4096
            before, after, out = x.new_empty(count), x.new_empty(count), torch.empty_like(x)
            totals[(count,)](x, before, BLOCK=4096)
            scan[(1,)](before, after, count, BLOCK=32768)
            finish[(count,)](x, after, out, BLOCK=4096)
            return out
            """,
            "torch.randn(1 << 26)",
        ),
    )


def _products() -> Iterator[_Habit]:
    tiles = "64, 64, 32, num_warps=4"
    yield _Habit(
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
    yield _Habit(
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
    yield _Habit(
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
    yield _Habit(
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
        yield _Habit(
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
    yield _Habit(
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
    yield _Habit(
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


def _windows() -> Iterator[_Habit]:
    padded = """
    @triton.jit
    def widen(x_ptr, out_ptr, height, width, BLOCK: tl.constexpr):
        column = tl.arange(0, BLOCK)
        row, plane = tl.program_id(0), tl.program_id(1)
        inside = (row > 0) & (row <= height) & (column > 0) & (column <= width)
        place = (plane * height + row - 1) * width + column - 1
        v = tl.load(x_ptr + place, mask=inside, other=-1e30)
        place = (plane * (height + 2) + row) * (width + 2) + column
        tl.store(out_ptr + place, v, mask=column < width + 2)


    @triton.jit
    def pool(x_ptr, out_ptr, height, width, BLOCK: tl.constexpr):
        column = tl.arange(0, BLOCK)
        row, plane = tl.program_id(0), tl.program_id(1)
        acc = tl.full((BLOCK,), -1e30, tl.float32)
        for tap in range(9):
            place = (plane * (height + 2) + row + tap // 3) * (width + 2) + column + tap % 3
            acc = tl.maximum(acc, tl.load(x_ptr + place, mask=column < width, other=-1e30))
        tl.store(out_ptr + (plane * height + row) * width + column, acc, mask=column < width)
    """
    yield _Habit(
        "a padded copy before the windows",
        "max_pool of 3 with a border",
        "pooling",
        ("avoid-hidden-copies", "separable-pooling"),
        Body(
            padded,
            "return torch.nn.functional.max_pool2d(x, 3, 1, 1)",
            """
            n, c, height, width = x.shape
            wide = x.new_empty(n, c, height + 2, width + 2)
            out = torch.empty_like(x)
            widen[(height + 2, n * c)](x, wide, height, width, BLOCK=256)
            pool[(height, n * c)](wide, out, height, width, BLOCK=256)
            return out
            """,
            "torch.randn(32, 64, 192, 192)",
        ),
    )
    planes = """
    @triton.jit
    def sick(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
        begin = tl.program_id(0).to(tl.int64) * size
        acc = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, size, BLOCK):
            acc += tl.load(x_ptr + begin + start + tl.arange(0, BLOCK))
        tl.store(out_ptr + tl.program_id(0), tl.sum(acc, 0) / size)
    """
    yield _Habit(
        "few programs",
        "global average of large images",
        "pooling",
        ("adaptive-pool-as-reduction", "split-reduction", "fill-the-grid"),
        Body(
            planes,
            "return torch.nn.functional.adaptive_avg_pool2d(x, 1)",
            """
            out = x.new_empty(x.shape[0], x.shape[1], 1, 1)
            sick[(out.numel(),)](x, out, x.shape[2] * x.shape[3], BLOCK=1024)
            return out
            """,
            "torch.randn(2, 12, 2048, 2048)",
        ),
    )
    row = """
    @triton.jit
    def sick(x_ptr, w_ptr, out_ptr, channels, width, outs, TAPS: tl.constexpr, BLOCK: tl.constexpr):
        lane = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
        acc = tl.zeros((BLOCK,), tl.float32)
        for c in range(0, channels):
            for tap in range(0, TAPS):
                at = (tl.program_id(0) * channels + c) * width + lane + tap
                v = tl.load(x_ptr + at, mask=lane + tap < width, other=0.0)
                acc += v * tl.load(w_ptr + (tl.program_id(1) * channels + c) * TAPS + tap)
        size = width - TAPS + 1
        place = (tl.program_id(0) * outs + tl.program_id(1)) * size + lane
        tl.store(out_ptr + place, acc, mask=lane < size)
    """
    yield _Habit(
        "one output channel a program",
        "conv1d of 64 channels",
        "convolution",
        ("implicit-gemm-conv", "register-tiling", "vendor-half-conv", "split-half-conv"),
        Body(
            row,
            "return torch.nn.functional.conv1d(x, k)",
            """
            size = x.shape[2] - k.shape[2] + 1
            out = x.new_empty(x.shape[0], k.shape[0], size)
            grid = (x.shape[0], k.shape[0], triton.cdiv(size, 256))
            sick[grid](x, k, out, x.shape[1], x.shape[2], k.shape[0], TAPS=5, BLOCK=256)
            return out
            """,
            "torch.randn(16, 64, 8192), torch.randn(64, 64, 5)",
            "x, k",
        ),
    )


def _losses() -> Iterator[_Habit]:
    one = """
    @triton.jit
    def sick(x_ptr, y_ptr, out_ptr, size, BLOCK: tl.constexpr):
        acc = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, size, BLOCK):
            place = start + tl.arange(0, BLOCK)
            v = tl.load(x_ptr + place) - tl.load(y_ptr + place)
            acc += v * v
        tl.store(out_ptr, tl.sum(acc, 0) / size)
    """
    yield _Habit(
        "one program adds everything",
        "squared error",
        "loss",
        ("split-reduction", "fill-the-grid", "fuse-loss-with-mean"),
        Body(
            one,
            "return torch.nn.functional.mse_loss(x, y)",
            """
            out = x.new_empty(())
            sick[(1,)](x, y, out, x.numel(), BLOCK=4096)
            return out
            """,
            "torch.randn(1 << 22), torch.randn(1 << 22)",
            "x, y",
        ),
    )
    entropy = """
    @triton.jit
    def sick(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + place).to(tl.float32)
        t = tl.load(y_ptr + place).to(tl.float32)
        p = 1.0 / (1.0 + tl.exp(-v))
        q = 1.0 / (1.0 + tl.exp(v))
        loss = -t * tl.log(p + 1e-7) - (1.0 - t) * tl.log(q + 1e-7)
        focal = tl.exp(2.0 * tl.log(1.0 - p + 1e-7)) * loss + tl.sqrt(loss + 1e-7)
        tl.store(out_ptr + tl.program_id(0), tl.sum(focal, 0))
    """
    yield _Habit(
        "special functions",
        "focal loss",
        "loss",
        ("fast-transcendentals", "stable-formulas"),
        Body(
            entropy,
            """
            p, q = torch.sigmoid(x), torch.sigmoid(-x)
            loss = -y * (p + 1e-7).log() - (1 - y) * (q + 1e-7).log()
            return (((1 - p + 1e-7).log() * 2).exp() * loss + (loss + 1e-7).sqrt()).sum()
            """,
            """
            parts = x.new_empty(x.numel() // 1024)
            sick[(x.numel() // 1024,)](x, y, parts, BLOCK=1024)
            return parts.sum()
            """,
            "torch.randn(1 << 26).half(), torch.rand(1 << 26).half()",
            "x, y",
        ),
    )
