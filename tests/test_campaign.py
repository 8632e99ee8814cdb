"""A campaign of twelve problems over both wires, with models that answer well, badly, or not.

The real SDKs ask a local server; the bench is killed and resumed, and every run replays
identically. Every model has its own way to answer, and all are told the same on either wire.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import scripted_campaign
from scripted_campaign import PROBLEMS, finished, run_id
from scripted_evaluator import fate, kernel_text, small_registry
from scripted_models import diagnosis_answer, edit_answer, repair_answer, seed_answer
from scripted_server import Reply, ScriptedServer, Turn
from test_llm_run import CLAIM, LINE, nothing_learnt, plan, role_of

from kmem.bench.results import read_rows
from kmem.host.syntax import parse_python
from kmem.interfaces import StopReason
from kmem.memory.store import Memory
from kmem.records import Status
from kmem.run.replay import replay_run

SEED_MS, EDIT_MS, REPAIRED_MS = 8.0, 4.0, 3.0
WRONG = kernel_text(1.0, fails=Status.WRONG_VALUES.value, note="fast and wrong")
CHATTER = (
    "Sure! Here is how I would do it: first, load the tile into shared memory, then use ```tensor "
    "cores```. I cannot call tools, but `class ModelNew` should look like the above. Good luck!"
)


def good(turn: Turn) -> Reply:
    """What a model answers that does as it is told, by role."""
    return {
        "generator": lambda: Reply(seed_answer(["relu"], kernel_text(SEED_MS))),
        "diagnoser": lambda: Reply(diagnosis_answer(claim=CLAIM)),
        "planner": lambda: plan("use wider loads"),
        "optimiser": lambda: Reply(edit_answer(kernel_text(EDIT_MS, 1.0), LINE)),
        "repairer": lambda: Reply(
            repair_answer("it fails: wrong_values", kernel_text(REPAIRED_MS, 1.0), "numeric", LINE)
        ),
        "reflector": nothing_learnt,
    }[role_of(turn)]()


def first_badly(turn: Turn, bad: Reply) -> Reply:
    """A bad answer to a first question, a good one when it is asked again."""
    is_again = sum(message.role == "user" for message in turn.messages) > 1
    return good(turn) if is_again else bad


def plain_file(turn: Turn) -> Reply:
    """Code in one block and nothing else, from the roles that write code."""
    sources = {"generator": kernel_text(SEED_MS), "optimiser": kernel_text(EDIT_MS, 1.0)}
    role = role_of(turn)
    if role not in sources:
        return good(turn)
    return first_badly(turn, Reply(f"```python\n{sources[role]}```\n"))


def code_before_json(turn: Turn) -> Reply:
    """Both blocks in the other order, with talk around them."""
    text = good(turn).text
    fields, _, code = text.partition("```python")
    if not code:
        return Reply(f"Let me think.\n{text}\nDone.")
    return Reply(f"Here it is.\n```python{code}\nand\n{fields}\nThat is all.")


def wrong_then_repaired(turn: Turn) -> Reply:
    if role_of(turn) == "optimiser":
        return Reply(edit_answer(WRONG, LINE))
    return good(turn)


def chatters(turn: Turn) -> Reply:
    """A small model that only talks when it is to write code, and does it when asked again."""
    return first_badly(turn, Reply(CHATTER))


def refuses_once(turn: Turn) -> Reply:
    return first_badly(turn, Reply("I cannot help with that.", StopReason.REFUSAL))


def is_cut_off_once(turn: Turn) -> Reply:
    return first_badly(turn, Reply(good(turn).text[:60], StopReason.LENGTH))


WAYS = (
    good,
    good,
    plain_file,
    plain_file,
    code_before_json,
    code_before_json,
    wrong_then_repaired,
    wrong_then_repaired,
    chatters,
    refuses_once,
    is_cut_off_once,
    good,
)


class Models:
    """Models by name: each is over its rate at its first question, and one holds to be killed."""

    def __init__(self) -> None:
        self.limited: set[str] = set()
        self.held = False

    def play(self, turn: Turn) -> Reply:
        number = [problem.name for problem in PROBLEMS].index(turn.model.removeprefix("model-of-"))
        if turn.model not in self.limited:
            self.limited.add(turn.model)
            return Reply(status=429, retry_after="0")
        if number == 3 and role_of(turn) == "optimiser" and not self.held:
            self.held = True
            return Reply("never read", delay_s=60)
        return WAYS[number](turn)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "sk-any")
    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")
    # it is killed, and its data with it
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    return


def campaign(home: Path, server: ScriptedServer) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, scripted_campaign.__file__, str(home), server.url],
        env={**os.environ, "PYTHONPATH": str(Path(scripted_campaign.__file__).parent)},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow(after=30)
@pytest.mark.usefixtures("keys")
def test_a_campaign_that_is_killed_goes_on_and_every_run_replays_identically(
    tmp_path: Path,
) -> None:
    models = Models()
    with ScriptedServer(models.play) as server:
        process = campaign(tmp_path, server)
        while not models.held and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        _, told = process.communicate()
        assert models.held, told
        assert sorted(finished(tmp_path)) == [run_id(problem) for problem in PROBLEMS[:3]]
        again = campaign(tmp_path, server)
        _, told = again.communicate()
        assert again.returncode == 0, told
        turns = [
            turn
            for turn, reply in zip(server.requests, server.replies, strict=False)
            if reply.status == 200
        ]
    rows = read_rows(tmp_path / "bench")
    assert [row.problem for row in rows] == [problem.name for problem in PROBLEMS]
    expected = [REPAIRED_MS if way is wrong_then_repaired else EDIT_MS for way in WAYS]
    assert [row.time_ms for row in rows] == expected
    asked = Counter((turn.model, turn.wire, turn.messages) for turn in turns)
    assert sorted(asked.values())[-2:] == [1, 2], "only the question in flight was put twice"
    with Memory(tmp_path / "kmem.db") as memory:
        for problem in PROBLEMS:
            check_that_only_code_was_tried(memory, problem.name)
            run = memory.runs.get(run_id(problem))
            found = replay_run(
                run, tmp_path / f"again-{problem.key}", small_registry(), memory, lambda event: None
            )
            assert found == [], problem.name
    check_what_was_sent(turns)


def check_that_only_code_was_tried(memory: Memory, name: str) -> None:
    for attempt in memory.runs.attempts(f"run-{name}"):
        source = attempt.candidate.kernel.source
        parse_python(source)
        assert fate(source)["TAKES_MS"], source
        assert CHATTER not in source


def check_what_was_sent(turns: list[Turn]) -> None:
    """Every role was asked over both wires, with the same words, of what it needs to know."""
    needed = {
        "generator": ("torch.relu(x) * 2.0", "bytes"),
        "diagnoser": ("TAKES_MS = 8.0", "redundant_traffic"),
        "planner": ("TAKES_MS = 8.0", "the row is read twice"),
        "optimiser": ("TAKES_MS = 8.0", "Change: use wider loads"),
        "repairer": ("fast and wrong", "it fails: wrong_values"),
        "reflector": ("+TAKES_MS = 4.0", "-TAKES_MS = 8.0"),
    }
    firsts: dict[tuple[str, str], set[str]] = defaultdict(set)
    for turn in turns:
        if len(turn.messages) == 2:
            firsts[role_of(turn), turn.wire].add(turn.user)
    for role, texts in needed.items():
        for wire in ("openai", "anthropic"):
            sent = firsts[role, wire]
            assert sent, f"the {role} was never asked over {wire}"
            for text in texts:
                assert any(text in user for user in sent), (role, wire, text)
        assert firsts[role, "openai"] & firsts[role, "anthropic"], role
    assert all(turn.stream for turn in turns)
