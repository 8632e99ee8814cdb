"""Measured outcomes, append-only, and everything that is derived from them.

In the order in which an outcome passes, from its record to an answer:

- graphs.py: what a problem's graph is known by, and how far two graphs are apart.
- settlements.py: what became of the predictions that fixes were made with.
- written.py: an outcome as this memory counts it: by its writer.
- worth.py: at each graph, the best with a skill beside the best without it.
- sums.py: table `skill_sums`: what each outcome adds to the sums of its skill.
- outcomes.py: `memory.ledger`: outcomes, their settlements and retractions.
- listing.py: `memory.listing`: outcomes in lists, a page of them at a time.
- redaction.py: an outcome without what belongs to its owner.
- sum_columns.py: table `skill_sums` as numpy columns in memory.
- ageing.py: what outcomes count by the age of what made them.
- posteriors.py: the arithmetic from sums to posteriors.
- contributors.py: `memory.contributors`: who measured what, and how far each origin is trusted.
- track_records.py: `memory.track_records`: posteriors and track records of skills, when asked for.
- winners.py: `memory.winners`: the kernels to start from.
- rungs.py: how far up their precision ladders the sites of a graph had to climb.
- descents.py: how fast earlier searches came down.
- experience.py: what settings of recipes took on other graphs.
"""
