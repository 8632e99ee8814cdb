# problem: softmax_rows
# class: programs of one launch that wait for each other, twice
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_of_parts(
    x_ptr, y_ptr, maxima, sums, arrived, columns, PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    number = tl.atomic_add(arrived, 1)
    row = number // PARTS
    part = number % PARTS
    steps = tl.cdiv(columns, PARTS)
    place = part * steps + tl.arange(0, BLOCK)
    mask = (tl.arange(0, BLOCK) < steps) & (place < columns)
    x = tl.load(x_ptr + row * columns + place, mask=mask, other=float("-inf"))
    parts = row * PARTS + tl.arange(0, PARTS)

    tl.store(maxima + row * PARTS + part, tl.max(x, axis=0))
    tl.debug_barrier()
    tl.atomic_add(arrived + 1 + 2 * row, 1, sem="acq_rel")
    while tl.atomic_add(arrived + 1 + 2 * row, 0, sem="acquire") < PARTS:
        pass
    tl.debug_barrier()
    highest = tl.max(tl.load(maxima + parts, volatile=True), axis=0)

    e = tl.exp(x - highest)
    tl.store(sums + row * PARTS + part, tl.sum(e, axis=0))
    tl.debug_barrier()
    tl.atomic_add(arrived + 2 + 2 * row, 1, sem="acq_rel")
    while tl.atomic_add(arrived + 2 + 2 * row, 0, sem="acquire") < PARTS:
        pass
    tl.debug_barrier()
    total = tl.sum(tl.load(sums + parts, volatile=True), axis=0)
    tl.store(y_ptr + row * columns + place, e / total, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        columns = x.shape[-1]
        rows, parts = x.numel() // columns, 4
        y = torch.empty_like(x)
        maxima = torch.empty(rows * parts, device=x.device)
        sums = torch.empty(rows * parts, device=x.device)
        arrived = torch.zeros(1 + 2 * rows, dtype=torch.int32, device=x.device)
        block = triton.next_power_of_2(triton.cdiv(columns, parts))
        softmax_of_parts[(rows * parts,)](
            x, y, maxima, sums, arrived, columns, PARTS=parts, BLOCK=block
        )
        return y
