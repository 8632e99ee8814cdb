"""`kmem optimize --ui`: the page in a process beside a run, opened on it."""

import http.client
import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from test_memory_store import RUN

from kmem.cli.page_beside import page_beside
from kmem.memory.store import Memory

pytestmark = pytest.mark.slow


def test_the_page_is_opened_on_the_run_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    monkeypatch.setenv("KMEM_DB", str(tmp_path / "kmem.db"))
    with page_beside(RUN):
        deadline = time.monotonic() + 60
        while not opened.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        address = urlsplit(opened.read_text().strip())
        assert address.path == f"/starting/{RUN.id}" and address.query.startswith("token=")
        cookie, _ = ask(address.netloc, f"{address.path}?{address.query}")
        _, page = ask(address.netloc, address.path, cookie)
        assert "then its page opens by itself" in page
        with Memory(tmp_path / "kmem.db") as memory:
            memory.runs.start(RUN)
        led, _ = ask(address.netloc, address.path, cookie)
        assert led == f"/runs/{RUN.id}"
    assert f"page: {address.geturl()}" in capfd.readouterr().err
    with pytest.raises(ConnectionRefusedError):
        ask(address.netloc, "/")


def test_the_page_of_a_run_that_is_killed_ends(tmp_path: Path) -> None:
    text = (
        "import time\n"
        "from test_memory_store import RUN\n"
        "from kmem.cli.page_beside import page_beside\n"
        "with page_beside(RUN):\n"
        "    time.sleep(600)\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", text],
        env=os.environ
        | {
            "KMEM_DB": str(tmp_path / "kmem.db"),
            "BROWSER": "true",
            "PYTHONPATH": str(Path(__file__).parent),
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stderr is not None
    line = run.stderr.readline()
    netloc = urlsplit(line.removeprefix("page: ")).netloc
    _, page = ask(netloc, "/")
    assert "Runs" in page
    run.kill()
    run.wait()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and is_served(netloc):
        time.sleep(0.05)
    assert not is_served(netloc)
    run.stderr.close()


def is_served(netloc: str) -> bool:
    """Whether a server answers there."""
    try:
        ask(netloc, "/")
    except ConnectionError:
        return False
    return True


def ask(netloc: str, path: str, cookie: str = "") -> tuple[str, str]:
    """What an answer sets as a cookie or leads to, and its text."""
    connection = http.client.HTTPConnection(netloc, timeout=30)
    connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    set_cookie = answer.headers.get("set-cookie", "").partition(";")[0]
    return set_cookie or answer.headers.get("location", ""), text


def test_a_run_that_is_refused_leaves_no_page_behind(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "kmem", "optimize", "nothing.py", "--ui", "--target", "h200"],
        env=os.environ | {"KMEM_DB": str(tmp_path / "kmem.db"), "BROWSER": "true"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1, "and no page keeps its pipes open"
    assert "No problem file at" in ended.stderr and "page:" not in ended.stderr
