"""The block of constants in a written kernel: which sizes it serves, and what runs at others."""

import warnings
from typing import Any

import pytest
from test_explore import UnaryRecipe, assignment, trace_both

from kmem.codegen.module.constants import END, swap_constants
from kmem.errors import RecipeError
from kmem.explore.recipes.author import RecipeAuthor
from kmem.problem.graph import OpGraph
from kmem.records import Move, Task
from kmem.testing import import_source


@pytest.fixture(scope="module")
def graphs() -> dict[str, OpGraph]:
    return trace_both()


def fell_back(model: Any, x: Any) -> bool:
    """Whether a module ran the reference operators; it must answer right anyway."""
    import torch

    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        reference = type(model).__mro__[1]()
        torch.testing.assert_close(model(x), reference(x))
    return any("reference operators" in str(warning.message) for warning in said)


def test_the_constants_for_small_sizes_make_the_same_kernels_serve_those(
    graphs: dict[str, OpGraph],
) -> None:
    import torch

    candidate = RecipeAuthor().write(
        assignment(
            graphs, [UnaryRecipe("both", ("relu", "sigmoid"))], Task(Move.SEED, "both", None, 1, "")
        )
    )[0]
    shipped = candidate.kernel.source
    small = swap_constants(shipped, candidate.kernel.small_constants)
    assert shipped.partition(END)[2] == small.partition(END)[2], "all but the block is the same"
    assert "small" not in shipped
    for text, own in ((shipped, 64), (small, 7)):
        model = import_source(text).ModelNew()
        for size in (64, 7, 5):
            assert fell_back(model, torch.randn(size, 4)) == (size != own)


def test_a_fallback_raises_where_that_is_asked_for(
    graphs: dict[str, OpGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    (candidate,) = RecipeAuthor().write(
        assignment(
            graphs, [UnaryRecipe("both", ("relu", "sigmoid"))], Task(Move.SEED, "both", None, 1, "")
        )
    )
    model = import_source(candidate.kernel.source).ModelNew()
    monkeypatch.setenv("KMEM_STRICT", "1")
    assert not fell_back(model, torch.randn(64, 4))
    with torch.no_grad(), pytest.raises(RuntimeError, match="the inputs are not those"):
        model(torch.randn(5, 4))
    with pytest.raises(RuntimeError, match="gradients"):
        model(torch.randn(64, 4, requires_grad=True))


def test_what_rounds_as_eager_may_at_one_size_runs_at_no_other_on_a_device(
    graphs: dict[str, OpGraph],
) -> None:
    """The interpreter, which proves kernels at the small size, is left to do that."""
    import torch

    recipe = UnaryRecipe("both", ("relu", "sigmoid"), own_size_only=True)
    (candidate,) = RecipeAuthor().write(
        assignment(graphs, [recipe], Task(Move.SEED, "both", None, 1, ""))
    )
    small = swap_constants(candidate.kernel.source, candidate.kernel.small_constants)
    assert not fell_back(import_source(small).ModelNew(), torch.randn(7, 4))
    on_a_device = small.replace("_INTERPRETED = triton.knobs.runtime.interpret", "_INTERPRETED = 0")
    emitted = import_source(on_a_device)
    assert emitted.INPUTS is None
    assert fell_back(emitted.ModelNew(), torch.randn(7, 4))


def test_a_block_of_constants_can_do_nothing_but_name_numbers(graphs: dict[str, OpGraph]) -> None:
    (candidate,) = RecipeAuthor().write(
        assignment(
            graphs, [UnaryRecipe("both", ("relu", "sigmoid"))], Task(Move.SEED, "both", None, 1, "")
        )
    )
    kernel = candidate.kernel
    for block in (
        kernel.small_constants + "print(1)\n",
        kernel.small_constants + "ANOTHER = 1\n",
        kernel.small_constants.replace("constant(", "print(", 1),
    ):
        with pytest.raises(RecipeError, match="constants"):
            swap_constants(kernel.source, block)
    with pytest.raises(RecipeError, match="no block"):
        swap_constants("x = 1\n", kernel.small_constants)
