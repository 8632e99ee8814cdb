"""Pages stay bounded and every query has its index, however much the memory holds.

Times are measured by tools/benchmark_page.py, not here.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from page_server import LANDSCAPES, attempt, fill, finish, make_run
from test_memory_store import make_outcome

from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect
from kmem.records import Plan
from kmem.ui.pages.compare import show_comparison
from kmem.ui.pages.kernel import show_kernel
from kmem.ui.pages.landscapes import Atlas, show_landscape, show_landscapes
from kmem.ui.pages.memory import show_memory
from kmem.ui.pages.problems import show_problem, show_problems
from kmem.ui.pages.run import show_run
from kmem.ui.pages.runs import show_runs
from kmem.ui.pages.skills import Shelf, show_skill, show_skills
from kmem.ui.rendering import render
from kmem.ui.requests import Export, Page, PageRequest
from kmem.ui.tables import ROWS_ON_A_PAGE

RUN = "20260101-many"
MANY = 3 * ROWS_ON_A_PAGE
Show = Callable[[Memory, PageRequest], Page | Export]
#: Tables that grow with use. Runs are few beside them: their list reads every one.
LARGE = ("outcomes", "attempts", "kernels", "profiles", "retractions", "skill_sums")


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Memory:
    root = tmp_path_factory.mktemp("many")
    memory = Memory(root / "kmem.db")
    run = make_run(RUN, root)
    with memory.storage.write():
        made = fill(memory, run)
        finish(memory, run, made)
        for number in range(MANY):
            memory.runs.start(make_run(f"20260102-{number:04d}", root, f"problem {number % 150}"))
            parent = made[number // 2].candidate.kernel.hash
            made.append(attempt(f"# {number}\n", 1.0, parent))
            memory.runs.record_attempt(run.id, made[-1])
            memory.ledger.record(
                make_outcome(1.0 if number % 3 else None, problem=f"p{number}", seed=number)
            )
    return memory


def asked(memory: Memory) -> list[tuple[Show, PageRequest]]:
    """Every page that reads the memory, as somebody may ask for it."""
    shelf = Shelf(collect(build_plugin_manager()))
    atlas = Atlas(LANDSCAPES)
    kernel = memory.runs.attempts(RUN)[0].candidate.kernel.hash
    run = {"run": RUN}
    orders = [f"{way}{key}" for way in ("", "-") for key in ("skill", "status", "latency_ms")]
    queries = [
        {},
        {"page": "2"},
        {"q": "online"},
        {"status": "passed"},
        *({"sort": order} for order in orders),
        {"status": "passed", "sort": "-latency_ms"},
        {"status": "wrong_values", "sort": "skill"},
        {"q": "online-softmax", "sort": "-latency_ms"},
    ]
    return [
        (show_runs, PageRequest("/")),
        (show_run, PageRequest("/", run)),
        (show_kernel, PageRequest("/", run | {"kernel": kernel})),
        (show_comparison, PageRequest("/", {}, {"a": RUN, "b": "20260102-0001"})),
        (show_problems, PageRequest("/")),
        (show_problem, PageRequest("/", {"problem": "problem 1"})),
        (show_skills(shelf), PageRequest("/")),
        (show_skill(shelf), PageRequest("/", {"skill": "online-softmax"})),
        (show_landscapes(atlas), PageRequest("/")),
        (show_landscape(atlas), PageRequest("/", {"landscape": "softmax_64k"})),
        *((show_memory, PageRequest("/", {}, query)) for query in queries),
    ]


def test_no_query_of_a_page_reads_a_large_table_without_an_index(memory: Memory) -> None:
    seen: list[str] = []
    connection = memory.storage.db.conn
    connection.set_trace_callback(seen.append)
    try:
        for show, request in asked(memory):
            show(memory, request)
    finally:
        connection.set_trace_callback(None)
    queries = {text for text in seen if text.lstrip().startswith("select")}
    assert len(queries) > 30
    for query in queries:
        plan = [row[3] for row in connection.execute(f"explain query plan {query}")]
        # in the order of its rows, a table is left as soon as the page is full
        stops_early = "limit" in query and not any("TEMP B-TREE" in step for step in plan)
        scanned = {
            name
            for step in plan
            if (found := re.fullmatch(r"SCAN (\w+)", step)) and not stops_early
            for name in LARGE
            if found[1] == name or re.search(rf"\b{name} (as )?{found[1]}\b", query)
        }
        assert not scanned, query


def test_a_page_shows_at_most_a_page_of_rows_whatever_there_is(memory: Memory) -> None:
    for show, request in asked(memory):
        shown = show(memory, request)
        assert isinstance(shown, Page)
        html = render(shown)
        for table in re.findall(r"<tbody>.*?</tbody>", html, re.DOTALL):
            assert table.count("<tr") <= ROWS_ON_A_PAGE, shown.template
        assert len(html) < 1_000_000, shown.template


def test_plot_descent_and_rounds_of_a_long_run_are_bounded(memory: Memory, tmp_path: Path) -> None:
    run = make_run("20260103-long", tmp_path)
    with memory.storage.write():
        made = fill(memory, run)
        for number in range(700):
            parent = made[-1 - number % 3].candidate.kernel.hash
            time_ms = 5.0 - number / 200 if number % 3 else None
            made.append(attempt(f"# long {number}\n", time_ms, parent, number=number))
            memory.runs.record_attempt(run.id, made[-1])
            memory.runs.put_plan(run.id, number + 1, Plan((), (), f"plan {number + 1}"))
        finish(memory, run, made)
    shown = show_run(memory, PageRequest("/", {"run": run.id}))
    assert isinstance(shown, Page)
    html = render(shown)
    assert html.count('class="strokes"') < 500 and "fastest of 704 kernels" in html
    fastest = min(made, key=lambda each: each.measurement.latency_ms or 9.0)
    tree = html[html.index('class="tree"') :]
    assert fastest.candidate.kernel.hash[:10] in tree
    leads = html.count('class="dot leads"')
    assert html.count('class="dot') <= leads + 300
    assert html.count('class="refused"') <= 200
    assert "681 to 700 of 700 rounds" in html and "Round 700<" in html and "Round 680<" not in html
    older = show_run(memory, PageRequest("/", {"run": run.id}, {"rounds.page": "2"}))
    assert isinstance(older, Page)
    assert "661 to 680 of 700 rounds" in render(older)


def test_every_outcome_is_on_one_page_of_every_order(memory: Memory) -> None:
    for order in ("recorded", "-latency_ms", "latency_ms", "status", "skill"):
        seen: list[object] = []
        for page in range(1, 5):
            shown = show_memory(memory, PageRequest("/", {}, {"sort": order, "page": str(page)}))
            assert isinstance(shown, Page)
            rows = shown.content["table"].rows  # type: ignore[attr-defined]
            seen += [row["hash"].value for row in rows] if page < 4 else []
        assert len(seen) == len(set(seen)) == MANY, order


def test_outcomes_without_a_time_come_last_both_ways(memory: Memory) -> None:
    for order in ("latency_ms", "-latency_ms"):
        times: list[float | None] = []
        for page in ("1", "2", "3"):
            shown = show_memory(memory, PageRequest("/", {}, {"sort": order, "page": page}))
            assert isinstance(shown, Page)
            rows = shown.content["table"].rows  # type: ignore[attr-defined]
            times += [row["latency_ms"].value for row in rows]
        known = [time for time in times if time is not None]
        assert times == [*known, *[None] * (len(times) - len(known))]


def test_lists_that_are_kept_change_with_what_they_list(tmp_path: Path) -> None:
    path = tmp_path / "kmem.db"
    with Memory(path) as memory, Memory(path) as other:
        first, second = make_run("20260101-a", tmp_path), make_run("20260102-b", tmp_path, "gelu")
        assert memory.run_entries.lines() == []
        memory.runs.start(first)
        assert [line.id for line in memory.run_entries.lines()] == [first.id]
        other.runs.start(second)
        other.runs.record_attempt(second.id, attempt("# one\n", 1.5))
        assert {line.id: line.best_ms for line in memory.run_entries.lines()} == {
            first.id: None,
            second.id: 1.5,
        }
        assert [line.id for line in memory.run_entries.lines(problem="gelu")] == [second.id]
        kept = make_outcome(1.0)
        other.ledger.record(kept)
        assert [each.count for each in memory.listing.successes(kept.skill, 10)] == [1]
        other.ledger.retract(kept.hash, "wrong clock", "test")
        assert memory.listing.successes(kept.skill, 10) == []
