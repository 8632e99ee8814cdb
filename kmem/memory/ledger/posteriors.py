"""Posteriors of skills: is a skill's next kernel correct, and by how much does it change the time.

Pure arithmetic over the sums of outcomes (sums.py keeps them, sum_columns.py holds them in memory);
track_records.py asks for it. The posteriors walk the same chain of levels, from what is known about
any skill to what is known about this skill, for this bottleneck, on these operators, on this
architecture. Every outcome enters exactly once, at the deepest level that it shares with the
question, and counts less the further away that level is:

- "correct" is Beta. Outcomes of a level away from the question are a power prior, worth at most the
  level's strength. Source: Ibrahim and Chen, "Power prior distributions for regression models",
  Statistical Science 15(1), 2000.
- log-speedup is normal with normal-normal shrinkage down the levels, both variances estimated from
  the ledger (empirical Bayes). Source: Gelman et al., "Bayesian Data Analysis", 3rd ed., sections
  2.5 and 5.4; Morris, JASA 78(381), 1983.

A third one, of whether predictions hold that a profile settled, is Beta as "correct" is. It says
whether the skill does what it says, which "improves" does not: a kernel may be faster for another
reason than was claimed.

Sums are added up as integers and weighed afterwards, so that the same ledger gives the same floats
however it was filled.

Covered: outcomes weigh by the trust in their origin and by the age of their versions, that of the
recipe that wrote the kernel among them; nothing is deleted. Not covered: outcomes of one run are
treated as independent, though tuning the same kernel makes them alike; outcomes age by the versions
of torch, Triton and the recipe, not by those of drivers, nor by that of the code that recipes
share.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kmem.memory.ledger.ageing import age_weight, recipe_weight
from kmem.memory.ledger.sum_columns import Count, Name, SumColumns
from kmem.memory.ledger.sums import LOG_UNIT
from kmem.records import is_recipe_component

if TYPE_CHECKING:
    import numpy as np

#: Pseudo-outcomes that all outcomes of a level together are worth at most: of other skills, of the
#: skill for other bottlenecks, of other operators, of other architectures. Source: chosen so that a
#: dozen outcomes that fit exactly outweigh everything further away.
LEVEL_STRENGTHS = (2.0, 3.0, 4.0, 6.0)
#: Before any outcome: a skill changes nothing on average, give or take a factor 1.35; two levels
#: differ by about a factor 1.22, two outcomes of one row of sums by about 1.35. The estimates below
#: replace these as outcomes arrive; each guess weighs as PRIOR_WEIGHT observations.
PRIOR_MEAN, PRIOR_DEVIATION = 0.0, 0.3
PRIOR_BETWEEN_DEVIATION, PRIOR_WITHIN_DEVIATION = 0.2, 0.3
PRIOR_WEIGHT = 4.0


@dataclass(frozen=True, slots=True)
class Question:
    """What a skill is asked to do. `bottleneck` is "" where none is diagnosed."""

    bottleneck: str
    operators: frozenset[str]
    arch: str


@dataclass(frozen=True, slots=True)
class Trust:
    """How much an origin's outcomes count, 0 to 1: `levels` by name, `others` for every other."""

    levels: Mapping[str, float]
    others: float = 1.0

    def weight(self, origin: str) -> float:
        return self.levels.get(origin, self.others)


@dataclass(frozen=True, slots=True)
class Posterior:
    """What to expect of a skill's next kernel.

    `tried` counts outcomes of the skill, `matching` those that fit the question exactly.
    """

    correct: float  # probability that it passes the judge
    log_speedup: float  # mean effect, natural logarithm of time before over time after
    deviation: float  # of that mean
    improves: float  # probability that a correct one is faster than what does without the skill
    tried: int
    matching: int
    keeps: float  # probability that what is predicted of it holds
    held: int
    refuted: int

    @property
    def probability(self) -> float:
        """That the next kernel is correct and faster."""
        return self.correct * self.improves

    @property
    def credit(self) -> float:
        """What a skill's score is multiplied with for its predictions.

        One whose predictions always fail keeps half its score: what it brings may be for another
        reason, but it is not understood. That is what likeness, the other doubtful sign, may cost.
        """
        return 0.5 + self.keeps / 2

    @property
    def reason(self) -> str:
        """What the posterior rests on and promises, in one line."""
        if not self.tried:
            return f"never tried: {self.probability:.0%} to improve, as skills do on average"
        settled = self.held + self.refuted
        kept = f"; {self.held} of {settled} predictions held" if settled else ""
        return (
            f"{self.tried} tried, {self.matching} of them on this very case: "
            f"{self.correct:.0%} correct, {self.improves:.0%} of those improve, "
            f"expected {math.exp(self.log_speedup):.2f}x{kept}"
        )


@dataclass(frozen=True, slots=True)
class AverageSkill:
    """What all outcomes together say, whatever the question.

    That is how outcomes weigh, their sums by skill, and the two variances. `buckets` (rows,) int64
    gives each row's index into `weights` (buckets,) float64, the distinct products of trust in an
    origin and the age of versions; `by_skill` (Count, skills, buckets) and `by_skill_weighed`
    (Count, skills) are sums of the rows' counts.
    """

    buckets: "np.ndarray"
    weights: "np.ndarray"
    by_skill: "np.ndarray"
    by_skill_weighed: "np.ndarray"
    within: float  # variance of the outcomes of one row
    between: float  # variance between two levels


def average_skill(columns: SumColumns, versions: Mapping[str, str], trust: Trust) -> AverageSkill:
    """Add up and weigh all rows.

    `versions` are those in use, of torch, triton and recipes; outcomes do not age by a missing
    one.
    """
    import numpy as np  # start-up of commands that ask for no posterior need not pay for it

    recipes = {version for name, version in versions.items() if is_recipe_component(name)}
    by_source = [
        trust.weight(origin)
        * age_weight({"torch": torch, "triton": triton}, versions)
        * recipe_weight(recipe, recipes)
        for origin, torch, triton, recipe in columns.source_names
    ]
    weights, bucket_of_source = np.unique(np.array(by_source or [1.0]), return_inverse=True)
    buckets = bucket_of_source[columns.sources].astype(np.int64)
    skills = columns.names[Name.SKILL]
    by_skill = _sum_by(skills, len(columns.skills), buckets, len(weights), columns.counts)
    weighed = _weigh(by_skill, weights)
    within = _within_variance(columns, buckets, weights)
    between = _between_variance(weighed, within)
    return AverageSkill(buckets, weights, by_skill, weighed, within, between)


def skill_posteriors(
    skills: Iterable[str], columns: SumColumns, average: AverageSkill, question: Question
) -> dict[str, Posterior]:
    """The posterior of every skill named; one that nobody tried is expected to do as skills do.

    A pure function of the rows as a set: in whatever order they lie, the same rows give the same
    floats.
    """
    import numpy as np

    names = list(dict.fromkeys(skills))
    asked = np.array([columns.skills.get(name, -1) for name in names], dtype=np.int64)
    levels, counts = _levels(columns, average, question, asked)
    everything = _weigh(average.by_skill.sum(axis=1), average.weights)
    others = everything[:, None] - _of_skills(average.by_skill_weighed, asked)
    # differences of equal sums may leave a rounding below zero
    never_negative = [count for count in Count if count is not Count.LOG_SPEEDUP_E9]
    others[never_negative] = np.maximum(others[never_negative], 0.0)
    chain = [others, *levels]
    mean, variance = _shrink(chain, average.within, average.between)
    found = (
        _share((level[Count.PASSED], level[Count.TRIED]) for level in chain),
        mean,
        np.sqrt(variance),
        mean / np.sqrt(variance + average.within),
        _share((level[Count.HELD], level[Count.HELD] + level[Count.REFUTED]) for level in chain),
        *counts,
    )
    rows = zip(names, np.stack(found, axis=1).tolist(), strict=True)
    return {
        name: Posterior(
            correct=row[0],
            log_speedup=row[1],
            deviation=row[2],
            improves=_normal_cdf(row[3]),
            tried=int(row[5]),
            matching=int(row[6]),
            keeps=row[4],
            held=int(row[7]),
            refuted=int(row[8]),
        )
        for name, row in rows
    }


def _of_skills(sums: "np.ndarray", asked: "np.ndarray") -> "np.ndarray":
    """The columns (n, asked, ...) of the asked skills; zeros for code -1, which nobody tried."""
    import numpy as np

    found = np.zeros((len(sums), len(asked), *sums.shape[2:]))
    (known,) = np.nonzero(asked >= 0)
    found[:, known] = sums[:, asked[known]]
    return found


def _sum_by(
    groups: "np.ndarray", size: int, buckets: "np.ndarray", width: int, columns: "np.ndarray"
) -> "np.ndarray":
    """Sums of columns (n, rows) by group and bucket: (n, size, width) float64.

    They are exact, for they are integers below 2**53.
    """
    import numpy as np

    places = groups.astype(np.int64) * width + buckets
    return np.stack(
        [
            np.bincount(places, weights=column, minlength=size * width).reshape(size, width)
            for column in columns
        ]
    )


def _weigh(sums: "np.ndarray", weights: "np.ndarray") -> "np.ndarray":
    """Weighted sum over the last axis, one bucket after the other.

    A matrix product might add them in another order next time.
    """
    total = sums[..., 0] * weights[0]
    for index in range(1, len(weights)):
        total = total + sums[..., index] * weights[index]
    return total


def _levels(
    columns: SumColumns, average: AverageSkill, question: Question, asked: "np.ndarray"
) -> "tuple[list[np.ndarray], tuple[np.ndarray, ...]]":
    """The weighed sums (Count, asked) at each depth of the question, and plain counts (asked,).

    Depth 0 is the skill, 1 + the bottleneck, 2 + an operator, 3 + the architecture; each level
    leaves out what belongs to a deeper one. The plain counts are of outcomes tried in all and on
    this very case, and of predictions held and refuted in all.
    """
    import numpy as np

    width, size = len(average.weights), len(asked)
    # of a skill's code among those asked
    place = np.full(len(columns.skills) + 1, -1, dtype=np.int64)
    place[asked] = np.arange(size)
    bottleneck = columns.bottlenecks.get(question.bottleneck, -1)
    (rows,) = np.nonzero(columns.names[Name.BOTTLENECK] == bottleneck)
    rows = rows[place[columns.names[Name.SKILL, rows]] >= 0]
    names = columns.names[:, rows]
    operators = [
        columns.operators[name] for name in question.operators if name in columns.operators
    ]
    is_here = np.isin(names[Name.OPERATOR], operators)
    is_arch = names[Name.ARCH] == columns.archs.get(question.arch, -1)
    depth = np.where(is_here, np.where(is_arch, 2, 1), 0)
    groups = depth * size + place[names[Name.SKILL]]
    deeper = _sum_by(groups, 3 * size, average.buckets[rows], width, columns.counts[:, rows])
    deeper = deeper.reshape(len(Count), 3, size, width)
    whole = _of_skills(average.by_skill, asked)
    # whole numbers: nothing is rounded
    exact = [whole - deeper.sum(axis=1), *deeper.transpose(1, 0, 2, 3)]
    counts = (
        whole[Count.TRIED].sum(axis=1),
        deeper[Count.TRIED, 2].sum(axis=1),
        whole[Count.HELD].sum(axis=1),
        whole[Count.REFUTED].sum(axis=1),
    )
    return [_weigh(level, average.weights) for level in exact], counts


def _share(levels: "Iterable[tuple[np.ndarray, np.ndarray]]") -> "np.ndarray":
    """Mean of Beta(1, 1) updated with each level, as (successes, trials) (asked,) each.

    A level away from the question is scaled to at most its strength.
    """
    import numpy as np

    successes, failures = 1.0, 1.0
    for strength, (won, tried) in zip((*LEVEL_STRENGTHS, math.inf), levels, strict=True):
        scale = strength / (strength + tried) if math.isfinite(strength) else 1.0
        successes = successes + scale * won
        failures = failures + scale * np.maximum(0.0, tried - won)
    return successes / (successes + failures)


def _shrink(
    chain: "Sequence[np.ndarray]", within: float, between: float
) -> "tuple[np.ndarray, np.ndarray]":
    """Posterior mean and variance of each skill's effect at the end of its chain.

    The effect of a level is that of the level above plus N(0, between). The mean of n outcomes that
    belong to a level and not to the next is N(the level's effect, between + within / n); that of n
    outcomes on the very case of the question is N(effect, within / n). Each mean updates the
    posterior by precision weighting.
    """
    import numpy as np

    mean = np.full(chain[0].shape[1], PRIOR_MEAN)
    variance = np.full(chain[0].shape[1], PRIOR_DEVIATION**2)
    last = len(chain) - 1
    for depth, level in enumerate(chain):
        if depth:
            variance = variance + between
        timed, total_e9 = level[Count.TIMED], level[Count.LOG_SPEEDUP_E9]
        known = timed > 0
        count = np.where(known, timed, 1.0)
        noise = within / count + (between if depth < last else 0.0)
        gain = np.where(known, variance / (variance + noise), 0.0)
        mean = mean + gain * (total_e9 * LOG_UNIT / count - mean)
        variance = variance * (1.0 - gain)
    return mean, variance


def _within_variance(columns: SumColumns, buckets: "np.ndarray", weights: "np.ndarray") -> float:
    """Variance of outcomes around the mean of their row.

    The prior guess is worth PRIOR_WEIGHT degrees of freedom.
    """
    import numpy as np

    (rows,) = np.nonzero(columns.counts[Count.TIMED] > 1)
    counts = columns.counts[:, rows].astype(np.float64)
    timed, total = counts[Count.TIMED], counts[Count.LOG_SPEEDUP_E9]
    squares = counts[Count.LOG_SPEEDUP_SQUARED_E9]
    # whole units: their sum has no order
    scatter = np.rint(np.maximum(0.0, squares - total * total * LOG_UNIT / timed))
    sums = _sum_by(
        np.zeros(len(rows)), 1, buckets[rows], len(weights), np.stack([scatter, timed - 1.0])
    )
    squared, freedom = _weigh(sums, weights)[:, 0]
    return float(
        (PRIOR_WEIGHT * PRIOR_WITHIN_DEVIATION**2 + squared * LOG_UNIT) / (PRIOR_WEIGHT + freedom)
    )


def _between_variance(wholes: "np.ndarray", within: float) -> float:
    """Variance of skills' true effects by the method of moments.

    The prior guess is worth PRIOR_WEIGHT skills.

    Source: DerSimonian and Laird, "Meta-analysis in clinical trials", Controlled Clinical Trials
    7(3), 1986, equations 5 to 8.
    """
    known = wholes[Count.TIMED] > 0
    timed = wholes[Count.TIMED][known]
    effects = wholes[Count.LOG_SPEEDUP_E9][known] * LOG_UNIT
    guess = PRIOR_BETWEEN_DEVIATION**2
    if len(timed) < 2:
        return guess
    weights, effects = timed / within, effects / timed
    total = math.fsum(weights)  # rounded once, so the order of skills does not show
    mean = math.fsum(weights * effects) / total
    spread = math.fsum(weights * (effects - mean) ** 2)
    scale = total - math.fsum(weights**2) / total
    freedom = len(timed) - 1
    estimate = max(0.0, spread - freedom) / scale if scale > 0 else guess
    return (PRIOR_WEIGHT * guess + freedom * estimate) / (PRIOR_WEIGHT + freedom)


def _normal_cdf(value: float) -> float:
    return 0.5 * math.erfc(-value / math.sqrt(2.0))
