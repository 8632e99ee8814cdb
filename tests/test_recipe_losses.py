"""Losses and batch norm in the interpreter, against float64, under every strategy."""

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
LOSSES = [
    ("fuse-loss-with-mean", "F.mse_loss(x, y)", PAIR),
    ("fuse-loss-with-mean", "F.smooth_l1_loss(x, y, beta=0.3)", PAIR),
    ("fuse-loss-with-mean", "F.huber_loss(x, torch.relu(y), reduction='sum')", PAIR),
    ("fuse-loss-with-mean", "F.kl_div(torch.log(x), y, reduction='batchmean')", CHANCES),
    ("fuse-loss-with-mean", "F.kl_div(x, y, reduction='mean', log_target=True)", PAIR),
    ("fuse-loss-with-mean", "F.binary_cross_entropy(x, y)", CHANCES),
    ("fuse-loss-with-mean", "F.binary_cross_entropy_with_logits(x, torch.sigmoid(y))", PAIR),
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
        ("fuse-loss-with-mean", "F.binary_cross_entropy(x, y, weight=y)", CHANCES),
        ("fuse-loss-with-mean", "F.mse_loss(x, y, reduction='none')", PAIR),
    ],
)
def test_options_that_are_not_written_are_not_matched(skill: str, body: str, inputs: str) -> None:
    assert not recipe(skill).match(
        trace_source(problem(body, inputs, parameters="x, y"))[1], Contract()
    )


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
