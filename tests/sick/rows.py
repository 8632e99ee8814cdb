"""Sick reductions, norms and softmax along the rows of a matrix."""

from collections.abc import Iterator
from typing import NamedTuple

from sick.case import Body, SickKernel, make_case


class _Reduction(NamedTuple):
    """How a row is reduced: from where, by what, and how lanes are joined in the end."""

    reference: str
    first: str
    step: str
    join: str
    end: str = "TOTAL"


class _Norm(NamedTuple):
    """How a row is normed: what is gathered in passes, and what becomes of each value."""

    family: str
    reference: str
    passes: tuple[tuple[str, str, str], ...]  # name, its sum or maximum, of what
    result: str


_REDUCTIONS = {
    "sum": _Reduction("return x.sum(1)", "0.0", "acc + v", "tl.sum"),
    "max": _Reduction("return x.amax(1)", "-1e30", "tl.maximum(acc, v)", "tl.max"),
    "mean": _Reduction("return x.mean(1)", "0.0", "acc + v", "tl.sum", "TOTAL / columns"),
    "vector_norm": _Reduction(
        "return torch.linalg.vector_norm(x, dim=1)",
        "0.0",
        "acc + v * v",
        "tl.sum",
        "tl.sqrt(TOTAL)",
    ),
}
_NORMS = {
    "softmax": _Norm(
        "softmax",
        "return torch.softmax(x, 1)",
        (("top", "tl.max", "v"), ("total", "tl.sum", "tl.exp(v - top)")),
        "tl.exp(v - top) / total",
    ),
    "log_softmax": _Norm(
        "softmax",
        "return torch.log_softmax(x, 1)",
        (("top", "tl.max", "v"), ("total", "tl.sum", "tl.exp(v - top)")),
        "v - top - tl.log(total)",
    ),
    "rms_norm": _Norm(
        "norm",
        "return x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-6)",
        (("squares", "tl.sum", "v * v"),),
        "v * tl.rsqrt(squares / columns + 1e-6)",
    ),
    "layer_norm": _Norm(
        "norm",
        "return torch.nn.functional.layer_norm(x, (x.shape[1],))",
        (
            ("total", "tl.sum", "v"),
            ("squares", "tl.sum", "(v - total / columns) * (v - total / columns)"),
        ),
        "(v - total / columns) * tl.rsqrt(squares / columns + 1e-5)",
    ),
    "l2_norm": _Norm(
        "norm",
        "return x / torch.linalg.vector_norm(x, dim=1, keepdim=True)",
        (("squares", "tl.sum", "v * v"),),
        "v / tl.sqrt(squares)",
    ),
}
_ROW_REDUCTION = """
@triton.jit
def sick(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    begin = tl.program_id(0).to(tl.int64) * columns
    acc = tl.full((BLOCK,), FIRST, tl.float32)
    for start in range(0, columns, BLOCK):
        place = start + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + begin + place, mask=place < columns, other=FIRST)
        acc = STEP
    tl.store(out_ptr + tl.program_id(0), END)
"""
_LAUNCH_ROWS = """
out = x.new_empty(x.shape[0])
sick[(x.shape[0],)](x, out, x.shape[1], BLOCK=WIDTH, num_warps=WARPS)
return out
"""
_LAUNCH_NORM = """
out = torch.empty_like(x)
sick[(x.shape[0],)](x, out, x.shape[1], BLOCK=WIDTH, num_warps=WARPS)
return out
"""


def row_cases() -> Iterator[SickKernel]:
    """The cases of this module."""
    for operator, of in _REDUCTIONS.items():
        yield from _reductions(operator, of)
    for operator, of in _NORMS.items():
        yield from _norms(operator, of)


def _reductions(operator: str, of: _Reduction) -> Iterator[SickKernel]:
    total = f"{of.join}(acc, 0)"
    words = {"FIRST": of.first, "STEP": of.step, "END": of.end.replace("TOTAL", total)}
    rows = Body(_ROW_REDUCTION, of.reference, _LAUNCH_ROWS)
    yield make_case(
        "few programs",
        operator,
        "reduction",
        ("split-reduction", "fill-the-grid"),
        rows,
        **words,
        ROWS=6,
        COLUMNS=1 << 22,
        WIDTH=2048,
        WARPS=8,
    )
    yield make_case(
        "masked lanes",
        operator,
        "reduction",
        ("several-rows-per-program", "drop-masks-when-even"),
        rows,
        **words,
        ROWS=1 << 18,
        COLUMNS=70,
        WIDTH=1024,
        WARPS=4,
    )
    yield make_case(
        "a program for each short row",
        operator,
        "reduction",
        ("several-rows-per-program", "more-work-per-thread"),
        rows,
        **words,
        ROWS=1 << 20,
        COLUMNS=64,
        WIDTH=64,
        WARPS=1,
    )
    strided = """
    @triton.jit
    def sick(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        acc = tl.full((BLOCK,), FIRST, tl.float32)
        for column in range(0, columns):
            v = tl.load(x_ptr + row * columns + column)
            acc = STEP
        tl.store(out_ptr + row, END)
    """
    launch = """
    out = x.new_empty(x.shape[0])
    sick[(x.shape[0] // 128,)](x, out, x.shape[1], BLOCK=128, num_warps=4)
    return out
    """
    yield make_case(
        "lanes down the rows",
        operator,
        "reduction",
        ("coalesce-lane-axis",),
        Body(strided, of.reference, launch),
        **words | {"END": of.end.replace("TOTAL", "acc")},
        ROWS=1 << 17,
        COLUMNS=1024,
    )
    outer = """
    @triton.jit
    def sick(x_ptr, out_ptr, columns, width, BLOCK: tl.constexpr):
        begin = tl.program_id(0).to(tl.int64) * columns * width + tl.program_id(1)
        acc = tl.full((BLOCK,), FIRST, tl.float32)
        for start in range(0, columns, BLOCK):
            v = tl.load(x_ptr + begin + (start + tl.arange(0, BLOCK)) * width)
            acc = STEP
        tl.store(out_ptr + tl.program_id(0) * width + tl.program_id(1), END)
    """
    launch = """
    out = x.new_empty(x.shape[0], x.shape[2])
    sick[(x.shape[0], x.shape[2])](x, out, x.shape[1], x.shape[2], BLOCK=256)
    return out
    """
    yield make_case(
        "lanes along the outer axis",
        operator,
        "reduction",
        ("reduce-outer-axis", "coalesce-lane-axis"),
        Body(outer, of.reference, launch, "torch.randn(32, 2048, 1024)"),
        **words,
    )
    if of.join == "tl.sum" and operator != "vector_norm":
        atomics = """
        @triton.jit
        def sick(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
            place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
            v = tl.load(x_ptr + tl.program_id(0).to(tl.int64) * columns + place)
            tl.atomic_add(out_ptr + tl.program_id(0), END)
        """
        launch = """
        out = x.new_zeros(x.shape[0])
        sick[(x.shape[0], x.shape[1] // 256)](x, out, x.shape[1], BLOCK=256)
        return out
        """
        yield make_case(
            "an atomic update a program",
            operator,
            "reduction",
            ("no-float-atomics", "split-reduction"),
            Body(atomics, of.reference, launch),
            END=of.end.replace("TOTAL", "tl.sum(v, 0)"),
            ROWS=64,
            COLUMNS=1 << 20,
        )


def _norms(operator: str, of: _Norm) -> Iterator[SickKernel]:
    is_softmax = of.family == "softmax"
    passes = Body(_passes(of), of.reference, _LAUNCH_NORM)
    whole = Body(_whole(of), of.reference, _LAUNCH_NORM)
    once = ("online-softmax",) if is_softmax else ("welford-one-pass", "row-norm")
    yield make_case(
        "a pass for each figure",
        operator,
        of.family,
        (*once, "l2-resident-two-phase", "row-across-programs"),
        passes,
        ROWS=4096,
        COLUMNS=1 << 16,
        WIDTH=2048,
        WARPS=8,
    )
    yield make_case(
        "few programs",
        operator,
        of.family,
        ("row-across-programs", "fill-the-grid", "group-norm-split-statistics"),
        passes,
        ROWS=8,
        COLUMNS=1 << 21,
        WIDTH=4096,
        WARPS=8,
    )
    yield make_case(
        "a row that registers do not hold",
        operator,
        of.family,
        (
            "no-giant-tiles",
            "cut-live-ranges",
            "trade-registers-for-shared",
            "tune-warps-and-stages",
            "row-across-programs",
        ),
        whole,
        ROWS=2048,
        COLUMNS=1 << 15,
        WIDTH=1 << 15,
        WARPS=2,
    )
    yield make_case(
        "masked lanes",
        operator,
        of.family,
        ("several-rows-per-program", "drop-masks-when-even"),
        whole,
        ROWS=1 << 18,
        COLUMNS=70,
        WIDTH=1024,
        WARPS=4,
    )
    yield make_case(
        "a program for each short row",
        operator,
        of.family,
        ("several-rows-per-program", "more-work-per-thread"),
        whole,
        ROWS=1 << 20,
        COLUMNS=64,
        WIDTH=64,
        WARPS=1,
    )


def _passes(of: _Norm) -> str:
    """A kernel that loads the row again for each figure, and once more for the result."""
    lines = [
        "@triton.jit",
        "def sick(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):",
        "    begin = tl.program_id(0).to(tl.int64) * columns",
        "    lanes = tl.arange(0, BLOCK)",
    ]
    for name, join, value in of.passes:
        is_top = join == "tl.max"
        lines += [
            f"    {name}_lanes = tl.full((BLOCK,), {'-1e30' if is_top else '0.0'}, tl.float32)",
            "    for start in range(0, columns, BLOCK):",
            "        v = tl.load(x_ptr + begin + start + lanes)",
            f"        {name}_lanes = tl.maximum({name}_lanes, {value})"
            if is_top
            else f"        {name}_lanes += {value}",
            f"    {name} = {join}({name}_lanes, 0)",
        ]
    lines += [
        "    for start in range(0, columns, BLOCK):",
        "        v = tl.load(x_ptr + begin + start + lanes)",
        f"        tl.store(out_ptr + begin + start + lanes, {of.result})",
    ]
    return "\n".join(lines)


def _whole(of: _Norm) -> str:
    """A kernel that holds the whole row."""
    lines = [
        "@triton.jit",
        "def sick(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):",
        "    begin = tl.program_id(0).to(tl.int64) * columns",
        "    lanes = tl.arange(0, BLOCK)",
        "    v = tl.load(x_ptr + begin + lanes, mask=lanes < columns, other=0.0)",
    ]
    for name, join, value in of.passes:
        empty = "-1e30" if join == "tl.max" else "0.0"
        lines.append(f"    {name} = {join}(tl.where(lanes < columns, {value}, {empty}), 0)")
    lines.append(f"    tl.store(out_ptr + begin + lanes, {of.result}, mask=lanes < columns)")
    return "\n".join(lines)
