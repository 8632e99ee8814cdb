"""The pieces of a model written as problem files, and told in a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kmem.problem.graph import OpGraph
from kmem.records import Precision
from kmem.run.directory import RunDirectory
from kmem.whole.cutting.free_sizes import find_sizes
from kmem.whole.cutting.pieces import PieceGroup
from kmem.whole.cutting.values import Spread, look_at_values
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
    """Write a file for each piece; returns their paths in the same order."""
    wanted = {name for group in groups for name in group.places[0].piece.inputs}
    seen = look_at_values(source, captured, wanted, precision)
    return [
        directory.write_text(f"{group.name}.py", piece_text(captured, group, seen))
        for group in groups
    ]


def piece_text(captured: Captured, group: PieceGroup, seen: Mapping[str, Spread]) -> str:
    """The problem file of a piece."""
    place = group.places[0]
    graph: OpGraph = group.graph
    where = group.module or "the model itself"
    title = f"{', '.join(dict.fromkeys(group.operators))} of {captured.name}, in {where}"
    if len(title) > 90:
        title = f"{len(graph.nodes)} operators of {captured.name}, in {where}"
    return write_problem_file(graph, Facts(title, find_sizes(graph), place.piece.state, seen))


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
