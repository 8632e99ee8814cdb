"""Sick forwards of several launches, and kernels whose lanes, loops or updates are ill chosen."""

from collections.abc import Iterator

from sick.case import Body, SickKernel, make_case

_STEP = """
@triton.jit
def NAME(x_ptr, out_ptr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x_ptr + place)
    tl.store(out_ptr + place, VALUE)

"""
_JOIN = """
@triton.jit
def NAME(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v, u = tl.load(x_ptr + place), tl.load(y_ptr + place)
    tl.store(out_ptr + place, VALUE)

"""
#: The sum of what two rows make, a program a row.
_ROWS = """
@triton.jit
def rows(x_ptr, y_ptr, out_ptr, columns, KIND: tl.constexpr, BLOCK: tl.constexpr):
    begin = tl.program_id(0).to(tl.int64) * columns
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        place = begin + start + tl.arange(0, BLOCK)
        v, u = tl.load(x_ptr + place), tl.load(y_ptr + place)
        if KIND == 0:
            acc += v * u
        else:
            acc += (v - u) * (v - u)
    tl.store(out_ptr + tl.program_id(0), tl.sum(acc, 0))

"""


def _step(name: str, value: str) -> str:
    return _STEP.replace("NAME", name).replace("VALUE", value)


def _join(name: str, value: str) -> str:
    return _JOIN.replace("NAME", name).replace("VALUE", value)


def chain_cases() -> Iterator[SickKernel]:
    """The cases of this module."""
    yield from _rows()
    yield from _norms()
    yield from _elements()
    yield from _steps()
    yield from _updates()


def _rows() -> Iterator[SickKernel]:
    found = """
    @triton.jit
    def value(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        begin = tl.program_id(0).to(tl.int64) * columns
        acc = tl.full((BLOCK,), FIRST, tl.float32)
        for start in range(0, columns, BLOCK):
            acc = tl.JOINimum(acc, tl.load(x_ptr + begin + start + tl.arange(0, BLOCK)))
        tl.store(out_ptr + tl.program_id(0), tl.JOIN(acc, 0))


    @triton.jit
    def place(x_ptr, value_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        begin = tl.program_id(0).to(tl.int64) * columns
        best = tl.load(value_ptr + tl.program_id(0))
        acc = tl.full((BLOCK,), 1 << 30, tl.int32)
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            v = tl.load(x_ptr + begin + column)
            acc = tl.minimum(acc, tl.where(v == best, column, 1 << 30))
        tl.store(out_ptr + tl.program_id(0), tl.min(acc, 0).to(tl.int64))
    """
    launch = """
    best, out = x.new_empty(x.shape[0]), x.new_empty(x.shape[0], dtype=torch.int64)
    value[(x.shape[0],)](x, best, x.shape[1], BLOCK=1024)
    place[(x.shape[0],)](x, best, out, x.shape[1], BLOCK=1024)
    return out
    """
    for name, join, first in (("argmax", "max", "-1e30"), ("argmin", "min", "1e30")):
        yield make_case(
            "a launch for the value and one for its place",
            name,
            "reduction",
            ("arg-reduction-with-index",),
            Body(found, f"return x.{name}(1)", launch),
            JOIN=join,
            FIRST=first,
            ROWS=8192,
            COLUMNS=32768,
        )
    cosine = _ROWS + (
        "@triton.jit\n"
        "def divide(a_ptr, b_ptr, c_ptr, out_ptr, BLOCK: tl.constexpr):\n"
        "    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    norms = tl.sqrt(tl.load(b_ptr + row) * tl.load(c_ptr + row))\n"
        "    tl.store(out_ptr + row, tl.load(a_ptr + row) / norms)\n"
    )
    yield make_case(
        "a launch for each product of the same rows",
        "cosine similarity",
        "reduction",
        ("row-similarity-one-pass", "horizontal-fusion"),
        Body(
            cosine,
            """
            return (x * y).sum(1) / ((x * x).sum(1) * (y * y).sum(1)).sqrt()
            """,
            """
            n, columns = x.shape
            a, b, c, out = (x.new_empty(n) for _ in range(4))
            rows[(n,)](x, y, a, columns, KIND=0, BLOCK=1024)
            rows[(n,)](x, x, b, columns, KIND=0, BLOCK=1024)
            rows[(n,)](y, y, c, columns, KIND=0, BLOCK=1024)
            divide[(n // 256,)](a, b, c, out, BLOCK=256)
            return out
            """,
            "torch.randn(16384, 4096), torch.randn(16384, 4096)",
            "x, y",
        ),
    )
    yield make_case(
        "a launch for each product of the same rows",
        "triplet distances",
        "loss",
        ("row-similarity-one-pass", "fuse-loss-with-mean"),
        Body(
            _ROWS,
            """
            return torch.nn.functional.triplet_margin_loss(x, y, z)
            """,
            """
            n, columns = x.shape
            a, b = x.new_empty(n), x.new_empty(n)
            rows[(n,)](x, y, a, columns, KIND=1, BLOCK=1024)
            rows[(n,)](x, z, b, columns, KIND=1, BLOCK=1024)
            return torch.relu(a.sqrt() - b.sqrt() + 1.0).mean()
            """,
            "torch.randn(16384, 4096), torch.randn(16384, 4096), torch.randn(16384, 4096)",
            "x, y, z",
        ),
    )
    ragged = """
    @triton.jit
    def sick(x_ptr, length_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        length = tl.load(length_ptr + row)
        acc = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, columns, BLOCK):
            place = start + tl.arange(0, BLOCK)
            v = tl.load(x_ptr + row.to(tl.int64) * columns + place, mask=place < length, other=0.0)
            acc += tl.where(v > 0.0, tl.sqrt(v), tl.exp(v))
        tl.store(out_ptr + row, tl.sum(acc, 0))
    """
    yield make_case(
        "rows padded to the longest",
        "masked sum",
        "reduction",
        ("uniform-control-flow",),
        Body(
            ragged,
            """
            held = torch.arange(x.shape[1], device=x.device) < length[:, None]
            v = torch.where(held, x, torch.zeros_like(x))
            return torch.where(v > 0, v.clamp(min=0).sqrt(), v.exp()).sum(1)
            """,
            """
            out = x.new_empty(x.shape[0])
            sick[(x.shape[0],)](x, length, out, x.shape[1], BLOCK=512)
            return out
            """,
            "torch.randn(8192, 8192), torch.randint(1, 8192, (8192,))",
            "x, length",
        ),
    )


def _norms() -> Iterator[SickKernel]:
    two = """
    @triton.jit
    def squares(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        lanes = tl.arange(0, BLOCK)
        v = tl.load(x_ptr + tl.program_id(0) * columns + lanes, mask=lanes < columns, other=0.0)
        tl.store(out_ptr + tl.program_id(0), tl.sum(v * v, 0) / columns)


    @triton.jit
    def scale(x_ptr, squares_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        lanes = tl.arange(0, BLOCK)
        place = tl.program_id(0) * columns + lanes
        v = tl.load(x_ptr + place, mask=lanes < columns)
        factor = tl.rsqrt(tl.load(squares_ptr + tl.program_id(0)) + 1e-6)
        tl.store(out_ptr + place, v * factor, mask=lanes < columns)
    """
    yield make_case(
        "statistics and their use in launches of their own",
        "rms_norm of a few rows",
        "norm",
        ("row-norm", "grid-barrier-single-launch", "cuda-graph-replay"),
        Body(
            two,
            "return x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-6)",
            """
            mean, out = x.new_empty(x.shape[0]), torch.empty_like(x)
            squares[(x.shape[0],)](x, mean, x.shape[1], BLOCK=4096)
            scale[(x.shape[0],)](x, mean, out, x.shape[1], BLOCK=4096)
            return out
            """,
        ),
        ROWS=256,
        COLUMNS=4096,
    )
    normed = """
    @triton.jit
    def norm(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        place = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + place)
        v -= tl.sum(v, 0) / columns
        tl.store(out_ptr + place, v * tl.rsqrt(tl.sum(v * v, 0) / columns + 1e-5))
    """.replace("\n    ", "\n")
    for name, value, reference in (
        ("relu", "tl.maximum(v, 0.0)", "torch.relu(n)"),
        ("silu", "v / (1.0 + tl.exp(-v))", "torch.nn.functional.silu(n)"),
    ):
        yield make_case(
            "launches before and behind the norm",
            f"add, layer_norm, {name}",
            "norm",
            ("fuse-norm-residual-activation",),
            Body(
                _join("add", "v + u") + normed + _step("activate", value),
                f"""
                n = torch.nn.functional.layer_norm(x + y, (x.shape[1],))
                return {reference}
                """,
                """
                s, n, out = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
                add[(x.numel() // 1024,)](x, y, s, BLOCK=1024)
                norm[(x.shape[0],)](s, n, x.shape[1], BLOCK=4096, num_warps=8)
                activate[(x.numel() // 1024,)](n, out, BLOCK=1024)
                return out
                """,
                "torch.randn(16384, 4096), torch.randn(16384, 4096)",
                "x, y",
            ),
        )


def _elements() -> Iterator[SickKernel]:
    yield make_case(
        "launches that change nothing",
        "dropout in eval, times one, relu",
        "pointwise",
        ("remove-dead-work", "fuse-pointwise-chain"),
        Body(
            _step("dropout", "v * 1.0") + _step("scale", "v * 1.0 + 0.0") + _step("last", "v"),
            """
            x = torch.nn.functional.dropout(x, 0.5, False) * 1.0 + 0.0
            return torch.relu(x)
            """,
            """
            grid = (x.numel() // 1024,)
            a, b, c = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
            dropout[grid](x, a, BLOCK=1024)
            scale[grid](a, b, BLOCK=1024)
            last[grid](b, c, BLOCK=1024)
            return torch.relu(c)
            """,
        ),
        ROWS=8192,
        COLUMNS=8192,
    )
    pairs = """
    @triton.jit
    def sick(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
        place = 2 * (tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))
        a, b = tl.load(x_ptr + place), tl.load(x_ptr + place + 1)
        c, d = tl.load(y_ptr + place), tl.load(y_ptr + place + 1)
        tl.store(out_ptr + place, a * c - b * d)
        tl.store(out_ptr + place + 1, a * d + b * c)
    """
    yield make_case(
        "parts of a pair loaded apart",
        "complex product",
        "pointwise",
        ("deinterleave-wide-loads",),
        Body(
            pairs,
            """
            a, b, c, d = x[..., 0], x[..., 1], y[..., 0], y[..., 1]
            return torch.stack([a * c - b * d, a * d + b * c], -1)
            """,
            """
            out = torch.empty_like(x)
            sick[(x.numel() // 2048,)](x, y, out, BLOCK=1024)
            return out
            """,
            "torch.randn(8192, 4096, 2), torch.randn(8192, 4096, 2)",
            "x, y",
        ),
    )
    grey = """
    @triton.jit
    def sick(x_ptr, out_ptr, BLOCK: tl.constexpr):
        pixel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        r, g = tl.load(x_ptr + pixel * 4), tl.load(x_ptr + pixel * 4 + 1)
        b = tl.load(x_ptr + pixel * 4 + 2)
        tl.store(out_ptr + pixel, 0.299 * r + 0.587 * g + 0.114 * b)
    """
    yield make_case(
        "parts of a pixel loaded apart",
        "grey of RGBA",
        "pointwise",
        ("deinterleave-wide-loads",),
        Body(
            grey,
            "return 0.299 * x[..., 0] + 0.587 * x[..., 1] + 0.114 * x[..., 2]",
            """
            out = x.new_empty(x.shape[:-1])
            sick[(out.numel() // 1024,)](x, out, BLOCK=1024)
            return out
            """,
            "torch.randn(16, 2048, 2048, 4)",
        ),
    )
    rotary = """
    half, grid = q.shape[-1] // 2, (q.numel() // 1024,)
    minus, a, b, out = (torch.empty_like(q) for _ in range(4))
    negate[grid](q, minus, BLOCK=1024)
    turned = torch.cat([minus[..., half:], q[..., :half]], -1)
    times[grid](q, cos, a, BLOCK=1024)
    times[grid](turned, sin, b, BLOCK=1024)
    add[grid](a, b, out, BLOCK=1024)
    return out
    """
    yield make_case(
        "a launch for each step of a rotation",
        "rotary embedding",
        "layout",
        ("fuse-rotary-embedding",),
        Body(
            _step("negate", "-v") + _join("times", "v * u") + _join("add", "v + u"),
            """
            half = q.shape[-1] // 2
            turned = torch.cat([-q[..., half:], q[..., :half]], -1)
            return q * cos + turned * sin
            """,
            rotary,
            "torch.randn(4, 32, 4096, 128), torch.randn(4, 32, 4096, 128),"
            " torch.randn(4, 32, 4096, 128)",
            "q, cos, sin",
        ),
    )
    taps = """
    @triton.jit
    def sick(x_ptr, w_ptr, out_ptr, size, BLOCK: tl.constexpr):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        rows = tl.arange(0, 8)
        acc = tl.zeros((8, BLOCK), tl.float32)
        for i in tl.static_range(48):
            at = (tl.program_id(1) * 8 + rows)[:, None] * size + place + i
            acc += tl.load(x_ptr + at, mask=place + i < size, other=0.0) * tl.load(w_ptr + i)
        at = (tl.program_id(1) * 8 + rows)[:, None] * (size - 47) + place
        tl.store(out_ptr + at, acc, mask=place < size - 47)
    """
    yield make_case(
        "every tap of a loop written out",
        "filter of 48 taps",
        "convolution",
        ("reduce-unrolling", "cut-live-ranges", "stencil-register-tiling"),
        Body(
            taps,
            "return torch.nn.functional.conv1d(x[:, None], w[None, None])[:, 0]",
            """
            size = x.shape[1]
            out = x.new_empty(x.shape[0], size - 47)
            sick[(triton.cdiv(size - 47, 512), x.shape[0] // 8)](x, w, out, size, BLOCK=512)
            return out
            """,
            "torch.randn(1024, 65536), torch.randn(48)",
            "x, w",
        ),
    )


def _steps() -> Iterator[SickKernel]:
    decay = """
    @triton.jit
    def step(x_ptr, h_ptr, out_ptr, stride, channels, BLOCK: tl.constexpr):
        lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        row = tl.program_id(1)
        h = 0.9 * tl.load(h_ptr + row * stride + lane) + 0.1 * tl.load(x_ptr + row * stride + lane)
        tl.store(out_ptr + row * stride + lane, h)
    """
    yield make_case(
        "a launch for each position",
        "moving average",
        "recurrent",
        ("chunked-linear-recurrence", "cuda-graph-replay"),
        Body(
            decay,
            """
            h, out = x[:, 0], [x[:, 0]]
            for t in range(1, x.shape[1]):
                h = 0.9 * h + 0.1 * x[:, t]
                out.append(h)
            return torch.stack(out, 1)
            """,
            """
            out = torch.empty_like(x)
            out[:, 0] = x[:, 0]
            stride, channels = x.shape[1] * x.shape[2], x.shape[2]
            grid = (channels // 256, x.shape[0])
            for t in range(1, x.shape[1]):
                step[grid](x[:, t], out[:, t - 1], out[:, t], stride, channels, BLOCK=256)
            return out
            """,
            "torch.randn(16, 128, 1024)",
        ),
    )
    power = """
    @triton.jit
    def multiply(a_ptr, v_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        lanes = tl.arange(0, BLOCK)
        acc = tl.load(a_ptr + tl.program_id(0) * columns + lanes) * tl.load(v_ptr + lanes)
        tl.store(out_ptr + tl.program_id(0), tl.sum(acc, 0))


    @triton.jit
    def norm(v_ptr, out_ptr, BLOCK: tl.constexpr):
        v = tl.load(v_ptr + tl.arange(0, BLOCK))
        tl.store(out_ptr + tl.arange(0, BLOCK), v / tl.sqrt(tl.sum(v * v, 0)))
    """
    yield make_case(
        "short launches that each wait for the one before",
        "power iteration",
        "matvec",
        (
            "dependent-launch-overlap",
            "cuda-graph-replay",
            "cached-launch",
        ),
        Body(
            power,
            """
            for _ in range(8):
                v = a @ v
                v = v / torch.linalg.vector_norm(v)
            return v
            """,
            """
            for _ in range(8):
                w, u = torch.empty_like(v), torch.empty_like(v)
                multiply[(a.shape[0],)](a, v, w, a.shape[1], BLOCK=1024)
                norm[(1,)](w, u, BLOCK=1024)
                v = u
            return v
            """,
            "torch.randn(1024, 1024), torch.randn(1024)",
            "a, v",
        ),
    )


def _updates() -> Iterator[SickKernel]:
    spread = """
    @triton.jit
    def sick(index_ptr, x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        lanes = tl.arange(0, BLOCK)
        row = tl.load(index_ptr + tl.program_id(0))
        v = tl.load(x_ptr + tl.program_id(0).to(tl.int64) * columns + lanes)
        tl.atomic_add(out_ptr + row * columns + lanes, v)
    """
    yield make_case(
        "many programs that add into few places",
        "index_add",
        "indexing",
        ("no-float-atomics", "several-rows-per-program"),
        Body(
            spread,
            "return x.new_zeros(64, x.shape[1]).index_add(0, index, x)",
            """
            out = x.new_zeros(64, x.shape[1])
            sick[(x.shape[0],)](index, x, out, x.shape[1], BLOCK=256)
            return out
            """,
            "torch.randint(0, 64, (262144,)), torch.randn(262144, 256)",
            "index, x",
        ),
    )
    columns = """
    @triton.jit
    def sick(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + tl.program_id(0).to(tl.int64) * columns + lane)
        tl.atomic_add(out_ptr + lane, v * SCALE)
    """
    for name, scale, reference in (
        ("sum of the rows", "1.0", "return x.sum(0)"),
        ("mean of the rows", "(1.0 / 65536)", "return x.mean(0)"),
    ):
        yield make_case(
            "each row added to one by atomics",
            name,
            "reduction",
            ("no-float-atomics", "reduce-outer-axis", "split-reduction"),
            Body(
                columns,
                reference,
                """
                out = x.new_zeros(x.shape[1])
                sick[(x.shape[0], x.shape[1] // 256)](x, out, x.shape[1], BLOCK=256)
                return out
                """,
            ),
            SCALE=scale,
            ROWS=65536,
            COLUMNS=2048,
        )
    places = """
    @triton.jit
    def sick(x_ptr, index_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        lanes = tl.arange(0, BLOCK)
        place = tl.load(index_ptr + row * BLOCK + lanes)
        v = tl.load(x_ptr + row * columns + place)
        tl.store(out_ptr + row * BLOCK + lanes, v)
    """
    yield make_case(
        "a program for each few picks",
        "gather along rows",
        "indexing",
        ("more-work-per-thread", "several-rows-per-program", "gather-whole-rows"),
        Body(
            places,
            "return x.gather(1, index)",
            """
            out = x.new_empty(index.shape)
            sick[(x.shape[0],)](x, index, out, x.shape[1], BLOCK=32, num_warps=1)
            return out
            """,
            "torch.randn(1 << 18, 1024), torch.randint(0, 1024, (1 << 18, 32))",
            "x, index",
        ),
    )
