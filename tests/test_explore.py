"""The recipe author: it covers graphs, proposes settings once each, and fills every workload."""

from dataclasses import dataclass, replace

import pytest

from kmem.devices import named_target
from kmem.explore.recipes.author import RecipeAuthor
from kmem.explore.recipes.cover import cover_graph, find_options
from kmem.interfaces import Assignment
from kmem.problem.graph import OpGraph
from kmem.problem.traced import TracedProblem
from kmem.recipes import ACCURACY, Emission, Operand, Recipe, Settings, Site, Space
from kmem.records import (
    Attempt,
    Candidate,
    Contract,
    Device,
    Measurement,
    Move,
    Problem,
    Purity,
    SiteChoice,
    Status,
    Task,
    Timing,
    Workload,
)
from kmem.testing import trace_source

H200 = named_target("h200")

TWO_RELUS = """
import torch
SIZE = {size}
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.cumsum(torch.relu(x), 0) + torch.cumsum(torch.sigmoid(x), 0)
def get_inputs():
    return [torch.rand(SIZE, 4)]
"""

KERNEL = """@triton.jit
def unary_kernel(x, y, n: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offsets, mask=offsets < n)
    value = tl.maximum(value, 0.0) if KIND == "relu" else 1.0 / (1.0 + tl.exp(-value))
    tl.store(y + offsets, value, mask=offsets < n)
"""


@dataclass(frozen=True)
class Detail:
    kind: str
    numel: int


class UnaryRecipe(Recipe):
    """Writes one pointwise operator; small enough to see through."""

    def __init__(
        self, name: str, kinds: tuple[str, ...], cost: float = 1e-6, *, own_size_only: bool = False
    ) -> None:
        self.name = name
        self.kinds = kinds
        self.base_cost = cost
        self.own_size_only = own_size_only

    def match(self, graph: OpGraph, contract: Contract) -> list[Site]:
        return [
            Site(
                node.name,
                "pointwise",
                (node.name,),
                (Operand(node.args[0].name, graph.spec(node.args[0].name)),),
                (Operand(node.name, node.spec),),
                Detail(node.target.split(".")[1], node.spec.numel),
                2 * node.spec.bytes,
            )
            for node in graph.nodes
            if node.target.split(".")[1] in self.kinds
        ]

    def space(self, site: Site, device: Device) -> Space:
        return Space({"BLOCK": (16, 32, 64)})

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        return self.base_cost * settings["BLOCK"]

    def emit(self, site: Site, settings: Settings) -> Emission:
        detail, block = site.detail, settings["BLOCK"]
        launcher = f"""def launch(x):
    y = torch.empty_like(x)
    unary_kernel[(triton.cdiv({detail.numel}, {block}),)](
        x, y, n={detail.numel}, KIND={detail.kind!r}, BLOCK={block}
    )
    return y
"""
        return Emission((("unary_kernel", KERNEL),), launcher, self.own_size_only)


class LadderRecipe(UnaryRecipe):
    """The same with a precision ladder, whose top is too dear for the largest blocks."""

    def space(self, site: Site, device: Device) -> Space:
        knobs = {"BLOCK": (16, 32, 64), ACCURACY: (0, 1, 2)}
        return Space(knobs, lambda setting: setting[ACCURACY] < 2 or setting["BLOCK"] < 64)


def trace_both() -> dict[str, OpGraph]:
    """The graph at full size and at the small one."""
    return {
        name: trace_source(TWO_RELUS.format(size=size))[1]
        for name, size in (("full", 64), ("small", 7))
    }


@pytest.fixture(scope="module")
def graphs() -> dict[str, OpGraph]:
    return trace_both()


def assignment(
    graphs: dict[str, OpGraph],
    recipes: list[Recipe],
    task: Task,
    history: tuple[Attempt, ...] = (),
    parent=None,
    **contract: object,
) -> Assignment:
    problem = Problem("two", "two.py", TWO_RELUS.format(size=64))
    table = {recipe.name: recipe for recipe in recipes}
    return Assignment(
        traced=TracedProblem(
            problem,
            Contract(**contract),
            H200,
            {name: Workload(name) for name in graphs},
            graphs,
            None,
        ),
        task=task,
        parent=parent,
        diagnosis=None,
        prescriptions=(),
        history=history,
        recipes=table,
        seed=0,
    )


def attempted(candidate: Candidate) -> Attempt:
    return Attempt(
        0, candidate, Measurement(Status.PASSED, Timing(1.0, 1.0, 1.0, 1), estimated=False), None
    )


def test_a_seed_writes_the_best_ranked_settings_first_and_none_twice(
    graphs: dict[str, OpGraph],
) -> None:
    recipe = UnaryRecipe("both", ("relu", "sigmoid"))
    candidates = RecipeAuthor().write(
        assignment(graphs, [recipe], Task(Move.SEED, "both", None, 3, ""))
    )
    assert [dict(candidate.kernel.choices[0].knobs)["BLOCK"] for candidate in candidates] == [
        16,
        32,
        64,
    ]
    assert len({candidate.kernel.hash for candidate in candidates}) == 3
    assert candidates[0].estimated_ms == pytest.approx(2 * 16e-6)


def test_what_is_left_to_the_library_counts_where_candidates_are_ranked(
    graphs: dict[str, OpGraph],
) -> None:
    def best(*operators: str) -> Candidate:
        recipe = UnaryRecipe("some", operators)
        task = Task(Move.SEED, "some", None, 1, "")
        return RecipeAuthor().write(assignment(graphs, [recipe], task))[0]

    both, one = best("relu", "sigmoid"), best("relu")
    assert one.estimated_ms < both.estimated_ms < both.whole_ms
    left = [each.whole_ms - each.estimated_ms for each in (one, both)]
    assert left[0] > left[1], "the library writes sigmoid too, at what that takes"
    assert one.whole_ms > both.whole_ms


def test_what_was_tried_in_this_run_is_not_written_again(graphs: dict[str, OpGraph]) -> None:
    recipe, author = UnaryRecipe("both", ("relu", "sigmoid")), RecipeAuthor()
    first = author.write(assignment(graphs, [recipe], Task(Move.SEED, "both", None, 2, "")))
    later = author.write(
        assignment(
            graphs,
            [recipe],
            Task(Move.SEED, "both", None, 9, ""),
            history=tuple(map(attempted, first)),
        )
    )
    assert not {candidate.kernel.choices for candidate in first} & {
        candidate.kernel.choices for candidate in later
    }


def test_tuning_moves_one_site_at_a_time_from_the_parent(graphs: dict[str, OpGraph]) -> None:
    recipe, author = UnaryRecipe("both", ("relu", "sigmoid")), RecipeAuthor()
    parent = author.write(assignment(graphs, [recipe], Task(Move.SEED, "both", None, 1, "")))[0]
    tuned = author.write(
        assignment(
            graphs,
            [recipe],
            Task(Move.TUNE, "both", "h", 2, ""),
            history=(attempted(parent),),
            parent=parent.kernel,
        )
    )
    changed = [
        sum(a != b for a, b in zip(candidate.kernel.choices, parent.kernel.choices, strict=True))
        for candidate in tuned
    ]
    assert changed == [1, 1]
    assert all(candidate.kernel.parent == parent.kernel.hash for candidate in tuned)


def test_a_recalled_setting_is_written_as_it_was_even_for_sites_of_another_module(
    graphs: dict[str, OpGraph],
) -> None:
    remembered = (SiteChoice("somewhere_else", "pointwise", "both", (("BLOCK", 64),)),)
    task = Task(Move.RECALL, "both", None, 1, "", remembered)
    (candidate,) = RecipeAuthor().write(
        assignment(graphs, [UnaryRecipe("both", ("relu", "sigmoid"))], task)
    )
    assert [dict(choice.knobs)["BLOCK"] for choice in candidate.kernel.choices] == [64, 64]


@pytest.mark.parametrize(("remembered", "rung"), [({}, 0), ({ACCURACY: 1}, 1)])
def test_a_search_stays_on_the_rung_that_it_starts_from(
    graphs: dict[str, OpGraph], remembered: dict[str, int], rung: int
) -> None:
    """Knobs remembered from before a recipe had a ladder are on its lowest rung."""
    knobs = tuple(sorted({"BLOCK": 64, **remembered}.items()))
    choices = (SiteChoice("relu", "pointwise", "both", knobs),)
    recipe, author = LadderRecipe("both", ("relu", "sigmoid")), RecipeAuthor()
    task = Task(Move.RECALL, "both", None, 1, "", choices)
    (recalled,) = author.write(assignment(graphs, [recipe], task))
    written = [
        recalled,
        *author.write(
            assignment(
                graphs, [recipe], Task(Move.TUNE, "both", "h", 9, ""), parent=recalled.kernel
            )
        ),
    ]
    assert len(written) > 5
    found = {dict(choice.knobs)[ACCURACY] for each in written for choice in each.kernel.choices}
    assert found == {rung}


def test_sites_never_overlap_and_a_preferred_recipe_goes_first(graphs: dict[str, OpGraph]) -> None:
    cheap = UnaryRecipe("cheap", ("relu",), cost=1e-9)
    dear = UnaryRecipe("dear", ("relu", "sigmoid"), cost=1e-7)
    options = find_options(graphs, {"cheap": cheap, "dear": dear}, Contract(), H200)
    chosen = cover_graph(graphs["full"], options, Contract(), H200)
    assert [(option.recipe.name, option.site.name) for option in chosen] == [
        ("cheap", "relu"),
        ("dear", "sigmoid"),
    ]
    preferred = cover_graph(
        graphs["full"], options, Contract(), H200, prefer=[[("dear", "relu", None)]]
    )
    assert [(option.recipe.name, option.site.name) for option in preferred] == [
        ("dear", "relu"),
        ("dear", "sigmoid"),
    ]


def test_a_site_predicted_slower_than_the_library_is_left_to_it_unless_purity_forbids(
    graphs: dict[str, OpGraph],
) -> None:
    slow = UnaryRecipe("slow", ("relu",), cost=1e3)
    options = find_options(graphs, {"slow": slow}, Contract(), H200)
    assert cover_graph(graphs["full"], options, Contract(), H200) == []
    assert len(cover_graph(graphs["full"], options, Contract(purity=Purity.TRITON), H200)) == 1


def test_a_recipe_that_loses_its_site_at_another_workload_is_passed_over(
    graphs: dict[str, OpGraph], caplog: pytest.LogCaptureFixture
) -> None:
    class Picky(UnaryRecipe):
        def match(self, graph: OpGraph, contract: Contract) -> list[Site]:
            return [site for site in super().match(graph, contract) if site.detail.numel > 100]

    assert (
        RecipeAuthor().write(
            assignment(graphs, [Picky("picky", ("relu",))], Task(Move.SEED, "picky", None, 1, ""))
        )
        == []
    )
    assert "picky matches relu at one workload but not at another" in caplog.text


def test_sites_are_found_once_for_all_tasks_of_a_run(graphs: dict[str, OpGraph]) -> None:
    class Counting(UnaryRecipe):
        asked = 0

        def space(self, site: Site, device: Device) -> Space:
            self.asked += 1
            return super().space(site, device)

    recipe, author = Counting("both", ("relu",)), RecipeAuthor()
    first = assignment(graphs, [recipe], Task(Move.SEED, "both", None, 1, ""))
    assert author.write(first) == author.write(
        replace(first, task=Task(Move.SEED, "both", None, 1, ""))
    )
    assert recipe.asked == 1
    pure = replace(first.traced, contract=Contract(purity=Purity.TRITON))
    author.write(replace(first, traced=pure))
    assert recipe.asked == 1  # what a site's settings take depends on the site and the device alone
    author.write(replace(first, traced=replace(pure, device=named_target("a100"))))
    assert recipe.asked == 2


def test_a_skill_without_a_matching_recipe_has_nothing_to_write(graphs: dict[str, OpGraph]) -> None:
    assert (
        RecipeAuthor().write(
            assignment(
                graphs, [UnaryRecipe("both", ("relu",))], Task(Move.SEED, "prose-only", None, 3, "")
            )
        )
        == []
    )
