"""Correct a cost model by what memory holds: settings that were better or worse elsewhere than predicted move in the ranking.

For each remembered setting that is legal here, the residual is its logarithmic slowdown there less the slowdown that the cost model
predicts here. A setting's correction is the mean of the residuals near it (kernel regression), shrunk towards the mean of all where
little is known. Source: Nadaraya, "On estimating regression", 1964; shrinkage as in kmem/memory/outcomes.py.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kmem.explore.cover import SiteOption
from kmem.recipes import Settings
from kmem.records import Experience, Knob

if TYPE_CHECKING:
    import numpy as np

#: Knobs apart at which a remembered setting counts 1/e: one doubling of a number or half a change of a word.
_REACH = 1.0
_WORD_DISTANCE = 2.0
#: Doublings beyond which numbers are simply different.
_FAR = 3.0
#: Remembered settings (of likeness 1, at distance 0) that the mean of all is worth.
_PRIOR_WEIGHT = 1.0


def calibrate_option(option: SiteOption, experience: Sequence[Experience]) -> SiteOption:
    """The option with its settings ranked anew, each at its corrected time; itself if memory knows nothing of its recipe."""
    predicted = {_key(settings): cost_ms for cost_ms, settings in option.ranked}
    known = [
        entry
        for entry in experience
        if entry.recipe == option.recipe.name and entry.knobs in predicted and math.isfinite(predicted[entry.knobs])
    ]
    if not known:
        return option
    import numpy as np  # a run without memory needs no arithmetic

    residuals = np.array([math.log(entry.slowdown) - math.log(predicted[entry.knobs] / option.best_ms) for entry in known])
    likeness = np.array([entry.likeness for entry in known])
    here = [settings for _, settings in option.ranked]
    there = [dict(entry.knobs) for entry in known]
    distance = sum(
        (_knob_distances([settings[name] for settings in here], [knobs[name] for knobs in there]) for name in here[0]),
        start=np.zeros((len(here), len(there))),
    )
    near = likeness * np.exp(-distance / _REACH)
    usual = float(likeness @ residuals / likeness.sum())  # what is taken to hold of settings that nothing is known near
    corrections = (near @ residuals + _PRIOR_WEIGHT * usual) / (_PRIOR_WEIGHT + near.sum(axis=1))
    corrected = [(cost_ms * math.exp(by), settings) for (cost_ms, settings), by in zip(option.ranked, corrections.tolist(), strict=True)]
    return replace(option, ranked=tuple(sorted(corrected, key=lambda pair: pair[0])))


def _knob_distances(here: Sequence[Knob], there: Sequence[Knob]) -> "np.ndarray":
    """How far values of one knob are apart: doublings for sizes, a constant for words and for numbers that are no sizes."""
    import numpy as np

    if all(isinstance(value, int) and value > 0 for value in (*here, *there)):
        return np.minimum(_FAR, np.abs(np.log2(np.array(here))[:, None] - np.log2(np.array(there))[None, :]))
    places = {value: place for place, value in enumerate(dict.fromkeys([*here, *there]))}
    codes = [np.array([places[value] for value in values]) for values in (here, there)]
    return _WORD_DISTANCE * (codes[0][:, None] != codes[1][None, :])


def _key(settings: Settings) -> tuple[tuple[str, Knob], ...]:
    return tuple(sorted(settings.items()))
