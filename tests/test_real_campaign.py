"""A bench of two problems for real, with scripted models: killed, resumed and replayed.

tools/run_campaign.py does the same with twelve, and with a budget in dollars.
"""

from pathlib import Path

import pytest
from real_campaign import Campaign, Models, kill_all, role_of, wait_until_held, write_problems
from scripted_server import ScriptedServer


@pytest.mark.slow
def test_a_bench_that_is_killed_pays_for_no_answer_twice_and_replays_identically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what is killed, and what is confined, cannot write its data
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    names = write_problems(tmp_path / "problems", 2)
    models = Models(held_at=(names[1], "optimiser"))
    with ScriptedServer(models.play) as server:
        campaign = Campaign(tmp_path, server)
        bench = campaign.start()
        wait_until_held(bench, models)
        assert kill_all(bench) > 1, "the run has a process of its own"
        assert [row["problem"] for row in campaign.rows()] == ["1_relu"]
        first = (tmp_path / "out" / "results.jsonl").read_text(encoding="utf-8")
        assert campaign.start().wait() == 0, campaign.log()
        asked = campaign.asked()
    assert (tmp_path / "out" / "results.jsonl").read_text(encoding="utf-8").startswith(first)
    assert [row["status"] for row in campaign.rows()] == ["passed", "passed"]
    assert sorted(campaign.winners()) == ["1_relu", "2_sigmoid"]
    assert sorted(asked.values())[-2:] == [1, 2], "only the question in flight was put twice"
    assert {(turn.wire, role_of(turn)) for turn in server.requests} == {
        ("anthropic", "diagnoser"),
        ("anthropic", "planner"),
        ("openai", "optimiser"),
        ("openai", "repairer"),
        ("openai", "reflector"),
    }
    assert campaign.replay() == {"1_relu": [], "2_sigmoid": []}
