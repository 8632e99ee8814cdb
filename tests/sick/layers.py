"""Sick poolings, convolutions and norms of images: the layers of a vision model."""

from collections.abc import Iterator

from sick.case import Body, SickKernel, make_case

_POOLED = {
    "global average pool": (
        "0.0",
        "tl.sum(v, 0) / size",
        "return torch.nn.functional.adaptive_avg_pool2d(x, 1)",
    ),
    "global max pool": (
        "-1e30",
        "tl.max(v, 0)",
        "return torch.nn.functional.adaptive_max_pool2d(x, 1)",
    ),
}
#: Poolings of a window: name -> first value, step, end, reference, window, stride.
_WINDOWS = {
    "max_pool of 3": (
        "-1e30",
        "tl.maximum(acc, v)",
        "acc",
        "return torch.nn.functional.max_pool2d(x, 3, 2)",
        3,
        2,
    ),
    "avg_pool of 2": (
        "0.0",
        "acc + v",
        "acc / 4",
        "return torch.nn.functional.avg_pool2d(x, 2)",
        2,
        2,
    ),
}
_POOL = """
@triton.jit
def sick(x_ptr, out_ptr, height, width, out_height, out_width, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    plane = place // (out_height * out_width)
    row = place // out_width % out_height
    column = place % out_width
    acc = tl.full((BLOCK,), FIRST, tl.float32)
    for i in range(WINDOW):
        for j in range(WINDOW):
            v = tl.load(x_ptr + (plane * height + row * STRIDE + i) * width + column * STRIDE + j)
            acc = STEP
    tl.store(out_ptr + place, END)
"""
_LAUNCH_POOL = """
rows, columns = (x.shape[2] - WINDOW) // STRIDE + 1, (x.shape[3] - WINDOW) // STRIDE + 1
out = x.new_empty(x.shape[0], x.shape[1], rows, columns)
grid = (triton.cdiv(out.numel(), 256),)
sick[grid](x, out, x.shape[2], x.shape[3], rows, columns, BLOCK=256)
return out
"""
_POINTWISE = """
@triton.jit
def step(x_ptr, out_ptr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x_ptr + place)
    tl.store(out_ptr + place, VALUE)
"""


def layer_cases() -> Iterator[SickKernel]:
    """The cases of this module."""
    yield from _poolings()
    yield from _convolutions()
    yield from _around_convolutions()
    yield from _norms()


def _poolings() -> Iterator[SickKernel]:
    plane = """
    @triton.jit
    def sick(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
        lanes = tl.arange(0, BLOCK)
        place = tl.program_id(0).to(tl.int64) * size + lanes
        v = tl.load(x_ptr + place, mask=lanes < size, other=FIRST)
        tl.store(out_ptr + tl.program_id(0), END)
    """
    across = """
    @triton.jit
    def sick(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
        plane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        acc = tl.zeros((BLOCK,), tl.float32)
        for pixel in range(0, size):
            acc += tl.load(x_ptr + plane * size + pixel)
        tl.store(out_ptr + plane, acc / size)
    """
    for name, (first, end, reference) in _POOLED.items():
        launch = """
        out = x.new_empty(x.shape[0], x.shape[1], 1, 1)
        size = x.shape[2] * x.shape[3]
        sick[(out.numel(),)](x, out, size, BLOCK=64, num_warps=4)
        return out
        """
        yield make_case(
            "a program for each small plane",
            name,
            "pooling",
            ("adaptive-pool-as-reduction", "several-rows-per-program"),
            Body(plane, reference, launch, "torch.randn(256, 2048, 7, 7)"),
            FIRST=first,
            END=end,
        )
    yield make_case(
        "lanes on planes",
        "global average pool",
        "pooling",
        ("adaptive-pool-as-reduction", "coalesce-lane-axis"),
        Body(
            across,
            "return torch.nn.functional.adaptive_avg_pool2d(x, 1)",
            """
            out = x.new_empty(x.shape[0], x.shape[1], 1, 1)
            sick[(out.numel() // 128,)](x, out, x.shape[2] * x.shape[3], BLOCK=128)
            return out
            """,
            "torch.randn(128, 1024, 28, 28)",
        ),
    )
    for name, (first, step, end, reference, window, stride) in _WINDOWS.items():
        yield make_case(
            "each window read by itself",
            name,
            "pooling",
            ("separable-pooling", "stencil-register-tiling", "deinterleave-wide-loads"),
            Body(_POOL, reference, _LAUNCH_POOL, "torch.randn(32, 64, 256, 256)"),
            FIRST=first,
            STEP=step,
            END=end,
            WINDOW=window,
            STRIDE=stride,
        )
    yield make_case(
        "a wide window summed anew",
        "avg_pool of 11",
        "pooling",
        ("running-window-sums", "separable-pooling", "stencil-register-tiling"),
        Body(
            _POOL,
            "return torch.nn.functional.avg_pool2d(x, 11, 1)",
            _LAUNCH_POOL,
            "torch.randn(16, 64, 256, 256)",
        ),
        FIRST="0.0",
        STEP="acc + v",
        END="acc / 121",
        WINDOW=11,
        STRIDE=1,
    )
    for name, value in (("sigmoid", "1.0 / (1.0 + tl.exp(-v))"), ("tanh", None)):
        text = value or "2.0 / (1.0 + tl.exp(-2.0 * v)) - 1.0"
        yield make_case(
            "an activation of each value of a window",
            f"{name}, max_pool of 4",
            "pooling",
            ("move-monotone-past-max",),
            Body(
                _POOL,
                f"return torch.nn.functional.max_pool2d(torch.{name}(x), 4, 1)",
                _LAUNCH_POOL,
                "torch.randn(32, 64, 128, 128)",
            ),
            FIRST="-1e30",
            STEP=f"tl.maximum(acc, {text})",
            END="acc",
            WINDOW=4,
            STRIDE=1,
        )


def _convolutions() -> Iterator[SickKernel]:
    padded = """
    @triton.jit
    def sick(x_ptr, w_ptr, out_ptr, channels, height, width, BLOCK: tl.constexpr):
        column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
        row, plane = tl.program_id(1), tl.program_id(0)
        acc = tl.zeros((BLOCK,), tl.float32)
        for i in range(REACH):
            for j in range(REACH):
                y, x = row + i - REACH // 2, column + j - REACH // 2
                inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
                v = tl.load(x_ptr + (plane * height + y) * width + x, mask=inside, other=0.0)
                acc += v * tl.load(w_ptr + (plane % channels) * REACH * REACH + i * REACH + j)
        place = (plane * height + row) * width + column
        tl.store(out_ptr + place, acc, mask=column < width)
    """
    for reach in (3, 7):
        yield make_case(
            "bounds asked for every tap",
            f"padded depthwise_conv of {reach}",
            "convolution",
            ("split-interior-and-border", "stencil-register-tiling", "depthwise-rolling-rows"),
            Body(
                padded,
                "return torch.nn.functional.conv2d(x, k, padding=REACH // 2, groups=x.shape[1])",
                """
                out = torch.empty_like(x)
                grid = (x.shape[0] * x.shape[1], x.shape[2], x.shape[3] // 128)
                sick[grid](x, k, out, x.shape[1], x.shape[2], x.shape[3], BLOCK=128)
                return out
                """,
                "torch.randn(8, 64, 256, 256), torch.randn(64, 1, REACH, REACH)",
                "x, k",
            ),
            REACH=reach,
        )
    few = """
    @triton.jit
    def sick(x_ptr, w_ptr, out_ptr, height, width, outs, P: tl.constexpr, N: tl.constexpr):
        pixel = tl.program_id(0) * P + tl.arange(0, P)
        row, column = pixel // (width - 2), pixel % (width - 2)
        out, channel = tl.arange(0, N), tl.arange(0, 16)
        image = x_ptr + tl.program_id(1) * 3 * height * width
        acc = tl.zeros((P, N), tl.float32)
        for tap in range(9):
            at = (row + tap // 3) * width + column + tap % 3
            held = channel < 3
            kept = held & (row < height - 2)[:, None]
            x = tl.load(image + channel * height * width + at[:, None], kept, 0.0)
            w = tl.load(w_ptr + out * 27 + channel[:, None] * 9 + tap, held[:, None], 0.0)
            acc += tl.dot(x, w)
        size = (height - 2) * (width - 2)
        place = (tl.program_id(1) * outs + out) * size + pixel[:, None]
        tl.store(out_ptr + place, acc, (pixel < size)[:, None])
    """
    yield make_case(
        "tiles that padding fills",
        "conv of 3 channels",
        "convolution",
        ("direct-conv-few-channels", "staged-half-conv"),
        Body(
            few,
            "return torch.nn.functional.conv2d(x, k)",
            """
            rows, columns = x.shape[2] - 2, x.shape[3] - 2
            out = x.new_empty(x.shape[0], k.shape[0], rows, columns)
            grid = (triton.cdiv(rows * columns, 64), x.shape[0])
            sick[grid](x, k, out, x.shape[2], x.shape[3], k.shape[0], P=64, N=32)
            return out
            """,
            "torch.randn(32, 3, 224, 224), torch.randn(32, 3, 3, 3)",
            "x, k",
        ),
    )
    depthwise = """
    @triton.jit
    def sick(x_ptr, w_ptr, out_ptr, channels, height, width, BLOCK: tl.constexpr):
        column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
        row, plane = tl.program_id(1), tl.program_id(0)
        inside = column < width - 2
        acc = tl.zeros((BLOCK,), tl.float32)
        for i in range(3):
            for j in range(3):
                place = (plane * height + row + i) * width + column + j
                v = tl.load(x_ptr + place, mask=inside, other=0.0)
                acc += v * tl.load(w_ptr + (plane % channels) * 9 + i * 3 + j)
        place = (plane * (height - 2) + row) * (width - 2) + column
        tl.store(out_ptr + place, acc, mask=inside)
    """
    yield make_case(
        "a layer between two that passes through memory",
        "depthwise_conv, pointwise_conv",
        "convolution",
        ("fuse-depthwise-pointwise",),
        Body(
            depthwise,
            """
            y = torch.nn.functional.conv2d(x, k, groups=x.shape[1])
            return torch.nn.functional.conv2d(y, w)
            """,
            """
            y = x.new_empty(x.shape[0], x.shape[1], x.shape[2] - 2, x.shape[3] - 2)
            grid = (x.shape[0] * x.shape[1], y.shape[2], triton.cdiv(y.shape[3], 128))
            sick[grid](x, k, y, x.shape[1], x.shape[2], x.shape[3], BLOCK=128)
            return torch.nn.functional.conv2d(y, w)
            """,
            "torch.randn(32, 32, 226, 226), torch.randn(32, 1, 3, 3), torch.randn(64, 32, 1, 1)",
            "x, k, w",
        ),
    )


def _around_convolutions() -> Iterator[SickKernel]:
    pooled = _LAUNCH_POOL.replace("x.", "y.").replace("(x,", "(y,")
    yield make_case(
        "an image made large to be averaged",
        "conv_transpose, avg_pool",
        "conv_transpose",
        ("merge-pooling-into-taps",),
        Body(
            _POOL,
            """
            y = torch.nn.functional.conv_transpose2d(x, k, stride=2)
            return torch.nn.functional.avg_pool2d(y, 2)
            """,
            "y = torch.nn.functional.conv_transpose2d(x, k, stride=2)\n" + pooled,
            "torch.randn(32, 64, 64, 64), torch.randn(64, 64, 4, 4)",
            "x, k",
        ),
        FIRST="0.0",
        STEP="acc + v",
        END="acc / 4",
        WINDOW=2,
        STRIDE=2,
    )
    affine = """
    @triton.jit
    def affine(x_ptr, scale_ptr, shift_ptr, out_ptr, channels, size, BLOCK: tl.constexpr):
        plane = tl.program_id(0)
        lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + plane * size + lane, mask=lane < size)
        v = v * tl.load(scale_ptr + plane % channels) + tl.load(shift_ptr + plane % channels)
        tl.store(out_ptr + plane * size + lane, v, mask=lane < size)
    """
    yield make_case(
        "an affine step behind a layer",
        "conv, scale and shift",
        "convolution",
        ("fold-affine-into-weights", "gemm-epilogue-fusion"),
        Body(
            affine,
            """
            y = torch.nn.functional.conv2d(x, k, padding=1)
            return y * scale[:, None, None] + shift[:, None, None]
            """,
            """
            y = torch.nn.functional.conv2d(x, k, padding=1)
            out = torch.empty_like(y)
            size = y.shape[2] * y.shape[3]
            grid = (y.shape[0] * y.shape[1], triton.cdiv(size, 1024))
            affine[grid](y, scale, shift, out, y.shape[1], size, BLOCK=1024)
            return out
            """,
            "torch.randn(64, 64, 112, 112), torch.randn(64, 64, 3, 3), torch.rand(64),"
            " torch.randn(64)",
            "x, k, scale, shift",
        ),
    )
    turned = """
    @triton.jit
    def turn(x_ptr, out_ptr, rows, columns, R: tl.constexpr, C: tl.constexpr):
        row = tl.program_id(1) * R + tl.arange(0, R)
        column = tl.program_id(2) * C + tl.arange(0, C)
        base = tl.program_id(0).to(tl.int64) * rows * columns
        held = (row < rows)[:, None] & (column < columns)
        v = tl.load(x_ptr + base + row[:, None] * columns + column, mask=held)
        place = base + column[:, None] * rows + row
        tl.store(out_ptr + place, tl.trans(v), mask=tl.trans(held))
    """
    turning = """
    def turned(v, rows, columns):
        out = torch.empty_like(v)
        grid = (v.shape[0], triton.cdiv(rows, 32), triton.cdiv(columns, 32))
        turn[grid](v, out, rows, columns, R=32, C=32)
        return out
    """
    yield make_case(
        "layouts turned round each layer",
        "conv, relu, conv",
        "convolution",
        ("channels-last-conv", "avoid-hidden-copies"),
        Body(
            turned + turning,
            """
            y = torch.relu(torch.nn.functional.conv2d(x, k, padding=1))
            return torch.nn.functional.conv2d(y, w, padding=1)
            """,
            """
            n, c, h, wide = x.shape
            y = turned(x, c, h * wide).view(n, h, wide, c).permute(0, 3, 1, 2)
            y = torch.nn.functional.conv2d(y, k, padding=1)
            y = turned(y.permute(0, 2, 3, 1).contiguous(), h * wide, c)
            y = torch.relu(y.view(n, c, h, wide))
            y = turned(y, c, h * wide).view(n, h, wide, c).permute(0, 3, 1, 2)
            y = torch.nn.functional.conv2d(y, w, padding=1)
            return turned(y.permute(0, 2, 3, 1).contiguous(), h * wide, c).view(n, c, h, wide)
            """,
            "torch.randn(32, 64, 112, 112), torch.randn(64, 64, 3, 3), torch.randn(64, 64, 3, 3)",
            "x, k, w",
        ),
    )
    yield make_case(
        "branches put together by a copy",
        "two activations and a cat",
        "layout",
        ("concatenate-in-place", "avoid-hidden-copies"),
        Body(
            _POINTWISE,
            "return torch.cat([torch.relu(x) * 2.0, torch.relu(y) * 2.0], 1)",
            """
            first, second = torch.empty_like(x), torch.empty_like(x)
            step[(x.numel() // 1024,)](x, first, BLOCK=1024)
            step[(x.numel() // 1024,)](y, second, BLOCK=1024)
            return torch.cat([first, second], 1)
            """,
            "torch.randn(32, 64, 128, 128), torch.randn(32, 64, 128, 128)",
            "x, y",
        ),
        VALUE="tl.maximum(v, 0.0) * 2.0",
    )


def _norms() -> Iterator[SickKernel]:
    batch = """
    @triton.jit
    def total(x_ptr, mean_ptr, out_ptr, images, channels, size, BLOCK: tl.constexpr):
        channel = tl.program_id(0)
        mean = tl.load(mean_ptr + channel)
        acc = tl.zeros((BLOCK,), tl.float32)
        for image in range(0, images):
            for start in range(0, size, BLOCK):
                lane = start + tl.arange(0, BLOCK)
                place = (image * channels + channel) * size + lane
                v = tl.load(x_ptr + place, mask=lane < size, other=mean) - mean
                acc += v * v if SQUARE else v
        tl.store(out_ptr + channel, tl.sum(acc, 0) / (images * size))


    @triton.jit
    def apply(x_ptr, mean_ptr, var_ptr, out_ptr, channels, size, BLOCK: tl.constexpr):
        channel = tl.program_id(0) % channels
        lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        place = tl.program_id(0) * size + lane
        v = tl.load(x_ptr + place, mask=lane < size) - tl.load(mean_ptr + channel)
        v = v * tl.rsqrt(tl.load(var_ptr + channel) + 1e-5)
        tl.store(out_ptr + place, v, mask=lane < size)
    """.replace("BLOCK: tl.constexpr):", "SQUARE: tl.constexpr, BLOCK: tl.constexpr):", 1)
    yield make_case(
        "a pass for each figure",
        "batch_norm in training",
        "batch_norm",
        ("batch-norm-training-statistics", "welford-one-pass"),
        Body(
            batch,
            "return torch.nn.functional.batch_norm(x, None, None, training=True)",
            """
            images, channels, size = x.shape[0], x.shape[1], x.shape[2] * x.shape[3]
            zero = x.new_zeros(channels)
            mean, var, out = torch.empty_like(zero), torch.empty_like(zero), torch.empty_like(x)
            one = (channels,)
            total[one](x, zero, mean, images, channels, size, SQUARE=False, BLOCK=1024)
            total[one](x, mean, var, images, channels, size, SQUARE=True, BLOCK=1024)
            grid = (images * channels, triton.cdiv(size, 1024))
            apply[grid](x, mean, var, out, channels, size, BLOCK=1024)
            return out
            """,
            "torch.randn(64, 64, 112, 112)",
        ),
    )
    across = """
    @triton.jit
    def sick(x_ptr, out_ptr, channels, size, BLOCK: tl.constexpr):
        channel = tl.arange(0, BLOCK)
        place = (tl.program_id(1).to(tl.int64) * channels + channel) * size + tl.program_id(0)
        v = tl.load(x_ptr + place)
        END
        tl.store(out_ptr + place, v)
    """
    for name, family, end, reference in (
        (
            "rms_norm over channels",
            "norm",
            "v = v * tl.rsqrt(tl.sum(v * v, 0) / channels + 1e-6)",
            "return x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-6)",
        ),
        (
            "softmax over channels",
            "softmax",
            "v = tl.exp(v - tl.max(v, 0)) / tl.sum(tl.exp(v - tl.max(v, 0)), 0)",
            "return torch.softmax(x, 1)",
        ),
    ):
        yield make_case(
            "a program for each pixel",
            name,
            family,
            ("strided-axis-norm", "coalesce-lane-axis"),
            Body(
                across,
                reference,
                """
                out = torch.empty_like(x)
                size = x.shape[2] * x.shape[3]
                sick[(size, x.shape[0])](x, out, x.shape[1], size, BLOCK=128)
                return out
                """,
                "torch.randn(32, 128, 128, 128)",
            ),
            END=end,
        )
