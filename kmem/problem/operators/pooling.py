"""Poolings: every element is counted once, however large the window."""

from kmem.problem.operators.arithmetic import per_input
from kmem.problem.operators.row import Operator

ROWS = (
    *(
        Operator(f"aten.{name}", "max_pool", per_input, is_fresh=True)
        for name in ("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices")
    ),
    *(
        Operator(f"aten.avg_pool{rank}d", "avg_pool", per_input, is_fresh=True)
        for rank in (1, 2, 3)
    ),
    *(
        Operator(f"aten.adaptive_{kind}_pool{rank}d", "adaptive_pool", per_input)
        for kind in ("avg", "max")
        for rank in (1, 2, 3)
    ),
)
