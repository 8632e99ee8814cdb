"""What `kmem optimize` can be told of its baselines and minutes."""

import click
import pytest
from click.testing import CliRunner

from kmem.cli.options.records import takes
from kmem.cli.options.run import RunOptions
from kmem.records import BASELINES, Budget


def budget(*words: str) -> Budget | str:
    """What the options make of a run's budget, or the error."""
    found: list[Budget] = []

    @click.command()
    @takes(RunOptions)
    def command(options: RunOptions) -> None:
        found.append(options.budget)

    result = CliRunner().invoke(command, words)
    return found[0] if found else result.output


def test_all_baselines_are_timed_for_as_long_as_the_run_by_default() -> None:
    made = budget("--minutes", "2")
    assert (made.baselines, made.baseline_minutes, made.minutes) == (BASELINES, None, 2.0)


def test_baselines_can_be_chosen_and_limited() -> None:
    made = budget("--baselines", "compile,eager", "--baseline-minutes", "0.5")
    assert (made.baselines, made.baseline_minutes) == (("eager", "compile"), 0.5)


@pytest.mark.parametrize("names", ["compile", "eager,fastest", ""])
def test_other_names_and_a_list_without_eager_are_one_line(names: str) -> None:
    assert "must be of eager, compile, max_autotune, and eager among them" in " ".join(
        budget("--baselines", names).split()
    )
