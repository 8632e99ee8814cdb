"""What follows poolings and depthwise convolutions by element, written with their strips."""

import pytest
from compile_sm90 import compile_jobs
from module_problems import recipe

from kmem.devices import named_target
from kmem.records import Contract
from kmem.testing import check_recipe, trace_source

H200 = named_target("h200")
DEPTHWISE, POOLING = "depthwise-rolling-rows", "separable-pooling"


def problem(
    expression: str, setup: str = "pass", shape: str = "3, 5, 9, 13", dtype: str = "float32"
) -> str:
    """A module over x, with operands that broadcast in every way."""
    return (
        "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {setup}\n        self.to(torch.{dtype})\n"
        "    def forward(self, x, channels, scales, samples, one):\n"
        f"        return {expression}\n"
        "def get_inputs():\n"
        f"    x = torch.randn({shape})\n"
        "    n, c = x.shape[:2]\n"
        "    rest = (1,) * (x.dim() - 2)\n"
        "    shapes = (1, c, *rest), (n, c, *rest), (n, 1, *rest), (1,)\n"
        f"    return [each.to(torch.{dtype}) for each in (x, *map(torch.rand, shapes))]\n"
    )


FILTER = "self.c = nn.Conv2d(5, 5, 3, padding=1, groups=5)"
TWICE = "self.c = nn.Conv1d(5, 10, 3, stride=2, groups=5, bias=False)"
CHAINS = {
    "an activation": (DEPTHWISE, problem("F.relu6(self.c(x))", FILTER)),
    "a residual": (DEPTHWISE, problem("F.silu(self.c(x)) + x", FILTER)),
    "factors of channels and samples": (
        DEPTHWISE,
        problem("torch.sigmoid(self.c(x) * scales + channels) * samples + one", FILTER),
    ),
    "several channels of one": (
        DEPTHWISE,
        problem("torch.tanh(self.c(x)) * samples", TWICE, "3, 5, 23"),
    ),
    "in half precision": (
        DEPTHWISE,
        problem("F.gelu(self.c(x)) * channels", FILTER, dtype="bfloat16"),
    ),
    "three dimensions": (
        DEPTHWISE,
        problem(
            "F.relu(self.c(x)) * scales",
            "self.c = nn.Conv3d(2, 2, 3, padding=1, groups=2)",
            "3, 2, 4, 5, 9",
        ),
    ),
    "behind a pooling": (POOLING, problem("F.max_pool2d(x, 2) * channels + one")),
    "behind an average": (POOLING, problem("(F.avg_pool2d(x, 3, 2, 1) * scales).relu()")),
    "mixed poolings": (POOLING, problem("0.3 * F.max_pool2d(x, 2) + 0.7 * F.avg_pool2d(x, 2)")),
    "a power of an average": (
        POOLING,
        problem("F.avg_pool1d(x, 4).abs() ** 0.5 * 2", shape="3, 5, 40"),
    ),
    "an adaptive maximum": (
        POOLING,
        problem("F.adaptive_max_pool2d(x, (3, None)) * samples", shape="3, 5, 9, 8"),
    ),
}


@pytest.mark.parametrize("case", CHAINS)
def test_what_follows_is_written_with_the_strips(case: str) -> None:
    name, source = CHAINS[case]
    _, graph = trace_source(source)
    sites = recipe(name).match(graph, Contract())
    site = next(each for each in sites if each.detail.chain.nodes)
    legal = recipe(name).space(site, H200).settings()
    chosen = legal[:: max(1, len(legal) // 4)][:4]
    # strips side by side, of several lanes, each way
    chosen += [each for each in legal if each["strips"] > 2 and each["lanes"] > 1][:1]
    chosen += [each for each in legal if each["shift"] == "gather" and each["strips"] > 1][:1]
    tolerance = 1e-2 if "bfloat16" in source else 1e-6
    check_recipe(
        recipe(name),
        source,
        H200,
        settings=chosen,
        tolerance=tolerance,
        expect_sites=len(sites),
    )


def test_each_node_joins_one_anchor() -> None:
    _, graph = trace_source(CHAINS["mixed poolings"][1])
    first, second = recipe(POOLING).match(graph, Contract())
    assert not set(first.nodes) & set(second.nodes)
    assert len(first.nodes) + len(second.nodes) == len(graph.nodes)


@pytest.mark.parametrize(
    "source",
    [
        problem("F.softmax(self.c(x), -1)", FILTER),
        problem("self.c(x).transpose(2, 3) + 1", FILTER),
        problem("(lambda y: (y, y * 2))(self.c(x))", FILTER),  # both are read
    ],
)
def test_what_is_no_chain_stays_apart(source: str) -> None:
    (site,) = recipe(DEPTHWISE).match(trace_source(source)[1], Contract())
    assert site.detail.chain.nodes == () and len(site.nodes) == 1


@pytest.mark.slow
def test_a_mobile_block_spills_nothing() -> None:
    setup = "self.c = nn.Conv2d(144, 144, 3, padding=1, groups=144)"
    source = problem("F.relu6(self.c(x) * scales + channels)", setup, "32, 144, 56, 56")
    (site,) = recipe(DEPTHWISE).match(trace_source(source)[1], Contract())
    settings = recipe(DEPTHWISE).space(site, H200).settings()
    best = min(settings, key=lambda each: recipe(DEPTHWISE).cost_ms(site, each, H200))
    ((kernel,),) = compile_jobs([(DEPTHWISE, source, "match", best)])
    assert kernel["stack"] == kernel["local"] == 0 and kernel["wide_loads"] > 0
