"""The last kernel of a region with a total: one program that sums what groups of rows left."""

from kmem.codegen.regions.region import Region
from kmem.codegen.text.definitions import define
from kmem.problem.sizes import next_power_of_two

#: Elements that a thread loads at once, and those of a program of 32 warps.
PER_THREAD = 16
TILE = 1024 * PER_THREAD


def emit_total(region: Region, purpose: str, count: int) -> tuple[tuple[str, str], str]:
    """(name, text) of the kernel and its launch.

    The kernel reads t0.. (COUNT,), fp32, one per value; it sums lane by lane, which keep what they
    lose to rounding, then across lanes. It calls accumulate.ADD_COMPENSATED.

    Args:
        region: one with a total.
        purpose: the first word of the kernel's name.
        count: of sums that programs left.
    """
    total = region.total
    names = [f"total_{index}" for index in range(len(total.values))]
    both = [f"{name}, {name}_lost" for name in names]
    zeros = "tl.zeros((TILE,), tl.float32)"
    lines = [f"{pair} = {zeros}, {zeros}" for pair in both]
    lines += ["for start in range(0, COUNT, TILE):", "    i = start + tl.arange(0, TILE)"]
    lines += [
        f"    {pair} = kmem_add_compensated({pair}, "
        f"tl.load(t{index} + i, mask=i < COUNT, other=0.0))"
        for index, pair in enumerate(both)
    ]
    lines += [f"{name} = tl.sum({name}, axis=0)" for name in names]
    pointer = f"q{total.output}"
    lines += [f"tl.store({pointer}, ({total.text}).to({pointer}.dtype.element_ty))"]
    pointers = [pointer, *(f"t{index}" for index in range(len(names)))]
    says = "The sum of what all programs left, by one program."
    total_of_rows = define(f"{purpose}_total", pointers, ["COUNT", "TILE"], lines, says)
    tile = min(TILE, next_power_of_two(count))
    launch = total_of_rows.write_launch(
        "1", {"COUNT": count, "TILE": tile}, {"num_warps": max(1, tile // 512)}
    )
    return total_of_rows.kernel, launch
