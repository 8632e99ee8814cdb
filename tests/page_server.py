"""The page served for tests: the real server on a free port, and a memory with runs to show.

`HOSTILE` are texts that would run, load or break out if a page showed them unescaped.
"""

import http.client
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlencode

import click
from test_memory_store import RUN, make_outcome

from kmem.cli.making.optimize import optimize
from kmem.learning.landscape import LandscapeDirectory
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.records import (
    Attempt,
    Baseline,
    Bottleneck,
    Bound,
    Candidate,
    Claim,
    Diagnosis,
    ErrorReport,
    Evidence,
    Kernel,
    Launch,
    Lesson,
    Measurement,
    Move,
    Plan,
    Prescription,
    Problem,
    Profile,
    Run,
    RunResult,
    RunState,
    Signature,
    SiteChoice,
    Status,
    Task,
    Timing,
    Veto,
)
from kmem.run.state.diary import write_entry
from kmem.ui.app import Parts
from kmem.ui.pages.machine import Checked
from kmem.ui.security import Keys
from kmem.ui.server import make_service

HOSTILE = (
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "'><svg/onload=document.title='owned'>",
    "</textarea></title></style></script><script>document.title='owned'</script>",
    "javascript:document.title='owned'",
    "{{ 7 * 191 }}{% raw %}",
    "\u202egnp.exe\u2066",
    '=HYPERLINK("http://evil.example/","x")',
    "../../../../etc/passwd%2e%2e%2f",
    "<!--#exec cmd='id'--><![CDATA[x]]>",
    "a" * 3000,
)
EVIL = " ".join(HOSTILE)
CHECKS = (Checked("gpu", None, EVIL, EVIL), Checked("compiler", True, "works", None))
LANDSCAPES = Path(__file__).parent.parent / "db" / "evidence" / "landscapes"


def attempt(
    source: str,
    latency_ms: float | None,
    parent: str | None = None,
    text: str = "move the knobs",
    number: int = 1,
) -> Attempt:
    """A candidate; without a time it was refused."""
    kernel = Kernel(
        source,
        parent,
        (SiteChoice(text, "softmax", "online-softmax", (("BLOCK", text),)),),
        (text,),
    )
    task = Task(
        Move.TUNE if parent else Move.SEED,
        "online-softmax",
        parent,
        1,
        text,
        claims=(Claim("traffic_ratio", "<=", 0.7, True),),
        instruction=text,
    )
    timing = None
    if latency_ms is not None:
        timing = Timing(latency_ms, 0.9 * latency_ms, 1.1 * latency_ms, 10, "eager", 4.0)
    status = Status.PASSED if timing else Status.WRONG_VALUES
    errors = (ErrorReport(text, 1, 1e-7, 1e-7, 1e-6, 0.1),)
    measurement = Measurement(status, timing, False, errors, (text,), log=text)
    return Attempt(number, Candidate(kernel, task, text), measurement, 2.0 if parent else None)


def fill(memory: Memory, run: Run, text: str = "a plain text") -> list[Attempt]:
    """Keep a run with four candidates, a round and a profile; `text` stands wherever one may."""
    first = attempt(f"# {text}\nA = 1\n", 2.0, text=text)
    parent = first.candidate.kernel.hash
    made = [
        first,
        attempt(f"# {text}\nA = 2\n", 1.0, parent, text, 2),
        attempt(f"# {text}\nA = 3\n", None, parent, text, 2),
        attempt(f"# {text}\nA = 4\n", 3.0, parent, text, 2),
    ]
    memory.runs.start(run)
    for each in made:
        memory.runs.record_attempt(run.id, each)
    diagnosis = Diagnosis(
        Bottleneck.LATENCY,
        (Evidence(text, 1.0, ">=", 0.5),),
        Signature({}),
        0.5,
        0.1,
        text,
        text,
    )
    offer = Prescription("online-softmax", 1.0, (text,))
    memory.runs.put_diagnosis(run.id, 1, parent, diagnosis, [offer])
    memory.runs.put_plan(run.id, 1, Plan((), (Veto(text, text),), text))
    memory.runs.put_lessons(run.id, 1, [Lesson(1, parent, text, text)])
    launch = Launch(text, 0.5, (64, 1, 1), (128, 1, 1), {text: 1.0})
    bound = Bound(1000, {}, 0.4, "bytes")
    memory.runs.put_profile(run.id, Profile(parent, text, text, False, (launch,), bound))
    return made


def finish(memory: Memory, run: Run, made: list[Attempt], text: str = "the rounds are used up"):
    """End a run with its second candidate as the winner."""
    eager = Baseline("eager", Timing(4.0, 4.0, 4.0, 10), False)
    bound = Bound(1000, {}, 0.4, "bytes")
    result = RunResult(
        run.id, run.problem.name, run.target, False, made[1], (eager,), bound, 4.0, 0.4, False, 5,
        9.0, text, (text,),
    )  # fmt: skip
    memory.runs.set_state(run.id, RunState.FINISHED, result)


def make_run(name: str, out_dir: Path, text: str = "softmax") -> Run:
    """A run with an id."""
    problem = Problem(text, f"/{text}.py", f"# {text}\nA = 0\n")
    return replace(RUN, id=name, problem=problem, out_dir=str(out_dir / name))


def write_hostile_landscape(root: Path) -> str:
    """A landscape whose texts are hostile; its name, which is that of a file too."""
    name = "\"><svg onload=x>'{{7*191}}"
    landscape = LandscapeDirectory(LANDSCAPES).find("argmax_columns_4k")
    assert landscape is not None
    site = landscape.header.sites[0]
    sites = (replace(site, recipe=EVIL, name=EVIL, knobs=((EVIL, (EVIL, "b")), ("K", (1, EVIL)))),)
    problem = replace(landscape.header.problem, name=name)
    header = replace(landscape.header, problem=problem, sites=sites, family=EVIL, operators=(EVIL,))
    directory = LandscapeDirectory(root)
    directory.begin(header)
    for knobs in (((EVIL, EVIL), ("K", 1)), ((EVIL, "b"), ("K", EVIL))):
        choices = (SiteChoice(EVIL, EVIL, EVIL, knobs),)
        directory.append(name, replace(landscape.points[1], choices=choices, log=EVIL))
    return name


SECTIONS = (
    "Mechanism",
    "Use when",
    "Do not use when",
    "In Triton",
    "Pitfalls",
    "How to check it worked",
)


def write_hostile_skill(root: Path) -> Path:
    """A skill whose texts are hostile."""
    place = root / "evil-skill"
    place.mkdir()
    lines = "\n".join(f"    {text}" for text in HOSTILE)
    links = "![x](https://evil.example/x.png) [x](javascript:alert(1)) <https:javascript:1>"
    texts = ["\n\n".join([*HOSTILE, links])] * len(SECTIONS)
    (place / "SKILL.md").write_text(
        f"---\nname: evil-skill\ndescription: |-\n  Use when it hurts.\n{lines[2:900]}\n"
        "license: Apache-2.0\nmetadata:\n  kmem-ops: softmax\n  kmem-bottlenecks: latency\n---\n"
        + "\n\n".join(f"## {title}\n{text}" for title, text in zip(SECTIONS, texts, strict=True))
    )
    return place


def fill_memory(path: Path, out_dir: Path) -> list[Attempt]:
    """A finished run `20260101-done`, a killed one, a hostile one, and two outcomes."""
    for name in ("20260101-dead", "20260101-evil"):
        (out_dir / name).mkdir(parents=True)
    write_entry(out_dir / "20260101-evil", "measure", EVIL)
    write_entry(out_dir / "20260101-dead", "measure", "3 of 12: online-softmax: passed")
    with Memory(path) as memory:
        done = make_run("20260101-done", out_dir)
        made = fill(memory, done)
        finish(memory, done, made)
        fill(memory, make_run("20260101-dead", out_dir, "layer_norm"))
        evil = make_run("20260101-evil", out_dir, EVIL)
        finish(memory, evil, fill(memory, evil, EVIL), EVIL)
        memory.ledger.record(make_outcome())
        memory.ledger.record(make_outcome(None, source="other"))
        memory.ledger.record(make_outcome(2.0, problem=EVIL, skill=EVIL, origin=EVIL))
    return made


@dataclass
class Answer:
    """What the server answered."""

    status: int
    headers: Mapping[str, str]
    text: str


@dataclass
class PageServer:
    """A server at work, and a client that has opened its address unless it is told otherwise."""

    keys: Keys

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.keys.port}"

    def ask(
        self,
        path: str,
        form: Mapping[str, str] | None = None,
        *,
        known: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """GET, or POST with a form; an empty header is left out."""
        sent = {"Cookie": f"{self.keys.cookie}={self.keys.token}"} if known else {}
        body = None
        if form is not None:
            body = urlencode({"token": self.keys.form_token, **form})
            sent |= {
                "Content-Type": "application/x-www-form-urlencoded",
                "Origin": self.origin,
            }
        sent = {name: value for name, value in (sent | dict(headers or {})).items() if value}
        connection = http.client.HTTPConnection("127.0.0.1", self.keys.port, timeout=30)
        try:
            connection.request("GET" if form is None else "POST", path, body, sent)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8")
            return Answer(answer.status, dict(answer.getheaders()), text)
        finally:
            connection.close()


@contextmanager
def serve_page(
    database: Path,
    registry: Registry,
    start: click.Command = optimize,
    checks: Sequence[Checked] = CHECKS,
    landscapes: Path = LANDSCAPES,
) -> Iterator[PageServer]:
    """The page over a database, until the block ends."""
    service = make_service(Parts(database, registry, start, lambda: checks, landscapes), 0)
    server, keys = service.server, service.keys
    thread = threading.Thread(target=service.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        yield PageServer(keys)
    finally:
        server.should_exit = True
        thread.join(30)


class Elements(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of every element of a kind."""
        return [attributes for name, attributes in self.found if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())
