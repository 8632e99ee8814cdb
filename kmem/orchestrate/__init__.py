"""Orchestrate: what a round tries.

Pure functions of a run's records; nothing here runs, measures or asks.

- lineage.py: what an attempt answered, and the kernel it started from, through chains of repairs.
- vetoes.py: what this run has refuted; strategies.py: which parents, and who gets how many samples.
- plan.py: a round's tasks from the two; repair.py: failed candidates as tasks; stop.py: when it is
  enough.
"""
