"""The author that writes Triton by executable skills; it needs no key, no network and no GPU.

- pieces.py: smaller sites, found where the nodes around them belong to others.
- cutting.py: the cheapest cut of a graph into sites on offer and the library's nodes.
- ranking.py: the settings of a site by their predicted time.
- cover.py: which recipe writes which part of the graph.
- calibration.py: the cost model's ranking of knob settings, corrected by what was measured.
- evidence.py: the times that kernels of recipes are expected to take, held to measured ones.
- rewriting.py: the rewritten forms of a problem that are worth writing for.
- moving.py: moves of skills among the knobs of a kernel: which are open, where they lead.
- proposing.py: which settings to try, for all sites of a cover at once.
- writing.py: the module that recipes write at chosen settings.
- author.py: what could be done, and the candidates that are written for a task.
"""
