"""The pieces of a model written as problem files, and told in a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kmem.records import Precision
from kmem.run.directory import RunDirectory
from kmem.whole.cutting.free_sizes import Before, find_sizes
from kmem.whole.cutting.pieces import PieceGroup
from kmem.whole.cutting.values import Spread, look_at_values, usual_spread
from kmem.whole.cutting.write_piece import Facts, write_problem_file
from kmem.whole.graphs.capture import Captured
from kmem.whole.graphs.source import ModelSource


def write_pieces(
    directory: RunDirectory,
    source: ModelSource,
    captured: Captured,
    groups: Sequence[PieceGroup],
    precision: Precision,
) -> list[Path]:
    """Write a file for each piece, and for each backward; returns the pieces' paths in order."""
    wanted = {name for group in groups for name in group.places[0].piece.inputs}
    wanted |= {name for group in groups if group.joint for name in group.joint.forward.outputs}
    seen = look_at_values(source, captured, wanted, precision)
    for group in groups:
        if group.joint is not None:
            text = backward_text(captured, group, seen)
            directory.write_text(f"{group.backward_name}.py", text)
    return [
        directory.write_text(f"{group.name}.py", piece_text(captured, group, seen))
        for group in groups
    ]


def piece_text(captured: Captured, group: PieceGroup, seen: Mapping[str, Spread]) -> str:
    """The problem file of a piece."""
    place = group.places[0]
    graph = group.forward
    title = _title(captured, group, ", ".join(dict.fromkeys(group.operators)))
    return write_problem_file(graph, Facts(title, find_sizes(graph), place.piece.state, seen))


def backward_text(captured: Captured, group: PieceGroup, seen: Mapping[str, Spread]) -> str:
    """The problem file of a piece's backward; gradients are drawn from a normal distribution."""
    joint = group.joint
    if joint is None:
        raise ValueError(f"{group.name} has no backward")
    before = Before(joint.forward, joint.gradients_given, joint.gradients_made)
    sizes = find_sizes(joint.backward, before)
    held = [each for each in group.graph.placeholders if each.kind in ("parameter", "buffer")]
    named = dict(zip((each.name for each in held), group.places[0].piece.state, strict=True))
    spreads = {
        each.name: seen.get(named[each.name]) or usual_spread(named[each.name], each.spec)
        for each in held
        if each.spec is not None
    }
    # what was seen of an output is nothing of its gradient
    spreads |= {name: seen[name] for name in joint.given if name in seen}
    title = _title(captured, group, f"backward of {', '.join(dict.fromkeys(group.operators))}")
    return write_problem_file(joint.backward, Facts(title, sizes, (), spreads))


def _title(captured: Captured, group: PieceGroup, what: str) -> str:
    where = group.module or "the model itself"
    title = f"{what} of {captured.name}, in {where}"
    if len(title) > 90:
        title = f"{len(group.graph.nodes)} operators of {captured.name}, in {where}"
    return title


def describe_pieces(
    groups: Sequence[PieceGroup], total_ms: float, known: Mapping[str, float]
) -> list[dict[str, Any]]:
    """A row for each piece, times in milliseconds of one forward.

    Args:
        known: by name of a piece, what memory holds for one call.
    """
    rows = []
    for group in groups:
        remembered = known.get(group.name)
        saved = group.saved_ms()
        if remembered is not None:
            saved = max(0.0, group.eager_ms - remembered) * group.calls
        rows.append(
            {
                "name": group.name,
                "module": group.module,
                "operators": list(group.operators),
                "places": [place.piece.module for place in group.places],
                "calls": group.calls,
                "eager_ms": group.total_ms,
                "share": group.total_ms / total_ms if total_ms > 0 else 0.0,
                "least_ms": group.least_ms * group.calls,
                "remembered_ms": None if remembered is None else remembered * group.calls,
                "saved_ms": saved,
            }
        )
    return rows
