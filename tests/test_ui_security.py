"""Who may see and who may change: hosts, tokens, origins, headers, and what may be started."""

import http.client
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest
from page_server import EVIL, PageServer, fill_memory, make_run, serve_page

from kmem.cli.making.optimize import optimize
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.run.directory import RunDirectory
from kmem.ui.form import command_words, fields_of, find_fault
from kmem.ui.processes import Processes, find_holder
from kmem.ui.server import HOST, open_socket

CHANGES = ("/new", "/machine", "/runs/20260101-dead/stop", "/runs/20260101-dead/resume")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    root = tmp_path_factory.mktemp("guarded")
    fill_memory(root / "kmem.db", root)
    with serve_page(root / "kmem.db", Registry()) as server:
        yield server


def test_the_server_listens_on_this_machine_alone() -> None:
    with open_socket(0) as listening:
        assert listening.getsockname()[0] == HOST == "127.0.0.1"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", ""])
def test_a_foreign_name_of_this_machine_is_refused(server: PageServer, host: str) -> None:
    answer = server.ask("/", headers={"Host": host.format(port=server.keys.port) or "x"})
    assert answer.status == 421
    assert "Runs" not in answer.text


def test_every_answer_forbids_what_is_not_of_this_server(server: PageServer) -> None:
    for path in ("/", "/nothing", "/static/page.css", "/?format=json"):
        headers = server.ask(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"


def test_the_address_with_the_token_sets_a_cookie_and_loses_the_token(server: PageServer) -> None:
    opened = server.ask(f"/runs/x?a=1&token={server.keys.token}", known=False)
    assert (opened.status, opened.headers["location"]) == (303, "/runs/x?a=1")
    cookie = opened.headers["set-cookie"]
    assert server.keys.token in cookie
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    wrong = server.ask("//evil.example/?token=wrong", known=False)
    assert "set-cookie" not in wrong.headers
    assert not wrong.headers["location"].startswith("//")


def test_a_visitor_without_the_token_reads_and_finds_nothing_to_press(server: PageServer) -> None:
    page = server.ask("/runs/20260101-dead", known=False)
    assert page.status == 200
    assert 'method="post"' not in page.text and server.keys.form_token not in page.text
    assert server.keys.token not in server.ask("/new").text


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize(
    "change",
    [
        {"known": False},
        {"headers": {"Origin": "http://evil.example"}},
        {"headers": {"Origin": "null"}},
        {"headers": {"Origin": ""}},
        {"headers": {"Sec-Fetch-Site": "cross-site"}},
        {"headers": {"Content-Type": "text/plain"}},
        {"form": {"token": "wrong"}},
        {"form": {"token": ""}},
    ],
    ids=lambda change: str(change)[:40],
)
def test_nothing_changes_without_cookie_origin_and_form_token(
    server: PageServer, path: str, change: dict
) -> None:
    assert server.ask(path, **({"form": {}} | change)).status == 403


def test_a_change_is_no_address(server: PageServer) -> None:
    for path in CHANGES[2:]:
        assert server.ask(path).status == 405


def test_a_form_that_is_too_large_is_refused(server: PageServer) -> None:
    assert server.ask("/new", {"source": "x" * 1_100_000}).status == 403


def test_what_the_command_would_refuse_is_said_in_the_form(server: PageServer) -> None:
    answer = server.ask("/new", {"source": "x = 1", "option-rounds": "-1"})
    assert answer.status == 422
    assert "Invalid value for" in answer.text and "--rounds" in answer.text
    assert "Name a problem file, or paste one." in server.ask("/new", {}).text
    assert "There is no file /no/such" in server.ask("/new", {"path": "/no/such"}).text


def test_every_option_of_the_command_is_a_field_and_no_value_becomes_an_option() -> None:
    fields = fields_of(optimize)
    named = {option.name for option in optimize.params if isinstance(option, click.Option)}
    assert named - {field.name for field in fields} <= {"as_json", "out", "ui"}
    form = {f"option-{field.name}": field.default for field in fields}
    assert command_words(fields, form) == []
    words = command_words(fields, form | {"option-target": "--out=/etc", "option-models": "a,b"})
    assert words == ["--target=--out=/etc", "--model=a", "--model=b"]
    assert find_fault(optimize, [*words, "--", "--help"]) == ""
    assert "--minutes" in find_fault(optimize, ["--minutes=0", "--", "p.py"])


def test_the_form_offers_the_problems_of_earlier_runs_that_are_still_there(
    tmp_path: Path,
) -> None:
    there = tmp_path / "there.py"
    there.write_text("x = 1")
    with Memory(tmp_path / "kmem.db") as memory:
        for name, path in (("a", str(there)), ("b", "/gone.py")):
            run = make_run(name, tmp_path)
            memory.runs.start(replace(run, problem=replace(run.problem, path=path)))
    with serve_page(tmp_path / "kmem.db", Registry()) as server:
        page = server.ask(f"/new?path={EVIL[:60]}".replace(" ", "+")).text
        assert f'<option value="{there}">' in page and "/gone.py" not in page
        assert "<script>document" not in page


@pytest.mark.slow
def test_several_runs_are_started_at_once_and_told_apart(tmp_path: Path) -> None:
    processes = Processes(tmp_path, tmp_path / "kmem.db")
    names = [processes.start(["problem", "check", f"{number}.py"]) for number in range(2)]
    seen = [processes.started(name) for name in names]
    assert [one.name for one in seen if one is not None and one.running] == names
    deadline = time.monotonic() + 60
    while any(one is not None and one.running for one in seen) and time.monotonic() < deadline:
        time.sleep(0.1)
        seen = [processes.started(name) for name in names]
    assert ["0.py" in seen[0].log, "1.py" in seen[1].log] == [True, True]
    later = Processes(tmp_path, tmp_path / "kmem.db")
    assert later.started(names[0]) is not None, "a new server knows what an earlier one started"
    assert later.started("../../etc/passwd") is None


def test_who_holds_a_lock_is_found_and_nobody_else(tmp_path: Path) -> None:
    run = make_run("mine", tmp_path)
    with RunDirectory(Path(run.out_dir)).work(run):
        assert find_holder(Path(run.out_dir) / "run.lock") == os.getpid()
        (tmp_path / "other.lock").write_text("")
        assert find_holder(tmp_path / "other.lock") is None
    assert find_holder(Path(run.out_dir) / "run.lock") is None


def test_a_page_is_told_at_once_of_what_changed_before_it_listened(server: PageServer) -> None:
    for path in ("/live?seen=0", "/runs/20260101-dead/live?seen=old", "/runs/none/live?seen=x"):
        connection = http.client.HTTPConnection("127.0.0.1", server.keys.port, timeout=20)
        connection.request("GET", path)
        assert connection.getresponse().readline().startswith(b"event: changed")
        connection.close()


def test_a_page_is_told_of_a_change_within_a_second(server: PageServer, tmp_path: Path) -> None:
    """The events of a live run, from a writer in another connection."""
    database = None
    for line in server.ask("/").text.splitlines():
        if "kmem.db" in line:
            database = line.split("· ")[1].split("<")[0].strip()
    assert database is not None
    connection = http.client.HTTPConnection("127.0.0.1", server.keys.port, timeout=20)
    (live,) = re.findall(r'sse-connect="(/live[^"]+)"', server.ask("/").text)
    connection.request("GET", live)
    events = connection.getresponse()
    assert events.getheader("content-type").startswith("text/event-stream")
    written: list[float] = []

    def write() -> None:
        time.sleep(1.0)
        with Memory(database) as memory:
            memory.runs.start(make_run("20260102-new", tmp_path))
        written.append(time.monotonic())

    threading.Thread(target=write).start()
    while not events.readline().startswith(b"event: changed"):
        pass
    assert time.monotonic() - written[0] < 1.5
    assert "20260102-new" in server.ask("/").text
    connection.close()
