"""`kmem mcp`, driven by a real MCP client over stdio: tools, bad calls, and what is recorded."""

import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from corpus import problems
from corpus.honest import GUARDED, LIBRARY
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import CallToolResult

from kmem.devices import named_target
from kmem.errors import BundleError, NotRegistered, TargetError
from kmem.mcp.tools import Tools
from kmem.mcp.verdicts import Verdict
from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect
from kmem.records import Baseline, Contract, Measurement, Move, Status, Timing
from kmem.run.evaluation.single import Terms, make_case

TOOLS = [
    "search_skills",
    "explain",
    "best_kernel",
    "profile",
    "diagnose",
    "verify",
    "measure",
    "record",
]


@pytest.fixture(autouse=True)
def words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "scale_relu.py"
    path.write_text(
        'print("a problem may print; stdout is the protocol all the same")\n' + problems.SCALE_RELU
    )
    return path


def serve(talk: Callable[[Client], Awaitable[None]], log: Path) -> None:
    """Start `kmem mcp` as an agent would, talk to it, and hang up."""
    environment = {name: os.environ[name] for name in ("KMEM_DB", "KMEM_EMBEDDING_MODEL", "PATH")}
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "kmem", "mcp"], env=environment
    )

    async def session() -> None:
        from mcp.client.stdio import stdio_client

        with log.open("w") as errors, anyio.fail_after(240):
            async with Client(stdio_client(server, errlog=errors)) as client:
                await talk(client)

    anyio.run(session)


def data_of(result: CallToolResult) -> dict[str, object]:
    assert not result.is_error, result.content[0].text
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


def error_of(result: CallToolResult) -> str:
    assert result.is_error
    (content,) = result.content
    assert "\n" not in content.text
    return content.text


@pytest.mark.slow
def test_an_agent_finds_reads_judges_and_is_told_what_is_wrong(
    problem: Path, tmp_path: Path
) -> None:
    said: dict[str, object] = {}

    async def talk(client: Client) -> None:
        listed = await client.list_tools()
        said["tools"] = [tool.name for tool in listed.tools]
        said["documented"] = all(
            tool.description
            and all("description" in entry for entry in tool.input_schema["properties"].values())
            for tool in listed.tools
        )
        said["found"] = data_of(
            await client.call_tool(
                "search_skills", {"query": "pooling", "operators": ["max_pool"], "limit": 2}
            )
        )
        said["skill"] = data_of(await client.call_tool("explain", {"skill": "separable-pooling"}))
        call = {"problem": str(problem), "kernel_source": GUARDED, "seed": 5}
        said["verdict"] = data_of(await client.call_tool("verify", call))
        said["best"] = data_of(await client.call_tool("best_kernel", {"problem": str(problem)}))
        bad_calls: list[tuple[str, dict[str, object]]] = [
            ("optimise", {}),
            ("verify", {}),
            ("verify", {"problem": str(problem), "kernal": "x"}),
            ("verify", {"problem": str(problem), "kernel_source": LIBRARY, "precision": "fp64"}),
            ("verify", {"problem": str(problem)}),
            ("verify", {"problem": str(problem), "kernel": "a.py", "kernel_source": LIBRARY}),
            ("verify", {"problem": str(tmp_path / "nothing.py"), "kernel_source": LIBRARY}),
            ("verify", {"problem": str(problem), "kernel": str(tmp_path / "nothing.py")}),
            ("verify", {"problem": str(problem), "kernel_source": "class Other: pass"}),
            ("explain", {"skill": "nothing"}),
            ("explain", {}),
            ("explain", {"run": "nothing"}),
            ("search_skills", {"query": "x", "operators": ["polling"]}),
            ("search_skills", {"query": "x", "limit": 0}),
            ("diagnose", {}),
            ("diagnose", {"report": str(tmp_path / "nothing.csv")}),
            ("profile", {"problem": str(problem), "target": "toaster"}),
            ("record", {"verdict": said["verdict"]["verdict"]}),
            ("record", {"verdict": "verdict-made-up", "skill": "separable-pooling"}),
        ]
        said["errors"] = [
            error_of(await client.call_tool(name, arguments)) for name, arguments in bad_calls
        ]
        said["after"] = data_of(await client.call_tool("search_skills", {"query": "softmax"}))

    serve(talk, tmp_path / "stderr.txt")
    assert said["tools"] == TOOLS
    assert said["documented"]
    assert len(said["found"]["skills"]) == 2
    assert said["found"]["skills"][0]["status"] == "bundled"
    assert "separable-pooling" in {skill["name"] for skill in said["found"]["skills"]}
    assert "## Mechanism" in said["skill"]["body"]
    assert (said["skill"]["status"], said["skill"]["record"]) == ("bundled", [])
    assert (said["verdict"]["status"], said["verdict"]["estimated"], said["verdict"]["flags"]) == (
        "passed",
        True,
        ["specialised"],
    )
    assert said["verdict"]["verdict"].startswith("verdict-")
    assert said["best"]["kernels"] == []
    expected = [
        (
            "No tool named 'optimise'; there are search_skills, explain, best_kernel, profile, "
            "diagnose, verify, measure, record"
        ),
        "verify cannot be called so: problem: field required",
        (
            "verify takes no argument 'kernal'; it takes problem, kernel, kernel_source, "
            "precision, purity, seed, target"
        ),
        "verify cannot be called so: precision: input should be 'match', 'tf32' or 'bf16'",
        "Give the kernel: kernel (a path) or kernel_source (its text)",
        "Give the kernel once: kernel (a path) or kernel_source (its text)",
        "No problem file at",
        "give the path of a Python file with ModelNew",
        "The kernel defines no ModelNew; name the class that replaces Model so",
        "No skill named 'nothing'; search_skills finds one of the ",
        "Say what to explain: either skill or run",
        "No run 'nothing' in this database",
        "'polling' is not an operator; they are: pointwise",
        "search_skills cannot be called so: limit: input should be greater than or equal to 1",
        "Say what to diagnose: problem (with a kernel, if there is one) or report",
        "nothing.csv",
        "toaster",
        (
            "The verdict was reached without a GPU, and the ledger holds nothing estimated; "
            "measure on a GPU to record it"
        ),
        (
            "The judge of this server gave no verdict named 'verdict-made-up'; call measure, "
            "then record the verdict it names"
        ),
    ]
    for error, text in zip(said["errors"], expected, strict=True):
        assert text in error
    assert said["after"]["skills"]
    assert "Traceback" not in (tmp_path / "stderr.txt").read_text()


@pytest.fixture
def tools() -> Tools:
    return Tools(collect(build_plugin_manager()))


def measured(
    problem: Path, source: str, latency_ms: float, *, status: Status = Status.PASSED
) -> Verdict:
    """A verdict as the judge gives it on a GPU."""
    ratio = 2.0 / latency_ms
    timing = Timing(
        latency_ms,
        latency_ms * 0.99,
        latency_ms * 1.01,
        30,
        "eager",
        2.0,
        ratio,
        ratio * 0.95,
        ratio * 1.05,
    )
    verdict = Measurement(status, timing if status is Status.PASSED else None, False)
    case = make_case(problem, source, Terms(Contract(), 7))
    return Verdict(
        case, named_target("h200"), verdict, (Baseline("eager", Timing(2.0, 1.9, 2.1, 30), False),)
    )


def test_a_measured_verdict_is_recorded_once_with_its_parent_and_seed(
    tools: Tools, problem: Path
) -> None:
    before = tools._verdicts.keep(measured(problem, LIBRARY, 1.0))
    after = tools._verdicts.keep(measured(problem, LIBRARY + "\n", 0.5))
    found = tools.record(after, "fuse-pointwise-chain", before)
    assert (found["is_new"], found["status"]) == (True, "passed")
    with Memory() as memory:
        (outcome,) = memory.ledger.outcomes()
        assert memory.runs.kernel(outcome.source_hash).parent == outcome.parent_hash
        assert outcome.origin == memory.contributors.own_name
    assert (outcome.hash, outcome.skill, outcome.move, outcome.seed) == (
        found["outcome"],
        "fuse-pointwise-chain",
        Move.FIX,
        7,
    )
    assert (outcome.latency_ms, outcome.parent_ms, outcome.ratio_low) == (0.5, 1.0, 3.8)
    known = tools.best_kernel(str(problem))["kernels"]
    assert [(hit["exact"], hit["source"]) for hit in known] == [(True, LIBRARY + "\n")]


def test_a_measured_failure_is_recorded_too(tools: Tools, problem: Path) -> None:
    failed = tools._verdicts.keep(measured(problem, LIBRARY, 1.0, status=Status.WRONG_VALUES))
    assert tools.record(failed)["status"] == "wrong_values"
    with Memory() as memory:
        assert [(outcome.skill, outcome.latency_ms) for outcome in memory.ledger.outcomes()] == [
            ("unaided", None)
        ]


def test_what_cannot_be_compared_or_is_not_known_is_not_recorded(
    tools: Tools, problem: Path
) -> None:
    good = tools._verdicts.keep(measured(problem, LIBRARY, 1.0))
    failed = tools._verdicts.keep(measured(problem, LIBRARY + "#\n", 1.0, status=Status.CRASHED))
    elsewhere = tools._verdicts.keep(
        replace(measured(problem, LIBRARY, 1.0), device=named_target("a100"))
    )
    with pytest.raises(BundleError, match="The parent did not pass"):
        tools.record(good, parent=failed)
    with pytest.raises(BundleError, match="of another problem, contract or device"):
        tools.record(good, parent=elsewhere)
    with pytest.raises(NotRegistered, match="No skill named 'invented'"):
        tools.record(good, "invented")
    with Memory() as memory:
        assert memory.ledger.outcomes() == []


def test_a_profile_and_a_diagnosis_without_a_gpu_are_estimates_with_skills_offered(
    tools: Tools, tmp_path: Path
) -> None:
    report = next((Path(__file__).parent / "recordings").rglob("*.csv"))
    found = tools.diagnose(report=str(report), operators=["softmax"], target="h200")
    assert found["diagnosis"]["bottleneck"]
    assert not found["diagnosis"]["estimated"]
    assert 1 <= len(found["prescriptions"]) <= 3
    assert all(each["reasons"] for each in found["prescriptions"])


def test_measuring_without_a_gpu_says_so(
    tools: Tools, problem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kmem.mcp.tools.detect_device", lambda: None)
    with pytest.raises(
        TargetError, match="No GPU here to measure on; verify judges a kernel without one"
    ):
        tools.measure(str(problem), kernel_source=LIBRARY)


def test_a_search_says_when_nothing_in_the_library_is_about_the_query(tools: Tools) -> None:
    assert tools.search_skills("the history of Rome") == {"fits": False, "skills": []}
    found = tools.search_skills("how do I make softmax faster", limit=1)
    assert found["fits"]
    assert [(hit["name"], hit["recipe"]) for hit in found["skills"]] == [("online-softmax", True)]


def test_a_retracted_skill_is_not_found_any_more(tools: Tools) -> None:

    assert "separable-pooling" in {
        skill["name"] for skill in tools.search_skills("separable pooling")["skills"]
    }
    with Memory() as memory:
        memory.standings.retract(tools._find_skill("separable-pooling"), "for this test")
    assert "separable-pooling" not in {
        skill["name"] for skill in tools.search_skills("separable pooling", limit=50)["skills"]
    }
    assert tools.explain(skill="separable-pooling")["standing"] == "retracted: for this test"
