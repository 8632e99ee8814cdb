"""Sicknesses of rows and elements, made in the families of other operators."""

from collections.abc import Iterator
from typing import NamedTuple

from sick.case import Body, SickKernel, make_case


class _Row(NamedTuple):
    """An operator along rows: its reference, and what a program makes of a whole row `v`."""

    operator: str
    family: str
    reference: str
    made: str
    out: str  # "place" where a result has a row's length, "row" where it is one number


_ROWS = (
    _Row(
        "entropy of probabilities",
        "loss",
        "return -(x.softmax(1) * x.log_softmax(1)).sum(1)",
        "v = v - tl.max(v, 0)\n    e = tl.where(inside, tl.exp(v), 0.0)\n    t = tl.sum(e, 0)\n"
        "    made = tl.log(t) - tl.sum(tl.where(inside, e * v, 0.0), 0) / t",
        "row",
    ),
    _Row(
        "cumsum",
        "scan",
        "return x.cumsum(1)",
        "made = tl.cumsum(tl.where(inside, v, 0.0), 0)",
        "place",
    ),
    _Row(
        "logsumexp",
        "reduction",
        "return x.logsumexp(1)",
        "t = tl.max(v, 0)\n    made = t + tl.log(tl.sum(tl.where(inside, tl.exp(v - t), 0.0), 0))",
        "row",
    ),
)
_WHOLE = """
@triton.jit
def sick(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < columns
    place = row * columns + lanes
    v = tl.load(x_ptr + place, mask=inside, other=-1e30)
    MADE
    tl.store(out_ptr + STORED, made)
"""
_LAUNCH = """
out = x.new_empty(SHAPE)
sick[(x.shape[0],)](x, out, x.shape[1], BLOCK=WIDTH, num_warps=WARPS)
return out
"""


def crossed_cases() -> Iterator[SickKernel]:
    """The cases of this module."""
    for row in _ROWS:
        yield from _rows(row)
    yield from _looked_up()
    yield from _moved()
    yield from _written_out()


def _rows(row: _Row) -> Iterator[SickKernel]:
    text = _WHOLE.replace("MADE", row.made)
    if row.out == "place":
        text = text.replace("STORED, made", "place, made, mask=inside")
    text = text.replace("STORED", "row")
    shape = "x.shape" if row.out == "place" else "x.shape[0]"
    for kind, right, rows, columns, width, warps in (
        (
            "masked lanes of a wide block",
            ("several-rows-per-program", "drop-masks-when-even"),
            1 << 18,
            70,
            1024,
            4,
        ),
        (
            "four warps for each short row",
            ("several-rows-per-program", "more-work-per-thread"),
            1 << 20,
            64,
            64,
            4,
        ),
        (
            "a long row held by few warps",
            ("no-giant-tiles", "cut-live-ranges", "tune-warps-and-stages", "blocked-row-scan")
            if row.family == "scan"
            else ("no-giant-tiles", "cut-live-ranges", "tune-warps-and-stages"),
            2048,
            1 << 15,
            1 << 15,
            2,
        ),
    ):
        yield make_case(
            kind,
            row.operator,
            row.family,
            right,
            Body(text, row.reference, _LAUNCH.replace("SHAPE", shape)),
            ROWS=rows,
            COLUMNS=columns,
            WIDTH=width,
            WARPS=warps,
        )


def _looked_up() -> Iterator[SickKernel]:
    text = """
    @triton.jit
    def sick(index_ptr, table_ptr, out_ptr, items, width, BLOCK: tl.constexpr):
        lanes = tl.arange(0, BLOCK)
        for item in range(tl.program_id(0), items, tl.num_programs(0)):
            row = tl.load(index_ptr + item)
            v = tl.load(table_ptr + row * width + lanes, mask=lanes < width)
            tl.store(out_ptr + item * width + lanes, v, mask=lanes < width)
    """
    for kind, right, items, width, block, programs in (
        ("few programs that walk over all rows", ("fill-the-grid",), 65536, 512, 512, "8"),
        (
            "masked lanes of a wide block",
            ("gather-whole-rows", "several-rows-per-program", "drop-masks-when-even"),
            1 << 18,
            48,
            1024,
            "items",
        ),
        (
            "four warps for each short row",
            ("gather-whole-rows", "several-rows-per-program", "more-work-per-thread"),
            1 << 20,
            32,
            32,
            "items",
        ),
    ):
        yield make_case(
            kind,
            "embedding",
            "embedding",
            right,
            Body(
                text,
                "return torch.nn.functional.embedding(index, table)",
                """
                items, width = index.shape[0], table.shape[1]
                out = table.new_empty(items, width)
                sick[(PROGRAMS,)](index, table, out, items, width, BLOCK=LANES, num_warps=4)
                return out
                """,
                "torch.randint(0, 32768, (ITEMS,)), torch.randn(32768, WIDE)",
                "index, table",
            ),
            PROGRAMS=programs,
            LANES=block,
            ITEMS=items,
            WIDE=width,
        )


def _moved() -> Iterator[SickKernel]:
    divided = """
    @triton.jit
    def sick(x_ptr, out_ptr, a, b, c, BLOCK: tl.constexpr):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        i = place // (a * b * c)
        j = (place // (b * c)) % a
        k = (place // c) % b
        l = place % c
        v = tl.load(x_ptr + ((i * b + k) * a + j) * c + l)
        tl.store(out_ptr + place, v)
    """
    yield make_case(
        "places found by division",
        "heads turned to the front",
        "layout",
        ("simplify-index-arithmetic", "reduce-instruction-count"),
        Body(
            divided,
            "return x.transpose(1, 2).contiguous()",
            """
            n, s, h, d = x.shape
            out = x.new_empty(n, h, s, d)
            sick[(x.numel() // 1024,)](x, out, h, s, d, BLOCK=1024)
            return out
            """,
            "torch.randn(8, 2048, 32, 64)",
        ),
    )
    few = """
    @triton.jit
    def sick(x_ptr, out_ptr, rows, columns, T: tl.constexpr):
        row = tl.program_id(0) * T + tl.arange(0, T)
        for start in range(0, columns, T):
            column = start + tl.arange(0, T)
            v = tl.load(x_ptr + row[:, None] * columns + column)
            tl.store(out_ptr + column[:, None] * rows + row, tl.trans(v))
    """
    yield make_case(
        "few programs that walk over all rows",
        "transpose",
        "layout",
        ("fill-the-grid",),
        Body(
            few,
            "return x.t().contiguous()",
            """
            out = x.new_empty(x.shape[1], x.shape[0])
            sick[(x.shape[0] // 64,)](x, out, x.shape[0], x.shape[1], T=64)
            return out
            """,
            "torch.randn(1024, 65536)",
        ),
    )
    pooled = """
    @triton.jit
    def sick(x_ptr, out_ptr, length, size, W: tl.constexpr, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        place = tl.program_id(1)
        acc = tl.full((BLOCK,), -1e30, tl.float32)
        for tap in range(W):
            acc = tl.maximum(acc, tl.load(x_ptr + row * length + place * W + tap))
        tl.store(out_ptr + row * size + place, acc)
    """
    yield make_case(
        "lanes down the rows",
        "max_pool1d",
        "pooling",
        ("coalesce-lane-axis", "separable-pooling", "deinterleave-wide-loads"),
        Body(
            pooled,
            "return torch.nn.functional.max_pool1d(x, 4)",
            """
            size = x.shape[2] // 4
            out = x.new_empty(x.shape[0], x.shape[1], size)
            grid = (x.shape[0] * x.shape[1] // 128, size)
            sick[grid](x, out, x.shape[2], size, W=4, BLOCK=128)
            return out
            """,
            "torch.randn(64, 256, 4096)",
        ),
    )


def _written_out() -> Iterator[SickKernel]:
    reduce = """
    @triton.jit
    def reduce(x_ptr, out_ptr, columns, IS_MAX: tl.constexpr, BLOCK: tl.constexpr):
        begin = tl.program_id(0).to(tl.int64) * columns
        acc = tl.full((BLOCK,), -1e30 if IS_MAX else 0.0, tl.float32)
        for start in range(0, columns, BLOCK):
            v = tl.load(x_ptr + begin + start + tl.arange(0, BLOCK))
            acc = tl.maximum(acc, v) if IS_MAX else acc + v
        tl.store(out_ptr + tl.program_id(0), tl.max(acc, 0) if IS_MAX else tl.sum(acc, 0))


    @triton.jit
    def change(x_ptr, figure_ptr, out_ptr, columns, BLOCK: tl.constexpr, KIND: tl.constexpr):
        place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        begin = tl.program_id(0).to(tl.int64) * columns
        v, figure = tl.load(x_ptr + begin + place), tl.load(figure_ptr + tl.program_id(0))
        if KIND == 0:
            v = tl.exp(v - figure)
        elif KIND == 1:
            v = v / figure
        elif KIND == 2:
            v = v - figure / columns
        elif KIND == 3:
            v = v * v
        else:
            v = v * tl.rsqrt(figure / columns + 1e-5)
        tl.store(out_ptr + begin + place, v)
    """
    start = "n, m = x.shape\nf, y, z = x.new_empty(n), torch.empty_like(x), torch.empty_like(x)\n"
    total = "reduce[(n,)](SOURCE, f, m, IS_MAX=TOP, BLOCK=1024)\n"
    step = "change[(n, m // 1024)](SOURCE, f, RESULT, m, BLOCK=1024, KIND=HOW)\n"

    def run(text: str, **words: object) -> str:
        for word, value in words.items():
            text = text.replace(word, str(value))
        return text

    softmax = [
        run(total, SOURCE="x", TOP=True),
        run(step, SOURCE="x", RESULT="y", HOW=0),
        run(total, SOURCE="y", TOP=False),
        run(step, SOURCE="y", RESULT="z", HOW=1),
    ]
    norm = [
        run(total, SOURCE="x", TOP=False),
        run(step, SOURCE="x", RESULT="y", HOW=2),
        run(step, SOURCE="y", RESULT="z", HOW=3),
        run(total, SOURCE="z", TOP=False),
        run(step, SOURCE="y", RESULT="z", HOW=4),
    ]
    for operator, family, right, steps, reference in (
        ("softmax", "softmax", ("online-softmax",), softmax, "return torch.softmax(x, 1)"),
        (
            "layer_norm",
            "norm",
            ("row-norm", "welford-one-pass"),
            norm,
            "return torch.nn.functional.layer_norm(x, (x.shape[1],))",
        ),
    ):
        for size, rows in (("", 16384), ("small ", 128)):
            more = ("cuda-graph-replay", "grid-barrier-single-launch") if size else ()
            yield make_case(
                f"{'tiny launches, ' if size else 'a launch for '}each step of a row",
                f"{size}{operator}",
                family,
                (*right, *more),
                Body(reduce, reference, start + "".join(steps) + "return z"),
                ROWS=rows,
                COLUMNS=4096,
            )
