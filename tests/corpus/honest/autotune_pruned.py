# problem: sine
# class: autotuning with pruned configurations, heuristics and a lambda for the grid
# purity: triton
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


def early_config_prune(configs, named_args, **kwargs):
    n = named_args["n"]
    return [c for c in configs if c.kwargs["BLOCK"] <= max(64, triton.next_power_of_2(n))]


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": b}, num_warps=w) for b in (64, 128, 1024) for w in (2, 4)
    ],
    key=["n"],
    prune_configs_by={"early_config_prune": early_config_prune},
)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def sine_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    pid = tl.program_id(axis=0)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        x = tl.load(x_ptr + offs)
        tl.store(y_ptr + offs, tl.sin(x))
    else:
        x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
        tl.store(y_ptr + offs, tl.sin(x), mask=offs < n)


class ModelNew(nn.Module):
    """Sine."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        grid = lambda META: (triton.cdiv(x.numel(), META["BLOCK"]),)
        sine_kernel[grid](x, out, x.numel())
        return out
