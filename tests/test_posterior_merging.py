"""Posteriors of skills are the same in any order of outcomes, retractions and merges."""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_posterior import RETRACTION, SKILLS, ask, step

from kmem.memory.store import Memory
from kmem.memory.team.exchange import merge_memory
from kmem.records import Bottleneck, Move, Signature

OUTCOMES = st.builds(
    step,
    number=st.integers(0, 3),
    skill=st.sampled_from(("good", "bad")),
    speedup=st.one_of(st.none(), st.floats(0.05, 20.0)),
    bottleneck=st.sampled_from((None, Bottleneck.LATENCY)),
    arch=st.sampled_from(("sm_80", "sm_90")),
    origin=st.sampled_from(("here", "team", "stranger")),
    versions=st.sampled_from(
        ({"torch": "2.11", "triton": "3.4.0"}, {"torch": "2.11", "triton": "3.6.0"})
    ),
    signature=st.floats(0.0, 50.0).map(lambda waves: Signature({"waves": waves})),
    move=st.sampled_from((Move.FIX, Move.TUNE, Move.SEED, Move.RECALL)),
)


#: Who saw an outcome, and who learnt that it was wrong: before or after, here, there, or both.
SEEN = st.tuples(
    OUTCOMES,
    st.sampled_from(("a", "b", "ab")),
    st.sampled_from(("", "", "a", "b", "ab")),
    st.booleans(),
)


@settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(SEEN, max_size=10), st.floats(0.0, 1.0))
def test_any_order_of_merging_gives_exactly_the_posteriors_of_one_memory_that_saw_everything(
    tmp_path_factory, seen: list, trust: float
) -> None:
    root = tmp_path_factory.mktemp("merge")
    paths = {name: root / f"{name}.db" for name in ("a", "b", "all")}
    for name, path in paths.items():
        with Memory(path) as memory:
            memory.contributors.set_trust("team", trust)
            for outcome, seen_by, wrong_by, warned in reversed(seen) if name == "all" else seen:
                wrong = [
                    replace(RETRACTION, outcome_hash=outcome.hash, origin=origin)
                    for origin in wrong_by
                    if name in (origin, "all")
                ]
                for retraction in wrong if warned else ():
                    memory.ledger.record_retraction(retraction)
                if name == "all" or name in seen_by:
                    memory.ledger.record(outcome)
                    ask(memory)  # some of it is in memory before the merge
                for retraction in wrong:
                    memory.ledger.record_retraction(retraction)
    with Memory(paths["all"]) as everything:
        expected = _knowledge(everything)
    with Memory(root / "ba.db") as fresh:
        fresh.contributors.set_trust("team", trust)
        for other in ("b", "a", "b", "a"):
            merge_memory(fresh, paths[other])
        assert _knowledge(fresh) == expected
    with Memory(paths["a"]) as a, Memory(paths["b"]) as b:
        ask(a), ask(b)
        merge_memory(a, paths["b"])
        merge_memory(b, paths["a"])
        assert _knowledge(a) == expected
        assert _knowledge(b) == expected


def _knowledge(memory: Memory) -> tuple:
    questions = (
        {},
        {
            "bottleneck": None,
            "operators": (),
            "arch": "sm_80",
            "versions": {"torch": "2.13", "triton": "3.9"},
        },
    )
    found = (
        [ask(memory, **question) for question in questions],
        memory.track_records.sums(),
        memory.track_records.winning_signatures(),
    )
    records = [memory.track_records.of_skill(skill) for skill in SKILLS]
    assert memory.track_records.rebuild().differing == 0
    with Memory(memory.path) as reopened:
        assert [ask(reopened, **question) for question in questions] == found[0]
    return *found, records
