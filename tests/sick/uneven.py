"""Sick on uneven data: ragged rows, rare paths, bands and masks."""

from collections.abc import Iterator

from sick.case import Body, SickKernel, make_case
from sick.tiles import ATTEND, MATMUL

_HEADS = "torch.randn(4, 16, 4096, 64, dtype=torch.float16)"
_ATTENDED = """
out = torch.empty_like(q)
heads, length = q.shape[0] * q.shape[1], k.shape[2]
sick[(q.shape[2] // 64, heads)](q, k, v, out, length, 1, TQ=64, TK=64)
return out
"""
_MASK = "mask = torch.full((length, length), -1e30, device=q.device).triu(1)\n"


def uneven_cases() -> Iterator[SickKernel]:
    """The cases of this module."""
    yield from _ragged()
    yield from _rare()
    yield from _bands()
    yield from _masks()


def _ragged() -> Iterator[SickKernel]:
    kind, right = "rows padded to the longest", ("uniform-control-flow",)
    yield make_case(
        kind,
        "ragged softmax",
        "softmax",
        right,
        Body(
            """
            @triton.jit
            def sick(x_ptr, length_ptr, out_ptr, columns, BLOCK: tl.constexpr):
                begin = tl.program_id(0).to(tl.int64) * columns
                length = tl.load(length_ptr + tl.program_id(0))
                total = tl.zeros((BLOCK,), tl.float32)
                for start in range(0, columns, BLOCK):
                    lanes = start + tl.arange(0, BLOCK)
                    v = tl.load(x_ptr + begin + lanes, mask=lanes < length, other=-1e30)
                    total += tl.exp(v)
                whole = tl.sum(total, 0)
                for start in range(0, columns, BLOCK):
                    lanes = start + tl.arange(0, BLOCK)
                    v = tl.load(x_ptr + begin + lanes, mask=lanes < length, other=-1e30)
                    tl.store(out_ptr + begin + lanes, tl.exp(v) / whole)
            """,
            """
            held = torch.arange(x.shape[1], device=x.device) < length[:, None]
            return torch.softmax(torch.where(held, x, torch.full_like(x, -1e30)), 1)
            """,
            """
            out = torch.empty_like(x)
            sick[(x.shape[0],)](x, length, out, x.shape[1], BLOCK=1024)
            return out
            """,
            "torch.randn(8192, 8192), torch.randint(1, 8192, (8192,))",
            "x, length",
        ),
    )
    yield make_case(
        kind,
        "bags of up to 64 rows",
        "embedding",
        (*right, "gather-whole-rows"),
        Body(
            """
            @triton.jit
            def sick(index_ptr, count_ptr, table_ptr, out_ptr, longest, width: tl.constexpr):
                bag, lanes = tl.program_id(0), tl.arange(0, width)
                count = tl.load(count_ptr + bag)
                acc = tl.zeros((width,), tl.float32)
                for item in range(longest):
                    row = tl.load(index_ptr + bag * longest + item)
                    held = (item < count) & (lanes < width)
                    acc += tl.load(table_ptr + row * width + lanes, mask=held, other=0.0)
                tl.store(out_ptr + bag * width + lanes, acc)
            """,
            """
            held = torch.arange(index.shape[1], device=index.device) < count[:, None]
            rows = torch.nn.functional.embedding(index, table)
            return (rows * held[:, :, None]).sum(1)
            """,
            """
            out = table.new_empty(index.shape[0], table.shape[1])
            sick[(index.shape[0],)](index, count, table, out, index.shape[1], table.shape[1])
            return out
            """,
            "torch.randint(0, 65536, (16384, 64)), torch.randint(1, 64, (16384,)), "
            "torch.randn(65536, 256)",
            "index, count, table",
        ),
    )
    yield make_case(
        kind,
        "attention over ragged keys",
        "attention",
        (*right, "causal-tile-skipping"),
        Body(
            ATTEND.replace("length, shared", "length_ptr, length, shared")
            .replace(
                "    q = tl.load", "    held = tl.load(length_ptr + head // 16)\n    q = tl.load"
            )
            .replace("MASKED", "tl.where((keys < held)[None, :], scores, -1e30)"),
            """
            held = torch.arange(k.shape[2], device=k.device) < length[:, None]
            mask = held[:, None, None, :]
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            """,
            """
            out = torch.empty_like(q)
            heads, longest = q.shape[0] * q.shape[1], k.shape[2]
            sick[(q.shape[2] // 64, heads)](q, k, v, out, length, longest, 1, TQ=64, TK=64)
            return out
            """,
            f"{_HEADS}, {_HEADS}, {_HEADS}, torch.randint(1, 4096, (4,))",
            "q, k, v, length",
        ),
    )
    yield make_case(
        kind,
        "mean squared error of ragged rows",
        "loss",
        (*right, "fuse-loss-with-mean"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, y_ptr, length_ptr, out_ptr, columns, BLOCK: tl.constexpr):
                begin = tl.program_id(0).to(tl.int64) * columns
                length = tl.load(length_ptr + tl.program_id(0))
                acc = tl.zeros((BLOCK,), tl.float32)
                for start in range(0, columns, BLOCK):
                    lanes = start + tl.arange(0, BLOCK)
                    x = tl.load(x_ptr + begin + lanes, mask=lanes < length, other=0.0)
                    y = tl.load(y_ptr + begin + lanes, mask=lanes < length, other=0.0)
                    acc += (x - y) * (x - y)
                tl.store(out_ptr + tl.program_id(0), tl.sum(acc, 0) / length)
            """,
            """
            held = torch.arange(x.shape[1], device=x.device) < length[:, None]
            return ((x - y).square() * held).sum(1) / length
            """,
            """
            out = x.new_empty(x.shape[0])
            sick[(x.shape[0],)](x, y, length, out, x.shape[1], BLOCK=1024)
            return out
            """,
            "torch.randn(8192, 8192), torch.randn(8192, 8192), torch.randint(1, 8192, (8192,))",
            "x, y, length",
        ),
    )


def _rare() -> Iterator[SickKernel]:
    kind = "a rare dear path for every lane"
    yield make_case(
        kind,
        "series of large values",
        "pointwise",
        ("uniform-control-flow", "fast-transcendentals", "reduce-instruction-count"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, out_ptr, BLOCK: tl.constexpr):
                place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
                v = tl.load(x_ptr + place)
                dear = tl.zeros((BLOCK,), tl.float32)
                for i in range(1, 25):
                    dear += tl.exp(-v * i) * tl.cos(v * i)
                tl.store(out_ptr + place, tl.where(v > 4.0, dear, v))
            """,
            """
            dear = torch.zeros_like(x)
            for i in range(1, 25):
                dear = dear + torch.exp(-x * i) * torch.cos(x * i)
            return torch.where(x > 4.0, dear, x)
            """,
            """
            out = torch.empty_like(x)
            sick[(x.numel() // 1024,)](x, out, BLOCK=1024)
            return out
            """,
            "torch.randn(8192, 4096)",
        ),
    )
    yield make_case(
        kind,
        "log of sums of chosen rows",
        "loss",
        ("uniform-control-flow", "fast-transcendentals"),
        Body(
            """
            @triton.jit
            def sick(x_ptr, chosen_ptr, out_ptr, columns, BLOCK: tl.constexpr):
                row = tl.program_id(0).to(tl.int64)
                chosen = tl.load(chosen_ptr + row)
                plain, dear = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
                for start in range(0, columns, BLOCK):
                    v = tl.load(x_ptr + row * columns + start + tl.arange(0, BLOCK))
                    plain += v
                    dear += tl.log(1.0 + tl.exp(tl.sin(v))) * tl.exp(tl.cos(v))
                out = tl.where(chosen > 0, tl.sum(dear, 0), tl.sum(plain, 0))
                tl.store(out_ptr + row, out)
            """,
            """
            dear = (torch.log1p(torch.exp(torch.sin(x))) * torch.exp(torch.cos(x))).sum(1)
            return torch.where(chosen > 0, dear, x.sum(1))
            """,
            """
            out = x.new_empty(x.shape[0])
            sick[(x.shape[0],)](x, chosen, out, x.shape[1], BLOCK=1024)
            return out
            """,
            "torch.randn(16384, 4096), torch.randint(0, 2, (16384,))",
            "x, chosen",
        ),
    )


def _bands() -> Iterator[SickKernel]:
    yield make_case(
        "tiles outside a band multiplied",
        "attention to the last 256 keys",
        "attention",
        ("causal-tile-skipping", "skip-zero-tiles-matmul"),
        Body(
            ATTEND.replace(
                "MASKED",
                "tl.where((rows[:, None] - keys >= 0) & (rows[:, None] - keys < 256), "
                "scores, -1e30)",
            ),
            """
            place = torch.arange(q.shape[2], device=q.device)
            back = place[:, None] - place
            mask = (back >= 0) & (back < 256)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            """,
            _ATTENDED,
            f"{_HEADS}, {_HEADS}, {_HEADS}",
            "q, k, v",
        ),
    )
    yield make_case(
        "tiles outside a band multiplied",
        "lower triangle times a matrix",
        "matmul",
        ("skip-zero-tiles-matmul",),
        Body(
            MATMUL,
            "return torch.matmul(torch.tril(a), b)",
            "return multiplied(torch.tril(a), b, 128, 128, 32, num_warps=8)",
            "torch.randn(4096, 4096), torch.randn(4096, 4096)",
            "a, b",
        ),
    )
    yield make_case(
        "a mask read from memory",
        "causal attention",
        "attention",
        ("causal-tile-skipping",),
        Body(
            ATTEND.replace("v_ptr, out_ptr", "v_ptr, mask_ptr, out_ptr").replace(
                "MASKED", "scores + tl.load(mask_ptr + rows[:, None] * length + keys)"
            ),
            """
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            """,
            _ATTENDED.replace("sick[", f"{_MASK}sick[").replace("v, out", "v, mask, out"),
            f"{_HEADS}, {_HEADS}, {_HEADS}",
            "q, k, v",
        ),
    )


def _masks() -> Iterator[SickKernel]:
    yield make_case(
        "masks where sizes are even",
        "half product of 4096",
        "matmul",
        ("drop-masks-when-even", "tile-matmul", "pipeline-loads-with-stages"),
        Body(
            MATMUL.replace(
                "(rows < M)[:, None], 0.0)",
                "(rows < M)[:, None] & (ks < K)[None, :], 0.0)",
            ).replace(
                "columns[None, :])\n        acc",
                "columns[None, :], (ks < K)[:, None] & (columns < N)[None, :], 0.0)\n        acc",
            ),
            "return torch.matmul(a, b)",
            "return multiplied(a, b, 128, 128, 32, num_warps=8)",
            "torch.randn(4096, 4096).half(), torch.randn(4096, 4096).half()",
            "a, b",
        ),
    )
    masked = """
            @triton.jit
            def sick(x_ptr, out_ptr, rows, columns, BLOCK: tl.constexpr):
                row = tl.program_id(0)
                lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
                inside = (lanes < columns) & (row < rows)
                v = tl.load(x_ptr + row * columns + lanes, mask=inside, other=0.0)
                tl.store(out_ptr + row * columns + lanes, v * tl.sigmoid(v), mask=inside)
            """
    yield make_case(
        "masked lanes of a block that is twice too wide",
        "silu of 260 columns",
        "pointwise",
        ("several-rows-per-program", "drop-masks-when-even", "more-work-per-thread"),
        Body(
            masked,
            "return torch.nn.functional.silu(x)",
            """
            out = torch.empty_like(x)
            sick[(x.shape[0], 1)](x, out, x.shape[0], x.shape[1], BLOCK=1024)
            return out
            """,
            "torch.randn(131072, 260)",
        ),
    )
