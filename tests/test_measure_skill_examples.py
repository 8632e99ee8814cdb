"""What tools/measure_skill_examples.py asks the judge, what it records, and that it goes on.

The judge is a stand-in.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from kmem.devices import named_target
from kmem.errors import DeviceMemoryError, ProblemError
from kmem.memory.store import Memory
from kmem.memory.team.exchange import export_outcomes, import_outcomes
from kmem.records import Contract, Measurement, Move, Status, Timing

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import measure_skill_examples as tool  # noqa: E402 - a developer script, not part of the package

NAMES = ("move-monotone-past-max", "running-window-sums", "split-k-matmul")
H200 = named_target("h200")
TIMING = Timing(0.5, 0.49, 0.52, 40, "eager", 1.0, 2.0, 1.9, 2.1)


@pytest.fixture(scope="module")
def pairs() -> list[tool.Pair]:
    return [tool.load_pair(ROOT / "skills" / name) for name in NAMES]


def verdict(pair: tool.Pair) -> tool.Verdict:
    """Every pair passes at 2x, but for one that is wrong and one that is too large."""
    if pair.skill.name == NAMES[2]:
        raise DeviceMemoryError("it does not fit")
    failed = pair.skill.name == NAMES[1]
    measurement = Measurement(
        Status.WRONG_VALUES if failed else Status.PASSED,
        None if failed else TIMING,
        False,
        log="output 0",
    )
    return tool.Verdict(measurement, pair.problem.hash, pair.problem.hash, (4, 5), None)


def measure(
    pairs: list[tool.Pair],
    memory: Memory,
    judged: list[str],
    seconds: float = 60.0,
    takes_s: float = 0.0,
) -> list[str]:
    def judge(pair: tool.Pair) -> tool.Verdict:
        judged.append(pair.skill.name)
        time.sleep(takes_s)
        return verdict(pair)

    with ThreadPoolExecutor(1) as executor:
        results = partial(
            tool.measure_pairs, judge=judge, executor=executor, deadline=time.monotonic() + seconds
        )
        return tool._measure(pairs, results, memory, Contract(), H200)


def test_every_verdict_is_recorded_and_a_pair_that_cannot_be_judged_is_named(
    pairs: list[tool.Pair], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Memory(tmp_path / "kmem.db") as memory:
        assert measure(pairs, memory, []) == [NAMES[2]]
        passed, wrong = (memory.ledger.outcomes(skill=name)[0] for name in NAMES[:2])
        assert memory.runs.kernel(passed.source_hash) == pairs[0].kernel
        assert memory.track_records.of_skill(NAMES[0])[0].speedup == pytest.approx(2.0)
    assert (passed.skill, passed.problem, passed.move) == (
        NAMES[0],
        f"skills/{NAMES[0]}/examples",
        Move.FIX,
    )
    assert (
        passed.baseline,
        passed.baseline_ms,
        passed.ratio,
        passed.ratio_low,
        passed.ratio_high,
    ) == ("before", 1.0, 2.0, 1.9, 2.1)
    assert passed.operators == pairs[0].skill.operators
    assert (passed.origin, passed.arch, passed.device) == ("kmem-library", "sm_90", "NVIDIA H200")
    assert (wrong.status, wrong.latency_ms, wrong.ratio, wrong.baseline) == (
        Status.WRONG_VALUES,
        None,
        None,
        None,
    )
    printed = capsys.readouterr().out
    assert "1 of 2 at 1.2x and more, 1 of them with the whole interval" in printed
    assert f"{NAMES[2]:34} not judged: it does not fit" in printed


def test_a_second_call_judges_only_what_has_no_verdict(
    pairs: list[tool.Pair], tmp_path: Path
) -> None:
    judged: list[str] = []
    with Memory(tmp_path / "kmem.db") as memory:
        measure(pairs, memory, judged)
        assert judged == list(NAMES)
        measure(pairs, memory, judged)
        assert judged == [*NAMES, NAMES[2]]
        assert len(memory.ledger.outcomes()) == 2


def test_a_changed_example_is_judged_again(pairs: list[tool.Pair], tmp_path: Path) -> None:
    with Memory(tmp_path / "kmem.db") as memory:
        measure(pairs[:1], memory, [])
        pair = pairs[0]
        edited = replace(pair, problem=replace(pair.problem, source="another before.py"))
        assert tool.recorded(memory, pair, H200) is not None
        assert tool.recorded(memory, edited, H200) is None


def test_after_the_deadline_no_pair_is_begun(pairs: list[tool.Pair], tmp_path: Path) -> None:
    judged: list[str] = []
    with Memory(tmp_path / "kmem.db") as memory:
        missing = measure(pairs, memory, judged, seconds=-1.0, takes_s=1.0)
    assert NAMES[2] in missing
    assert judged == list(NAMES[:2])  # the second had begun when the first ended


def test_what_was_exported_merges_elsewhere(pairs: list[tool.Pair], tmp_path: Path) -> None:
    with Memory(tmp_path / "here.db") as memory:
        measure(pairs, memory, [])
        assert export_outcomes(memory, tmp_path / "evidence.jsonl").outcomes == 2
    with Memory(tmp_path / "there.db") as memory:
        added = import_outcomes(memory, tmp_path / "evidence.jsonl")
        assert (added.outcomes, added.kernels) == (2, 2)


def test_the_problem_is_before_as_it_stands_and_the_candidate_after_as_model_new(
    pairs: list[tool.Pair],
) -> None:
    for pair, name in zip(pairs, NAMES, strict=True):
        before = ROOT / "skills" / name / "examples" / "before.py"
        assert (pair.problem.name, pair.problem.path) == (f"skills/{name}/examples", str(before))
        assert pair.problem.source == before.read_text(encoding="utf-8")
        assert "class ModelNew(" in pair.kernel.source
        assert "class Model(" not in pair.kernel.source


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("at 12:14:\nacc is re-assigned to fp64"),
        ProblemError("forward does not run in float64"),
    ],
)
def test_a_pair_that_ends_its_judge_is_a_line_of_the_table_and_the_rest_are_judged(
    pairs: list[tool.Pair],
    error: Exception,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def judge(pair: tool.Pair) -> tool.Verdict:
        if pair.skill.name == NAMES[0]:
            raise error
        return tool.Verdict(Measurement(Status.PASSED, TIMING, False), "", "", (), None)

    with ThreadPoolExecutor(1) as executor:
        assert tool._check(tool.measure_pairs(pairs, judge, executor, time.monotonic() + 60)) == 1
    is_bug = isinstance(error, RuntimeError)
    reason = "RuntimeError: at 12:14: acc is re-assigned to fp64" if is_bug else str(error)
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == sorted(
        [f"{NAMES[0]:34} not judged: {reason}", *(f"{name:34} passed" for name in NAMES[1:])]
    )
    # a bug keeps its traceback
    assert [record.exc_info is not None for record in caplog.records] == ([True] if is_bug else [])
