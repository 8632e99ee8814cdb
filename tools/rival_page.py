"""What rows of tools/compare_kernels.py come to: why files are refused, means, losses, the page.

Pure functions of rows. A ratio is another's time over ours, so that more is better for us.
"""

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kmem.bench.problems import problem_number

Row = Mapping[str, Any]

PASSED, LATE = "passed", "not judged in time"
#: Where rows come from that no GPU made, and what a verdict at small sizes there is marked with.
INTERPRETER, _SMALL = "interpreter", " (small sizes)"
BASELINES = ("eager", "compile", "max_autotune")
#: What belongs to a verdict beside it.
_ABOUT_A_VERDICT = ("mends", "renamed", "alone", "added", "judged_in")
#: Ours is slower than theirs by more than a GPU repeats from session to session.
_LOSS = 0.98
_DRAWS = 2000
#: An error that no file has which passes a tolerance of 5e-2.
_FAR_OFF = 0.2
_NOT_FINITE = ("nan", "infinite")
#: How a log names layouts and sizes of inputs other than the file was written for.
_OTHER_INPUTS = re.compile(
    r"(family |^)(transposed|leading dimensions|misaligned|padded rows|every second|expanded|first "
    r"dim|last dim|only|.*the module accepts such inputs)"
)
#: By what a log says, in the order in which it is asked: why a file does not pass.
_REASONS = (
    ("autocast", "lowers precision (autocast)"),
    ("TF32", "multiplies in TF32"),
    ("multiplies in", "multiplies in half precision"),
    ("parameters written after a call", "keeps what it made of parameters"),
    ("parameters replaced after a call", "keeps what it made of parameters"),
    ("is not what the module leaves there", "leaves other buffers than the module"),
    ("changed the result of an earlier one", "returns the memory of an earlier result"),
    ("the same call on the same inputs", "not repeatable"),
    ("it has no ", "parameters not those of the problem"),
    ("size mismatch", "parameters folded in the constructor"),
    ("einops", "needs einops"),
    ("looks at values", "looks at values on the host: only a GPU can tell"),
    ("processor time in Triton's interpreter", "too slow for the interpreter"),
    ("small sizes it launches none", "steps aside at the interpreter's sizes"),
)


def one_of_each(rows: Mapping[str, Row]) -> list[Row]:
    """A row for each file and GPU, in the problems' order; of a file that no GPU had, the
    interpreter's.

    Where a GPU's verdict did not come in time, the interpreter's stands in its place; `judged_in`
    says whose it is.

    Args:
        rows: by keys that end in where they were made.
    """
    small = {
        file: {**row, "judged_in": INTERPRETER}
        for key, row in rows.items()
        for file, _, where in [key.rpartition("/")]
        if where == INTERPRETER
    }
    found, seen = [], set()
    for key, row in rows.items():
        file, _, where = key.rpartition("/")
        if where == INTERPRETER:
            continue
        seen.add(file)
        other = small.get(file, {})
        if "theirs" not in row.get("judge", {}) and "theirs" in other.get("judge", {}):
            judge = {**row.get("judge", {}), "theirs": other["judge"]["theirs"]}
            about = {name: other[name] for name in _ABOUT_A_VERDICT if name in other}
            row = {**row, **about, "judge": judge}  # noqa: PLW2901 - the same row, completed
        found.append(row)
    found += [row for file, row in small.items() if file not in seen]
    return sorted(found, key=lambda row: (problem_number(row["problem"]), row["problem"]))


def reason_of(row: Row) -> str:
    """Why a file does not pass, in words that several files share; `passed` if it does."""
    verdict = row.get("judge", {}).get("theirs")
    if verdict is None:
        return LATE if row.get("late") else f"not judged: {_first(row.get('error', 'no verdict'))}"
    if verdict["status"] == PASSED:
        return PASSED
    log = verdict["log"]
    for said, reason in _REASONS:
        if said in log:
            return reason
    family = re.search(r"family ([\w ]+?)[:,]", log)
    if family and family[1] == "drawn" and (row.get("alone") or _needs_its_seed(row, log)):
        return "parameters folded in the constructor"
    if "lost beside" in log:
        return "loses small results"
    if _OTHER_INPUTS.search(log):
        return "other layouts or sizes of inputs"
    if family and family[1].startswith(_NOT_FINITE):
        return "loses nan or infinity"
    if verdict["status"] == "wrong_values" and family:
        return "values beyond the contract"
    return f"{verdict['status']}: {_first(log)}"


def _needs_its_seed(row: Row, log: str) -> bool:
    """Whether a file is right with weights of its constructor, and far off with those it is given.

    That is what it is where the constructor makes something of weights that nobody renews.
    """
    error = re.search(r"relative error ([\d.e+-]+)", log)
    return passes_gate(row) and error is not None and float(error[1]) > _FAR_OFF


def _first(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:90]


# ---- times


@dataclass(frozen=True, slots=True)
class Mean:
    """A geometric mean over problems with a 95% interval, and over how many."""

    ratio: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.ratio:.2f}x ({self.low:.2f} to {self.high:.2f}; {self.count} problems)"


def geometric_mean(ratios: Sequence[float]) -> Mean | None:
    """Percentiles of a bootstrap over problems; None of none.

    Source: Davison and Hinkley, "Bootstrap Methods and their Application", 1997, section 5.3.
    """
    if not ratios:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    draw = random.Random(0)
    means = sorted(sum(draw.choices(logs, k=len(logs))) / len(logs) for _ in range(_DRAWS))
    low, high = means[int(0.025 * _DRAWS)], means[int(0.975 * _DRAWS) - 1]
    return Mean(math.exp(sum(logs) / len(logs)), math.exp(low), math.exp(high), len(logs))


def clocked_ratio(row: Row) -> float | None:
    """Their time over ours by the independent clock; without a kernel of ours, over the best
    baseline, which a user keeps.
    """
    times = row.get("times_ms", {})
    baselines = [times[name] for name in BASELINES if name in times]
    ours = times.get("ours") or min(baselines, default=None)
    return times["theirs"] / ours if ours and "theirs" in times else None


def judged_ratio(row: Row) -> float | None:
    """Their time over ours by the judge, both in pairs against the best baseline."""
    judged = row.get("judge", {})
    theirs, ours = (judged.get(name, {}).get("ratio") for name in ("theirs", "ours"))
    return ours / theirs if theirs and ours else None


def passes_gate(row: Row, whose: str = "theirs") -> bool:
    """Whether a file passes the rivals' own tolerance on every draw."""
    gate = row.get("their_gate", {}).get(whose)
    return bool(gate) and gate["passed"] == gate["of"]


def is_accurate(row: Row) -> bool:
    """Whether the independent check finds no error beyond twice eager's."""
    excess = row.get("accuracy", {}).get("theirs", {}).get("excess")
    return excess is not None and excess <= 1


def _passed(row: Row) -> bool:
    return reason_of(row) == PASSED


_MEANS: tuple[tuple[str, Callable[[Row], float | None], Callable[[Row], bool]], ...] = (
    ("pairs of the judge, where theirs pass", judged_ratio, _passed),
    ("independent clock, where theirs pass the judge", clocked_ratio, _passed),
    ("independent clock, where theirs err no more than twice eager", clocked_ratio, is_accurate),
    ("independent clock, where theirs pass their own tolerance", clocked_ratio, passes_gate),
    ("independent clock, all that run", clocked_ratio, lambda row: True),
)


def means_of(rows: Sequence[Row]) -> dict[str, Mean | None]:
    """Geometric means of their time over ours, by what they are of."""
    found = {}
    for name, ratio_of, counts in _MEANS:
        ratios = [ratio_of(row) for row in rows if counts(row)]
        found[name] = geometric_mean([each for each in ratios if each is not None])
    return found


def losses_of(rows: Sequence[Row]) -> list[tuple[str, float, str]]:
    """Problems where theirs is faster, by the independent clock, worst first, and its verdict."""
    slower = [(row["problem"], clocked_ratio(row), reason_of(row)) for row in rows]
    found = [(name, ratio, why) for name, ratio, why in slower if ratio and ratio < _LOSS]
    return sorted(found, key=lambda loss: loss[1])


# ---- the page


def write_page(rows: Sequence[Row], head: Mapping[str, str]) -> str:
    """Markdown: what was compared, why files are refused, means, losses, every problem."""
    said = [f"- {name}: {text}" for name, text in head.items()]
    reasons = Counter(reason_of(row) for row in rows)
    mended = sum(bool(row.get("mends") or row.get("renamed")) for row in rows)
    lines = [
        "# Released kernels of others beside ours",
        *("", *said, ""),
        f"{len(rows)} files; {mended} of them are judged after mends that change no value: switches"
        " of the whole process left out, parameters under the problem's names. The clock takes"
        " files as they were released.",
        *_small_lines(rows),
        *("", "## Verdicts under precision match", "", "| verdict | files |", "|---|---|"),
        *(f"| {_cell(reason)} | {count} |" for reason, count in reasons.most_common()),
        "",
        f"At their own tolerance of 5e-2: {sum(map(passes_gate, rows))} pass every draw.",
        *_kept_lines(rows),
        *_ours_lines(rows),
        *("", "## Times", ""),
        *_times_lines(rows),
        *("", "## Every problem", "", _HEADINGS, "|---" * 9 + "|"),
        *map(_line_of, rows),
        "",
    ]
    return "\n".join(lines)


def _small_lines(rows: Sequence[Row]) -> list[str]:
    small = sum(row.get("judged_in") == INTERPRETER for row in rows)
    if not small:
        return []
    return [
        "",
        f"{small} verdicts, marked{_SMALL}, are of small sizes in Triton's interpreter: on the GPU"
        " there was no time for them, and it may say otherwise.",
    ]


def _kept_lines(rows: Sequence[Row]) -> list[str]:
    said = _kept(rows, "theirs")
    return [f"What later calls are answered from, by the independent check: {said}."]


def _kept(rows: Sequence[Row], whose: str) -> str:
    kept = Counter(what for row in rows for what in row.get("what_it_keeps", {}).get(whose, ()))
    return ", ".join(f"{what} ({count})" for what, count in kept.most_common()) or "nothing"


def _ours_lines(rows: Sequence[Row]) -> list[str]:
    """What the independent check says of our own kernels; nothing where it had none."""
    checked = [row["accuracy"]["ours"] for row in rows if "ours" in row.get("accuracy", {})]
    overflowing = sum(not math.isfinite(each.get("eager", 0.0)) for each in checked)
    errors = [
        each["excess"]
        for each in checked
        if each["excess"] is not None and math.isfinite(each.get("eager", 0.0))
    ]
    if not errors:
        return []
    apart = f" ({overflowing} more are of values that overflow in eager too)" if overflowing else ""
    gated = sum("ours" in row.get("their_gate", {}) for row in rows)
    return [
        "",
        f"Ours, by the same check: {sum(each <= 1 for each in errors)} of {len(errors)} err against"
        f" float64 no more than twice eager, or by a rounding (the largest {max(errors):.2f} of"
        f" that){apart}; {sum(passes_gate(row, 'ours') for row in rows)} of {gated} are within 5e-2"
        f" of eager on every draw; answered from earlier calls: {_kept(rows, 'ours')}.",
    ]


def _times_lines(rows: Sequence[Row]) -> list[str]:
    if not any(row.get("times_ms") for row in rows):
        return ["None were taken: there was no GPU."]
    table = ["Their time over ours, geometric mean and 95% interval over problems.", ""]
    table += ["| of | ratio |", "|---|---|"]
    table += [f"| {name} | {mean or 'none'} |" for name, mean in means_of(rows).items()]
    losses = losses_of(rows)
    said = [f"- {name}: {ratio:.2f}x; their verdict: {why}" for name, ratio, why in losses]
    return [*table, "", f"Theirs is faster in {len(losses)}:", "", *said]


_HEADINGS = (
    "| problem | verdict | excess | at 5e-2 | excess, independently | by its text | theirs, ms |"
    " ours, ms | best baseline, ms |"
)


def _line_of(row: Row) -> str:
    verdict = row.get("judge", {}).get("theirs", {})
    gate = row.get("their_gate", {}).get("theirs")
    times = row.get("times_ms", {})
    best = min((times[name] for name in BASELINES if name in times), default=None)
    cells = (
        row["problem"],
        reason_of(row) + (_SMALL if row.get("judged_in") == INTERPRETER else ""),
        _number(verdict.get("excess")),
        f"{gate['passed']} of {gate['of']}" if gate else "",
        _number(row.get("accuracy", {}).get("theirs", {}).get("excess")),
        ", ".join(row.get("signs", ())),
        *(_number(each) for each in (times.get("theirs"), times.get("ours"), best)),
    )
    return f"| {' | '.join(map(_cell, cells))} |"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())
