"""The suite of `Rewrite`: each way to break the contract is named."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kmem.algebra.editing import GraphEditor
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.records import Contract
from kmem.rewrites import Rewrite, Rewriting
from kmem.skills import skill_template
from kmem.testing import check_rewrite
from kmem.testing.rewrite_check import rewrite_faults

SOURCE = """
import torch
ROWS = 3
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(7)
        self.linear = torch.nn.Linear(7, 9)
    def forward(self, x):
        y = torch.relu(x)
        return self.linear(y).sum(1), self.norm(y)
def get_inputs():
    return [torch.randn(ROWS, 7)]
"""


class Replacing(Rewrite):
    """Puts something else in the place of the one node of a target."""

    def __init__(self, target: str, make: Callable[[GraphEditor, Node], Ref], **changes: object):
        self.target, self.make = target, make
        self.changes = changes

    def rewritings(self, graph: OpGraph, contract: Contract) -> Sequence[Rewriting]:
        found = []
        for node in graph.nodes:
            if node.target == self.target:
                editor = GraphEditor(graph, node.name)
                made = editor.replaced(self.make(editor, node))
                rewriting = Rewriting(node.name, "pointwise", made, "it is said to be equal")
                found.append(replace(rewriting, **self.changes))
        return found


def clamped(editor: GraphEditor, node: Node) -> Ref:
    return editor.call("aten.clamp_min.default", node.args[0], 0)


def summed_first(editor: GraphEditor, node: Node) -> Ref:
    """x W summed over the outputs, without a thought of infinities."""
    linear = editor.graph.node(node.args[0].name)
    weight = editor.call("aten.sum.dim_IntList", linear.args[1], (0,), True)
    bias = editor.call("aten.sum.default", linear.args[2])
    product = editor.call("aten.linear.default", linear.args[0], weight)
    return editor.call("aten.add.Tensor", editor.shaped(product, node.spec.shape), bias)


def summed_without_bias(editor: GraphEditor, node: Node) -> Ref:
    linear = editor.graph.node(node.args[0].name)
    product = editor.call("aten.linear.default", linear.args[0], linear.args[1])
    return editor.call("aten.sum.dim_IntList", product, (1,))


def normed_without_state(editor: GraphEditor, node: Node) -> Ref:
    arguments = (*node.args[:3], None, None, *node.args[5:])
    return editor.call("aten.batch_norm.default", *arguments)


def test_an_equal_graph_passes_at_other_sizes_too() -> None:
    rewrite = Replacing("aten.relu.default", clamped)
    (rewriting,) = check_rewrite(rewrite, SOURCE, sizes=[{"ROWS": 5}], expect=1)
    assert rewriting.graph.node(rewriting.site).target == "aten.clamp_min.default"


@pytest.mark.parametrize(
    ("rewrite", "fault"),
    [
        (
            Replacing("aten.sum.dim_IntList", summed_first),
            "sum_1, infinite: output sum_1: infinities or NaN stand elsewhere",
        ),
        (Replacing("aten.sum.dim_IntList", summed_without_bias), "output sum_1 differs by"),
        (
            Replacing("aten.batch_norm.default", normed_without_state),
            "what is left in b_norm_running_mean differs",
        ),
        (Replacing("aten.relu.default", clamped, operator="magic"), "no operator 'magic'"),
        (Replacing("aten.relu.default", clamped, site="y"), "y is no node of the graph"),
        (Replacing("aten.relu.default", clamped, reason=" "), "a reason is a sentence"),
        (
            Replacing(
                "aten.relu.default", lambda editor, node: editor.call(node.target, *node.args)
            ),
            "nothing was rewritten",
        ),
        (Replacing("aten.exp.default", clamped), "0 places, expected at least one"),
    ],
)
def test_what_breaks_the_contract_is_named(rewrite: Rewrite, fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_rewrite(rewrite, SOURCE)


@pytest.mark.slow
def test_validation_runs_a_rewrite_on_its_example_and_names_what_is_wrong(tmp_path: Path) -> None:
    places = []
    for name in ("right", "wrong"):
        files = skill_template(name, rewrite=True)
        if name == "wrong":
            text = files["rewrite.py"]
            files["rewrite.py"] = text.replace(
                "editor.call(TARGET, inner.args[0])",
                'editor.call("aten.neg.default", inner.args[0])',
            )
        for relative, text in files.items():
            (tmp_path / name / relative).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / relative).write_text(text)
        places.append(tmp_path / name)
    (fault,) = rewrite_faults(places).items()
    assert fault[0] == tmp_path / "wrong"
    assert "rewrite.py on examples/rewritten.py" in fault[1]
    assert "output relu_1 differs" in fault[1]
