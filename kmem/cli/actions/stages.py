"""The first three stages on their own: profile, diagnose, prescribe.

A problem's file is loaded with torch; a profile that is diagnosed without one waits for no torch.
"""

import logging
from dataclasses import replace
from pathlib import Path

from kmem.cli.options.stages import DiagnoseOptions, PrescribeOptions, ProfileOptions
from kmem.devices import detect_device, named_target, resolve_target
from kmem.diagnose.bottleneck import diagnose
from kmem.errors import RecipeError
from kmem.memory.ledger.track_records import installed_versions
from kmem.memory.store import Memory
from kmem.plugins import Registry, lookup
from kmem.prescribe.consult import consult_memory
from kmem.prescribe.gate import SkillQuery
from kmem.problem.features.mode import in_mode
from kmem.problem.features.naming import name_operators
from kmem.problem.traced import TracedProblem, trace_at_full_size
from kmem.profile.collect import collect_profile
from kmem.profile.job import reference_kernel
from kmem.profile.ncu_csv import read_report
from kmem.records import (
    Bound,
    Contract,
    Device,
    Diagnosis,
    Kernel,
    Precision,
    Prescription,
    Profile,
)
from kmem.skills import load_library, load_recipes

logger = logging.getLogger(__name__)

_DEFAULT_REPORT_TARGET = "h200"


def profile_problem(
    problem: Path, kernel: Path | None, options: ProfileOptions, registry: Registry
) -> Profile:
    """Profile one forward of a kernel file, by default of the problem's own Model."""
    from kmem.problem.source.load import load_problem  # loads torch

    loaded = in_mode(load_problem(problem), options.mode)
    device, present = resolve_target(options.target)
    candidate = Kernel(kernel.read_text(encoding="utf-8")) if kernel else reference_kernel(loaded)
    traced = trace_at_full_size(loaded, Contract(Precision(options.precision)), device)
    found = collect_profile(
        candidate,
        traced,
        registry.profilers,
        lookup(registry.executors, "local", "executor"),
        present=present,
        name=options.profiler,
    )
    return replace(found, operators=graph_operators(traced, registry))


def graph_operators(traced: TracedProblem, registry: Registry) -> tuple[str, ...]:
    """The operators of a graph as a run names them: those that recipes see as a whole, too."""
    from kmem.explore.recipes.cover import find_options  # loads what recipes write with

    recipes, _ = load_recipes(load_library(registry.skills).values())
    parts: list[tuple[str, tuple[str, ...]]] = []
    for name, recipe in recipes.items():
        try:
            options = find_options(traced.graphs, {name: recipe}, traced.contract, traced.device)
        except RecipeError as ex:  # one skill's fault must not end the profile
            logger.warning("Warning: the recipe %s names no operators: %s", name, ex)
            continue
        parts += [(option.site.operator, option.site.nodes) for option in options]
    return name_operators(traced.graph, parts, traced.device, traced.contract)


def read_report_profile(path: Path, target: str | None) -> Profile:
    """The profile in an Nsight Compute report.

    Raises ProfilerError if it cannot be read.
    """
    return Profile("", "ncu", target or "", False, read_report(path))


def diagnose_profile(profile: Profile, options: DiagnoseOptions) -> Diagnosis:
    """Name the bottleneck of a profile.

    Without a problem the bound is the profile's own, if it has one; without a target the device is
    the profile's, else the GPU here, else h200.

    Raises:
        TargetError, ProblemError: as their names say.
    """
    device = _resolve_device(options.target or profile.device or None)
    bound = profile.bound
    if options.problem:
        bound = _trace_bound(options.problem, options.precision, device)
    return diagnose(profile, device, bound, latency_ms=options.latency_ms)


def diagnose_report(path: Path) -> Diagnosis:
    """Diagnose an Nsight Compute report file, a CSV or .ncu-rep, without its problem.

    Raises ProfilerError: if the report cannot be read.
    """
    options = DiagnoseOptions(path, None, None, "match", None)
    return diagnose_profile(read_report_profile(path, None), options)


def prescribe(
    diagnosis: Diagnosis, options: PrescribeOptions, registry: Registry
) -> tuple[Prescription, ...]:
    """Skills against what a diagnosis found, best first.

    Without operators in the options they are the diagnosis' own, which come from the graph.
    """
    device = _resolve_device(options.target)
    contract = Contract(Precision(options.precision))
    with Memory.to_read() as memory:
        library = list(load_library(registry.skills).values())
        memory.skills.sync(library)
        operators = options.operators or diagnosis.operators
        query = SkillQuery(diagnosis, operators, device.arch, contract)
        return consult_memory(memory, query, library, installed_versions(), limit=options.limit)


def _resolve_device(name: str | None) -> Device:
    present = detect_device()
    if name and present is not None and name.lower() == present.name:
        return present
    if name:
        return named_target(name)
    return present or named_target(_DEFAULT_REPORT_TARGET)


def _trace_bound(problem: Path | str, precision: str, device: Device) -> Bound | None:
    from kmem.problem.source.load import load_problem  # loads torch

    contract = Contract(Precision(precision))
    return trace_at_full_size(load_problem(problem), contract, device).bound
