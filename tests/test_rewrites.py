"""Every bundled rewrite: where it applies, where it must not, and that it changes no value.

Positive cases go through `check_rewrite`: equal in float64 on every family, state included.
"""

from functools import cache

import pytest

from kmem.algebra.inferring import infer_output
from kmem.problem.graph import Node, Ref
from kmem.records import Contract, TensorSpec
from kmem.rewrites import Rewrite
from kmem.skills import bundled_skills_root, load_rewrite, load_skill
from kmem.testing import check_rewrite, trace_source


@cache
def rewrite(name: str) -> Rewrite:
    loaded = load_rewrite(load_skill(bundled_skills_root() / name))
    assert loaded is not None
    return loaded


def problem(layers: str, forward: str, inputs: str, mode: str = "") -> str:
    """A module: statements of its constructor, of its forward, and the shape of its input."""
    return f"""
import torch
from torch import nn
from torch.nn import functional as F
N = 5
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {layers}
        {mode}
    def forward(self, x):
        {forward}
def get_inputs():
    return [torch.randn({inputs})]
"""


LINEAR = "self.linear = nn.Linear(7, 12)"
CONV = "self.conv = nn.Conv2d(3, 4, {})"
TRANSPOSED = "self.conv = nn.ConvTranspose2d(3, 4, {})"
SUM, AVERAGE = "collapse-linear-then-sum", "average-before-linear"
MERGE = "merge-pooling-into-taps"
FOLD, MAX, DEAD = "fold-affine-into-weights", "move-monotone-past-max", "remove-dead-work"
BATCH_NORM = "self.norm = nn.BatchNorm{}d({})"

POSITIVE = [
    (SUM, problem(LINEAR, "return self.linear(x).sum(1, keepdim=True)", "N, 7")),
    (SUM, problem(LINEAR, "return self.linear(x).mean(-1)", "N, 3, 7")),
    (
        SUM,
        problem(
            "self.w = nn.Parameter(torch.randn(12, 7)[:, :])",
            "return torch.matmul(x, self.w.T).sum(1)",
            "N, 7",
        ),
    ),
    (
        SUM,  # a single output: nothing is mixed, so an infinity stays one
        problem("self.linear = nn.Linear(7, 1)", "return self.linear(x).sum(1)", "N, 7"),
    ),
    (AVERAGE, problem(LINEAR, "return self.linear(x).mean(1)", "N, 3, 7")),
    (AVERAGE, problem(LINEAR, "return self.linear(x).sum((0, 1))", "N, 3, 7")),
    (AVERAGE, problem("pass", "return x.exp().sum(-1).mean()", "N, 3, 7")),
    (AVERAGE, problem("pass", "return x.exp().mean(1, keepdim=True).sum((0, 1))", "N, 3, 7")),
    (AVERAGE, problem("pass", "return (x.mean(0) * -0.5).mean(-1)", "N, 3, 7")),
    (AVERAGE, problem("pass", "return x.sum(1).sum(1, keepdim=True)", "N, 3, 7")),
    (
        AVERAGE,
        problem(LINEAR, "return (self.linear(x) * 2.0 + 1.0).relu().mul(3.0).mean(1)", "N, 3, 7"),
    ),
    (
        AVERAGE,
        problem(CONV.format("3, padding=1"), "return self.conv(x).mean((2, 3))", "2, 3, N, 6"),
    ),
    (
        AVERAGE,
        problem(
            CONV.format("3, stride=2, padding=1"), "return self.conv(x).sum((2, 3))", "2, 3, N, 6"
        ),
    ),
    (
        AVERAGE,
        problem(
            CONV.format("2, dilation=2, bias=False"),
            "return F.adaptive_avg_pool2d(self.conv(x), 1)",
            "2, 3, N, 6",
        ),
    ),
    (
        AVERAGE,
        problem(
            TRANSPOSED.format("3"), "return self.conv(x).mean((2, 3), keepdim=True)", "2, 3, N, 6"
        ),
    ),
    (
        AVERAGE,
        problem(TRANSPOSED.format("3, 2, 1, 1"), "return self.conv(x).sum((2, 3))", "2, 3, N, 6"),
    ),
    (
        AVERAGE,
        problem(
            TRANSPOSED.format("3, 2, 1"), "return self.conv(x).mean(2, keepdim=True)", "2, 3, N, 6"
        ),
    ),
    (AVERAGE, problem(CONV.format("3, 2, 1"), "return self.conv(x).mean(3)", "2, 3, N, 6")),
    (
        AVERAGE,
        problem(
            "self.conv = nn.ConvTranspose3d(3, 4, 3, padding=1)",
            "return self.conv(x).mean(2, keepdim=True)",
            "2, 3, N, 4, 3",
        ),
    ),
    (AVERAGE, problem(CONV.format("1"), "return F.avg_pool2d(self.conv(x), 2)", "2, 3, N, 6")),
    (
        AVERAGE,
        problem(
            "self.b = nn.Parameter(torch.randn(7))", "return (x.relu() - self.b).sum(1)", "N, 7"
        ),
    ),
    (
        AVERAGE,
        problem(
            "self.s = nn.Parameter(torch.randn(4, 1, 1))",
            "return F.avg_pool2d(x * self.s, 2)",
            "2, 4, N, 6",
        ),
    ),
]
POSITIVE += [
    (
        FOLD,
        problem(
            f"{LINEAR}; {BATCH_NORM.format(1, 12)}",
            "return self.norm(self.linear(x))",
            "N, 7",
            "self.eval()",
        ),
    ),
    (
        FOLD,
        problem(
            f"{CONV.format('3, padding=1, bias=False')}; {BATCH_NORM.format(2, 4)}",
            "return self.norm(self.conv(x)).relu()",
            "2, 3, N, 6",
            "self.eval()",
        ),
    ),
    (
        FOLD,
        problem(
            f"{TRANSPOSED.format('3, 2')}; self.norm = nn.BatchNorm2d(4, affine=False)",
            "return self.norm(self.conv(x))",
            "2, 3, N, 6",
            "self.eval()",
        ),
    ),
    (FOLD, problem(CONV.format("1"), "return self.conv(x) * 2.5", "9, 3, N, 6")),
    (FOLD, problem(CONV.format("1"), "return (self.conv(x) - 1.5) / 3.0", "9, 3, N, 6")),
    (
        FOLD,
        problem(
            "self.conv = nn.ConvTranspose2d(3, 4, 1); self.s = nn.Parameter(torch.randn(4, 1, 1))",
            "return self.s * self.conv(x)",
            "9, 3, N, 6",
        ),
    ),
    (
        FOLD,
        problem(
            f"{LINEAR}; self.s = nn.Parameter(torch.randn(12))",
            "return self.linear(x) + self.s",
            "N, 7",
        ),
    ),
    (MAX, problem("pass", "return F.max_pool2d(torch.sigmoid(x), 2)", "2, 3, N, 6")),
    (MAX, problem("pass", "return F.max_pool2d(F.leaky_relu(x, 0.2), 3, 2, 1)", "2, 3, N, 6")),
    (
        MAX,
        problem(
            "self.b = nn.Parameter(torch.randn(3, 1, 1))",
            "return F.max_pool2d(x + self.b, 2)",
            "2, 3, N, 6",
        ),
    ),
    (MAX, problem("pass", "return torch.amax(torch.clamp(x * 2.0, -0.5, 1.0), 1, True)", "N, 7")),
    (
        DEAD,
        problem("self.drop = nn.Dropout(0.3)", "return self.drop(x).relu()", "N, 7", "self.eval()"),
    ),
    (
        DEAD,
        problem("pass", "return torch.mean(x.sum(1, keepdim=True), 1, keepdim=True).exp()", "N, 7"),
    ),
    (DEAD, problem("pass", "return ((x.relu().relu() * 1.0) - 0).exp()", "N, 7")),
    (DEAD, problem("pass", "y = (x @ x.T).exp().tril()\n        return x.relu()", "N, 7")),
    (DEAD, problem("pass", "return (x.logsumexp(1, keepdim=True).sum((1, 2)) * 10.0)", "N, 7, 1")),
    (DEAD, problem("pass", "return x.exp().amax(2)", "N, 7, 1")),
    (
        DEAD,
        problem(
            f"{CONV.format('3')}; {BATCH_NORM.format(2, 4)}",
            "return self.norm(self.conv(x))",
            "2, 3, N, 6",
        ),
    ),
    (
        DEAD,
        problem(
            f"{LINEAR}; self.norm = nn.BatchNorm1d(12, track_running_stats=False)",
            "return self.norm(self.linear(x))",
            "N, 7",
        ),
    ),
    (
        DEAD,
        problem(
            f"{TRANSPOSED.format('3, 2')}; self.norm = nn.InstanceNorm2d(4)",
            "return self.norm(self.conv(x))",
            "2, 3, N, 6",
        ),
    ),
]
POSITIVE += [
    (
        MERGE,
        problem(TRANSPOSED.format("3, 2, 1"), "return F.avg_pool2d(self.conv(x), 2)", "2, 3, N, 6"),
    ),
    (
        MERGE,
        problem(
            TRANSPOSED.format("4, 2, bias=False"),
            "return F.avg_pool2d(self.conv(x), 3, 2)",
            "2, 3, N, 6",
        ),
    ),
    (
        MERGE,
        problem(
            TRANSPOSED.format("2, 3, 0, 1"), "return F.avg_pool2d(self.conv(x), 3)", "2, 3, N, 6"
        ),
    ),
    (
        MERGE,
        problem(
            TRANSPOSED.format("3, 1, 2"), "return F.avg_pool2d(self.conv(x), 2, 1)", "2, 3, N, 6"
        ),
    ),
    (
        MERGE,
        problem(
            "self.conv = nn.ConvTranspose3d(2, 3, 3, 2, 1)",
            "return F.avg_pool3d(self.conv(x), 2)",
            "2, 2, N, 4, 3",
        ),
    ),
    (
        AVERAGE,
        problem("pass", "return F.avg_pool2d(F.avg_pool2d(x.relu(), 2), (1, 3))", "2, 3, N, 13"),
    ),
]
STEPS = """h = c = x.new_zeros(3, 7)
        found = []
        for t in range(N):
            {step}
            found.append({kept})
        return {result}"""
JOINED, EACH = (
    "h = torch.tanh(self.i(torch.cat((x[{}], h), 1)))",
    "h = (self.a(x[t]) + self.b(h)).relu()",
)
IO = "self.i = nn.Linear(12, 7); self.o = nn.Linear(7, 4)"
AB = "self.a = nn.Linear(5, 7, bias=False); self.b = nn.Linear(7, 7{})"
CELL = "self.cell = nn.{}(5, 7)"
FIRST, SECOND = "N, 3, 5", "3, N, 5"


def steps(layers: str, step: str, kept: str, result: str, inputs: str) -> str:
    forward = STEPS.format(step=step, kept=kept, result=result)
    return problem(layers, forward, inputs)


STACK = "torch.stack(found, {})"
ROLL = "hoist-recurrent-input-gemm"
POSITIVE += [
    (ROLL, steps(IO, JOINED.format("t"), "self.o(h)", STACK.format(0), FIRST)),
    (ROLL, steps(IO, JOINED.format(":, t"), "h", STACK.format(1) + ", h", SECOND)),
    (ROLL, steps(IO, JOINED.format(":, t"), "h", "self.o(h)", SECOND)),  # the last state alone
    (ROLL, steps(AB.format(", bias=False"), EACH, "h", STACK.format(2), FIRST)),
    (ROLL, steps(CELL.format("RNNCell"), "h = self.cell(x[t], h)", "h", STACK.format(1), FIRST)),
    (
        ROLL,
        steps(CELL.format("GRUCell"), "h = self.cell(x[:, t], h)", "h", STACK.format(0), SECOND),
    ),
    (
        ROLL,
        steps(
            CELL.format("LSTMCell"),
            "h, c = self.cell(x.unbind(1)[t], (h, c))",
            "h",
            STACK.format(-1) + ", c.exp()",
            SECOND,
        ),
    ),
]
NEGATIVE = [
    (DEAD, problem("pass", "F.dropout(x.exp(), 0.5, True)\n        return x.relu()", "N, 7")),
    (ROLL, steps(IO, JOINED.format("t"), "h", "found[1], h", FIRST)),  # one in the middle
    (ROLL, steps(IO, JOINED.format("N - 1 - t"), "h", STACK.format(0), FIRST)),  # from the end
    (ROLL, steps(IO, JOINED.format("t") + "; h = h * 2", "h", STACK.format(0), FIRST)),
    (ROLL, steps(AB.format(""), EACH, "h", STACK.format(0), "N + 1, 3, 5")),  # not all inputs
    (
        MERGE,
        problem(TRANSPOSED.format("3, 2, 1"), "return F.avg_pool2d(self.conv(x), 3)", "2, 3, N, 6"),
    ),
    (
        MERGE,
        problem(TRANSPOSED.format("3, 2, 1"), "return F.max_pool2d(self.conv(x), 2)", "2, 3, N, 6"),
    ),
    (
        MERGE,
        problem(
            TRANSPOSED.format("3, 2, 1, dilation=2"),
            "return F.avg_pool2d(self.conv(x), 2)",
            "2, 3, N, 6",
        ),
    ),
    (
        MERGE,
        problem(
            TRANSPOSED.format("3, 2, 1"),
            "return F.avg_pool2d(self.conv(x), 2, ceil_mode=True)",
            "2, 3, N, 6",
        ),
    ),
    (
        MERGE,
        problem(
            TRANSPOSED.format("3, 2, 1"),
            "y = self.conv(x); return F.avg_pool2d(y, 2), y",
            "2, 3, N, 6",
        ),
    ),
    (
        AVERAGE,
        problem("pass", "return F.avg_pool2d(F.avg_pool2d(x.relu(), 2, 1), 2)", "2, 3, N, 13"),
    ),
    (SUM, problem(LINEAR, "return self.linear(x).relu().sum(1)", "N, 7")),  # not linear
    (SUM, problem(LINEAR, "y = self.linear(x); return y.sum(1), y", "N, 7")),  # read elsewhere
    (SUM, problem(LINEAR, "return self.linear(x).sum(0)", "N, 7")),  # over positions
    (SUM, problem("pass", "return torch.matmul(x, x.T).sum(1)", "N, 7")),  # weights from outside
    (
        SUM,
        problem(
            "self.linear = nn.Linear(7, 12, dtype=torch.float64)",
            "return self.linear(x.double()).sum(1)",
            "N, 7",
        ),
    ),
    (AVERAGE, problem(LINEAR, "return self.linear(x).mean(-1)", "N, 3, 7")),  # over outputs
    (AVERAGE, problem("pass", "return torch.matmul(x, x[0].T).mean(1)", "2, N, 7")),
    (
        AVERAGE,
        problem(CONV.format("3, padding='same'"), "return self.conv(x).mean((2, 3))", "2, 3, N, 6"),
    ),
    (
        AVERAGE,
        problem(
            "self.conv = nn.Conv2d(4, 4, 3, groups=2)",
            "return self.conv(x).mean((2, 3))",
            "2, 4, N, 6",
        ),
    ),
    (AVERAGE, problem(CONV.format("3"), "return F.avg_pool2d(self.conv(x), 2)", "2, 3, N, 6")),
    (
        AVERAGE,
        problem(CONV.format("1"), "return F.avg_pool2d(self.conv(x), 2, padding=1)", "2, 3, N, 6"),
    ),
    (
        AVERAGE,
        problem("self.s = nn.Parameter(torch.randn(7))", "return (x * self.s).sum(1)", "N, 7"),
    ),
    (AVERAGE, problem("pass", "return (x / 0.0).mean(1)", "N, 7")),
    (
        AVERAGE,
        problem("self.s = nn.Parameter(torch.zeros(1))", "return (x / self.s).mean(1)", "N, 7"),
    ),
]


@pytest.mark.slow(after=6)
@pytest.mark.parametrize(("name", "source"), POSITIVE)
def test_a_rewrite_changes_no_value(name: str, source: str) -> None:
    check_rewrite(rewrite(name), source, sizes=[{"N": 8}])


@pytest.mark.parametrize(("name", "source"), NEGATIVE)
def test_what_a_rewrite_cannot_keep_equal_it_leaves_alone(name: str, source: str) -> None:
    _, graph = trace_source(source)
    assert graph.opaque_reason is None, graph.opaque_reason
    assert rewrite(name).rewritings(graph, Contract()) == []


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (  # all at once
            "return ((F.dropout(x, 0.0).relu().relu() * 1.0) - 0).exp()",
            ["aten.relu.default", "aten.exp.default"],
        ),
        (  # a view of an expanded value needs the copy in front of it
            "y = F.dropout(x.exp()[:, None].expand(-1, 3, -1), 0.0).view(-1)\n"
            "        return y, F.dropout(x.relu(), 0.0).abs()",
            ["aten.dropout.default", "aten.relu.default", "aten.abs.default"],
        ),
        ("return F.dropout(x.relu(), 0.0)", ["aten.relu.default"]),  # an output
    ],
)
def test_what_changes_nothing_goes_in_one_step_but_for_what_a_reader_needs(
    body: str, left: list[str]
) -> None:
    _, graph = trace_source(problem("pass", body, "N, 7"))
    (found,) = rewrite(DEAD).rewritings(graph, Contract())
    targets = [node.target for node in found.graph.nodes]
    assert [each for each in targets if each in {*left, "aten.dropout.default"}] == left
    assert "aten.mul.Tensor" not in targets and "aten.sub.Tensor" not in targets


@pytest.mark.parametrize(("number", "dtype"), [(2, "int64"), (2.0, "float32"), (True, "int64")])
def test_what_a_node_makes_follows_the_types_of_its_numbers_and_not_their_values(number, dtype):
    specs = {"x": TensorSpec((4,), "int64", (1,))}
    for _ in range(2):  # the second time it is known
        node = Node("y", "aten.mul.Scalar", (Ref("x"), number), {}, None)
        assert infer_output(node, specs) == TensorSpec((4,), dtype, (1,))
    with pytest.raises(RuntimeError):
        infer_output(Node("y", "aten.mm.default", (Ref("x"), Ref("x")), {}, None), specs)
