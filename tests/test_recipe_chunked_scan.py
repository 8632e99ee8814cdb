"""skills/chunked-linear-recurrence: selective scans in every spelling, in the interpreter."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from all_pairs import all_pairs
from chunked_scans import FADING, FIRST, product, steps
from compile_sm90 import compile_jobs

from kmem.devices import named_target
from kmem.recipes import ACCURACY
from kmem.records import Contract, Precision
from kmem.skills import load_recipe, load_skill
from kmem.testing import check_recipe, emit_source, import_source, poisoned_scratch, trace_source

ROOT = Path(__file__).resolve().parent.parent
H200 = named_target("h200")
RECIPE = load_recipe(load_skill(ROOT / "skills" / "chunked-linear-recurrence"))


def both_forms(source: str, contract: Contract | None = None) -> list[dict]:
    """A setting of each form that the space has, the smallest tiles first."""
    contract = contract or Contract()
    _, graph = trace_source(source, contract.precision)
    (site,) = RECIPE.match(graph, contract)
    found = RECIPE.space(site, H200).settings()
    firsts = [next((each for each in found if each["form"] == form), None) for form in FORMS]
    return [each for each in firsts if each is not None]


FORMS = ("fused", "chunked")
RETURNED_LAST = "states[:, -1]"


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(
    "source",
    [
        product((1, 2, 20, 2, 5, 17)),
        product((1, 3, 20, 1, 5, 24), f"y, {RETURNED_LAST}", FIRST),
        steps((2, 3, 16, 2, 5, 17)),
        product((2, 2, 16, 2, 16, 16), RETURNED_LAST),
        product((1, 4, 33, 2, 18, 33), "y", FIRST),
        steps((1, 3, 40, 3, 16, 20), "y, carried"),
        product((1, 2, 150, 1, 16, 16), a=FADING),
    ],
)
def test_both_forms_agree_with_torch(source: str) -> None:
    settings = both_forms(source)
    assert [each["form"] for each in settings] == list(FORMS)
    check_recipe(RECIPE, source, H200, settings=settings, tolerance=2e-6)


def test_every_knob_has_a_role_with_grades() -> None:
    _, graph = trace_source(product((1, 2, 128, 1, 16, 64)))
    (site,) = RECIPE.match(graph, Contract())
    for settings in RECIPE.space(site, H200).settings():
        for knob in settings.keys() - {ACCURACY}:
            roles = RECIPE.roles[knob]
            assert roles and all(role.grade(settings[knob]) is not None for role in roles), knob


@pytest.mark.slow
def test_products_are_read_where_opt_einsum_gave_them_a_path() -> None:
    _, graph = trace_source(product((1, 2, 16, 2, 5, 17)))
    nodes = [
        replace(node, kwargs={"path": (0, 1) * (len(node.args[1]) - 1)})
        if "einsum" in node.target and len(node.args[1]) > 2
        else node
        for node in graph.nodes
    ]
    assert nodes != list(graph.nodes)
    (site,) = RECIPE.match(replace(graph, nodes=tuple(nodes)), Contract())
    assert site == RECIPE.match(graph, Contract())[0]


def test_every_rung_is_right() -> None:
    source = product((1, 2, 18, 1, 5, 16))
    contract = Contract(precision=Precision.TF32)
    settings = both_forms(source, contract)[0]
    every = [{**settings, "ACCURACY": rung} for rung in range(3)]
    check_recipe(RECIPE, source, H200, settings=every, contract=contract, tolerance=2e-3)


def run(source: str, settings: dict, inputs: list[torch.Tensor]) -> torch.Tensor:
    """What the emitted module makes of inputs."""
    _, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    emitted = import_source(emit_source(source, graph, [(RECIPE, site, settings)]))
    with torch.no_grad(), poisoned_scratch():
        return emitted.ModelNew()(*inputs)


def plant(inputs: list[torch.Tensor], which: int, value: float) -> None:
    """One element that is not finite, in the second of three chunks."""
    place = tuple(size // 2 for size in inputs[which].shape)
    inputs[which][place] = value


@pytest.mark.slow(after=4)
@pytest.mark.parametrize(
    ("write", "which", "value"),
    all_pairs([product, steps], range(4), [float("inf"), float("nan"), float("-inf")]),
)
def test_what_is_not_finite_is_where_it_is_in_eager(write, which: int, value: float) -> None:
    """A masked product spreads it to earlier chunks, steps do not."""
    source = write((1, 3, 16, 2, 5, 17), a=FADING)
    module = import_source(source)
    torch.manual_seed(5)
    inputs = module.get_inputs()
    plant(inputs, which, value)
    eager = module.Model()(*inputs)
    for settings in both_forms(source):
        found = run(source, settings, inputs)
        assert torch.equal(found.isnan(), eager.isnan())
        assert torch.equal(found.isinf(), eager.isinf())


def test_a_decay_that_leaves_the_range_comes_back() -> None:
    """The first chunk's decay overflows, the second's takes that back."""
    source = product((1, 3, 16, 1, 4, 16), first=FIRST)
    module = import_source(source)
    torch.manual_seed(2)
    x, a, *rest = module.get_inputs()
    a = a * 0.01
    a[:, 0] += 140.0
    a[:, 16] -= 140.0
    inputs = [x, a, *rest]
    right = module.Model()(*(each.double() for each in inputs))[:, 32:]
    eager = module.Model()(*inputs)
    assert eager[:, :16].isinf().any() and eager[:, 32:].isfinite().all()
    error = (eager[:, 32:] - right).norm() / right.norm()
    for settings in both_forms(source):
        found = run(source, settings, inputs)[:, 32:]
        assert (found - right).norm() / right.norm() <= 2 * error


def test_decays_err_less_than_eagers() -> None:
    """Long sums of one sign: eager rounds them, and their differences keep that."""
    source = product((1, 2, 128, 1, 16, 16), a="-3 * torch.rand(BATCH, CHUNKS * LENGTH, HEADS)")
    module = import_source(source)
    torch.manual_seed(4)
    inputs = module.get_inputs()
    right = module.Model()(*(each.double() for each in inputs))
    eager = (module.Model()(*inputs) - right).norm() / right.norm()
    found = run(source, both_forms(source)[1], inputs)
    assert (found - right).norm() / right.norm() < 0.5 * eager


def test_exponents_are_not_rounded_to_fp32() -> None:
    """Sums of 64 numbers reach tens, whose last digit in fp32 is two millionths of exp."""
    source = product((2, 2, 64, 4, 16, 16))
    module = import_source(source)
    torch.manual_seed(0)
    inputs = module.get_inputs()
    right = module.Model()(*(each.double() for each in inputs))
    eager = (module.Model()(*inputs) - right).norm() / right.norm()
    for settings in both_forms(source):
        found = run(source, settings, inputs)
        assert (found - right).norm() / right.norm() < 0.3 * eager


SIZES = (1, 2, 16, 2, 4, 16)


@pytest.mark.parametrize(
    "source",
    [
        product(SIZES).replace("diagonal=0", "diagonal=1"),
        product(SIZES).replace("-torch.inf", "0.0"),
        product(SIZES).replace("t[:, :, :, -1:] - t)", "t[:, :, :, -2:-1] - t)"),
        product(SIZES).replace("torch.exp(t))", "torch.exp(-t))"),
        product(SIZES).replace("(1, 0)", "(0, 1)"),
        product(SIZES).replace("return y", "return y, states"),
        product(SIZES).replace("bhzc,bchpn->bzhpn", "bhcz,bchpn->bzhpn"),
        product(SIZES).replace("bclhn,bcshn,bhcls", "bclhn,bcshn,bhcsl"),
        product(SIZES).replace("(x, a, b, c))", "(x.double(), a, b, c))"),
        steps((1, 3, *SIZES[2:])).replace("+ states[:, index]", "+ states[:, 0]"),
        steps((1, 3, *SIZES[2:])).replace("last[:, index, 0", "last[:, 0, 0"),
        steps(SIZES).replace(".tril()", ".triu()"),
    ],
)
def test_what_is_no_such_scan_is_left(source: str) -> None:
    _, graph = trace_source(source)
    assert RECIPE.match(graph, Contract()) == []


COMPILED = {
    "product": (product((4, 2, 64, 8, 16, 64)), {"form": "fused", "block_l": 64, "block_p": 64}),
    "chunked": (product((4, 2, 64, 8, 16, 64)), {"form": "chunked", "block_l": 64, "block_p": 64}),
    "steps": (steps((1, 4, 128, 4, 64, 64)), {"form": "chunked", "block_l": 64, "block_p": 32}),
}


@pytest.mark.slow
def test_kernels_use_tensor_cores_and_do_not_spill() -> None:
    jobs = []
    for source, chosen in COMPILED.values():
        _, graph = trace_source(source)
        (site,) = RECIPE.match(graph, Contract())
        legal = RECIPE.space(site, H200).settings()
        settings = next(each for each in legal if chosen.items() <= each.items())
        jobs.append(("chunked-linear-recurrence", source, "match", settings))
    for kernels in compile_jobs(jobs):
        assert [each["name"] for each in kernels if each["stack"]] == []
        assert max(each["hgmma"] for each in kernels) > 0
