"""What pages draw of records, without a server: skills' prose, descent, posteriors, the memory."""

import json
from pathlib import Path

from page_server import HOSTILE, Elements
from test_memory_store import make_outcome

from kmem.memory.store import Memory
from kmem.ui.pages.memory import show_memory
from kmem.ui.plots.genealogy import grow_tree
from kmem.ui.plots.posterior import POINTS, draw_posterior
from kmem.ui.rendering import render
from kmem.ui.requests import Export, Page, PageRequest


def test_markdown_of_a_skill_cannot_bring_html_or_scripts() -> None:
    from kmem.ui.pages.skills import show_prose

    text = "\n\n".join([*HOSTILE, "[x](javascript:alert(1))", "![x](javascript:alert(1))"])
    page = Elements(str(show_prose(text)))
    assert {tag for tag, _ in page.found} <= {"p", "em", "strong", "code", "pre", "a", "li", "ul"}
    assert page.all("a") == []


def test_a_long_chain_of_descent_is_one_line_a_kernel() -> None:
    from page_server import attempt

    chain = [attempt("0", 1.0)]
    for number in range(1, 400):
        chain.append(attempt(str(number), 1.0, chain[-1].candidate.kernel.hash))
    tree = grow_tree(chain)
    assert [branch.number for branch in tree] == list(range(1, 401))
    assert max(len(branch.strokes) for branch in tree) < 80


def test_a_posterior_of_many_outcomes_is_drawn_with_few_points(tmp_path: Path) -> None:
    with Memory(tmp_path / "kmem.db") as memory:
        for number in range(600):
            memory.ledger.record(make_outcome(1.0 if number % 3 else None, seed=number))
        outcomes = memory.listing.successes("online-softmax", POINTS)
        memory.ledger.retract(make_outcome(None, seed=0).hash, "a mistake", "me")
        left = memory.listing.successes("online-softmax", POINTS)
    plot = draw_posterior(outcomes)
    assert plot is not None and 100 < plot.line.count("L") < 250
    assert plot.summary.startswith("400 of 600 outcomes passed")
    assert (left[0].count, left[-1].count, left[-1].passed) == (1, 599, 400)
    assert draw_posterior([]) is None


def test_the_memory_says_who_measured_what(tmp_path: Path) -> None:
    with Memory(tmp_path / "kmem.db") as memory:
        for seed in range(4):
            memory.ledger.record(make_outcome(1.0, seed=seed, origin="kmem-aa", arch="sm_90"))
        memory.ledger.record(make_outcome(None, seed=5, origin="kmem-aa", arch="sm_90"))
        gone = make_outcome(1.0, seed=6, origin="kmem-bb", arch="sm_80")
        kept = make_outcome(1.0, seed=7, origin="kmem-bb", arch="sm_80")
        memory.ledger.record(gone)
        memory.ledger.record(kept)
        memory.ledger.retract(gone.hash, "wrong clock", "kmem-bb")
        memory.contributors.keep_names({"kmem-bb": "Ada"})
        memory.contributors.set_trust("kmem-bb", 0.25)
        export = show_memory(memory, PageRequest("/memory", {}, {"origins.format": "json"}))
        assert isinstance(export, Export)
        first, second = json.loads(export.text)["origins"]
        assert (first["origin"], first["arch"], first["tried"]) == ("kmem-aa", "sm_90", 5)
        assert first["passed"] == 0.8 and first["name"] == ""
        assert (second["name"], second["tried"], second["trust"]) == ("Ada", 1, 0.25)
        page = show_memory(memory, PageRequest("/memory"))
        assert isinstance(page, Page)
        assert "By whom and on what" in render(page)
