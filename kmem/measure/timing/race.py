"""Successive halving: spends timing samples on candidates in proportion to their promise.

A pure function of a sampling callback.

Source: Karnin, Koren, Somekh, "Almost optimal exploration in multi-armed bandits", ICML 2013;
Jamieson and Talwalkar, AISTATS 2016.
"""

from collections.abc import Callable, Sequence
from statistics import median


def race(
    entrants: Sequence[str],
    sample: Callable[[str, int], Sequence[float] | None],
    *,
    first_samples: int = 5,
    final_samples: int = 40,
) -> dict[str, list[float]]:
    """Time every entrant briefly, then the faster half twice as long, and so on.

    The race ends with one entrant, or when `final_samples` are reached.

    Args:
        entrants: names, without repeats.
        sample: (name, count) -> that many times in ms, or None if the entrant failed and drops out.

    Returns:
        All samples by name, for those that did not fail; the fastest has the most.
    """
    samples: dict[str, list[float]] = {name: [] for name in entrants}
    field = list(entrants)
    count = first_samples
    while field:
        for name in list(field):
            times = sample(name, count)
            if times is None:
                field.remove(name)
                del samples[name]
            else:
                samples[name] += times
        field.sort(key=lambda name: median(samples[name]))
        if count >= final_samples:
            break
        field = field[: max(1, (len(field) + 1) // 2)]
        count = min(2 * count, final_samples)
    return samples
