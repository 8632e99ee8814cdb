"""Poolings: every element is counted once, however large the window.

An adaptive pooling to one element is a reduction of all spatial dimensions; to other sizes it is
the library's.
"""

from collections.abc import Callable

from kmem.problem.operators.arithmetic import per_input
from kmem.problem.operators.builder import RegionBuilder
from kmem.problem.operators.reductions import lower_extremum, lower_mean
from kmem.problem.operators.row import Call, Operator, Reduced, Reduction, parameters


def _whole_planes(rank: int) -> Callable[[Call], Reduced | None]:
    def dims(call: Call) -> Reduced | None:
        sizes = call["output_size"]
        listed = (sizes,) if isinstance(sizes, int) else sizes
        before = len(call.spec("x").shape) - rank
        return (tuple(range(before, before + rank)), True) if set(listed) == {1} else None

    return dims


def _lower_max(build: RegionBuilder, call: Call) -> None:
    if isinstance(call.node.output, tuple):
        lower_extremum(build, call, is_minimum=False)
    else:
        build.reduce((call.out,), "max", build.read(call.value("x")))


def _adaptive(kind: str, rank: int) -> Operator:
    lower = lower_mean if kind == "avg" else _lower_max
    return Operator(
        f"aten.adaptive_{kind}_pool{rank}d",
        "adaptive_pool",
        per_input,
        parameters("x", "output_size"),
        Reduction(_whole_planes(rank), lower),
    )


ROWS = (
    *(
        Operator(f"aten.{name}", "max_pool", per_input, is_fresh=True)
        for name in ("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices")
    ),
    *(
        Operator(f"aten.avg_pool{rank}d", "avg_pool", per_input, is_fresh=True)
        for rank in (1, 2, 3)
    ),
    *(_adaptive(kind, rank) for kind in ("avg", "max") for rank in (1, 2, 3)),
)
