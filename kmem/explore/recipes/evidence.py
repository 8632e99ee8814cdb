"""What a kernel that recipes wrote is expected to take, held to what was measured.

The estimate of compiled launches knows what is in a binary, and a recipe's cost model what was
measured of its kernels while it was written: a kernel takes at least as long as either says. Where
the ledger holds kernels of the same recipes on this very graph and card, these decide: a setting
that was measured takes what it took, and others take what the cost model says times what it was
wrong by, the nearer their knobs the more. Source: Gaussian process regression as in calibration.py,
around the mean of the residuals.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kmem.explore.recipes.calibration import setting_distances
from kmem.problem.costs.bound import library_ms
from kmem.problem.traced import TracedProblem
from kmem.recipes import Recipe, Site, find_site
from kmem.records import MeasuredKernel, SiteChoice
from kmem.rewrites import Rewrites

#: Knobs apart at which two settings tell 1/e of each other, in doublings of a number; and what
#: knobs do not tell of a time, as a share of what they do.
_REACH, _NOISE = 3.0, 0.1

Choices = tuple[SiteChoice, ...]


@dataclass(frozen=True, slots=True)
class _Parts:
    """What cost models say of a kernel: of the sites, and of what is left to the library."""

    sites_ms: float
    library_ms: float

    @property
    def total_ms(self) -> float:
        return self.sites_ms + self.library_ms


def _place(choice: SiteChoice) -> tuple[object, ...]:
    return choice.recipe, choice.site, choice.members


class MeasuredEstimates:
    """Expected times of kernels of one problem; asks recipes for their sites once."""

    def __init__(
        self,
        traced: TracedProblem,
        recipes: Mapping[str, Recipe],
        measured: Sequence[MeasuredKernel],
        rewrites: Rewrites | None = None,
    ) -> None:
        """Nothing is computed yet.

        Args:
            measured: of this graph, on this card, under this contract.
            rewrites: by which kernels may have been written.
        """
        self._rewrites = rewrites or Rewrites()
        self._traced = traced
        self._recipes = recipes
        self._given = measured
        self._sites: dict[tuple[object, ...], Site | None] = {}
        self._costs: dict[Choices, _Parts | None] = {}  # every candidate asks about all measured

    def expect_ms(self, choices: Choices, compiled_ms: float, library_ms: float) -> float:
        """The time of one forward in ms.

        Args:
            choices: that wrote the kernel; none if no recipe did: then its binaries say all.
            compiled_ms: what its compiled launches are estimated to take.
            library_ms: the part of that in launches of a vendor's kernels.
        """
        completed = self._complete(choices)
        parts = self._parts(completed) if completed else None
        if not completed or parts is None or not math.isfinite(compiled_ms):
            return compiled_ms
        taken_ms = self._measured.get(completed)
        if taken_ms is not None:
            return taken_ms
        residual = self._residual(completed)
        if residual is not None:
            return parts.total_ms * math.exp(residual)
        return max(compiled_ms, parts.sites_ms + library_ms)

    @cached_property
    def _measured(self) -> dict[Choices, float]:
        """What was measured, in settings of today's recipes: those without a rung had the lowest.

        Of what is the same setting today, the least time.
        """
        found: dict[Choices, float] = {}
        for kernel in self._given:
            completed = self._complete(kernel.choices)
            if completed:
                found[completed] = min(kernel.latency_ms, found.get(completed, math.inf))
        return found

    def _complete(self, choices: Choices) -> Choices | None:
        """Choices as today's recipes have them; None if there is no such site or setting any more.

        A setting that names no rung, as those measured before its recipe had a ladder, is on the
        lowest.
        """
        form = self._rewrites.apply(self._traced, choices)
        if form is None:
            return None
        steps = len(form.steps)
        completed = list(choices[:steps])
        for choice in choices[steps:]:
            site = self._find_site(choice, form.traced)
            if site is None:
                return None
            space = self._recipes[choice.recipe].space(site, form.traced.device)
            settings = space.completed(dict(choice.knobs))
            if set(settings) != set(space.knobs):
                return None
            completed.append(replace(choice, knobs=tuple(sorted(settings.items()))))
        return tuple(completed)

    def _residual(self, choices: Choices) -> float | None:
        """The log of measured over predicted time that measured kernels like this one suggest.

        None if none was measured: none of the same recipes at the same sites.
        """
        places = [_place(choice) for choice in choices]
        known: list[tuple[Choices, float]] = []
        for other, latency_ms in self._measured.items():
            if [_place(choice) for choice in other] == places:
                parts = self._parts(other)
                if parts is not None:
                    known.append((other, math.log(latency_ms / parts.total_ms)))
        if not known:
            return None
        import numpy as np  # as late as possible: a run without memory does not need it

        apart = np.zeros((len(known) + 1, len(known)))
        for place in range(len(choices)):
            there = [dict(other[place].knobs) for other, _ in known]
            apart += setting_distances([*there, dict(choices[place].knobs)], there)
        alike = np.exp(-apart / _REACH)
        residuals = np.array([residual for _, residual in known])
        mean = float(residuals.mean())
        weights = np.linalg.solve(alike[:-1] + _NOISE * np.eye(len(known)), residuals - mean)
        return mean + float(alike[-1] @ weights)

    def _parts(self, choices: Choices) -> _Parts | None:
        """What the cost models say; None if today's recipes do not write such a kernel."""
        if choices not in self._costs:
            self._costs[choices] = self._predict(choices)
        return self._costs[choices]

    def _predict(self, choices: Choices) -> _Parts | None:
        form = self._rewrites.apply(self._traced, choices)
        if form is None:
            return None
        traced = form.traced
        sites_ms, covered = 0.0, set()
        for choice in choices[len(form.steps) :]:
            site = self._find_site(choice, traced)
            assert site is not None, "choices are completed before they are asked about"
            recipe = self._recipes[choice.recipe]
            sites_ms += recipe.cost_ms(site, dict(choice.knobs), traced.device)
            covered |= set(site.nodes)
        if not 0.0 < sites_ms < math.inf:
            return None
        left_ms = library_ms(traced.graph, covered, traced.device, traced.contract)
        return _Parts(sites_ms, left_ms)

    def _find_site(self, choice: SiteChoice, traced: TracedProblem) -> Site | None:
        """The site of a choice in a form of the problem, if its recipe still finds it."""
        recipe = self._recipes.get(choice.recipe)
        if recipe is None:
            return None
        key = choice.recipe, choice.site, choice.members, traced.graph.hash
        if key not in self._sites:
            self._sites[key] = find_site(recipe, traced.graph, traced.contract, choice)
        return self._sites[key]
