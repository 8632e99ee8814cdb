"""What memory recalls starts a run and cannot hurt it."""

from pathlib import Path

import pytest
from ladder_runs import Judgement, ladder_run, rungs, walk_ladder
from scripted_evaluator import SOURCE

from kmem.memory.store import Memory
from kmem.records import Attempt, Kernel, Move, RunResult

#: The graph of the usual problem, under a constructor with an argument.
OTHER_SOURCE = (
    SOURCE.replace(
        "    def forward",
        "    def __init__(self, unused):\n        super().__init__()\n    def forward",
    )
    + "def get_init_inputs():\n    return [3]\n"
)


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    """A memory that holds a winner of the usual problem."""
    with Memory(tmp_path / "kmem.db") as opened:
        run = ladder_run(tmp_path, "first", rounds=0, candidates_per_round=2)
        result, _, _ = walk_ladder(run, opened, Judgement())
        assert result.speedup == 10.0
        yield opened


def later(
    memory: Memory, home: Path, judgement: Judgement, *, rounds: int = 0, **about: str
) -> tuple[RunResult, list[Attempt], list[str]]:
    run = ladder_run(home, "later", rounds=rounds, candidates_per_round=2)
    return walk_ladder(run, memory, judgement, **about)


def moves(attempts: list[Attempt]) -> list[Move]:
    return [attempt.candidate.task.move for attempt in attempts]


def test_without_rounds_the_remembered_kernel_alone_is_verified(
    memory: Memory, tmp_path: Path
) -> None:
    result, attempts, _ = later(memory, tmp_path, Judgement())
    assert moves(attempts) == [Move.RECALL]
    assert (result.recalled, result.speedup) == (True, 10.0)
    assert result.reason == "the remembered winner holds here as recorded"


def test_with_rounds_the_search_goes_on_from_the_remembered_kernel(
    memory: Memory, tmp_path: Path
) -> None:
    result, attempts, _ = later(memory, tmp_path, Judgement(), rounds=1)
    assert moves(attempts)[0] is Move.RECALL
    assert {attempt.round for attempt in attempts[1:]} == {1}
    assert len(attempts) > 1
    assert attempts[1].candidate.kernel.parent == attempts[0].candidate.kernel.hash
    assert result.best is not None


def test_a_remembered_kernel_is_written_anew_for_the_module_at_hand(
    memory: Memory, tmp_path: Path
) -> None:
    result, attempts, _ = later(memory, tmp_path, Judgement(), source=OTHER_SOURCE)
    assert moves(attempts) == [Move.RECALL]
    assert "def __init__(self, unused)" in attempts[0].candidate.kernel.source
    assert attempts[0].candidate.author == "recipes"
    assert result.recalled


@pytest.mark.parametrize("fault", ["build", "screening", "verification", "time", "baseline"])
def test_whatever_fails_of_it_the_search_goes_on_as_if_nothing_had_been_recalled(
    memory: Memory, tmp_path: Path, fault: str
) -> None:
    first: list[Kernel] = []

    def is_first(kernel: Kernel) -> bool:
        if not first:
            first.append(kernel)
        return kernel == first[0]

    judgement = Judgement()
    if fault == "build":
        judgement.breaks = is_first
    elif fault == "screening":
        judgement.wrong = is_first
    elif fault == "verification":
        judgement.refuses = is_first
    elif fault == "time":
        judgement.slower = lambda kernel: 3.0 if is_first(kernel) else 1.0
    else:
        judgement.baselines = {"compile": 1.9}  # eager is remembered
    result, attempts, said = later(memory, tmp_path, judgement)
    assert moves(attempts) == [Move.RECALL, Move.SEED, Move.SEED]
    assert any("begin as without it" in text for text in said)
    plan = memory.runs.plans("later")[0].plan
    assert [task.move for task in plan.tasks] == [Move.RECALL, Move.SEED]
    if fault != "baseline":
        assert result.best.candidate.task.move is Move.SEED


def test_a_winner_by_a_recipe_that_has_changed_goes_in_front_of_the_seeds(
    memory: Memory, tmp_path: Path
) -> None:
    _, attempts, _ = later(memory, tmp_path, Judgement(), version="v2")
    assert moves(attempts)[0] is Move.RECALL
    assert Move.SEED in moves(attempts)
    assert {attempt.round for attempt in attempts} == {0}


def test_outcomes_know_the_version_of_the_recipe_that_wrote_them(memory: Memory) -> None:
    outcomes = memory.ledger.outcomes(skill="ladder")
    assert outcomes
    assert {outcome.versions["recipe ladder"] for outcome in outcomes} == {"v1"}


def test_a_well_known_problem_ends_after_its_remembered_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, "first", rounds=3, candidates_per_round=1)
        _, found, _ = walk_ladder(run, memory, Judgement())
        assert len(found) > 1
        run = ladder_run(tmp_path, "later", rounds=3, candidates_per_round=1)
        result, attempts, _ = walk_ladder(run, memory, Judgement())
    assert moves(attempts) == [Move.RECALL]
    assert "the search that found the remembered winner gained no more" in result.reason


def test_a_strangers_search_does_not_end_a_run_after_its_winner(tmp_path: Path) -> None:
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, "first", rounds=3, candidates_per_round=1)
        walk_ladder(run, memory, Judgement())
    with Memory(tmp_path / "kmem.db") as memory:
        with memory.storage.write() as connection:
            connection.execute("update contributor set name = 'kmem-here'")
        run = ladder_run(tmp_path, "later", rounds=3, candidates_per_round=1)
        _, attempts, _ = walk_ladder(run, memory, Judgement())
    assert moves(attempts)[0] is Move.RECALL
    assert len(attempts) > 1, "a whole round is measured before others count"


def test_a_later_run_on_the_graph_begins_on_the_rung_that_was_climbed_to(tmp_path: Path) -> None:
    needs_one = Judgement(screening_needs=1, refuses=lambda kernel: True)
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, "first", rounds=0, candidates_per_round=2)
        result, _, _ = walk_ladder(run, memory, needs_one)
        assert result.best is None, "nothing else is remembered"
        _, attempts, _ = later(memory, tmp_path, Judgement(screening_needs=1))
        assert {tuple(rungs(attempt.candidate.kernel)) for attempt in attempts} == {(1, 1)}
        run = ladder_run(tmp_path, "changed", rounds=0, candidates_per_round=1)
        _, attempts, _ = walk_ladder(run, memory, Judgement(), version="v2")
        assert [0, 0] in [rungs(attempt.candidate.kernel) for attempt in attempts]


def test_a_resumed_run_recalls_what_it_recalled(memory: Memory, tmp_path: Path) -> None:
    judgement = Judgement(refuses=lambda kernel: True)
    _, attempts, _ = later(memory, tmp_path, judgement)
    verdicts = len(judgement.verified)
    _, again, _ = later(memory, tmp_path, judgement)
    assert again == attempts
    assert len(judgement.verified) == verdicts
