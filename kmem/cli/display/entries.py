"""Runs in a list: where each stands as text for people and as data for programs."""

from pathlib import Path

from kmem.memory.runs.entries import RunEntry
from kmem.records import Measurement, RunState
from kmem.run import directory

#: Why a run has no figure is told in so many characters of a list.
_REASON_AT_MOST = 60


def seen_state(entry: RunEntry) -> str:
    """The state in memory, but "killed" for a run that ended without a word."""
    return directory.seen_state(entry.state, Path(entry.run.out_dir))


def describe_time(latency_ms: float, *, estimated: bool) -> str:
    """A time as lists show it."""
    return f"{latency_ms:.4g} {'ms est.' if estimated else 'ms'}"


def describe_measured(measurement: Measurement) -> str:
    """The time of a measurement; empty if it has none."""
    if measurement.latency_ms is None:
        return ""
    return describe_time(measurement.latency_ms, estimated=measurement.estimated)


def describe_entry(entry: RunEntry) -> str:
    """One line: id, when, state, problem, device, and what came of it or why nothing did."""
    run = entry.run
    when = run.created_at[:16].replace("T", " ")
    return (
        f"{run.id}  {when}  {seen_state(entry):11}  {run.problem.name:24} {run.target:8} "
        f"{_describe_outcome(entry)}"
    ).rstrip()


def _describe_outcome(entry: RunEntry) -> str:
    result = entry.result
    if result is not None and result.best is not None and result.speedup is not None:
        return f"{describe_measured(result.best.measurement)}, {result.speedup:.2f}x"
    if result is not None and entry.state is RunState.FINISHED:
        return _shorten(f"no gain: {result.reason}")
    parts = []
    if entry.best_ms is not None:
        time = describe_time(entry.best_ms, estimated=entry.estimated)
        parts.append(f"best so far {time}, not verified")
    if entry.state is RunState.FAILED and entry.failure:
        parts.append(_shorten(entry.failure))
    return "; ".join(parts)


def _shorten(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= _REASON_AT_MOST else f"{line[:_REASON_AT_MOST]}…"


def entry_data(entry: RunEntry) -> dict[str, object]:
    """Times in ms; null while the run has no result, or where nothing beat the best baseline.

    `reason` says why a finished run stopped or why another has not finished; `best_so_far_ms` is
    that of the fastest kernel that passed its screening.
    """
    run, result = entry.run, entry.result
    return {
        "run": run.id,
        "problem": run.problem.name,
        "target": run.target,
        "created_at": run.created_at,
        "state": seen_state(entry),
        "latency_ms": result.best.measurement.latency_ms if result and result.best else None,
        "speedup": result.speedup if result else None,
        "estimated": result.estimated if result else None,
        "best_so_far_ms": entry.best_ms,
        "reason": entry.failure or (result.reason if result else ""),
        "out": run.out_dir,
    }
