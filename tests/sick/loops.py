"""Sick loops: written out, of short turns, down long rows by few programs."""

from collections.abc import Iterator

from sick.case import Body, SickKernel, make_case
from sick.parts import RUN_ROWS, row_step
from sick.tiles import MATMUL


def loop_cases() -> Iterator[SickKernel]:
    """The cases of this module."""
    yield from _written_out()
    yield from _short_turns()
    yield from _few_long_rows()
    yield from _few_long_lines()
    yield from _one_after_the_other()


def _written_out() -> Iterator[SickKernel]:
    kind = "a long loop written out"
    rows = row_step("sick", "0.0", "acc + v * v", "tl.sum(acc, 0)")
    written = rows.replace("range(0, columns, BLOCK)", "tl.static_range(0, 65536, BLOCK)")
    yield make_case(
        kind,
        "sum of squares",
        "reduction",
        ("reduce-unrolling", "cut-live-ranges"),
        Body(
            written + RUN_ROWS,
            "return (x * x).sum(1)",
            "return joined(sick, x, 512, num_warps=1)",
            "torch.randn(4096, 65536)",
        ),
    )
    yield make_case(
        kind,
        "half product of 512 deep",
        "matmul",
        ("reduce-unrolling", "pipeline-loads-with-stages"),
        Body(
            MATMUL.replace("range(0, K, TK)", "tl.static_range(0, 512, TK)"),
            "return torch.matmul(a, b)",
            "return multiplied(a, b, 128, 128, 32, num_warps=8)",
            "torch.randn(8192, 512).half(), torch.randn(512, 8192).half()",
            "a, b",
        ),
    )
    yield make_case(
        kind,
        "max_pool of 9",
        "pooling",
        ("reduce-unrolling", "separable-pooling", "stencil-register-tiling"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, out_ptr, width, across, BLOCK: tl.constexpr):
                lanes, rows = tl.arange(0, BLOCK), tl.program_id(1) * 8 + tl.arange(0, 8)
                column = tl.program_id(0) * BLOCK + lanes
                begin = tl.program_id(2).to(tl.int64)
                acc = tl.full((8, BLOCK), float("-inf"), tl.float32)
                for i in tl.static_range(9):
                    for j in tl.static_range(9):
                        place = begin * width * width + (rows[:, None] + i) * width + column + j
                        inside = (rows + i < width)[:, None] & (column + j < width)
                        acc = tl.maximum(acc, tl.load(x_ptr + place, inside, float("-inf")))
                place = begin * across * across + rows[:, None] * across + column
                tl.store(out_ptr + place, acc, (rows < across)[:, None] & (column < across))
            """,
            "return torch.nn.functional.max_pool2d(x, 9, 1)",
            """
            width = x.shape[3]
            out = x.new_empty(*x.shape[:2], width - 8, width - 8)
            planes = x.shape[0] * x.shape[1]
            grid = (triton.cdiv(width, 128), triton.cdiv(width, 8), planes)
            sick[grid](x, out, width, width - 8, BLOCK=128)
            return out
            """,
            "torch.randn(8, 32, 256, 256)",
        ),
    )
    yield make_case(
        kind,
        "polynomials of rows",
        "pointwise",
        ("reduce-unrolling", "cut-live-ranges"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, weight_ptr, out_ptr, columns, BLOCK: tl.constexpr):
                place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
                v = tl.load(x_ptr + place)
                acc = tl.zeros((BLOCK,), tl.float32)
                for i in tl.static_range(96):
                    acc = acc * v + tl.load(weight_ptr + i * columns + place)
                tl.store(out_ptr + place, acc)
            """,
            """
            acc = torch.zeros_like(x)
            for row in weight:
                acc = acc * x + row
            return acc
            """,
            """
            out = torch.empty_like(x)
            sick[(x.numel() // 2048,)](x, weight, out, x.numel(), BLOCK=2048)
            return out
            """,
            "torch.randn(1048576), torch.randn(96, 1048576)",
            "x, weight",
        ),
    )


def _short_turns() -> Iterator[SickKernel]:
    kind, right = "few bytes awaited each turn", ("more-loads-in-flight", "widen-vector-access")
    rows = (
        ("sum of roots", "0.0", "acc + tl.sqrt(tl.abs(v))", "tl.sum(acc, 0)"),
        ("largest magnitude", "0.0", "tl.maximum(acc, tl.abs(v))", "tl.max(acc, 0)"),
    )
    references = ("x.abs().sqrt().sum(1)", "x.abs().amax(1)")
    for (operator, *parts), reference in zip(rows, references, strict=True):
        yield make_case(
            kind,
            operator,
            "reduction",
            (*right, "tune-warps-and-stages", "more-work-per-thread"),
            Body(
                row_step("sick", *parts) + RUN_ROWS,
                f"return {reference}",
                "return joined(sick, x, 32, num_warps=1)",
                "torch.randn(8192, 16384)",
            ),
        )
    yield make_case(
        kind,
        "layer_norm",
        "norm",
        (*right, "row-norm", "welford-one-pass"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
                at = x_ptr + tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
                total, squares = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
                for start in range(0, columns, BLOCK):
                    v = tl.load(at + start)
                    total += v
                    squares += v * v
                mean = tl.sum(total, 0) / columns
                scale = tl.rsqrt(tl.sum(squares, 0) / columns - mean * mean + 1e-5)
                to = out_ptr + tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
                for start in range(0, columns, BLOCK):
                    tl.store(to + start, (tl.load(at + start) - mean) * scale)
            """,
            "return torch.nn.functional.layer_norm(x, x.shape[1:])",
            """
            out = torch.empty_like(x)
            sick[(x.shape[0],)](x, out, x.shape[1], BLOCK=32, num_warps=1)
            return out
            """,
            "torch.randn(16384, 8192)",
        ),
    )
    yield make_case(
        kind,
        "matrix times vector",
        "matvec",
        (*right, "matvec-rows-per-program"),
        Body(
            """
            @triton.jit
            def sick(a_ptr, x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
                begin = tl.program_id(0).to(tl.int64) * columns
                acc = tl.zeros((BLOCK,), tl.float32)
                for start in range(0, columns, BLOCK):
                    lanes = start + tl.arange(0, BLOCK)
                    acc += tl.load(a_ptr + begin + lanes) * tl.load(x_ptr + lanes)
                tl.store(out_ptr + tl.program_id(0), tl.sum(acc, 0))
            """,
            "return torch.mv(a, x)",
            """
            out = a.new_empty(a.shape[0])
            sick[(a.shape[0],)](a, x, out, a.shape[1], BLOCK=32, num_warps=1)
            return out
            """,
            "torch.randn(16384, 16384), torch.randn(16384)",
            "a, x",
        ),
    )


def _few_long_rows() -> Iterator[SickKernel]:
    kind = "a few long rows, a program each"
    split = ("split-reduction", "row-across-programs", "fill-the-grid")
    reductions = {
        "logsumexp of small values": ("0.0", "acc + tl.exp(v)", "tl.log(tl.sum(acc, 0))"),
        "product of factors": ("1.0", "acc * v", "tl.reduce(acc, 0, times)"),
    }
    times = "@triton.jit\ndef times(a, b):\n    return a * b\n\n"
    references = ("torch.logsumexp(x, 1)", "x.prod(1)")
    for (operator, parts), reference in zip(reductions.items(), references, strict=True):
        yield make_case(
            kind,
            operator,
            "reduction",
            split,
            Body(
                times + row_step("sick", *parts) + RUN_ROWS,
                f"return {reference}",
                "return joined(sick, x, 4096, num_warps=8)",
                "torch.rand(8, 4194304)",
            ),
        )
    yield make_case(
        kind,
        "l1 distance",
        "loss",
        (*split, "fuse-loss-with-mean"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, y_ptr, out_ptr, columns, BLOCK: tl.constexpr):
                begin = tl.program_id(0).to(tl.int64) * columns
                acc = tl.zeros((BLOCK,), tl.float32)
                for start in range(0, columns, BLOCK):
                    place = begin + start + tl.arange(0, BLOCK)
                    acc += tl.abs(tl.load(x_ptr + place) - tl.load(y_ptr + place))
                tl.store(out_ptr + tl.program_id(0), tl.sum(acc, 0) / columns)
            """,
            "return (x - y).abs().mean(1)",
            """
            out = x.new_empty(x.shape[0])
            sick[(x.shape[0],)](x, y, out, x.shape[1], BLOCK=4096, num_warps=8)
            return out
            """,
            "torch.randn(4, 4194304), torch.randn(4, 4194304)",
            "x, y",
        ),
    )
    yield make_case(
        kind,
        "softmax of a million columns",
        "softmax",
        ("row-across-programs", "online-softmax", "fill-the-grid"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
                begin = tl.program_id(0).to(tl.int64) * columns
                lanes = tl.arange(0, BLOCK)
                top = tl.full((BLOCK,), -1e30, tl.float32)
                total = tl.zeros((BLOCK,), tl.float32)
                for start in range(0, columns, BLOCK):
                    v = tl.load(x_ptr + begin + start + lanes)
                    new = tl.maximum(top, v)
                    total = total * tl.exp(top - new) + tl.exp(v - new)
                    top = new
                highest = tl.max(top, 0)
                whole = tl.sum(total * tl.exp(top - highest), 0)
                for start in range(0, columns, BLOCK):
                    v = tl.load(x_ptr + begin + start + lanes)
                    tl.store(out_ptr + begin + start + lanes, tl.exp(v - highest) / whole)
            """,
            "return torch.softmax(x, 1)",
            """
            out = torch.empty_like(x)
            sick[(x.shape[0],)](x, out, x.shape[1], BLOCK=4096, num_warps=8)
            return out
            """,
            "torch.randn(16, 1048576)",
        ),
    )


def _few_long_lines() -> Iterator[SickKernel]:
    yield make_case(
        "few tiles and a long sum",
        "half product of 262144 deep",
        "matmul",
        ("split-k-matmul", "fill-the-grid", "stream-k-matmul"),
        Body(
            MATMUL,
            "return torch.matmul(a, b)",
            "return multiplied(a, b, 64, 64, 64, num_warps=4)",
            "torch.randn(256, 262144).half(), torch.randn(262144, 256).half()",
            "a, b",
        ),
    )
    yield make_case(
        "few tiles and a long sum",
        "a few rows times a vector",
        "matvec",
        ("split-k-matmul", "matvec-rows-per-program", "fill-the-grid", "split-reduction"),
        Body(
            """
            @triton.jit
            def sick(a_ptr, x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
                begin = tl.program_id(0).to(tl.int64) * columns
                acc = tl.zeros((BLOCK,), tl.float32)
                for start in range(0, columns, BLOCK):
                    lanes = start + tl.arange(0, BLOCK)
                    acc += tl.load(a_ptr + begin + lanes) * tl.load(x_ptr + lanes)
                tl.store(out_ptr + tl.program_id(0), tl.sum(acc, 0))
            """,
            "return torch.mv(a, x)",
            """
            out = a.new_empty(a.shape[0])
            sick[(a.shape[0],)](a, x, out, a.shape[1], BLOCK=2048, num_warps=8)
            return out
            """,
            "torch.randn(32, 2097152), torch.randn(2097152)",
            "a, x",
        ),
    )
    yield make_case(
        "a program for each channel of few",
        "batch_norm in training",
        "norm",
        ("batch-norm-training-statistics", "fill-the-grid", "group-norm-split-statistics"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, out_ptr, images, channels, pixels, BLOCK: tl.constexpr):
                begin = tl.program_id(0).to(tl.int64) * pixels
                total, squares = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
                for image in range(images):
                    for start in range(0, pixels, BLOCK):
                        place = begin + image * channels * pixels + start + tl.arange(0, BLOCK)
                        v = tl.load(x_ptr + place)
                        total += v
                        squares += v * v
                count = images * pixels
                mean = tl.sum(total, 0) / count
                scale = tl.rsqrt(tl.sum(squares, 0) / count - mean * mean + 1e-5)
                for image in range(images):
                    for start in range(0, pixels, BLOCK):
                        place = begin + image * channels * pixels + start + tl.arange(0, BLOCK)
                        tl.store(out_ptr + place, (tl.load(x_ptr + place) - mean) * scale)
            """,
            "return torch.nn.functional.batch_norm(x, None, None, training=True)",
            """
            out = torch.empty_like(x)
            images, channels = x.shape[:2]
            pixels = x.shape[2] * x.shape[3]
            sick[(channels,)](x, out, images, channels, pixels, BLOCK=2048, num_warps=8)
            return out
            """,
            "torch.randn(32, 16, 256, 256)",
        ),
    )
    yield make_case(
        "a program for each of a few planes",
        "global average of large images",
        "pooling",
        ("split-reduction", "fill-the-grid", "adaptive-pool-as-reduction"),
        Body(
            row_step("sick", "0.0", "acc + v", "tl.sum(acc, 0) / columns") + RUN_ROWS,
            "return torch.nn.functional.adaptive_avg_pool2d(x, 1)",
            """
            flat = x.view(x.shape[0] * x.shape[1], -1)
            return joined(sick, flat, 2048, num_warps=8).view(*x.shape[:2], 1, 1)
            """,
            "torch.randn(4, 3, 4096, 4096)",
        ),
    )


def _one_after_the_other() -> Iterator[SickKernel]:
    kind = "one element of time after the other"
    yield make_case(
        kind,
        "gated recurrence",
        "recurrent",
        ("chunked-linear-recurrence", "more-loads-in-flight", "fill-the-grid"),
        Body(
            """
            @triton.jit
            def sick(a_ptr, b_ptr, out_ptr, steps, channels, BLOCK: tl.constexpr):
                begin = tl.program_id(1).to(tl.int64) * steps * channels
                place = begin + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
                h = tl.zeros((BLOCK,), tl.float32)
                for _ in range(steps):
                    h = h * tl.load(a_ptr + place) + tl.load(b_ptr + place)
                    tl.store(out_ptr + place, h)
                    place += channels
            """,
            """
            h, kept = torch.zeros_like(b[:, 0]), []
            for t in range(b.shape[1]):
                h = h * a[:, t] + b[:, t]
                kept.append(h)
            return torch.stack(kept, 1)
            """,
            """
            out = torch.empty_like(b)
            sick[(b.shape[2] // 32, b.shape[0])](
                a, b, out, b.shape[1], b.shape[2], BLOCK=32, num_warps=1
            )
            return out
            """,
            "torch.rand(8, 64, 512), torch.randn(8, 64, 512)",
            "a, b",
        ),
    )
    yield make_case(
        kind,
        "cumprod of rows",
        "scan",
        ("blocked-row-scan", "coalesce-lane-axis"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
                rows = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
                carried = tl.full((BLOCK,), 1.0, tl.float32)
                for column in range(columns):
                    carried *= tl.load(x_ptr + rows * columns + column)
                    tl.store(out_ptr + rows * columns + column, carried)
            """,
            "return torch.cumprod(x, 1)",
            """
            out = torch.empty_like(x)
            sick[(x.shape[0] // 32,)](x, out, x.shape[1], BLOCK=32, num_warps=1)
            return out
            """,
            "torch.randn(32768, 4096)",
        ),
    )
    yield make_case(
        "a short block scanned each turn",
        "cumsum of 65536 columns",
        "scan",
        ("blocked-row-scan", "more-loads-in-flight"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
                begin = tl.program_id(0).to(tl.int64) * columns
                carried = 0.0
                for start in range(0, columns, BLOCK):
                    place = begin + start + tl.arange(0, BLOCK)
                    v = tl.load(x_ptr + place)
                    tl.store(out_ptr + place, tl.cumsum(v, 0) + carried)
                    carried += tl.sum(v, 0)
            """,
            "return torch.cumsum(x, 1)",
            """
            out = torch.empty_like(x)
            sick[(x.shape[0],)](x, out, x.shape[1], BLOCK=32, num_warps=1)
            return out
            """,
            "torch.randn(4096, 65536)",
        ),
    )
