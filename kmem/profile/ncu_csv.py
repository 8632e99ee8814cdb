"""Read what Nsight Compute wrote: its CSV, and .ncu-rep files by having ncu export them as CSV.

Both forms of `ncu --csv` are read: the wide raw page and the long details page. Lines of the
profiled program and of ncu itself (`==PROF==`) are skipped; a cell that is not a number ("n/a", "no
data", empty) is an absent counter, never zero. Figures come in the units their column says
(`--print-units base` or not) and leave in base units.
"""

import csv
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from kmem.counters import BY_LABEL, BY_NAME
from kmem.errors import ProfilerError
from kmem.records import Launch

#: Launches read from one report; a forward with more is judged by these.
MAX_LAUNCHES = 4096
_CELL_LIMIT = 2**24  # bytes; template names of C++ kernels pass csv's default of 128 KiB
_TIMES = {
    "second": 1e9,
    "s": 1e9,
    "msecond": 1e6,
    "ms": 1e6,
    "usecond": 1e3,
    "us": 1e3,
    "nsecond": 1.0,
    "ns": 1.0,
}
_PREFIXES = {
    "": 1.0,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
}
_BASE_UNIT = re.compile(
    r"^(Ki|Mi|Gi|K|M|G|T)?(byte|inst|sector|thread|cycle|register|block|warp|hz)\b"
)


def read_report(path: Path) -> tuple[Launch, ...]:
    """Launches of a report file, in order.

    Args:
        path: CSV from `ncu --csv --page raw` (or the details page), or a .ncu-rep.

    Raises:
        ProfilerError: if it is not such a report, holds no launches, or needs ncu and there is
            none.
    """
    if not path.is_file():
        raise ProfilerError(
            f"No report at {path}; write one with ncu --csv --page raw --log-file {path.name} ..."
        )
    if path.suffix == ".ncu-rep":
        return parse_csv(_import_report(path).splitlines(), path.name)
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        return parse_csv(file, path.name)


def _import_report(path: Path) -> str:
    ncu = shutil.which("ncu")
    if ncu is None:
        raise ProfilerError(
            f"{path.name} is binary and ncu is not on PATH to read it; export it elsewhere: ncu "
            f"--import {path.name} --csv --page raw > report.csv"
        )
    result = subprocess.run(
        [ncu, "--import", str(path), "--csv", "--page", "raw", "--print-units", "base"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if result.returncode != 0:
        raise ProfilerError(
            f"ncu cannot read {path.name}: "
            f"{(result.stderr or result.stdout).strip().splitlines()[-1:]}; was it written by a "
            "newer ncu?"
        )
    return result.stdout


def parse_csv(lines: Iterable[str], name: str = "report") -> tuple[Launch, ...]:
    """Launches of ncu's CSV text.

    Raises:
        ProfilerError: see `read_report`.
    """
    csv.field_size_limit(_CELL_LIMIT)
    rows = _rows(lines)
    try:
        header = next(rows, None)
        if header is None:
            raise ProfilerError(
                f"{name} holds no CSV of ncu (no header with Kernel Name); write it with ncu "
                "--csv --page raw"
            )
        launches = (
            _read_details(header, rows) if "Metric Name" in header else _read_raw(header, rows)
        )
    except csv.Error as ex:
        raise ProfilerError(f"{name} is not CSV: {ex}; write it with ncu --csv --page raw") from ex
    if not launches:
        raise ProfilerError(f"{name} holds no kernel launch; profile a run that launches kernels")
    return tuple(launches)


def _rows(lines: Iterable[str]) -> Iterator[list[str]]:
    """The header and every row, each filled up to the header's length.

    Rows of the details page end early, and so does a row cut off by a kill.
    """
    stream = iter(lines)
    for line in stream:
        if line.startswith('"') and '"Kernel Name"' in line:
            header = next(csv.reader([line]))
            yield header
            break
    else:
        return
    for row in csv.reader(line for line in stream if line.startswith('"')):
        if header.index("Kernel Name") < len(row) <= len(header):
            yield row + [""] * (len(header) - len(row))


def _read_raw(header: list[str], rows: Iterator[list[str]]) -> list[Launch]:
    """The raw page: a row of units, then one row a launch."""
    first = next(rows, None)
    if first is None:
        return []
    columns = {name: place for place, name in enumerate(header)}
    has_units = not first[columns["ID"]].strip() if "ID" in columns else False
    units = first if has_units else [""] * len(header)
    known = [(name, place) for name, place in columns.items() if name in BY_NAME]
    launches = []
    for row in rows if has_units else chain([first], rows):
        values = {name: _number(row[place], units[place]) for name, place in known}
        launches.append(
            _make_launch(
                row, columns, {name: value for name, value in values.items() if value is not None}
            )
        )
        if len(launches) == MAX_LAUNCHES:
            break
    return launches


def _read_details(header: list[str], rows: Iterator[list[str]]) -> list[Launch]:
    """The details page: one row a metric, by label or (with --metrics) by counter name."""
    columns = {name: place for place, name in enumerate(header)}
    found: dict[str, tuple[list[str], dict[str, float]]] = {}
    for row in rows:
        launch = row[columns["ID"]]
        if launch not in found:
            if len(found) == MAX_LAUNCHES:
                break
            found[launch] = (row, {})
        label = row[columns["Metric Name"]]
        counter = BY_NAME.get(label) or BY_LABEL.get(label)
        value = _number(row[columns["Metric Value"]], row[columns["Metric Unit"]])
        if counter is not None and value is not None:
            found[launch][1].setdefault(counter.name, value)
    return [_make_launch(row, columns, metrics) for row, metrics in found.values()]


def _make_launch(row: list[str], columns: dict[str, int], metrics: dict[str, float]) -> Launch:
    duration = metrics.get("gpu__time_duration.sum")
    grid = _triple(row[columns["Grid Size"]]) if "Grid Size" in columns else None
    block = _triple(row[columns["Block Size"]]) if "Block Size" in columns else None
    return Launch(
        row[columns["Kernel Name"]],
        None if duration is None else duration / 1e6,
        grid,
        block,
        metrics,
    )


def _number(cell: str, unit: str) -> float | None:
    try:
        value = float(cell.replace(",", ""))
    except ValueError:
        return None
    if value != value or value in (float("inf"), float("-inf")):
        return None
    return value * _scale(unit)


def _scale(unit: str) -> float:
    """Factor from a column's unit to its base unit (byte, ns, inst, ...).

    It is 1 for percentages, ratios and unknown words.
    """
    if unit in _TIMES:
        return _TIMES[unit]
    match = _BASE_UNIT.match(unit)
    return _PREFIXES[match[1] or ""] if match else 1.0


def _triple(cell: str) -> tuple[int, int, int] | None:
    sizes = [int(word) for word in re.findall(r"\d+", cell)]
    return (sizes[0], sizes[1], sizes[2]) if len(sizes) == 3 else None
