"""Problems and emitted modules given as text: traced, written, imported."""

import atexit
import importlib.util
import shutil
import sys
import tempfile
import types
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from kmem.codegen.module.assemble import assemble_module
from kmem.codegen.module.plan import SitePlan, WorkloadPlan
from kmem.problem.graph import OpGraph
from kmem.recipes import Recipe, Settings, Site
from kmem.records import Precision, Problem, Workload

_FULL = Workload("full")


@cache
def trace_once(
    problem: Problem, precision: Precision = Precision.MATCH, workload: Workload = _FULL
) -> OpGraph:
    """Execute and trace a problem; the graph of each problem is traced once in a process."""
    from kmem.problem.source.load import execute_problem  # imports torch
    from kmem.problem.tracing.trace import trace_problem

    return trace_problem(execute_problem(problem, workload), precision)


def trace_source(
    source: str, precision: Precision = Precision.MATCH
) -> tuple[types.ModuleType, OpGraph]:
    """Execute a problem given as text and trace it; see `trace_once`."""
    from kmem.problem.source.load import execute_problem  # imports torch

    problem = Problem("inline", "<inline>", source)
    return execute_problem(problem), trace_once(problem, precision)


@cache
def _own_directory() -> str:
    """A directory of this process, gone when the process ends."""
    place = tempfile.mkdtemp(prefix="kmem-test-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


def import_source(source: str, directory: str | Path | None = None) -> types.ModuleType:
    """Import module text from a real file, which triton.jit needs to read its functions back.

    Args:
        directory: where the file is written; by default a directory that ends with the process.
    """
    file = Path(directory or _own_directory()) / f"emitted_{abs(hash(source)):x}.py"
    file.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None, f"{file} is no Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def emit_source(
    source: str, graph: OpGraph, choices: Sequence[tuple[Recipe, Site, Settings]]
) -> str:
    """The module text of a problem for one workload, with these sites replaced.

    Args:
        source: the problem's text.
        graph: what was traced of it.
        choices: recipe, site and settings of each part that a recipe writes.
    """
    plans = tuple(
        SitePlan(site, recipe.emit(site, settings), recipe.name)
        for recipe, site, settings in choices
    )
    return assemble_module("conformance check", source, [WorkloadPlan("full", graph, plans)]).source
