"""The page of a whole model: its pieces by time, how each stands, and what leads to it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_up_model import PIECE_RUN, make_model
from page_server import EVIL, Elements, PageServer, fill_memory, serve_page

from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect

PAGE = f"/runs/{PIECE_RUN}/model"
STATES = ("kept", "dropped", "running", "waiting", "left to the library")


def serve(root: Path, text: str) -> Iterator[PageServer]:
    fill_memory(root / "kmem.db", root)
    with Memory(root / "kmem.db") as memory:
        make_model(root, memory, text)
    with serve_page(
        root / "kmem.db", collect(build_plugin_manager()), landscapes=root / "none"
    ) as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    yield from serve(tmp_path_factory.mktemp("model"), "attention")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    yield from serve(tmp_path_factory.mktemp("hostile"), EVIL)


def test_a_run_on_a_piece_leads_to_its_model_and_no_other_run_does(server: PageServer) -> None:
    links = [link["href"] for link in Elements(server.ask(f"/runs/{PIECE_RUN}").text).all("a")]
    assert PAGE in links
    links = [link["href"] for link in Elements(server.ask("/runs/20260101-done").text).all("a")]
    assert not [link for link in links if link.endswith("/model")]
    answer = server.ask("/runs/20260101-done/model")
    assert answer.status == 404
    assert "is not of a piece of a model" in answer.text


def test_a_model_shows_where_its_time_goes_and_how_each_piece_stands(server: PageServer) -> None:
    page = Elements(server.ask(PAGE).text)
    tiles = [words for words in page.words if "; " in words and words.rpartition("; ")[2] in STATES]
    # 12 calls each: 4.8, 2.4, 1.2 and 0.6 ms of 10, and what is in no piece
    assert [tile.rpartition("; ")[2] for tile in tiles] == [
        "kept",
        "dropped",
        "running",
        "left to the library",
        "waiting",
    ]
    assert tiles[0].startswith("attention ×12: 4.8 ms, 48%")
    assert "6.4 ms" in page.text, "10 ms less 12 times 0.3"
    assert "1.56" in page.text
    assert "router.attention" in page.text
    rows = json.loads(server.ask(f"{PAGE}?format=json").text)["pieces"]
    assert [row["status"] for row in rows] == ["kept", "dropped", "running", "waiting"]
    assert [row["saved_ms"] for row in rows] == [pytest.approx(3.6), None, None, None]
    assert rows[1]["why"] == "slower: attention"
    links = {link["href"] for link in page.all("a")}
    assert f"/runs/{PIECE_RUN}" in links
    assert "/runs/20260101-gone" not in links, "that run is no more"


def test_hostile_texts_of_a_model_become_no_element(hostile: PageServer) -> None:
    page = Elements(hostile.ask(PAGE).text)
    assert page.all("img") == []
    assert all(script.get("src", "").startswith("/static/") for script in page.all("script"))
    assert not any("onload" in attributes for _, attributes in page.found)
