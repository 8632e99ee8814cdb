"""Habits along rows: reductions, norms and scans."""

from collections.abc import Iterator

from sick.case import Body
from sick.habits.habit import Habit


def row_habits() -> Iterator[Habit]:
    """The cases of this module."""
    yield from _rows()
    yield from _scans()


def _rows() -> Iterator[Habit]:
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
    yield Habit(
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
    yield Habit(
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
    yield Habit(
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
    yield Habit(
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


def _scans() -> Iterator[Habit]:
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
    yield Habit(
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
    yield Habit(
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
