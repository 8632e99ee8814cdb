"""Trace a problem, choose the settings to record, and write a kernel for each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from kmem.codegen.module.assemble import assemble_module
from kmem.codegen.module.plan import WorkloadPlan
from kmem.explore.recipes.cover import find_options
from kmem.explore.recipes.writing import write_kernel
from kmem.interfaces import Assignment
from kmem.learning.landscape import (
    FORMAT,
    Header,
    LandscapeDirectory,
    Point,
    operator_family,
    record_sites,
)
from kmem.learning.recording.request import Asked, is_same_work
from kmem.learning.recording.sampling import Sampling, leading_settings, sample_drafts
from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect
from kmem.problem.graph import graph_sizes
from kmem.problem.source.load import execute_problem
from kmem.problem.traced import TracedProblem
from kmem.problem.tracing.trace import trace_problem
from kmem.records import Kernel, Move, Problem, Task
from kmem.run.setup.session import Session, open_session, versions


@dataclass(frozen=True, slots=True)
class Written:
    """A problem whose settings are chosen and written.

    `known` are verdicts of an earlier recording, by source hash.
    """

    header: Header
    traced: TracedProblem  # named as in the header
    # with the cost model's times; the first is the module as it is
    kernels: tuple[tuple[Kernel, float | None], ...]
    known: dict[str, Point]

    @property
    def name(self) -> str:
        return self.header.problem.name


def write_problem(
    problem: Problem, siblings: Sequence[Problem], asked: Asked, root: Path, scratch: Path
) -> Written:
    """Trace a problem, choose and write its settings, and begin its landscape if need be."""
    registry = collect(build_plugin_manager())
    place = scratch / problem.name
    place.mkdir(parents=True, exist_ok=True)
    # recording remembers nothing, but a session wants a memory to keep its skill library in
    memory = Memory(place / "kmem.db")
    try:
        session = open_session(
            problem, asked.contract, asked.device, asked.present, registry, memory
        )
    finally:
        memory.close()
    kernels = _write(session, siblings, asked)
    header = _header(session, asked)
    known = _known(
        LandscapeDirectory(root), header, problem, asked, {kernel.hash for kernel, _ in kernels}
    )
    return Written(header, replace(session.traced, problem=header.problem), tuple(kernels), known)


def _write(
    session: Session, siblings: Sequence[Problem], asked: Asked
) -> list[tuple[Kernel, float | None]]:
    """Kernels with the cost model's times: the module as it is first, then one per setting."""
    options = find_options(session.traced.graphs, session.recipes, asked.contract, asked.device)
    elsewhere = []
    for sibling in siblings:
        graph = trace_problem(execute_problem(sibling), asked.contract.precision)
        found = find_options({"full": graph}, session.recipes, asked.contract, asked.device)
        elsewhere.append(leading_settings(found, asked.settings))
    sampling = Sampling(asked.settings, asked.seed, tuple(elsewhere))
    drafts = sample_drafts(session.traced.graph, options, asked.contract, asked.device, sampling)
    plans = [WorkloadPlan(name, graph, ()) for name, graph in session.traced.graphs.items()]
    title = f"{session.traced.problem.name}: as it is"
    module = assemble_module(title, session.traced.problem.source, plans)
    as_it_is = Kernel(module.source, small_constants=module.constants.get("small", ""))
    written: list[tuple[Kernel, float | None]] = [(as_it_is, None)]
    for draft in drafts:
        task = Task(Move.SEED, draft.skill, None, 1, "a setting of the landscape")
        assignment = Assignment(
            traced=session.traced,
            parent=None,
            diagnosis=None,
            prescriptions=(),
            history=(),
            recipes=session.recipes,
            seed=asked.seed,
            task=task,
        )
        kernel = write_kernel(assignment, draft.cover, draft.settings, draft.choices)
        written.append((kernel, draft.estimated_ms))
    return written


def _header(session: Session, asked: Asked) -> Header:
    sites = record_sites(
        find_options(session.traced.graphs, session.recipes, asked.contract, asked.device)
    )
    return Header(
        format=FORMAT,
        # where the file lay here means nothing elsewhere
        problem=replace(session.traced.problem, path=f"{session.traced.problem.name}.py"),
        family=operator_family(sites),
        operators=session.operators,
        sites=sites,
        graph_hash=session.traced.graph.hash,
        structure_hash=session.traced.graph.structure_hash,
        sizes=graph_sizes(session.traced.graph),
        device=asked.device,
        contract=asked.contract,
        estimated=not asked.present,
        seed=asked.seed,
        settings=asked.settings,
        versions=versions(),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _known(
    directory: LandscapeDirectory, header: Header, problem: Problem, asked: Asked, wanted: set[str]
) -> dict[str, Point]:
    """What an earlier recording found out, by source hash.

    A landscape of other work is started over.
    """
    kept = directory.find(problem.name)
    if kept is None or not is_same_work(kept.header, problem, asked):
        directory.begin(header)
        return {}
    return {point.source_hash: point for point in kept.points if point.source_hash in wanted}
