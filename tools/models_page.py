"""Figures of `tools/run_models.py` as a table and as a page.

    python tools/models_page.py DIR... --page db/results-models.md

Each DIR has the rows.jsonl of a run; of a model that several of them ran, the last one counts. A
model's gain is over the best other way to run it that is launched alike, eager among them; under
CUDA graphs it is over the best that is under CUDA graphs too.
"""

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kmem.whole.holding import with_baselines
from kmem.whole.proving.clock import LATE, is_graph
from kmem.whole.proving.proof import Proof
from kmem.whole.turns import lacks_memory

_COLUMNS = ("eager", "best", "ours", "gain", "best_graph", "graph", "graph_gain")
_PEAKS = ("eager", "compile", "composed")
_TIMES = ("eager_ms", "composed_ms", "baselines_ms", "gains")


def figures_of(row: dict[str, Any]) -> dict[str, float | None]:
    """Times in milliseconds, and gains over the best other way that is launched alike.

    A model of which nothing is kept runs as it is, in the best way there is: its gain is 1, as a
    problem's is that `kmem bench` finds no improvement for. One whose compiled form had no time or
    no memory has none, for it would be one over eager.
    """
    before = Proof(True, "", **_times(row, "beginning"))
    kept = bool(row.get("proved") and row.get("proof"))
    found = with_baselines(Proof(True, "", **_times(row, "proof")), before) if kept else before
    times = {**found.baselines_ms, "eager": found.eager_ms}
    best = {is_graph(name): times[name] for name in found.best}
    gains: dict[bool, float | None] = {}
    for graph in (False, True):
        gain = found.gain(graph=graph)
        gains[graph] = gain[1] if gain else None
    if kept and lacks_a_way(row):
        gains = {False: None, True: None}
    elif not kept or gains[False] is None:
        gains = {False: row.get("speedup", 1.0) if kept else 1.0, True: 1.0}
    return {
        "eager": found.eager_ms,
        "best": best.get(False),
        "ours": found.composed_ms if kept else None,
        "best_graph": best.get(True),
        "graph": found.baselines_ms.get("composed_graph") if kept else None,
        "gain": gains[False],
        "graph_gain": gains[True],
    }


def lacks_a_way(row: dict[str, Any]) -> bool:
    """Whether `torch.compile` of a model was not timed for lack of memory or of time."""
    why = _last_proof(row).get("missing", {}).get("compile", "")
    return why == LATE or lacks_memory(RuntimeError(why))


def _times(row: dict[str, Any], key: str) -> dict[str, Any]:
    """What a row holds of a proof's times."""
    found = row.get(key) or {}
    return {name: found[name] for name in _TIMES if found.get(name) is not None}


def write_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| model | eager ms | best other ms | kmem ms | gain | best as a graph ms "
        "| kmem as a graph ms | gain | pieces | rest | seconds |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|---|--:|",
    ]
    gains = []
    for row in rows:
        if "fault" in row:
            lines.append(f"| {row['name']} | {row['fault']} {'| ' * 9}{row['seconds']:.0f} |")
            continue
        found = figures_of(row)
        if found["gain"] is not None:
            gains.append(found["gain"])
        kept = sum(piece["status"] == "kept" for piece in row["pieces"])
        cells = [_cell(found[column]) for column in _COLUMNS]
        rest = (row.get("proof") or {}).get("rest", "-")
        parts = len(row.get("parts", row["pieces"]))
        lines.append(
            f"| {row['name']} | {' | '.join(cells)} | {kept} of {parts} | {rest} | "
            f"{row['seconds']:.0f} |"
        )
    ended = sum("fault" not in row for row in rows)
    apart = f", {len(gains)} of them with a gain" if len(gains) < ended else ""
    if gains:
        mean = math.exp(sum(map(math.log, gains)) / len(gains))
        ahead, behind = sum(gain > 1.02 for gain in gains), sum(gain < 0.98 for gain in gains)
        timed = all(figures_of(row)["eager"] is not None for row in rows if "fault" not in row)
        kind = "measured" if timed else "estimated"
        lines.append(
            f"\n{ended} of {len(rows)} ended{apart}; geometric mean {mean:.3f}x, {kind}; "
            f"{ahead} more than 2% faster, {behind} below 0.98."
        )
    return "\n".join(lines) + "\n"


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


# ---- the page


def write_page(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: what ran where and how, the table, what each model's kernels stand for."""
    said = {
        "devices": distinct(row.get("device") for row in rows),
        "date": " to ".join(dict.fromkeys((_dates(rows)[0], _dates(rows)[-1]))),
        "versions": distinct(row.get("versions") for row in rows),
        "asked": distinct(row.get("asked") for row in rows),
    }
    lines = ["# Whole models", "", "Generated by tools/models_page.py; do not edit.", ""]
    lines += [f"- {name}: {text}" for name, text in said.items() if text]
    lines += [
        "",
        "Milliseconds of one forward; the best other way is the quickest of eager, `torch.compile`",
        "and max-autotune that is launched alike and was ready in time. `pieces` are those with",
        "kernels, of all that were to be tried. A model without any runs in the best other",
        "way: its gain is 1. One whose `torch.compile` lacked memory or time has none.",
        "",
        write_table(list(rows)),
        *("## Peak memory, MiB", "", "| model | eager | compile | kmem |", "|---|--:|--:|--:|"),
        *map(_peak_line, rows),
        *("", "## Ways without a time", ""),
        *(f"- {row['name']}: {missing}" for row in rows if (missing := _missing(row))),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _last_proof(row: dict[str, Any]) -> dict[str, Any]:
    return row.get("proof") or row.get("beginning") or {}


def _peak_line(row: dict[str, Any]) -> str:
    peaks = _last_proof(row).get("peak_bytes", {})
    cells = [f"{peaks[way] >> 20:,}" if way in peaks else "-" for way in _PEAKS]
    return f"| {row['name']} | {' | '.join(cells)} |"


def _missing(row: dict[str, Any]) -> str:
    """Which ways to run a model have no time, and why."""
    found = _last_proof(row).get("missing", {})
    return "; ".join(f"{way}: {_first(why)}" for way, why in found.items())


def _first(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:120]


def _dates(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(row["date"] for row in rows if row.get("date")) or [""]


def distinct(values: Iterable[str | None]) -> str:
    """Those that there are, each once, as one text."""
    return "; ".join(dict.fromkeys(value for value in values if value))


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--page", type=Path, default=Path("db/results-models.md"))
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    for directory in options.directories:
        for line in (directory / "rows.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            rows[row["name"]] = row
    ordered = sorted(rows.values(), key=lambda row: row["name"])
    options.page.write_text(write_page(ordered), encoding="utf-8")


if __name__ == "__main__":
    main()
