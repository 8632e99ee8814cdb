"""The rows of tools/convolution_table.py as a page of Markdown."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]

#: Predictions further off than this are listed as misses. Source: the factors within which
#: tests/test_convolution_costs.py holds every measured setting.
LEAST_FACTOR, MOST_FACTOR = 0.69, 1.3
#: A kernel that errs more than twice as much as eager is refused by the judge; below this floor of
#: fp32 both are exact.
ALLOWED_RATIO, EXACT = 2.0, 1e-6
_HEAD = ("shape", "family", "ms", "TFLOP/s", "over eager", "over cuDNN", "error / eager's")
_COMPILED = ("registers", "spilled bytes", "predicted ms", "off by", "tries", "settings")


def write_table(rows: Sequence[Row]) -> str:
    """The page: for each device a table of the best tries, then what the cost model missed.

    Of rows with the same settings the last counts: kernels written before a change go.
    """
    latest: dict[tuple[str, ...], Row] = {}
    for found in rows:
        named = (found["device"], found["shape"], found["family"], str(found["settings"]))
        latest.pop(named, None)
        latest[named] = found
    by_device: dict[str, list[Row]] = defaultdict(list)
    for found in latest.values():
        by_device[found["device"]].append(found)
    parts = ["# Convolutions, kernel family by kernel family\n"]
    for device, own in by_device.items():
        parts += [f"## {device}\n", _table_of(own), _misses_of(own), _failures_of(own)]
    return "\n".join(part for part in parts if part)


def _table_of(rows: Sequence[Row]) -> str:
    by_shape: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for found in rows:
        if "failure" not in found:
            by_shape[found["shape"]][found["family"]].append(found)
    lines = _head(*_HEAD, *_COMPILED)
    for families in by_shape.values():
        library = {name: tries[0] for name, tries in families.items() if "ms" in tries[0]}
        for tries in families.values():
            lines.append(_line(_best(tries), tries, library))
    return "\n".join(lines) + "\n"


def _best(tries: Sequence[Row]) -> Row:
    """The fastest of what was measured, else what is predicted to be."""
    return min(tries, key=lambda found: found.get("ms", found.get("predicted_ms", math.inf)))


def _line(best: Row, tries: Sequence[Row], others: dict[str, Row]) -> str:
    ms = best.get("ms")
    eager = others.get("eager")
    cells = [best["shape"], best["family"]]
    if ms is None:
        cells += ["", "", "", "", ""]
    else:
        vendor = [row["ms"] for name, row in others.items() if name.startswith("cudnn")]
        cells += [f"{ms:.4f}", f"{best['flops'] / ms / 1e9:.0f}"]
        cells.append(f"{eager['ms'] / ms:.2f}" if eager else "")
        cells.append(f"{min(vendor) / ms:.2f}" if vendor else "")
        cells.append(_accuracy(best, eager))
    cells += [str(best.get(name, "")) for name in ("registers", "spilled_bytes")]
    predicted = best.get("predicted_ms")
    cells.append("" if predicted is None else f"{predicted:.4f}")
    cells.append("" if predicted is None or ms is None else f"{predicted / ms:.2f}")
    cells += [str(len(tries)), _settings(best)]
    return _row(cells)


def _accuracy(best: Row, eager: Row | None) -> str:
    if eager is None:
        return f"{best['error']:.1e}"
    is_refused = best["error"] > max(EXACT, ALLOWED_RATIO * eager["error"])
    return f"{best['error']:.1e} / {eager['error']:.1e}{' (too much)' if is_refused else ''}"


def _misses_of(rows: Sequence[Row]) -> str:
    """Settings whose time was mispredicted, worst first, and first choices that were not best."""
    # what is left to eager is in the measured time and not in the prediction
    known = [row for row in rows if "ms" in row and row.get("left_to_eager") == 0]
    missed = [
        row for row in known if not LEAST_FACTOR < row["predicted_ms"] / row["ms"] < MOST_FACTOR
    ]
    if not known:
        return ""
    missed.sort(key=lambda row: -abs(math.log(row["predicted_ms"] / row["ms"])))
    lines = [f"### {len(missed)} of {len(known)} settings are mispredicted\n"]
    lines += _head("shape", "family", "ms", "predicted ms", "off by", "registers", "settings")
    for found in missed:
        ms, predicted = found["ms"], found["predicted_ms"]
        figures = [f"{ms:.4f}", f"{predicted:.4f}", f"{predicted / ms:.2f}"]
        registers = str(found.get("registers", ""))
        lines.append(_row([found["shape"], found["family"], *figures, registers, _settings(found)]))
    lines += ["", "### What the cost model would have chosen, where that was not the fastest\n"]
    lines += _head("shape", "family", "its choice ms", "fastest ms", "lost", "fastest settings")
    lines += _losses(known)
    return "\n".join(lines) + "\n"


def _losses(known: Sequence[Row]) -> list[str]:
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for found in known:
        groups[found["shape"], found["family"]].append(found)
    lines = []
    for (shape, family), tries in groups.items():
        chosen = min(tries, key=lambda found: found["predicted_ms"])
        best = _best(tries)
        if best["ms"] < chosen["ms"]:
            times = [f"{chosen['ms']:.4f}", f"{best['ms']:.4f}", f"{chosen['ms'] / best['ms']:.2f}"]
            lines.append(_row([shape, family, *times, _settings(best)]))
    return lines


def _failures_of(rows: Sequence[Row]) -> str:
    failed = [found for found in rows if "failure" in found]
    if not failed:
        return ""
    lines = [f"### {len(failed)} failed\n", *_head("shape", "family", "failure", "settings")]
    for found in failed:
        said = found["failure"].replace("|", "/").replace("\n", " ")
        lines.append(_row([found["shape"], found["family"], said, _settings(found)]))
    return "\n".join(lines) + "\n"


def _settings(found: Row) -> str:
    return ", ".join(f"{name} {value}" for name, value in found["settings"].items())


def _head(*names: str) -> list[str]:
    return [_row(list(names)), _row(["---"] * len(names))]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
