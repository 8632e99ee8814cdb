"""The sum of a linear layer's outputs as a matrix-vector product with the summed weight."""

import torch
import triton
import triton.language as tl

ROWS = 32768
FEATURES = 1024
HIDDEN = 4096


@triton.jit
def matvec(
    x_ptr,
    v_ptr,
    shift_ptr,
    out_ptr,
    n_rows,
    n_cols,
    ROWS_PER_PROGRAM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS_PER_PROGRAM + tl.arange(0, ROWS_PER_PROGRAM)
    cols = tl.arange(0, BLOCK)
    mask = (rows < n_rows)[:, None] & (cols < n_cols)[None, :]
    x = tl.load(x_ptr + rows[:, None] * n_cols + cols[None, :], mask=mask, other=0.0)
    v = tl.load(v_ptr + cols, mask=cols < n_cols, other=0.0)
    tl.store(
        out_ptr + rows, tl.sum(x * v[None, :], axis=1) + tl.load(shift_ptr), mask=rows < n_rows
    )


class Model(torch.nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(features, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rows, cols = x.shape
        out = torch.empty(rows, device=x.device, dtype=x.dtype)
        weight, shift = self.linear.weight.sum(dim=0), self.linear.bias.sum()
        grid = (triton.cdiv(rows, 4),)
        matvec[grid](
            x,
            weight,
            shift,
            out,
            rows,
            cols,
            ROWS_PER_PROGRAM=4,
            BLOCK=triton.next_power_of_2(cols),
            num_warps=4,
        )
        return out


def get_init_inputs() -> list[int]:
    return [FEATURES, HIDDEN]


def make_inputs(rows: int) -> list[torch.Tensor]:
    # Integers are finite in every test: infinity meets weights of both signs in the product, but
    # only their sum once they are added up.
    return [torch.randint(-8, 9, (rows, FEATURES)).float()]


def get_inputs() -> list[torch.Tensor]:
    return make_inputs(ROWS)


def get_small_inputs() -> list[torch.Tensor]:
    return make_inputs(10)
