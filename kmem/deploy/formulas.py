"""Texts that differ in numbers alone, as one text whose numbers are formulas of a size.

A formula is (a, b, c, d): a * size + b over c, rounded up, d times. Either c and d are 1, or b is
0, c is one of the tiles that the texts name, and a is 1 or another number in them, such as a step
from row to row. What fits in two ways fits in none.
"""

import math
import re
from collections.abc import Collection, Mapping
from fractions import Fraction

from kmem.deploy.shipped.table import Part

_NUMBER = re.compile(r"((?<![\w.])\d+(?![\w.]))")


def fit_texts(texts: Mapping[int, str], tiles: Collection[int]) -> tuple[Part, ...] | None:
    """One text for all sizes; None if some differ in more than numbers that have a formula.

    Args:
        texts: by size, of two sizes at least.
        tiles: what numbers may be divided by, if it is the same at all sizes.
    """
    pieces = {size: _NUMBER.split(text) for size, text in texts.items()}
    if len({len(each) for each in pieces.values()}) > 1:
        return None
    columns = list(zip(*pieces.values(), strict=True))
    same = {column[0] for column in columns if len(set(column)) == 1}
    factors = {1, *(int(word) for word in same if word.isdecimal())}
    tiles = factors.intersection(tiles)
    parts: list[Part] = []
    for column in columns:
        part = _fit(dict(zip(pieces, column, strict=True)), tiles, factors)
        if part is None:
            return None
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        else:
            parts.append(part)
    return tuple(parts)


def _fit(words: Mapping[int, str], tiles: Collection[int], factors: Collection[int]) -> Part | None:
    """One word for all sizes, or a formula."""
    word = next(iter(words.values()))
    if set(words.values()) == {word}:
        return word
    if not all(each.isdecimal() for each in words.values()):
        return None
    return fit_numbers({size: int(each) for size, each in words.items()}, tiles, factors)


def fit_numbers(
    values: Mapping[int, int], tiles: Collection[int], factors: Collection[int]
) -> tuple[int, int, int, int] | None:
    """The formula of a number that is not the same at all sizes; None if there is none."""
    first, last = min(values), max(values)
    factor, rest = divmod(values[last] - values[first], last - first)
    summand = values[first] - factor * first
    if rest == 0 and all(factor * size + summand == value for size, value in values.items()):
        return factor, summand, 1, 1
    found = set()
    for ratio in {Fraction(a, tile) for tile in tiles for a in factors if a > 0 and tile > 1}:
        tiled = {size: math.ceil(ratio * size) for size in values}
        times = values[first] // tiled[first]
        if times and all(times * tiled[size] == value for size, value in values.items()):
            found.add((ratio, times))
    if len(found) != 1:
        return None
    ((ratio, times),) = found
    return ratio.numerator, 0, ratio.denominator, times
