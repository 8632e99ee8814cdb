"""Run `kmem optimize --pieces` on many models, each within so many minutes, and write a table.

For KernelBench level 3 and for the models that ship, on a machine with a GPU:

    python tools/run_models.py KernelBench/level3 --out runs/level3 --jobs 6
    python tools/run_models.py problems/models --out runs/models
    python tools/run_models.py problems/models/vit.py --within 4 --out runs/smoke  # a look first
    python tools/run_models.py KernelBench/level3 --out runs/level3 --jobs 6 --dry  # how long

Each model ends within `--within` minutes, baselines and proofs included. `--jobs` run side by side
on each of `--gpus` cards and share the cores: search and compilation do, timings take turns. What
has finished is not done again, so a run that was ended goes on with the same command. The table in
DIR has one row a model; rows.jsonl beside it has all figures. A model's gain is over the best other
way to run it that is launched alike, eager among them; under CUDA graphs it is over the best that
is under CUDA graphs too.

`--dry` plans every model without a GPU (some ten seconds each) and says how long all would take.
What limits a card with many jobs is what nobody can share: timings, and max-autotune's own.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

from kmem.bench.sharing import share_cores
from kmem.errors import KmemError
from kmem.host.visible_gpus import visible_gpus
from kmem.whole.holding import with_baselines
from kmem.whole.proving.clock import is_graph
from kmem.whole.proving.proof import Proof

#: Beyond a model's minutes, for what was begun just before; then it is ended.
_GRACE_S = 120
#: Of one model, in seconds: until its first piece is begun, in the place of which figures of an
#: earlier run are put; max-autotune in the end, and the last proof. Of those the GPU is held alone,
#: for max-autotune's timings and for one piece that is tried. Guesses.
_OPENING_S, _BASELINES_S, _PROOF_S = 30.0, 60.0, 60.0
_HELD_S, _HELD_BY_PIECE_S = 60.0, 15.0
_COLUMNS = ("eager", "best", "ours", "gain", "best_graph", "graph", "graph_gain")
_TIMES = ("eager_ms", "composed_ms", "baselines_ms", "gains")


def main() -> None:
    asked = _read_arguments()
    asked.out.mkdir(parents=True, exist_ok=True)
    place = asked.out / "rows.jsonl"
    rows = [json.loads(line) for line in place.read_text().splitlines()] if place.exists() else []
    done = {row["file"] for row in rows}
    files = [file for file in _models(asked.models) if str(file) not in done]
    if asked.dry:
        with ThreadPoolExecutor(min(asked.jobs, len(files) or 1)) as pool:
            plans = list(pool.map(partial(_plan, asked=asked), files))
        sys.stdout.write(_outlook(plans, rows, asked))
        return
    places = _places(asked)
    with ThreadPoolExecutor(places.qsize()) as pool:
        for ended in as_completed([pool.submit(_run, file, asked, places) for file in files]):
            row = ended.result()
            rows.append(row)
            with place.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(row) + "\n")
            sys.stderr.write(f"{_describe(row)}\n")
            rows.sort(key=lambda row: _number(Path(row["file"])))
            (asked.out / "table.md").write_text(_table(rows), encoding="utf-8")


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, nargs="+", help="files, or directories of them")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--within", type=float, default=10.0, help="minutes of one; default: 10")
    parser.add_argument("--piece-minutes", type=float, default=1.5)
    parser.add_argument("--jobs", type=int, default=1, help="models at once on a card; default: 1")
    parser.add_argument("--gpus", type=int, default=0, help="cards; default: what torch uses")
    parser.add_argument("--dry", action="store_true", help="say how long it would take")
    parser.add_argument("--target", help="a device to estimate for, where there is no GPU")
    return parser.parse_args()


# --- how long it takes


def _plan(file: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """What would be tried: how many pieces, and why none can be."""
    command = [sys.executable, "-m", "kmem", "plan", str(file), "--json"]
    command += ["--target", asked.target or "h200"]
    ended = subprocess.run(command, capture_output=True, text=True)
    try:
        found = json.loads(ended.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        said = ended.stderr.strip().splitlines() or ["no word"]
        return {"name": file.stem, "pieces": 0, "fault": said[-1][:120]}
    worth = [each for each in found["pieces"] if each["saved_ms"] >= 0.01 * found["total_ms"]]
    return {"name": file.stem, "pieces": len(worth), "ms": found["total_ms"]}


def _outlook(
    plans: list[dict[str, Any]], rows: list[dict[str, Any]], asked: argparse.Namespace
) -> str:
    """Minutes of each model, of all with so many jobs, and what one card is held at least."""
    known = [row["began_s"] for row in rows if row.get("began_s")]
    began_s = statistics.median(known) if known else _OPENING_S
    ending_s = _BASELINES_S + _PROOF_S
    limit_s = asked.within * 60
    lines, whole_s, held_s = [], [], 0.0
    for plan in plans:
        if "fault" in plan:
            lines.append(f"{plan['name']}: {plan['fault']}")
            continue
        pieces_s = plan["pieces"] * (asked.piece_minutes * 60 + _PROOF_S / 2)
        takes_s = began_s + pieces_s + ending_s
        tried = plan["pieces"] * min(1.0, (limit_s - began_s - ending_s) / max(pieces_s, 1.0))
        whole_s.append(min(limit_s, takes_s))
        held_s += _HELD_S + _HELD_BY_PIECE_S * tried
        cut = f", {tried:.0f} of which fit" if takes_s > limit_s else ""
        lines.append(
            f"{plan['name']}: {whole_s[-1] / 60:.1f} min, {plan['pieces']} pieces{cut}, "
            f"eager {plan['ms']:.3g} ms"
        )
    ends = [0.0] * (max(1, asked.gpus) * asked.jobs)
    for each in whole_s:  # in their order, each where one ends first
        ends[ends.index(min(ends))] += each
    source = f"{len(known)} rows" if known else "guesses"
    lines.append(
        f"\n{len(whole_s)} models with {len(ends)} at once: {max(ends) / 60:.0f} min, and not "
        f"less than the {held_s / 60:.0f} min that they hold the card alone (from {source})"
    )
    return "\n".join(lines) + "\n"


def _models(places: list[Path]) -> list[Path]:
    found = []
    for place in places:
        files = sorted(place.glob("*.py"), key=_number) if place.is_dir() else [place]
        found += [file.resolve() for file in files]
    return found


def _number(file: Path) -> tuple[int, str]:
    """KernelBench numbers its files."""
    first = file.stem.split("_")[0]
    return (int(first) if first.isdigit() else 0), file.stem


def _places(asked: argparse.Namespace) -> "Queue[dict[str, str]]":
    """The environment of each model that runs at once: its card, and its share of the cores."""
    shared = {**os.environ, **share_cores(asked.out, asked.gpus, asked.jobs).environment}
    try:
        named = visible_gpus(asked.gpus) if asked.gpus else []
    except KmemError as ex:
        raise SystemExit(str(ex)) from None
    places: Queue[dict[str, str]] = Queue()
    for own in ([{"CUDA_VISIBLE_DEVICES": gpu} for gpu in named] or [{}]) * asked.jobs:
        places.put({**shared, **own})
    return places


def _run(file: Path, asked: argparse.Namespace, places: "Queue[dict[str, str]]") -> dict[str, Any]:
    """The row of a model, run on the next card that is free."""
    environment = places.get()
    try:
        return _run_in(file, asked, environment)
    finally:
        places.put(environment)


def _run_in(file: Path, asked: argparse.Namespace, environment: dict[str, str]) -> dict[str, Any]:
    out = asked.out / file.stem
    command = [sys.executable, "-m", "kmem", "optimize", str(file), "--pieces", "--json"]
    command += ["--within", f"{asked.within:g}", "--minutes", f"{asked.within:g}"]
    command += ["--piece-minutes", f"{asked.piece_minutes:g}"]
    command += ["--out", str(out), *(["--target", asked.target] if asked.target else [])]
    started = time.monotonic()
    row: dict[str, Any] = {"file": str(file), "name": file.stem}
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=asked.within * 60 + _GRACE_S,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return {**row, "fault": "it has not ended", "seconds": time.monotonic() - started}
    row["seconds"] = time.monotonic() - started
    (asked.out / f"{file.stem}.log").write_text(ended.stderr, encoding="utf-8")
    try:
        return {**row, **json.loads(ended.stdout.strip().splitlines()[-1])}
    except (ValueError, IndexError):
        said = ended.stderr.strip().splitlines() or ["no word"]
        return {**row, "fault": f"exit code {ended.returncode}: {said[-1][:200]}"}


def _figures(row: dict[str, Any]) -> dict[str, float | None]:
    """Times in milliseconds, and gains over the best other way that is launched alike.

    A model of which nothing is kept runs as it is, in the best way there is: its gain is 1, as a
    problem's is that `kmem bench` finds no improvement for.
    """
    before = Proof(True, "", **_times(row, "beginning"))
    kept = bool(row.get("proved") and row.get("proof"))
    found = with_baselines(Proof(True, "", **_times(row, "proof")), before) if kept else before
    times = {**found.baselines_ms, "eager": found.eager_ms}
    best = {is_graph(name): times[name] for name in found.best}
    gains = {graph: found.gain(graph=graph) for graph in (False, True)}
    return {
        "eager": found.eager_ms,
        "best": best.get(False),
        "ours": found.composed_ms if kept else None,
        "best_graph": best.get(True),
        "graph": found.baselines_ms.get("composed_graph") if kept else None,
        "gain": gains[False][1] if gains[False] else row.get("speedup", 1.0) if kept else 1.0,
        "graph_gain": gains[True][1] if gains[True] else 1.0,
    }


def _times(row: dict[str, Any], key: str) -> dict[str, Any]:
    """What a row holds of a proof's times."""
    found = row.get(key) or {}
    return {name: found[name] for name in _TIMES if found.get(name) is not None}


def _describe(row: dict[str, Any]) -> str:
    if "fault" in row:
        return f"{row['name']}: {row['fault']}"
    gain = _figures(row)["gain"]
    return f"{row['name']}: {gain or 1.0:.3f}x in {row['seconds']:.0f} s"


def _table(rows: list[dict[str, Any]]) -> str:
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
        found = _figures(row)
        gains.append(found["gain"] or 1.0)
        kept = sum(piece["status"] == "kept" for piece in row["pieces"])
        cells = [_cell(found[column]) for column in _COLUMNS]
        rest = (row.get("proof") or {}).get("rest", "-")
        parts = len(row.get("parts", row["pieces"]))
        lines.append(
            f"| {row['name']} | {' | '.join(cells)} | {kept} of {parts} | {rest} | "
            f"{row['seconds']:.0f} |"
        )
    if gains:
        mean = math.exp(sum(map(math.log, gains)) / len(gains))
        ahead, behind = sum(gain > 1.02 for gain in gains), sum(gain < 0.98 for gain in gains)
        kind = "estimated" if any(row.get("estimated") for row in rows) else "measured"
        lines.append(
            f"\n{len(gains)} of {len(rows)} ended; geometric mean {mean:.3f}x, {kind}; "
            f"{ahead} more than 2% faster, {behind} below 0.98."
        )
    return "\n".join(lines) + "\n"


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    main()
