"""The page in a real browser: live, pressed, without scripts, hostile, narrow, and after a kill.

Needs Chromium with its driver; without, every test here is skipped and says so.
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import warm
from chromium import Browser, open_browser
from page_server import (
    PageServer,
    attempt,
    fill,
    fill_memory,
    finish,
    make_run,
    serve_page,
)

from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect
from kmem.run.directory import RunDirectory

pytestmark = pytest.mark.slow

PAGES = (
    "/",
    "/runs/20260101-done",
    "/runs/20260101-evil",
    "/problems",
    "/problems/softmax",
    "/compare?a=20260101-evil&b=20260101-done",
    "/landscapes",
    "/landscapes/softmax_64k",
    "/skills",
    "/memory",
    "/new",
)
#: What scrolls or is pressed and is reached by no key, or is pressed and has no name.
LOST = """
    const scrolls = [...document.querySelectorAll('main *')].filter(each =>
        ['auto', 'scroll'].includes(getComputedStyle(each).overflowX)
        && each.scrollWidth > each.clientWidth + 1 && each.tabIndex < 0
        && !each.closest('details:not([open])'));
    const nameless = [...document.querySelectorAll('a, button')].filter(each =>
        !each.textContent.trim() && !each.getAttribute('aria-label'));
    return [...scrolls, ...nameless].map(each => each.outerHTML.slice(0, 120));
"""
TINY = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)
def get_inputs():
    return [torch.randn(64, 256)]
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("browsed")
    fill_memory(root / "kmem.db", root)
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[PageServer]:
    with serve_page(root / "kmem.db", collect(build_plugin_manager())) as server:
        yield server


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def test_a_run_appears_and_grows_while_it_is_written(
    browser: Browser, server: PageServer, root: Path
) -> None:
    run = make_run("20260103-live", root, "live_one")
    browser.open(f"{server.origin}/")
    assert "live_one" not in browser.text
    time.sleep(1.0)  # the page listens
    with Memory(root / "kmem.db") as memory, RunDirectory(Path(run.out_dir)).work(run):
        made = fill(memory, run)
        assert browser.wait(lambda: "live_one" in browser.text) < 1.5
        browser.open(f"{server.origin}/runs/{run.id}")
        assert "Best so far 1 ms, not verified yet" in browser.text
        browser.type("input[name=q]", "half a wo")
        time.sleep(1.0)
        memory.runs.record_attempt(run.id, attempt("# the fifth\n", 0.5))
        assert browser.wait(lambda: "Best so far 500 µs" in browser.text) < 1.5
        dots = "return document.querySelectorAll('circle').length"
        assert browser.run(dots) == 4
        typed = "return document.querySelector('input[name=q]').value"
        assert browser.run(typed) == "half a wo", "what is being typed stays"
        finish(memory, run, made)
    browser.wait(lambda: "proved correct" in browser.text and "finished" in browser.text)


def test_what_is_pressed_focused_or_opened_stays_while_the_page_renews_itself(
    browser: Browser, server: PageServer, root: Path
) -> None:
    run = make_run("20260104-pressed", root, "pressed_one")
    with Memory(root / "kmem.db") as memory, RunDirectory(Path(run.out_dir)).work(run):
        fill(memory, run)
        browser.open(f"{server.origin}/?token={server.keys.token}")
        browser.open(f"{server.origin}/runs/{run.id}")
        browser.run(
            "document.querySelector('form[action$=stop]').addEventListener("
            "'submit', event => { event.preventDefault(); window.sent = true; })"
        )
        browser.click("details summary")
        browser.run("document.querySelector('tbody a').focus()")

        def renew(number: int) -> None:
            memory.runs.record_attempt(run.id, attempt(f"# renewed {number}\n", 0.9 - number / 9))
            rows = "return document.querySelectorAll('#candidates-5').length"
            wanted = f"return document.querySelectorAll('#candidates-{4 + number}').length"
            browser.wait(lambda: browser.run(wanted) and browser.run(rows))

        with browser.pressed("form[action$=stop] button"):
            renew(1)
            renew(2)
        assert browser.run("return window.sent"), "what was pressed is what is let go"
        assert browser.run("return document.querySelector('details').open"), "it stays open"
        browser.run("document.querySelector('tbody a').focus()")
        renew(3)
        focused = browser.run("return document.activeElement.closest('tr').id")
        assert focused == "candidates-1"
        with browser.pressed("#candidates-2 a.mono"):
            renew(4)
        browser.wait(lambda: "/kernels/" in browser.url)


def test_nothing_hostile_runs(browser: Browser, server: PageServer) -> None:
    for path in PAGES:
        browser.open(server.origin + path)
        time.sleep(0.2)
        assert browser.run("return document.title") != "owned"
        assert browser.run("return document.images.length") == 0
        handlers = "return document.querySelectorAll('[onload], [onerror], [style]').length"
        assert browser.run(handlers) == 0
    browser.open(f"{server.origin}/runs/20260101-evil")
    browser.click("table td a.mono")
    assert "<script>document.title='owned'</script>" in browser.text
    assert browser.run("return document.title") != "owned"


@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_the_screen(browser: Browser, server: PageServer, width: int) -> None:
    browser.set_size(width, 800)
    for path in PAGES:
        browser.open(server.origin + path)
        wide = browser.run("return document.documentElement.scrollWidth")
        assert wide <= width, f"{path} is {wide} pixels wide"
        assert browser.run(LOST) == [], f"reached by no key, or without a name: {path}"
    browser.set_size(1280, 800)


def test_a_filter_and_a_diff_are_reached_by_pressing(browser: Browser, server: PageServer) -> None:
    browser.open(server.origin)
    browser.type("input[name=q]", "softmax h200")
    browser.click("form.filter button")
    rows = "return [...document.querySelectorAll('tbody tr')].map(row => row.cells[0].innerText)"
    browser.wait(lambda: browser.run(rows) == ["20260101-done"])
    browser.click("tbody tr a")
    browser.click("tr.best a.mono")
    added = "return [...document.querySelectorAll('.gi')].pop().innerText"
    assert browser.run(added) == "+A = 2"


def test_every_link_is_reached_by_the_tab_key_and_shows_that_it_is(
    browser: Browser, server: PageServer
) -> None:
    browser.open(f"{server.origin}/runs/20260101-done")
    links = "[...document.querySelectorAll('main a, header a')].filter(a => a.checkVisibility())"
    count = browser.run(f"return {links}.length")
    seen, bare = set(), []
    for _ in range(2 * count + 20):
        browser.press_tab()
        place, outlined = browser.run(
            "const at = document.activeElement; const style = getComputedStyle(at);"
            "const inner = at.querySelector('circle');"
            "const drawn = style.outlineStyle !== 'none' && style.outlineWidth !== '0px'"
            " || inner && getComputedStyle(inner).strokeWidth === '3px';"
            f"return [{links}.indexOf(at), drawn]"
        )
        seen.add(place)
        if place >= 0 and not outlined:
            bare.append(place)
    assert seen - {-1} == set(range(count))
    assert bare == []


def test_every_page_reads_the_same_without_scripts(
    server: PageServer, browser: Browser, tmp_path: Path
) -> None:
    with open_browser(tmp_path / "profile", scripts=False) as plain:
        for each in (plain, browser):
            each.open(f"{server.origin}/?token={server.keys.token}")
        for path in PAGES:
            plain.open(server.origin + path)
            browser.open(server.origin + path)
            # through the debugger: no script of the page's runs in this window
            shown = plain.command("Runtime.evaluate", {"expression": "document.body.innerText"})
            assert shown["result"]["value"] == browser.text
        plain.open(f"{server.origin}/?sort=run")
        plain.click("tbody tr a")
        assert plain.url.endswith("/runs/20260101-dead")


def test_a_run_is_started_stopped_and_resumed_by_pressing_and_outlives_the_server(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real run of a real server, which is killed while the run is at work."""
    monkeypatch.setenv("KMEM_DB", str(tmp_path / "kmem.db"))
    monkeypatch.setenv("KMEM_OUT", str(tmp_path / "out"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with begin_server() as address:
        browser.open(address)
        browser.click("a[href='/new']")
        browser.click("form.form summary")
        browser.type("#name", "tiny")
        browser.type("#source", TINY)
        browser.type("#option-target", "h200")
        browser.click("form.form > div > button")
        browser.wait(lambda: "/runs/" in browser.url, 120)
        run_id = browser.url.rpartition("/")[2]
        assert "running" in browser.text
        browser.click("form[action$='/stop'] button")
        again = "form[action$='/resume'] button"
        browser.wait(lambda: browser.run(f'return document.querySelector("{again}") !== null'), 120)
        assert "interrupted" in browser.text
        browser.click(again)
        browser.wait(lambda: "/runs/" in browser.url and "running" in browser.text, 120)
    with Memory(tmp_path / "kmem.db") as memory:
        assert [line.id for line in memory.run_entries.lines()] == [run_id]
        before = len(memory.runs.attempts(run_id))
    with begin_server() as address:  # the first was killed, and the run went on
        browser.open(address)
        browser.click("tbody tr a")
        assert "running" in browser.text or "finished" in browser.text
        with suppress(AssertionError):  # it may end before it is pressed
            browser.click("form[action$='/stop'] button")
        browser.wait(lambda: "interrupted" in browser.text or "finished" in browser.text, 120)
    with Memory(tmp_path / "kmem.db") as memory:
        assert len(memory.runs.attempts(run_id)) >= before


@contextmanager
def begin_server() -> Iterator[str]:
    """`kmem ui` as a process of its own, killed at the end of the block; its address."""
    process = warm.WarmPopen(
        [sys.executable, "-m", "kmem", "ui"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=\S+", address)
        yield address
    finally:
        process.kill()
        process.wait(20)
