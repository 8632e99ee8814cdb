"""tools/cost_model_correlation.py: its arithmetic, and what it says of the shipped evidence."""

import math
import sys
from pathlib import Path

import pytest

from kmem.devices import named_target
from kmem.skills import load_recipe, load_skill

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import cost_model_correlation  # noqa: E402 - tools are no package


def test_ranks_are_correlated_and_equal_values_share_a_rank() -> None:
    correlate = cost_model_correlation.rank_correlation
    assert correlate([1, 2, 3, 4], [10, 20, 30, 400]) == 1.0
    assert correlate([1, 2, 3, 4], [4, 3, 2, 1]) == -1.0
    assert correlate([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(3 / math.sqrt(10), rel=1e-12)
    assert math.isnan(correlate([1, 1, 1], [1, 2, 3]))


def test_the_models_first_matrix_vector_product_is_nearly_the_fastest_of_the_evidence() -> None:
    measured = cost_model_correlation.read_measured(
        ROOT / "db" / "evidence" / "h200-2026-11-22-level1.jsonl"
    )
    recipe = load_recipe(load_skill(ROOT / "skills" / "matvec-rows-per-program"))
    of_matvec = [entry for entry in measured if entry.problem == "matvec"]
    (check,) = cost_model_correlation.check_models(
        of_matvec, {recipe.name: recipe}, named_target("h200")
    )
    assert check.settings >= 12 and check.correlation > 0.6 and check.first_choice < 1.05
