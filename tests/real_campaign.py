"""A campaign for real: `kmem bench` as a process over tiny problems, killed in its midst.

Compiler, judge (in the interpreter), memory and both SDKs are the real ones; only the language
models are scripted (scripted_server.py). tools/run_campaign.py runs twelve problems, a test one.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import warm
from scripted_models import answer, diagnosis_answer, edit_answer, plan_answer, seed_answer
from scripted_server import Reply, ScriptedServer, Turn

from kmem.explore.models.roles import ROLES
from kmem.interfaces import StopReason

ROOT = Path(__file__).parent.parent
#: The operator of each problem: of the module, and as Triton has it.
OPERATORS = {
    "relu": ("torch.relu(x)", "tl.where(x < 0, 0.0, x)"),
    "sigmoid": ("torch.sigmoid(x)", "tl.sigmoid(x)"),
    "silu": ("torch.nn.functional.silu(x)", "x * tl.sigmoid(x)"),
    "square": ("x * x", "x * x"),
    "absolute": ("torch.abs(x)", "tl.abs(x)"),
    "exponential": ("torch.exp(-torch.abs(x))", "tl.exp(-tl.abs(x))"),
    "sine": ("torch.sin(x)", "tl.sin(x)"),
    "cosine": ("torch.cos(x)", "tl.cos(x)"),
    "cube": ("x * x * x", "x * x * x"),
    "negated": ("torch.neg(x)", "-x"),
    "clamped": ("torch.clamp(x, -1.0, 1.0)", "tl.where(x < -1, -1.0, tl.where(x > 1, 1.0, x))"),
    "leaky": ("torch.nn.functional.leaky_relu(x, 0.1)", "tl.where(x < 0, 0.1 * x, x)"),
}
_PROBLEM = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return {operator} + 1.5  # {name}


def get_inputs():
    return [torch.randn(64, 256)]
"""
_KERNEL = """import torch
import triton
import triton.language as tl

BLOCK = {block}


@triton.jit
def {name}_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place, mask=place < n)
    tl.store(y_ptr + place, {operator} + {added}, mask=place < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        {name}_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), BLOCK=BLOCK)
        return y
"""
_LINE = "y = torch.empty_like(x)"
_CLAIM = {"metric": "waves", "comparison": ">=", "number": 1.1, "relative": True}
_FIRST_LINES = {
    role.name: (ROOT / "kmem" / "explore" / "models" / "prompts" / f"{role.name}.md")
    .read_text(encoding="utf-8")
    .splitlines()[0]
    for role in ROLES
}
#: As a user of two vendors would say it: one writes, the other thinks.
_MODELS = ("openai/scripted-large", "diagnoser=anthropic/small", "planner=anthropic/small")


def write_problems(directory: Path, names: Sequence[str]) -> None:
    """Files of the problems of these operators, in the order of the bench."""
    directory.mkdir(parents=True)
    for place, name in enumerate(names, 1):
        text = _PROBLEM.format(operator=OPERATORS[name][0], name=name)
        (directory / f"{place}_{name}.py").write_text(text, encoding="utf-8")


def kernel(name: str, block: int, added: float = 1.5) -> str:
    return _KERNEL.format(name=name, operator=OPERATORS[name][1], block=block, added=added)


def role_of(turn: Turn) -> str:
    return next(role for role, line in _FIRST_LINES.items() if turn.system.startswith(line))


def problem_of(turn: Turn) -> str:
    return re.search(r"\+ 1\.5  # (\w+)", turn.messages[1].text)[1]


def well(role: str, name: str) -> str:
    """The answer of a model that does as it is told."""
    return {
        "generator": lambda: seed_answer([], kernel(name, 1024)),
        "diagnoser": lambda: diagnosis_answer(
            bottleneck="low_parallelism", evidence=["waves"], claim=_CLAIM
        ),
        "planner": lambda: plan_answer("unaided", claim=_CLAIM),
        "optimiser": lambda: edit_answer(kernel(name, 128), _LINE),
        "repairer": lambda: f"```python\n{kernel(name, 128)}```\n",
        "reflector": lambda: answer({"lessons": []}),
    }[role]()


def _bare(role: str, name: str, *, again: bool) -> Reply:
    """A file and nothing else."""
    text = well(role, name)
    return Reply(text[text.index("```python") :] if "```python" in text else text)


def _chats(role: str, name: str, *, again: bool) -> Reply:
    return Reply(well(role, name) if again else "Sure! I would use `class ModelNew` and tiles.")


def _refuses(role: str, name: str, *, again: bool) -> Reply:
    return Reply(well(role, name)) if again else Reply("I cannot.", StopReason.REFUSAL)


def _cut_off(role: str, name: str, *, again: bool) -> Reply:
    text = well(role, name)
    return Reply(text) if again else Reply(text[:60], StopReason.LENGTH)


def _wrong_values(role: str, name: str, *, again: bool) -> Reply:
    if role == "optimiser":
        return Reply(edit_answer(kernel(name, 128, added=2.5), _LINE))
    return Reply(well(role, name))


def _does_not_build(role: str, name: str, *, again: bool) -> Reply:
    if role == "optimiser":
        return Reply(edit_answer(kernel(name, 128).replace("tl.load", "tl.lood"), _LINE))
    return Reply(well(role, name))


def _small(role: str, name: str, *, again: bool) -> Reply:
    """No JSON where there is code, no imports at first, and another language's fence."""
    code = kernel(name, 128)
    if role not in ("generator", "optimiser", "repairer"):
        return Reply(well(role, name))
    if not again:
        return Reply(f"Here:\n```\n{code[code.index('BLOCK') :]}```\nDone!")
    return Reply(f"Step 1. Blocks of 128.\n\n```cpp\n{code}```\n\nStep 2. It is fast.")


def _good(role: str, name: str, *, again: bool) -> Reply:
    return Reply(well(role, name))


#: How the models answer about each problem in turn.
WAYS = (_good, _wrong_values, _bare, _does_not_build, _small, _chats, _refuses, _cut_off)


@dataclass
class Models:
    """Answers by problem; the question of a role about one problem is held, to be killed at."""

    held_at: tuple[str, str] | None = None
    held: bool = False
    limited: set[str] = field(default_factory=set)

    def play(self, turn: Turn) -> Reply:
        role, name = role_of(turn), problem_of(turn)
        if turn.wire not in self.limited:
            self.limited.add(turn.wire)
            return Reply(status=429, retry_after="0")
        if (name, role) == self.held_at and not self.held:
            self.held = True
            return Reply("never read", delay_s=600)
        way = WAYS[list(OPERATORS).index(name) % len(WAYS)]
        return way(role, name, again=sum(each.role == "user" for each in turn.messages) > 1)


@dataclass(frozen=True)
class Campaign:
    """A bench in a directory of its own, with its memory, and the server of its models."""

    home: Path
    server: ScriptedServer

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        prices = self.home / "prices.json"
        entry = {"usd_per_million_input": 1.0, "usd_per_million_output": 4.0}
        known = [
            {"model": model, "source": "made up", "date": "2026-11-23", **entry}
            for model in ("scripted-large", "small")
        ]
        prices.write_text(json.dumps({"prices": known}), encoding="utf-8")
        return kept | {
            "KMEM_DB": str(self.home / "kmem.db"),
            "KMEM_EMBEDDING_MODEL": "none",
            "KMEM_PRICES": str(prices),
            "OPENAI_API_KEY": "sk-any-key-will-do",
            "ANTHROPIC_API_KEY": "sk-any-key-will-do",
        }

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """`kmem bench` over the problems, or with --resume over what is left."""
        models = [word for model in _MODELS for word in ("-m", model)]
        asked = ["--base-url", self.server.url_openai]
        asked += ["--base-url", f"anthropic={self.server.url_anthropic}"]
        small = ["--rounds", "1", "--candidates", "1", "--baselines", "eager"]
        command = ["bench", "problems", "--target", "h200", "--author", "both", *models, *asked]
        with open(self.home / "bench.log", "a", encoding="utf-8") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "kmem", *command, *small),
                    *("--minutes-per-problem", "20", "--resume", "out", *words),
                ],
                stdout=log,
                stderr=log,
                text=True,
                cwd=self.home,
                env=self.environment,
            )

    def kmem(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return warm.run(*words, cwd=self.home, env=self.environment)

    def log(self) -> str:
        return (self.home / "bench.log").read_text(encoding="utf-8")

    def rows(self) -> list[dict]:
        path = self.home / "out" / "results.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def winners(self) -> dict[str, str]:
        """The source of the best kernel of each problem that has one."""
        return {
            path.parent.name.rsplit("-", 1)[0]: path.read_text(encoding="utf-8")
            for path in sorted((self.home / "out" / "runs").glob("*/best_kernel.py"))
        }

    def spent_usd(self) -> float:
        """What the models of all runs have cost."""
        usage = [entry for row in self.rows() for entry in row["result"]["usage"]]
        return sum(entry["usd"] for entry in usage if entry["role"] == "total")

    def replay(self) -> dict[str, list[str]]:
        """What differs in the replay of each run, by problem."""
        found = {}
        for row in self.rows():
            run = row["result"]["run"]
            done = self.kmem("runs", "replay", run, "--json", "--out", f"again-{run}")
            told = json.loads(done.stdout) if done.stdout else {"differences": [done.stderr]}
            found[row["problem"]] = told["differences"]
        return found

    def asked(self) -> Counter[tuple]:
        """How often each question was put that was answered or held."""
        return Counter(
            (turn.wire, turn.messages)
            for turn, reply in zip(self.server.requests, self.server.replies, strict=False)
            if reply.status == 200
        )


def kill_all(process: "subprocess.Popen[str]") -> int:
    """Kill -9 a process and everything under it; how many there were."""
    family = _stopped(process.pid)
    for pid in family:
        _signal(pid, signal.SIGKILL)
    process.wait()
    return len(family)


def _stopped(pid: int) -> list[int]:
    """A process and all under it, stopped, so that none starts another meanwhile."""
    _signal(pid, signal.SIGSTOP)
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            found += _stopped(int(child))
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_until_held(process: "subprocess.Popen[str]", models: Models) -> None:
    """Wait until the question is held.

    Raises:
        RuntimeError: if the bench ends before.
    """
    while not models.held:
        if process.poll() is not None:
            raise RuntimeError("the bench ended before the question that it was to be killed at")
        time.sleep(0.1)
