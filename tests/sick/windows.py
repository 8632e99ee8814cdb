"""Sick convolutions, poolings, scans and losses."""

from collections.abc import Iterator

from sick.case import Body, SickKernel, make_case

_WINDOW = """
@triton.jit
def sick(x_ptr, w_ptr, out_ptr, channels, height, width, out_height, out_width,
         REACH: tl.constexpr, BLOCK: tl.constexpr):
    plane = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1)
    lane = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.full((BLOCK,), FIRST, tl.float32)
    for i in tl.static_range(REACH):
        for j in tl.static_range(REACH):
            place = plane * height * width + (row + i) * width + lane + j
            v = tl.load(x_ptr + place, mask=lane < out_width, other=FIRST)
            acc = STEP
    out = plane * out_height * out_width + row * out_width + lane
    tl.store(out_ptr + out, acc, mask=lane < out_width)
"""
_LAUNCH_WINDOW = """
n, c, h, w = x.shape
out = x.new_empty(n, c, h - WINDOW + 1, w - WINDOW + 1)
grid = (n * c, out.shape[2], triton.cdiv(out.shape[3], 128))
sick[grid](x, WEIGHTS, out, c, h, w, out.shape[2], out.shape[3], REACH=WINDOW, BLOCK=128)
return out
"""
_STEP = """
@triton.jit
def step_PLACE(ARGUMENTS, out_ptr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + place, VALUE)
"""


def window_cases() -> Iterator[SickKernel]:
    """The cases of this module."""
    yield from _pooled()
    yield from _convolved()
    yield from _scanned()
    yield from _lost()


def _pooled() -> Iterator[SickKernel]:
    reuse = ("separable-pooling", "stencil-register-tiling")
    for reach in (5, 9):
        for operator, first, step, reference, right in (
            ("max_pool", "-1e30", "tl.maximum(acc, v)", "max_pool2d(x, WINDOW, 1)", reuse),
            (
                "avg_pool",
                "0.0",
                "acc + v / (REACH * REACH)",
                "avg_pool2d(x, WINDOW, 1)",
                (*reuse, "running-window-sums"),
            ),
        ):
            yield make_case(
                "each window read by itself",
                f"{operator} of {reach}",
                "pooling",
                right,
                Body(
                    _WINDOW,
                    f"return torch.nn.functional.{reference}",
                    _LAUNCH_WINDOW,
                    "torch.randn(8, 64, 256, 256)",
                ),
                FIRST=first,
                STEP=step,
                WINDOW=reach,
                WEIGHTS="x",
            )


def _convolved() -> Iterator[SickKernel]:
    for reach in (3, 7):
        yield make_case(
            "each window read by itself",
            f"depthwise_conv of {reach}",
            "convolution",
            ("depthwise-rolling-rows", "stencil-register-tiling", "hoist-shared-operand"),
            Body(
                _WINDOW,
                "return torch.nn.functional.conv2d(x, k, groups=x.shape[1])",
                _LAUNCH_WINDOW,
                f"torch.randn(8, 64, 256, 256), torch.randn(64, 1, {reach}, {reach})",
                "x, k",
            ),
            FIRST="0.0",
            STEP="acc + v * tl.load(w_ptr + (plane % channels) * REACH * REACH + i * REACH + j)",
            WINDOW=reach,
            WEIGHTS="k",
        )
    copied = """
    @triton.jit
    def sick(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out_ptr + place, tl.load(x_ptr + place, mask=place < size), mask=place < size)
    """
    unfolded = """
    windows = torch.nn.functional.unfold(x, 3)
    kept = torch.empty_like(windows)
    sick[(triton.cdiv(windows.numel(), 1024),)](windows, kept, windows.numel(), BLOCK=1024)
    out = torch.matmul(k.reshape(k.shape[0], -1), kept)
    return out.reshape(x.shape[0], k.shape[0], x.shape[2] - 2, x.shape[3] - 2)
    """
    for channels in (32, 128):
        yield make_case(
            "windows written out before the product",
            f"conv of {channels} channels",
            "convolution",
            ("implicit-gemm-conv", "vendor-half-conv", "staged-half-conv", "split-half-conv"),
            Body(
                copied,
                "return torch.nn.functional.conv2d(x, k)",
                unfolded,
                f"torch.randn(16, {channels}, 128, 128), torch.randn({channels}, {channels}, 3, 3)",
                "x, k",
            ),
        )
    scalar = """
    @triton.jit
    def sick(x_ptr, w_ptr, out_ptr, channels, outs, size, BLOCK: tl.constexpr):
        lane = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
        acc = tl.zeros((BLOCK,), tl.float32)
        for c in range(0, channels):
            v = tl.load(x_ptr + (tl.program_id(0).to(tl.int64) * channels + c) * size + lane)
            acc += v * tl.load(w_ptr + tl.program_id(1) * channels + c)
        plane = tl.program_id(0).to(tl.int64) * outs + tl.program_id(1)
        tl.store(out_ptr + plane * size + lane, acc)
    """
    launch = """
    n, c, h, w = x.shape
    out = x.new_empty(n, k.shape[0], h, w)
    sick[(n, k.shape[0], h * w // 256)](x, k, out, c, k.shape[0], h * w, BLOCK=256)
    return out
    """
    for channels in (64, 256):
        yield make_case(
            "a product without tensor cores",
            f"pointwise_conv of {channels} channels",
            "convolution",
            ("pointwise-conv-as-matmul", "tile-matmul", "split-half-conv", "vendor-half-conv"),
            Body(
                scalar,
                "return torch.nn.functional.conv2d(x, k)",
                launch,
                f"torch.randn(8, {channels}, 64, 64), torch.randn({channels}, {channels}, 1, 1)",
                "x, k",
            ),
        )
    stuffed = """
    n, c, h, w = x.shape
    wide = x.new_zeros(n, c, 2 * h + 3, 2 * w + 3)
    sick[(n * c * h,)](x, wide, w, 2 * w + 3, h, (2 * h + 3) * (2 * w + 3), BLOCK=64)
    return torch.nn.functional.conv2d(wide, k.flip(2, 3).transpose(0, 1).contiguous())
    """
    spread = """
    @triton.jit
    def sick(x_ptr, out_ptr, width, out_width, height, out_size, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        lane = tl.arange(0, BLOCK)
        v = tl.load(x_ptr + row * width + lane, mask=lane < width)
        place = (row // height) * out_size + (2 * (row % height) + 2) * out_width + 2 * lane + 2
        tl.store(out_ptr + place, v, mask=lane < width)
    """
    for channels in (32, 64):
        yield make_case(
            "zeros multiplied",
            f"conv_transpose of {channels} channels",
            "conv_transpose",
            ("transposed-conv-phases", "skip-structural-zeros"),
            Body(
                spread,
                "return torch.nn.functional.conv_transpose2d(x, k, stride=2)",
                stuffed,
                f"torch.randn(16, {channels}, 64, 64), torch.randn({channels}, {channels}, 3, 3)",
                "x, k",
            ),
        )


def _scanned() -> Iterator[SickKernel]:
    alone = """
    @triton.jit
    def sick(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        acc = tl.full((BLOCK,), FIRST, tl.float32)
        for column in range(0, columns):
            acc = acc STEP tl.load(x_ptr + row * columns + column)
            tl.store(out_ptr + row * columns + column, acc)
    """
    launch = """
    out = torch.empty_like(x)
    sick[(x.shape[0] // 32,)](x, out, x.shape[1], BLOCK=32, num_warps=1)
    return out
    """
    for operator, first, step in (("cumsum", "0.0", "+"), ("cumprod", "1.0", "*")):
        yield make_case(
            "an element a step",
            operator,
            "scan",
            ("blocked-row-scan", "decoupled-look-back-scan", "coalesce-lane-axis"),
            Body(alone, f"return x.{operator}(1)", launch, "torch.rand(2048, 16384)"),
            FIRST=first,
            STEP=step,
        )
    blocked = """
    @triton.jit
    def sick(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        begin = tl.program_id(0).to(tl.int64) * columns
        carry = 0.0
        for start in range(0, columns, BLOCK):
            v = tl.load(x_ptr + begin + start + tl.arange(0, BLOCK))
            tl.store(out_ptr + begin + start + tl.arange(0, BLOCK), tl.cumsum(v, 0) + carry)
            carry += tl.sum(v, 0)
    """
    turned = """
    flipped = x.flip(1)
    out = torch.empty_like(x)
    sick[(x.shape[0],)](flipped, out, x.shape[1], BLOCK=2048)
    return out.flip(1)
    """
    for columns in (8192, 65536):
        yield make_case(
            "copies that turn it round",
            f"reverse cumsum of {columns}",
            "scan",
            ("scan-without-flip-copies", "avoid-hidden-copies"),
            Body(
                blocked,
                "return x.flip(1).cumsum(1).flip(1)",
                turned,
                f"torch.rand(4096, {columns})",
            ),
        )
    launch = """
    out = torch.empty_like(x)
    sick[(x.shape[0],)](x, out, x.shape[1], BLOCK=1024)
    return out
    """
    for rows in (4, 16):
        yield make_case(
            "few programs",
            f"cumsum of {rows} rows",
            "scan",
            ("decoupled-look-back-scan", "blocked-row-scan", "fill-the-grid"),
            Body(blocked, "return x.cumsum(1)", launch, f"torch.rand({rows}, {1 << 22})"),
        )


def _lost() -> Iterator[SickKernel]:
    total = """
    @triton.jit
    def total(x_ptr, out_ptr, BLOCK: tl.constexpr):
        v = tl.load(x_ptr + tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))
        tl.store(out_ptr + tl.program_id(0), tl.sum(v, 0))
    """
    launch = """
    terms = torch.empty_like(x)
    step_0[(x.numel() // 1024,)](x, y, terms, BLOCK=1024)
    parts = x.new_empty(x.numel() // 4096)
    total[(parts.numel(),)](terms, parts, BLOCK=4096)
    return parts.sum() / x.numel()
    """
    loads = ("tl.load(x_ptr + place)", "tl.load(y_ptr + place)")
    for name, value, reference in (
        ("mse", "(X - Y) * (X - Y)", "return ((x - y) ** 2).mean()"),
        ("hinge", "tl.maximum(1.0 - X * Y, 0.0)", "return (1.0 - x * y).clamp(min=0.0).mean()"),
        ("l1", "tl.abs(X - Y)", "return (x - y).abs().mean()"),
    ):
        kernel = _STEP.replace("PLACE", "0").replace("ARGUMENTS", "x_ptr, y_ptr")
        filled = value.replace("X", loads[0]).replace("Y", loads[1])
        yield make_case(
            "terms that pass through memory",
            f"{name} loss",
            "loss",
            ("fuse-loss-with-mean",),
            Body(
                kernel.replace("VALUE", filled) + total.replace("\n    ", "\n"),
                reference,
                launch,
                "torch.rand(8192, 8192), torch.rand(8192, 8192)",
                "x, y",
            ),
        )
    rows = """
    @triton.jit
    def rows(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        begin = tl.program_id(0).to(tl.int64) * columns
        lanes = tl.arange(0, BLOCK)
        v = tl.load(x_ptr + begin + lanes)
        v -= tl.max(v, 0)
        tl.store(out_ptr + begin + lanes, v - tl.log(tl.sum(tl.exp(v), 0)))


    @triton.jit
    def picked(x_ptr, index_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + row * columns + tl.load(index_ptr + row))
        tl.store(out_ptr + row, -v)
    """
    launch = """
    logs = torch.empty_like(x)
    rows[(x.shape[0],)](x, logs, x.shape[1], BLOCK=CLASSES, num_warps=8)
    out = x.new_empty(x.shape[0])
    picked[(x.shape[0] // 128,)](logs, y, out, x.shape[1], BLOCK=128)
    return out.mean()
    """
    for classes in (1024, 8192):
        yield make_case(
            "terms that pass through memory",
            f"cross entropy of {classes} classes",
            "loss",
            ("fused-cross-entropy",),
            Body(
                rows,
                "return torch.nn.functional.cross_entropy(x, y)",
                launch,
                f"torch.randn(16384, {classes}), torch.randint(0, {classes}, (16384,))",
                "x, y",
            ),
            CLASSES=classes,
        )
