"""Sick places: lanes on the wrong axis, parts loaded apart, places found dearly, caches misused."""

from collections.abc import Iterator

from sick.case import Body, SickKernel, make_case


def place_cases() -> Iterator[SickKernel]:
    """The cases of this module."""
    yield from _lanes()
    yield from _parts()
    yield from _found()
    yield from _streams()


def _lanes() -> Iterator[SickKernel]:
    kind = "lanes across the dense axis"
    yield make_case(
        kind,
        "sum over tokens",
        "reduction",
        ("reduce-outer-axis", "coalesce-lane-axis"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, out_ptr, tokens, width, BLOCK: tl.constexpr):
                batch, column = tl.program_id(1).to(tl.int64), tl.program_id(0)
                acc = tl.zeros((BLOCK,), tl.float32)
                for start in range(0, tokens, BLOCK):
                    token = start + tl.arange(0, BLOCK)
                    acc += tl.load(x_ptr + (batch * tokens + token) * width + column)
                tl.store(out_ptr + batch * width + column, tl.sum(acc, 0))
            """,
            "return x.sum(1)",
            """
            out = x.new_empty(x.shape[0], x.shape[2])
            sick[(x.shape[2], x.shape[0])](x, out, x.shape[1], x.shape[2], BLOCK=1024)
            return out
            """,
            "torch.randn(16, 4096, 1024)",
        ),
    )
    yield make_case(
        kind,
        "softmax over channels",
        "softmax",
        ("strided-axis-norm", "coalesce-lane-axis"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, out_ptr, pixels, CHANNELS: tl.constexpr):
                channel = tl.arange(0, CHANNELS)
                begin = tl.program_id(1).to(tl.int64) * CHANNELS * pixels
                place = begin + channel * pixels + tl.program_id(0)
                v = tl.load(x_ptr + place)
                e = tl.exp(v - tl.max(v, 0))
                tl.store(out_ptr + place, e / tl.sum(e, 0))
            """,
            "return torch.softmax(x, 1)",
            """
            out = torch.empty_like(x)
            pixels = x.shape[2] * x.shape[3]
            sick[(pixels, x.shape[0])](x, out, pixels, CHANNELS=x.shape[1])
            return out
            """,
            "torch.randn(16, 128, 128, 128)",
        ),
    )
    yield make_case(
        kind,
        "index_select",
        "embedding",
        ("gather-whole-rows", "coalesce-lane-axis"),
        Body(
            """
            @triton.jit
            def sick(index_ptr, table_ptr, out_ptr, width, BLOCK: tl.constexpr):
                item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
                row = tl.load(index_ptr + item)
                for column in range(width):
                    v = tl.load(table_ptr + row * width + column)
                    tl.store(out_ptr + item * width + column, v)
            """,
            "return torch.index_select(table, 0, index)",
            """
            out = table.new_empty(index.shape[0], table.shape[1])
            sick[(index.shape[0] // 128,)](index, table, out, table.shape[1], BLOCK=128)
            return out
            """,
            "torch.randint(0, 100000, (262144,)), torch.randn(100000, 256)",
            "index, table",
        ),
    )
    yield make_case(
        kind,
        "last two axes exchanged",
        "layout",
        ("transpose-through-tile", "coalesce-lane-axis"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, out_ptr, rows, columns, BLOCK: tl.constexpr):
                begin = tl.program_id(2).to(tl.int64) * rows * columns
                row = tl.program_id(0)
                column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
                v = tl.load(x_ptr + begin + row * columns + column)
                tl.store(out_ptr + begin + column * rows + row, v)
            """,
            "return x.transpose(1, 2).contiguous()",
            """
            out = x.new_empty(x.shape[0], x.shape[2], x.shape[1])
            grid = (x.shape[1], x.shape[2] // 512, x.shape[0])
            sick[grid](x, out, x.shape[1], x.shape[2], BLOCK=512)
            return out
            """,
            "torch.randn(16, 2048, 2048)",
        ),
    )
    yield make_case(
        kind,
        "cumsum down columns",
        "scan",
        ("coalesce-lane-axis", "reduce-outer-axis"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, out_ptr, rows, columns, BLOCK: tl.constexpr):
                column, carried = tl.program_id(0), 0.0
                for start in range(0, rows, BLOCK):
                    place = (start + tl.arange(0, BLOCK)).to(tl.int64) * columns + column
                    v = tl.load(x_ptr + place)
                    tl.store(out_ptr + place, tl.cumsum(v, 0) + carried)
                    carried += tl.sum(v, 0)
            """,
            "return torch.cumsum(x, 0)",
            """
            out = torch.empty_like(x)
            sick[(x.shape[1],)](x, out, x.shape[0], x.shape[1], BLOCK=1024)
            return out
            """,
            "torch.randn(8192, 8192)",
        ),
    )
    yield make_case(
        kind,
        "scale of channels that lie last",
        "pointwise",
        ("coalesce-lane-axis",),
        Body(
            """
            @triton.jit
            def sick(x_ptr, scale_ptr, out_ptr, channels, BLOCK: tl.constexpr):
                pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
                for channel in range(channels):
                    place = pixel.to(tl.int64) * channels + channel
                    scale = tl.load(scale_ptr + channel)
                    tl.store(out_ptr + place, tl.load(x_ptr + place) * scale)
            """,
            "return x * scale",
            """
            out = torch.empty_like(x)
            sick[(x.shape[0] // 256,)](x, scale, out, x.shape[1], BLOCK=256)
            return out
            """,
            "torch.randn(1048576, 64), torch.randn(64)",
            "x, scale",
        ),
    )


def _parts() -> Iterator[SickKernel]:
    pairs = (
        (
            "rotation of adjacent pairs",
            "layout",
            ("deinterleave-wide-loads", "fuse-rotary-embedding"),
            "a * 0.8 - b * 0.6",
            "a * 0.6 + b * 0.8",
        ),
        (
            "complex squares",
            "pointwise",
            ("deinterleave-wide-loads",),
            "a * a - b * b",
            "2.0 * a * b",
        ),
    )
    for operator, family, right, first, second in pairs:
        yield make_case(
            "parts of a pair loaded and stored apart",
            operator,
            family,
            right,
            Body(
                """
                @triton.jit
                def sick(x_ptr, out_ptr, BLOCK: tl.constexpr):
                    pair = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
                    a = tl.load(x_ptr + 2 * pair)
                    b = tl.load(x_ptr + 2 * pair + 1)
                    tl.store(out_ptr + 2 * pair, FIRST)
                    tl.store(out_ptr + 2 * pair + 1, SECOND)
                """,
                """
                a, b = x[..., 0::2], x[..., 1::2]
                return torch.stack([FIRST, SECOND], -1).flatten(-2)
                """,
                """
                out = torch.empty_like(x)
                sick[(x.numel() // 2048,)](x, out, BLOCK=1024)
                return out
                """,
                "torch.randn(16384, 4096)",
            ),
            FIRST=first,
            SECOND=second,
        )
    yield make_case(
        "parts of a pair loaded apart",
        "average of pairs along rows",
        "pooling",
        ("deinterleave-wide-loads", "separable-pooling"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, out_ptr, BLOCK: tl.constexpr):
                place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
                a, b = tl.load(x_ptr + 2 * place), tl.load(x_ptr + 2 * place + 1)
                tl.store(out_ptr + place, (a + b) * 0.5)
            """,
            "return torch.nn.functional.avg_pool1d(x, 2)",
            """
            out = x.new_empty(*x.shape[:2], x.shape[2] // 2)
            sick[(out.numel() // 1024,)](x, out, BLOCK=1024)
            return out
            """,
            "torch.randn(64, 128, 16384)",
        ),
    )


def _found() -> Iterator[SickKernel]:
    kind, right = "places found by division", ("simplify-index-arithmetic",)
    yield make_case(
        kind,
        "avg_pool of 2",
        "pooling",
        (*right, "reduce-instruction-count", "separable-pooling", "deinterleave-wide-loads"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, out_ptr, channels, height, width, BLOCK: tl.constexpr):
                place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
                column, row = place % width, place // width % height
                channel = place // (width * height) % channels
                image = place // (width * height * channels)
                at = ((image * channels + channel) * height * 2 + row * 2) * width * 2 + column * 2
                top = tl.load(x_ptr + at) + tl.load(x_ptr + at + 1)
                low = tl.load(x_ptr + at + width * 2) + tl.load(x_ptr + at + width * 2 + 1)
                tl.store(out_ptr + place, (top + low) * 0.25)
            """,
            "return torch.nn.functional.avg_pool2d(x, 2)",
            """
            height, width = x.shape[2] // 2, x.shape[3] // 2
            out = x.new_empty(*x.shape[:2], height, width)
            sick[(out.numel() // 1024,)](x, out, x.shape[1], height, width, BLOCK=1024)
            return out
            """,
            "torch.randn(32, 64, 224, 224)",
        ),
    )
    yield make_case(
        kind,
        "pixel shuffle",
        "layout",
        (*right, "reduce-instruction-count"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, out_ptr, channels, height, width, BLOCK: tl.constexpr):
                place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
                column, row = place % (2 * width), place // (2 * width) % (2 * height)
                channel = place // (4 * width * height) % channels
                image = place // (4 * width * height * channels)
                part = channel * 4 + row % 2 * 2 + column % 2
                at = ((image * channels * 4 + part) * height + row // 2) * width + column // 2
                tl.store(out_ptr + place, tl.load(x_ptr + at))
            """,
            "return torch.nn.functional.pixel_shuffle(x, 2)",
            """
            images, channels, height, width = x.shape
            out = x.new_empty(images, channels // 4, height * 2, width * 2)
            grid = (out.numel() // 1024,)
            sick[grid](x, out, channels // 4, height, width, BLOCK=1024)
            return out
            """,
            "torch.randn(16, 256, 112, 112)",
        ),
    )
    yield make_case(
        "digits of a place in 64 bits",
        "bias of channels",
        "pointwise",
        (*right, "reduce-instruction-count"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, bias_ptr, out_ptr, pixels, channels, BLOCK: tl.constexpr):
                place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
                channel = place // pixels.to(tl.int64) % channels.to(tl.int64)
                v = tl.load(x_ptr + place) + tl.load(bias_ptr + channel)
                tl.store(out_ptr + place, v)
            """,
            "return x + bias[:, None, None]",
            """
            out = torch.empty_like(x)
            pixels = x.shape[2] * x.shape[3]
            sick[(x.numel() // 1024,)](x, bias, out, pixels, x.shape[1], BLOCK=1024)
            return out
            """,
            "torch.randn(32, 96, 192, 192), torch.randn(96)",
            "x, bias",
        ),
    )


def _streams() -> Iterator[SickKernel]:
    kind, right = "a stream that pushes out what comes back", ("eviction-hints",)
    yield make_case(
        kind,
        "rows times one long vector",
        "pointwise",
        right,
        Body(
            """
            @triton.jit
            def sick(x_ptr, w_ptr, out_ptr, columns, BLOCK: tl.constexpr):
                lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
                place = tl.program_id(1).to(tl.int64) * columns + lanes
                tl.store(out_ptr + place, tl.load(x_ptr + place) * tl.load(w_ptr + lanes))
            """,
            "return x * w",
            """
            out = torch.empty_like(x)
            sick[(x.shape[1] // 1024, x.shape[0])](x, w, out, x.shape[1], BLOCK=1024)
            return out
            """,
            "torch.randn(64, 4194304), torch.randn(4194304)",
            "x, w",
        ),
    )
    yield make_case(
        kind,
        "weighted sums of long rows",
        "reduction",
        right,
        Body(
            """
            @triton.jit
            def sick(x_ptr, w_ptr, out_ptr, columns, BLOCK: tl.constexpr):
                begin = tl.program_id(0).to(tl.int64) * columns
                acc = tl.zeros((BLOCK,), tl.float32)
                for start in range(0, columns, BLOCK):
                    lanes = start + tl.arange(0, BLOCK)
                    acc += tl.load(x_ptr + begin + lanes) * tl.load(w_ptr + lanes)
                tl.store(out_ptr + tl.program_id(0), tl.sum(acc, 0))
            """,
            "return (x * w).sum(1)",
            """
            out = x.new_empty(x.shape[0])
            sick[(x.shape[0],)](x, w, out, x.shape[1], BLOCK=4096, num_warps=8)
            return out
            """,
            "torch.randn(1056, 1048576), torch.randn(1048576)",
            "x, w",
        ),
    )
    yield make_case(
        kind,
        "rms_norm with a weight of long rows",
        "norm",
        (*right, "l2-resident-two-phase"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, w_ptr, out_ptr, columns, BLOCK: tl.constexpr):
                begin = tl.program_id(0).to(tl.int64) * columns
                squares = tl.zeros((BLOCK,), tl.float32)
                for start in range(0, columns, BLOCK):
                    v = tl.load(x_ptr + begin + start + tl.arange(0, BLOCK))
                    squares += v * v
                scale = tl.rsqrt(tl.sum(squares, 0) / columns + 1e-6)
                for start in range(0, columns, BLOCK):
                    lanes = start + tl.arange(0, BLOCK)
                    v = tl.load(x_ptr + begin + lanes)
                    tl.store(out_ptr + begin + lanes, v * scale * tl.load(w_ptr + lanes))
            """,
            "return torch.nn.functional.rms_norm(x, x.shape[1:], w, 1e-6)",
            """
            out = torch.empty_like(x)
            sick[(x.shape[0],)](x, w, out, x.shape[1], BLOCK=4096, num_warps=8)
            return out
            """,
            "torch.randn(4096, 131072), torch.randn(131072)",
            "x, w",
        ),
    )
    yield make_case(
        kind,
        "sums of looked up rows and a stream",
        "embedding",
        (*right, "gather-whole-rows"),
        Body(
            """
            @triton.jit
            def sick(index_ptr, table_ptr, x_ptr, out_ptr, width: tl.constexpr):
                item, lanes = tl.program_id(0).to(tl.int64), tl.arange(0, width)
                row = tl.load(index_ptr + item)
                v = tl.load(table_ptr + row * width + lanes)
                tl.store(out_ptr + item * width + lanes, v + tl.load(x_ptr + item * width + lanes))
            """,
            "return torch.nn.functional.embedding(index, table) + x",
            """
            out = torch.empty_like(x)
            sick[(x.shape[0],)](index, table, x, out, x.shape[1])
            return out
            """,
            "torch.randint(0, 4096, (262144,)), torch.randn(4096, 1024), torch.randn(262144, 1024)",
            "index, table, x",
        ),
    )
