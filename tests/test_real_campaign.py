"""A bench for real, with scripted models: killed, resumed and replayed.

tools/run_campaign.py does the same with twelve problems, and with a budget in dollars; that rows of
finished problems stay is held by test_campaign.py.
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
    # its first kernel has wrong values, so that every role is asked
    write_problems(tmp_path / "problems", ["sigmoid"])
    models = Models(held_at=("sigmoid", "optimiser"))
    with ScriptedServer(models.play) as server:
        campaign = Campaign(tmp_path, server)
        bench = campaign.start()
        wait_until_held(bench, models)
        assert kill_all(bench) > 1, "the run has a process of its own"
        assert campaign.rows() == []
        assert campaign.start().wait() == 0, campaign.log()
        asked = campaign.asked()
    assert [row["status"] for row in campaign.rows()] == ["passed"]
    assert sorted(campaign.winners()) == ["1_sigmoid"]
    assert sorted(asked.values())[-2:] == [1, 2], "only the question in flight was put twice"
    assert {(turn.wire, role_of(turn)) for turn in server.requests} == {
        ("anthropic", "diagnoser"),
        ("anthropic", "planner"),
        ("openai", "optimiser"),
        ("openai", "repairer"),
        ("openai", "reflector"),
    }
    assert campaign.replay() == {"1_sigmoid": []}
