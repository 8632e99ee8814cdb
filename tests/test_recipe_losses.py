"""Losses and batch norm in the interpreter, against float64, under every strategy."""

from collections.abc import Callable

import pytest
import torch
from module_problems import problem, recipe

from kmem.devices import named_target
from kmem.records import Contract
from kmem.testing import check_recipe, emit_source, import_source, trace_source

H200 = named_target("h200")
SETTINGS = [
    {"STRATEGY": strategy, "BK": rows, "BR": 4, "SPLIT": split, "num_warps": 4}
    for strategy, rows, split in (("registers", 2, 1), ("split", 2, 3))
]


PAIR = "torch.randn(7, 5), torch.randn(7, 5)"
CHANCES = "torch.rand(7, 5) * 0.9 + 0.05, torch.rand(7, 5)"
LABELLED = "torch.randn(7, 13), torch.randint(0, 13, (7,))"
SIGNED = "torch.randn(7, 5), torch.randn(7, 5).sign()"
COUNTED = "torch.randn(7, 5), torch.randint(0, 9, (7, 5)).float()"
LOSSES = [
    ("fuse-loss-with-mean", "F.mse_loss(x, y)", PAIR),
    ("fuse-loss-with-mean", "F.smooth_l1_loss(x, y, beta=0.3)", PAIR),
    ("fuse-loss-with-mean", "F.huber_loss(x, torch.relu(y), reduction='sum')", PAIR),
    ("fuse-loss-with-mean", "F.kl_div(torch.log(x), y, reduction='batchmean')", CHANCES),
    ("fuse-loss-with-mean", "F.kl_div(x, y, reduction='mean', log_target=True)", PAIR),
    ("fuse-loss-with-mean", "F.binary_cross_entropy(x, y)", CHANCES),
    ("fuse-loss-with-mean", "F.binary_cross_entropy_with_logits(x, torch.sigmoid(y))", PAIR),
    ("fuse-loss-with-mean", "F.binary_cross_entropy(x, y, weight=y)", CHANCES),
    (
        "fuse-loss-with-mean",
        "F.binary_cross_entropy_with_logits(x, y, weight=x[0], pos_weight=y[:, :1] ** 2)",
        PAIR,
    ),
    ("fuse-loss-with-mean", "F.soft_margin_loss(x, y)", SIGNED),
    ("fuse-loss-with-mean", "F.hinge_embedding_loss(x, y, margin=0.7, reduction='sum')", SIGNED),
    ("fuse-loss-with-mean", "F.margin_ranking_loss(x, x.flip(0), y, margin=0.2)", SIGNED),
    ("fuse-loss-with-mean", "F.poisson_nll_loss(x, y, full=True)", COUNTED),
    ("fuse-loss-with-mean", "F.poisson_nll_loss(torch.exp(x), y, log_input=False)", COUNTED),
    ("fused-cross-entropy", "F.cross_entropy(x, y)", LABELLED),
    (
        "fused-cross-entropy",
        "F.cross_entropy(x * 3, y, label_smoothing=0.2, reduction='sum')",
        LABELLED,
    ),
    (
        "fused-cross-entropy",
        "F.cross_entropy(x, y, ignore_index=4)",
        "torch.randn(7, 6), torch.arange(7) % 6",
    ),
    ("fused-cross-entropy", "F.cross_entropy(x, y, reduction='none')", LABELLED),
    (
        "fused-cross-entropy",
        "F.cross_entropy(x, y)",
        "torch.randn(3, 5, 4), torch.randint(0, 5, (3, 4))",
    ),
    ("row-similarity-one-pass", "1 - F.cosine_similarity(x, y, dim=1)", PAIR),
    ("row-similarity-one-pass", "F.triplet_margin_loss(x, y, y.flip(0), margin=0.7)", PAIR),
]


@pytest.mark.slow(after=4)
@pytest.mark.parametrize(("skill", "body", "inputs"), LOSSES)
def test_a_loss_agrees_with_float64_under_every_strategy(
    skill: str, body: str, inputs: str
) -> None:
    errors = check_recipe(
        recipe(skill),
        problem(body, inputs, parameters="x, y"),
        H200,
        settings=SETTINGS,
        tolerance=1e-6,
    )
    assert len(errors) == len(SETTINGS)


@pytest.mark.slow(after=5)
@pytest.mark.parametrize("strategy", ["registers", "loop", "split"])
@pytest.mark.parametrize(
    "values",
    [
        {5: "inf"},
        {3: "inf"},
        {5: "-inf"},
        {3: "-inf"},
        {5: "inf", 3: "-inf"},
        {5: "nan"},
        dict.fromkeys(range(13), "-inf"),
    ],
)
def test_a_cross_entropy_of_infinite_logits_is_what_torch_makes_of_it(
    strategy: str, values: dict[int, str]
) -> None:
    """A logit of +inf makes its row NaN, as in log_softmax, not infinite as in logsumexp.

    Class 3 is the right one.
    """
    source = problem("F.cross_entropy(x, y, reduction='none')", LABELLED, parameters="x, y")
    _, graph = trace_source(source)
    loss = recipe("fused-cross-entropy")
    (site,) = loss.match(graph, Contract())
    setting = {
        "STRATEGY": strategy,
        "BK": 1,
        "BR": 4,
        "SPLIT": 3 if strategy == "split" else 1,
        "num_warps": 4,
    }
    model = import_source(emit_source(source, graph, [(loss, site, setting)])).ModelNew()
    logits, labels = torch.randn(7, 13), torch.full((7,), 3)
    for place, value in values.items():
        logits[2, place] = float(value)
    found = model(logits, labels)
    torch.testing.assert_close(
        found, torch.nn.functional.cross_entropy(logits, labels, reduction="none"), equal_nan=True
    )
    assert not found[2].isfinite() or values == {5: "-inf"}


@pytest.mark.parametrize(
    ("skill", "body", "inputs"),
    [
        ("fused-cross-entropy", "F.cross_entropy(x, y, weight=x[0])", LABELLED),
        ("fused-cross-entropy", "F.cross_entropy(x, torch.softmax(x, 1))", LABELLED),
        ("row-similarity-one-pass", "F.triplet_margin_loss(x, y, y, p=1)", PAIR),
        ("fuse-loss-with-mean", "F.binary_cross_entropy(x, y, weight=y.double())", CHANCES),
        ("fuse-loss-with-mean", "F.mse_loss(x, y, reduction='none')", PAIR),
    ],
)
def test_options_that_are_not_written_are_not_matched(skill: str, body: str, inputs: str) -> None:
    assert not recipe(skill).match(
        trace_source(problem(body, inputs, parameters="x, y"))[1], Contract()
    )


def signs() -> torch.Tensor:
    return torch.randn(7, 5).sign()


def chances() -> torch.Tensor:
    return torch.rand(7, 5)


def numbers() -> torch.Tensor:
    return torch.randn(7, 5) * 3


ELEMENTS = [
    ("F.mse_loss(x, y, reduction='none')", numbers),
    ("F.l1_loss(x, y, reduction='none')", numbers),
    ("F.smooth_l1_loss(x, y, reduction='none', beta=0.3)", numbers),
    ("F.smooth_l1_loss(x, y, reduction='none', beta=0.0)", numbers),
    ("F.huber_loss(x, y, reduction='none', delta=1.5)", numbers),
    ("F.kl_div(x, torch.relu(y), reduction='none')", numbers),
    ("F.kl_div(x, y, reduction='none', log_target=True)", chances),
    ("F.binary_cross_entropy_with_logits(x, y, reduction='none')", chances),
    ("F.binary_cross_entropy_with_logits(x, y, x[0], reduction='none')", chances),
    ("F.binary_cross_entropy_with_logits(x, y, reduction='none', pos_weight=x[0])", chances),
    ("F.binary_cross_entropy(torch.sigmoid(x / 8), y, reduction='none')", chances),
    ("F.binary_cross_entropy(torch.sigmoid(x / 8), y, x[:, 1:2], reduction='none')", chances),
    ("F.soft_margin_loss(x, y, reduction='none')", signs),
    ("F.hinge_embedding_loss(x, y, reduction='none')", signs),
    ("F.margin_ranking_loss(x, x[:1], y, margin=0.5, reduction='none')", signs),
    ("F.poisson_nll_loss(x, 4 * torch.abs(y), reduction='none', full=True)", numbers),
]
CHAIN = {"BLOCK": 32, "num_warps": 1, "HINT": "stream"}


def written_chain(body: str, dtype: str = "float32") -> torch.nn.Module:
    """A module whose forward is one pointwise kernel."""
    inputs = ", ".join(2 * [f"torch.rand(7, 5, dtype=torch.{dtype})"])
    source = problem(f"2 * {body}", inputs, parameters="x, y")
    _, graph = trace_source(source)
    chain = recipe("fuse-pointwise-chain")
    (site,) = chain.match(graph, Contract())
    computing = [node.name for node in graph.nodes if node.target != "aten.select.int"]
    assert {*computing} - {*site.nodes} <= {"slice_1", "slice_2"}
    return import_source(emit_source(source, graph, [(chain, site, CHAIN)])).ModelNew()


def eager(body: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    names = {"torch": torch, "F": torch.nn.functional, "x": x, "y": y}
    return 2 * eval(body, names)  # noqa: S307 - expressions of this file


@pytest.mark.slow(after=4)
@pytest.mark.parametrize(("body", "targets"), ELEMENTS)
def test_a_loss_of_each_element_is_part_of_a_chain(body: str, targets) -> None:  # noqa: ANN001
    torch.manual_seed(0)
    x, y = numbers(), targets()
    for dtype, tolerance in (("float32", 1e-6), ("float16", 2e-3), ("bfloat16", 2e-2)):
        cast = getattr(torch, dtype)
        found = written_chain(body, dtype)(x.to(cast), y.to(cast))
        oracle = eager(body, x.to(cast).double(), y.to(cast).double())
        assert found.dtype == cast
        torch.testing.assert_close(found.double(), oracle, rtol=tolerance, atol=tolerance)


@pytest.mark.slow(after=4)
@pytest.mark.parametrize(("body", "targets"), ELEMENTS)
def test_a_loss_of_an_infinite_or_missing_element_is_eagers(
    body: str, targets: Callable[[], torch.Tensor]
) -> None:
    torch.manual_seed(0)
    x, y = numbers(), targets()
    if "binary_cross_entropy(" in body:  # eager refuses what is no chance
        x[2, :3] = torch.tensor([float("inf"), float("-inf"), 2000.0])
    else:
        x[2] = torch.tensor([float("inf"), float("-inf"), float("nan"), 200.0, -200.0])
        y[3] = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, 1.0])
    torch.testing.assert_close(written_chain(body)(x, y), eager(body, x, y), equal_nan=True)


NORMS = ["registers", "loop", "split", "pipelined"]


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("strategy", NORMS)
@pytest.mark.parametrize("shape", ["3, 5, 4, 6", "7, 5"])
def test_batch_norm_normalises_and_moves_its_running_statistics(strategy: str, shape: str) -> None:
    kind = "BatchNorm2d" if shape.count(",") == 3 else "BatchNorm1d"
    setup = (
        f"self.norm = nn.{kind}(5, momentum=0.3); nn.init.normal_(self.norm.weight); "
        f"nn.init.normal_(self.norm.bias)"
    )
    source = problem("torch.relu(self.norm(x))", f"torch.randn({shape}) + 2", setup)
    settings = {"STRATEGY": strategy, "BK": 2, "BR": 8, "SPLIT": 2, "num_warps": 4}
    chosen = recipe("batch-norm-training-statistics")
    check_recipe(chosen, source, H200, settings=[settings], tolerance=1e-6)
    module, graph = trace_source(source)
    (site,) = chosen.match(graph, Contract())
    reference = module.Model()
    candidate = import_source(emit_source(source, graph, [(chosen, site, settings)])).ModelNew()
    candidate.load_state_dict(reference.state_dict())
    with torch.no_grad():
        for x in (torch.randn([int(size) for size in shape.split(",")]) for _ in range(2)):
            torch.testing.assert_close(candidate(x), reference(x), rtol=1e-5, atol=1e-6)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(candidate.state_dict()[name], value)


def test_batch_norm_never_waits_between_programs_for_what_would_run_twice() -> None:
    source = problem(
        "self.norm(x)", "torch.empty(64, 64, 512, 512)", "self.norm = nn.BatchNorm2d(64)"
    )
    chosen = recipe("batch-norm-training-statistics")
    (site,) = chosen.match(trace_source(source)[1], Contract())
    assert "shared" not in {
        settings["STRATEGY"] for settings in chosen.space(site, H200).settings()
    }
    forced = {"STRATEGY": "shared", "BK": 1, "BR": 8192, "SPLIT": 1, "num_warps": 8}
    assert "_shared_" not in chosen.emit(site, forced).launcher


def test_batch_norm_in_eval_mode_is_left_to_others() -> None:
    setup = "self.norm = nn.BatchNorm2d(5); self.eval()"
    graph = trace_source(problem("self.norm(x)", "torch.randn(3, 5, 4, 6)", setup))[1]
    assert not recipe("batch-norm-training-statistics").match(graph, Contract())
