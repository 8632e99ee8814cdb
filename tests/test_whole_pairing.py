"""A sum of products of many values in a captured graph is products of two."""

from dataclasses import replace

import pytest
import torch

from kmem.problem.costs.vendor import copied_bytes
from kmem.problem.graph import OpGraph
from kmem.problem.tracing.evaluate import evaluate_graph
from kmem.testing import trace_source
from kmem.whole.graphs.pairing import in_pairs

SOURCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, {names}):
        return torch.einsum("{equation}", {names})
def get_inputs():
    return [{drawn}]
"""
SIZES = {"b": 2, "c": 3, "h": 4, "l": 5, "s": 5, "n": 6, "p": 7}


def source_of(equation: str) -> str:
    words = equation.split("->")[0].split(",")
    shapes = [tuple(SIZES[label] for label in word) for word in words]
    return SOURCE.format(
        equation=equation,
        names=", ".join(f"x{place}" for place in range(len(words))),
        drawn=", ".join(f"torch.randn({shape})" for shape in shapes),
    )


@pytest.mark.parametrize(
    ("equation", "products"),
    [
        ("bclhn,bcshn,bhcls,bcshp->bclhp", 2),  # of Mamba's scan
        ("bclhn,bhcl,bclhp->bchpn", 1),  # nothing is summed at first
        ("bclhn,bchpn,bhcl->bclhp", 1),  # nor in the end
        ("bl,ln,np->bp", 2),
    ],
)
def test_a_product_of_many_is_products_of_two(equation: str, products: int) -> None:
    module, graph = trace_source(source_of(equation))
    found = in_pairs(graph)
    names = [node.target for node in found.nodes]
    assert names.count("aten.einsum.default") == products
    assert all(len(node.args[1]) == 2 for node in found.nodes if "einsum" in node.target)
    assert found.outputs == graph.outputs
    assert found.spec(found.outputs[0]) == graph.spec(graph.outputs[0])
    inputs = [value.double() for value in module.get_inputs()]
    given = dict(zip((each.name for each in graph.placeholders), inputs, strict=True))
    expected, ours = (evaluate_graph(each, given) for each in (graph, found))
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(
    ("equation", "path"),
    [
        ("bclhn,bcshn,bhcls,bcshp->bclhp", (0, 1, 0, 2, 0, 1)),
        ("bclhn,bhcl,bclhp->bchpn", (1, 2, 0, 1)),
        ("bl,ln,np->bp", (1, 2, 0, 1)),
    ],
)
def test_the_path_of_opt_einsum_is_followed(equation: str, path: tuple[int, ...]) -> None:
    module, traced = trace_source(source_of(equation))
    (node,) = traced.nodes
    graph = replace(traced, nodes=(replace(node, kwargs={"path": path}),))
    found = in_pairs(graph)
    operands = node.args[1]
    first = found.nodes[[each.target in PRODUCTS for each in found.nodes].index(True)]
    assert {operands[place].name for place in path[:2]} <= read_through(found, first.name)
    inputs = [value.double() for value in module.get_inputs()]
    given = dict(zip((each.name for each in graph.placeholders), inputs, strict=True))
    expected, ours = (evaluate_graph(each, given) for each in (traced, found))
    torch.testing.assert_close(ours, expected)


PRODUCTS = ("aten.einsum.default", "aten.mul.Tensor")


def read_through(graph: OpGraph, name: str) -> set[str]:
    """The placeholders that a value is made from."""
    node = graph.node(name)
    if node is None:
        return {name}
    return set().union(*(read_through(graph, each) for each in node.refs()))


@pytest.mark.parametrize("equation", ["bln,bnp->blp", "ll,ln,np->lp"])
def test_what_is_of_two_or_has_a_diagonal_stays(equation: str) -> None:
    _, graph = trace_source(source_of(equation))
    assert in_pairs(graph) == graph


@pytest.mark.parametrize(
    ("product", "other", "copied"),
    [
        ("q.transpose(1, 2) @ k", (8, 16, 512, 8), 2 * 8 * 64 * 16 * 512 * 4),
        ("q @ k", (8, 64, 512, 8), 0),
    ],
)
def test_eager_copies_heads_that_lie_between_rows(
    product: str, other: tuple[int, ...], copied: int
) -> None:
    _, graph = trace_source(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, q, k):\n"
        f"        return {product}\ndef get_inputs():\n"
        f"    return [torch.randn(8, 64, 16, 512), torch.randn({other})]\n"
    )
    (node,) = [each for each in graph.nodes if "matmul" in each.target]
    assert copied_bytes(graph, node) == copied
