"""Habits of windows and losses."""

from collections.abc import Iterator

from sick.case import Body
from sick.habits.habit import Habit


def window_habits() -> Iterator[Habit]:
    """The cases of this module."""
    yield from _windows()
    yield from _losses()


def _windows() -> Iterator[Habit]:
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
    yield Habit(
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
    yield Habit(
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
    yield Habit(
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


def _losses() -> Iterator[Habit]:
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
    yield Habit(
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
    yield Habit(
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
