"""Attention as skills/flash-attention writes it: the site of a source, settings, what it makes."""

import torch
from module_problems import recipe

from kmem.devices import named_target
from kmem.problem.graph import OpGraph
from kmem.recipes import Site
from kmem.records import Contract
from kmem.testing import emit_source, import_source, trace_source

H200 = named_target("h200")
RECIPE = recipe("flash-attention")
#: How far from the module in float64, by what it computes in.
TOLERANCES = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}


def site_of(source: str) -> tuple[OpGraph, Site]:
    """The graph, and its only attention."""
    _, graph = trace_source(source)
    (site,) = RECIPE.match(graph, Contract())
    return graph, site


def settings_of(site: Site) -> list[dict]:
    """One setting of each form, with several blocks of queries and of keys."""
    found = {
        setting["form"]: setting
        for setting in RECIPE.space(site, H200).settings()
        if setting["block_m"] == setting["block_n"] == 16
    }
    return list(found.values())


def run(source: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """What the emitted module makes, in each form."""
    graph, site = site_of(source)
    found = []
    for setting in settings_of(site):
        emitted = import_source(emit_source(source, graph, [(RECIPE, site, setting)]))
        with torch.no_grad():
            found.append(emitted.ModelNew()(*inputs))
    return found


def ranked_first(source: str) -> tuple[str, str, str, dict]:
    """A job for tests/compile_sm90.py: the setting that is ranked first."""
    _, site = site_of(source)
    settings = RECIPE.space(site, H200).settings()
    best = min(settings, key=lambda setting: RECIPE.cost_ms(site, setting, H200))
    return "flash-attention", source, "match", best
