"""What the author of a plugin tests it with: a conformance suite for every ABC, and stand-ins.

A suite is a function that takes an instance and raises AssertionError with the sentence of the
contract that the instance breaks. No suite needs a GPU or the network. A test of a recipe:

    def test_my_recipe_keeps_the_contract():
        check_recipe(RECIPE, SOURCE, named_target("h200"), tolerance=1e-6)

- wording.py: what the name of a plugin and a reason told to the user must look like.
- sources.py: problems and emitted modules given as text: traced, written, imported.
- scratch.py: uninitialised memory that holds NaN, so that reading it is noticed.
- recipe.py: the suite of `kmem.recipes.Recipe`, run in Triton's interpreter.
- rewrite.py: the suite of `kmem.rewrites.Rewrite`, computed in float64.
- rewrite_check.py: rewrites of skills held to it on their examples, in a confined process.
- moves.py: the suite of a skill's moves, on the sites of many problems.
- situations.py: a situation, a run and an archive of conversations for an author under test.
- author.py: the suite of `kmem.interfaces.Author`.
- provider.py: the suite of `kmem.interfaces.Provider`.
- checker.py: the suite of `kmem.interfaces.Checker`.
- executor.py: the suite of `kmem.interfaces.Executor`.
- crew.py: the suite of the crew that an executor opens.
- profiler.py: the suite of `kmem.interfaces.Profiler`.
- evaluator.py: the suite of `kmem.run.evaluation.evaluator.Evaluator`.
"""

from kmem.testing.author import check_author
from kmem.testing.checker import check_checker
from kmem.testing.crew import check_crew
from kmem.testing.evaluator import check_evaluator
from kmem.testing.executor import check_executor
from kmem.testing.moves import check_moves
from kmem.testing.profiler import check_profiler
from kmem.testing.provider import check_provider
from kmem.testing.recipe import check_recipe
from kmem.testing.rewrite import check_rewrite
from kmem.testing.scratch import poisoned_scratch
from kmem.testing.situations import DictArchive, open_context, open_situation
from kmem.testing.sources import emit_source, import_source, trace_once, trace_source

__all__ = [
    "DictArchive",
    "check_author",
    "check_checker",
    "check_evaluator",
    "check_crew",
    "check_executor",
    "check_moves",
    "check_profiler",
    "check_provider",
    "check_recipe",
    "check_rewrite",
    "emit_source",
    "import_source",
    "open_context",
    "open_situation",
    "poisoned_scratch",
    "trace_once",
    "trace_source",
]
