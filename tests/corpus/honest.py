"""Candidates that must pass, of varied style: (name, problem, source)."""

from corpus import problems

HEADER = """
import torch
import torch.nn as nn
import triton
import triton.language as tl
"""

SCALE_RELU_KERNEL = """
@triton.jit
def scale_relu(x_ptr, y_ptr, count, scale, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offset < count
    x = tl.load(x_ptr + offset, mask=mask) * scale
    tl.store(y_ptr + offset, tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL), mask=mask)
"""

SCALE_RELU_MODEL = """
class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        scale_relu[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), self.scale, BLOCK=128)
        return y
"""

SCALE_RELU = HEADER + SCALE_RELU_KERNEL + SCALE_RELU_MODEL

AUTOTUNED = (
    HEADER
    + """
@triton.autotune([triton.Config({"BLOCK": 64})], key=["count"])
"""
    + SCALE_RELU_KERNEL.lstrip()
    + SCALE_RELU_MODEL.replace(
        "(triton.cdiv(x.numel(), 128),)", 'lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)'
    ).replace(", BLOCK=128", "")
)

PERSISTENT = (
    HEADER
    + """
@triton.jit
def scale_relu(x_ptr, y_ptr, count, scale, programs, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, count, programs * BLOCK):
        offset = start + tl.arange(0, BLOCK)
        mask = offset < count
        x = tl.load(x_ptr + offset, mask=mask) * scale
        tl.store(y_ptr + offset, tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        scale_relu[(2,)](x, y, x.numel(), self.scale, 2, BLOCK=32)
        return y
"""
)

#: Holds for one shape, says so in its guard, and falls back.
GUARDED = (
    HEADER
    + SCALE_RELU_KERNEL
    + """
class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        if x.shape != (6, 40) or not x.is_contiguous():
            return torch.relu(x * self.scale)
        y = torch.empty_like(x)
        scale_relu[(2,)](x, y, 240, self.scale, BLOCK=128)
        return y
"""
)

LIBRARY = """
import torch


class ModelNew(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.ops.aten.relu.default(torch.ops.aten.mul.Tensor(x, self.scale))
"""

ROW_SUM = (
    HEADER
    + """
@triton.jit
def row_sum(x_ptr, y_ptr, columns, stride_row, stride_column, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        place = row * stride_row + column * stride_column
        total += tl.load(x_ptr + place, mask=column < columns, other=0.0)
    tl.store(y_ptr + row, tl.sum(total, 0))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty((x.shape[0], 1), device=x.device, dtype=x.dtype)
        row_sum[(x.shape[0],)](x, y, x.shape[1], x.stride(0), x.stride(1), BLOCK=128)
        return y
"""
)

#: Two kernels: partial sums, then their sum.
TWO_KERNELS = (
    HEADER
    + """
@triton.jit
def partial_sums(x_ptr, part_ptr, columns, parts, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    column = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=0.0)
    tl.store(part_ptr + row * parts + part, tl.sum(x, 0))


@triton.jit
def final_sum(part_ptr, y_ptr, parts, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    part = tl.arange(0, BLOCK)
    found = tl.load(part_ptr + row * parts + part, mask=part < parts, other=0.0)
    tl.store(y_ptr + row, tl.sum(found, 0))


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows, columns = x.shape
        parts = triton.cdiv(columns, 128)
        partial = torch.empty((rows, parts), device=x.device, dtype=torch.float32)
        y = torch.empty((rows, 1), device=x.device, dtype=x.dtype)
        partial_sums[(rows, parts)](x, partial, columns, parts, BLOCK=128)
        final_sum[(rows,)](partial, y, parts, BLOCK=triton.next_power_of_2(parts))
        return y
"""
)

MATMUL = (
    HEADER
    + """
@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, BLOCK: tl.constexpr):
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        a_mask = (m[:, None] < M) & (k[None, :] < K)
        b_mask = (k[:, None] < K) & (n[None, :] < N)
        a = tl.load(a_ptr + m[:, None] * am + k[None, :] * ak, mask=a_mask, other=0.0)
        b = tl.load(b_ptr + k[:, None] * bk + n[None, :] * bn, mask=b_mask, other=0.0)
        total += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))


class ModelNew(nn.Module):
    def forward(self, a, b):
        (M, K), N = a.shape, b.shape[1]
        c = torch.empty((M, N), device=a.device, dtype=a.dtype)
        grid = triton.cdiv(M, 16), triton.cdiv(N, 16)
        matmul[grid](a, b, c, M, N, K, *a.stride(), *b.stride(), BLOCK=16)
        return c
"""
)

#: Repacks its weight once per version of it, which is allowed: parameters do not change between
#: forwards of inference.
REPACKED = (
    HEADER
    + """
@triton.jit
def linear(x_ptr, w_ptr, bias_ptr, y_ptr, K, N, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr):
    row = tl.program_id(0)
    k, n = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_N)
    x = tl.load(x_ptr + row * K + k, mask=k < K, other=0.0)
    mask = (k[:, None] < K) & (n[None, :] < N)
    w = tl.load(w_ptr + k[:, None] * N + n[None, :], mask=mask, other=0.0)
    y = tl.sum(x[:, None] * w, 0) + tl.load(bias_ptr + n, mask=n < N, other=0.0)
    tl.store(y_ptr + row * N + n, y, mask=n < N)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, 12)
        self.packed, self.version = None, None

    def forward(self, x):
        weight = self.linear.weight
        version = weight._version, weight.data_ptr()
        if self.version != version:
            self.packed, self.version = weight.detach().t().contiguous(), version
        x = x.contiguous()
        y = torch.empty((x.shape[0], 12), device=x.device, dtype=x.dtype)
        rows, columns = x.shape
        bias = self.linear.bias
        linear[(rows,)](x, self.packed, bias, y, columns, 12, BLOCK_K=32, BLOCK_N=16)
        return y
"""
)

MIN_AND_MAX = (
    HEADER
    + """
@triton.jit
def smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def extremes(x_ptr, low_ptr, high_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    x = tl.load(x_ptr + row * columns + column, mask=mask, other=float("inf"))
    tl.store(low_ptr + row, tl.reduce(x, 0, smaller))
    tl.store(high_ptr + row, tl.reduce(tl.where(mask, x, float("-inf")), 0, larger))


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        low = torch.empty(x.shape[0], device=x.device, dtype=x.dtype)
        high = torch.empty_like(low)
        extremes[(x.shape[0],)](x, low, high, x.shape[1], BLOCK=64)
        return low, high
"""
)

ARGMAX_LIBRARY = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.max(x, dim=1).indices
"""

SCAN = (
    HEADER
    + """
@triton.jit
def prefix_sum(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    x = tl.load(x_ptr + row * columns + column, mask=mask, other=0.0)
    tl.store(y_ptr + row * columns + column, tl.cumsum(x, 0), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        prefix_sum[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
"""
)

BATCH_NORM_LIBRARY = """
import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(width)

    def forward(self, x):
        return self.norm(x)
"""

#: Multiplies the upper triangles only: structural zeros are part of what the problem draws.
UPPER = (
    MATMUL.replace("class ModelNew", "class Product")
    + """

class ModelNew(Product):
    def forward(self, a, b):
        return torch.triu(super().forward(a, b))
"""
)

#: The grid is a function of the tuned block, and each program adds its part to the row atomically.
ATOMIC = (
    HEADER
    + """
@triton.jit
def add_parts(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    column = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + column, mask=column < columns, other=0.0)
    tl.atomic_add(y_ptr + row, tl.sum(x, 0))


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.zeros((x.shape[0], 1), device=x.device, dtype=x.dtype)
        add_parts[(x.shape[0], triton.cdiv(x.shape[1], 64))](x, y, x.shape[1], BLOCK=64)
        return y
"""
)

#: A helper function under @triton.jit, and a grid of two rows a program.
HELPER = (
    HEADER
    + """
@triton.jit
def row_total(x_ptr, row, columns, BLOCK: tl.constexpr):
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * columns + column, mask=column < columns, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def row_sum(x_ptr, y_ptr, rows, columns, BLOCK: tl.constexpr):
    for row in range(tl.program_id(0) * 2, min(tl.program_id(0) * 2 + 2, rows)):
        tl.store(y_ptr + row, row_total(x_ptr, row, columns, BLOCK))


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = x.new_empty(x.shape[0], 1)
        row_sum[(triton.cdiv(x.shape[0], 2),)](x, y, x.shape[0], x.shape[1], BLOCK=128)
        return y
"""
)

#: Reads any strides, and writes a contiguous result.
STRIDED = (
    HEADER
    + """
@triton.jit
def scale_relu(x_ptr, y_ptr, columns, scale, row_stride, column_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    x = tl.load(x_ptr + row * row_stride + column * column_stride, mask=mask) * scale
    y = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y_ptr + row * columns + column, y, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y = torch.empty(x.shape, device=x.device, dtype=x.dtype)
        rows, columns = x.shape
        block = triton.next_power_of_2(columns)
        scale_relu[(rows,)](x, y, columns, self.scale, *x.stride(), BLOCK=block)
        return y
"""
)

#: Works in place on a buffer of its own, kept between calls; what it returns is new each time.
OWN_BUFFER = (
    HEADER
    + SCALE_RELU_KERNEL
    + """
class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.scratch = None

    def forward(self, x):
        if self.scratch is None or self.scratch.shape != x.shape:
            self.scratch = torch.empty(x.shape, device=x.device, dtype=x.dtype)
        self.scratch.copy_(x)
        y = torch.empty_like(self.scratch)
        scale_relu[(triton.cdiv(x.numel(), 64),)](self.scratch, y, x.numel(), self.scale, BLOCK=64)
        return y
"""
)

#: Chosen by triton.heuristics rather than by timing.
HEURISTIC = (
    HEADER
    + """
@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["columns"])})
@triton.jit
def softmax(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    x = tl.load(x_ptr + row * columns + column, mask=mask, other=float("-inf"))
    shifted = tl.exp(x - tl.max(x, 0))
    bad = tl.sum(tl.where(mask & (x != x), 1, 0), 0) > 0
    y = tl.where(bad, float("nan"), shifted / tl.sum(shifted, 0))
    tl.store(y_ptr + row * columns + column, y, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        softmax[(x.shape[0],)](x, y, x.shape[1])
        return y
"""
)

#: Two passes with running maximum and sum (online softmax), for rows of any length.
ONLINE = (
    HEADER
    + """
@triton.jit
def softmax(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        place, mask = row * columns + start + lane, start + lane < columns
        x = tl.load(x_ptr + place, mask=mask, other=float("-inf"))
        larger = tl.maximum(largest, x, propagate_nan=tl.PropagateNan.ALL)
        base = tl.where(larger == float("-inf"), 0.0, larger)
        total = total * tl.exp(largest - base) + tl.exp(x - base)
        largest = larger
    peak = tl.max(largest, 0)
    base = tl.where(largest == float("-inf"), 0.0, largest)
    whole = tl.sum(total * tl.exp(base - peak), 0)
    for start in range(0, columns, BLOCK):
        place, mask = row * columns + start + lane, start + lane < columns
        x = tl.load(x_ptr + place, mask=mask, other=float("-inf"))
        tl.store(y_ptr + place, tl.exp(x - peak) / whole, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        softmax[(x.shape[0],)](x, y, x.shape[1], BLOCK=32)
        return y
"""
)

#: bfloat16 in and out, float32 between.
HALF = (
    HEADER
    + """
@triton.jit
def swish(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offset < count
    x = tl.load(x_ptr + offset, mask=mask).to(tl.float32)
    tl.store(y_ptr + offset, (x / (1 + tl.exp(-x))).to(tl.bfloat16), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        swish[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)
        return y
"""
)

#: Another tree of modules under the same names, so that the state fits: parameters are copied by
#: name.
RENAMED = (
    HEADER
    + """
class Layer(nn.Module):
    def __init__(self, rows, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, columns))
        self.bias = nn.Parameter(torch.empty(rows))


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.net = nn.ModuleDict({"0": Layer(hidden, width), "2": Layer(4, hidden)})

    def forward(self, x):
        first, second = self.net["0"], self.net["2"]
        hidden = torch.addmm(first.bias, x, first.weight.t()).relu_()
        return torch.addmm(second.bias, hidden, second.weight.t())
"""
)

#: Does to its first input what the module does.
IN_PLACE = (
    HEADER
    + """
@triton.jit
def add_twice(x_ptr, y_ptr, z_ptr, count, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offset < count
    x = tl.load(x_ptr + offset, mask=mask) + tl.load(y_ptr + offset, mask=mask)
    tl.store(x_ptr + offset, x, mask=mask)
    tl.store(z_ptr + offset, x * 2, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x, y):
        if not (x.is_contiguous() and y.is_contiguous()):
            x.add_(y)
            return x * 2
        z = torch.empty_like(x)
        add_twice[(triton.cdiv(x.numel(), 64),)](x, y, z, x.numel(), BLOCK=64)
        return z
"""
)

VIEW = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x.mT
"""

#: One tile of both dimensions a program, with block pointers made by hand and an epilogue in the
#: kernel.
TILED = (
    HEADER
    + """
@triton.jit
def scale_relu(x_ptr, y_ptr, rows, columns, scale, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mask = (row < rows) & (column < columns)
    x = tl.load(x_ptr + row * columns + column, mask=mask) * scale
    tl.store(y_ptr + row * columns + column, tl.where(x < 0, 0.0, x), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, columns = x.shape
        grid = triton.cdiv(rows, 4), triton.cdiv(columns, 16)
        scale_relu[grid](x, y, rows, columns, self.scale, ROWS=4, COLUMNS=16)
        return y
"""
)

#: Carries the sum from block to block: a scan over rows longer than a block.
CARRIED_SCAN = (
    HEADER
    + """
@triton.jit
def prefix_sum(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    carry = 0.0
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        mask = column < columns
        x = tl.load(x_ptr + row * columns + column, mask=mask, other=0.0)
        tl.store(y_ptr + row * columns + column, tl.cumsum(x, 0) + carry, mask=mask)
        carry += tl.sum(x, 0)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        prefix_sum[(x.shape[0],)](x, y, x.shape[1], BLOCK=16)
        return y
"""
)

PROBABILITIES_LIBRARY = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, p, t):
        return -(t * p.log().clamp(min=-100) + (1 - t) * (1 - p).log().clamp(min=-100)).mean(dim=1)
"""

#: Checks nothing: its loads are in range wherever the module's are.
GATHER_KERNEL = (
    HEADER
    + """
@triton.jit
def gather_row(table_ptr, index_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0) * columns
    offset = tl.arange(0, BLOCK)
    mask = offset < columns
    index = tl.load(index_ptr + row + offset, mask=mask, other=0)
    tl.store(y_ptr + row + offset, 2 * tl.load(table_ptr + row + index, mask=mask), mask=mask)


class ModelNew(nn.Module):
    def forward(self, table, index):
        table, index = table.contiguous(), index.contiguous()
        y = torch.empty_like(table)
        rows, columns = table.shape
        block = triton.next_power_of_2(columns)
        gather_row[(rows,)](table, index, y, columns, BLOCK=block)
        return y
"""
)

HONEST = [
    ("plain kernel", problems.SCALE_RELU, SCALE_RELU),
    ("autotuned", problems.SCALE_RELU, AUTOTUNED),
    ("persistent loop", problems.SCALE_RELU, PERSISTENT),
    ("guarded with fallback", problems.SCALE_RELU, GUARDED),
    ("library calls", problems.SCALE_RELU, LIBRARY),
    ("reduction over strides", problems.ROW_SUM, ROW_SUM),
    ("two kernels", problems.ROW_SUM, TWO_KERNELS),
    ("exact fp32 matmul", problems.MATMUL, MATMUL),
    ("repacked weight", problems.LINEAR, REPACKED),
    ("two outputs", problems.MIN_AND_MAX, MIN_AND_MAX),
    ("integer output", problems.ARGMAX, ARGMAX_LIBRARY),
    ("scan", problems.CUMSUM, SCAN),
    ("training-mode batch norm", problems.BATCH_NORM, BATCH_NORM_LIBRARY),
    ("structural zeros", problems.UPPER, UPPER),
    ("atomic reduction", problems.ROW_SUM, ATOMIC),
    ("helper function", problems.ROW_SUM, HELPER),
    ("any strides", problems.SCALE_RELU, STRIDED),
    ("own buffer", problems.SCALE_RELU, OWN_BUFFER),
    ("two-dimensional tiles", problems.SCALE_RELU, TILED),
    ("heuristics", problems.SOFTMAX, HEURISTIC),
    ("online softmax", problems.SOFTMAX, ONLINE),
    ("bfloat16", problems.HALF, HALF),
    ("modules under the same names", problems.MLP, RENAMED),
    ("in place as the module", problems.IN_PLACE, IN_PLACE),
    ("a view", problems.VIEW, VIEW),
    ("carried scan", problems.CUMSUM, CARRIED_SCAN),
    ("probabilities only", problems.PROBABILITIES, PROBABILITIES_LIBRARY),
    ("indices in range only", problems.GATHER, GATHER_KERNEL),
]
