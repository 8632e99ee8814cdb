"""Sick forwards: results that pass through memory, copies, fills and launches that need not be."""

from collections.abc import Iterator
from textwrap import dedent

from sick.case import Body, SickKernel, make_case
from sick.parts import RUN_ROWS, RUN_STEP, row_step, step
from sick.tiles import MATMUL

_SQUARE = "torch.randn(8192, 8192)"


def pass_cases() -> Iterator[SickKernel]:
    """The cases of this module."""
    yield from _steps()
    yield from _figures()
    yield from _copies()
    yield from _fills()
    yield from _atomics()
    yield from _sequences()


def _steps() -> Iterator[SickKernel]:
    kind = "a launch for each step of a formula"
    moments = step("first", "0.9 * v + 0.1 * u", "vu") + step(
        "second", "0.99 * v + 0.01 * u * u", "vu"
    )
    yield make_case(
        kind,
        "update by two moments",
        "pointwise",
        ("fuse-pointwise-chain", "horizontal-fusion"),
        Body(
            moments + step("moved", "v - 0.01 * u / (tl.sqrt(w) + 1e-8)", "vuw") + RUN_STEP,
            """
            m, s = 0.9 * m + 0.1 * g, 0.99 * s + 0.01 * g * g
            return p - 0.01 * m / (torch.sqrt(s) + 1e-8)
            """,
            """
            m, s = stepped(first, m, g), stepped(second, s, g)
            return stepped(moved, p, m, s)
            """,
            f"{_SQUARE}, {_SQUARE}, {_SQUARE}, {_SQUARE}",
            "p, g, m, s",
        ),
    )
    yield make_case(
        kind,
        "kl divergence of probabilities",
        "loss",
        ("fuse-loss-with-mean",),
        Body(
            step("logged", "tl.log(v)")
            + step("term", "v * (tl.log(v) - u)", "vu")
            + row_step("total", "0.0", "acc + v", "tl.sum(acc, 0)")
            + RUN_STEP
            + RUN_ROWS,
            "return (p * (p.log() - q.log())).sum(1).mean()",
            "return joined(total, stepped(term, p, stepped(logged, q))).mean()",
            "torch.rand(8192, 8192), torch.rand(8192, 8192)",
            "p, q",
        ),
    )
    yield make_case(
        kind,
        "scaled and masked softmax",
        "softmax",
        ("online-softmax", "fuse-pointwise-chain"),
        Body(
            step("scaled", "v * 0.125")
            + step("masked", "tl.where(u > 0, v, -1e30)", "vu")
            + dedent("""
            @triton.jit
            def soft(x_ptr, out_ptr, COLUMNS: tl.constexpr):
                place = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
                v = tl.load(x_ptr + place)
                e = tl.exp(v - tl.max(v, 0))
                tl.store(out_ptr + place, e / tl.sum(e, 0))
            """)
            + RUN_STEP,
            "return torch.softmax(torch.where(m > 0, x * 0.125, torch.full_like(x, -1e30)), 1)",
            """
            y = stepped(masked, stepped(scaled, x), m)
            out = torch.empty_like(y)
            soft[(y.shape[0],)](y, out, COLUMNS=y.shape[1], num_warps=8)
            return out
            """,
            "torch.randn(32768, 2048), torch.randint(0, 2, (32768, 2048))",
            "x, m",
        ),
    )
    yield make_case(
        "an activation of each value before a maximum",
        "sigmoid, max of rows",
        "reduction",
        ("move-monotone-past-max", "fuse-pointwise-chain"),
        Body(
            step("curved", "tl.sigmoid(v)")
            + row_step("top", "-1e30", "tl.maximum(acc, v)", "tl.max(acc, 0)")
            + RUN_STEP
            + RUN_ROWS,
            "return torch.sigmoid(x).amax(1)",
            "return joined(top, stepped(curved, x))",
            _SQUARE,
        ),
    )
    yield make_case(
        "launches before and behind the norm",
        "group_norm, silu",
        "norm",
        ("fuse-norm-residual-activation",),
        Body(
            dedent("""
            @triton.jit
            def normed(x_ptr, out_ptr, COLUMNS: tl.constexpr):
                place = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
                v = tl.load(x_ptr + place)
                far = v - tl.sum(v, 0) / COLUMNS
                scale = tl.rsqrt(tl.sum(far * far, 0) / COLUMNS + 1e-5)
                tl.store(out_ptr + place, far * scale)
            """)
            + step("curved", "v * tl.sigmoid(v)")
            + RUN_STEP,
            "return torch.nn.functional.silu(torch.nn.functional.group_norm(x, 32))",
            """
            out = torch.empty_like(x)
            normed[(x.shape[0] * 32,)](x, out, COLUMNS=x[0].numel() // 32, num_warps=8)
            return stepped(curved, out)
            """,
            "torch.randn(64, 256, 32, 32)",
        ),
    )


def _figures() -> Iterator[SickKernel]:
    sums = row_step("total", "0.0", "acc + v", "tl.sum(acc, 0)")
    tops = row_step("top", "-1e30", "tl.maximum(acc, v)", "tl.max(acc, 0)")
    lows = row_step("low", "1e30", "tl.minimum(acc, v)", "tl.min(acc, 0)")
    yield make_case(
        "a launch for each figure of the same rows",
        "sum, maximum and minimum",
        "reduction",
        ("horizontal-fusion",),
        Body(
            sums + tops + lows + RUN_ROWS,
            "return torch.stack([x.sum(1), x.amax(1), x.amin(1)])",
            "return torch.stack([joined(total, x), joined(top, x), joined(low, x)])",
            _SQUARE,
        ),
    )
    yield make_case(
        "a launch for each figure of the same rows",
        "batch_norm in training",
        "norm",
        ("batch-norm-training-statistics", "welford-one-pass", "horizontal-fusion"),
        Body(
            """
            @triton.jit
            def joined(x_ptr, mean_ptr, out_ptr, images, pixels, POWER: tl.constexpr):
                channel, channels = tl.program_id(0), tl.num_programs(0)
                mean = tl.load(mean_ptr + channel)
                acc = tl.zeros((1024,), tl.float32)
                for image in range(images):
                    begin = (image * channels + channel).to(tl.int64) * pixels
                    for start in range(0, pixels, 1024):
                        v = tl.load(x_ptr + begin + start + tl.arange(0, 1024)) - mean
                        acc += v if POWER == 1 else v * v
                tl.store(out_ptr + channel, tl.sum(acc, 0) / (images * pixels))

            @triton.jit
            def apply(x_ptr, mean_ptr, spread_ptr, out_ptr, channels, pixels, BLOCK: tl.constexpr):
                plane = tl.program_id(1).to(tl.int64)
                place = plane * pixels + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
                mean = tl.load(mean_ptr + plane % channels)
                scale = tl.rsqrt(tl.load(spread_ptr + plane % channels) + 1e-5)
                tl.store(out_ptr + place, (tl.load(x_ptr + place) - mean) * scale)
            """,
            "return torch.nn.functional.batch_norm(x, None, None, training=True)",
            """
            images, channels, pixels = *x.shape[:2], x.shape[2] * x.shape[3]
            zero, mean, spread = (x.new_zeros(channels) for _ in range(3))
            joined[(channels,)](x, zero, mean, images, pixels, POWER=1)
            joined[(channels,)](x, mean, spread, images, pixels, POWER=2)
            out = torch.empty_like(x)
            grid = (pixels // 1024, images * channels)
            apply[grid](x, mean, spread, out, channels, pixels, BLOCK=1024)
            return out
            """,
            "torch.randn(32, 512, 64, 64)",
        ),
    )
    yield make_case(
        "the same rows multiplied by three matrices apart",
        "queries, keys and values",
        "matmul",
        ("horizontal-fusion",),
        Body(
            MATMUL,
            "return a @ q, a @ k, a @ v",
            """
            return tuple(multiplied(a, b, 128, 128, 64, num_warps=8) for b in (q, k, v))
            """,
            "torch.randn(16384, 1024).half(), torch.randn(1024, 1024).half(), "
            "torch.randn(1024, 128).half(), torch.randn(1024, 128).half()",
            "a, q, k, v",
        ),
    )


def _copies() -> Iterator[SickKernel]:
    rows = row_step("total", "0.0", "acc + v", "tl.sum(acc, 0)") + RUN_ROWS
    yield make_case(
        "a cast in a pass of its own",
        "sum of half rows",
        "reduction",
        ("avoid-hidden-copies", "fuse-pointwise-chain"),
        Body(
            rows,
            "return x.float().sum(1)",
            "return joined(total, x.float())",
            "torch.randn(16384, 8192).half()",
        ),
    )
    yield make_case(
        "a copy that makes it dense before",
        "relu of every second column",
        "pointwise",
        ("avoid-hidden-copies", "deinterleave-wide-loads"),
        Body(
            step("sick", "tl.maximum(v, 0.0)") + RUN_STEP,
            "return torch.relu(x[:, ::2])",
            "return stepped(sick, x[:, ::2].contiguous())",
            "torch.randn(16384, 16384)",
        ),
    )
    yield make_case(
        "a copy that makes it dense before",
        "sum of columns of a transposed view",
        "reduction",
        ("avoid-hidden-copies", "reduce-outer-axis", "transpose-through-tile"),
        Body(
            rows,
            "return x.t().sum(1)",
            "return joined(total, x.t().contiguous())",
            "torch.randn(16384, 8192)",
        ),
    )
    yield make_case(
        "a product turned round by a copy",
        "batched product of heads",
        "matmul",
        ("write-where-copied", "avoid-hidden-copies"),
        Body(
            """
            @triton.jit
            def sick(a_ptr, b_ptr, out_ptr, M, N, K, TM: tl.constexpr, TN: tl.constexpr):
                rows = tl.program_id(1) * TM + tl.arange(0, TM)
                columns = tl.program_id(0) * TN + tl.arange(0, TN)
                batch = tl.program_id(2).to(tl.int64)
                acc = tl.zeros((TM, TN), tl.float32)
                for k in range(0, K, 32):
                    ks = k + tl.arange(0, 32)
                    a = tl.load(a_ptr + batch * M * K + rows[:, None] * K + ks)
                    b = tl.load(b_ptr + batch * K * N + ks[:, None] * N + columns)
                    acc = tl.dot(a, b, acc)
                place = batch * M * N + rows[:, None] * N + columns
                tl.store(out_ptr + place, acc.to(tl.float16))
            """,
            "return torch.matmul(p, v).transpose(1, 2).reshape(p.shape[0], p.shape[2], -1)",
            """
            out = p.new_empty(*p.shape[:3], v.shape[3])
            M, N, K = p.shape[2], v.shape[3], p.shape[3]
            grid = (N // 64, M // 128, p.shape[0] * p.shape[1])
            sick[grid](p, v, out, M, N, K, TM=128, TN=64)
            return out.transpose(1, 2).reshape(p.shape[0], M, -1)
            """,
            "torch.randn(16, 16, 1024, 64).half(), torch.randn(16, 16, 64, 64).half()",
            "p, v",
        ),
    )
    yield make_case(
        "a copy put together after every layer",
        "three steps of a dense block",
        "layout",
        ("concatenate-in-place", "avoid-hidden-copies"),
        Body(
            step("grown", "tl.maximum(v, 0.0) * 0.5") + RUN_STEP,
            """
            for _ in range(3):
                x = torch.cat([x, torch.relu(x[:, :32]) * 0.5], 1)
            return x
            """,
            """
            for _ in range(3):
                x = torch.cat([x, stepped(grown, x[:, :32].contiguous())], 1)
            return x
            """,
            "torch.randn(32, 32, 128, 128)",
        ),
    )
    yield make_case(
        "a mask applied in a pass before",
        "masked cumsum",
        "scan",
        ("scan-without-flip-copies", "fuse-pointwise-chain"),
        Body(
            step("masked", "tl.where(u > 0, v, 0.0)", "vu")
            + dedent("""
            @triton.jit
            def scanned(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
                begin = tl.program_id(0).to(tl.int64) * columns
                carried = 0.0
                for start in range(0, columns, BLOCK):
                    place = begin + start + tl.arange(0, BLOCK)
                    v = tl.load(x_ptr + place)
                    tl.store(out_ptr + place, tl.cumsum(v, 0) + carried)
                    carried += tl.sum(v, 0)
            """)
            + RUN_STEP,
            "return torch.cumsum(torch.where(m > 0, x, torch.zeros_like(x)), 1)",
            """
            y = stepped(masked, x, m)
            out = torch.empty_like(y)
            scanned[(y.shape[0],)](y, out, y.shape[1], BLOCK=2048)
            return out
            """,
            "torch.randn(16384, 8192), torch.randint(0, 2, (16384, 8192))",
            "x, m",
        ),
    )


def _fills() -> Iterator[SickKernel]:
    kind, right = "a result filled before it is written", ("avoid-hidden-copies",)
    yield make_case(
        kind,
        "silu",
        "pointwise",
        right,
        Body(
            step("sick", "v * tl.sigmoid(v)"),
            "return torch.nn.functional.silu(x)",
            """
            out = torch.zeros_like(x)
            sick[(x.numel() // 1024,)](x, out, BLOCK=1024)
            return out
            """,
            _SQUARE,
        ),
    )
    yield make_case(
        kind,
        "softmax",
        "softmax",
        right,
        Body(
            """
            @triton.jit
            def sick(x_ptr, out_ptr, COLUMNS: tl.constexpr):
                place = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
                v = tl.load(x_ptr + place)
                e = tl.exp(v - tl.max(v, 0))
                tl.store(out_ptr + place, e / tl.sum(e, 0))
            """,
            "return torch.softmax(x, 1)",
            """
            out = torch.zeros_like(x)
            sick[(x.shape[0],)](x, out, COLUMNS=x.shape[1], num_warps=8)
            return out
            """,
            "torch.randn(32768, 2048)",
        ),
    )
    yield make_case(
        kind,
        "cumsum of 2048 columns",
        "scan",
        right,
        Body(
            """
            @triton.jit
            def sick(x_ptr, out_ptr, COLUMNS: tl.constexpr):
                place = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
                tl.store(out_ptr + place, tl.cumsum(tl.load(x_ptr + place), 0))
            """,
            "return torch.cumsum(x, 1)",
            """
            out = torch.zeros_like(x)
            sick[(x.shape[0],)](x, out, COLUMNS=x.shape[1])
            return out
            """,
            "torch.randn(32768, 2048)",
        ),
    )


def _atomics() -> Iterator[SickKernel]:
    kind = "every program adds to the same places by atomics"
    yield make_case(
        kind,
        "mean of squared errors",
        "loss",
        ("no-float-atomics", "fuse-loss-with-mean", "split-reduction"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, y_ptr, out_ptr, size, BLOCK: tl.constexpr):
                place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
                far = tl.load(x_ptr + place) - tl.load(y_ptr + place)
                tl.atomic_add(out_ptr, tl.sum(far * far, 0) / size)
            """,
            "return torch.nn.functional.mse_loss(x, y)",
            """
            out = x.new_zeros(())
            sick[(x.numel() // 1024,)](x, y, out, x.numel(), BLOCK=1024)
            return out
            """,
            f"{_SQUARE}, {_SQUARE}",
            "x, y",
        ),
    )
    yield make_case(
        kind,
        "product cut along its depth",
        "matmul",
        ("no-float-atomics", "split-k-matmul"),
        Body(
            """
            @triton.jit
            def sick(a_ptr, b_ptr, out_ptr, N, K, part, TILE: tl.constexpr):
                rows = tl.program_id(1) * TILE + tl.arange(0, TILE)
                columns = tl.program_id(0) * TILE + tl.arange(0, TILE)
                acc = tl.zeros((TILE, TILE), tl.float32)
                begin = tl.program_id(2) * part
                for k in range(begin, begin + part, 32):
                    ks = k + tl.arange(0, 32)
                    a = tl.load(a_ptr + rows[:, None] * K + ks)
                    b = tl.load(b_ptr + ks[:, None] * N + columns)
                    acc = tl.dot(a, b, acc)
                tl.atomic_add(out_ptr + rows[:, None] * N + columns, acc)
            """,
            "return torch.matmul(a, b).float()",
            """
            out = torch.zeros(a.shape[0], b.shape[1], device=a.device)
            grid = (b.shape[1] // 64, a.shape[0] // 64, 64)
            sick[grid](a, b, out, b.shape[1], a.shape[1], a.shape[1] // 64, TILE=64)
            return out
            """,
            "torch.randn(512, 65536).half(), torch.randn(65536, 512).half()",
            "a, b",
        ),
    )
    yield make_case(
        kind,
        "norm of all elements",
        "norm",
        ("no-float-atomics", "split-reduction", "row-across-programs"),
        Body(
            """
            @triton.jit
            def squares(x_ptr, out_ptr, BLOCK: tl.constexpr):
                place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
                v = tl.load(x_ptr + place)
                tl.atomic_add(out_ptr, tl.sum(v * v, 0))

            @triton.jit
            def scaled(x_ptr, total_ptr, out_ptr, BLOCK: tl.constexpr):
                place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
                scale = tl.rsqrt(tl.load(total_ptr))
                tl.store(out_ptr + place, tl.load(x_ptr + place) * scale)
            """,
            "return x / torch.linalg.norm(x)",
            """
            total, out = x.new_zeros(()), torch.empty_like(x)
            squares[(x.numel() // 1024,)](x, total, BLOCK=1024)
            scaled[(x.numel() // 1024,)](x, total, out, BLOCK=1024)
            return out
            """,
            "torch.randn(16384, 8192)",
        ),
    )


def _sequences() -> Iterator[SickKernel]:
    cell = step("cell", "(1.0 - tl.sigmoid(u)) * v + tl.sigmoid(u) * w", "vuw") + RUN_STEP
    steps = """
    kept = []
    for t in range(x.shape[1]):
        update = torch.matmul(x[:, t], w) + torch.matmul(h, u)
        h = (1 - torch.sigmoid(update)) * h + torch.sigmoid(update) * x[:, t]
        kept.append(h)
    return torch.stack(kept, 1)
    """
    launched = """
    kept = []
    for t in range(x.shape[1]):
        now = x[:, t].contiguous()
        update = multiplied(now, w, 32, 32, 32) + multiplied(h, u, 32, 32, 32)
        h = stepped(cell, h, update, now)
        kept.append(h)
    return torch.stack(kept, 1)
    """
    yield make_case(
        "the input multiplied in each step",
        "update gate of 64 steps",
        "recurrent",
        ("hoist-recurrent-input-gemm", "cuda-graph-replay", "persistent-recurrent-weights"),
        Body(
            MATMUL + cell,
            steps,
            launched,
            "torch.randn(64, 64, 512), torch.randn(64, 512), torch.randn(512, 512), "
            "torch.randn(512, 512)",
            "x, h, w, u",
        ),
    )
    small = row_step("total", "0.0", "acc + v", "tl.sum(acc, 0)")
    yield make_case(
        "small branches one behind the other",
        "sums of eight small matrices",
        "reduction",
        ("overlap-kernels-on-streams", "horizontal-fusion", "cuda-graph-replay"),
        Body(
            small + RUN_ROWS,
            "return torch.stack([part.sum(1) for part in x])",
            "return torch.stack([joined(total, part) for part in x])",
            "torch.randn(8, 32, 16384)",
        ),
    )
