"""Run `kmem optimize --pieces` on many models, each within so many minutes, and write a table.

For KernelBench level 3 and for the models that ship, on a machine with a GPU:

    python tools/run_models.py KernelBench/level3 --out runs/level3 --jobs 6
    python tools/run_models.py problems/models --out runs/models
    python tools/run_models.py problems/models/vit.py --within 4 --out runs/smoke  # a look first
    python tools/run_models.py KernelBench/level3 --out runs/level3 --jobs 6 --dry  # how long

Each model ends within `--within` minutes, baselines and proofs included. `--jobs` run side by side
on each of `--gpus` cards and share the cores: search and compilation do, timings take turns. What
has finished is not done again, so a run that was ended goes on with the same command. The table in
DIR has one row a model; rows.jsonl beside it has all figures, of which tools/models_page.py makes a
page.

`--dry` plans every model without a GPU (some ten seconds each) and says how long all would take.
What limits a card with many jobs is what nobody can share: timings, and max-autotune's own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

from models_page import figures_of, write_table

from kmem.bench.sharing import share_cores
from kmem.errors import KmemError
from kmem.host.visible_gpus import visible_gpus
from kmem.run.setup.session import versions

#: Beyond a model's minutes, for what was begun just before; then it is ended.
_GRACE_S = 120
#: Of one model, in seconds: until its first piece is begun, in the place of which figures of an
#: earlier run are put; max-autotune in the end, and the last proof. Of those the GPU is held alone,
#: for max-autotune's timings and for one piece that is tried. Guesses.
_OPENING_S, _BASELINES_S, _PROOF_S = 30.0, 60.0, 60.0
_HELD_S, _HELD_BY_PIECE_S = 60.0, 15.0


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
            (asked.out / "table.md").write_text(write_table(rows), encoding="utf-8")


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, nargs="+", help="files, or directories of them")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--within", type=float, default=10.0, help="minutes of one; default: 10")
    parser.add_argument("--piece-minutes", type=float, default=1.5)
    parser.add_argument("--jobs", type=int, default=1, help="models at once on a card; default: 1")
    parser.add_argument("--gpus", type=int, default=0, help="cards; default: what torch uses")
    parser.add_argument("--baselines", help="as of kmem optimize; default: its own")
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
    command += ["--baselines", asked.baselines] if asked.baselines else []
    command += ["--out", str(out), *(["--target", asked.target] if asked.target else [])]
    started = time.monotonic()
    row: dict[str, Any] = {
        "file": str(file),
        "name": file.stem,
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "versions": ", ".join(map(" ".join, versions().items())),
        "asked": f"{len(asked.models)} given, --within {asked.within:g} --jobs {asked.jobs}"
        + (f" --gpus {asked.gpus}" if asked.gpus else "")
        + (f" --baselines {asked.baselines}" if asked.baselines else ""),
    }
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
        told = [line for line in said if line.startswith("Error: ")]  # libraries complain later
        return {**row, "fault": f"exit code {ended.returncode}: {(told or said)[-1][:200]}"}


def _describe(row: dict[str, Any]) -> str:
    if "fault" in row:
        return f"{row['name']}: {row['fault']}"
    gain = figures_of(row)["gain"]
    told = "no gain, for compile was not timed" if gain is None else f"{gain:.3f}x"
    return f"{row['name']}: {told} in {row['seconds']:.0f} s"


if __name__ == "__main__":
    main()
