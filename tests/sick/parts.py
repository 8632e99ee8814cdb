"""Texts of kernels that cases of several modules are made of."""

#: Runs a pointwise kernel of `step` over tensors of one shape.
RUN_STEP = """
def stepped(kernel, *tensors, dtype=None):
    out = torch.empty_like(tensors[0], dtype=dtype)
    kernel[(out.numel() // 1024,)](*tensors, out, BLOCK=1024)
    return out
"""

#: Runs a kernel of `row_step`, which leaves one number for each row.
RUN_ROWS = """
def joined(kernel, x, BLOCK=1024, **options):
    out = x.new_empty(x.shape[0])
    kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=BLOCK, **options)
    return out
"""


def step(name: str, value: str, inputs: str = "v") -> str:
    """A pointwise kernel that stores `value`, of one tensor for each letter of `inputs`."""
    pointers = ", ".join(f"{letter}_ptr" for letter in inputs)
    loads = "\n".join(f"    {letter} = tl.load({letter}_ptr + place)" for letter in inputs)
    return f"""
@triton.jit
def {name}({pointers}, out_ptr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
{loads}
    tl.store(out_ptr + place, {value})

"""


def row_step(name: str, first: str, joined: str, end: str) -> str:
    """A kernel that joins each row block by block: `acc` begins as `first` and meets each `v`."""
    return f"""
@triton.jit
def {name}(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    begin = tl.program_id(0).to(tl.int64) * columns
    acc = tl.full((BLOCK,), {first}, tl.float32)
    for start in range(0, columns, BLOCK):
        v = tl.load(x_ptr + begin + start + tl.arange(0, BLOCK)).to(tl.float32)
        acc = {joined}
    tl.store(out_ptr + tl.program_id(0), {end})

"""
