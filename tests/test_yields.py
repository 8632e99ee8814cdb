"""What a run expects of its next measurements, and when it ends for that."""

import math
from dataclasses import replace

import pytest
from test_memory_store import make_outcome

from kmem.memory.ledger.descents import recall_descents
from kmem.memory.ledger.graphs import GraphKey
from kmem.memory.ledger.posteriors import Trust
from kmem.memory.store import Memory
from kmem.orchestrate.yields import WEIGHTS, Here, expected_gain, likeness, share_of_a_round
from kmem.records import Contract, Descent, Move

FLAT = Descent("other", "s", (64, 64), ("rows",), (2.0, *(1.0,) * 35), is_own=True)
FALLING = replace(FLAT, best_ms=tuple(2.0 ** (1 - step / 12) for step in range(36)))
HERE = Here("s", (64, 64), ("rows",), (1.0,) * 12, in_first_round=False)
ROUND = share_of_a_round(12, 12)


def test_a_search_like_this_one_that_gained_nothing_more_ends_the_run() -> None:
    assert pytest.approx(math.log(1.005)) == ROUND
    assert expected_gain(HERE, [FLAT], 12, 12) < ROUND < expected_gain(HERE, [FALLING], 12, 12)
    assert expected_gain(HERE, [], 12, 12) is None, "a new problem gets the full search"
    short = replace(FLAT, best_ms=(2.0, 1.0))
    assert expected_gain(HERE, [short], 12, 12) is None, "it says nothing of what it did not try"
    assert expected_gain(replace(HERE, best_ms=(None,) * 12), [FLAT], 12, 12) is None


def test_the_more_alike_a_graph_the_more_it_tells() -> None:
    others = [
        FLAT,
        replace(FLAT, sizes=(256, 256)),
        replace(FLAT, structure="another"),
        replace(FLAT, structure="another", recipes=("another",)),
    ]
    told = [likeness(HERE, each) for each in others]
    assert told == sorted(told, reverse=True)
    assert (told[0], told[3]) == (1.0, WEIGHTS.other_graph)
    near, far = FLAT, replace(FALLING, structure="another", recipes=("another",))
    gain = expected_gain(HERE, [near, far], 12, 12)
    assert expected_gain(HERE, [near], 12, 12) < gain < expected_gain(HERE, [far], 12, 12)


def test_a_search_that_ended_before_tells_by_its_last_measurements() -> None:
    ahead = replace(HERE, best_ms=(1.0,) * 24)
    for end in (20, 24):
        flat, falling = (replace(each, best_ms=each.best_ms[:end]) for each in (FLAT, FALLING))
        assert expected_gain(ahead, [flat], 12, 12) < expected_gain(ahead, [falling], 12, 12)
    short = replace(FLAT, best_ms=(1.0,) * 12)
    assert expected_gain(ahead, [short], 12, 12) is None, (
        "it was ended as early as this one could be"
    )


def test_the_prior_alone_is_worth_a_round_and_yields_to_what_is_alike_first() -> None:
    assert WEIGHTS.unknown_gain > ROUND
    little = replace(FLAT, best_ms=(*[1.003] * 12, *[1.0] * 24))
    unlike = replace(little, structure="another", recipes=("another",))
    assert expected_gain(HERE, [little], 12, 12) < ROUND < expected_gain(HERE, [unlike], 12, 12)
    assert expected_gain(HERE, [unlike] * 12, 12, 12) < ROUND, "many that agree tell something"


def test_many_strangers_together_count_no_more_than_one_search_of_ones_own() -> None:
    poison = [replace(FLAT, is_own=False) for _ in range(1000)]
    own = expected_gain(HERE, [FALLING, FALLING], 12, 12)
    poisoned = expected_gain(HERE, [FALLING, FALLING, *poison], 12, 12)
    assert own / 2 < poisoned < own
    first = replace(HERE, best_ms=(1.0,) * 4, in_first_round=True)
    assert expected_gain(first, poison, 8, 12) is None, "a whole round is measured first"


def test_a_search_at_its_bound_tells_nothing_of_one_with_room_left() -> None:
    here = replace(HERE, bound_ms=0.4)
    at_bound = replace(FLAT, bound_ms=0.95)
    assert expected_gain(here, [at_bound] * 100, 12, 12) is None
    assert expected_gain(replace(HERE, bound_ms=0.9), [at_bound], 12, 12) < ROUND
    alike = replace(FLAT, bound_ms=0.4)
    assert expected_gain(here, [alike], 12, 12) == expected_gain(HERE, [FLAT], 12, 12)
    near = replace(HERE, bound_ms=0.99)
    gain = expected_gain(near, [replace(FALLING, bound_ms=0.1)] * 100, 12, 12)
    assert gain < math.log(1 / 0.99), "no more than the bound leaves"
    assert expected_gain(replace(HERE, bound_ms=1.0), [FALLING], 12, 12) >= 0.0


def test_behind_a_winner_tell_those_that_began_there_and_have_a_recipe_in_common() -> None:
    behind = replace(FLAT, from_winner=True)
    on_winner = replace(HERE, from_winner=True)
    assert expected_gain(HERE, [behind], 12, 12) is None, "it began where this one has yet to come"
    assert expected_gain(on_winner, [FLAT], 12, 12) is None
    assert expected_gain(on_winner, [behind], 12, 12) < ROUND
    unlike = replace(behind, structure="another", recipes=("another",))
    assert expected_gain(on_winner, [unlike] * 100, 12, 12) is None
    alike = replace(unlike, recipes=("rows", "another"))
    assert expected_gain(on_winner, [alike] * 3, 12, 12) < ROUND


def test_a_search_that_went_on_from_a_winner_is_known_by_its_first_kernel(tmp_path) -> None:
    key = GraphKey("here", "s", ("softmax",), (8, 8), "sm_90", Contract())
    versions = {"triton": "3.6", "recipe online-softmax": "v1"}
    with Memory(tmp_path / "kmem.db") as memory:
        for seed, move in ((1, Move.RECALL), (2, Move.RECALL), (3, Move.SEED)):
            for place in range(2):
                moment = f"2026-01-0{seed}T00:00:0{place}"
                fields = {"created_at": moment, "seed": seed, "versions": versions}
                first = {"move": move if place == 0 else Move.TUNE}
                source = f"{seed}/{place}"
                memory.ledger.record(make_outcome(3.0 - place, source=source, **first, **fields))
        found = recall_descents(memory.storage, key, Trust({}, 1.0), "test", versions)
    assert [each.from_winner for each in found] == [False, True, False], (
        "what the first one recalled was of another graph"
    )
    assert {each.bound_ms for each in found} == {make_outcome(1.0).bound_ms}


def test_searches_are_read_from_the_ledger_in_the_order_of_their_measurements(tmp_path) -> None:
    key = GraphKey("here", "s", ("softmax",), (8, 8), "sm_90", Contract())
    times = [3.0, None, 2.0, 2.5, 1.0]
    versions = {"triton": "3.6", "recipe online-softmax": "v1"}
    with Memory(tmp_path / "kmem.db") as memory:
        for place, latency_ms in reversed(list(enumerate(times))):
            moment = f"2026-01-01T00:00:0{place}"
            fields = {"created_at": moment, "seed": 1, "versions": versions}
            memory.ledger.record(make_outcome(latency_ms, source=f"k{place}", **fields))
        again = make_outcome(0.9, source="k4", created_at="2026-01-02", seed=1, versions=versions)
        memory.ledger.record(again)  # the verdict on a kernel that was measured before
        memory.ledger.record(make_outcome(0.1, source="x", seed=1, arch="sm_80"))
        stranger = make_outcome(1.0, source="k0", origin="stranger", versions=versions)
        memory.ledger.record(stranger)
        changed = versions | {"recipe online-softmax": "v0"}
        memory.ledger.record(make_outcome(source="y", graph="changed", versions=changed))
        other, own = recall_descents(
            memory.storage, key, Trust({"test": 1.0}, 0.5), "test", versions
        )
    assert own.best_ms == (3.0, 3.0, 2.0, 2.0, 1.0)
    assert (own.recipes, own.is_own, own.trust) == (("online-softmax",), True, 1.0)
    assert (other.best_ms, other.is_own, other.trust) == ((1.0,), False, 0.5)
