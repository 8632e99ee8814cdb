"""The last kernel of a region with a total: one program that sums what the rows left."""

from kmem.codegen.regions.region import Region
from kmem.codegen.text.definitions import define
from kmem.problem.sizes import next_power_of_two

#: Elements that the program loads at once: 16 to a thread of 32 warps.
_TILE = 16384


def emit_total(region: Region, purpose: str) -> tuple[tuple[str, str], str]:
    """(name, text) of the kernel and its launch.

    The kernel reads t0.. (ROWS,), fp32, one per value; it sums lane by lane, which keep what they
    lose to rounding, then across lanes. It calls accumulate.ADD_COMPENSATED.

    Args:
        region: one with a total.
        purpose: the first word of the kernel's name.
    """
    total = region.total
    names = [f"total_{index}" for index in range(len(total.values))]
    both = [f"{name}, {name}_lost" for name in names]
    zeros = "tl.zeros((TILE,), tl.float32)"
    lines = [f"{pair} = {zeros}, {zeros}" for pair in both]
    lines += ["for start in range(0, ROWS, TILE):", "    i = start + tl.arange(0, TILE)"]
    lines += [
        f"    {pair} = kmem_add_compensated({pair}, "
        f"tl.load(t{index} + i, mask=i < ROWS, other=0.0))"
        for index, pair in enumerate(both)
    ]
    lines += [f"{name} = tl.sum({name}, axis=0)" for name in names]
    pointer = f"q{total.output}"
    lines += [f"tl.store({pointer}, ({total.text}).to({pointer}.dtype.element_ty))"]
    pointers = [pointer, *(f"t{index}" for index in range(len(names)))]
    says = "The sum of what all rows left, by one program."
    total_of_rows = define(f"{purpose}_total", pointers, ["ROWS", "TILE"], lines, says)
    tile = min(_TILE, next_power_of_two(region.rows))
    launch = total_of_rows.write_launch("1", {"TILE": tile}, {"num_warps": max(1, tile // 512)})
    return total_of_rows.kernel, launch
