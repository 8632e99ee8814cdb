"""Running reductions."""

from kmem.problem.operators.arithmetic import per_input, special_per_input
from kmem.problem.operators.row import Operator, Scan, parameters

_GIVEN = parameters("x", "dim", dtype=None)
_ALONG = parameters("x", "dim")
ROWS = (
    Operator("aten.cumsum.default", "cumsum", per_input, _GIVEN, Scan("sum")),
    Operator("aten.cumprod.default", "cumprod", per_input, _GIVEN, Scan("prod")),
    Operator("aten.cummax.default", "cummax", per_input, _ALONG, Scan("max")),
    Operator("aten.cummin.default", "cummax", per_input, _ALONG, Scan("min")),
    Operator("aten.logcumsumexp", "cumsum", special_per_input),
)
