"""What a run's models cost by role, and for each of their kernels that won."""

from dataclasses import replace

from scripted_models import attempted

from kmem.explore.models.cost.usage import Usage
from kmem.records import Attempt, Kernel, Move, Status
from kmem.run.report.costs import count_wins, describe_costs

SEED, EDIT, REPAIRED = Kernel("seed"), Kernel("edit", parent="s"), Kernel("repaired", parent="e")


def first(ms: float) -> Attempt:
    return replace(attempted(SEED, ms=ms), parent_ms=None)


def test_a_win_is_faster_than_what_it_started_from() -> None:
    attempts = [
        first(4.0),
        attempted(EDIT, ms=1.0, move=Move.FIX),  # from 2 ms
        attempted(EDIT, ms=1.999, move=Move.FIX),
        attempted(EDIT, Status.WRONG_VALUES, move=Move.FIX),
        attempted(REPAIRED, ms=1.0, move=Move.REPAIR),
        attempted(EDIT, ms=1.0, move=Move.TUNE),  # nobody was asked
    ]
    assert count_wins(attempts) == {"generator": 1, "optimiser": 1, "repairer": 1}
    recipes = [
        replace(each, candidate=replace(each.candidate, author="recipes")) for each in attempts
    ]
    assert set(count_wins(recipes).values()) == {0}


def test_costs_are_told_by_role_and_for_each_win() -> None:
    usage = (
        Usage("generator", "m", 2, 1000, 200, 0, 0.5, 400),
        Usage("planner", "m", 1, 10, 5, 0, 0.25),
        Usage("optimiser", "local", 1, 10, 5, 0, None),
    )
    told = describe_costs(usage, [first(4.0), first(3.0)])
    assert told == [
        "generator (m): 2 calls, 1000 tokens read (400 cached), 200 written, 0.5000 USD; 2 wins at "
        "0.2500 USD each",
        "planner (m): 1 calls, 10 tokens read, 5 written, 0.2500 USD",
        "optimiser (local): 1 calls, 10 tokens read, 5 written, price unknown; 0 wins",
        "in all: 4 calls, 1020 tokens read (400 cached), 210 written, price unknown; 2 wins",
    ]
    assert describe_costs((), []) == []
