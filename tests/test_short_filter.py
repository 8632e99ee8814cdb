"""skills/short-filter-as-shifts: where a filter is a sum of shifts, and that it is one kernel."""

from functools import cache

import pytest
from module_problems import SKILLS, recipe

from kmem.devices import named_target
from kmem.explore.recipes.cover import cover_graph, find_options
from kmem.problem.graph import OpGraph
from kmem.records import Contract
from kmem.rewrites import Rewrite
from kmem.skills import load_rewrite, load_skill
from kmem.testing import check_rewrite, trace_source

H200 = named_target("h200")


@cache
def rewrite() -> Rewrite:
    loaded = load_rewrite(load_skill(SKILLS / "short-filter-as-shifts"))
    assert loaded is not None
    return loaded


def block(
    conv: str = "6, 6, 4, groups=6, padding=3",
    mixed: str = "self.mix(u.transpose(1, 2))[..., :x.shape[1]].transpose(1, 2)",
    dtype: str = "float32",
) -> str:
    """A block that filters half of a projection and gates it with the other half."""
    return (
        "import torch\nimport torch.nn.functional as F\nclass Model(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        f"        self.mix = torch.nn.Conv1d({conv})\n"
        "        self.out = torch.nn.Linear(6, 5)\n"
        f"        self.to(torch.{dtype})\n"
        "    def forward(self, x):\n        u, z = x.chunk(2, -1)\n"
        f"        return self.out(F.silu({mixed}) * z[:, :, :6])\n"
        f"def get_inputs():\n    return [torch.randn(2, 9, 12).to(torch.{dtype})]\n"
    )


def rewritten(source: str) -> list[OpGraph]:
    graph = trace_source(source)[1]
    return [found.graph for found in rewrite().rewritings(graph, Contract())]


SAME = "self.mix(u.transpose(1, 2)).transpose(1, 2)"
FORMS = {
    "causal": block(),
    "in half precision": block(dtype="bfloat16"),
    "without bias": block("6, 6, 3, groups=6, padding=2, bias=False"),
    "the same length": block("6, 6, 3, groups=6, padding='same'", SAME),
    "an even filter of the same length": block("6, 6, 4, groups=6, padding='same'", SAME),
    "padded on both sides": block("6, 6, 5, groups=6, padding=2", SAME),
    "dilated": block("6, 6, 3, groups=6, padding=4, dilation=2"),
    "padded by hand": block(
        "6, 6, 4, groups=6", "self.mix(F.pad(u.transpose(1, 2), (3, 0))).transpose(1, 2)"
    ),
    "permuted": block(mixed="self.mix(u.permute(0, 2, 1))[..., :x.shape[1]].permute(0, 2, 1)"),
    "of one tap": block("6, 6, 1, groups=6", SAME),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_short_filter_is_a_sum_of_shifts(form: str) -> None:
    check_rewrite(rewrite(), FORMS[form])
    (graph,) = rewritten(FORMS[form])
    assert not any(node.target.startswith("aten.conv1d") for node in graph.nodes)


def test_a_filter_and_its_gate_are_one_kernel() -> None:
    (graph,) = rewritten(FORMS["causal"])
    chain = recipe("fuse-pointwise-chain")
    options = find_options({"full": graph}, {chain.name: chain}, Contract(), H200)
    (chosen,) = cover_graph(graph, options, Contract(), H200)
    written = {graph.node(name).target for name in chosen.site.nodes}
    assert {"aten.constant_pad_nd.default", "aten.silu.default", "aten.mul.Tensor"} <= written


@pytest.mark.parametrize(
    "source",
    [
        block("6, 12, 4, groups=6, padding=3", "self.mix(u.transpose(1, 2))[:, :6, :9].mT"),
        block("6, 6, 4, groups=3, padding=3"),
        block("6, 6, 4, groups=6, padding=3, stride=2", "self.mix(u.mT).mT.repeat(1, 2, 1)[:, :9]"),
        block("6, 6, 9, groups=6, padding=8"),  # more taps than caches hold
        # the sequence lies innermost
        block(mixed="self.mix(u.transpose(1, 2).contiguous())[..., :9].transpose(1, 2)"),
        # what is returned lies as the convolution's result does
        block().replace("self.out(F", "(F"),
    ],
)
def test_other_filters_are_left(source: str) -> None:
    assert rewritten(source) == []
