"""Diagnose: what limits a kernel, named by arithmetic.

- signature.py: a profile's raw counters as the metrics that a diagnosis is made of.
- rule.py: the conditions of a rule, and what it lacks where facts are unknown.
- rules.py: which facts name which bottleneck, each threshold with its reason.
- inferred.py: those that go by the bound alone, where counters are few.
- bottleneck.py: the bottleneck of one forward, with evidence, headroom and a summary.
- claims.py: what a change claimed, held against the signatures before and after it.
"""
