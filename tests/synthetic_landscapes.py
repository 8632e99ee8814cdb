"""Made-up landscapes for tests: the cost model's times, bent by knob effects that all sizes share.

Never evidence.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kmem.explore.recipes.cover import find_options
from kmem.learning.landscape import FORMAT, Header, Landscape, Point, operator_family, record_sites
from kmem.learning.recording.sampling import Sampling, leading_settings, sample_drafts
from kmem.problem.graph import graph_sizes
from kmem.profile.compile.report import CompileStatus
from kmem.recipes import Recipe
from kmem.records import (
    Contract,
    Device,
    Launch,
    Problem,
    SiteChoice,
    Status,
    Timing,
    content_hash,
)
from kmem.testing import trace_once

SYNTHETIC_VERSIONS = {"synthetic": "no machine"}


def synthetic_landscape(
    problem: Problem,
    recipes: Mapping[str, Recipe],
    device: Device,
    *,
    settings: int,
    siblings: Sequence[Problem] = (),
    seed: int = 0,
) -> Landscape:
    """A landscape nobody measured.

    The same knob has the same effect on every problem; a tenth is the problem's own.
    """
    contract = Contract()
    graph = trace_once(problem)
    options = find_options({"full": graph}, recipes, contract, device)
    elsewhere = []
    for sibling in siblings:
        other = trace_once(sibling)
        elsewhere.append(
            leading_settings(find_options({"full": other}, recipes, contract, device), settings)
        )
    sampling = Sampling(settings, seed, tuple(elsewhere))
    drafts = sample_drafts(graph, options, contract, device, sampling)
    launches = (
        Launch(
            "aten.synthetic",
            None,
            None,
            None,
            {"static__library": 1.0, "static__argument_bytes": 1e8},
        ),
    )
    slowest = max(draft.estimated_ms for draft in drafts)
    points = [_point((), slowest, launches)]
    for draft in drafts:
        bent = draft.estimated_ms * math.exp(sum(_effect(choice, seed) for choice in draft.choices))
        own = random.Random(f"{seed}:{problem.name}:{draft.choices}").gauss(0.0, 0.03)
        points.append(
            replace(
                _point(draft.choices, bent * math.exp(abs(own)), launches),
                estimated_ms=draft.estimated_ms,
            )
        )
    sites = record_sites(options)
    header = Header(
        format=FORMAT,
        problem=problem,
        family=operator_family(sites),
        operators=tuple(dict.fromkeys(site.operator for site in sites)),
        sites=sites,
        graph_hash=graph.hash,
        structure_hash=graph.structure_hash,
        sizes=graph_sizes(graph),
        device=device,
        contract=contract,
        estimated=False,
        seed=seed,
        settings=settings,
        versions=SYNTHETIC_VERSIONS,
        created_at="2000-01-01T00:00:00+00:00",
    )
    return Landscape(header, tuple(points))


def _effect(choice: SiteChoice, seed: int) -> float:
    """What a choice adds to the log of its time; never below zero.

    Nothing is faster than the cost model, which never promises more than the bound.
    """
    return sum(
        abs(random.Random(f"{seed}:{choice.recipe}:{name}:{value}").gauss(0.0, 0.15))
        for name, value in choice.knobs
    )


def _point(
    choices: tuple[SiteChoice, ...], latency_ms: float, launches: tuple[Launch, ...]
) -> Point:
    digest = content_hash(repr(choices))
    timing = Timing(latency_ms, latency_ms, latency_ms, 5)
    return Point(
        choices, digest, (), None, CompileStatus.OK, digest, launches, Status.PASSED, timing
    )
