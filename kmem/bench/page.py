"""Results as Markdown: the table of problems, the scores, and the page that joins them.

The page also names date, versions, device and command.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from math import isfinite
from pathlib import Path

from kmem.bench.plot import draw_times
from kmem.bench.problems import problem_number
from kmem.bench.results import Manifest
from kmem.bench.rows import Row, RowStatus
from kmem.bench.scores import WIN, Scores, compute_scores
from kmem.errors import OutputError

_COLUMNS = (
    "problem",
    "status",
    "ms",
    "best baseline",
    "speedup",
    "of bound",
    "precision",
    "purity",
    "1e-4",
    "flags",
    "s",
)

DEFINITIONS = f"""\
Speedup is the best of the baselines over the verified kernel, with its 95% interval where both were
timed pair by pair; the baselines are those of the settings. A problem that kmem found no
improvement for, or failed on, counts with ratio 1.0: the user keeps the module as it is. A win is a
ratio above {WIN}; fast_p is the share of all problems with a ratio above p. The bound is the least
time that the device's bandwidth and peak rates allow. Accuracy is judged by kmem's own contract.
For comparison, column 1e-4 says whether KernelBench's tolerance (every element within 1e-4 + 1e-4
|eager| of eager's, 1e-2 for half precision) holds too, on inputs that the problem's own get_inputs
drew; blank: the result is no kernel, or older than that check. Flag "n unverified": the minutes
ended before so many candidates that were timed faster than the answer had their final verdict. Flag
"captured r": its calls are short, or wait for their host; r is the speedup with the kernel and the
baseline captured as CUDA graphs, beside the speedup of calls, which is what counts."""
#: Flags of winners that compute less than their module does.
LESS_WORK = frozenset({"algebraic", "degenerate"})
_ESTIMATED = (
    "**No GPU was used: every time here is an estimate from compiled kernels. Do not compare it "
    "with measured ones.**"
)


def render_table(rows: Sequence[Row], missing: Sequence[str] = ()) -> str:
    """One line a problem, as a Markdown table that also reads well as text.

    `missing` names problems that have not been run yet.
    """
    lines = [list(_COLUMNS), *([*map(str, _cells(row))] for row in rows)]
    lines += [[name, "not run yet", *[""] * (len(_COLUMNS) - 2)] for name in missing]
    widths = [max(3, *(len(line[column]) for line in lines)) for column in range(len(_COLUMNS))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    if row.result is None:
        return (row.problem, row.status.value, "", "", "", "", "", "", "", "", f"{row.seconds:.0f}")
    result, best = row.result, row.best_baseline
    estimate = " est." if result["estimated"] else ""
    return (
        row.problem,
        row.status.value,
        f"{row.time_ms:.4g}{estimate}" if row.time_ms is not None else "",
        f"{best} {row.best_baseline_ms:.4g}{estimate}" if best else "none ran",
        _speedup(row),
        f"{row.bound_fraction:.0%}" if row.bound_fraction is not None else "",
        result["precision"],
        result["purity"],
        {True: "yes", False: "no", None: ""}[result.get("within_kernelbench")],
        _flags(row),
        f"{row.seconds:.0f}",
    )


def _flags(row: Row) -> str:
    flags = [flag for flag in row.result["flags"] if flag != "beyond_kernelbench"]
    if row.unverified_faster:
        flags.append(f"{row.unverified_faster} unverified")
    if row.captured_ratio is not None:
        flags.append(f"captured {row.captured_ratio:.2f}")
    return ", ".join(flags)


def _speedup(row: Row) -> str:
    if row.speedup is None:
        return "1 (baseline)" if row.status is RowStatus.BASELINE_IS_BEST else ""
    if row.result["ratio_low"] is None:
        return f"{row.speedup:.2f}"
    return f"{row.speedup:.2f} ({row.result['ratio_low']:.2f}-{row.result['ratio_high']:.2f})"


def render_failures(rows: Sequence[Row]) -> str:
    """One line for every failed problem with its reason and its log; empty if none failed.

    The log is named as it lies in the bench's directory.
    """
    return "\n".join(
        f"- {row.problem} {row.status.value.replace('_', ' ')}: {row.reason} (logs/{row.key}.log)"
        for row in rows
        if row.failed
    )


def render_scores(scores: Scores, *, measured: bool) -> str:
    """The numbers over all problems, in three lines; a fourth on their cost if models wrote."""
    label = "" if measured else "ESTIMATED, no GPU was used: "
    return (
        f"{label}{scores.problems} problems: {scores.faster} faster, {scores.baseline_is_best} "
        f"where the baseline is best (ratio 1.0), {scores.failed} failed (ratio 1.0)\n"
        f"{label}geometric mean {scores.geometric_mean:.3f}, median {scores.median:.3f}, "
        f"mean {scores.mean:.3f}, wins {scores.wins}, fast_1 {scores.fast_1:.2f}, "
        f"fast_1.2 {scores.fast_1_2:.2f}, fast_2 {scores.fast_2:.2f}, "
        f"{scores.seconds:.0f} s in all\n"
        f"{label}candidates timed faster than the answer and not verified: "
        f"{scores.unverified_faster}{_costs(scores)}"
    )


def _costs(scores: Scores) -> str:
    """A further line on what language models cost, where any were asked at a known price."""
    if scores.usd is None:
        return ""
    each = f", {scores.usd_per_win:.4f} for each win" if scores.usd_per_win is not None else ""
    return f"\nlanguage models cost {scores.usd:.4f} USD{each}"


def render_unflagged(rows: Sequence[Row]) -> str:
    """The geometric mean over the rows whose winner left out no work; "" if that is all rows.

    Those are without a flag of LESS_WORK: what a better kernel for the same work brings.
    """
    own = [row for row in rows if not LESS_WORK & set((row.result or {}).get("flags", ()))]
    scores = compute_scores(own)
    if scores is None or len(own) == len(rows):
        return ""
    return (
        f"without the {len(rows) - len(own)} flagged {' or '.join(sorted(LESS_WORK))}: geometric "
        f"mean {scores.geometric_mean:.3f} over {scores.problems} problems, wins {scores.wins}"
    )


def missing_names(manifest: Manifest, rows: Sequence[Row]) -> list[str]:
    """Problems of the manifest that have no row yet."""
    done = {row.key for row in rows}
    return [problem.name for problem in manifest.problems if problem.key not in done]


def sort_rows(manifest: Manifest, rows: Sequence[Row]) -> list[Row]:
    """The rows of a manifest's problems, in the manifest's order.

    Rows of files that changed since are left out, for these problems run again.
    """
    by_key = {row.key: row for row in rows}
    return [by_key[problem.key] for problem in manifest.problems if problem.key in by_key]


def write_page(path: Path, manifest: Manifest, rows: Sequence[Row]) -> Path:
    """Write the page and, beside it, its plot of the same name; returns the page's path.

    Raises:
        OutputError: if it cannot be written.
    """
    picture = path.with_suffix(".png")
    try:
        drawn = draw_times(
            picture, sort_rows(manifest, rows), title=_title(manifest), measured=manifest.measured
        )
        path.write_text(
            render_page(manifest, rows, picture.name if drawn else None), encoding="utf-8"
        )
    except OSError as ex:
        raise OutputError(f"Cannot write {path}: {ex.strerror or ex}; choose another place") from ex
    return path


def _title(manifest: Manifest) -> str:
    return (
        f"Results {'measured on' if manifest.measured else 'estimated for'} {manifest.device_name}"
    )


def render_page(manifest: Manifest, rows: Sequence[Row], plot: str | None) -> str:
    """The whole page.

    Args:
        plot: the picture's file name, relative to the page; None: there is none.
    """
    rows = sort_rows(manifest, rows)
    scores = compute_scores(rows)
    missing = missing_names(manifest, rows)
    finished = max((row.finished_at for row in rows), default=manifest.started_at)
    versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    asked = ", ".join(
        f"{name} {value}"
        for name, value in asdict(manifest.settings).items()
        if value is not None and value != ()
    )
    lines = [
        f"# {_title(manifest)}",
        "",
        "Generated from the results of `kmem bench`; do not edit.",
        "",
    ]
    if not manifest.measured:
        lines += [_ESTIMATED, ""]
    lines += [
        f"- device: {manifest.device_name}",
        f"- date: {manifest.started_at} to {finished}",
        f"- versions: {versions}",
        f"- settings: {asked}",
    ]
    lines += [
        f"- command: `{shorten_command(command)}`{f', {times} times' if times > 1 else ''}"
        for command, times in Counter(manifest.commands).items()
    ]
    if scores is not None:
        lines += [
            "",
            *(
                f"- {line}"
                for line in render_scores(scores, measured=manifest.measured).splitlines()
            ),
        ]
        if unflagged := render_unflagged(rows):
            lines.append(f"- {unflagged}")
    if plot is not None:
        lines += ["", f"![Every problem's time against its bound and its baselines]({plot})"]
    lines += ["", DEFINITIONS, "", render_table(rows, missing)]
    if failures := render_failures(rows):
        lines += ["", "## Failures", "", failures]
    return "\n".join(lines) + "\n"


def shorten_command(command: str) -> str:
    """The same command to a shell, with numbered problems that follow each other as one pattern.

    For example, problems 7 and 8 of a directory become DIR/{7,8}_*.py.
    """
    words: list[str] = []
    for (directory, numbered), group in groupby(command.split(" "), key=_numbered_place):
        paths = list(group)
        if numbered and len(paths) > 1:
            numbers = [path.removeprefix(directory).partition("_")[0] for path in paths]
            paths = [f"{directory}{{{','.join(numbers)}}}_*.py"]
        words += paths
    return " ".join(words)


def _numbered_place(word: str) -> tuple[str, bool]:
    """The directory of a path, with its slash, and whether the file is named by number.

    KernelBench's problems are named so.
    """
    name = word.rpartition("/")[2]
    directory = word.removesuffix(name)
    return directory, isfinite(problem_number(name)) and name.endswith(".py")
