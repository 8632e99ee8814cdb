"""skills/spelled-out-activations: which expressions are an operator, however they are written."""

from functools import cache

import pytest
from module_problems import SKILLS

from kmem.records import Contract
from kmem.rewrites import Rewrite
from kmem.skills import load_rewrite, load_skill
from kmem.testing import check_rewrite, trace_source


@cache
def rewrite() -> Rewrite:
    loaded = load_rewrite(load_skill(SKILLS / "spelled-out-activations"))
    assert loaded is not None
    return loaded


def problem(expression: str, dtype: str = "float32") -> str:
    return (
        "import math\nimport torch\nimport torch.nn.functional as F\nN = 5\n"
        "class Model(torch.nn.Module):\n    def forward(self, x):\n        y = x.sin()\n"
        f"        return {expression}\n"
        f"def get_inputs():\n    return [torch.randn(N, 7).to(torch.{dtype})]\n"
    )


GELU, CURVED, MISH = "aten.gelu.default", "tanh", "aten.mish.default"
ROOT = "math.sqrt(2.0 / math.pi)"
#: The operator, and the approximation that it is asked for.
SPELLINGS = {
    "0.5 * x * (1 + torch.erf(x / math.sqrt(2)))": (GELU, None),
    "x * 0.5 * (1.0 + torch.erf(x / 1.41421356237))": (GELU, None),
    "x * (0.5 * (torch.erf(x * 0.70710678118654) + 1))": (GELU, None),
    "x / 2 * (1 + torch.erf(x * 2**-0.5))": (GELU, None),
    "torch.multiply(x, (1 + torch.erf(torch.divide(x, math.sqrt(2))))) * 0.5": (GELU, None),
    f"0.5 * x * (1 + torch.tanh({ROOT} * (x + 0.044715 * torch.pow(x, 3.0))))": (GELU, CURVED),
    "0.5 * x * (1 + torch.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x)))": (GELU, CURVED),
    "0.5 * x * (1 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x**2)))": (None, None),
    "x * torch.tanh(F.softplus(x))": (MISH, None),
    "torch.tanh(torch.log(1 + torch.exp(x))) * x": (MISH, None),
    "x * torch.tanh(torch.log1p(x.exp()))": (MISH, None),
    "torch.multiply(torch.tanh(F.softplus(x, 1.0)), x)": (MISH, None),
    # others
    "0.5 * x * (c := 1 + torch.erf(x / math.sqrt(2))) * c": (GELU, None),  # gelu(x) * c
    "0.5 * (c := 1 + torch.erf(x / math.sqrt(2))) * x * c": (GELU, None),
    "x * (t := torch.tanh(F.softplus(x))) * t": (MISH, None),
    "0.5 * x * ((c := 1 + torch.erf(x / math.sqrt(2))) * c)": (None, None),
    "x * ((t := torch.tanh(F.softplus(x))) * t)": (None, None),
    "0.5 * x * (c := 1 + torch.erf(x / math.sqrt(2))) + c": (GELU, None),
    "x * torch.tanh(F.softplus(x, 2.0))": (None, None),
    "x * torch.tanh(F.softplus(x, 1.0, 5.0))": (None, None),
    "x * torch.tanh(torch.log(2 + torch.exp(x)))": (None, None),
    "x * torch.tanh(x)": (None, None),
    "x * (1 + torch.tanh(F.softplus(x)))": (None, None),
    "0.5 * x * (1 + torch.erf(x))": (None, None),
    "0.5 * x * (1 + torch.erf(x * 0.70710678))": (None, None),  # too few digits
    "0.4 * x * (1 + torch.erf(x / math.sqrt(2)))": (None, None),
    "0.5 * x * (2 + torch.erf(x / math.sqrt(2)))": (None, None),
    "0.5 * y * (1 + torch.erf(x / math.sqrt(2)))": (None, None),
    "y * torch.tanh(F.softplus(x))": (None, None),
    "0.5 * x * (1 + torch.erf(y / math.sqrt(2)))": (None, None),
    "0.5 * x * (1 + torch.erf((x + 1) / math.sqrt(2)))": (None, None),
    "0.5 * x[:1] * (1 + torch.erf(x / math.sqrt(2)))": (None, None),  # broadcast
    "0.5 * x * (1 + torch.tanh(x))": (None, None),
    f"0.5 * x * (1 + torch.tanh({ROOT} * (x + 0.044715 * torch.pow(x, 4.0))))": (None, None),
}


@pytest.mark.parametrize("expression", SPELLINGS)
def test_an_expression_is_an_operator_where_it_computes_what_that_does(expression: str) -> None:
    operator, approximate = SPELLINGS[expression]
    source = problem(expression)
    found = rewrite().rewritings(trace_source(source)[1], Contract())
    assert bool(found) == (operator is not None)
    if found:
        (called,) = (node for node in found[0].graph.nodes if node.target == operator)
        assert called.kwargs.get("approximate") == approximate
        assert found[0].flags == ()
        check_rewrite(rewrite(), source, sizes=[{"N": 8}])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_has_them_too(dtype: str) -> None:
    source = problem("0.5 * x * (1 + torch.erf(x / math.sqrt(2)))", dtype)
    check_rewrite(rewrite(), source)


def test_those_of_all_layers_become_operators_at_once_and_what_is_read_elsewhere_stays() -> None:
    curve = "torch.erf({0} / math.sqrt(2))"
    inner, outer = curve.format("x"), curve.format("z")
    source = problem(f"0.5 * z * (1 + {outer}) + c").replace(
        "        y = x.sin()\n",
        f"        c = {inner}\n        z = 0.5 * x * (1 + c)\n",
    )
    (found,) = rewrite().rewritings(trace_source(source)[1], Contract())
    targets = [node.target for node in found.graph.nodes]
    assert targets.count(GELU) == 2 and targets.count("aten.erf.default") == 1
    check_rewrite(rewrite(), source)


@pytest.mark.parametrize(
    "between",
    [
        "x.mul_(3.0)",
        "x.view(-1).mul_(3.0)",
        "x[0] = 3.0",
    ],
)
def test_what_is_written_in_place_on_the_way_is_read_as_it_was(between: str) -> None:
    steps = f"c = 1 + torch.erf(x / math.sqrt(2))\n        d = 0.5 * x\n        {between}\n"
    source = problem("d * c").replace("        y = x.sin()\n", f"        {steps}")
    _, graph = trace_source(source)
    assert not rewrite().rewritings(graph, Contract())
    source = problem("0.5 * x * (1 + torch.erf(x / math.sqrt(2)))").replace("y = x.sin()", between)
    check_rewrite(rewrite(), source)  # before it all is another matter


def test_long_products_are_read_in_no_time() -> None:
    squares = "".join("        y = y * y + y\n" for _ in range(40))
    source = problem("torch.tanh(y)").replace("y = x.sin()\n", f"y = x.sin()\n{squares}")
    assert not rewrite().rewritings(trace_source(source)[1], Contract())
