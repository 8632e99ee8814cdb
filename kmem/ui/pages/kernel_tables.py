"""The tables of a candidate: errors, claims, the profile before and after, launches."""

from collections.abc import Mapping, Sequence

from kmem.diagnose.signature import make_signature
from kmem.records import Attempt, ClaimCheck, Device, ErrorReport, Launch, Lesson, Profile
from kmem.ui.figures import Origin, time_cell
from kmem.ui.requests import Export, PageRequest
from kmem.ui.tables import Cell, Column, Row, TableView, view_table
from kmem.vocabulary import SIGNATURE_METRICS

ERRORS = (
    Column("family", "Inputs"),
    Column("seed", "Seed", numeric=True),
    Column("error", "This kernel", numeric=True),
    Column("eager", "Eager", numeric=True),
    Column("allowed", "Allowed", numeric=True),
    Column("excess", "Of allowed", numeric=True),
)
CLAIMS = (
    Column("claim", "Claim"),
    Column("before", "Before", numeric=True),
    Column("after", "After", numeric=True),
    Column("held", "Came true"),
)
METRICS = (
    Column("metric", "Metric"),
    Column("parent", "Parent", numeric=True),
    Column("kernel", "This kernel", numeric=True),
    Column("change", "Change", numeric=True),
)
LAUNCHES = (
    Column("launch", "Launch", wraps=True),
    Column("time_ms", "Time", numeric=True),
    Column("figures", "Figures"),
    Column("grid", "Grid"),
    Column("block", "Block"),
    Column("counters", "Counters", numeric=True),
)
_HELD = {True: "held", False: "refuted", None: "unknown"}


def kernel_tables(
    attempt: Attempt,
    errors: Sequence[ErrorReport],
    lessons: Sequence[Lesson],
    profiles: Mapping[str, Sequence[Profile]],
    device: Device | None,
    origin: Origin,
    request: PageRequest,
) -> dict[str, TableView | Export]:
    """Every table that has rows, by name.

    Args:
        profiles: of this kernel and of its parent, by their hashes.
    """
    kernel = attempt.candidate.kernel
    own = profiles.get(kernel.hash, ())
    before = profiles.get(kernel.parent or "", ())
    tables: dict[str, tuple[Sequence[Column], Sequence[Row]]] = {
        "errors": (ERRORS, [_error_row(error) for error in errors]),
        "claims": (CLAIMS, _claim_rows(attempt, lessons)),
        "metrics": (METRICS, _metric_rows(before, own, device)),
        "launches": (
            LAUNCHES,
            [_launch_row(launch, origin) for profile in own for launch in profile.launches],
        ),
    }
    return {
        name: view_table(name, columns, rows, request.part(name))
        for name, (columns, rows) in tables.items()
        if rows
    }


def _number(value: float | None) -> Cell:
    return Cell(value, f"{value:.4g}" if value is not None else None)


def _error_row(error: ErrorReport) -> Row:
    return {
        "family": Cell(error.family),
        "seed": Cell(error.seed),
        "error": _number(error.relative_error),
        "eager": _number(error.reference_error),
        "allowed": _number(error.allowed_error),
        "excess": Cell(error.excess, f"{error.excess:.2g}"),
    }


def _claim_rows(attempt: Attempt, lessons: Sequence[Lesson]) -> list[Row]:
    """Each claim with what was measured; one that nobody could check is unknown."""
    checks = {str(check.claim): check for lesson in lessons for check in lesson.checks}
    for claim in attempt.candidate.task.claims:
        checks.setdefault(str(claim), ClaimCheck(claim, None, None, None))
    return [
        {
            "claim": Cell(text, kind="code"),
            "before": _number(check.before),
            "after": _number(check.after),
            "held": Cell(_HELD[check.held], kind="status"),
        }
        for text, check in checks.items()
    ]


def _metric_rows(
    before: Sequence[Profile], own: Sequence[Profile], device: Device | None
) -> list[Row]:
    if not own or device is None:
        return []
    new = dict(make_signature(own[-1], device, own[-1].bound).values)
    same = [each for each in before if each.profiler == own[-1].profiler]
    old = dict(make_signature(same[-1], device, same[-1].bound).values) if same else {}
    return [
        {
            "metric": Cell(metric, kind="code"),
            "parent": _number(old.get(metric)),
            "kernel": _number(new.get(metric)),
            "change": _change(old.get(metric), new.get(metric)),
        }
        for metric in SIGNATURE_METRICS
        if metric in new or metric in old
    ]


def _change(old: float | None, new: float | None) -> Cell:
    if old is None or new is None or not old:
        return Cell(None)
    change = new / old - 1
    return Cell(change, f"{change:+.0%}" if abs(change) >= 0.005 else "none")


def _launch_row(launch: Launch, origin: Origin) -> Row:
    return {
        "launch": Cell(launch.name, kind="code"),
        "time_ms": time_cell(launch.duration_ms, origin),
        "figures": Cell(origin.kind, kind=origin.kind, hint=str(origin)),
        "grid": Cell(" × ".join(map(str, launch.grid or ())), kind="code"),
        "block": Cell(" × ".join(map(str, launch.block or ())), kind="code"),
        "counters": Cell(len(launch.metrics)),
    }
