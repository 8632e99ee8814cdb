"""Whole runs with language models: the real SDK, loop, memory and authors, and a scripted server.

In most runs only what measures is scripted (scripted_evaluator.py): a kernel is as fast as it says.
One run goes through compiler and judge.
"""

import itertools
import json
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import warm
from click.testing import CliRunner
from scripted_evaluator import (
    ScriptedEvaluator,
    fate,
    kernel_text,
    make_run,
    open_traced_session,
    small_registry,
    walk,
)
from scripted_models import answer, diagnosis_answer, edit_answer, repair_answer, seed_answer
from scripted_server import Play, Reply, ScriptedServer, Turn

from kmem.cli import cli
from kmem.errors import ReplayError
from kmem.explore.models.cost.budget import Spending
from kmem.explore.models.roles import ROLES
from kmem.memory.runs.conversations import RunArchive
from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect
from kmem.records import Attempt, Budget, ModelChoice, Move, RunResult, Status, Strategy
from kmem.run.replay import replay_run

KEY = "sk-this-is-secret"
CLAIM = {"metric": "traffic_ratio", "comparison": "<=", "number": 0.9, "relative": True}
LINE = "return torch.relu(x) * 2.0"
#: Three rewrites that a model knows, and what each makes of the time and of the traffic.
REWRITES = {"use wider loads": 0.5, "drop the masks": 0.8, "unroll the loop": 0.9}


@pytest.fixture(autouse=True)
def own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")


def role_of(turn: Turn) -> str:
    """Which role a question is for: each prompt begins with a line of its own."""
    return next(role.name for role in ROLES if turn.system.startswith(_FIRST_LINES[role.name]))


_PROMPTS = Path(__file__).parent.parent / "kmem" / "explore" / "models" / "prompts"
_FIRST_LINES = {
    role.name: (_PROMPTS / f"{role.name}.md").read_text().splitlines()[0] for role in ROLES
}


def plan(*changes: str, claim: dict = CLAIM, skill: str = "unaided") -> Reply:
    return Reply(
        answer(
            {
                "directions": [
                    {"skill": skill, "change": text, "reason": "fewer bytes", "claim": claim}
                    for text in changes
                ]
            }
        )
    )


def seed(takes_ms: float = 8.0, **more: object) -> Reply:
    return Reply(seed_answer(["relu"], kernel_text(takes_ms, **more)))


def edit(source: str) -> Reply:
    return Reply(edit_answer(source, LINE))


def nothing_learnt() -> Reply:
    return Reply(answer({"lessons": []}))


def shown_kernel(turn: Turn) -> str:
    """The kernel a prompt asks to change."""
    return next(
        block
        for block in re.findall(r"```python\n(.*?)```", turn.user, re.DOTALL)
        if "TAKES_MS" in block
    )


def asked_change(turn: Turn) -> str:
    return re.findall(r"^Change: (.*)$", turn.user, re.MULTILINE)[-1]


def script(**by_role: object) -> Play:
    """A model that answers by role: with a Reply, or with what a function makes of the turn.

    Roles that are not named are answered soundly.
    """
    usual = {
        "generator": seed(),
        "diagnoser": Reply(diagnosis_answer(claim=CLAIM)),
        "reflector": nothing_learnt(),
    }

    def play(turn: Turn) -> Reply:
        reply = {**usual, **by_role}[role_of(turn)]
        return reply(turn) if callable(reply) else reply

    return play


def run_with(
    home: Path, play: Play, *, strategy: Strategy = Strategy.BANDIT, **budget: object
) -> tuple[RunResult, list[Attempt], ScriptedServer]:
    with ScriptedServer(play) as server, Memory(home / "kmem.db") as memory:
        result, _ = walk(
            make_run(home, base_url=server.url_openai, strategy=strategy, **budget), memory
        )
        return result, memory.runs.attempts("r1"), server


def roles(server: ScriptedServer) -> Counter[str]:
    return Counter(role_of(turn) for turn in server.requests)


def rewriter(turn: Turn) -> Reply:
    """Applies the rewrite asked for to the kernel shown.

    A rewrite that the kernel already has changes nothing but a note.
    """
    told, change = fate(shown_kernel(turn)), asked_change(turn)
    done = told["NOTE"].split(", ") if told["NOTE"] else []
    gain = 1.0 if change in done else REWRITES[change]
    return edit(
        kernel_text(
            told["TAKES_MS"] * gain, told["TRAFFIC"] * gain, note=", ".join([*done, change])
        )
    )


# ---- search


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("strategy", [Strategy.BANDIT, Strategy.GREEDY, Strategy.BEAM])
def test_three_known_rewrites_are_applied_in_order_of_measured_benefit(
    strategy: Strategy, tmp_path: Path
) -> None:
    # The model names them in the wrong order; greedy tries one a round.
    rounds = 8 if strategy is Strategy.GREEDY else 4
    play = script(
        planner=plan("unroll the loop", "drop the masks", "use wider loads"), optimiser=rewriter
    )
    result, attempts, _ = run_with(tmp_path, play, strategy=strategy, rounds=rounds)
    told = fate(result.best.candidate.kernel.source)
    assert told["TAKES_MS"] == pytest.approx(8.0 * 0.5 * 0.8 * 0.9)
    if strategy is Strategy.BANDIT:
        assert told["NOTE"] == "use wider loads, drop the masks, unroll the loop"
    hashes = [attempt.candidate.kernel.hash for attempt in attempts]
    assert len(hashes) == len(set(hashes))


def test_a_beam_goes_on_from_several_kernels_in_distinct_directions_without_duplicates(
    tmp_path: Path,
) -> None:
    gains = {"wider": 0.8, "fewer masks": 0.7, "never reached": 0.1}
    skills = {
        "wider": "widen-vector-access",
        "fewer masks": "drop-masks-when-even",
        "never reached": "more-loads-in-flight",
    }

    def offered(turn: Turn) -> Reply:
        entries = [
            {"skill": skills[change], "change": change, "reason": "r", "claim": CLAIM}
            for change in gains
        ]
        return Reply(answer({"directions": entries}))

    def either_order(turn: Turn) -> Reply:
        """Two changes come out the same in either order: one of the two kernels is a duplicate."""
        told = fate(shown_kernel(turn))["NOTE"]
        done = sorted([*filter(None, told.split(", ")), asked_change(turn)])
        gain = math.prod(gains[change] for change in done)
        return edit(kernel_text(8.0 * gain, 2.0 * gain, note=", ".join(done)))

    play = script(planner=offered, optimiser=either_order)
    _, attempts, server = run_with(
        tmp_path, play, strategy=Strategy.BEAM, rounds=2, candidates_per_round=4
    )
    with Memory(tmp_path / "kmem.db") as memory:
        plans = {entry.round: entry.plan for entry in memory.runs.plans("r1")}
        diagnosed = Counter(entry.round for entry in memory.runs.diagnoses("r1"))
    notes = {
        attempt.candidate.kernel.hash: fate(attempt.candidate.kernel.source)["NOTE"]
        for attempt in attempts
    }
    planned = [(notes[task.parent], task.instruction, task.samples) for task in plans[2].tasks]
    assert planned == [
        ("fewer masks", "wider", 1),
        ("fewer masks", "fewer masks", 1),
        ("wider", "wider", 1),
        ("wider", "fewer masks", 1),
    ]
    assert diagnosed[2] == 3, (
        "the third kernel, the seed, is looked at too, but there are samples for two directions of "
        "two"
    )
    assert roles(server)["optimiser"] == 2 + 4
    made = [
        notes[attempt.candidate.kernel.hash]
        for attempt in attempts
        if attempt.candidate.task.move is Move.FIX
    ]
    assert sorted(made) == [
        "fewer masks",
        "fewer masks, fewer masks",
        "fewer masks, wider",
        "wider",
        "wider, wider",
    ]


@pytest.mark.slow
def test_rewrites_whose_gains_differ_much_are_all_applied_whatever_the_seed(tmp_path: Path) -> None:
    """Times add up as on a GPU: a copy of the input, two kernels, fourfold with small blocks."""
    changes = ["fuse the kernels", "read the input in place", "use larger blocks"]

    def takes_ms(done: list[str]) -> float:
        kernel = 0.6 if changes[2] in done else 2.3
        return (0.0 if changes[1] in done else 0.6) + (kernel if changes[0] in done else 2 * kernel)

    def apply(turn: Turn) -> Reply:
        done = [*filter(None, fate(shown_kernel(turn))["NOTE"].split(", ")), asked_change(turn)]
        return edit(kernel_text(takes_ms(done), takes_ms(done) / 2, note=", ".join(done)))

    play = script(
        generator=seed(takes_ms([]), traffic=takes_ms([]) / 2),
        planner=plan(*changes),
        optimiser=apply,
    )
    for number in range(4):
        with ScriptedServer(play) as server, Memory(tmp_path / f"{number}.db") as memory:
            run = make_run(tmp_path / str(number), base_url=server.url_openai, rounds=3)
            result, _ = walk(replace(run, seed=number), memory)
        assert fate(result.best.candidate.kernel.source)["TAKES_MS"] == 0.6


def test_best_of_n_writes_independent_first_kernels_and_nothing_else(tmp_path: Path) -> None:
    play = script(generator=lambda turn: seed(9.0 - 0.1 * turn.number, note=str(turn.number)))
    result, attempts, server = run_with(
        tmp_path, play, strategy=Strategy.BEST_OF_N, rounds=2, candidates_per_round=3
    )
    with Memory(tmp_path / "kmem.db") as memory:
        assert (
            replay_run(
                memory.runs.get("r1"),
                tmp_path / "again",
                small_registry(),
                memory,
                lambda event: None,
            )
            == []
        )
    assert set(roles(server)) <= {"generator", "reflector"}
    assert {(attempt.round, attempt.candidate.task.move) for attempt in attempts} == {
        (0, Move.SEED)
    }
    assert len(attempts) >= 9
    assert "best-of-n" in result.reason
    assert not any(
        "TAKES_MS" in turn.user for turn in server.requests if role_of(turn) == "generator"
    ), "no kernel is shown"


def test_an_idea_whose_claim_was_falsified_without_gain_is_not_tried_again(tmp_path: Path) -> None:
    def slower(turn: Turn) -> Reply:
        return edit(kernel_text(8.5, 2.0, note=str(turn.number)))

    result, attempts, server = run_with(
        tmp_path, script(planner=plan("use wider loads"), optimiser=slower), rounds=4
    )
    assert roles(server)["optimiser"] == 1
    assert result.reason == "everything proposed is refuted in this run"
    with Memory(tmp_path / "kmem.db") as memory:
        (lesson,) = memory.runs.lessons("r1")
        assert len(memory.runs.profiles("r1")) == 2, (
            "the base, and one more: the fastest attempt at the fix, which did not win"
        )
        (veto,) = memory.runs.plans("r1")[-1].plan.vetoes
        (settlement,) = memory.ledger.settlements()
        settled = memory.ledger.find(settlement.outcome_hash)
        assert (settled.source_hash, settlement.held) == (lesson.kernel, False)
    assert "traffic_ratio <= 0.9x was falsified (2 before, 2 after)" in lesson.text
    assert (veto.author, veto.skill, veto.instruction) == ("llm", "unaided", "use wider loads")
    later = [turn.user for turn in server.requests if role_of(turn) == "planner"][-1]
    assert "falsified" in later, "the planner is told"
    assert attempts[-1].round == 1
    shown = CliRunner(env={"KMEM_DB": str(tmp_path / "kmem.db")}).invoke(
        cli, ["why", "r1", "1"], obj=small_registry()
    )
    assert "Learnt: unaided: the claim traffic_ratio <= 0.9x was falsified" in shown.output


def test_the_history_is_in_every_prompt_after_going_back_to_the_base(tmp_path: Path) -> None:
    def worse(turn: Turn) -> Reply:
        return edit(kernel_text(9.0 + turn.number, 2.0, note=f"attempt {turn.number}"))

    play = script(planner=plan("first idea", "second idea"), optimiser=worse)
    _, attempts, server = run_with(tmp_path, play, rounds=2)
    tried = [attempt.candidate.kernel.hash[:8] for attempt in attempts if attempt.round == 1]
    assert tried
    prompts = [turn.user for turn in server.requests if role_of(turn) in ("diagnoser", "planner")][
        2:
    ]
    assert prompts, "there was a second round, from the same base"
    assert all(kernel in prompt for prompt in prompts for kernel in tried)


# ---- repair


def test_a_failing_candidate_that_is_repaired_and_wins_is_stored_as_won(tmp_path: Path) -> None:
    broken = kernel_text(4.0, fails="wrong_values")

    def repair(turn: Turn) -> Reply:
        return Reply(
            repair_answer(
                "it fails: wrong_values", kernel_text(4.0, 1.0), issue="numeric", anchor=LINE
            )
        )

    play = script(
        planner=plan("wider", skill="widen-vector-access"), optimiser=edit(broken), repairer=repair
    )
    result, attempts, server = run_with(tmp_path, play, rounds=1)
    winner = result.best.candidate
    assert (winner.task.move, winner.task.skill, winner.task.author) == (
        Move.REPAIR,
        "widen-vector-access",
        "llm",
    )
    assert [attempt.measurement.status for attempt in attempts[-2:]] == [
        Status.WRONG_VALUES,
        Status.PASSED,
    ]
    assert attempts[-1].parent_ms == 8.0, (
        "it is compared with the parent kernel, not with the failed one"
    )
    assert roles(server)["repairer"] == 1
    with Memory(tmp_path / "kmem.db") as memory:
        won = [outcome for outcome in memory.ledger.outcomes() if outcome.ratio is not None]
        assert [(outcome.skill, outcome.move, outcome.ratio) for outcome in won] == [
            # the first kernel, verified early; it was written without a skill too
            ("unaided", Move.SEED, 1.25),
            ("widen-vector-access", Move.REPAIR, 2.5),
        ]


def test_repairs_end_after_three_and_the_run_goes_back_to_the_base(tmp_path: Path) -> None:
    def still_wrong(turn: Turn) -> Reply:
        text = kernel_text(4.0, fails="wrong_values", note=f"try {turn.number}")
        return Reply(repair_answer("it fails: wrong_values", text, issue="numeric", anchor=LINE))

    broken = kernel_text(4.0, fails="wrong_values")
    play = script(planner=plan("wider"), optimiser=edit(broken), repairer=still_wrong)
    result, attempts, server = run_with(tmp_path, play, rounds=3)
    assert roles(server)["repairer"] == 3
    assert [attempt.candidate.task.move for attempt in attempts if attempt.round == 1] == [
        Move.FIX,
        *[Move.REPAIR] * 3,
    ]
    assert result.best.measurement.latency_ms == 8.0
    with Memory(tmp_path / "kmem.db") as memory:
        (veto,) = memory.runs.plans("r1")[-1].plan.vetoes
    assert veto.parent == result.best.candidate.kernel.hash
    assert "3 repairs did not help" in veto.reason


# ---- budgets


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        (0, "budget for language models is spent"),
        (40_000, "budget for"),
        (10**6, "rounds are used up"),
    ],
)
def test_a_budget_of_tokens_is_never_exceeded_and_what_was_written_is_still_judged(
    tokens: int, reason: str, tmp_path: Path
) -> None:
    play = script(planner=plan(*REWRITES), optimiser=rewriter)
    result, attempts, server = run_with(tmp_path, play, tokens=tokens)
    with Memory(tmp_path / "kmem.db") as memory:
        used = [
            record.completion.input_tokens + record.completion.output_tokens
            for record in memory.conversations.all("r1")
        ]
    assert len(used) == len(server.requests)
    assert sum(used) <= tokens
    assert reason in result.reason
    assert bool(attempts) is bool(tokens)
    assert (result.best is not None) is bool(tokens)


def test_a_budget_of_dollars_is_never_exceeded_and_holds_in_the_replay_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    price = {
        "model": "scripted-large",
        "usd_per_million_input": 1.5,
        "usd_per_million_output": 6,
        "source": "a test",
        "date": "2026-11-21",
    }
    (tmp_path / "prices.json").write_text(json.dumps({"prices": [price]}))
    monkeypatch.setenv("KMEM_PRICES", str(tmp_path / "prices.json"))
    result, _, server = run_with(
        tmp_path, script(planner=plan(*REWRITES), optimiser=rewriter), usd=0.07
    )
    assert "budget for language models is spent" in result.reason
    with Memory(tmp_path / "kmem.db") as memory:
        records = memory.conversations.all("r1")
        assert sum(record.usd for record in records) <= 0.07
        assert len(records) == len(server.requests) > 3
        assert (
            replay_run(
                memory.runs.get("r1"),
                tmp_path / "again",
                small_registry(),
                memory,
                lambda event: None,
            )
            == []
        )


def test_when_the_minutes_are_over_nothing_more_is_asked(tmp_path: Path) -> None:
    broken = kernel_text(4.0, fails="wrong_values")
    play = script(planner=plan("wider"), optimiser=edit(broken))
    with ScriptedServer(play) as server, Memory(tmp_path / "kmem.db") as memory:
        run = make_run(tmp_path, base_url=server.url_openai)

        def evaluator(session: object) -> ScriptedEvaluator:
            made = ScriptedEvaluator(session, clock=lambda: 100.0 if len(made.judged) < 2 else -1.0)
            return made

        result, _ = walk(run, memory, evaluator)
        assert roles(server)["repairer"] == 0
        assert result.reason == "the 60 minutes are used up"
        assert (
            replay_run(run, tmp_path / "again", small_registry(), memory, lambda event: None) == []
        )


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [Strategy.BANDIT, Strategy.BEAM, Strategy.BEST_OF_N])
def test_whichever_question_the_minutes_end_at_the_run_says_so_and_its_replay_is_identical(
    strategy: Strategy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # dozens of replays
    monkeypatch.setattr("kmem.run.replay.open_session", lambda *args: open_traced_session(args[-1]))
    broken = kernel_text(3.9, fails="crashed")

    def breaks_once(turn: Turn) -> Reply:
        return edit(broken) if asked_change(turn) == "drop the masks" else rewriter(turn)

    def learn(turn: Turn) -> Reply:
        named = re.findall(r"^### (\w{8}) ", turn.user, re.MULTILINE)
        return Reply(
            answer(
                {"lessons": [{"kernel": named[0], "text": "as expected", "worth_a_skill": False}]}
            )
        )

    soundly = script(
        generator=lambda turn: (
            seed(9.0 - 0.1 * turn.number, note=str(turn.number))
            if strategy is Strategy.BEST_OF_N
            else seed()
        ),
        planner=plan(*REWRITES),
        optimiser=breaks_once,
        reflector=learn,
        repairer=lambda turn: Reply(
            repair_answer("it fails: crashed", kernel_text(3.9), issue="crash", anchor=LINE)
        ),
    )
    ended_at = Counter()
    for last in itertools.count():  # so many questions are answered in time
        minutes_left = threading.Event()
        minutes_left.set()

        def play(
            turn: Turn, last: int = last, minutes_left: threading.Event = minutes_left
        ) -> Reply:
            if turn.number < last:
                return soundly(turn)
            minutes_left.clear()
            return Reply("x" * 500, drop_after=1)

        home = tmp_path / str(last)
        with ScriptedServer(play) as server, Memory(tmp_path / f"{last}.db") as memory:
            run = make_run(
                home,
                base_url=server.url_openai,
                strategy=strategy,
                rounds=1,
                candidates_per_round=4,
            )

            def evaluator(
                session: object, minutes_left: threading.Event = minutes_left
            ) -> ScriptedEvaluator:
                return ScriptedEvaluator(
                    session, clock=lambda: 100.0 if minutes_left.is_set() else -1.0
                )

            result, _ = walk(run, memory, evaluator)
            assert (
                replay_run(run, home / "again", small_registry(), memory, lambda event: None) == []
            )
        if len(server.requests) <= last:
            break
        assert result.reason.startswith("the 60 minutes are used up")
        ended_at[role_of(server.requests[last])] += 1
    assert "minutes" not in result.reason
    assert set(ended_at) == (
        {"generator", "reflector"}
        if strategy is Strategy.BEST_OF_N
        else {role.name for role in ROLES}
    )


def test_an_answer_that_stays_lost_is_no_attempt_and_the_run_goes_on(tmp_path: Path) -> None:
    def play_edit(turn: Turn) -> Reply:
        return (
            Reply("x" * 500, drop_after=1)
            if asked_change(turn) == "use wider loads"
            else rewriter(turn)
        )

    play = script(planner=plan("use wider loads", "drop the masks"), optimiser=play_edit)
    result, attempts, server = run_with(tmp_path, play, rounds=1, tokens=10**6)
    assert result.best.measurement.latency_ms == pytest.approx(8.0 * 0.8)
    assert [attempt.measurement.status for attempt in attempts] == [Status.PASSED] * 2
    assert [attempt.candidate.task.instruction for attempt in attempts[1:]] == ["drop the masks"]
    assert roles(server)["optimiser"] == 3 + 1, "it was asked for three times"
    with Memory(tmp_path / "kmem.db") as memory:
        archive = RunArchive(memory.path, "r1")
        assert [question.key.role for question in archive.unanswered()] == ["optimiser"] * 2
        (row,) = [row for row in Spending(Budget(), archive).usage() if row.role == "optimiser"]
        assert (row.calls, row.uncounted) == (4, 3)
        assert (
            replay_run(
                memory.runs.get("r1"),
                tmp_path / "again",
                small_registry(),
                memory,
                lambda event: None,
            )
            == []
        )


@pytest.mark.slow
def test_a_run_over_the_anthropic_wire_is_replayed_with_its_lessons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)

    def learn(turn: Turn) -> Reply:
        named = re.findall(r"^### (\w{8}) ", turn.user, re.MULTILINE)
        return Reply(
            answer(
                {
                    "lessons": [
                        {"kernel": named[0], "text": f"lesson {len(named)}", "worth_a_skill": False}
                    ]
                }
            )
        )

    play = script(planner=plan(*REWRITES), optimiser=rewriter, reflector=learn)
    with ScriptedServer(play, key=KEY) as server, Memory(tmp_path / "kmem.db") as memory:
        models = (ModelChoice("any", "anthropic", "scripted-large", server.url_anthropic),)
        run = replace(make_run(tmp_path, base_url=""), models=models)
        result, _ = walk(run, memory)
        assert {turn.wire for turn in server.requests} == {"anthropic"}
        assert all(turn.system and turn.max_output_tokens for turn in server.requests)
        used = [record.completion for record in memory.conversations.all("r1")]
        assert len(used) == len(server.requests) and all(
            each.input_tokens and each.output_tokens for each in used
        )
        assert {lesson.text for lesson in memory.runs.lessons("r1")} >= {"lesson 1"}
        assert (
            replay_run(run, tmp_path / "again", small_registry(), memory, lambda event: None) == []
        )
    assert "lesson 1" in [turn.user for turn in server.requests if role_of(turn) == "planner"][-1]
    assert result.best.measurement.latency_ms < 4.0


def test_what_a_skill_has_earned_is_told_as_the_ledger_has_it(tmp_path: Path) -> None:
    play = script(
        planner=plan("wider", skill="widen-vector-access"),
        optimiser=lambda turn: edit(kernel_text(4.0 / turn.number, 2.0)),
    )
    _, _, server = run_with(tmp_path, play, rounds=2)
    first, second = [turn.user for turn in server.requests if role_of(turn) == "planner"][:2]
    assert "## Skill: widen-vector-access" in first
    assert "Track record: never tried yet" in first
    told = re.findall(r"## Skill: widen-vector-access\n.*\nTrack record: (.*)", second)
    assert len(told) == 1
    assert re.fullmatch(
        r"on sm_90 1 tried, 1 passed; faster in 1 of 1 comparisons with what does without it "
        r"\(\d+\.\d\dx in the geometric mean\); 0 of 1 predictions held",
        told[0],
    )
    with Memory(tmp_path / "kmem.db") as memory:
        assert (
            replay_run(
                memory.runs.get("r1"),
                tmp_path / "again",
                small_registry(),
                memory,
                lambda event: None,
            )
            == []
        )


def test_a_model_whose_answers_are_empty_ends_with_a_line_that_names_the_remedy(
    tmp_path: Path,
) -> None:
    result, attempts, server = run_with(tmp_path, script(generator=Reply("")), rounds=1)
    assert attempts == [], "an answer without code is none"
    assert roles(server) == {"generator": 2 * 2 * 3}, (
        "each of three sizes in two rounds, with a re-ask"
    )
    assert result.reason == (
        "the rounds are used up; scripted-large gave no usable answer to 6 questions as generator: "
        "the first was empty; "
        "choose another model with -m"
    )
    with Memory(tmp_path / "kmem.db") as memory:
        assert (
            replay_run(
                memory.runs.get("r1"),
                tmp_path / "again",
                small_registry(),
                memory,
                lambda event: None,
            )
            == []
        )


# ---- kill, resume, replay


def start_walk(home: Path, server: ScriptedServer) -> subprocess.Popen:
    """A run in a process of its own."""
    code = Path(__file__).with_name("scripted_evaluator.py")
    return subprocess.Popen(
        [sys.executable, str(code), str(home), server.url_openai], stderr=subprocess.PIPE, text=True
    )


def wait_until(process: subprocess.Popen, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not is_so() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert is_so(), process.stderr.read()


@pytest.mark.slow
def test_ctrl_c_ends_the_waits_of_all_writers_and_books_nothing_for_them(tmp_path: Path) -> None:
    play = script(planner=plan(*REWRITES), optimiser=Reply(status=429, retry_after="500"))
    with ScriptedServer(play) as server, Memory(tmp_path / "kmem.db") as memory:
        process = start_walk(tmp_path, server)
        wait_until(
            process,
            lambda: len([turn for turn in server.requests if role_of(turn) == "optimiser"]) >= 2,
        )
        archive = RunArchive(memory.path, "r1")
        assert {question.key.role for question in archive.unanswered()} == {"optimiser"}
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert said.rstrip().endswith("KeyboardInterrupt")
        assert archive.unanswered() == [], "the server took none of these questions"


@pytest.mark.slow
def test_a_run_killed_in_mid_call_resumes_and_asks_only_what_was_not_answered(
    tmp_path: Path,
) -> None:
    holding = []

    def hold_the_first_edit(turn: Turn) -> Reply:
        if not holding:
            holding.append(turn)
            return Reply("never read", delay_s=60)
        return rewriter(turn)

    def learn(turn: Turn) -> Reply:
        (named,) = re.findall(r"^### (\w{8}) ", turn.user, re.MULTILINE)
        return Reply(
            answer(
                {
                    "lessons": [
                        {"kernel": named, "text": "masks cost nothing here", "worth_a_skill": False}
                    ]
                }
            )
        )

    play = script(planner=plan("use wider loads"), optimiser=hold_the_first_edit, reflector=learn)
    with ScriptedServer(play) as server:
        process = start_walk(tmp_path, server)
        wait_until(process, lambda: bool(holding))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        before = roles(server)
        with Memory(tmp_path / "kmem.db") as memory:
            kept = memory.runs.attempts("r1")
            lessons = memory.runs.lessons("r1")
            archive = RunArchive(memory.path, "r1")
            assert [question.key.role for question in archive.unanswered()] == ["optimiser"], (
                "it may have been charged"
            )
            run = make_run(tmp_path, base_url=server.url_openai)
            with pytest.raises(ReplayError, match="kmem runs resume r1"):
                replay_run(run, tmp_path / "early", small_registry(), memory, lambda event: None)
            result, _ = walk(run, memory)
            assert memory.runs.attempts("r1")[: len(kept)] == kept
            assert memory.runs.lessons("r1")[: len(lessons)] == lessons
            assert len(archive.unanswered()) == 1, (
                "it was asked again, and the first time may have been charged all the same"
            )
            assert sum(row.uncounted for row in Spending(Budget(), archive).usage()) == 1
        new = roles(server) - before
        first_round = [turn for turn in server.requests if role_of(turn) == "optimiser"][:2]
    assert kept and lessons, "the first round had been measured, and had taught something"
    resumed = [turn for turn in server.requests if role_of(turn) == "diagnoser"][-1].user
    assert lessons[0].text in resumed, "a lesson of before is told after"
    assert new["generator"] == 0, "what was answered is found, not asked again"
    assert first_round[0].messages == first_round[1].messages, (
        "the question in flight is asked again, word for word"
    )
    assert result.best.measurement.latency_ms == 4.0


def test_a_replay_is_identical_and_names_what_was_tampered_with(tmp_path: Path) -> None:
    broken = kernel_text(3.9, fails="crashed")
    rewrites = iter([edit(broken)])
    play = script(
        planner=plan(*REWRITES),
        optimiser=lambda turn: next(rewrites, None) or rewriter(turn),
        repairer=lambda turn: Reply(
            repair_answer("it fails: crashed", kernel_text(3.9), issue="crash", anchor=LINE)
        ),
    )
    run_with(tmp_path, play, rounds=3)  # the server is gone afterwards: nothing can be asked
    runner = CliRunner(env={"KMEM_DB": str(tmp_path / "kmem.db")})

    def replay(name: str) -> tuple[int, dict]:
        result = runner.invoke(
            cli,
            ["runs", "replay", "r1", "--json", "--out", str(tmp_path / name)],
            obj=small_registry(),
        )
        return result.exit_code, json.loads(result.stdout)

    code, told = replay("again")
    assert (code, told["identical"], told["differences"]) == (0, True, [])
    assert (tmp_path / "again" / "best_kernel.py").read_text() == (
        tmp_path / "run" / "best_kernel.py"
    ).read_text()
    with sqlite3.connect(tmp_path / "kmem.db") as db:
        db.execute(
            "update completions set record = replace(record, 'of kmem', 'of somebody') where role "
            "= 'planner' and round = 1"
        )
        db.execute(
            "update completions set record = replace(record, 'in kmem', 'in another') where role = "
            "'planner' and round = 1"
        )
    code, told = replay("tampered")
    assert code == 1
    assert any(
        "the prompt of the question to the planner in round 1" in line
        for line in told["differences"]
    )
    with sqlite3.connect(tmp_path / "kmem.db") as db:
        db.execute("delete from completions where role = 'planner' and round = 1")
    code, told = replay("missing")
    assert code == 1
    assert any(
        "planner in round 1" in line and "was not then" in line for line in told["differences"]
    )


def test_secrets_are_written_nowhere_and_a_round_is_shown_whole(tmp_path: Path) -> None:
    _, attempts, _ = run_with(
        tmp_path, script(planner=plan(*REWRITES), optimiser=rewriter), rounds=1
    )
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert KEY.encode() not in file.read_bytes(), file
    runner = CliRunner(env={"KMEM_DB": str(tmp_path / "kmem.db")})
    shown = runner.invoke(cli, ["runs", "show", "r1", "--round", "1"], obj=small_registry()).output
    for expected in (
        "==== planner",
        "---- system",
        "---- answer (end",
        attempts[-1].candidate.kernel.source.strip(),
        "Profile of kernel",
    ):
        assert expected in shown
    data = json.loads(
        runner.invoke(
            cli, ["runs", "show", "r1", "--round", "1", "--json"], obj=small_registry()
        ).output
    )
    assert {entry["key"]["role"] for entry in data["conversations"]} >= {
        "diagnoser",
        "planner",
        "optimiser",
    }
    assert data["attempts"] and data["profiles"] and data["verdicts"]
    listed = runner.invoke(cli, ["runs", "show", "r1"], obj=small_registry()).output
    edited = next(attempt.candidate.kernel for attempt in attempts if attempt.round == 1)
    assert f" round 1 {edited.hash[:8]} from {edited.parent[:8]} fix " in listed
    assert (
        runner.invoke(cli, ["runs", "show", "r1", "--round", "9"], obj=small_registry()).exit_code
        == 1
    )


# ---- with the compiler and the judge

PROBLEM = """import torch
SIZE = 512
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0
def get_inputs():
    return [torch.randn(SIZE, 1024)]
"""
REAL_KERNEL = """import torch
import triton
import triton.language as tl


@triton.jit
def relu_twice_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places, mask=places < n)
    tl.store(y_ptr + places, tl.where(x < 0, 0.0, x) * 2.0, mask=places < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        relu_twice_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y
"""


@pytest.mark.slow
def test_from_a_problem_to_a_repaired_winner_through_compiler_and_judge(tmp_path: Path) -> None:
    broken = REAL_KERNEL.replace("tl.where", "tl.were")
    anchor = "x = tl.load(x_ptr + places, mask=places < n)"
    play = script(
        generator=Reply(seed_answer(["relu"], broken)),
        repairer=Reply(repair_answer("tl.were", REAL_KERNEL, anchor=anchor)),
        reflector=Reply(""),
    )
    problem = tmp_path / "relu_twice.py"
    problem.write_text(PROBLEM)
    environment = {
        name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"
    } | {"KMEM_DB": str(tmp_path / "kmem.db")}

    words = [
        "optimize",
        str(problem),
        "--target",
        "h200",
        "--author",
        "llm",
        "-m",
        "openai/scripted-large",
        "--tokens",
        "200000",
    ]
    with ScriptedServer(play, key=KEY) as server:
        words += [
            "--base-url",
            server.url_openai,
            "--rounds",
            "0",
            "--out",
            str(tmp_path / "run"),
            "--json",
        ]
        done = warm.run(*words, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["status"] == "passed"
    assert found["authors"] == ["llm"]
    assert (
        "gave no usable answer to 1 question as reflector: the first was empty; choose another "
        "model with -m.\n"
    ) in done.stderr
    assert (tmp_path / "run" / "best_kernel.py").read_text() == REAL_KERNEL
    assert (tmp_path / "run" / "top_kernels" / "1.py").read_text() == REAL_KERNEL
    assert roles(server)["repairer"] == 1, done.stderr
    used = {row["role"]: row for row in found["usage"]}
    assert used["repairer"]["calls"] == 1
    assert used["total"]["input_tokens"] == sum(turn.input_tokens for turn in server.requests)
    assert "| repairer | scripted-large | 1 |" in (tmp_path / "run" / "report.md").read_text()
    with Memory(tmp_path / "kmem.db") as memory:
        run = memory.runs.get(found["run"])
        assert (
            replay_run(
                run, tmp_path / "again", collect(build_plugin_manager()), memory, lambda event: None
            )
            == []
        )
