"""Habits of pointwise operators."""

from collections.abc import Iterator

from sick.case import Body
from sick.habits.habit import PASS, Habit


def element_habits() -> Iterator[Habit]:
    """The cases of this module."""
    double = PASS.replace("VALUE", "(v.to(tl.float64) * 1.7 + 0.3 * v * v).to(tl.float32)")
    yield Habit(
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
    yield Habit(
        "two bytes a lane",
        "half relu",
        "pointwise",
        ("widen-vector-access", "more-work-per-thread"),
        Body(
            PASS.replace("VALUE", "tl.maximum(v, 0.0)"),
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
    yield Habit(
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
    yield Habit(
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
    yield Habit(
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
