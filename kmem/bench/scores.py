"""The numbers over all rows of a bench.

Ratios are best baseline over answer, so that more is better.

Source of fast_p: Ouyang et al., "KernelBench: Can LLMs Write Efficient GPU Kernels?" (2025),
section 3: the share of all tasks whose kernel is correct and more than p times as fast as the
baseline. Theirs is against eager; here it is against the best of the baselines.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kmem.bench.rows import Row, RowStatus

#: More than this counts as a win: two hundredths are above the repeatability of one GPU from
#: session to session.
WIN = 1.02


@dataclass(frozen=True, slots=True)
class Scores:
    """The numbers over all rows.

    A row without a verified improvement, failed or not, counts with ratio 1.0, for the user keeps
    the module as it is.
    """

    problems: int
    faster: int  # verified improvements
    baseline_is_best: int
    failed: int
    wins: int  # ratio above WIN
    geometric_mean: float
    median: float
    mean: float
    fast_1: float  # shares of all problems with a ratio above 1, 1.2 and 2
    fast_1_2: float
    fast_2: float
    seconds: float  # of all problems, summed
    unverified_faster: int  # candidates timed faster than the answers and not verified, summed
    usd: float | None = None  # of language models, summed; None where none was asked
    usd_per_win: float | None = None


def compute_scores(rows: Sequence[Row]) -> Scores | None:
    """The scores of these rows; None if there are none."""
    if not rows:
        return None
    ratios = [row.ratio for row in rows]

    costs = [row.usd for row in rows if row.usd is not None]
    usd, wins = sum(costs) if costs else None, sum(value > WIN for value in ratios)

    def share_above(ratio: float) -> float:
        return sum(value > ratio for value in ratios) / len(ratios)

    return Scores(
        problems=len(rows),
        faster=sum(row.status is RowStatus.PASSED for row in rows),
        baseline_is_best=sum(row.status is RowStatus.BASELINE_IS_BEST for row in rows),
        failed=sum(row.failed for row in rows),
        wins=wins,
        geometric_mean=statistics.geometric_mean(ratios),
        median=statistics.median(ratios),
        mean=statistics.fmean(ratios),
        fast_1=share_above(1.0),
        fast_1_2=share_above(1.2),
        fast_2=share_above(2.0),
        seconds=round(sum(row.seconds for row in rows), 1),
        unverified_faster=sum(row.unverified_faster for row in rows),
        usd=usd,
        usd_per_win=usd / wins if usd is not None and wins else None,
    )
