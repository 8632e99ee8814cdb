"""How a run on a GPU begins: its likeliest kernel is measured before the others are written."""

import time
from pathlib import Path

import pytest
from ladder_runs import Judgement, ladder_run, takes_ms, walk_ladder

from kmem.errors import KmemError
from kmem.explore.recipes import author
from kmem.memory.store import Memory
from kmem.records import Kernel


def test_the_likeliest_kernel_is_measured_while_recipes_write_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judgement = Judgement()
    write, written = author.write_kernel, []

    def write_when_the_first_is_judged(*about: object) -> Kernel:
        deadline = time.monotonic() + 30.0
        while written and not judgement.judged and time.monotonic() < deadline:
            time.sleep(0.01)
        written.append(len(judgement.judged))
        return write(*about)  # type: ignore[arg-type]

    monkeypatch.setattr(author, "write_kernel", write_when_the_first_is_judged)
    with Memory(tmp_path / "kmem.db") as memory:
        run = ladder_run(tmp_path, rounds=0, candidates_per_round=8)
        result, attempts, _ = walk_ladder(run, memory, judgement)
    assert len(attempts) == len(written) == 8
    assert written[0] == 0
    assert min(written[1:]) >= 1
    assert judgement.judged[0] == judgement.verified[0] == result.best.candidate.kernel
    assert takes_ms(judgement.judged[0]) == 2.0
    # it was written for the task that was planned, whose other kernels came later
    assert len({attempt.candidate.task for attempt in attempts}) == 1


def test_what_fails_while_the_others_are_written_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judgement, write = Judgement(), author.write_kernel

    def write_once(*about: object) -> Kernel:
        if not judgement.expected:
            return write(*about)  # type: ignore[arg-type]
        while not judgement.judged:
            time.sleep(0.01)
        raise KmemError("the disk is full")

    monkeypatch.setattr(author, "write_kernel", write_once)
    with (
        Memory(tmp_path / "kmem.db") as memory,
        pytest.raises(KmemError, match="the disk is full"),
    ):
        walk_ladder(ladder_run(tmp_path, rounds=0, candidates_per_round=8), memory, judgement)
