"""Sick pointwise operators, copies and gathers."""

from collections.abc import Iterator

from sick.case import Body, SickKernel, make_case

#: Chains: name -> what each step makes of v.
_CHAINS = {
    "scale, shift, relu": ("v * 1.5", "v + 0.25", "tl.maximum(v, 0.0)"),
    "square, sigmoid": ("v * v", "1.0 / (1.0 + tl.exp(-v))"),
    "clamp, subtract, multiply, abs": (
        "tl.minimum(tl.maximum(v, -1.0), 1.0)",
        "v - 0.5",
        "v * 3.0",
        "tl.abs(v)",
    ),
}
_REFERENCES = {
    "scale, shift, relu": "return torch.relu(x * 1.5 + 0.25)",
    "square, sigmoid": "return torch.sigmoid(x * x)",
    "clamp, subtract, multiply, abs": "return ((x.clamp(-1.0, 1.0) - 0.5) * 3.0).abs()",
}
#: Single operators: name -> what becomes of v, and the reference.
_SINGLE = {
    "relu": ("tl.maximum(v, 0.0)", "return torch.relu(x)"),
    "square": ("v * v", "return x * x"),
    "hardtanh": ("tl.minimum(tl.maximum(v, -1.0), 1.0)", "return x.clamp(-1.0, 1.0)"),
}
_SPECIAL = {
    "sine series": (
        "tl.sin(v) + tl.sin(2.0 * v) + tl.sin(3.0 * v) + tl.cos(v) + tl.cos(2.0 * v)",
        "return x.sin() + (2 * x).sin() + (3 * x).sin() + x.cos() + (2 * x).cos()",
    ),
    "exponentials": (
        "tl.exp(v) + tl.exp(-v) + tl.exp(0.5 * v) + tl.log(tl.exp(0.1 * v) + 1.0)"
        " + tl.exp(0.2 * v) + tl.exp(0.3 * v)",
        "return x.exp() + (-x).exp() + (x / 2).exp() + ((x / 10).exp() + 1).log()"
        " + (x / 5).exp() + (0.3 * x).exp()",
    ),
    "roots": (
        "tl.sqrt(v * v + 1.0) + tl.rsqrt(v * v + 2.0) + tl.log(v * v + 3.0) + tl.exp(-v * v)"
        " + tl.log(v * v + 4.0) + tl.sqrt(v * v + 5.0)",
        "return (x * x + 1).sqrt() + (x * x + 2).rsqrt() + (x * x + 3).log() + (-x * x).exp()"
        " + (x * x + 4).log() + (x * x + 5).sqrt()",
    ),
}
_STEP = """
@triton.jit
def sick_PLACE(x_ptr, out_ptr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x_ptr + place)
    tl.store(out_ptr + place, VALUE)
"""


def element_cases() -> Iterator[SickKernel]:
    """The cases of this module."""
    for name, steps in _CHAINS.items():
        yield _chain("a launch for each step", name, steps, 8192, ("fuse-pointwise-chain",))
        tiny = ("fuse-pointwise-chain", "cuda-graph-replay", "cached-launch")
        yield _chain("tiny launches", name, steps * 4, 64, tiny)
    for name, (value, reference) in _SINGLE.items():
        yield from _single(name, value, reference)
    for name, (value, reference) in _SPECIAL.items():
        kernel = _STEP.replace("_PLACE", "").replace("VALUE", value)
        launch = """
        out = torch.empty_like(x)
        sick[(x.numel() // 1024,)](x, out, BLOCK=1024)
        return out
        """
        yield make_case(
            "special functions",
            name,
            "pointwise",
            ("fast-transcendentals",),
            Body(kernel, reference, launch),
            ROWS=8192,
            COLUMNS=8192,
        )
    yield from _moved()


def _chain(
    kind: str, name: str, steps: tuple[str, ...], rows: int, right: tuple[str, ...]
) -> SickKernel:
    kernels = "\n\n".join(
        _STEP.replace("PLACE", str(place)).replace("VALUE", value).strip("\n")
        for place, value in enumerate(steps)
    )
    launches = [
        f"y = torch.empty_like(x)\nsick_{place}[(x.numel() // 1024,)](x, y, BLOCK=1024)\nx = y"
        for place in range(len(steps))
    ]
    reference = _REFERENCES[name]
    if rows == 64:
        again = reference.removeprefix("return ")
        reference = f"for _ in range(4):\n    x = {again}\nreturn x"
    return make_case(
        kind,
        name,
        "pointwise",
        right,
        Body(kernels, reference, "\n".join([*launches, "return x"])),
        ROWS=rows,
        COLUMNS=rows,
    )


def _single(name: str, value: str, reference: str) -> Iterator[SickKernel]:
    few = """
    @triton.jit
    def sick(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
        begin = tl.program_id(0).to(tl.int64) * size
        for start in range(0, size, BLOCK):
            v = tl.load(x_ptr + begin + start + tl.arange(0, BLOCK))
            tl.store(out_ptr + begin + start + tl.arange(0, BLOCK), VALUE)
    """
    launch = """
    out = torch.empty_like(x)
    sick[(16,)](x, out, x.numel() // 16, BLOCK=1024)
    return out
    """
    yield make_case(
        "few programs",
        name,
        "pointwise",
        ("fill-the-grid",),
        Body(few, reference, launch),
        VALUE=value,
        ROWS=8192,
        COLUMNS=8192,
    )
    narrow = _STEP.replace("_PLACE", "").replace("VALUE", value)
    launch = """
    out = torch.empty_like(x)
    sick[(x.numel() // 32,)](x, out, BLOCK=32, num_warps=1)
    return out
    """
    yield make_case(
        "a lane for each element",
        name,
        "pointwise",
        ("more-work-per-thread", "widen-vector-access"),
        Body(narrow, reference, launch),
        ROWS=8192,
        COLUMNS=8192,
    )
    strided = """
    @triton.jit
    def sick(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + row * columns + tl.program_id(1))
        tl.store(out_ptr + row * columns + tl.program_id(1), VALUE)
    """
    launch = """
    out = torch.empty_like(x)
    sick[(x.shape[0] // 128, x.shape[1])](x, out, x.shape[1], BLOCK=128)
    return out
    """
    yield make_case(
        "lanes down the rows",
        name,
        "pointwise",
        ("coalesce-lane-axis",),
        Body(strided, reference, launch),
        VALUE=value,
        ROWS=8192,
        COLUMNS=8192,
    )
    divided = """
    @triton.jit
    def sick(x_ptr, out_ptr, a, b, c, BLOCK: tl.constexpr):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        i = place // (a * b * c)
        j = (place // (b * c)) % a
        k = (place // c) % b
        l = place % c
        v = tl.load(x_ptr + ((i * a + j) * b + k) * c + l)
        tl.store(out_ptr + ((i * a + j) * b + k) * c + l, VALUE)
    """
    launch = """
    out = torch.empty_like(x)
    sick[(x.numel() // 1024,)](x, out, x.shape[1], x.shape[2], x.shape[3], BLOCK=1024)
    return out
    """
    yield make_case(
        "places found by division",
        name,
        "pointwise",
        ("simplify-index-arithmetic", "reduce-instruction-count"),
        Body(divided, reference, launch, "torch.randn(64, 96, 96, 96)"),
        VALUE=value,
    )


def _moved() -> Iterator[SickKernel]:
    turned = """
    @triton.jit
    def sick(x_ptr, out_ptr, rows, columns, BLOCK: tl.constexpr):
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + tl.program_id(0) * columns + column)
        tl.store(out_ptr + column * rows + tl.program_id(0), VALUE)
    """
    launch = """
    out = x.new_empty(x.shape[1], x.shape[0])
    sick[(x.shape[0], x.shape[1] // 256)](x, out, x.shape[0], x.shape[1], BLOCK=256)
    return out
    """
    for name, value, reference in (
        ("transpose", "v", "return x.t().contiguous()"),
        ("transpose and scale", "v * 2.0", "return (x.t() * 2.0).contiguous()"),
    ):
        yield make_case(
            "a turned tensor written a sector a lane",
            name,
            "layout",
            ("transpose-through-tile", "coalesce-lane-axis"),
            Body(turned, reference, launch),
            VALUE=value,
            ROWS=8192,
            COLUMNS=8192,
        )
    picked = """
    @triton.jit
    def sick(index_ptr, table_ptr, out_ptr, width, size, BLOCK: tl.constexpr):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        row = tl.load(index_ptr + place % size)
        column = place // size
        v = tl.load(table_ptr + row * width + column)
        tl.store(out_ptr + (place % size) * width + column, v)
    """
    launch = """
    out = table.new_empty(index.shape[0], table.shape[1])
    size = out.numel()
    sick[(size // 512,)](index, table, out, table.shape[1], index.shape[0], BLOCK=512)
    return out
    """
    for name, width in (("narrow embedding", 64), ("wide embedding", 1024)):
        yield make_case(
            "lanes each in another row of a table",
            name,
            "embedding",
            ("gather-whole-rows", "coalesce-lane-axis"),
            Body(
                picked,
                "return torch.nn.functional.embedding(index, table)",
                launch,
                "torch.randint(0, 65536, (65536,)), torch.randn(65536, WIDTH)",
                "index, table",
            ),
            WIDTH=width,
        )
