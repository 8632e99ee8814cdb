"""Whole runs with a scripted model on a GPU: real SDK, compiler, judge and profiler; the times are measured, not scripted."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted_models import answer, diagnosis_answer, edit_answer, seed_answer
from scripted_server import Reply, ScriptedServer, Turn

from kmem.explore.roles import ROLES
from kmem.memory.store import Memory
from kmem.records import Attempt, Status

pytestmark = pytest.mark.gpu

PROBLEM = """import torch
ROWS = 16384
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0 + 1.0
def get_inputs():
    return [torch.randn(ROWS, 8192)]
"""
#: A pointwise chain with three faults, each of which costs another part of the time; the marked lines say which are mended.
KERNEL = """import torch
import triton
import triton.language as tl

FUSED = False
DIRECT = False
BLOCK = 64


@triton.jit
def chain(x_ptr, y_ptr, n, FIRST: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places, mask=places < n)
    if FIRST:
        x = tl.where(x < 0, 0.0, x) * 2.0
    if LAST:
        x = x + 1.0
    tl.store(y_ptr + places, x, mask=places < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous() if DIRECT else x.clone()
        y = torch.empty_like(x)
        n = x.numel()
        grid = (triton.cdiv(n, BLOCK),)
        if FUSED:
            chain[grid](x, y, n, FIRST=True, LAST=True, BLOCK=BLOCK, num_warps=4)
            return y
        chain[grid](x, y, n, FIRST=True, LAST=False, BLOCK=BLOCK, num_warps=4)
        z = torch.empty_like(x)
        chain[grid](y, z, n, FIRST=False, LAST=True, BLOCK=BLOCK, num_warps=4)
        return z
"""
LINE = "n = x.numel()"
REWRITES = {
    "launch one kernel for the whole chain": ("FUSED = False", "FUSED = True"),
    "read the input where it lies": ("DIRECT = False", "DIRECT = True"),
    "give each program a larger block": ("BLOCK = 64", "BLOCK = 1024"),
}
#: Whatever a rewrite mends, the kernel comes nearer to the bound.
CLAIM = {"metric": "speed_of_light", "comparison": ">=", "number": 1.02, "relative": True}

_PROMPTS = Path(__file__).parent.parent / "kmem" / "explore" / "prompts"
_FIRST_LINES = {(_PROMPTS / f"{role.name}.md").read_text().splitlines()[0]: role.name for role in ROLES}


def role_of(turn: Turn) -> str:
    return next(name for line, name in _FIRST_LINES.items() if turn.system.startswith(line))


def play(optimiser: Callable[[Turn], Reply], *changes: str) -> Callable[[Turn], Reply]:
    directions = [{"skill": "unaided", "change": text, "reason": "nearer to the bound", "claim": CLAIM} for text in changes]
    fixed = {
        "generator": Reply(seed_answer(["relu", "mul", "add"], KERNEL)),
        "diagnoser": Reply(diagnosis_answer(claim=CLAIM, evidence=["launches"])),
        "planner": Reply(answer({"directions": directions})),
        "reflector": Reply(answer({"lessons": []})),
    }
    return lambda turn: optimiser(turn) if role_of(turn) == "optimiser" else fixed[role_of(turn)]


def shown_kernel(turn: Turn) -> str:
    return next(block for block in re.findall(r"```python\n(.*?)```", turn.user, re.DOTALL) if "FUSED" in block)


def rewrite(turn: Turn) -> Reply:
    """The change asked for, made in the kernel shown; one that is in it already only adds a constant: the same binary, so a duplicate."""
    change = re.findall(r"^Change: (.*)$", turn.user, re.MULTILINE)[-1]
    source, (before, after) = shown_kernel(turn), REWRITES[change]
    return Reply(edit_answer(source.replace(before, after) if before in source else f"{source}\nDONE = {change!r}\n", LINE))


def optimise(home: Path, model: Callable[[Turn], Reply], rounds: int) -> tuple[dict, list[Attempt], ScriptedServer]:
    """`kmem optimize` with the model, in a process of its own; what it printed, its attempts, and the server that was asked."""
    problem = home / "chain.py"
    problem.write_text(PROBLEM)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"KMEM_DB": str(home / "kmem.db"), "KMEM_EMBEDDING_MODEL": "none", "OPENAI_API_KEY": "scripted"}
    words = ["optimize", str(problem), "--author", "llm", "-m", "openai/scripted", "--rounds", str(rounds), "--out", str(home / "run")]
    with ScriptedServer(model) as server:
        command = [sys.executable, "-m", "kmem", *words, "--base-url", server.url_openai, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=home, timeout=300)
    assert done.returncode in (0, 3), done.stderr
    found = json.loads(done.stdout)
    with Memory(home / "kmem.db") as memory:
        return found, memory.attempts(found["run"]), server


def test_three_known_rewrites_are_applied_in_order_of_measured_benefit(tmp_path: Path) -> None:
    _, attempts, _ = optimise(tmp_path, play(rewrite, *REWRITES), rounds=4)
    passed = [attempt for attempt in attempts if attempt.measurement.status is Status.PASSED]
    fastest = min(passed, key=lambda attempt: attempt.measurement.latency_ms)
    assert all(after in fastest.candidate.kernel.source for _, after in REWRITES.values())
    assert fastest.measurement.latency_ms < 0.6 * passed[0].measurement.latency_ms
    # Every round went on from the fastest kernel there was: the rewrite that helped most came first.
    for number in range(1, max(attempt.round for attempt in passed) + 1):
        earlier = [attempt for attempt in passed if attempt.round < number]
        best = min(earlier, key=lambda attempt: attempt.measurement.latency_ms)
        assert {attempt.candidate.kernel.parent for attempt in attempts if attempt.round == number} == {best.candidate.kernel.hash}
    for attempt in attempts:
        print(attempt.round, attempt.measurement.status.value, attempt.measurement.latency_ms, attempt.candidate.task.instruction)


def test_an_idea_that_was_refuted_is_not_tried_again(tmp_path: Path) -> None:
    def slower(turn: Turn) -> Reply:
        return Reply(edit_answer(shown_kernel(turn).replace("BLOCK = 64", "BLOCK = 32"), LINE))

    found, attempts, server = optimise(tmp_path, play(slower, "give each program a smaller block"), rounds=3)
    assert [role_of(turn) for turn in server.requests].count("optimiser") == 1
    assert "refuted" in found["reason"], found["reason"]
    assert [attempt.candidate.task.instruction for attempt in attempts].count("give each program a smaller block") == 1
