"""Kernels for problems without a search, and packages of them, for tools/check_shipped.py.

A kernel is the one that db/evidence remembers for a problem's graph, written anew; of a problem
that it does not know, what recipes write first. Nothing is judged here: who uses a package compares
its values.
"""

import ast
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from kmem.codegen.module.constants import source_at
from kmem.deploy.package import Package, export_package
from kmem.devices import detect_device, named_target
from kmem.explore.recipes.author import RecipeAuthor
from kmem.interfaces import Assignment
from kmem.measure.bundle import FORMAT, Bundle, write_bundle
from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect
from kmem.problem.sizing.workload import derive_small_workload
from kmem.problem.source.load import load_problem
from kmem.problem.source.substitution import substitute
from kmem.records import (
    Attempt,
    Baseline,
    Budget,
    Candidate,
    Contract,
    ErrorReport,
    Kernel,
    Measurement,
    Move,
    Problem,
    Run,
    RunResult,
    Status,
    Task,
    Timing,
)
from kmem.run.report.result import Result
from kmem.run.setup.session import Session, open_session

GPU = torch.cuda.is_available()
ROOT = Path(__file__).resolve().parent.parent
TARGET = detect_device() or named_target("h200")
#: Skills of which kernels are asked, those that move most bytes first; and how many of each. What
#: is predicted to be fastest comes first.
_SKILLS, _OF_EACH = 3, 2
_TASK = Task(Move.SEED, "", None, 1, "checked as it is shipped")


def write_kernels(
    problem: Problem, memory: Memory, most: int, of_each: int = _OF_EACH
) -> list[Kernel]:
    """The remembered winner of a problem's very graph; else at most so many that recipes write.

    Of each skill at most `of_each` are asked for. Without a GPU they are for the small sizes, as
    `at_small_sizes` has the problem.
    """
    registry = collect(build_plugin_manager())
    session = open_session(problem, Contract(), TARGET, GPU, registry, memory)
    hits = [hit for hit in memory.winners.recall(session.graph_key) if hit.exact]
    tasks = [
        replace(_TASK, move=Move.RECALL, skill=hit.outcome.skill, choices=hit.outcome.choices)
        for hit in hits[:1]
    ]
    found = [candidate for task in tasks for candidate in _written(session, task)]
    if not found:
        largest = sorted(session.writable, key=lambda name: -session.writable[name])
        skills = [*session.rewritten, *largest][:_SKILLS]
        tasks = [replace(_TASK, skill=skill, samples=of_each) for skill in skills]
        asked = [candidate for task in tasks for candidate in _written(session, task)]
        found = sorted(asked, key=lambda each: each.whole_ms or math.inf)
    texts = dict.fromkeys(source_at(each.kernel, "full" if GPU else "small") for each in found)
    return [Kernel(text) for text in list(texts)[:most]]


def _written(session: Session, task: Task) -> list[Candidate]:
    assignment = Assignment(
        traced=session.traced,
        parent=None,
        diagnosis=None,
        prescriptions=(),
        history=(),
        recipes=session.recipes,
        writable=session.writable,
        rewrites=session.rewrites,
        rewritten=session.rewritten,
        skills=session.skills,
        seed=0,
        task=task,
    )
    return RecipeAuthor().write(assignment)


def at_small_sizes(problem: Problem, place: Path) -> Problem:
    """A problem at the sizes of its small workload, as a file of its own."""
    workload = derive_small_workload(problem)
    text = ast.unparse(substitute(problem, dict(workload.constants)))
    if workload.small_inputs:
        text += "\n\nget_inputs = get_small_inputs\n"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")
    return load_problem(place)


def make_package(kernels: Sequence[tuple[Problem, Kernel]], directory: Path, name: str) -> Package:
    """A package of kernels that nobody has judged: no evidence in it counts."""
    runs = [
        _as_run(problem, kernel, directory / "runs" / str(place))
        for place, (problem, kernel) in enumerate(kernels)
    ]
    return export_package(runs, directory / "package", name, force=True)


def _as_run(problem: Problem, kernel: Kernel, directory: Path) -> Result:
    """A finished run that found a kernel, with the files that an export reads."""
    run = Run(
        directory.name, problem, TARGET.name, Contract(), Budget(), "off", 0, str(directory), ""
    )
    error = ErrorReport("none", 0, 0.0, 0.0, 0.0, 0.0)
    measurement = Measurement(Status.PASSED, Timing(1.0, 1.0, 1.0, 1), not GPU, (error,), ())
    attempt = Attempt(0, Candidate(kernel, _TASK, "recipes"), measurement, None)
    eager = Baseline("eager", Timing(1.0, 1.0, 1.0, 1), not GPU)
    found = attempt, (eager,), None, 1.0, None, False, 1, 1.0, "checked"
    outcome = RunResult(run.id, problem.name, TARGET.name, not GPU, *found)
    bundle = Bundle(
        FORMAT, problem, problem.hash, kernel.source, kernel.hash, (), "", Contract(), TARGET,
        GPU, 0, (), measurement, (eager,), {}, {}, (), {}, "tools/check_shipped.py", "",
    )  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "best_kernel.py").write_text(kernel.source, encoding="utf-8")
    write_bundle(directory / "evidence" / f"{kernel.hash}.json", bundle)
    return Result(run, outcome)
