"""Sums over rows behind what each row leaves, and several reductions of one row, in one site."""

import pytest
import torch
from module_problems import problem, recipe

from kmem.devices import named_target
from kmem.recipes import Site
from kmem.records import Contract
from kmem.testing import check_recipe, emit_source, import_source, trace_source

H200 = named_target("h200")
SETTINGS = [
    {"STRATEGY": "registers", "BK": 2, "BR": 4, "SPLIT": 1, "num_warps": 4},
    {"STRATEGY": "loop", "BK": 1, "BR": 4, "SPLIT": 1, "num_warps": 4},
    {"STRATEGY": "split", "BK": 1, "BR": 4, "SPLIT": 3, "num_warps": 4},
    {"STRATEGY": "split", "BK": 2, "BR": 4, "SPLIT": 3, "num_warps": 4},
]
PAIR = "torch.randn(7, 13), torch.randn(7, 13)"
IMAGES = "torch.randn(5, 1, 3, 7), torch.rand(5, 1, 3, 7).round()"
DICE = "(lambda p, t: 1 - ((2 * (p * t).sum(1) + 1) / (p.sum(1) + t.sum(1) + 1)).mean())"
NEAR_AND_FAR = "F.relu(1 - F.cosine_similarity(x, y) + F.cosine_similarity(x, y * y)).mean()"
DISTILLED = "F.log_softmax(x / 2, -1), F.softmax(y / 2, -1)"
#: (skill, forward, inputs): a forward that is one site, but for views of its inputs.
CASES = [
    ("split-reduction", f"{DICE}(torch.sigmoid(x).flatten(1), y.flatten(1))", IMAGES),
    ("row-similarity-one-pass", NEAR_AND_FAR, PAIR),
    ("online-softmax", f"4 * F.kl_div({DISTILLED}, reduction='batchmean')", PAIR),
    ("split-reduction", "-0.5 * (1 + x - torch.exp(y)).sum(1).mean() + 2", PAIR),
    ("split-reduction", "(x * y).sum(1, keepdim=True).sum()", PAIR),
    ("split-reduction", "(x * y).sum((0, 2)).mean()", "torch.randn(4, 3, 5), torch.randn(3, 1)"),
    ("split-reduction", "(x / (y * y + 1)).sum(-1).mean()", PAIR),
    (
        "row-norm",
        "(x + y * torch.exp(0.5 * x), -0.5 * (1 + x - x.pow(2) - x.exp()).sum(1).mean())",
        PAIR,
    ),
    ("row-norm", "(torch.relu(x), x.sum(1), y)", PAIR),
    ("row-norm", "(lambda z: (z, (z * y).sum(1).mean()))(F.layer_norm(x, (13,)))", PAIR),
    ("split-reduction", "x.amax(1) - x.amin(1) + torch.sigmoid(x).sum(1) * y[:, 0]", PAIR),
    ("split-reduction", "torch.logsumexp(x, 1) + (x.mean(1) - y.mean(1)) ** 2", PAIR),
    ("row-norm", "F.mse_loss(F.layer_norm(x, (13,)), y)", PAIR),
    ("row-norm", "(F.layer_norm(x, (13,)) * y).abs().mean()", PAIR),
    ("fused-cross-entropy", "4 * F.cross_entropy(x, y)", "torch.randn(7, 13), torch.arange(7)"),
]


def only_site(skill: str, source: str) -> Site:
    (site,) = recipe(skill).match(trace_source(source)[1], Contract())
    return site


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(("skill", "body", "inputs"), CASES)
def test_what_rows_leave_and_their_total_are_one_site(skill: str, body: str, inputs: str) -> None:
    source = problem(body, inputs, parameters="x, y")
    _, graph = trace_source(source)
    left = {node.name for node in graph.nodes} - {*only_site(skill, source).nodes}
    assert {name.partition("_")[0] for name in left} <= {"flatten", "select", "slice"}
    errors = check_recipe(recipe(skill), source, H200, settings=SETTINGS, tolerance=1e-6)
    assert len(errors) == len(SETTINGS)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", CASES[:4])
def test_totals_of_half_precision_are_rounded_once(
    dtype: torch.dtype, case: tuple[str, str, str]
) -> None:
    skill, body, inputs = case
    source = problem(body, inputs, parameters="x, y").replace(
        "    return [", f"    return [each.to({dtype}) for each in ["
    )
    source = source.rstrip() + "]\n"
    _, graph = trace_source(source)
    x, y = (torch.randn(7, 13) for _ in range(2))
    if inputs == IMAGES:
        x, y = torch.randn(5, 1, 3, 7), torch.rand(5, 1, 3, 7).round()
    x, y = x.to(dtype), y.to(dtype)
    names = {"torch": torch, "F": torch.nn.functional}
    oracle = eval(body, {**names, "x": x.double(), "y": y.double()})  # noqa: S307 - of this file
    for setting in SETTINGS:
        choice = recipe(skill), only_site(skill, source), setting
        found = import_source(emit_source(source, graph, [choice])).ModelNew()(x, y)
        assert found.dtype == dtype
        # the interpreter truncates to bfloat16 where a GPU rounds
        torch.testing.assert_close(
            found.double(), oracle, rtol=2 * torch.finfo(dtype).eps, atol=1e-6
        )


@pytest.mark.parametrize(
    ("skill", "body", "shape"),
    [
        ("row-norm", "F.group_norm(torch.relu(x).view(4, 6, 10), 3)", "4, 6, 2, 5"),
        (
            "online-softmax",
            "torch.softmax((x * 0.5 + 1).flatten(2), 2).view(4, 6, 2, 5)",
            "4, 6, 2, 5",
        ),
        ("split-reduction", "torch.exp(x).view(-1, 10).sum(0)", "4, 6, 5"),
    ],
)
def test_elements_are_made_in_front_of_a_view_of_them(skill: str, body: str, shape: str) -> None:
    source = problem(body, f"torch.randn({shape})")
    first = trace_source(source)[1].nodes[0].name
    assert first in only_site(skill, source).nodes
    check_recipe(recipe(skill), source, H200, settings=SETTINGS, tolerance=1e-6)


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_a_total_has_what_is_not_finite_in_a_row(value: str) -> None:
    body = f"{DICE}(torch.sigmoid(x).flatten(1), y.flatten(1))"
    source = problem(body, IMAGES, parameters="x, y")
    module, graph = trace_source(source)
    x, y = torch.randn(5, 1, 3, 7), torch.rand(5, 1, 3, 7).round()
    x[2, 0, 1, 3] = float(value)
    for setting in SETTINGS:
        choice = recipe("split-reduction"), only_site("split-reduction", source), setting
        found = import_source(emit_source(source, graph, [choice])).ModelNew()(x, y)
        torch.testing.assert_close(found, module.Model()(x, y), equal_nan=True)


@pytest.mark.parametrize("values", ["inf", "-inf", "nan", "-inf -inf"])
def test_a_divergence_of_logits_that_are_not_finite_is_eagers(values: str) -> None:
    source = problem(f"F.kl_div({DISTILLED}, reduction='sum')", PAIR, parameters="x, y")
    module, graph = trace_source(source)
    first, *second = map(float, values.split())
    for setting in SETTINGS:
        choice = recipe("online-softmax"), only_site("online-softmax", source), setting
        model = import_source(emit_source(source, graph, [choice])).ModelNew()
        for place in (0, 1):
            given = [torch.randn(7, 13), torch.randn(7, 13)]
            given[place][2, 4] = first
            given[1 - place][2, 5:6] = torch.tensor(second or [0.5])
            torch.testing.assert_close(model(*given), module.Model()(*given), equal_nan=True)


@pytest.mark.slow
def test_a_divergence_of_nearly_equal_rows_errs_no_more_than_twice_as_eager_does() -> None:
    inputs = "torch.randn(16, 500), torch.randn(16, 500)"
    source = problem(f"F.kl_div({DISTILLED}, reduction='sum')", inputs, parameters="x, y")
    module, graph = trace_source(source)
    eager, wide = module.Model(), [{**setting, "BR": 64} for setting in SETTINGS[1:3]]
    for setting in wide:
        choice = recipe("online-softmax"), only_site("online-softmax", source), setting
        model = import_source(emit_source(source, graph, [choice])).ModelNew()
        for spread in (1.0, 0.1, 0.01):
            errors = []
            for seed in range(4):
                torch.manual_seed(seed)
                x = 4 * torch.randn(16, 500)
                y = x + spread * torch.randn(16, 500)
                oracle = eager(x.double(), y.double())
                errors.append([each(x, y).double() - oracle for each in (model, eager)])
            own, eagers = torch.tensor(errors).norm(dim=0)
            assert own <= 2 * eagers


@pytest.mark.parametrize("body", ["(p, D)", "(q, D)", "(D, p.amax(1), q.sum(1))"])
def test_a_divergence_is_right_where_its_probabilities_are_read_as_well(body: str) -> None:
    given = body.replace("D", "F.kl_div(q, p, reduction='sum')")
    source = problem(f"(lambda q, p: {given})({DISTILLED})", PAIR, parameters="x, y")
    module, graph = trace_source(source)
    softmax = recipe("online-softmax")
    choices = [(softmax, site, SETTINGS[2]) for site in softmax.match(graph, Contract())]
    model = import_source(emit_source(source, graph, choices)).ModelNew()
    x, y = torch.randn(7, 13), torch.randn(7, 13)
    torch.testing.assert_close(model(x, y), module.Model()(x, y), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "has_total"),
    [
        ("(lambda s: (s.mean(), s.mean() * y.sum()))(x.sum(1))", True),  # read with another value
        ("(lambda m: (m, m * 2))(x.sum(1).mean())", True),  # two results that are totals
        ("x.sum(1).std() * 2", False),
        ("x.sum(1)[:3].mean() * 2", False),
        ("x.argmax(1).sum() * 2", False),  # whole numbers
    ],
)
def test_what_is_no_single_total_stays_outside(body: str, has_total: bool) -> None:
    source = problem(body, PAIR, parameters="x, y")
    first, *_ = recipe("split-reduction").match(trace_source(source)[1], Contract())
    assert (first.detail.total is not None) is has_total
    assert not any(name.startswith("mul") for name in first.nodes)


@pytest.mark.parametrize(
    "body",
    [
        "(lambda p: (p, p.sum(1) + (p * y).sum(1)))(torch.sigmoid(x))",  # written anyhow
        "(lambda p: p.sum(1) + (p.t() @ y).sum())(torch.sigmoid(x))",
        "torch.sigmoid(x).reshape(13, 7).sum(1) + x.sum()",
        "torch.sigmoid(x + y[0]).reshape(91).sum(0)",
        "x.sum(1, keepdim=True).expand(7, 13).sum()",
    ],
)
def test_reductions_of_other_rows_and_values_that_are_written_are_not_joined(body: str) -> None:
    source = problem(body, PAIR, parameters="x, y")
    module, graph = trace_source(source)
    reduce = recipe("split-reduction")
    choices = [(reduce, site, SETTINGS[2]) for site in reduce.match(graph, Contract())]
    model = import_source(emit_source(source, graph, choices)).ModelNew()
    x, y = torch.randn(7, 13), torch.randn(7, 13)
    torch.testing.assert_close(model(x, y), module.Model()(x, y))
