"""The pages as the real server gives them: what they show, sort, filter, export, and never run."""

import csv
import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from click.testing import CliRunner
from page_server import (
    EVIL,
    HOSTILE,
    LANDSCAPES,
    Elements,
    PageServer,
    fill_memory,
    serve_page,
    write_hostile_landscape,
    write_hostile_skill,
)

from kmem.cli.runs.report import report
from kmem.plugins import Registry, build_plugin_manager, collect

DONE = "/runs/20260101-done"
EVIL_RUN = "/runs/20260101-evil"
PAGES = (
    "/",
    DONE,
    EVIL_RUN,
    "/problems",
    f"/problems/{quote(EVIL, safe='')}",
    "/compare?a=20260101-evil&b=20260101-dead",
    f"/compare?{urlencode({'a': HOSTILE[0], 'b': HOSTILE[1]})}",
    "/landscapes",
    f"/starting/{quote(HOSTILE[1], safe='')}",
    "/skills",
    "/skills/online-softmax",
    "/skills/evil-skill",
    "/memory",
    f"/memory?{urlencode({'q': HOSTILE[1], 'sort': HOSTILE[0], 'status': HOSTILE[2]})}",
    f"{DONE}?{urlencode({'q': HOSTILE[1], 'baselines.q': HOSTILE[0], HOSTILE[1]: HOSTILE[0]})}",
    "/machine",
    "/new",
)
OUR_SCRIPTS = {
    f"/static/{name}"
    for name in ("htmx.min.js", "htmx-ext-sse.min.js", "idiomorph-ext.min.js", "page.js")
}


@pytest.fixture(scope="module")
def registry() -> Registry:
    return collect(build_plugin_manager())


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("page")
    fill_memory(root / "kmem.db", root)
    return root / "kmem.db"


@pytest.fixture(scope="module")
def landscapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("landscapes")
    shutil.copy(LANDSCAPES / "softmax_64k.jsonl.xz", root)
    return root


@pytest.fixture(scope="module")
def server(
    database: Path, registry: Registry, landscapes: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PageServer]:
    evil = write_hostile_skill(tmp_path_factory.mktemp("skills"))
    shelf = replace(registry, skills={**registry.skills, "evil-skill": evil})
    with serve_page(database, shelf, landscapes=landscapes) as server:
        yield server


def kernels(server: PageServer) -> list[str]:
    rows = json.loads(server.ask(f"{DONE}?format=json").text)["candidates"]
    return [row["kernel"] for row in rows]


def problems(server: PageServer, query: str) -> list[str]:
    rows = json.loads(server.ask(f"/?format=json&{query}").text)["runs"]
    return [row["run"].rpartition("-")[2] for row in rows]


def test_runs_are_listed_with_state_time_and_where_their_figures_come_from(
    server: PageServer,
) -> None:
    page = Elements(server.ask("/").text)
    assert "20260101-done softmax finished h200 1 ms 4.00× 40% measured 4 2026-01-01" in page.text
    assert "20260101-dead layer_norm killed h200 1 ms measured 4" in page.text
    hints = [span.get("title") for span in page.all("span")]
    assert "measured on h200, 2026-01-01 00:00 UTC" in hints


def test_a_table_is_sorted_filtered_and_exported_by_its_address(server: PageServer) -> None:
    assert problems(server, "q=softmax+h200") == ["done"]
    assert problems(server, "state=killed") == ["dead"]
    assert problems(server, "sort=speedup")[-1] == "dead", "what has no value comes last"
    assert problems(server, "sort=run") == ["dead", "done", "evil"]
    assert problems(server, "sort=-run") == ["evil", "done", "dead"]
    headings = Elements(server.ask("/?sort=-problem&q=h200").text).all("th")
    assert [each["aria-sort"] for each in headings if "aria-sort" in each] == ["descending"]
    turned = [link["href"] for link in Elements(server.ask("/?sort=-problem").text).all("a")]
    assert "/?sort=problem" in turned
    exported = server.ask("/?format=csv&sort=run")
    assert exported.headers["content-type"].startswith("text/csv")
    assert exported.text.splitlines()[1].startswith("20260101-dead,layer_norm,killed,h200,1.0")
    assert "problem,\n" not in exported.text
    assert server.ask("/?page=99999999999999&sort=nothing&q=").status == 200


def test_an_export_holds_no_formula(server: PageServer) -> None:
    text = server.ask("/memory?format=csv").text
    assert "=HYPERLINK" in text
    assert not any(line.startswith(("=", '"=')) for line in text.splitlines())


def test_a_run_shows_its_verdict_its_staircase_and_its_descent(server: PageServer) -> None:
    page = Elements(server.ask(DONE).text)
    assert "4.00× faster by a new kernel, proved correct" in page.text
    assert "Best kernel 1 ms measured" in page.text
    assert "4 candidates, 3 passed; the best takes 1 ms, the bound is 400 µs" in page.text
    assert "eager 4 ms" in page.text
    assert [dot["class"] for dot in page.all("circle")] == ["dot leads", "dot leads", "dot"]
    assert len([line for line in page.all("line") if line["class"] == "refused"]) == 1
    first, second, third, fourth = (kernel[:10] for kernel in kernels(server))
    assert f"├─ {second} tune online-softmax 1 ms" in page.text
    assert f"└─ {fourth} tune online-softmax 3 ms" in page.text
    assert page.text.index(f"{first} seed") < page.text.index(f"├─ {third}")


def test_a_run_shows_what_it_does_and_its_baselines(server: PageServer) -> None:
    dead = Elements(server.ask("/runs/20260101-dead").text)
    assert "Last: measure 3 of 12: online-softmax: passed" in dead.text
    assert "Last:" not in Elements(server.ask(DONE).text).text, "a finished run is done"
    rows = json.loads(server.ask(f"{DONE}?baselines.format=json").text)["baselines"]
    assert [(row["baseline"], row["time_ms"]) for row in rows] == [("eager", 4.0)]


def test_a_candidate_shows_its_roofline_its_claims_and_its_profile(server: PageServer) -> None:
    first, best, _, _ = kernels(server)
    address = f"{DONE}/kernels/{best}"
    page = Elements(server.ask(address).text)
    assert "traffic_ratio <= 0.7x unknown" in page.text
    claims = json.loads(server.ask(f"{address}?claims.format=json").text)["claims"]
    assert [(row["claim"], row["held"]) for row in claims] == [("traffic_ratio <= 0.7x", "unknown")]
    errors = server.ask(f"{address}?errors.format=csv&errors.sort=seed").text
    assert errors.splitlines()[0] == "family,seed,error,eager,allowed,excess"
    launches = json.loads(server.ask(f"{DONE}/kernels/{first}?launches.format=json").text)
    assert [row["time_ms"] for row in launches["launches"]] == [0.5]
    links = [link["href"] for link in page.all("a") if "sort=-allowed" in link["href"]]
    assert not links
    links = [link["href"] for link in page.all("a") if "errors.sort=allowed" in link["href"]]
    assert links == [f"{address}?errors.sort=allowed#errors"]


def test_a_problem_shows_all_its_runs(server: PageServer) -> None:
    listed = json.loads(server.ask("/problems?format=json&q=softmax").text)["problems"]
    assert [(row["problem"], row["runs"], row["speedup"]) for row in listed] == [
        ("softmax", 1, 4.0)
    ]
    page = Elements(server.ask("/problems/softmax").text)
    assert "Best, h200 1 ms measured 20260101-done" in page.text
    assert "# softmax A = 0" in page.text
    assert server.ask("/problems/nothing").status == 404


def test_two_runs_stand_side_by_side(server: PageServer) -> None:
    page = Elements(server.ask("/compare?a=20260101-done&b=20260101-dead").text)
    assert "4.00× faster by a new kernel, proved correct" in page.text
    assert "Best kernel 1 ms, measured 1 ms, measured" in page.text
    assert "budget.rounds 4 4 same" in page.text
    assert "Choose two runs" in server.ask("/compare").text
    faulty = Elements(server.ask("/compare?a=20260101-done&b=nothing").text)
    assert "No run 'nothing' in this database" in faulty.text


def test_a_landscape_is_a_heat_map_over_any_two_knobs(server: PageServer) -> None:
    address = "/landscapes/softmax_64k"
    axes = Elements(server.ask(address).text).all("option")
    first, second = (axis["value"] for axis in axes[:2])
    turned = server.ask(f"{address}?x={second}&y={first}").text
    assert f"across) and {str(first).partition('.')[2]} (down)" in turned
    assert 'class="h0"' in turned and "measured on h200, 2026-11" in turned
    same = server.ask(f"{address}?x={first}&y={first}")
    assert same.status == 200 and 'class="map"' in same.text
    rows = json.loads(server.ask(f"{address}?format=json").text)["settings"]
    assert rows[0]["ratio"] == 1.0 and len(rows) > 20


def test_a_candidate_shows_its_diff_against_its_parent_and_its_source(server: PageServer) -> None:
    _, best, refused, _ = kernels(server)
    page = server.ask(f"{DONE}/kernels/{best}").text
    assert '<span class="gd">-A = 1</span>' in page
    assert '<span class="gi">+A = 2</span>' in page
    assert '<span class="mi">2</span>' in page, "the source is highlighted"
    shown = Elements(server.ask(f"{DONE}/kernels/{refused[:12]}").text).text
    assert "wrong values" in shown and "Worst error 0.1 checked of what is allowed" in shown
    assert server.ask(f"{DONE}/kernels/ffff").status == 404


def test_a_skill_shows_its_text_its_record_and_its_posterior_over_time(server: PageServer) -> None:
    page = Elements(server.ask("/skills/online-softmax").text)
    assert (
        "1 of 2 outcomes passed; all counted alike, the next does with probability 50%" in page.text
    )
    assert "architecture sm_90 2 1" in page.text
    listed = json.loads(server.ask("/skills?format=json&q=online-softmax").text)["skills"]
    assert [(row["name"], row["tried"], row["passed"]) for row in listed] == [
        ("online-softmax", 2, 1)
    ]
    assert server.ask("/skills/no-such-skill").status == 404


def test_outcomes_are_listed_by_skill_and_status(server: PageServer) -> None:
    def listed(query: str) -> list[tuple[str, float | None]]:
        rows = json.loads(server.ask(f"/memory?format=json&{query}").text)["outcomes"]
        return [(row["status"], row["latency_ms"]) for row in rows]

    assert listed("q=online") == [("wrong_values", None), ("passed", 1.0)]
    assert listed("status=passed&sort=-latency_ms") == [("passed", 2.0), ("passed", 1.0)]
    assert listed("sort=latency_ms") == [("passed", 1.0), ("passed", 2.0), ("wrong_values", None)]
    assert "3 row" in Elements(server.ask("/memory").text).text


def test_the_machine_is_checked_once_and_again_when_told(server: PageServer) -> None:
    while "Checking what" in (page := server.ask("/machine").text):
        assert 'http-equiv="refresh"' in page
    assert "compiler ok works" in Elements(page).text
    assert server.ask("/machine", {}).status == 303


@pytest.mark.parametrize("path", PAGES)
def test_nothing_hostile_becomes_an_element(server: PageServer, path: str) -> None:
    answer = server.ask(path)
    assert answer.status == 200
    check_harmless(answer.text)


def test_no_hostile_landscape_becomes_an_element(server: PageServer, landscapes: Path) -> None:
    name = write_hostile_landscape(landscapes)
    (landscapes / "torn.jsonl").write_text("{<script>")
    listed = server.ask("/landscapes").text
    check_harmless(listed)
    assert name in Elements(listed).text and "torn.jsonl cannot be read" in Elements(listed).text
    page = server.ask(f"/landscapes/{quote(name, safe='')}")
    assert page.status == 200
    check_harmless(page.text)
    assert 'class="map"' in page.text
    for path in ("/landscapes/..%2F..%2Fpasswd", "/landscapes/%00"):
        assert server.ask(path).status == 404
    (landscapes / "torn.jsonl").unlink()


@pytest.mark.parametrize(
    "path",
    [
        "/?",
        f"{EVIL_RUN}?",
        f"{EVIL_RUN}?baselines.",
        "/problems?",
        "/compare?a=20260101-evil&b=20260101-dead&figures.",
        "/compare?a=20260101-evil&b=20260101-dead&options.",
        "/landscapes?",
        "/skills?",
        "/skills/evil-skill?record.",
        "/memory?",
    ],
)
def test_no_cell_of_an_export_is_a_formula(server: PageServer, path: str) -> None:
    exported = server.ask(f"{path}format=csv")
    assert exported.headers["content-type"].startswith("text/csv")
    assert "attachment" in exported.headers["content-disposition"]
    for row in csv.reader(io.StringIO(exported.text)):
        for cell in row:
            number = cell.lstrip("-").replace(".", "", 1).replace("e-", "", 1).isdigit()
            assert number or not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")), cell
    told = server.ask(f"{path}format=json")
    assert told.headers["content-type"].startswith("application/json")
    assert isinstance(json.loads(told.text), dict)


def test_what_turns_the_direction_of_a_text_is_shown(server: PageServer) -> None:
    page = server.ask(EVIL_RUN).text
    assert "\u202e" not in page and "\u2066" not in page
    assert "⟨U+202E⟩gnp.exe⟨U+2066⟩" in page


def test_no_hostile_candidate_becomes_an_element(server: PageServer) -> None:
    rows = json.loads(server.ask("/runs/20260101-evil?format=json").text)["candidates"]
    for row in rows:
        page = server.ask(f"/runs/20260101-evil/kernels/{row['kernel']}").text
        check_harmless(page)
        assert HOSTILE[0] in Elements(page).text, "it is shown as text"
    assert "1337" not in server.ask("/runs/20260101-evil").text, "no template is made of a text"


def check_harmless(html: str) -> None:
    """Only kmem's own scripts, no handlers, no styles, no addresses elsewhere."""
    page = Elements(html)
    sources = {script.get("src") for script in page.all("script")}
    assert sources <= OUR_SCRIPTS
    for tag, attributes in page.found:
        assert tag not in {"img", "iframe", "object", "embed", "base"}
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        for name in ("href", "src", "action"):
            address = attributes.get(name)
            assert address is None or address.startswith(("/", "#", "?")), (tag, address)
            assert not (address or "").startswith("//")


def test_the_style_sheet_loads_nothing(server: PageServer) -> None:
    style = server.ask("/static/page.css")
    assert style.status == 200
    assert "url(" not in style.text and "@import" not in style.text


def test_a_run_is_written_as_one_file_that_needs_nothing_else(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMEM_DB", str(database))
    for run in ("20260101-done", "20260101-evil"):
        place = tmp_path / f"{run}.html"
        words = [run, "--html", "--out", str(place)]
        assert CliRunner().invoke(report, words, catch_exceptions=False).exit_code == 0
        html = place.read_text(encoding="utf-8")
        page = Elements(html)
        assert page.all("script") == page.all("link") == page.all("form") == []
        ids = {attributes.get("id") for _, attributes in page.found}
        links = [link["href"] for link in page.all("a")]
        assert {link[1:] for link in links if link.startswith("#kernel")} <= ids
        assert "measured on h200, 2026-01-01" in page.text
        check_harmless(html)
