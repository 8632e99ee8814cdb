"""Sick matrix products and attention."""

from collections.abc import Iterator

from sick.case import Body, SickKernel, make_case

_SCALAR = """
@triton.jit
def sick(a_ptr, b_ptr, out_ptr, M, N, K, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    a_ptr += tl.program_id(2).to(tl.int64) * M * K
    b_ptr += tl.program_id(2).to(tl.int64) * K * N
    acc = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, K):
        acc += tl.load(a_ptr + row * K + k) * tl.load(b_ptr + k * N + column)
    tl.store(out_ptr + tl.program_id(2).to(tl.int64) * M * N + row * N + column, acc)
"""
_TILED = """
@triton.jit
def product(a_ptr, b_ptr, out_ptr, N, K, PRECISION: tl.constexpr, TM: tl.constexpr):
    rows = tl.program_id(0) * TM + tl.arange(0, TM)
    columns = tl.program_id(1) * 64 + tl.arange(0, 64)
    acc = tl.zeros((TM, 64), tl.float32)
    for k in range(0, K, 32):
        ks = k + tl.arange(0, 32)
        a = tl.load(a_ptr + rows[:, None] * K + ks[None, :])
        b = tl.load(b_ptr + ks[:, None] * N + columns[None, :])
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], acc)
"""
_LAUNCH_TILED = """
out = a.new_empty(a.shape[0], b.shape[1])
product[(a.shape[0] // 64, b.shape[1] // 64)](
    a, b, out, b.shape[1], a.shape[1], PRECISION="RUNG", TM=64
)
"""
_PAIR = "torch.randn(ROWS, DEPTH), torch.randn(DEPTH, COLUMNS)"
_TENSOR = ("tile-matmul", "wgmma-tile-shapes", "bf16-tensor-core-matmul", "split-fp16-matmul")


def product_cases() -> Iterator[SickKernel]:
    """The cases of this module."""
    yield from _scalar()
    yield from _tiled()
    yield from _needless()
    yield from _attention()


def _scalar() -> Iterator[SickKernel]:
    launch = """
    out = a.new_empty(*a.shape[:-1], b.shape[-1])
    batch = a.shape[0] if a.dim() == 3 else 1
    M, N, K = a.shape[-2], b.shape[-1], a.shape[-1]
    sick[(M, N // 128, batch)](a, b, out, M, N, K, BLOCK=128)
    return out
    """
    for operator, inputs in (
        ("matmul", "torch.randn(2048, 2048), torch.randn(2048, 2048)"),
        ("batched matmul", "torch.randn(32, 512, 512), torch.randn(32, 512, 512)"),
        ("tall matmul", "torch.randn(16384, 512), torch.randn(512, 512)"),
    ):
        yield make_case(
            "a product without tensor cores",
            operator,
            "matmul",
            (*_TENSOR, "tf32-rounded-operands"),
            Body(_SCALAR, "return torch.matmul(a, b)", launch, inputs, "a, b"),
        )
    matvec = """
    @triton.jit
    def sick(a_ptr, x_ptr, out_ptr, K, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        acc = tl.zeros((BLOCK,), tl.float32)
        for k in range(0, K):
            acc += tl.load(a_ptr + row * K + k) * tl.load(x_ptr + k)
        tl.store(out_ptr + row, acc)
    """
    launch = """
    out = a.new_empty(a.shape[0])
    sick[(a.shape[0] // 128,)](a, x, out, a.shape[1], BLOCK=128)
    return out
    """
    yield make_case(
        "lanes down the rows",
        "matvec",
        "matvec",
        ("matvec-rows-per-program", "coalesce-lane-axis"),
        Body(matvec, "return a @ x", launch, "torch.randn(16384, 8192), torch.randn(8192)", "a, x"),
    )
    alone = """
    @triton.jit
    def sick(a_ptr, x_ptr, out_ptr, K, BLOCK: tl.constexpr):
        acc = tl.zeros((BLOCK,), tl.float32)
        for k in range(0, K, BLOCK):
            place = k + tl.arange(0, BLOCK)
            row = tl.load(a_ptr + tl.program_id(0).to(tl.int64) * K + place)
            acc += row * tl.load(x_ptr + place)
        tl.store(out_ptr + tl.program_id(0), tl.sum(acc, 0))
    """
    launch = """
    out = a.new_empty(a.shape[0])
    sick[(a.shape[0],)](a, x, out, a.shape[1], BLOCK=2048)
    return out
    """
    yield make_case(
        "few programs",
        "matvec",
        "matvec",
        ("matvec-rows-per-program", "split-k-matmul", "fill-the-grid", "split-reduction"),
        Body(
            alone, "return a @ x", launch, "torch.randn(16, 1 << 21), torch.randn(1 << 21)", "a, x"
        ),
    )


def _tiled() -> Iterator[SickKernel]:
    product = "return torch.matmul(a, b)"
    for name, rows, columns, depth in (
        ("deep matmul", 256, 256, 1 << 17),
        ("deep narrow matmul", 128, 64, 1 << 18),
    ):
        yield make_case(
            "few programs",
            name,
            "matmul",
            ("split-k-matmul", "stream-k-matmul", "fill-the-grid"),
            Body(_TILED, product, _LAUNCH_TILED + "return out", _PAIR, "a, b"),
            ROWS=rows,
            COLUMNS=columns,
            DEPTH=depth,
            RUNG="tf32",
        )
    for name, rows in (("square matmul", 4096), ("wide matmul", 1024)):
        yield make_case(
            "exact products on the arithmetic units",
            name,
            "matmul",
            (
                "split-fp16-matmul",
                "tf32-rounded-operands",
                "bf16-tensor-core-matmul",
                "tile-matmul",
            ),
            Body(_TILED, product, _LAUNCH_TILED + "return out", _PAIR, "a, b"),
            ROWS=rows,
            COLUMNS=4096,
            DEPTH=4096,
            RUNG="ieee",
        )
    after = """
    @triton.jit
    def after(x_ptr, out_ptr, BLOCK: tl.constexpr):
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + place)
        tl.store(out_ptr + place, VALUE)
    """
    behind = """
    last = torch.empty_like(out)
    after[(out.numel() // 1024,)](out, last, BLOCK=1024)
    return last
    """
    for name, value, reference in (
        ("relu", "tl.maximum(v, 0.0)", "return torch.relu(torch.matmul(a, b))"),
        ("sigmoid", "1.0 / (1.0 + tl.exp(-v))", "return torch.sigmoid(torch.matmul(a, b))"),
        (
            "scale and clamp",
            "tl.minimum(v * 0.5, 1.0)",
            "return (torch.matmul(a, b) * 0.5).clamp(max=1.0)",
        ),
    ):
        yield make_case(
            "a launch behind the product",
            f"matmul, {name}",
            "matmul",
            ("gemm-epilogue-fusion",),
            Body(
                _TILED + after.replace("\n    ", "\n"),
                reference,
                _LAUNCH_TILED + behind.replace("\n    ", "\n"),
                _PAIR,
                "a, b",
            ),
            VALUE=value,
            ROWS=16384,
            COLUMNS=4096,
            DEPTH=256,
            RUNG="tf32",
        )
        yield make_case(
            "a launch before the product",
            f"{name}, matmul",
            "matmul",
            ("gemm-prologue-fusion",),
            Body(
                _TILED + after.replace("\n    ", "\n"),
                reference.replace("torch.matmul(a, b)", "a").replace(
                    "return ", "return torch.matmul("
                )
                + ", b)",
                "first = torch.empty_like(a)\n"
                "after[(a.numel() // 1024,)](a, first, BLOCK=1024)\na = first\n"
                + _LAUNCH_TILED
                + "return out",
                _PAIR,
                "a, b",
            ),
            VALUE=value,
            ROWS=16384,
            COLUMNS=256,
            DEPTH=4096,
            RUNG="tf32",
        )
    many = """
    out = a.new_empty(a.shape[0], a.shape[1], b.shape[2])
    for place in range(a.shape[0]):
        product[(a.shape[1] // 64, b.shape[2] // 64)](
            a[place], b[place], out[place], b.shape[2], a.shape[2], PRECISION="tf32", TM=64
        )
    return out
    """
    for batch in (16, 48):
        yield make_case(
            "a launch for each product of a batch",
            f"{batch} products",
            "matmul",
            ("batch-small-matmuls", "cuda-graph-replay", "horizontal-fusion"),
            Body(
                _TILED,
                "return torch.bmm(a, b)",
                many,
                f"torch.randn({batch}, 128, 128), torch.randn({batch}, 128, 128)",
                "a, b",
            ),
        )


def _needless() -> Iterator[SickKernel]:
    for name, reference, inputs, right in (
        (
            "a diagonal",
            "return torch.diag(a) @ b",
            "torch.rand(4096), torch.randn(4096, 2048)",
            ("diagonal-row-scaling", "skip-structural-zeros"),
        ),
        (
            "a lower triangle",
            "return torch.tril(a) @ b",
            "torch.randn(4096, 4096), torch.randn(4096, 4096)",
            ("skip-zero-tiles-matmul", "skip-structural-zeros"),
        ),
        (
            "an upper triangle",
            "return torch.triu(a) @ b",
            "torch.randn(2048, 2048), torch.randn(2048, 2048)",
            ("skip-zero-tiles-matmul", "skip-structural-zeros"),
        ),
    ):
        dense = reference.removeprefix("return ").removesuffix(" @ b")
        yield make_case(
            "zeros multiplied",
            name,
            "matmul",
            right,
            Body(
                _TILED,
                reference,
                f"a = {dense}\n" + _LAUNCH_TILED.replace("RUNG", "tf32") + "return out",
                inputs,
                "a, b",
            ),
        )
    gated = """
    @triton.jit
    def gate(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + place)
        tl.store(out_ptr + place, VALUE * tl.load(y_ptr + place))
    """
    launch = """
    first, second = a.new_empty(a.shape[0], b.shape[1]), a.new_empty(a.shape[0], b.shape[1])
    grid = (a.shape[0] // 64, b.shape[1] // 64)
    product[grid](a, b, first, b.shape[1], a.shape[1], PRECISION="tf32", TM=64)
    product[grid](a, c, second, b.shape[1], a.shape[1], PRECISION="tf32", TM=64)
    out = torch.empty_like(first)
    gate[(out.numel() // 1024,)](first, second, out, BLOCK=1024)
    return out
    """
    for name, value, reference in (
        ("silu", "v / (1.0 + tl.exp(-v))", "return torch.nn.functional.silu(a @ b) * (a @ c)"),
        ("relu", "tl.maximum(v, 0.0)", "return torch.relu(a @ b) * (a @ c)"),
    ):
        yield make_case(
            "two products and a launch that joins them",
            f"gate by {name}",
            "matmul",
            ("dual-gemm-gated-mlp", "gemm-epilogue-fusion"),
            Body(
                _TILED + gated.replace("\n    ", "\n"),
                reference,
                launch,
                "torch.randn(8192, 1024), torch.randn(1024, 4096), torch.randn(1024, 4096)",
                "a, b, c",
            ),
            VALUE=value,
        )


def _attention() -> Iterator[SickKernel]:
    written = """
    @triton.jit
    def rows(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        begin = tl.program_id(0).to(tl.int64) * columns
        lanes = tl.arange(0, BLOCK)
        v = tl.load(x_ptr + begin + lanes) * 0.125
        v = tl.exp(v - tl.max(v, 0))
        tl.store(out_ptr + begin + lanes, v / tl.sum(v, 0))
    """
    launch = """
    scores = torch.matmul(q, k.transpose(-2, -1)).contiguous()
    shares = torch.empty_like(scores)
    rows[(scores.numel() // scores.shape[-1],)](scores, shares, scores.shape[-1], BLOCK=LENGTH)
    return torch.matmul(shares, v)
    """
    for length in (1024, 4096):
        shape = f"torch.randn(4, 16, {length}, 64)"
        yield make_case(
            "scores that pass through memory",
            f"attention over {length}",
            "attention",
            ("flash-attention",),
            Body(
                written,
                "return torch.nn.functional.scaled_dot_product_attention(q, k, v)",
                launch,
                f"{shape}, {shape}, {shape}",
                "q, k, v",
            ),
            LENGTH=length,
        )
    decode = """
    @triton.jit
    def sick(q_ptr, k_ptr, v_ptr, out_ptr, length, BLOCK: tl.constexpr):
        head = tl.program_id(0).to(tl.int64)
        lanes = tl.arange(0, 64)
        q = tl.load(q_ptr + head * 64 + lanes) * 0.125
        top, total, acc = -1e30, 0.0, tl.zeros((64,), tl.float32)
        for start in range(0, length, BLOCK):
            place = (head * length + start + tl.arange(0, BLOCK)[:, None]) * 64 + lanes[None, :]
            s = tl.sum(tl.load(k_ptr + place) * q[None, :], 1)
            new = tl.maximum(top, tl.max(s, 0))
            p = tl.exp(s - new)
            scale = tl.exp(top - new)
            total = total * scale + tl.sum(p, 0)
            acc = acc * scale + tl.sum(p[:, None] * tl.load(v_ptr + place), 0)
            top = new
        tl.store(out_ptr + head * 64 + lanes, acc / total)
    """
    launch = """
    out = torch.empty_like(q)
    sick[(q.shape[0] * q.shape[1],)](q, k, v, out, k.shape[2], BLOCK=64)
    return out
    """
    for heads in (8, 24):
        keys = f"torch.randn(1, {heads}, 32768, 64)"
        yield make_case(
            "few programs",
            f"attention of one query, {heads} heads",
            "attention",
            ("split-kv-decoding", "fill-the-grid"),
            Body(
                decode,
                "return torch.nn.functional.scaled_dot_product_attention(q, k, v)",
                launch,
                f"torch.randn(1, {heads}, 1, 64), {keys}, {keys}",
                "q, k, v",
            ),
        )
